"""The study ``real``: what counts as a hit, a miss and a false box, and how clips are declared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

import fate
from fate.boxes.detection_files import DetectionLog
from fate.boxes.labels import Labels
from fate.errors import FateError
from fate.events.window import Window, window_us
from fate.formats.recording import Recording
from fate.inference.loading import load_detector
from fate.inference.stream_types import StreamFrame
from fate.models.checkpoints import save_model
from fate.workflows.detect import Detected, detect
from fate.workflows.studies import real_clips
from fate.workflows.studies.clips import read_clips
from fate.workflows.studies.real_clips import ClipScores, measure_clip, study_clips
from tests.cli.running import fate as run_fate
from tests.inference.streams import drive, small_detector

SENSOR = (60, 76)
FIRST_US = 1000  # of the events
BOX = (10.0, 10.0, 30.0, 50.0)
#: Boxes of a window that ends at a time: (corners, score, class id).
Found = Callable[[int], list[tuple[tuple[float, ...], float, int]]]
DETECTOR: Any = SimpleNamespace(classes=("car", "pedestrian"), calibration=SimpleNamespace(threshold=0.4))


def events_at(path: Path, length_us: int) -> Path:
    """A recording from ``FIRST_US`` on, of this length."""
    t = np.linspace(FIRST_US, FIRST_US + length_us - 1, 200).astype(np.int64)
    fate.write_events(path, fate.Events(t, t % 70, t % 50, t % 2, SENSOR))
    return path


def write_clips(folder: Path, *clips: dict[str, Any]) -> Path:
    path = folder / "clips.yaml"
    path.write_text(yaml.safe_dump({"clips": list(clips)}))
    return path


def labels_at(times: list[int], class_id: int = 0, **about: Any) -> Labels:
    x1, y1, x2, y2 = ([side] * len(times) for side in BOX)
    return Labels(times, x1, y1, x2, y2, class_id=[class_id] * len(times), **about)


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ClipScores]:
    """Measure one clip with a detector that finds what it is given."""

    def run(clip: dict[str, Any], found: Found, hz: float = 20.0) -> ClipScores:
        def fake(recording: Recording, _: object, hz: float, *, start_us: int, end_us: int, threshold: float) -> Any:
            frames, hop_us = [], window_us(hz)
            for start in range(start_us, end_us, hop_us):
                window = Window(start, start + hop_us)
                rows = [row for row in found(window.end_us - FIRST_US) if row[1] >= threshold]
                boxes = np.array([row[0] for row in rows], np.float32).reshape(-1, 4)
                scores, ids = np.array([row[1] for row in rows], np.float32), np.array([row[2] for row in rows], int)
                frames.append(StreamFrame(window.end_us, boxes, scores, ids, None, window, 0, {}))
            log = DetectionLog("x", SENSOR, DETECTOR.classes, hz, frames, facts={"window_us": 50_000})
            return Detected(log, frames, {})

        monkeypatch.setattr(real_clips, "detect", fake)
        (only,) = read_clips(write_clips(tmp_path, clip))
        with only.naming_errors():
            return measure_clip("d", DETECTOR, only, hz)

    return run


def street(folder: Path, times: list[int], **more: Any) -> dict[str, Any]:
    """A clip of one second with a car labelled at times after the first event."""
    events_at(folder / "street.npz", 1_000_000)
    fate.write_labels(folder / "street_bbox.npy", labels_at(times))
    return {"name": "street", "events": "street.npz", "labels": "_bbox.npy", "label_offset_us": "start",
            "classes": {"car": 0}, **more}  # fmt: skip


@pytest.mark.parametrize("hz", [20.0, 100.0, 200.0])
def test_perfect_boxes_are_hits_and_reach_the_goal_at_every_rate(tmp_path: Path, measure: Any, hz: float) -> None:
    goal = {"AP50": 100, "found": 100, "hits": 3, "false_boxes": 0}
    done = measure(street(tmp_path, [100_000, 200_000, 900_000], goal=goal), lambda _: [(BOX, 0.9, 0)], hz)
    figures = done.figures()
    assert done.window_us == 50_000  # windows may be longer than the time between them
    assert [figures[name] for name in ("windows", "boxes", "hits", "misses", "false_boxes")] == [3, 3, 3, 0, 0]
    assert figures["AP50"] == pytest.approx(100)
    assert all(done.goals().values())


def test_wrong_class_place_and_doubles_are_false_and_weak_boxes_count_for_average_precision_alone(
    tmp_path: Path, measure: Any
) -> None:
    clip = street(tmp_path, [100_000, 200_000], goal={"AP50": 99, "false_boxes": 3, "false_per_window": 1.4})
    aside = (40.0, 10.0, 60.0, 50.0)
    boxes = {100_000: [(BOX, 0.9, 1), (aside, 0.9, 0)], 200_000: [(BOX, 0.8, 0), (BOX, 0.7, 0)]}
    done = measure(clip, lambda t: boxes.get(t, []))
    figures = done.figures()
    assert [figures[name] for name in ("hits", "misses", "false_boxes", "false_per_window")] == [1, 1, 3, 1.5]
    assert done.goals() == {"AP50": False, "false_boxes": True, "false_per_window": False}
    weak = measure(clip, lambda t: [(BOX, 0.1, 0)]).figures()
    assert (weak["hits"], weak["misses"]) == (0, 2)
    assert weak["AP50"] == pytest.approx(100)


def test_windows_without_labels_count_only_if_the_clip_shows_nothing(tmp_path: Path, measure: Any) -> None:
    ghost: Found = lambda t: [(BOX, 0.9, 0)] if t % 100_000 else []  # noqa: E731
    assert measure(street(tmp_path, [100_000, 300_000]), ghost).figures()["false_boxes"] == 0
    empty = {"events": "street.npz", "shows": "nothing", "goal": {"false_per_window": 0.5}}
    done = measure(empty, ghost)
    assert (done.figures()["windows"], done.figures()["false_boxes"], done.figures()["AP50"]) == (20, 10, None)
    assert done.goals() == {"false_per_window": True}
    assert measure(empty, lambda _: [(BOX, 0.39, 0)]).figures()["false_boxes"] == 0
    part = measure({**empty, "start_s": 0.2, "end_s": 0.5}, ghost)
    assert part.figures()["windows"] == 6


def test_the_skipped_start_and_labels_outside_the_part_do_not_count(tmp_path: Path, measure: Any) -> None:
    times = [100_000, 500_000, 600_000, 900_000]
    done = measure(street(tmp_path, times, skip_s=0.5, end_s=0.7), lambda _: [])
    assert done.figures()["misses"] == 1


def test_a_label_between_windows_belongs_to_the_nearest_window_within_the_tolerance(
    tmp_path: Path, measure: Any
) -> None:
    near = street(tmp_path, [115_000, 480_000])  # 15 and 20 ms from the end of a window
    figures = measure(near, lambda t: [(BOX, 0.9, 0)] if t == 100_000 else []).figures()
    assert (figures["boxes"], figures["hits"]) == (1, 1)
    wide = measure({**near, "label_tolerance_us": 20_000}, lambda _: []).figures()
    assert wide["misses"] == 2


def test_annotations_at_the_end_of_short_recordings_count_together(tmp_path: Path, measure: Any) -> None:
    box = "<xmin>10</xmin><ymin>10</ymin><xmax>30</xmax><ymax>50</ymax>"
    for name in ("a", "b"):
        events_at(tmp_path / f"{name}.npz", 40_000)
        thing = f"<object><name>person</name><bndbox>{box}</bndbox></object>"
        (tmp_path / f"{name}.xml").write_text(f"<annotation>{thing}</annotation>")
    clip = {"events": "*.npz", "labels": ".xml", "label_offset_us": "end", "classes": {"pedestrian": "person"}}
    for hz, end in ((20.0, 50_000), (200.0, 40_000)):
        found: Found = lambda t, end=end: [(BOX, 0.9, 1)] if t == end else []  # noqa: E731
        figures = measure(clip, found, hz).figures()
        assert (figures["boxes"], figures["hits"], figures["false_boxes"]) == (2, 2, 0)


def test_boxes_of_a_class_that_the_detector_does_not_know_are_missed(tmp_path: Path, measure: Any) -> None:
    clip = street(tmp_path, [100_000], classes={"Two-Wheeler": 0})
    figures = measure(clip, lambda _: [(BOX, 0.9, 0)]).figures()
    assert (figures["misses"], figures["false_boxes"], figures["AP50"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"labels": None}, "neither labels nor shows"),
        ({"shows": "nothing"}, "both labels and shows"),
        ({"shows": "cars"}, "shows is 'cars' in clip 1"),
        ({"events": None}, "events"),
        ({"events": "other.npz"}, "events is 'other.npz' in clip 1 (street); there is no such file"),
        ({"labels": ".json"}, "labels is '.json' in clip 1 (street); there is no file"),
        ({"label_offset_us": "begin"}, "label_offset_us is 'begin' in clip 1 (street); expected whole microseconds"),
        ({"label_offset_us": 1.5}, "(in clip 1 (street))"),
        ({"label_time_unit": "h"}, "label_time_unit 'h' was given"),
        ({"end_s": float("inf")}, "end_s is inf in clip 1"),
        ({"goal": {"AP50": float("nan")}}, "goal is nan in clip 1"),
        ({"goal": {"ap50": 3}}, "goal names 'ap50' in clip 1 (street); expected AP50"),
        ({"end_s": -1}, "end_s is -1 in clip 1"),
        ({"lables": 3}, "unknown key 'lables' in clip 1; did you mean 'labels'?"),
        ({"sensor": "small"}, "expected WIDTHxHEIGHT"),
        ({"classes": None}, "has class ids without names; add classes"),
        ({"classes": {"car": 3}}, "has boxes of class 0, which classes does not name"),
        ({"classes": {"car": "car"}}, "the numbers of the label file after ours, such as classes: {car: 0}"),
        ({"label_offset_us": 10**12}, "change label_offset_us"),
        ({"start_s": 3}, "change start_s or end_s"),
        ({"skip_s": 0.5}, "change label_offset_us, skip_s, start_s or end_s"),
        ({"label_offset_us": FIRST_US + 20_000}, "at 20 Hz, no labelled time lies within 15 ms of the end of a window"),
    ],
)
def test_a_wrong_entry_is_refused_with_the_file_and_the_clip(
    tmp_path: Path, measure: Any, change: dict[str, Any], fault: str
) -> None:
    clip = {**street(tmp_path, [100_000]), **change}
    with pytest.raises(FateError) as error:
        measure({key: value for key, value in clip.items() if value is not None}, lambda _: [])
    assert str(error.value).startswith(f"{tmp_path / 'clips.yaml'}: ")
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [("[1]", "expected the key clips"), ("clips: []", "expected the key clips"), ("clips: [3]", "3 stands in clip 1")],
)
def test_a_file_that_lists_no_clips_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "clips.yaml").write_text(text)
    with pytest.raises(FateError, match=fault):
        read_clips(tmp_path / "clips.yaml")


def test_one_label_file_for_several_recordings_and_names_that_repeat_are_refused(tmp_path: Path) -> None:
    clip = street(tmp_path, [100_000])
    events_at(tmp_path / "street2.npz", 1_000_000)
    with pytest.raises(FateError, match="one file for 2 recordings"):
        read_clips(write_clips(tmp_path, {**clip, "events": "street*.npz", "labels": "street_bbox.npy"}))
    with pytest.raises(FateError, match="two clips are called 'street'"):
        read_clips(write_clips(tmp_path, clip, clip))


def test_weak_boxes_do_not_change_those_above_a_threshold(tmp_path: Path) -> None:
    fate.write_events(tmp_path / "a.npz", drive(100_000))
    detector = load_detector(small_detector())
    every = detect(tmp_path / "a.npz", detector, 100, threshold=0.001)
    limit = float(np.median(np.concatenate([frame.scores for frame in every.frames])))
    strong = detect(tmp_path / "a.npz", detector, 100, threshold=limit)
    assert 0 < sum(map(len, strong.frames)) < sum(map(len, every.frames))
    for frame, expected in zip(every.frames, strong.frames, strict=True):
        assert np.array_equal(frame.boxes[frame.scores >= limit], expected.boxes)


def test_the_command_writes_a_row_for_each_detector_clip_and_rate(tmp_path: Path) -> None:
    save_model(small_detector(), tmp_path / "small.safetensors")
    fate.write_events(tmp_path / "desk.npz", drive(50_000))
    path = write_clips(tmp_path, street(tmp_path, [50_000]), {"events": "desk.npz", "shows": "nothing"})
    done = run_fate("study", "real", "--clips", path, "--weights", tmp_path / "small.safetensors", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "real.json").read_text())
    assert [(row["clip"], row["hz"]) for row in result["rows"]] == [
        (clip, hz) for clip in ("street", "desk") for hz in (20, 100, 200)
    ]
    assert result["clips"]["desk"] == {"events": "desk.npz", "shows": "nothing"}
    assert (tmp_path / "real.md").read_text().strip() in done.stdout
    assert done.stdout.count("small.safetensors |") == 6


def test_labels_are_read_before_anything_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = street(tmp_path, [100_000]), street(tmp_path, [100_000], name="late", label_offset_us=10**12)
    monkeypatch.setattr(real_clips, "detect", lambda *_, **__: pytest.fail("a detector ran"))
    with pytest.raises(FateError, match="clip 'late'"):
        study_clips(write_clips(tmp_path, good, bad), ["fate-s-nano"], tmp_path)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("real",), "real needs --clips"),
        (("real", "--clips", "x.yaml", "--dataset", "sim"), "--dataset was given for real"),
        (("real", "--clips", "x.yaml", "--weights", "nonsense"), "nonsense"),
        (("smoke", "--clips", "x.yaml"), "--clips was given for smoke"),
    ],
)
def test_options_that_do_not_fit_the_study_are_refused(words: tuple[str, ...], fault: str) -> None:
    done = run_fate("study", *words)
    assert done.returncode == 2
    assert fault in done.stderr
