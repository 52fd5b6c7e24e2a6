"""Triton kernels from events to pillars: keys, gathering, the two caps, and each event's share of its pillar.

A cell is a place in the grid of one window, counted window by window, row by row. Of an event a cell keeps one number,
of 32 bits where windows are short: µs since the window's start, and its place in the pillar (see ``Binned.place`` in
``binning.py``).
"""

import triton
import triton.language as tl

PLACE_BITS = tl.constexpr(14)
PLACE_MASK = tl.constexpr((1 << 14) - 1)
#: Bins of one histogram of priorities: eleven bits of 32.
BINS = 2048


@triton.jit
def mixed_u32(value):
    """``sampling.mixed``."""
    value = (value ^ (value >> 16)) * 0x85EBCA6B
    value = (value ^ (value >> 13)) * 0xC2B2AE35
    return value ^ (value >> 16)


@triton.jit
def pillar_priority(first, start_us, cell):
    """``sampling.pillar_priority``; ``first`` is the seed's part of the key."""
    low = (start_us & 0xFFFFFFFF).to(tl.uint32)
    high = ((start_us >> 32) & 0xFFFFFFFF).to(tl.uint32)
    key = mixed_u32(mixed_u32(first.to(tl.uint32) ^ low) ^ high)
    return mixed_u32(cell.to(tl.uint32) ^ key)


@triton.jit
def event_priority(pillar, earlier, place):
    """``sampling.event_priority``."""
    inner = mixed_u32(pillar + (earlier + 1).to(tl.uint32) * 0x9E3779B9)
    return mixed_u32(inner ^ place.to(tl.uint32))


