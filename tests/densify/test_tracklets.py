"""Dense labels: what is kept of tracks, where truth rules, and what is known at which time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fate.boxes.labels import Labels, LabelSource
from fate.densify.interpolation import interpolate
from fate.densify.quality import Quality
from fate.densify.tracklets import TrackletOptions, dense_labels, paper_options
from fate.errors import FateError
from fate.events.window import WindowGrid
from tests.densify.standin import CLASSES, SENSOR, seen, sparse, straight_truth

HZ = 40
GRID = WindowGrid(0, 25_000, 25_000)
NOTHING = Labels.empty(classes=CLASSES, sensor=SENSOR)


def times(count: int, grid: WindowGrid = GRID) -> NDArray[np.int64]:
    return np.array([grid.end_us(number) for number in range(count)], np.int64)


def one_object(scores: list[float | None], class_id: int = 0, speed: float = 100, grid: WindowGrid = GRID) -> Labels:
    """Detections of one object that moves to the right; None where it was missed."""
    here = [number for number, score in enumerate(scores) if score is not None]
    t = times(len(scores), grid)
    left = 20 + speed * t[here] / 1e6
    top = np.full(len(here), 50.0)
    return Labels(t[here], left, top, left + 40, top + 30, np.full(len(here), class_id),
                  score=[scores[number] for number in here], source=np.full(len(here), 1), labelled_us=t,
                  classes=CLASSES, sensor=SENSOR)  # fmt: skip


def truth_at(*rows: tuple[int, float | None]) -> Labels:
    """Annotated times, each with a car's left edge, or None for none."""
    there = [(t, left) for t, left in rows if left is not None]
    t, left = np.array([t for t, _ in there], np.int64), np.array([left for _, left in there], float)
    return Labels(t, left, left * 0 + 50, left + 40, left * 0 + 80, (left * 0).astype(int), (left * 0 + 9).astype(int),
                  labelled_us=[t for t, _ in rows], classes=CLASSES, sensor=SENSOR)  # fmt: skip


def made(
    predictions: Labels, truth: Labels = NOTHING, hz: float = HZ, grid: WindowGrid = GRID, **options: object
) -> Labels:
    count = len(predictions.labelled_us)
    return dense_labels(predictions, truth, grid, count, hz, TrackletOptions(**options))  # type: ignore[arg-type]


def test_every_time_of_the_rate_becomes_labelled_also_where_nothing_is_seen() -> None:
    assert made(one_object([None] * 30)).labelled_us.tolist() == times(30).tolist()


@pytest.mark.parametrize(("length", "kept"), [(11, False), (12, True)])
def test_tracklets_shorter_than_six_canonical_steps_go(length: int, kept: bool) -> None:
    found = made(one_object([0.9] * length + [None] * 20))  # 6 · 40 / 20 = 12 steps
    assert len(found) == (length if kept else 0)
    assert TrackletOptions().least_steps(200) == 60
    assert TrackletOptions().least_steps(20) == 6


def test_observed_boxes_keep_box_and_score_and_gaps_are_filled_along_the_track() -> None:
    scores: list[float | None] = [0.9] * 20
    scores[8:11] = [None, None, None]
    scores[11] = 0.7
    found = made(one_object(scores))
    assert found.t_us.tolist() == times(20).tolist()
    assert found.source.tolist() == [1] * 8 + [2] * 3 + [1] * 9
    np.testing.assert_allclose(found.x1, 20 + 100 * times(20) / 1e6, atol=1e-4)
    assert found.score[7:13].tolist() == pytest.approx([0.9, 0.3, 0.3, 0.3, 0.7, 0.9])
    assert len(set(found.track_id.tolist())) == 1


