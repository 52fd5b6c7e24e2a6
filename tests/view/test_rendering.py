"""Videos of events and boxes: what is shown when, checked in the decoded video."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from imageio_ffmpeg import get_ffmpeg_exe, read_frames
from numpy.typing import NDArray

from fate import Events, FateError
from fate.boxes.drawing import PALETTES, class_colour, draw_events, enlargement, track_colour
from fate.view.rendering import PICTURE_WIDTH, EventSurface, VideoClock, render_comparison, render_video
from tests.conftest import event_lists
from tests.view.recorded import frame, steady

FACTOR = enlargement((48, 64), PICTURE_WIDTH)
QUIET = steady(0.4, per_second=100)
START = QUIET.start_us


def decoded(path: Path) -> list[NDArray[np.int64]]:
    """The pictures of a video."""
    reader = read_frames(str(path))
    width, height = next(reader)["size"]
    return [np.frombuffer(data, np.uint8).reshape(height, width, 3).astype(np.int64) for data in reader]


def has_edge(picture: NDArray[np.int64], box: list[float], colour: tuple[int, int, int], left: int = 0) -> bool:
    """Whether the lower edge of a box (where no words stand) is drawn in a colour."""
    x1, _, x2, y2 = (round(value * FACTOR) for value in box)
    line = picture[y2 - FACTOR // 2, left + x1 + FACTOR : left + x2 - FACTOR]
    return bool(np.abs(np.median(line, axis=0) - colour).max() < 40)


@given(
    event_lists(sensors=st.just((20, 30)), max_gap=400), st.integers(1, 2000), st.lists(st.integers(1, 900), max_size=8)
)
def test_events_fed_in_pieces_give_the_picture_and_the_count_of_the_window(
    events: Events, acc: int, steps: list[int]
) -> None:
    surface = EventSurface((20, 30), acc, "gray")
    start = int(events.t_us[0]) if len(events) else 0
    before = start
    for time in start + np.cumsum([0, *steps]):
        surface.feed(events.between(before, int(time)))
        before = int(time)
        window = events.between(before - acc, before)
        assert np.array_equal(surface.picture(before), draw_events(window, "gray"))
        assert surface.count(before) == len(window)


@pytest.mark.parametrize(("fps", "slow"), [(25, 1), (25, 4), (30, 0.5), (29.97, 3), (60, 10)])
def test_the_clock_covers_the_span_in_even_steps(fps: float, slow: float) -> None:
    clock = VideoClock.over(1_000_000, 3_345_678, fps, slow)
    assert clock.num_frames / fps == pytest.approx(2.345678 * slow, abs=1 / fps)
    assert clock.time_us(clock.num_frames - 1) >= 3_345_678
    assert clock.time_us(clock.num_frames - 2) < 3_345_678
    assert clock.time_us(7) - clock.time_us(0) == pytest.approx(7 * 1e6 / (fps * slow), abs=1)


def test_accumulation_and_display_rate_are_two_controls(tmp_path: Path) -> None:
    recording = steady(0.4, per_second=1000)
    lit = {}
    for acc in (10_000, 100_000):
        clock = render_video(recording, tmp_path / "a.mp4", acc_us=acc, fps=10, slow=2, palette="gray")
        pictures = decoded(tmp_path / "a.mp4")
        assert clock.num_frames == len(pictures) == 8
        assert clock.step_us == 50_000
        shown = pictures[4][FACTOR // 2 : 48 * FACTOR : FACTOR, FACTOR // 2 : 64 * FACTOR : FACTOR]
        window = recording.read(clock.time_us(4) - acc, clock.time_us(4))
        expected = draw_events(window, "gray").astype(np.int64)
        assert np.abs(shown - expected).max() < 60
        lit[acc] = int((np.abs(shown - 128).max(axis=2) > 60).sum())
    assert lit[100_000] > 5 * lit[10_000]


def test_each_picture_has_the_boxes_of_the_frame_nearest_before_it(tmp_path: Path) -> None:
    first, second = [5.0, 10.0, 25.0, 30.0], [35.0, 20.0, 60.0, 44.0]
    frames = [frame(START + 100_000, [first]), frame(START + 200_000, [second], class_ids=[1])]
    clock = render_video(QUIET, tmp_path / "a.mp4", frames, fps=20)
    for index, picture in enumerate(decoded(tmp_path / "a.mp4")):
        time = clock.time_us(index) - START
        assert has_edge(picture, first, class_colour(0)) == (100_000 <= time < 200_000)
        assert has_edge(picture, second, class_colour(1)) == (200_000 <= time <= 400_000)


def test_a_frame_after_the_last_event_is_shown_unless_an_end_was_given(tmp_path: Path) -> None:
    box = [5.0, 10.0, 25.0, 30.0]
    frames = [frame(START + 450_000, [box])]
    for end_us, pictures, shown in ((None, 9, True), (START + 400_000, 8, False)):
        clock = render_video(QUIET, tmp_path / "a.mp4", frames, fps=20, end_us=end_us)
        assert clock.num_frames == pictures
        assert has_edge(decoded(tmp_path / "a.mp4")[-1], box, class_colour(0)) == shown


def test_boxes_below_the_threshold_are_not_drawn(tmp_path: Path) -> None:
    low, high = [5.0, 10.0, 25.0, 30.0], [35.0, 20.0, 60.0, 44.0]
    frames = [frame(START, [high, low], scores=[0.8, 0.3])]
    render_video(QUIET, tmp_path / "a.mp4", frames, fps=20, threshold=0.5, end_us=START + 50_000)
    picture = decoded(tmp_path / "a.mp4")[0]
    assert has_edge(picture, high, class_colour(0))
    assert not has_edge(picture, low, class_colour(0))


def test_colours_follow_the_track_where_asked(tmp_path: Path) -> None:
    box = [20.0, 15.0, 50.0, 40.0]
    render_video(QUIET, tmp_path / "a.mp4", [frame(START, [box], tracks=[5])], colour_by="track", end_us=START + 40_000)
    assert has_edge(decoded(tmp_path / "a.mp4")[0], box, track_colour(5))


def test_neighbouring_tracks_have_colours_far_apart() -> None:
    for track in range(200):
        assert np.abs(np.subtract(track_colour(track), track_colour(track + 1))).max() > 60


def test_two_runs_stand_side_by_side_over_the_same_events(tmp_path: Path) -> None:
    slow, fast = [5.0, 10.0, 25.0, 30.0], [35.0, 20.0, 60.0, 44.0]
    runs = [("20 Hz", [frame(START, [slow])]), ("200 Hz", [frame(START, [fast])])]
    render_comparison(QUIET, tmp_path / "a.mp4", runs, fps=25, end_us=START + 40_000)
    picture = decoded(tmp_path / "a.mp4")[0]
    panel = 64 * FACTOR
    assert picture.shape[1] >= 2 * panel
    # both panels show the same events outside the boxes: find how far right and down the panels lie by their content
    top = picture.shape[0] - 48 * FACTOR
    assert top > 0
    down = next(row for row in range(top) if has_edge(picture[row:], slow, class_colour(0)))
    gap = picture.shape[1] - 2 * panel
    assert has_edge(picture[down:], fast, class_colour(0), left=panel + gap)
    assert not has_edge(picture[down:], fast, class_colour(0))
    assert not has_edge(picture[down:], slow, class_colour(0), left=panel + gap)


def test_it_plays_in_browsers_and_progress_reaches_the_end(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    clock = render_video(QUIET, tmp_path / "a.mp4", progress=lambda done, of: told.append((done, of)))
    assert told == [(index + 1, clock.num_frames) for index in range(clock.num_frames)]
    command = [get_ffmpeg_exe(), "-i", str(tmp_path / "a.mp4")]
    words = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert "h264" in words
    assert "yuv420p" in words


def test_a_part_is_shown_with_the_recordings_own_time(tmp_path: Path) -> None:
    clock = render_video(QUIET, tmp_path / "a.mp4", start_us=START + 100_000, end_us=START + 300_000)
    assert clock.first_us == START + 140_000
    assert clock.origin_us == START
    assert clock.num_frames == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"acc_us": 0}, "accumulation time of 0"),
        ({"fps": 0}, "0 pictures a second"),
        ({"slow": 0}, "slowed 0 times"),
        ({"slow": float("inf")}, "slowed inf times"),
        ({"slow": 1e6}, "at most 1000000 pictures"),
        ({"palette": "pink"}, "known are dark"),
        ({"start_us": 2_000_000, "end_us": 1_000_000}, "end after the start"),
        ({"colour_by": "mood"}, "expected 'class' or 'track'"),
    ],
)
def test_impossible_wishes_are_refused_in_a_sentence_and_leave_no_file(
    tmp_path: Path, options: dict[str, object], words: str
) -> None:
    with pytest.raises(FateError, match=words):
        render_video(QUIET, tmp_path / "a.mp4", **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_error_midway_leaves_no_file(tmp_path: Path) -> None:
    def stop(done: int, of: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        render_video(QUIET, tmp_path / "a.mp4", progress=stop)
    assert list(tmp_path.iterdir()) == []


#: What people with each kind of colour blindness see, as matrices on linear red, green and blue (Machado et al. 2009).
SIGHT = {
    "usual": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def lab(colour: tuple[int, int, int], sight: str) -> NDArray[np.float64]:
    """CIE L*a*b* of a colour as it is seen."""
    share = np.array(colour) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(SIGHT[sight]) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / (to_xyz @ np.ones(3))
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("name", PALETTES)
def test_on_off_and_background_differ_for_colour_blind_people(name: str, sight: str) -> None:
    palette = PALETTES[name]
    seen = [lab(colour, sight) for colour in (palette.background, palette.on, palette.off)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.linalg.norm(seen[one] - seen[other]) > 30  # 2 can just be seen; 30 at a glance, on single pixels
