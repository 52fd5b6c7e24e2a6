"""The report page: its numbers are those of the frames, it fetches nothing, and no content breaks out of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fate import FateError
from fate.view.rendering import VideoClock
from fate.view.report import MOST_TRACKS, TIME_BINS, measure_event_rate, write_report
from tests.view.recorded import Frame, drive, frame, steady

CLOCK = VideoClock(first_us=1_040_000, step_us=40_000, fps=25, num_frames=10, origin_us=1_000_000)
RECORDING = steady(1.0)
FRAMES = drive(RECORDING)


def page_of(tmp_path: Path, frames: list[Frame] | None = None, **options: Any) -> str:
    settings: dict[str, Any] = {"title": "Run", "classes": ["car", "pedestrian"], **options}
    summary = settings.pop("summary", {})
    write_report(
        tmp_path / "report.html", settings.pop("video", None), FRAMES if frames is None else frames, summary, **settings
    )
    return (tmp_path / "report.html").read_text()


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return dict(json.loads(found[1]))


def test_counts_and_tracks_are_those_of_the_frames(tmp_path: Path) -> None:
    data = data_of(page_of(tmp_path))
    ids = np.concatenate([each.class_ids for each in FRAMES])
    assert {each["name"]: each["count"] for each in data["classes"]} == {
        "car": int((ids == 0).sum()),
        "pedestrian": int((ids == 1).sum()),
    }
    assert data["frames"] == {"count": len(FRAMES), "hz": 40.0, "boxes": len(ids)}
    second = data["tracks"]["rows"][1]
    seen = [each for each in FRAMES if each.track_ids is not None and 8 in each.track_ids]
    assert second["id"] == 8
    assert second["name"] == "pedestrian"
    assert (second["first_us"], second["last_us"], second["boxes"]) == (seen[0].t_us, seen[-1].t_us, len(seen))
    assert second["score"] == pytest.approx(np.mean([each.scores[1] for each in seen]), abs=1e-4)


def test_boxes_over_time_add_up_to_all_boxes(tmp_path: Path) -> None:
    long = [frame(time * 1000, [[0, 0, 5, 5]] * (time % 3), class_ids=[time % 2] * (time % 3)) for time in range(5000)]
    data = data_of(page_of(tmp_path, long))
    assert len(data["boxes"]["t_us"]) == TIME_BINS
    width = 5000 / TIME_BINS  # frames that fall into a bin; a few bins hold one more or less
    for each in data["classes"]:
        total = sum(value * width for value in data["boxes"]["by_class"][str(each["id"])])
        assert total == pytest.approx(each["count"], rel=0.02)


def test_a_time_without_frames_is_a_gap_not_a_zero(tmp_path: Path) -> None:
    times = [*range(0, 1_000_000, 10_000), *range(5_000_000, 6_000_000, 10_000)]
    data = data_of(page_of(tmp_path, [frame(time, [[0, 0, 5, 5]]) for time in times]))
    course = dict(zip(data["boxes"]["t_us"], data["boxes"]["by_class"]["0"], strict=True))
    assert {value for time, value in course.items() if 1_100_000 < time < 4_900_000} == {None}
    assert {value for time, value in course.items() if time < 900_000} == {1.0}


def test_latency_is_counted_by_stage_and_against_the_budget(tmp_path: Path) -> None:
    data = data_of(page_of(tmp_path, hz=200))
    latency = data["latency"]
    total = np.array([each.ms["encode"] + each.ms["model"] for each in FRAMES if each.ms])
    assert latency["budget_ms"] == 5
    assert latency["over_budget"] == int((total > 5).sum())
    assert [stage["name"] for stage in latency["stages"]] == ["encode", "model", "total"]
    for stage in latency["stages"]:
        assert sum(stage["counts"]) == len(FRAMES)
    assert latency["stages"][2]["p50"] == pytest.approx(np.median(total), abs=1e-3)
    assert latency["stages"][2]["p99"] == pytest.approx(np.percentile(total, 99), abs=1e-3)


def test_times_and_budgets_are_written_as_people_write_them(tmp_path: Path) -> None:
    model_ms = [1240.0] * 19 + [21_350.0]
    slow = [frame(time, [], ms={"encode": 30.0, "model": ms}) for time, ms in enumerate(model_ms)]
    text = page_of(tmp_path, slow, hz=200)
    assert "<dd>1.27 s<small>median; p99" in text
    assert not re.search(r"\de[+-]\d\d", text.split('<script type="application/json"')[0])
    rows = dict(re.findall(r"<tr><td>(\w+)</td>.*?<td>([^<]*)</td></tr>", text.split('id="latency-table"')[1]))
    assert rows["encode"] == "600 %"
    number, sign = rows["total"].rsplit(" ", 1)
    assert sign == "×"
    assert 200 < float(number.replace(" ", "")) < 4300


def test_what_the_detector_calls_its_total_is_taken_over_and_idle_stages_are_left_out(tmp_path: Path) -> None:
    class Timed(Frame):
        total_ms = 2.5  # type: ignore[assignment]

    plain = frame(0, [])
    timed = Timed(0, plain.boxes, plain.scores, plain.class_ids, None, {"model": 2.0, "encode": 0.0, "decode": 0.5})
    stages = data_of(page_of(tmp_path, [timed, timed]))["latency"]["stages"]
    assert [(stage["name"], stage["p50"]) for stage in stages] == [("model", 2.0), ("decode", 0.5), ("total", 2.5)]


def test_the_event_rate_counts_every_event_once() -> None:
    times, rates = measure_event_rate(RECORDING, bins=100)
    assert len(times) == 100
    assert rates.sum() * 0.01 == pytest.approx(len(RECORDING.events.t_us), rel=1e-3)
    part_times, part = measure_event_rate(
        RECORDING, RECORDING.start_us + 100_000, RECORDING.start_us + 300_000, bins=20
    )
    assert (part * 0.01).sum() == pytest.approx(len(RECORDING.read(1_100_000, 1_300_000)))
    assert 1_100_000 < part_times[0] < part_times[-1] < 1_300_000


def test_too_many_tracks_are_cut_and_said_so(tmp_path: Path) -> None:
    many = [frame(10 * index, [[0, 0, 5, 5]], tracks=[index // 2]) for index in range(2 * MOST_TRACKS + 20)]
    page = page_of(tmp_path, many)
    assert data_of(page)["tracks"]["total"] == MOST_TRACKS + 10
    assert page.count("data-end=") == MOST_TRACKS
    assert f"The {MOST_TRACKS} longest are listed; 10 shorter ones are not." in page


def test_the_summary_is_printed_as_given(tmp_path: Path) -> None:
    summary = {
        "events": 1_204_331,
        "times real time": np.float32(1.5),
        "tracked": True,
        "model": "fate-s",
        "none": None,
        "rates": [20, 200],
        "dropped": {"windows": 3, "not a number": float("nan")},
    }
    page = page_of(tmp_path, summary=summary)
    for cell in ("1\u202f204\u202f331", "1.5", "yes", "fate-s", "–", "20, 200", "3", "nan"):
        assert f"<td>{cell}</td>" in page
    assert "<h3>dropped</h3>" in page


def test_a_small_video_is_inside_and_a_large_one_beside_the_page(tmp_path: Path) -> None:
    (tmp_path / "a drive.mp4").write_bytes(b"x" * 1000)
    inside = page_of(tmp_path, video=tmp_path / "a drive.mp4", clock=CLOCK, embed_limit=1000)
    assert 'id="video-data"' in inside
    assert "beside" not in inside.split("<script")[0]
    outside = page_of(tmp_path, video=tmp_path / "a drive.mp4", clock=CLOCK, embed_limit=999)
    assert 'id="video-data"' not in outside
    assert 'data-href="a%20drive.mp4"' in outside
    assert "keep the two together" in outside
    page_of(tmp_path, video=b"y" * 2000, clock=CLOCK, embed_limit=999)
    assert (tmp_path / "report.mp4").read_bytes() == b"y" * 2000


def test_nothing_is_fetched_and_a_policy_forbids_it(tmp_path: Path) -> None:
    page = page_of(tmp_path, event_rate=measure_event_rate(RECORDING))
    assert "default-src 'none'" in page
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}  # the name of SVG's elements


def test_no_name_breaks_out_of_the_page(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    page = page_of(tmp_path, title=evil, lead=evil, classes=[evil, evil], summary={evil: evil, "s": {evil: evil}})
    assert "<script>alert" not in page
    assert "<img" not in page
    assert data_of(page)["classes"][0]["name"] == evil


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"video": b"x"}, "a video and its clock belong together"),
        ({"event_rate": ([0, 1], [1.0])}, "same length"),
        ({"event_rate": ([1, 0], [1.0, 2.0])}, "times in order"),
        ({"video": Path("missing.mp4"), "clock": CLOCK}, "missing.mp4: the video cannot be read"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_a_sentence(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(FateError, match=words):
        page_of(tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_page_goes_into_a_folder_that_is_there_under_its_own_ending(tmp_path: Path) -> None:
    with pytest.raises(FateError, match=r"ends in \.html"):
        write_report(tmp_path / "report.pdf", None, FRAMES, {}, title="x")
    with pytest.raises(FateError, match="does not exist"):
        write_report(tmp_path / "no" / "report.html", None, FRAMES, {}, title="x")


@pytest.mark.parametrize("frames", [[], [frame(5000, [])], [frame(5000, [[1, 2, 3, 4]], tracks=[-1])]])
def test_nearly_nothing_to_show_is_still_a_page(tmp_path: Path, frames: list[Frame]) -> None:
    data = data_of(page_of(tmp_path, frames))
    assert data["frames"]["count"] == len(frames)
    assert data["end_us"] > data["start_us"]
