"""Each window is compared with the label at its end, at every rate with the same labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import fate
from fate.boxes.labels import Labels
from fate.boxes.predictions import write_predictions
from fate.data.clips import Grid
from fate.errors import FateError
from fate.evaluation.evaluate import evaluate
from fate.evaluation.protocols import named_protocol
from fate.evaluation.scores import evaluate_boxes
from fate.events.window import WindowGrid, align_start
from fate.rates import PAPER_RATES
from tests.models.small_detectors import small_detector

SECONDS = 4


def moving_box(times_us: NDArray[np.int64], pixels_per_second: float = 200.0) -> Labels:
    """A box of 40 × 50 pixels at every time, which moves to the right and starts again after a second."""
    left = 10 + (times_us % 1_000_000) / 1e6 * pixels_per_second
    top = np.full(len(times_us), 100.0)
    return Labels(t_us=times_us, x1=left, y1=top, x2=left + 40, y2=top + 50, class_id=np.zeros(len(times_us), np.int32),
                  classes=("car",), sensor=(240, 304))  # fmt: skip


def ends(hz: float, first_us: int = 0) -> NDArray[np.int64]:
    hop = round(1e6 / hz)
    return np.arange(first_us + hop, SECONDS * 1_000_000, hop)


@pytest.mark.parametrize("label_hz", [1, 4, 10, 30, 60])
@pytest.mark.parametrize("hz", PAPER_RATES)
def test_a_perfect_detector_scores_100_at_every_rate_whatever_the_label_rate(hz: float, label_hz: float) -> None:
    labels = np.round(np.arange(1, SECONDS * label_hz) * 1e6 / label_hz).astype(np.int64)
    scores = evaluate_boxes(
        {"a": moving_box(labels)}, {"a": moving_box(ends(hz))}, named_protocol("gen1").at(hz), ["car"], (240, 304)
    )
    assert scores["AP50:95"] == pytest.approx(1)
    assert scores.counts.frames


def test_labels_of_windows_that_a_detector_left_out_count_as_not_found() -> None:
    labels = np.round(np.arange(1, SECONDS * 60) * 1e6 / 60).astype(np.int64)
    half = ends(20)[::2]
    scores = evaluate_boxes(
        {"a": moving_box(labels)}, {"a": moving_box(half)}, named_protocol("gen1").at(20), ["car"], (240, 304)
    )
    times = ends(20)[ends(20) > 500_000]
    assert scores.counts.frames == len(times)
    assert scores["AR100"] == pytest.approx(np.isin(times, half).mean())


def test_labels_far_from_every_window_are_refused_and_a_larger_distance_is_taken() -> None:
    truth, found = {"a": moving_box(ends(4, 10_000))}, {"a": moving_box(ends(20))}
    with pytest.raises(FateError, match=r"2 ms.*10 ms.*label_tolerance_us"):
        evaluate_boxes(truth, found, named_protocol("gen1").at(20), ["car"], (240, 304))
    wide = named_protocol("gen1", label_tolerance_us=10_000).at(20)
    assert evaluate_boxes(truth, found, wide, ["car"], (240, 304)).counts.frames


@pytest.mark.parametrize("label_hz", [1, 4, 20, 60])
@pytest.mark.parametrize("phase", [0, 1_500, 10_000, 24_999, 33_333, 49_000])
def test_windows_of_20_hz_are_moved_to_end_at_labels(phase: int, label_hz: float) -> None:
    start = 123_456
    jitter = np.random.default_rng(phase).integers(-300, 301, 40)
    labels = start + 50_000 + phase + np.round(np.arange(40) * 1e6 / label_hz).astype(np.int64) + jitter
    aligned = align_start(start, 50_000, labels)
    assert start - 50_000 <= aligned <= start
    share = 20 / 60 if label_hz == 60 else 1.0
    assert len(WindowGrid(aligned, 50_000, 50_000).labelled(labels, 2_000)) >= share * 39


def test_windows_stay_where_they_are_if_their_ends_meet_the_labels() -> None:
    assert align_start(100, 50_000, np.arange(1, 20) * 50_000) == 100
    assert align_start(100, 50_000, np.zeros(0, np.int64)) == 100


SMALL = (24, 32)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> fate.Dataset:
    """The same, small and short, for a detector."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "classes.txt").write_text("car\n")
    random = np.random.default_rng(0)
    t = np.sort(random.integers(3_000, 1_600_000, 2_000))
    t[0] = 3_000
    columns = (random.integers(0, top, len(t)) for top in (32, 24, 2))
    fate.write_events(folder / "a.dat", fate.Events(t, *columns, SMALL))
    times = 15_000 + np.round(np.arange(1, 90) * 1e6 / 60).astype(np.int64)
    ones = np.ones(len(times), np.float32)
    fate.write_labels(
        folder / "a_bbox.npz", Labels(times, ones, ones, 20 * ones, 22 * ones, 0 * times, classes=("car",))
    )
    return fate.open_dataset(folder, kind="own")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> fate.Dataset:
    """One recording with labels at 60 Hz, 12 ms off the 50 ms after its first event."""
    folder = tmp_path_factory.mktemp("set")
    (folder / "classes.txt").write_text("car\n")
    random = np.random.default_rng(0)
    t = np.sort(random.integers(3_000, SECONDS * 1_000_000, 5_000))
    t[0] = 3_000
    fate.write_events(
        folder / "a.dat", fate.Events(t, *(random.integers(0, top, 5_000) for top in (304, 240, 2)), (240, 304))
    )
    labels = 15_000 + np.round(np.arange(1, SECONDS * 60 - 3) * 1e6 / 60).astype(np.int64)
    fate.write_labels(folder / "a_bbox.npz", moving_box(labels))
    return fate.open_dataset(folder, kind="own")


