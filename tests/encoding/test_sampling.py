"""What the caps keep: versions of one generator agree, the choice is uniform, and it depends on the events alone."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.encoding import sampling
from fate.encoding.batch import EventBatch
from fate.encoding.kernels import cpu_kernels, reference, torch_kernels
from fate.encoding.kernels.cpu_kernels import Binned
from fate.encoding.spec import PillarSpec
from fate.events.events import Sensor
from tests.encoding.conftest import SENSOR, Row, batch_of, crowded, rows_of_events, window_of

WORDS = 2**32
seeds = st.integers(0, 2**64 - 1)
Kept = dict[tuple[int, int], list[tuple[int, int]]]  # (window, cell) to (t, place) of its events


@compiled
def compiled_hash(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    made = np.empty_like(values)
    for i in range(len(values)):
        made[i] = sampling.hash_u32(values[i])
    return made


@compiled
def compiled_events(
    pillar: NDArray[np.uint32], earlier: NDArray[np.int64], place: NDArray[np.int16]
) -> NDArray[np.uint32]:
    made = np.empty_like(pillar)
    for i in range(len(pillar)):
        made[i] = sampling.event_priority_u32(pillar[i], earlier[i], place[i])
    return made


# --- versions of one generator ---


def test_the_hash_is_murmur3s_finaliser() -> None:
    # fmix32 of MurmurHash3: 0 stays 0, and the known images of 1 and 2
    assert [sampling.hash32(value) for value in (0, 1, 2)] == [0, 0x514E28B7, 0x30F4C306]


def test_the_hash_is_a_bijection() -> None:
    def inverse_hash(value: int) -> int:
        value ^= value >> 16
        value = value * pow(sampling.MUL_2, -1, WORDS) % WORDS
        value ^= value >> 13 ^ value >> 26
        value = value * pow(sampling.MUL_1, -1, WORDS) % WORDS
        return value ^ value >> 16

    values = [0, 1, WORDS - 1, *np.random.default_rng(0).integers(0, WORDS, 2000).tolist()]
    assert [inverse_hash(sampling.hash32(value)) for value in values] == values


def test_mixing_flips_half_of_the_bits_when_one_changes() -> None:
    values = np.random.default_rng(1).integers(0, WORDS, 200).tolist()
    for bit in range(32):
        flips = [bin(sampling.hash32(value) ^ sampling.hash32(value ^ 1 << bit)).count("1") for value in values]
        assert 14 < np.mean(flips) < 18


def test_numbers_tensors_and_compiled_loops_mix_alike() -> None:
    values = np.random.default_rng(2).integers(0, WORDS, 1000)
    plain = [sampling.hash32(value) for value in values.tolist()]
    assert sampling.hash32(torch.from_numpy(values)).tolist() == plain
    assert compiled_hash(values.astype(np.uint32)).tolist() == plain


@given(seeds, st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=4), st.data())
def test_pillars_have_one_priority_in_numbers_and_tensors(seed: int, starts: list[int], data: st.DataObject) -> None:
    window = data.draw(st.lists(st.integers(0, len(starts) - 1), min_size=1, max_size=6))
    cell = data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(window), max_size=len(window)))
    plain = [
        sampling.pillar_priority(sampling.window_key(seed, starts[number]), place)
        for number, place in zip(window, cell, strict=True)
    ]
    made = sampling.pillar_priority(
        sampling.window_key(seed, torch.tensor(starts))[torch.tensor(window)], torch.tensor(cell)
    )
    assert made.tolist() == plain
    assert all(0 <= value < WORDS for value in plain)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_events_have_one_priority_in_numbers_tensors_and_compiled_loops(seed: int) -> None:
    random = np.random.default_rng(seed)
    pillar, earlier = random.integers(0, WORDS, 50), random.integers(0, 2**31, 50)
    place = random.integers(0, 2 * 64 * 64, 50)
    plain = [
        sampling.event_priority(*row) for row in zip(pillar.tolist(), earlier.tolist(), place.tolist(), strict=True)
    ]
    assert sampling.event_priority(*map(torch.from_numpy, (pillar, earlier, place))).tolist() == plain
    assert compiled_events(pillar.astype(np.uint32), earlier, place.astype(np.int16)).tolist() == plain


def test_no_two_pillars_of_a_window_have_one_priority() -> None:
    cells = torch.arange(200_000)
    made = sampling.pillar_priority(sampling.window_key(3, torch.tensor([17])), cells)
    assert len(made.unique()) == len(cells)


def test_keys_of_windows_differ_with_seed_and_start() -> None:
    times = [0, 1, -1, 50_000, 2**32, 2**32 + 1, -(2**32), 2**40]
    keys = {sampling.window_key(seed, start) for seed in (0, 1, 2**32, 2**62 - 1) for start in times}
    assert len(keys) == 4 * len(times)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=30))
def test_ranks_count_those_before_in_the_group(pairs: list[tuple[int, int]]) -> None:
    group, priority = (torch.tensor([pair[i] for pair in sorted(pairs, key=lambda pair: pair[0])]) for i in (0, 1))
    rows = list(zip(group.tolist(), priority.tolist(), range(len(pairs)), strict=True))
    plain = [sum(g == other[0] and (p, i) > other[1:] for other in rows) for g, p, i in rows]
    assert sampling.ranks(priority.long(), group.long()).tolist() == plain


# --- who stays ---


def kept_by_numbers(batch: EventBatch, spec: PillarSpec, seed: int) -> Kept:
    """By the definition, in plain numbers."""
    pillars: Kept = defaultdict(list)
    side = spec.pillar
    for number in range(len(batch)):
        for i in range(int(batch.offsets[number]), int(batch.offsets[number + 1])):
            t, x, y, p = (int(getattr(batch, name)[i]) for name in ("t_us", "x", "y", "p"))
            place = ((y % side) * side + x % side) * 2 + p
            pillars[number, y // side * spec.columns + x // side].append((t, place))
    stay: Kept = {}
    for number in range(len(batch)):
        key = sampling.window_key(seed, int(batch.start_us[number]))
        mine = [cell for window, cell in pillars if window == number]
        for cell in sorted(mine, key=lambda cell: sampling.pillar_priority(key, cell))[: spec.max_pillars]:
            events, whole = pillars[number, cell], sampling.pillar_priority(key, cell)
            times = [t for t, _ in events]
            lot = [sampling.event_priority(whole, times.index(t), place) for t, place in events]
            first = sorted(range(len(events)), key=lambda i: (lot[i], i))[: spec.max_events]
            stay[number, cell] = [events[i] for i in sorted(first)]
    return stay


def kept_by_segments(of: torch_kernels.Segments) -> Kept:
    side, spec = of.spec.pillar, of.spec
    stay: Kept = defaultdict(list)
    for cell, t, x, y, p in zip(
        *(part.tolist() for part in (of.cell[of.pillar], of.t_us, of.x, of.y, of.p)), strict=True
    ):
        stay[divmod(cell, spec.cells)].append((t, ((y % side) * side + x % side) * 2 + p))
    return dict(stay)


def kept_by_loops(of: Binned) -> Kept:
    stay: Kept = {}
    for number, part in enumerate(of.windows):
        for cell, first, count in part.pillars.tolist():
            packed = part.packed[first : first + count].tolist()
            stay[number, cell] = [(event & sampling.M32, event >> 32) for event in packed]
    return stay


def unordered(kept: Kept) -> Kept:
    return {where: sorted(events) for where, events in kept.items()}


SPECS = [
    PillarSpec(Sensor(*SENSOR), pillar, max_events=most, max_pillars=pillars)
    for pillar, most, pillars in [(2, 3, 5), (1, 1, 1), (3, 2, None), (8, 7, 2), (4, None, 4), (2, None, None)]
]


@settings(max_examples=20)
@given(st.lists(rows_of_events(), min_size=1, max_size=3), seeds, st.sampled_from(SPECS))
def test_every_version_keeps_the_events_that_plain_numbers_keep(
    rows: list[list[Row]], seed: int, spec: PillarSpec
) -> None:
    batch = batch_of(*rows)
    wanted = kept_by_numbers(batch, spec, seed)
    assert kept_by_segments(torch_kernels.prepare(batch, spec, seed)) == wanted
    assert kept_by_loops(cpu_kernels.prepare(batch, spec, seed)) == wanted


@pytest.mark.parametrize("spec", SPECS)
def test_every_version_keeps_the_same_of_a_crowd(spec: PillarSpec) -> None:
    batch = crowded(seed=4)
    wanted = kept_by_numbers(batch, spec, 2**61 + 5)
    by_segments, by_loops = torch_kernels.prepare(batch, spec, 2**61 + 5), cpu_kernels.prepare(batch, spec, 2**61 + 5)
    assert kept_by_segments(by_segments) == wanted
    assert kept_by_loops(by_loops) == wanted
    assert by_segments.stats == by_loops.stats
    assert by_loops.stats.events_kept == sum(len(events) for events in wanted.values())
    assert by_loops.stats.pillars - by_loops.stats.pillars_dropped == len(wanted)
    for number in range(len(batch)):
        dense = reference.pillarize(by_segments, number, torch.float64)
        cells = sorted(cell for window, cell in wanted if window == number)
        assert dense.cell[dense.cell >= 0].tolist() == cells
        sizes = [len(wanted[number, cell]) for cell in cells]
        assert dense.mask.sum(-1).long()[: len(cells)].tolist() == sizes


@given(rows_of_events(), st.randoms(use_true_random=False), seeds)
def test_the_order_of_events_with_equal_times_changes_nothing(rows: list[Row], random: Random, seed: int) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    spec = PillarSpec(Sensor(*SENSOR), 4, max_events=2, max_pillars=3)
    one, other = (kept_by_loops(cpu_kernels.prepare(batch_of(part), spec, seed)) for part in (rows, shuffled))
    assert unordered(one) == unordered(other)


def test_the_choice_is_the_same_in_any_batch() -> None:
    spec = PillarSpec(Sensor(*SENSOR), 4, max_events=2, max_pillars=6)
    rows = [(i * 3 % 1000, i * 7 % 31, i * 5 % 23, i % 2) for i in range(400)]
    mine = window_of(rows, start_us=9_000)
    others = [window_of(rows, start_us=start) for start in (0, 5_000)]
    alone = kept_by_loops(cpu_kernels.prepare(EventBatch.from_windows([mine]), spec, 3))
    among = kept_by_loops(cpu_kernels.prepare(EventBatch.from_windows([*others, mine]), spec, 3))
    assert {cell: events for (window, cell), events in among.items() if window == 2} == {
        cell: events for (_, cell), events in alone.items()
    }


# --- the choice is uniform ---

EVENTS = [(10 * i, i % 4, i // 4 % 4, i // 3 % 2) for i in range(12)]  # in one pillar of 4 × 4
AT_ONE_TIME = [(5, x, y, p) for _, x, y, p in EVENTS]
AT_ONE_PIXEL = [(t, 1, 1, 1) for t, *_ in EVENTS]
PILLARS = [(7, 4 * i % 28, 4 * (i // 7), 0) for i in range(20)]  # one event in each
DRAWS = 2000


def table_of_draws(rows: list[Row], max_events: int | None, max_pillars: int | None, by: str) -> NDArray[np.bool_]:
    """[draws, rows] whether a row was kept; drawn by many seeds, or by one seed in many windows."""
    spec = PillarSpec(Sensor(*SENSOR), 4, max_events=max_events, max_pillars=max_pillars)
    draws: list[set[tuple[int, int, int]]] = [set() for _ in range(DRAWS)]
    if by == "seeds":
        batch = batch_of(rows)
        made = [(seed, kept_by_loops(cpu_kernels.prepare(batch, spec, seed))) for seed in range(DRAWS)]
    else:
        batch = EventBatch.from_windows([window_of(rows, start_us=50_000 * number) for number in range(DRAWS)])
        made = [(0, kept_by_loops(cpu_kernels.prepare(batch, spec, 0)))]
    for seed, kept in made:
        for (window, cell), events in kept.items():
            draws[seed + window] |= {(cell, *event) for event in events}
    names = [(y // 4 * spec.columns + x // 4, t, (y % 4 * 4 + x % 4) * 2 + p) for t, x, y, p in rows]
    return np.array([[name in draw for name in names] for draw in draws])


@pytest.mark.parametrize("by", ["seeds", "windows"])
@pytest.mark.parametrize(
    ("rows", "caps"),
    [(EVENTS, (4, None)), (AT_ONE_TIME, (4, None)), (AT_ONE_PIXEL, (4, None)), (PILLARS, (None, 8))],
    ids=["events", "events of one time", "events of one pixel", "pillars"],
)
def test_each_is_kept_as_often_as_any_other_and_so_is_each_pair(
    rows: list[Row], caps: tuple[int | None, int | None], by: str
) -> None:
    found = table_of_draws(rows, *caps, by)
    n, most = len(rows), caps[0] or caps[1] or 0
    assert (found.sum(1) == most).all()
    share, pair_share = most / n, most * (most - 1) / (n * (n - 1))
    z = (found.sum(0) - DRAWS * share) / np.sqrt(DRAWS * share * (1 - share))
    assert np.abs(z).max() < 4
    chi_square = (z**2).sum() * (n - 1) / n  # of n - 1 degrees, since each draw keeps as many
    assert abs(chi_square - (n - 1)) < 4 * np.sqrt(2 * (n - 1))
    together = (found[:, :, None] & found[:, None, :]).sum(0)[np.triu_indices(n, 1)]
    assert np.abs((together - DRAWS * pair_share) / np.sqrt(DRAWS * pair_share * (1 - pair_share))).max() < 4.5
