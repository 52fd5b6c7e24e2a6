"""Windows longer than the time between two: as by hand, from files and from pieces; nothing from before a gap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fate
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window
from fate.inference.stream import StreamingDetector
from fate.inference.windowing import LookBack
from fate.models.detector import Detector
from fate.rates import CANONICAL_US
from tests.inference.streams import SENSOR, dots, drive, pieces, same, small_detector

HOP, SPAN = 5_000, 20_000


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("overlapping") / "drive.npz"
    fate.write_events(path, drive(60_000))
    return path


def depends_on_length(model: Detector) -> Detector:
    """The same with parameters of length that are not zero."""
    torch.manual_seed(4)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".length_affine." in name:
                weight.normal_(std=0.3)
    return model


@pytest.mark.parametrize(
    ("name", "options"), [("fate-s-nano", {}), ("fate-e-tiny", {}), ("fate-s-nano", {"length_affine": True})], ids=str
)
def test_each_window_is_looked_at_whole_and_memory_goes_on_by_the_hop(
    file: Path, name: str, options: dict[str, bool]
) -> None:
    model, events = depends_on_length(small_detector(name, **options)), drive(60_000)
    threshold = 0.05 if name.endswith("nano") else 0.01
    frames = list(StreamingDetector(model).stream(file, 200, window_us=SPAN, threshold=threshold, stale_us=None))
    assert len(frames) == 12
    first, state = int(events.t_us[0]), None
    for number, frame in enumerate(frames):
        end = first + (number + 1) * HOP
        start = end - SPAN
        seen = events[int(events.t_us.searchsorted(start)) : int(events.t_us.searchsorted(end))]
        batch = EventBatch.from_windows([(Window(start, end), seen)])
        with torch.inference_mode():
            outputs, state = model(batch, state, step_scale=HOP / CANONICAL_US)
            wanted = model.detections(outputs, confidence=threshold, score="product", most=100)[0]
        assert len(frame) == len(wanted.boxes)
        np.testing.assert_allclose(np.sort(frame.boxes, 0), np.sort(wanted.boxes.numpy(), 0), atol=0.05)
        np.testing.assert_allclose(np.sort(frame.scores), np.sort(wanted.scores.numpy()), atol=1e-3)
        assert (frame.window, frame.num_events) == (Window(end - HOP, end), int((seen.t_us >= end - HOP).sum()))
    assert sum(map(len, frames)) > len(frames)


def test_windows_of_50_ms_every_5_ms_do_not_use_the_parameters_of_length_and_those_of_5_ms_do(file: Path) -> None:
    model = small_detector(length_affine=True)
    zero = [StreamingDetector(model).stream(file, 200, threshold=0.05, window_us=span) for span in (50_000, None)]
    expected = [list(frames) for frames in zero]
    detector = StreamingDetector(depends_on_length(model))
    found = [list(detector.stream(file, 200, threshold=0.05, window_us=span)) for span in (50_000, None)]
    assert sum(map(len, expected[0])) > 0
    assert all(same(a, b) for a, b in zip(found[0], expected[0], strict=True))
    assert not all(same(a, b) for a, b in zip(found[1], expected[1], strict=True))


def test_a_longer_window_changes_what_is_seen_and_one_of_the_hop_does_not(file: Path) -> None:
    detector = StreamingDetector(small_detector())
    usual, equal, longer = (
        list(detector.stream(file, 200, threshold=0.05, window_us=span)) for span in (None, HOP, SPAN)
    )
    assert all(same(a, b) for a, b in zip(usual, equal, strict=True))
    assert not all(same(a, b) for a, b in zip(usual, longer, strict=True))


@pytest.mark.parametrize("cuts", [[], [17, 18, 200, 431], list(range(0, 600, 7))])
def test_pieces_give_the_frames_of_the_file(file: Path, cuts: list[int]) -> None:
    detector = StreamingDetector(small_detector())
    wanted = list(detector.stream(file, 200, threshold=0.05, window_us=SPAN))
    stream = detector.open_stream(SENSOR, 200, threshold=0.05, window_us=SPAN)
    found = [frame for piece in pieces(drive(60_000), cuts) for frame in stream.feed(piece)] + stream.close()
    assert all(same(a, b) for a, b in zip(found, wanted, strict=True))


def test_nothing_from_before_a_long_silence_is_looked_at() -> None:
    detector, late = StreamingDetector(small_detector()), drive(40_000, start_us=2_000_000)
    stream = detector.open_stream(SENSOR, 200, threshold=0.05, window_us=SPAN, max_gap_us=SPAN)
    stream.feed(drive(30_000))
    found = stream.feed(late)
    begin = next(number for number, frame in enumerate(found) if frame.restarted)
    fresh = detector.open_stream(
        SENSOR, 200, threshold=0.05, window_us=SPAN, max_gap_us=SPAN, start_us=found[begin].window.start_us
    ).feed(late)
    assert len(fresh) >= 6
    assert sum(map(len, fresh)) > 0
    for mine, other in zip(found[begin:], fresh, strict=True):
        np.testing.assert_array_equal(mine.boxes, other.boxes)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), st.integers(10, 90), st.integers(10, 200))
def test_what_is_looked_at_are_the_events_of_the_window(times: list[int], hop: int, span: int) -> None:
    events = dots(sorted(times))
    back = LookBack(max(span, hop))
    for start in range(0, 400, hop):
        end = start + hop
        window, seen = back.add(Window(start, end), _between(events, start, end))
        assert window == Window(end - max(span, hop), end)
        np.testing.assert_array_equal(seen.x, _between(events, window.start_us, end).x)


def _between(events: Events, start: int, end: int) -> Events:
    return events[int(events.t_us.searchsorted(start)) : int(events.t_us.searchsorted(end))]


@pytest.mark.parametrize("span", [4_999, 1_000_001, 0])
def test_a_length_that_cannot_be_is_refused(span: int) -> None:
    with pytest.raises(FateError, match="one every 5 ms, were asked for"):
        StreamingDetector(small_detector()).open_stream(SENSOR, 200, window_us=span)
