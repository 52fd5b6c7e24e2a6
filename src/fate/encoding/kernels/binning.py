"""Events of a window to pillars on the CPU: a counting sort by cell that keeps time order, then the caps."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.encoding.batch import EventBatch, host_columns
from fate.encoding.kernels.threads import in_threads
from fate.encoding.sampling import event_priority_u32, mixed_u32, window_key
from fate.encoding.spec import PillarSpec, PillarStats


class Binned(NamedTuple):
    """The pillars of a batch. A window's rows start at its offset in the batch; J of them are used.

    Events of a pillar stand together, by time; of what the caps leave out nothing is kept.
    """

    spec: PillarSpec
    offsets: NDArray[np.int64]  #: [B + 1] of the batch
    duration_us: NDArray[np.int64]  #: [B]
    pillars: NDArray[np.int64]  #: [B] J of each window
    cell: NDArray[np.int32]  #: [E] of each pillar
    begin: NDArray[np.int64]  #: [E] its first event
    size: NDArray[np.int32]  #: [E] how many it has
    t_us: NDArray[np.int32]  #: [E] of each event, since the window's start
    place: NDArray[np.int16]  #: [E] (row in pillar × side + column in pillar) × 2 + polarity
    stats: PillarStats


def bin_events(batch: EventBatch, spec: PillarSpec, seed: int) -> Binned:
    """The pillars of every window."""
    columns, events = host_columns(batch), batch.num_events
    offsets = columns["offsets"]
    cell, size = np.empty(events, np.int32), np.empty(events, np.int32)
    begin = np.empty(events, np.int64)
    t_us, place = np.empty(events, np.int32), np.empty(events, np.int16)
    of_pixels = tables(spec)

    def one(number: int) -> NDArray[np.int64]:
        part = slice(int(offsets[number]), int(offsets[number + 1]))
        key = np.uint32(window_key(seed, int(columns["start_us"][number])))
        given = tuple(columns[name][part] for name in ("t_us", "x", "y", "p"))
        kept = tuple(array[part] for array in (cell, begin, size, t_us, place))
        return _bin_window(
            given, of_pixels, spec.cells, spec.max_pillars or 0, spec.max_events or 0, key, part.start, kept
        )

    counts = np.stack(in_threads(one, range(len(batch))))
    given, dropped, with_pillars, crowded_out = counts.sum(0).tolist()
    stats = PillarStats(events, given, dropped, with_pillars, crowded_out)
    pillars = counts[:, 0] - counts[:, 1]
    return Binned(spec, offsets, columns["duration_us"], pillars, cell, begin, size, t_us, place, stats)


@lru_cache(maxsize=64)
def tables(spec: PillarSpec) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int16], NDArray[np.int16]]:
    """What a column and what a row adds to the cell, and to the place in the pillar."""
    side = spec.pillar
    across, down = np.arange(spec.sensor.width), np.arange(spec.sensor.height)
    return (
        (across // side).astype(np.int32),
        (down // side * spec.columns).astype(np.int32),
        (across % side * 2).astype(np.int16),
        (down % side * side * 2).astype(np.int16),
    )


@compiled
def _bin_window(given: tuple[NDArray[Any], ...], tables: tuple[NDArray[Any], ...], cells: int, max_pillars: int,
                max_events: int, key: np.uint32, offset: int, kept: tuple[NDArray[Any], ...],
                ) -> NDArray[np.int64]:  # fmt: skip
    """One window, (t, x, y, p), into (cell, begin, size, t, place).

    Returns pillars, pillars dropped, events dropped with them, events dropped from full pillars.
    """
    t, x, y, p = given
    x_cell, y_cell, x_place, y_place = tables
    cell, begin, size, t_us, place = kept
    events = len(t)
    count = np.zeros(cells, np.int32)
    where = np.empty(events, np.int32)
    for i in range(events):
        c = y_cell[y[i]] + x_cell[x[i]]
        where[i] = c
        count[c] += 1
    result = np.zeros(4, np.int64)
    limit = np.uint32(0xFFFFFFFF)
    for c in range(cells):
        if count[c]:
            result[0] += 1
    if max_pillars and result[0] > max_pillars:
        priority = np.empty(result[0], np.uint32)
        found = 0
        for c in range(cells):
            if count[c]:
                priority[found] = mixed_u32(np.uint32(np.uint32(c) ^ key))
                found += 1
        limit = lowest(priority, max_pillars)
    free, number = 0, 0
    for c in range(cells):  # from now on count holds where a cell's next event goes
        here = count[c]
        if here:
            if mixed_u32(np.uint32(np.uint32(c) ^ key)) <= limit:
                cell[number], begin[number], size[number] = c, offset + free, here
                count[c] = free
                free += here
                number += 1
            else:
                count[c] = -1
                result[1] += 1
                result[2] += here
    for i in range(events):
        c = where[i]
        slot = count[c]
        if slot >= 0:
            t_us[slot] = t[i]
            place[slot] = y_place[y[i]] + x_place[x[i]] + p[i]
            count[c] = slot + 1
    if max_events:
        for j in range(number):
            if size[j] > max_events:
                first = begin[j] - offset
                whole = mixed_u32(np.uint32(np.uint32(cell[j]) ^ key))
                keep(t_us[first : first + size[j]], place[first : first + size[j]], whole, max_events)
                result[3] += size[j] - max_events
                size[j] = max_events
    return result


@compiled
def lowest(priority: NDArray[np.uint32], most: int) -> np.uint32:
    """The limit up to which ``most`` priorities lie (more, if several are at the limit), bit by bit."""
    limit = np.uint32(0)
    for bit in range(31, -1, -1):
        tried = np.uint32(limit | np.uint32((np.uint32(1) << np.uint32(bit)) - np.uint32(1)))
        below = 0
        for i in range(len(priority)):
            below += priority[i] <= tried
        if below == most:
            return tried
        if below < most:
            limit = np.uint32(tried + np.uint32(1))
    return limit


@compiled
def keep(t_us: NDArray[np.int32], place: NDArray[np.int16], pillar: np.uint32, most: int) -> None:
    """The ``most`` events of lowest priority to the front, in their order."""
    events = len(t_us)
    priority = np.empty(events, np.uint32)
    earlier = 0
    for i in range(events):
        if i and t_us[i] != t_us[i - 1]:
            earlier = i
        priority[i] = event_priority_u32(pillar, earlier, place[i])
    limit = lowest(priority, most)
    at_limit = most
    for i in range(events):
        if priority[i] < limit:
            at_limit -= 1
    kept = 0
    for i in range(events):
        stays = priority[i] < limit
        if priority[i] == limit and at_limit > 0:
            at_limit -= 1
            stays = True
        if stays:
            t_us[kept], place[kept] = t_us[i], place[i]
            kept += 1