@triton.jit
def cell_keys(t_us, x, y, p, offsets, keys, packed, cells, columns, side, BLOCK: tl.constexpr):
    """The cell of each event, and the event as one number; programs go over (block, window)."""
    window = tl.program_id(1)
    start, end = tl.load(offsets + window), tl.load(offsets + window + 1)
    i = start + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < end
    column, row = tl.load(x + i, mask=inside, other=0).to(tl.int32), tl.load(y + i, mask=inside, other=0).to(tl.int32)
    place = ((row % side) * side + column % side) * 2 + tl.load(p + i, mask=inside, other=0).to(tl.int32)
    time = tl.load(t_us + i, mask=inside, other=0).to(tl.int64)
    tl.store(packed + i, (time << PLACE_BITS) | place, mask=inside)
    tl.store(keys + i, window * cells + row // side * columns + column // side, mask=inside)


@triton.jit(do_not_specialize=["events", "first"])
def gather(keys, order, unsorted, start_us, packed, begin, size, histograms, counts, full, events, first, cells,
           max_events, COUNT: tl.constexpr, CAP: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Events into the order of their cells; where each cell begins, and how many it has.

    With COUNT pillars are counted by priority; with CAP those with more than ``max_events`` are listed in ``full``.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < events
    key = tl.load(keys + i, mask=inside, other=-1).to(tl.int32)
    before = tl.load(keys + i - 1, mask=inside & (i > 0), other=-1).to(tl.int32)
    after = tl.load(keys + i + 1, mask=i + 1 < events, other=-1).to(tl.int32)
    source = tl.load(order + i, mask=inside, other=0)
    tl.store(packed + i, tl.load(unsorted + source, mask=inside, other=0), mask=inside)
    starts, ends = inside & (key != before), inside & (key != after)
    tl.store(begin + key, i, mask=starts)
    tl.atomic_add(size + key, i + 1, mask=ends)
    tl.atomic_add(size + key, -i, mask=starts)
    tl.atomic_add(counts, tl.sum(starts.to(tl.int32), 0))
    if COUNT:
        window = key // cells
        priority = pillar_priority(first, tl.load(start_us + window, mask=starts, other=0), key % cells)
        tl.atomic_add(histograms + window * 2048 + (priority >> 21).to(tl.int32), 1, mask=starts)
    if CAP:  # an event that has exactly max_events before it in its cell stands for the cell
        back = i - max_events
        same = tl.load(keys + back, mask=inside & (back >= 0), other=-1).to(tl.int32) == key
        further = tl.load(keys + back - 1, mask=inside & (back >= 1), other=-1).to(tl.int32) == key
        first_too_many = inside & same & (further == 0)
        place = tl.atomic_add(counts + 4 + tl.zeros_like(i), 1, mask=first_too_many)
        tl.store(full + place, key, mask=first_too_many)


@triton.jit
def limit_of(histograms, window, max_pillars, LEVELS: tl.constexpr):
    """The limit of priorities in a window up to which ``max_pillars`` lie, as far as the first histograms tell.

    Eleven bits come from the first, eleven from the second, ten from the third; each counts the pillars whose
    priority begins with the bits before. The second value is False where the window has no pillar too many.
    """
    bins = tl.arange(0, 2048)
    here = histograms + window * 2048 + bins
    count = tl.load(here)
    wanted = max_pillars
    many = tl.sum(count, 0) > wanted
    found = tl.min(tl.where(tl.cumsum(count, 0) >= wanted, bins, 2047), 0)
    limit = found.to(tl.int64) << 21
    for level in tl.static_range(1, LEVELS):
        wanted -= tl.sum(tl.where(bins < found, count, 0), 0)
        count = tl.load(here + level * tl.num_programs(1) * 2048)
        found = tl.min(tl.where(tl.cumsum(count, 0) >= wanted, bins, 2047), 0)
        limit += found.to(tl.int64) << (10 if level == 1 else 0)
    return limit, many


@triton.jit(do_not_specialize=["first"])
def count_priorities(size, start_us, histograms, max_pillars, first, cells, LEVEL: tl.constexpr, BLOCK: tl.constexpr):
    """Pillars whose priority begins with the bits found so far, by the next bits; programs go over (block, window)."""
    window = tl.program_id(1)
    limit, many = limit_of(histograms, window, max_pillars, LEVEL)
    if many:
        cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        used = tl.load(size + window * cells + cell, mask=cell < cells, other=0) > 0
        priority = pillar_priority(first, tl.load(start_us + window), cell).to(tl.int64)
        shift: tl.constexpr = 10 if LEVEL == 1 else 0
        known: tl.constexpr = 21 if LEVEL == 1 else 10
        bins: tl.constexpr = 2047 if LEVEL == 1 else 1023
        chosen = used & ((priority >> known) == (limit >> known))
        into = histograms + (LEVEL * tl.num_programs(1) + window) * 2048
        tl.atomic_add(into + ((priority >> shift) & bins), 1, mask=chosen)


@triton.jit(do_not_specialize=["first"])
def drop_pillars(size, start_us, histograms, counts, max_pillars, first, cells, BLOCK: tl.constexpr):
    """Pillars above the limit have no events any more; programs go over (block, window)."""
    window = tl.program_id(1)
    limit, many = limit_of(histograms, window, max_pillars, 3)
    if many:
        cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        events = tl.load(size + window * cells + cell, mask=cell < cells, other=0)
        priority = pillar_priority(first, tl.load(start_us + window), cell).to(tl.int64)
        dropped = (events > 0) & (priority > limit)
        tl.store(size + window * cells + cell, 0, mask=dropped)
        tl.atomic_add(counts + 1, tl.sum(dropped.to(tl.int32), 0))
        tl.atomic_add(counts + 2, tl.sum(tl.where(dropped, events, 0), 0))


@triton.jit
def _later(a, b):
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["first"])
def cap_events(begin, size, packed, priority, start_us, counts, full, first, cells, max_events, BLOCK: tl.constexpr):
    """Of each listed pillar, the events of lowest priority to the front, in their order."""
    for entry in range(tl.program_id(0), tl.load(counts + 4), tl.num_programs(0)):
        cell = tl.load(full + entry)
        n = tl.load(size + cell)
        if n > max_events:  # else the whole pillar has been dropped
            _cap_one(begin, size, packed, priority, start_us, counts, cell, n, first, cells, max_events, BLOCK)


@triton.jit
def _cap_one(begin, size, packed, priority, start_us, counts, cell, n, first, cells, max_events, BLOCK: tl.constexpr):
    origin = tl.load(begin + cell)
    lane = tl.arange(0, BLOCK)
    pillar = pillar_priority(first, tl.load(start_us + cell // cells), cell % cells)
    earlier = 0
    for chunk in range(0, n, BLOCK):  # the priorities, once
        i = chunk + lane
        event = tl.load(packed + origin + i, mask=i < n, other=0)
        before = tl.load(packed + origin + i - 1, mask=(i < n) & (i > 0), other=-1)
        new = (event >> PLACE_BITS) != (before >> PLACE_BITS)
        since = tl.maximum(tl.associative_scan(tl.where(new, i, 0), 0, _later), earlier)
        place = (event & PLACE_MASK).to(tl.int32)
        tl.store(priority + origin + i, event_priority(pillar, since, place).to(tl.int64), mask=i < n)
        earlier = tl.max(tl.where(i < n, since, 0), 0)
    tl.debug_barrier()
    limit = tl.full((), 0, tl.int64)
    bit = 31
    found = 0
    while (bit >= 0) & (found == 0):  # the lowest limit up to which max_events lie, bit by bit
        tried = limit + (tl.full((), 1, tl.int64) << bit) - 1
        below = 0
        for chunk in range(0, n, BLOCK):
            value = tl.load(priority + origin + chunk + lane, mask=chunk + lane < n, other=1 << 40)
            below += tl.sum((value <= tried).to(tl.int32), 0)
        found = (below == max_events).to(tl.int32)
        limit = tl.where(found > 0, tried, tl.where(below < max_events, tried + 1, limit))
        bit -= 1
    at_limit = max_events
    for chunk in range(0, n, BLOCK):
        value = tl.load(priority + origin + chunk + lane, mask=chunk + lane < n, other=1 << 40)
        at_limit -= tl.sum((value < limit).to(tl.int32), 0)
    kept = 0
    for chunk in range(0, n, BLOCK):
        i = chunk + lane
        value = tl.load(priority + origin + i, mask=i < n, other=1 << 40)
        event = tl.load(packed + origin + i, mask=i < n, other=0)
        equal = (value == limit).to(tl.int32)
        stays = (value < limit) | ((equal > 0) & (tl.cumsum(equal, 0) <= at_limit))
        at_limit -= tl.sum(equal, 0)
        slot = kept + tl.cumsum(stays.to(tl.int32), 0) - 1
        tl.store(packed + origin + slot, event, mask=stays)  # never past what has been read
        kept += tl.sum(stays.to(tl.int32), 0)
        tl.debug_barrier()
    tl.store(size + cell, max_events)
    tl.atomic_add(counts + 3, n - max_events)


@triton.jit
def describe(begin, size, packed, share, mean, duration_us, total, cells, side, UNIFORM: tl.constexpr,
             BLOCK: tl.constexpr):  # fmt: skip
    """Each pillar's means, and each event's share (Eq. 5 over its sum); one lane a cell.

    Events of equal times form a run and share what Eq. 5 gives them together: a run's shares are written when the
    next time is known.
    """
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = cell < total
    n = tl.load(size + cell, mask=real, other=0)
    most = tl.max(n, 0)
    if most > 0:
        origin = tl.load(begin + cell, mask=real, other=0)
        used = n > 0
        first = tl.load(packed + origin, mask=used, other=0) >> PLACE_BITS
        last = tl.load(packed + origin + n - 1, mask=used, other=0) >> PLACE_BITS
        span = last - first
        even = (span == 0) | UNIFORM
        columns, rows = tl.zeros_like(n), tl.zeros_like(n)
        times = tl.zeros_like(first).to(tl.int64)
        run, now, before = tl.zeros_like(n), first, first
        coming = tl.load(packed + origin, mask=used, other=0)
        for m in range(0, most + 1):
            event = coming
            coming = tl.load(packed + origin + m + 1, mask=m + 1 < n, other=0)  # on its way while this one is worked on
            time = event >> PLACE_BITS
            pixel = ((event & PLACE_MASK) >> 1).to(tl.int32)
            columns += tl.where(m < n, pixel % side, 0)
            rows += tl.where(m < n, pixel // side, 0)
            times += tl.where(m < n, time, 0)
            closes = (m <= n) & (m > 0) & ((m == n) | (time != now)) & used
            after = tl.where(m < n, time, now)
            weight = (after - before).to(tl.float32) / (2 * tl.maximum(span, 1) * (m - run)).to(tl.float32)
            weight = tl.where(even, 1.0 / tl.maximum(n, 1).to(tl.float32), weight)
            longest = tl.max(tl.where(closes, m - run, 0), 0)
            for step in range(0, longest):
                tl.store(share + origin + run + step, weight, mask=closes & (run + step < m))
            before, now = tl.where(closes, now, before), tl.where(closes, time, now)
            run = tl.where(closes, m, run)
        count = tl.maximum(n, 1)
        per_us = 2.0 / tl.load(duration_us + cell // cells, mask=real, other=1).to(tl.float64)
        mean_tau = times.to(tl.float64) / count.to(tl.float64) * per_us - 1.0
        tl.store(mean + cell, columns.to(tl.float32) / count.to(tl.float32), mask=used)
        tl.store(mean + total + cell, rows.to(tl.float32) / count.to(tl.float32), mask=used)
        tl.store(mean + 2 * total + cell, mean_tau.to(tl.float32), mask=used)