def test_a_label_begins_and_ends_sure_and_weaker_detections_count_in_between() -> None:
    scores: list[float | None] = [0.4] * 5 + [0.7] + [0.4] * 10 + [0.7] + [0.4] * 5
    car = made(one_object(scores))
    assert car.t_us.tolist() == times(22)[5:17].tolist()
    assert car.score.tolist() == pytest.approx([0.7] + [0.4] * 10 + [0.7])
    assert len(made(one_object(scores, class_id=1))) == 22  # pedestrians are sure at 0.3
    assert len(made(one_object([0.55] * 20))) == 0
    assert len(made(one_object([0.55] * 20), thresholds={"car": 0.5})) == 20


def test_what_is_below_the_score_of_tracking_never_enters() -> None:
    assert len(made(one_object([0.25] * 30, class_id=1))) == 0
    assert len(made(one_object([0.25] * 30, class_id=1), track_score=0.2, thresholds={"pedestrian": 0.2})) == 30


def test_truth_stands_alone_at_its_time_and_at_the_window_it_stands_for() -> None:
    truth = truth_at((200_003, 40.0))  # 3 µs after a window's end
    found = made(one_object([0.9] * 20), truth)
    expected = np.setdiff1d(times(20), [200_000])
    assert found.labelled_us.tolist() == expected.tolist()
    assert 200_000 not in found.t_us
    assert LabelSource.GROUND_TRUTH not in found.source
    both = Labels.concatenate([found, truth])
    assert both.at(200_003) == truth.at(200_003)


def test_numbers_of_tracks_differ_from_those_of_the_truth() -> None:
    found = made(one_object([0.9] * 20), truth_at((200_000, 40.0)))
    assert found.track_id.min() > 9


def test_truth_confirms_a_track_that_is_short() -> None:
    brief = one_object([None] * 5 + [0.7] * 6 + [None] * 9)
    truth = truth_at((225_000, 42.5))  # window 8
    assert len(made(brief)) == 0
    assert made(brief, truth).t_us.tolist() == times(20)[[5, 6, 7, 9, 10]].tolist()
    assert len(made(brief, truth, with_truth=False)) == 0


def test_a_track_counts_only_next_to_an_annotated_time_that_confirms_it() -> None:
    found = one_object([0.9] * 60, speed=20)
    left = 20 + 20 * 1.0
    assert len(made(found, truth_at((500_000, None), (1_000_000, None)))) == 0
    half = made(found, truth_at((500_000, None), (1_000_000, left)))
    assert half.t_us.tolist() == [time for time in times(60).tolist() if time > 500_000 and time != 1_000_000]
    assert len(made(found, truth_at((500_000, None)), with_truth=False)) == 59
    assert len(made(found)) == 60  # without any truth, tracks stand on their own


@pytest.mark.parametrize("hz", [20, 40, 80, 100, 200])
def test_dense_labels_are_right_and_find_more_than_interpolation_of_the_sparse_truth(hz: float) -> None:
    grid = WindowGrid(0, round(1e6 / hz), round(1e6 / hz))
    dense, naive = Quality(CLASSES), Quality(CLASSES)
    for seed in range(5):
        truth = straight_truth(seed=seed)
        known, at = sparse(truth, 1_000_000), times(round(3 * hz), grid)
        found = dense_labels(seen(truth, at, seed), known, grid, len(at), hz, TrackletOptions())
        between = np.setdiff1d(at[(at > known.labelled_us[0]) & (at < known.labelled_us[-1])], known.labelled_us)
        dense.add(found, truth, between)
        naive.add(interpolate(known, between), truth, between)
    for name in CLASSES:
        ours, theirs = dense.figures()[name], naive.figures()[name]
        assert (ours.precision or 0) > 0.95
        assert (ours.recall or 0) > 0.1 + (theirs.recall or 1)


