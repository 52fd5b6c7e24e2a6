"""EventBatch: it moves as one block, and what cannot be is refused by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, IterableDataset

from fate.encoding.batch import COLUMNS, EventBatch, host_columns, window_of_events
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window
from tests.encoding.conftest import SENSOR, Pair, batch_of, crowded, crowded_windows, window_of


def same(one: EventBatch, other: EventBatch) -> bool:
    columns = all(torch.equal(getattr(one, name), getattr(other, name)) for name in COLUMNS)
    return columns and one.counts == other.counts and one.sensor == other.sensor


def is_one_block(batch: EventBatch) -> bool:
    """Whether the columns are parts of the block, and not copies."""
    home = batch.block.untyped_storage().data_ptr()
    return all(getattr(batch, name).untyped_storage().data_ptr() == home for name in COLUMNS)


# --- what is in a batch ---


def test_a_batch_holds_the_columns_of_its_windows() -> None:
    pairs = crowded_windows(windows=4)
    batch = EventBatch.from_windows(pairs)
    assert len(batch) == 4
    assert batch.num_events == sum(len(events) for _, events in pairs)
    assert batch.counts == tuple(len(events) for _, events in pairs)
    assert batch.sensor == SENSOR
    for name, kind in COLUMNS.items():
        assert getattr(batch, name).dtype == kind
    for number, (window, events) in enumerate(pairs):
        part = slice(int(batch.offsets[number]), int(batch.offsets[number + 1]))
        assert (batch.t_us[part].long().numpy() + window.start_us == events.t_us).all()
        for name in ("x", "y", "p"):
            assert (getattr(batch, name)[part].numpy() == getattr(events, name)).all()
        assert (window_of_events(batch)[part] == number).all()
        assert int(batch.start_us[number]) == window.start_us


def test_each_window_has_its_own_duration() -> None:
    batch = EventBatch.from_windows(
        [window_of([(4999, 1, 1, 1)], 5_000), window_of([(49_999, 1, 1, 1)], 50_000, 10**9)]
    )
    assert batch.duration_us.tolist() == [5_000, 50_000]
    assert batch.t_us.tolist() == [4_999, 49_999]
    assert batch.start_us.tolist() == [0, 10**9]


def test_windows_may_overlap_and_come_in_any_order() -> None:
    events = Events([100, 200, 300], [1, 2, 3], [4, 5, 6], [0, 1, 0], SENSOR)
    batch = EventBatch.from_windows([(Window(200, 400), events[1:]), (Window(100, 250), events[:2])])
    assert batch.t_us.tolist() == [0, 100, 0, 100]
    assert batch.x.tolist() == [2, 3, 1, 2]


def test_empty_windows_have_their_place() -> None:
    batch = batch_of([], [(3, 2, 1, 0)], [])
    assert batch.counts == (0, 1, 0)
    assert batch.offsets.tolist() == [0, 0, 1, 1]
    assert window_of_events(batch).tolist() == [1]
    nothing = batch_of([])
    assert nothing.num_events == 0
    assert len(nothing) == 1
    assert window_of_events(nothing).shape == (0,)


def test_windows_are_read_once_from_any_iterable() -> None:
    assert same(EventBatch.from_windows(iter(crowded_windows())), crowded())


def test_columns_reach_numpy_without_a_copy() -> None:
    batch = crowded()
    for name, column in host_columns(batch).items():
        assert column.ctypes.data == getattr(batch, name).data_ptr()


def test_a_batch_says_what_it_is() -> None:
    assert repr(batch_of([(1, 1, 1, 1)])) == "EventBatch(1 window, 1 events, 31×23, cpu)"
    assert repr(batch_of([], [])) == "EventBatch(2 windows, 0 events, 31×23, cpu)"


# --- moving ---


class Copies(TorchDispatchMode):
    """Counts copies of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made += function.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_, torch.ops.aten.clone)
        return function(*args, **(kwargs or {}))


def test_a_batch_moves_in_one_copy() -> None:
    batch = crowded()
    with Copies() as copies:
        moved = batch.to("meta")
    assert copies.made == 1
    assert moved.device.type == "meta"
    assert moved.counts == batch.counts
    for name, kind in COLUMNS.items():
        assert getattr(moved, name).shape == getattr(batch, name).shape
        assert getattr(moved, name).dtype == kind


def test_a_batch_that_is_there_already_is_not_copied() -> None:
    batch = crowded()
    assert batch.to("cpu") is batch


@pytest.mark.parametrize("events", [0, 1, 2, 3, 5, 8])
def test_columns_are_parts_of_one_aligned_block(events: int) -> None:
    batch = batch_of([(i, i, i, i % 2) for i in range(events)])
    assert is_one_block(batch)
    ends = 0
    for name in COLUMNS:
        column = getattr(batch, name)
        first = column.storage_offset() * column.element_size()
        assert first % 16 == 0
        assert first >= ends
        ends = first + column.numel() * column.element_size()
    assert batch.block.numel() - ends < 16


class Windows(IterableDataset[EventBatch]):
    def __iter__(self) -> Iterator[EventBatch]:
        for seed in range(3):
            yield crowded(seed)


def test_batches_come_whole_from_a_data_loaders_worker() -> None:
    loader = DataLoader(Windows(), batch_size=None, num_workers=1)
    for seed, batch in enumerate(loader):
        assert same(batch, crowded(seed))
        assert is_one_block(batch)


@pytest.mark.parametrize("again", [lambda batch: pickle.loads(pickle.dumps(batch)), copy.copy, copy.deepcopy])
def test_a_copied_batch_is_one_block_still(again: Callable[[EventBatch], EventBatch]) -> None:
    batch = crowded()
    copied = again(batch)
    assert same(copied, batch)
    assert is_one_block(copied)


def test_a_pickled_batch_holds_its_events_once() -> None:
    batch = crowded(events=5000)
    assert len(pickle.dumps(batch)) < 1.2 * batch.block.numel() + 5000


# --- what is refused ---


def events_at(*t_us: int, sensor: tuple[int, int] = SENSOR) -> Events:
    return Events(t_us, [1] * len(t_us), [1] * len(t_us), [1] * len(t_us), sensor)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "no windows were given"),
        ([(Window(0, 10), events_at(3)), (Window(10, 20), events_at(9, 15))], r"window 1.*10, 20.*from 9 to 15 µs"),
        ([(Window(0, 10), events_at(3, 10))], r"window 0.*0, 10.*from 3 to 10 µs"),
        ([(Window(0, 10), events_at(3)), (Window(0, 10), events_at(3, sensor=(31, 23)))], "window 1 .*23×31.*31×23"),
        ([(Window(0, 10), events_at(3)), (Window(0, 10), events_at(sensor=(9, 9)))], "window 1 .*9×9.*31×23"),
        ([(Window(0, 2**31), events_at(3))], "window 0 lasts 2147483648 µs"),
        ([(Window(0, 10), events_at(3, sensor=(40_000, 20)))], "20×40000.*32767"),
    ],
)
def test_windows_that_cannot_be_are_refused_by_value(pairs: list[Pair], message: str) -> None:
    with pytest.raises(FateError, match=message):
        EventBatch.from_windows(pairs)


@pytest.mark.parametrize("pairs", [[(events_at(3), Window(0, 10))], [events_at(3)], [(Window(0, 10), torch.zeros(3))]])
def test_anything_but_pairs_of_window_and_events_is_refused(pairs: Any) -> None:
    with pytest.raises(FateError, match="pair"):
        EventBatch.from_windows(pairs)
