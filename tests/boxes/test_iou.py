"""Ranges, nearest times and assignments equal what plain loops, and pycocotools, find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate.boxes.iou import assign_to_truth, expand_ranges, find_rows, iou, pairs_of_groups
from fate.evaluation.labelled_frames import nearest_times
from tests.evaluation.oracle import boxes, coco_evaluation, moved

times = st.lists(st.integers(-50, 50), max_size=12).map(lambda values: np.unique(np.array(values, np.int64)))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_expanded_ranges_are_the_members_one_behind_the_other(ranges: list[tuple[int, int]]) -> None:
    first, last = np.array(ranges, np.int64).reshape(-1, 2).T
    which, members = expand_ranges(first, last)
    expected = [(number, member) for number, (a, b) in enumerate(ranges) for member in range(a, b)]
    assert list(zip(which.tolist(), members.tolist(), strict=True)) == expected


@given(times, times, st.integers(0, 20))
def test_rows_within_are_those_at_most_the_tolerance_away(known: np.ndarray, wanted: np.ndarray, most: int) -> None:
    first, last = find_rows(known, wanted - most, wanted + most)
    for target, a, b in zip(wanted, first, last, strict=True):
        np.testing.assert_array_equal(known[a:b], known[np.abs(known - target) <= most])


@given(times, times, st.integers(0, 20))
def test_the_nearest_time_is_nearest_and_the_earlier_of_two(known: np.ndarray, wanted: np.ndarray, most: int) -> None:
    for target, place in zip(wanted, nearest_times(known, wanted, most), strict=True):
        near = [index for index, time in enumerate(known) if abs(time - target) <= most]
        expected = min(near, key=lambda index: (abs(known[index] - target), index), default=-1)
        assert place == expected


def test_overlap_is_shared_area_over_joint_area() -> None:
    left = np.array([[0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 0, 0], [5, 5, 4, 2]], np.float64)
    right = np.array([[5, 0, 10, 10], [20, 0, 5, 5], [0, 0, 0, 0], [5, 5, 4, 2]], np.float64)
    np.testing.assert_allclose(iou(left, right), [50 / 150, 0, 0, 1])


def test_pairs_are_all_rows_of_one_group() -> None:
    left, right = np.array([3, 1, 3, 7]), np.array([1, 3, 3, 2])
    assert set(zip(*(each.tolist() for each in pairs_of_groups(left, right)), strict=True)) == {
        (0, 1), (0, 2), (1, 0), (2, 1), (2, 2),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_assignments_at_half_overlap_equal_pycocotools(seed: int) -> None:
    random = np.random.default_rng(seed)
    truth = boxes(random, range(30), 6, 2)
    found = moved(random, truth, 4.0, [0])
    frames = [(truth[truth["t"] == t], found[found["t"] == t]) for t in np.unique(truth["t"])]
    oracle = coco_evaluation(frames, 2)
    matched = sum(
        int(np.count_nonzero(image["dtMatches"][0]))
        for image in oracle.evalImgs
        if image is not None and image["aRng"] == [0, 1e10]
    )
    xywh = [np.stack([table[name] for name in "xywh"], 1).astype(float) for table in (truth, found)]
    group = [table["t"] * 2 + table["class_id"].astype(int) for table in (truth, found)]
    assigned = assign_to_truth(group[0], xywh[0], group[1], xywh[1], found["class_confidence"].astype(float))
    assert np.count_nonzero(assigned >= 0) == matched
    taken = assigned[assigned >= 0]
    assert len(np.unique(taken)) == len(taken)
    assert (group[0][taken] == group[1][assigned >= 0]).all()


def test_the_highest_score_takes_its_best_truth_first() -> None:
    truth = np.array([[0, 0, 10, 10], [2, 0, 10, 10]], np.float64)
    found = np.array([[1.5, 0, 10, 10], [2, 0, 10, 10]], np.float64)
    group = np.zeros(2, np.int64)
    assert assign_to_truth(group, truth, group, found, np.array([0.9, 0.8])).tolist() == [1, 0]
    assert assign_to_truth(group, truth, group, found, np.array([0.8, 0.9])).tolist() == [0, 1]
