"""EventBatch: two ways to make one agree, it moves as one block, and what cannot be is refused by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, IterableDataset

from fate.encoding.batch import COLUMNS, EventBatch, host_columns, window_of_events
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window
from tests.encoding.conftest import SENSOR, Pair, batch_of, crowded, crowded_windows, rows_of_events, window_of


def tensors_of(pairs: list[Pair], kind: torch.dtype = torch.int64) -> dict[str, Any]:
    """Arguments of ``from_tensors`` for windows, columns of one integer type."""
    events = [part for _, part in pairs]
    columns = {
        name: torch.from_numpy(np.concatenate([getattr(part, name).astype(np.int64) for part in events])).to(kind)
        for name in ("x", "y", "p")
    }
    columns["t_us"] = torch.from_numpy(np.concatenate([part.t_us for part in events]))
    offsets = [0, *np.cumsum([len(part) for part in events])]
    return {**columns, "offsets": offsets, "windows": [window for window, _ in pairs], "sensor": events[0].sensor}


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


@pytest.mark.parametrize("kind", [torch.int16, torch.int32, torch.int64])
def test_tensors_give_the_batch_that_windows_give(kind: torch.dtype) -> None:
    pairs = crowded_windows(seed=2, windows=5)
    assert same(EventBatch.from_tensors(**tensors_of(pairs, kind)), EventBatch.from_windows(pairs))
    assert same(EventBatch.from_tensors(**tensors_of(pairs, kind), check=False), EventBatch.from_windows(pairs))


def test_tensors_may_be_of_the_types_that_events_have() -> None:
    pairs = crowded_windows(seed=3, windows=1)
    window, events = pairs[0]
    columns = {name: torch.from_numpy(np.array(getattr(events, name))) for name in ("t_us", "x", "y", "p")}
    batch = EventBatch.from_tensors(**columns, offsets=[0, len(events)], windows=[window], sensor=SENSOR)
    assert same(batch, EventBatch.from_windows(pairs))


@settings(max_examples=25)
@given(st.lists(rows_of_events(), min_size=1, max_size=4), st.integers(-(10**12), 10**12))
def test_tensors_and_windows_agree_on_any_events(windows: list[list[Any]], start: int) -> None:
    pairs = [window_of(rows, 1000, start + 500 * number) for number, rows in enumerate(windows)]
    assert same(EventBatch.from_tensors(**tensors_of(pairs)), EventBatch.from_windows(pairs))


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


def given_tensors(**changes: Any) -> dict[str, Any]:
    """Arguments of ``from_tensors``: three windows of two events each, some of them changed."""
    arguments: dict[str, Any] = {
        "t_us": torch.tensor([0, 99, 100, 150, 200, 299]),
        "x": torch.tensor([0, 30, 5, 5, 5, 5]),
        "y": torch.tensor([0, 22, 5, 5, 5, 5]),
        "p": torch.tensor([0, 1, 0, 1, 0, 1]),
        "offsets": [0, 2, 4, 6],
        "windows": [Window(0, 100), Window(100, 200), Window(200, 300)],
        "sensor": SENSOR,
    }
    return {**arguments, **changes}


def changed(name: str, index: int, value: int) -> dict[str, Any]:
    arguments = given_tensors()
    arguments[name][index] = value
    return arguments


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "before its window": (changed("t_us", 2, 99), r"1 of 6 events lie outside their window.*index 2: -1$"),
    "at its window's end": (changed("t_us", 3, 200), r"outside their window.*index 3: 100$"),
    "right of the frame": (changed("x", 1, 31), r"outside the 31×23 frame \(x\).*index 1: 31$"),
    "left of the frame": (changed("x", 4, -1), r"outside the 31×23 frame \(x\).*index 4: -1$"),
    "below the frame": (changed("y", 1, 23), r"outside the 31×23 frame \(y\).*index 1: 23$"),
    "above the frame": (changed("y", 0, -7), r"outside the 31×23 frame \(y\).*index 0: -7$"),
    "far outside": (changed("x", 0, 65_536), r"outside the 31×23 frame \(x\).*index 0: 65536$"),
    "polarity 2": (changed("p", 5, 2), r"1 of 6 events have a polarity other than 0 and 1.*index 5: 2$"),
    "polarity -1": (changed("p", 0, -1), r"polarity other than 0 and 1.*index 0: -1$"),
    "unsorted": (given_tensors(t_us=torch.tensor([50, 49, 100, 150, 250, 249])), r"2 of 6.*come before.*index 1: 49$"),
    "floats": (given_tensors(t_us=torch.rand(6)), r"t_us is torch.float32 of shape \(6,\)"),
    "complex numbers": (given_tensors(x=torch.zeros(6, dtype=torch.complex64)), r"x is torch.complex64"),
    "two dimensions": (given_tensors(p=torch.zeros(6, 1, dtype=torch.int64)), r"p is torch.int64 of shape \(6, 1\)"),
    "no dimension": (given_tensors(t_us=torch.tensor(3)), r"t_us is torch.int64 of shape \(\)"),
    "an array": (given_tensors(y=np.zeros(6, np.int64)), r"y is <class 'numpy.ndarray'>"),
    "lengths": (given_tensors(x=torch.zeros(5, dtype=torch.int64)), r"x has 5 events on cpu, t_us 6 on cpu"),
    "devices": (given_tensors(p=torch.zeros(6, dtype=torch.uint8, device="meta")), r"p has 6 events on meta"),
    "too few offsets": (given_tensors(offsets=[0, 6]), r"2 offsets and 3 windows"),
    "too many offsets": (given_tensors(offsets=[0, 2, 4, 5, 6]), r"5 offsets and 3 windows"),
    "no window": (given_tensors(offsets=[0], windows=[]), r"1 offsets and 0 windows"),
    "offsets from 1": (given_tensors(offsets=[1, 2, 4, 6]), r"offsets \[1, 2, 4, 6\]"),
    "offsets that end early": (given_tensors(offsets=[0, 2, 4, 5]), r"offsets \[0, 2, 4, 5\].*0 to 6"),
    "offsets that end late": (given_tensors(offsets=[0, 2, 4, 7]), r"offsets \[0, 2, 4, 7\].*0 to 6"),
    "offsets that fall": (given_tensors(offsets=[0, 4, 2, 6]), r"offsets \[0, 4, 2, 6\]"),
    "offsets in between": (given_tensors(offsets=[0, 2.5, 4, 6]), r"2\.5"),
    "a sensor without a width": (given_tensors(sensor=(23,)), r"sensor \(23,\)"),
    "a sensor too large": (given_tensors(sensor=(23, 40_000)), r"40000×23.*32767"),
    "a window too long": (
        given_tensors(windows=[Window(0, 100), Window(100, 200), Window(200, 200 + 2**31)]),
        r"window 2 lasts 2147483648 µs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_that_cannot_be_are_refused_by_value(name: str) -> None:
    arguments, message = REFUSED[name]
    with pytest.raises(FateError, match=message):
        EventBatch.from_tensors(**arguments)


def test_the_unchanged_tensors_are_accepted() -> None:
    assert EventBatch.from_tensors(**given_tensors()).counts == (2, 2, 2)
    offsets = torch.tensor([0, 2, 4, 6])
    assert EventBatch.from_tensors(**given_tensors(offsets=offsets)).counts == (2, 2, 2)


def test_time_may_go_back_from_one_window_to_the_next() -> None:
    back = given_tensors(windows=[Window(100, 200), Window(0, 100), Window(200, 300)])
    back["t_us"] = torch.tensor([100, 150, 0, 99, 200, 299])
    assert EventBatch.from_tensors(**back).t_us.tolist() == [0, 50, 0, 99, 0, 99]


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


def test_unchecked_tensors_are_taken_at_their_word() -> None:
    made: Tensor = EventBatch.from_tensors(**changed("p", 5, 2), check=False).p
    assert made.tolist() == [0, 1, 0, 1, 0, 2]
