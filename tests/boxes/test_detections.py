"""Frames of detections: from label files, and the one that holds at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate import FateError, Labels
from fate.boxes.detections import FrameLookup, class_name, frames_from_labels
from tests.view.recorded import frame


def test_every_labelled_time_gives_a_frame_also_an_empty_one() -> None:
    labels = Labels(
        t_us=[0, 0, 40_000], x1=[1, 2, 3], y1=[4, 5, 6], x2=[10, 11, 12], y2=[13, 14, 15], class_id=[0, 1, 0],
        track_id=[7, -1, 7], score=[0.5, 0.75, 1], labelled_us=[0, 20_000, 40_000],
    )  # fmt: skip
    frames = frames_from_labels(labels)
    assert [each.t_us for each in frames] == [0, 20_000, 40_000]
    assert [len(each.boxes) for each in frames] == [2, 0, 1]
    assert frames[0].boxes.tolist() == [[1, 4, 10, 13], [2, 5, 11, 14]]
    assert frames[0].track_ids is not None
    assert frames[0].track_ids.tolist() == [7, -1]
    assert frames[2].scores.tolist() == [1]


def test_labels_without_tracks_give_frames_without() -> None:
    labels = Labels(t_us=[0], x1=[1], y1=[4], x2=[10], y2=[13], class_id=[0])
    assert frames_from_labels(labels)[0].track_ids is None


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(-10, 1100))
def test_the_frame_at_a_time_is_the_last_one_up_to_it_unless_too_old(times: list[int], at: int) -> None:
    lookup = FrameLookup([frame(time, []) for time in sorted(times)])
    before = [time for time in times if time <= at and at - time <= lookup.hold_us]
    found = lookup.at(at)
    assert (found.t_us if found else None) == (max(before) if before else None)


def test_boxes_hold_for_two_usual_distances() -> None:
    lookup = FrameLookup([frame(time, []) for time in (0, 5000, 10_000, 15_000)])
    assert lookup.hz == 200
    assert lookup.at(24_999) is not None
    assert lookup.at(25_001) is None


def test_frames_out_of_order_are_refused_with_the_place() -> None:
    with pytest.raises(FateError, match="frame 2 is at 3 µs"):
        FrameLookup([frame(0, []), frame(5, []), frame(3, [])])


def test_a_class_without_a_name_is_called_by_its_number() -> None:
    assert class_name(1, ["car", "bus"]) == "bus"
    assert class_name(2, ["car", "bus"]) == "class 2"
    assert class_name(int(np.int64(0)), None) == "class 0"