def test_all_rates_use_the_same_labels_and_a_perfect_detector_is_perfect(dataset: fate.Dataset, tmp_path: Path) -> None:
    (recording,) = dataset.recordings
    for hz in PAPER_RATES:
        grid = Grid.of(recording, hz)
        times = grid.ends_us(grid.count(recording.end_us))
        write_predictions(tmp_path / f"{hz:g}hz.npz", {recording.name: moving_box(times)}, {"hz": hz})
    result = evaluate(tmp_path, dataset)
    assert [rate.scores["AP50:95"] for rate in result.rates] == [pytest.approx(1)] * len(PAPER_RATES)
    assert len({rate.scores.counts.frames for rate in result.rates}) == 1
    used, all_times = result.label_times
    assert used == pytest.approx(all_times / 3, abs=1)
    assert f"{used} of {all_times} times" in result.table()
    assert "at 60 Hz" in result.table()


def test_a_detector_is_compared_at_the_ends_of_its_windows(small: fate.Dataset) -> None:
    result = evaluate(small_detector("s5", sensor=SMALL), small, (10, 20), steps=16)
    slow, fast = (rate.scores for rate in result.rates)
    assert slow.counts.frames == fast.counts.frames > 0
    assert not any("no prediction near" in note for rate in result.rates for note in rate.scores.notes)


def test_rates_whose_windows_never_end_together_at_a_label_are_refused(dataset: fate.Dataset, tmp_path: Path) -> None:
    (recording,) = dataset.recordings
    for hz, shift in ((20, 0), (40, 8_000)):
        write_predictions(tmp_path / f"{hz}hz.npz", {recording.name: moving_box(ends(hz, 15_000 + shift))}, {"hz": hz})
    with pytest.raises(FateError, match=r"20 40 Hz.*2 ms.*label_tolerance_us"):
        evaluate(tmp_path, dataset)