def test_truth_in_the_tracker_helps() -> None:
    grid = WindowGrid(0, 10_000, 10_000)
    figures = {}
    for with_truth in (True, False):
        quality = Quality(CLASSES)
        for seed in range(6):
            truth = straight_truth(seed=seed)
            known, at = sparse(truth), times(300, grid)
            predictions = seen(truth, at, seed, clutter=8.0)
            options = TrackletOptions(with_truth=with_truth)
            found = dense_labels(predictions, known, grid, 300, 100, options)
            quality.add(found, truth, np.setdiff1d(at, known.labelled_us))
        figures[with_truth] = quality.figures()["car"]
    for name in ("precision", "median_iou"):
        assert getattr(figures[True], name) > getattr(figures[False], name)
    assert figures[True].recall >= figures[False].recall


def test_the_result_does_not_depend_on_the_order_of_detections() -> None:
    truth = straight_truth(seed=2)
    predictions = seen(truth, times(120), 1)
    order = np.lexsort((np.random.default_rng(0).random(len(predictions)), predictions.t_us))
    names = ("x1", "y1", "x2", "y2", "class_id", "score", "track_id", "source")
    shuffled = replace(predictions, **{name: getattr(predictions, name)[order] for name in names})
    first, second = (made(each, sparse(truth)) for each in (predictions, shuffled))
    assert first.labelled_us.tolist() == second.labelled_us.tolist()
    assert sorted(map(tuple, np.c_[first.t_us, first.boxes])) == sorted(map(tuple, np.c_[second.t_us, second.boxes]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"track_score": 1.5}, "score of tracking is 1.5"),
        ({"thresholds": {"car": -1.0}}, "threshold of car is -1"),
        ({"min_steps": 0}, "tracklets of 0 steps"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(FateError, match=words):
        TrackletOptions(**options)  # type: ignore[arg-type]


def test_times_that_were_not_predicted_are_refused() -> None:
    with pytest.raises(FateError, match="lack 20 of 40 times, such as 12500"):
        dense_labels(one_object([0.9] * 20), NOTHING, WindowGrid(0, 12_500, 12_500), 40, 80, TrackletOptions())


def test_as_in_the_paper_detections_are_filtered_by_class_before_tracking() -> None:
    scores: list[float | None] = [0.9] * 12 + [0.5] * 3 + [0.8] * 12
    count = len(scores)
    found = dense_labels(one_object(scores), NOTHING, GRID, count, HZ, paper_options())
    assert (
        found.source.tolist()
        == [LabelSource.TRACKED] * 12 + [LabelSource.INTERPOLATED] * 3 + [LabelSource.TRACKED] * 12
    )
    assert found.score[12:15] == pytest.approx([0.875, 0.85, 0.825])  # between 0.9 and 0.8
    ours = made(one_object(scores))
    assert ours.score[12:15] == pytest.approx([0.5] * 3)
    assert len(dense_labels(one_object([0.5] * 30, class_id=0), NOTHING, GRID, 30, HZ, paper_options())) == 0
    assert len(dense_labels(one_object([0.5] * 30, class_id=1), NOTHING, GRID, 30, HZ, paper_options())) == 30


def test_as_in_the_paper_truth_neither_removes_nor_confirms_nor_moves_tracks() -> None:
    seen_boxes = one_object([0.9] * 30)
    empty = truth_at((250_000, None), (500_000, None))  # annotators never marked the object
    assert len(made(seen_boxes, empty)) == 0
    found = dense_labels(seen_boxes, empty, GRID, 30, HZ, paper_options())
    at = np.isin(seen_boxes.t_us, found.t_us)
    assert len(found) == 28
    assert found.boxes == pytest.approx(seen_boxes.boxes[at])
    six = dense_labels(one_object([0.9] * 12 + [None] * 18), truth_at((100_000, None)), GRID, 30, HZ, paper_options())
    assert len(six) == 11  # tracks continue at the annotated time, which keeps its ground truth
    short = one_object([0.9] * 11 + [None] * 19)
    assert len(dense_labels(short, truth_at((100_000, 30.0)), GRID, 30, HZ, paper_options())) == 0
