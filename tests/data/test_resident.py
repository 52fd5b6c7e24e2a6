"""Events kept on a device give the batches that reading them gives, event by event."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from threading import enumerate as enumerate_threads
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fate.boxes.labels import Labels
from fate.data.clips import NOTHING, Clip
from fate.data.loading import ClipBatch, ClipReader, WindowRequests, load
from fate.data.resident import ResidentEvents, complete_batches
from fate.data.transforms import Augmentation
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from tests.data.test_loading import SENSOR, SOURCES, Reader, Source, training_plan

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
CHANGES = {
    "none": None,
    "flip": Augmentation(flip=1.0),
    "rvt": Augmentation.rvt_random(),
    "paper": Augmentation.paper(),
    "holes": Augmentation(erase=1.0),
}


def check_same(read: EventBatch, found: EventBatch) -> None:
    assert found.counts == read.counts
    assert found.sensor == read.sensor
    assert found.durations == read.durations
    for name in ("start_us", "duration_us", "offsets", "t_us", "x", "y", "p"):
        assert torch.equal(getattr(found, name).cpu(), getattr(read, name)), name


@pytest.fixture(scope="module", params=DEVICES)
def resident(request: pytest.FixtureRequest) -> ResidentEvents:
    return ResidentEvents(SOURCES, SENSOR, request.param)


def both(
    resident: ResidentEvents, clips: list[Clip], augmentation: Augmentation | None, warmup: int | None
) -> tuple[ClipBatch, ClipBatch]:
    readers = (
        ClipReader(SOURCES, SENSOR, augmentation=augmentation, warmup=warmup, resident=each) for each in (False, True)
    )
    read, sought = (reader.batch(clips) for reader in readers)
    assert isinstance(sought.events, WindowRequests)
    return read, resident.complete(sought)


clips_strategy = st.lists(
    st.one_of(
        st.just(NOTHING),
        st.builds(
            Clip,
            st.integers(0, len(SOURCES) - 1),
            st.sampled_from([20.0, 40.0, 30.0, 200.0]),
            st.integers(0, 30),  # often past the recording's end
            st.integers(1, 5),
            st.booleans(),
            st.integers(0, 1000),
            st.booleans(),
            st.sampled_from([None, 5_000, 37_000, 50_000]),  # window length; None: the hop
        ),
    ),
    min_size=1,
    max_size=4,
).filter(lambda clips: any(not clip.is_empty for clip in clips))


@pytest.mark.parametrize("name", CHANGES)
@settings(max_examples=40, deadline=None)
@given(clips=clips_strategy, warmup=st.sampled_from([None, 0, 3]))
def test_they_are_the_batches_that_are_read(
    resident: ResidentEvents, name: str, clips: list[Clip], warmup: int | None
) -> None:
    read, found = both(resident, clips, CHANGES[name], warmup)
    assert isinstance(read.events, EventBatch)
    assert isinstance(found.events, EventBatch)
    check_same(read.events, found.events)
    np.testing.assert_array_equal(found.ends_us, read.ends_us)
    assert (read.teacher is None) == (found.teacher is None)
    if read.teacher is not None and found.teacher is not None:
        check_same(read.teacher.inputs("cpu"), found.teacher.inputs("cpu"))
        np.testing.assert_array_equal(found.teacher.shared, read.teacher.shared)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_thread_completes_them_in_their_order(resident: ResidentEvents, workers: int) -> None:
    plans = partial(_first, 6)
    read = list(load(ClipReader(SOURCES, SENSOR, augmentation=Augmentation.rvt_random()), plans))
    reader = ClipReader(SOURCES, SENSOR, augmentation=Augmentation.rvt_random(), resident=True)
    found = list(complete_batches(load(reader, plans, workers), resident))
    assert len(found) == len(read) == 6
    for one, other in zip(read, found, strict=True):
        check_same(one.inputs("cpu"), other.inputs("cpu"))  # type: ignore[arg-type]
        assert [labels is None for labels in one.labels] == [labels is None for labels in other.labels]


def test_who_stops_early_leaves_no_thread(resident: ResidentEvents) -> None:
    reader = ClipReader(SOURCES, SENSOR, resident=True)
    batches = complete_batches((reader.batch(clips) for clips in training_plan().batches()), resident)
    assert len(list(islice(batches, 2))) == 2
    assert any(thread.name.startswith("events on the device") for thread in enumerate_threads())
    batches.close()  # type: ignore[attr-defined]
    assert not any(thread.name.startswith("events on the device") for thread in enumerate_threads())


def test_a_fault_of_the_thread_is_raised_where_batches_are_taken(resident: ResidentEvents) -> None:
    def broken() -> Iterator[ClipBatch]:
        yield ClipReader(SOURCES, SENSOR, resident=True).batch([Clip(0, 40.0, 0, 2, True, 0)])
        raise FateError("the disk is gone")

    batches = complete_batches(broken(), resident)
    next(batches)
    with pytest.raises(FateError, match="the disk is gone"):
        next(batches)


class Longer(NamedTuple):
    """A recording that says less of its span than it holds, as a repaired file does."""

    whole: Source
    start_us: int
    end_us: int

    @property
    def labels(self) -> Labels:
        return self.whole.labels

    def open(self) -> Reader:
        return self.whole.open()


def test_events_outside_of_what_a_recording_says_are_found_too() -> None:
    source = SOURCES[1]
    said = [SOURCES[0], Longer(source, source.start_us + 100_000, source.end_us - 100_000), SOURCES[2]]
    clips = [Clip(1, 20.0, 0, 21, True, 0)]
    read = ClipReader(said, SENSOR, warmup=4).batch(clips)
    found = ResidentEvents(said, SENSOR, "cpu").complete(ClipReader(said, SENSOR, warmup=4, resident=True).batch(clips))
    check_same(read.inputs("cpu"), found.inputs("cpu"))  # type: ignore[arg-type]
    assert sum(found.events.counts[-2:]) > 0  # type: ignore[union-attr]


def test_a_recording_of_another_sensor_is_refused() -> None:
    with pytest.raises(FateError, match="32×24 sensor were read; expected 24×24"):
        ResidentEvents(SOURCES, (24, 24), "cpu")


@pytest.mark.slow
def test_who_never_closes_it_ends_well_all_the_same() -> None:
    code = (
        "from tests.data.test_resident import *\n"
        "reader = ClipReader(SOURCES, SENSOR, resident=True)\n"
        "resident = ResidentEvents(SOURCES, SENSOR, 'cpu')\n"
        "batches = complete_batches((reader.batch(clips) for clips in training_plan().batches()), resident)\n"
        "next(batches)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_batch_without_events_is_no_input() -> None:
    batch = ClipReader(SOURCES, SENSOR, warmup=2, resident=True).batch([Clip(0, 40.0, 4, 2, True, 0)])
    assert batch.teacher is not None
    assert batch.pin_memory().events is batch.events
    for part in (batch, batch.teacher):
        with pytest.raises(FateError, match="without its events"):
            part.inputs("cpu")


def _first(count: int) -> Iterator[list[Clip]]:
    return islice(training_plan().batches(), count)