def test_a_rate_alone_uses_the_labels_that_it_uses_beside_20_hz(small: fate.Dataset, tmp_path: Path) -> None:
    detector = small_detector("s5", sensor=SMALL)
    alone = evaluate(detector, small, (40,), steps=16, predictions_to=tmp_path)
    beside = evaluate(detector, small, (20, 40), steps=16)
    assert alone.rates[0].scores.counts.frames == beside.rates[1].scores.counts.frames
    again = evaluate(tmp_path, small)  # predictions that were kept at these labels only
    assert again.rates[0].scores.to_dict()["metrics"] == alone.rates[0].scores.to_dict()["metrics"]
    assert again.label_times == alone.label_times


def test_predictions_on_another_clock_are_refused_whatever_their_phase() -> None:
    truth = {"a": moving_box(ends(20))}
    for found in (ends(20) + 10**12 + 20_000, ends(20) // 1000):
        with pytest.raises(FateError, match="first label at 50000 µs"):
            evaluate_boxes(truth, {"a": moving_box(found)}, named_protocol("gen1").at(20), ["car"], (240, 304))


def test_windows_that_were_left_out_are_found_between_times_that_are_not_whole_microseconds_apart() -> None:
    times = np.round(np.arange(1, 30 * 600) * 1e6 / 30).astype(np.int64)  # ten minutes at 30 Hz
    labels, half = times[29::30], np.delete(times, np.arange(29, len(times), 60))
    truth, found = {"a": moving_box(labels)}, {"a": moving_box(half)}
    scores = evaluate_boxes(truth, found, named_protocol("gen1").at(30), ["car"], (240, 304))
    assert scores.counts.frames == len(labels)
    assert scores["AR100"] == pytest.approx(np.isin(labels, half).mean())


@pytest.mark.parametrize("seed", range(20))
def test_alignment_holds_as_many_labels_as_any_shift(seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = np.sort(random.integers(0, 3_000_000, 12))
    aligned = WindowGrid(align_start(0, 50_000, labels), 50_000, 50_000)

    def held(grid: WindowGrid) -> int:
        return int(np.sum(np.abs(labels - [grid.end_us(int(index)) for index in grid.nearest(labels)]) <= 2_000))

    assert held(aligned) >= max(held(WindowGrid(shift - 50_000, 50_000, 50_000)) for shift in range(0, 50_000, 1_000))


def test_written_predictions_do_not_depend_on_the_other_rates_of_a_command(small: fate.Dataset, tmp_path: Path) -> None:
    detector = small_detector("s5", sensor=SMALL)
    evaluate(detector, small, (10, 15), steps=16, predictions_to=tmp_path)
    again = evaluate(tmp_path, small, (10,)).rates[0].scores
    assert again.to_dict()["metrics"] == evaluate(detector, small, (10,), steps=16).rates[0].scores.to_dict()["metrics"]
    assert again.notes == ()


def test_a_recording_with_an_empty_table_of_predictions_has_the_frames_of_any_other(dataset: fate.Dataset) -> None:
    (recording,) = dataset.recordings
    grid = Grid.of(recording, 20)
    whole = moving_box(grid.ends_us(grid.count(recording.end_us)))
    nothing = evaluate({20.0: {recording.name: Labels.empty(classes=("car",), sensor=(240, 304))}}, dataset)
    assert (
        nothing.rates[0].scores.counts.frames
        == evaluate({20.0: {recording.name: whole}}, dataset).rates[0].scores.counts.frames
    )


def test_predictions_at_uneven_times_are_compared_at_their_times(dataset: fate.Dataset) -> None:
    (recording,) = dataset.recordings
    labels = recording.labels.labelled_us[40:]
    uneven = labels[np.cumsum(np.random.default_rng(0).integers(4, 9, 20))]
    scores = evaluate({20.0: {recording.name: moving_box(uneven)}}, dataset).rates[0].scores
    assert scores.counts.truth > 0
    assert scores["AP50"] is not None
    assert scores["AP50"] > 0.15
