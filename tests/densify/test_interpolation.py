"""Naive interpolation: straight lines between annotated times, and nothing where nothing is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate.boxes.labels import Labels, LabelSource
from fate.densify.interpolation import interpolate

CLASSES = ("car", "pedestrian")


def table(rows: list[tuple[int, float, int, int]], labelled: list[int], size: float = 20) -> Labels:
    """Rows (time, left edge, class, track)."""
    t, x, c, k = (np.array(column) for column in zip(*rows, strict=True))
    return Labels(t, x, x * 0, x + size, x * 0 + size, c, k, labelled_us=labelled, classes=CLASSES, sensor=(100, 900))


def test_tracks_go_in_straight_lines_and_annotated_boxes_stay() -> None:
    labels = table([(0, 0, 0, 4), (1000, 100, 0, 4)], [0, 1000])
    found = interpolate(labels, [0, 250, 500, 1000])
    assert found.x1.tolist() == [0, 25, 50, 100]
    assert found.source.tolist() == [0, 2, 2, 0]
    assert found.track_id.tolist() == [4] * 4
    assert found.score.tolist() == [1] * 4


def test_nothing_is_known_before_the_first_and_after_the_last_annotated_time() -> None:
    labels = table([(1000, 0, 0, 4), (2000, 100, 0, 4)], [1000, 2000])
    assert interpolate(labels, [0, 999, 1500, 2001]).labelled_us.tolist() == [1500]
    assert len(interpolate(Labels.empty(), [5]).labelled_us) == 0


def test_objects_of_one_time_only_leave_the_times_between_labelled_and_empty() -> None:
    labels = table([(0, 0, 0, 1), (1000, 0, 0, 2)], [0, 1000])
    found = interpolate(labels, [500])
    assert found.labelled_us.tolist() == [500]
    assert len(found) == 0


def test_a_track_that_an_annotated_time_lacks_is_not_carried_over_it() -> None:
    labels = table([(0, 0, 0, 1), (2000, 0, 0, 1)], [0, 1000, 2000])
    assert len(interpolate(labels, [500, 1500])) == 0


def test_without_tracks_the_largest_sum_of_overlaps_decides_class_by_class() -> None:
    labels = table([(0, 0, 0, -1), (0, 12, 0, -1), (0, 5, 1, -1), (1000, 8, 0, -1), (1000, 16, 0, -1)], [0, 1000])
    found = interpolate(labels, [500])
    assert sorted(found.x1.tolist()) == [4, 14]
    assert found.class_id.tolist() == [0, 0]
    far = table([(0, 0, 0, -1), (1000, 19, 0, -1)], [0, 1000])
    assert len(interpolate(far, [500])) == 0


def test_the_lower_score_counts() -> None:
    labels = table([(0, 0, 0, 1), (1000, 0, 0, 1)], [0, 1000])
    scored = Labels(
        labels.t_us, labels.x1, labels.y1, labels.x2, labels.y2, labels.class_id, labels.track_id, [0.9, 0.4]
    )
    assert interpolate(scored, [300]).score.tolist() == pytest.approx([0.4])


@given(st.integers(0, 2**32), st.lists(st.integers(-100, 5100), max_size=20))
def test_boxes_stay_between_their_neighbours_and_known_times_stay_as_they_are(seed: int, times: list[int]) -> None:
    random = np.random.default_rng(seed)
    labelled = np.sort(random.choice(50, 5, replace=False)) * 100
    rows = [(int(t), float(random.integers(0, 500)), int(k % 2), int(k)) for t in labelled for k in range(3)]
    labels = table(rows, labelled.tolist())
    found = interpolate(labels, times)
    assert set(found.labelled_us.tolist()) == {t for t in times if labelled[0] <= t <= labelled[-1]}
    for time in found.labelled_us.tolist():
        if labels.is_labelled(time):
            assert found.at(time) == labels.at(time)
            continue
        after = int(np.searchsorted(labelled, time))
        ends = labels.at(int(labelled[after - 1])), labels.at(int(labelled[after]))
        now = found.at(time)
        assert np.all(now.source == LabelSource.INTERPOLATED)
        for row, track in enumerate(now.track_id):
            edges = sorted(float(end.x1[end.track_id == track][0]) for end in ends)
            assert edges[0] - 1e-3 <= now.x1[row] <= edges[1] + 1e-3
