"""The sweep: interleaved streams side by side see what each sees alone, and no time is looked at twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fate.boxes.labels import Labels
from fate.data.clips import Grid
from fate.data.dataset import Dataset
from fate.densify.sweep import Streams, streams_of, sweep
from fate.encoding.batch import EventBatch
from fate.events.window import Window
from fate.models.detector import Detector
from tests.densify.squares import CLASSES, seeing_detector, squares


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return squares(tmp_path_factory.mktemp("squares"))


@pytest.fixture(scope="module")
def detector() -> Detector:
    return seeing_detector()


def swept(detector: Detector, recordings: Sequence[Any], streams: Streams, **options: Any) -> dict[int, Labels]:
    return dict(sweep(detector, recordings, streams, **options))


def plain_loop(
    detector: Detector, recording: Any, streams: Streams, phase: int
) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """One stream by itself, window by window: its times and what is seen, one row (box, score, class) each."""
    found, state = [], None
    end = recording.start_us + phase
    with recording.open() as reader, torch.inference_mode():
        while end - phase < recording.end_us:
            window = Window(end - 50_000, end)
            batch = EventBatch.from_windows([(window, reader.read(window.start_us, window.end_us))])
            outputs, state = detector(batch, state, step_scale=streams.step_us / 50_000)
            (seen,) = detector.detections(outputs, confidence=0.01)
            score = seen.scores if seen.objectness is None else torch.minimum(seen.scores, seen.objectness)
            rows = torch.cat([seen.boxes, score[:, None], seen.class_ids[:, None].float()], 1)[score >= 0.1]
            found.append((end, rows[:100].numpy()))
            end += streams.step_us
    return found


@pytest.mark.parametrize(("hz", "batch_size"), [(80, 64), (40, 2), (30, 4)])
def test_streams_side_by_side_see_what_each_sees_alone(
    dataset: Dataset, detector: Detector, hz: float, batch_size: int
) -> None:
    streams = streams_of(hz)
    together = swept(detector, dataset.recordings, streams, batch_size=batch_size)
    assert sorted(together) == [0, 1, 2]
    boxes = 0
    for number, recording in enumerate(dataset.recordings):
        for phase in streams.phases_us:
            for end, rows in plain_loop(detector, recording, streams, phase):
                found = together[number].at(end)
                assert len(found) == len(rows)
                boxes += len(rows)
                ours = np.c_[found.boxes, found.score, found.class_id]
                np.testing.assert_allclose(np.sort(ours, 0), np.sort(rows, 0), atol=2e-3)
    assert boxes > 50


def test_memory_reaches_from_window_to_window(dataset: Dataset, detector: Detector) -> None:
    """Otherwise the test above could not tell streams from one another."""
    recording = dataset.recordings[0]
    whole = swept(detector, [recording], streams_of(20))[0]
    late = type(
        "Late", (), {"start_us": recording.start_us + 200_000, "end_us": recording.end_us, "open": recording.open}
    )
    alone = swept(detector, [late()], streams_of(20))[0]
    time = int(alone.labelled_us[0])
    first, second = np.sort(whole.at(time).score), np.sort(alone.at(time).score)
    assert len(first) != len(second) or not np.allclose(first, second, atol=1e-3)


@pytest.mark.parametrize("hz", [20, 40, 60, 80, 100, 150, 200, 1000])
def test_streams_see_every_time_of_their_rate_once(dataset: Dataset, hz: float) -> None:
    streams = streams_of(hz)
    grid = Grid.of(dataset.recordings[0], hz)
    wanted = [grid.end_us(number) - grid.start_us for number in range(200)]
    times = sorted(phase + j * streams.step_us for phase in streams.phases_us for j in range(200))
    assert times[:200] == wanted
    assert abs(streams.step_us - 50_000) <= grid.hop_us / 2
    assert hz % 20 or 50_000 % grid.hop_us or len(streams.phases_us) == hz / 20


def test_slow_rates_take_their_times_from_20_hz() -> None:
    assert streams_of(10) == streams_of(5) == streams_of(20) == Streams(50_000, (50_000,))


def test_rates_share_the_streams_that_coincide() -> None:
    phases = {hz: set(streams_of(hz).phases_us) for hz in (20, 40, 80, 100, 200)}
    assert phases[20] < phases[40] < phases[80]
    assert phases[100] < phases[200]
    assert phases[80] & phases[200] == {25_000, 50_000}


def test_predictions_are_labelled_at_the_times_of_their_streams(dataset: Dataset, detector: Detector) -> None:
    recording = dataset.recordings[1]
    found = swept(detector, [recording], Streams(50_000, (12_500, 50_000)))[0]
    times = {phase: found.is_labelled(recording.start_us + phase) for phase in streams_of(80).phases_us}
    assert times == {12_500: True, 25_000: False, 37_500: False, 50_000: True}
    assert found.classes == CLASSES


def test_progress_counts_every_window(dataset: Dataset, detector: Detector) -> None:
    seen: list[int] = []
    found = swept(detector, dataset.recordings, streams_of(40), progress=seen.append)
    assert sum(seen) == sum(len(part.labelled_us) for part in found.values())


def test_recordings_without_a_window_are_labelled_at_no_time(detector: Detector) -> None:
    nothing = type("Nothing", (), {"start_us": 5, "end_us": 5, "open": None})
    assert [(number, len(part.labelled_us)) for number, part in sweep(detector, [nothing()], streams_of(20))] == [
        (0, 0)
    ]


def test_heads_without_objectness_report_the_score_of_the_class(dataset: Dataset) -> None:
    found = swept(seeing_detector("evrt"), dataset.recordings[1:2], streams_of(20), floor=0.001)[0]
    assert len(found.labelled_us) == 5
    assert len(found) > 5
    assert found.score.min() >= 0.001


def test_only_the_classes_of_the_dataset_count_and_have_its_numbers(dataset: Dataset, detector: Detector) -> None:
    every = swept(detector, dataset.recordings, streams_of(20))[0]
    first, *others = CLASSES
    reordered = swept(detector, dataset.recordings, streams_of(20), classes=(*others, first.upper()))[0]
    assert len(every) > 0
    assert np.array_equal(every.boxes, reordered.boxes)
    assert np.array_equal((every.class_id - 1) % len(CLASSES), reordered.class_id)
    some = swept(detector, dataset.recordings, streams_of(20), classes=others)[0]
    assert np.array_equal(some.boxes, every.boxes[every.class_id > 0])
    assert np.array_equal(some.class_id, every.class_id[every.class_id > 0] - 1)
