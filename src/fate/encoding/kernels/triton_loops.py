"""Triton kernels of Pillar Encoding: from events to pillars, to the pseudo-image, and gradients.

**Events to pillars** (``count_events`` to ``describe``): a counting sort by cell, the two caps, and the weight of each
event in its pillar. Atomic counters give the events of a cell any order; ``order`` then sorts them by their values, so
the result depends on no order. Cells of the grid are counted window by window, row by row. An event is one number of
64 bits, or 32 if windows are short: µs since the window's start, and its pixel code in the pillar (see
``cpu_loops.Tables``).

**Pillars to image** (``forward``, ``backward``): a program of ``forward`` processes several pillars with all channels:
the first event of every pillar, then the second, and so on. A program of ``backward`` processes one cell at a time. The
hidden value of an event (Eq. 2) is ``base`` + across · column + down · row + slope · tau + sign · p, with one base per
pillar. In ``add_moments_of_features`` each thread processes one cell.
"""

import triton
import triton.language as tl

PIXEL_BITS = tl.constexpr(14)
PIXEL_MASK = tl.constexpr((1 << 14) - 1)
#: Bins of a histogram of priorities: eleven of their 32 bits.
BINS = 2048
#: The sums of ``add_moments_of_features``, in its order: s… of coordinates in the frame, c… of offsets from the mean of
#: a pillar, m… of offsets from its centre (in m_x_y the second coordinate is in the frame).
SUMS = (
    "s_1", "s_x", "s_y", "s_t", "s_p", "s_xx", "s_xy", "s_yy", "s_xt", "s_yt", "s_xp", "s_yp", "s_tt", "s_tp",
    "c_xx", "c_xy", "c_yy", "c_xt", "c_yt", "c_tt", "c_xp", "c_yp", "c_tp",
    "m_x", "m_y", "m_xx", "m_xy", "m_yy", "m_xt", "m_yt", "m_xp", "m_yp", "m_x_x", "m_x_y", "m_y_x", "m_y_y",
)  # fmt: skip
#: Sums of ``backward`` for each channel; its last lines give their order.
ROWS = 16
#: Polynomials whose gradients one call of ``backward`` computes.
DEGREES = 4


@triton.jit
def hash_u32(value):
    """``sampling.hash32``."""
    value = (value ^ (value >> 16)) * 0x85EBCA6B
    value = (value ^ (value >> 13)) * 0xC2B2AE35
    return value ^ (value >> 16)


@triton.jit
def pillar_priority(first, start_us, cell):
    """``sampling.pillar_priority``; ``first`` is the seed's part of the key."""
    low = (start_us & 0xFFFFFFFF).to(tl.uint32)
    high = ((start_us >> 32) & 0xFFFFFFFF).to(tl.uint32)
    key = hash_u32(hash_u32(first.to(tl.uint32) ^ low) ^ high)
    return hash_u32(cell.to(tl.uint32) ^ key)


@triton.jit
def event_priority(pillar, earlier, pixel_code):
    """``sampling.event_priority``."""
    inner = hash_u32(pillar + (earlier + 1).to(tl.uint32) * 0x9E3779B9)
    return hash_u32(inner ^ pixel_code.to(tl.uint32))


@triton.jit
def load_events(t_us, x, y, p, i, inside, columns, side, LONG: tl.constexpr):
    """The cell of each event in its window, and the event as one number."""
    column, row = tl.load(x + i, mask=inside, other=0).to(tl.int32), tl.load(y + i, mask=inside, other=0).to(tl.int32)
    pixel_code = ((row % side) * side + column % side) * 2 + tl.load(p + i, mask=inside, other=0).to(tl.int32)
    time = tl.load(t_us + i, mask=inside, other=0).to(tl.int64 if LONG else tl.int32)
    return row // side * columns + column // side, (time << PIXEL_BITS) | pixel_code


@triton.jit
def count_events(x, y, offsets, size, slots, cells, columns, side, BLOCK: tl.constexpr):
    """Count the events of each cell; an event's slot is its number in the cell, in any order.

    The grid of programs is (block, window) here and in the next three kernels. Events after the last window are unused
    capacity and are ignored.
    """
    window = tl.program_id(1)
    start, end = tl.load(offsets + window), tl.load(offsets + window + 1)
    i = start + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < end
    column, row = tl.load(x + i, mask=inside, other=0).to(tl.int32), tl.load(y + i, mask=inside, other=0).to(tl.int32)
    cell = window * cells + row // side * columns + column // side
    tl.store(slots + i, tl.atomic_add(size + cell, 1, mask=inside, sem="relaxed"), mask=inside)


@triton.jit(do_not_specialize=["first"])
def allocate(size, start_us, begin, histograms, pillars, counts, full, first, cells, max_events, COUNT: tl.constexpr,
             CAP: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Give each cell a part of the array of events; blocks of cells take theirs in any order.

    With COUNT, count pillars by priority; with CAP, list the cells with more than ``max_events`` in ``full``.
    """
    window = tl.program_id(1)
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(size + window * cells + cell, mask=cell < cells, other=0)
    events = tl.sum(n, 0)
    if events > 0:
        used = n > 0
        origin = tl.atomic_add(counts + 5, events, sem="relaxed")
        tl.store(begin + window * cells + cell, origin + tl.cumsum(n, 0) - n, mask=used)
        tl.atomic_add(pillars + window, tl.sum(used.to(tl.int32), 0), sem="relaxed")
        if COUNT:
            priority = pillar_priority(first, tl.load(start_us + window), cell)
            into = histograms + window * 2048 + (priority >> 21).to(tl.int32)
            tl.atomic_add(into, 1, mask=used, sem="relaxed")
        if CAP:
            entry = tl.atomic_add(counts + 4 + tl.zeros_like(n), 1, mask=n > max_events, sem="relaxed")
            tl.store(full + entry, window * cells + cell, mask=n > max_events)


@triton.jit(do_not_specialize=["first"])
def scatter(t_us, x, y, p, offsets, slots, begin, unsorted, size, start_us, histograms, pillars, listed, border, limits,
            max_pillars, first, cells, columns, side, COUNT: tl.constexpr, BLOCK: tl.constexpr,
            CELLS: tl.constexpr):  # fmt: skip
    """Write the events by cell, each into its slot.

    With COUNT, in windows with more than ``max_pillars`` pillars, find the bin of priorities that contains the limit,
    and list the priorities of its pillars in ``border``. ``limits`` are the bin and how many of its pillars stay.
    """
    window = tl.program_id(1)
    start, end = tl.load(offsets + window), tl.load(offsets + window + 1)
    i = start + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < end
    cell, event = load_events(t_us, x, y, p, i, inside, columns, side, unsorted.dtype.element_ty == tl.int64)
    origin = tl.load(begin + window * cells + cell, mask=inside, other=0)
    tl.store(unsorted + origin + tl.load(slots + i, mask=inside, other=0), event, mask=inside)
    if COUNT:
        many = tl.load(pillars + window) > max_pillars
        if many:
            bins = tl.arange(0, 2048)
            count = tl.load(histograms + window * 2048 + bins)
            found = tl.min(tl.where(tl.cumsum(count, 0) >= max_pillars, bins, 2047), 0)
            if tl.program_id(0) == 0:
                tl.store(limits + 2 * window, found)
                tl.store(limits + 2 * window + 1, max_pillars - tl.sum(tl.where(bins < found, count, 0), 0))
            key = tl.load(start_us + window)
            for block in range(tl.program_id(0), tl.cdiv(cells, CELLS), tl.num_programs(0)):
                other = block * CELLS + tl.arange(0, CELLS)
                used = tl.load(size + window * cells + other, mask=other < cells, other=0) > 0
                priority = pillar_priority(first, key, other)
                at_limit = used & ((priority >> 21).to(tl.int32) == found)
                entry = tl.atomic_add(listed + window + tl.zeros_like(other), 1, mask=at_limit, sem="relaxed")
                tl.store(border + window * cells + entry, priority.to(tl.int64), mask=at_limit)


@triton.jit(do_not_specialize=["first"])
def order(t_us, x, y, p, offsets, slots, begin, unsorted, packed, occupied, size, start_us, pillars, listed, border,
          limits, counts, max_pillars, first, cells, columns, side, COUNT: tl.constexpr, BLOCK: tl.constexpr,
          WIDTH: tl.constexpr):  # fmt: skip
    """Sort the events of each cell by time and pixel code: an event's rank is the number of lower ones in its cell.

    List the cells with events in ``occupied``. With COUNT, first empty the pillars above the limit of priorities.
    """
    window = tl.program_id(1)
    start, end = tl.load(offsets + window), tl.load(offsets + window + 1)
    i = start + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stays = i < end
    cell, event = load_events(t_us, x, y, p, i, stays, columns, side, unsorted.dtype.element_ty == tl.int64)
    slot = tl.load(slots + i, mask=stays, other=0)
    here = window * cells + cell
    n, origin = tl.load(size + here, mask=stays, other=0), tl.load(begin + here, mask=stays, other=0)
    lane = tl.arange(0, WIDTH)[None, :]
    if COUNT:
        many = tl.load(pillars + window) > max_pillars
        if many:
            limit, remaining = tl.load(limits + 2 * window), tl.load(limits + 2 * window + 1)
            priority = pillar_priority(first, tl.load(start_us + window), cell).to(tl.int64)
            its_bin = (priority >> 21).to(tl.int32)
            at_limit = stays & (its_bin == limit)
            lower = tl.zeros((BLOCK, WIDTH), tl.int32)
            if tl.max(at_limit.to(tl.int32), 0) > 0:
                others = tl.load(listed + window)
                for chunk in range(0, others, WIDTH):
                    theirs = tl.load(border + window * cells + chunk + lane, mask=chunk + lane < others, other=1 << 40)
                    lower += (theirs < priority[:, None]).to(tl.int32)
            dropped = stays & ((its_bin > limit) | (at_limit & (tl.sum(lower, 1) >= remaining)))
            once = dropped & (slot == 0)  # one event of each pillar; for the others a size of 0 changes nothing
            tl.store(size + here, 0, mask=once)
            tl.atomic_add(counts + 1, tl.sum(once.to(tl.int32), 0), sem="relaxed")
            tl.atomic_add(counts + 2, tl.sum(tl.where(once, n, 0), 0), sem="relaxed")
            stays = stays & (dropped == 0)
    leads = (stays & (slot == 0)).to(tl.int32)
    entry = tl.atomic_add(counts, tl.sum(leads, 0), sem="relaxed") + tl.cumsum(leads, 0) - leads
    tl.store(occupied + entry, here, mask=leads > 0)
    n = tl.where(stays, n, 0)
    rank = tl.zeros((BLOCK, WIDTH), tl.int32)
    for chunk in range(0, tl.max(n, 0), WIDTH):
        j = chunk + lane
        other = tl.load(unsorted + origin[:, None] + j, mask=j < n[:, None], other=0)
        lower = (other < event[:, None]) | ((other == event[:, None]) & (j < slot[:, None]))
        rank += ((j < n[:, None]) & lower).to(tl.int32)
    tl.store(packed + origin + tl.sum(rank, 1), event, mask=stays)


@triton.jit
def _later(a, b):
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["first"])
def cap_events(begin, size, packed, priority, start_us, counts, full, first, cells, max_events, BLOCK: tl.constexpr):
    """Move the events of lowest priority of each listed pillar to the front, in their order."""
    for entry in range(tl.program_id(0), tl.load(counts + 4), tl.num_programs(0)):
        cell = tl.load(full + entry)
        n = tl.load(size + cell)
        if n > max_events:  # otherwise the whole pillar has been dropped
            _cap_one(begin, size, packed, priority, start_us, counts, cell, n, first, cells, max_events, BLOCK)


@triton.jit
def _cap_one(begin, size, packed, priority, start_us, counts, cell, n, first, cells, max_events, BLOCK: tl.constexpr):
    origin = tl.load(begin + cell)
    lane = tl.arange(0, BLOCK)
    pillar = pillar_priority(first, tl.load(start_us + cell // cells), cell % cells)
    earlier = 0
    for chunk in range(0, n, BLOCK):  # compute the priorities once
        i = chunk + lane
        event = tl.load(packed + origin + i, mask=i < n, other=0)
        before = tl.load(packed + origin + i - 1, mask=(i < n) & (i > 0), other=-1)
        new = (event >> PIXEL_BITS) != (before >> PIXEL_BITS)
        since = tl.maximum(tl.associative_scan(tl.where(new, i, 0), 0, _later), earlier)
        pixel_code = (event & PIXEL_MASK).to(tl.int32)
        tl.store(priority + origin + i, event_priority(pillar, since, pixel_code).to(tl.int64), mask=i < n)
        earlier = tl.max(tl.where(i < n, since, 0), 0)
    tl.debug_barrier()
    limit = tl.full((), 0, tl.int64)
    bit = 31
    found = 0
    while (bit >= 0) & (found == 0):  # find the limit of the lowest max_events priorities bit by bit
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
        tl.store(packed + origin + slot, event, mask=stays)  # a slot that has been read already
        kept += tl.sum(stays.to(tl.int32), 0)
        tl.debug_barrier()
    tl.store(size + cell, max_events)
    tl.atomic_add(counts + 3, n - max_events)


@triton.jit
def describe(begin, size, packed, share, mean, duration_us, total, cells, side, UNIFORM: tl.constexpr,
             BLOCK: tl.constexpr):  # fmt: skip
    """Write the means of each pillar, and the weight of each event (Eq. 5 over its sum); one lane per cell.

    Events of equal times form a run and share the sum of their weights, which is known at the first event of the next
    run.
    """
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = cell < total
    n = tl.load(size + cell, mask=real, other=0)
    most = tl.max(n, 0)
    if most > 0:
        origin = tl.load(begin + cell, mask=real, other=0)
        used = n > 0
        first = tl.load(packed + origin, mask=used, other=0) >> PIXEL_BITS
        last = tl.load(packed + origin + n - 1, mask=used, other=0) >> PIXEL_BITS
        span = last - first
        even = (span == 0) | UNIFORM
        columns, rows = tl.zeros_like(n), tl.zeros_like(n)
        times = tl.zeros_like(first).to(tl.int64)
        run, now, before = tl.zeros_like(n), first, first
        coming = tl.load(packed + origin, mask=used, other=0)
        for m in range(0, most + 1):
            event = coming
            coming = tl.load(packed + origin + m + 1, mask=m + 1 < n, other=0)  # loaded while this one is processed
            time = event >> PIXEL_BITS
            pixel = ((event & PIXEL_MASK) >> 1).to(tl.int32)
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


@triton.jit
def corner(cell, cells, columns, SIDE: tl.constexpr):
    """Column and row of a pillar's corner in pixels."""
    inside = cell % cells
    return (inside % columns * SIDE).to(tl.float32), (inside // columns * SIDE).to(tl.float32)


@triton.jit
def fold_weights(weight, bias, gamma, delta, mean, variance, scale, shift, eps, channels, features,
                 CHANNELS: tl.constexpr, FEATURES: tl.constexpr):  # fmt: skip
    """Fold BatchNorm with running statistics into the linear layer."""
    c, d = tl.arange(0, CHANNELS), tl.arange(0, FEATURES)
    used = c < channels
    factor = tl.rsqrt(tl.load(variance + c, mask=used, other=1.0) + eps) * tl.load(gamma + c, mask=used, other=0.0)
    moved = tl.load(bias + c, mask=used, other=0.0) - tl.load(mean + c, mask=used, other=0.0)
    tl.store(shift + c, moved * factor + tl.load(delta + c, mask=used, other=0.0), mask=used)
    inside = used[:, None] & (d < features)[None, :]
    address = c[:, None] * features + d[None, :]
    tl.store(scale + address, tl.load(weight + address, mask=inside, other=0.0) * factor[:, None], mask=inside)


@triton.jit
def means(packed, origin, n, most, per_us, SIDE: tl.constexpr):
    """Mean column and row in the pillar and mean tau of the events of each cell, 32 events at a time."""
    lane = tl.arange(0, 32)
    columns, rows, times = tl.zeros_like(n), tl.zeros_like(n), tl.zeros_like(n).to(tl.int64)
    for chunk in range(0, most, 32):
        i = chunk + lane[None, :]
        event = tl.load(packed + origin[:, None] + i, mask=i < n[:, None], other=0)
        pixel = ((event & PIXEL_MASK) >> 1).to(tl.int32)
        columns += tl.sum(pixel % SIDE, 1)
        rows += tl.sum(pixel // SIDE, 1)
        times += tl.sum((event >> PIXEL_BITS).to(tl.int64), 1)
    count = tl.maximum(n, 1)
    mean_tau = times.to(tl.float64) / count.to(tl.float64) * per_us.to(tl.float64) - 1.0
    return columns.to(tl.float32) / count, rows.to(tl.float32) / count, mean_tau.to(tl.float32)


@triton.jit
def weights_of_features(scale, shift, c, used, height, width, SIDE: tl.constexpr, CENTER: tl.constexpr):
    """Weights of channels ``c`` for the pillar's corner and means, and for an event within its pillar."""
    D: tl.constexpr = 9 if CENTER else 7
    row = scale + c * D
    w_x, w_y = tl.load(row, mask=used, other=0.0) / width, tl.load(row + 1, mask=used, other=0.0) / height
    slope, sign = tl.load(row + 2, mask=used, other=0.0), tl.load(row + 3, mask=used, other=0.0)
    m_x, m_y = tl.load(row + 4, mask=used, other=0.0) / width, tl.load(row + 5, mask=used, other=0.0) / height
    m_tau = tl.load(row + 6, mask=used, other=0.0)
    constant = tl.load(shift + c, mask=used, other=0.0)
    across, down, slope = w_x + m_x, w_y + m_y, slope + m_tau
    if CENTER:
        c_x, c_y = tl.load(row + 7, mask=used, other=0.0) / width, tl.load(row + 8, mask=used, other=0.0) / height
        across, down, constant = across + c_x, down + c_y, constant - (c_x + c_y) * ((SIDE - 1) / 2)
    return w_x, w_y, m_x, m_y, m_tau, across, down, slope, sign, constant


@triton.jit
def forward(occupied, counts, begin, size, packed, duration_us, scale, shift, alpha, beta, image, cells, columns,
            height, width, channels, UNIFORM: tl.constexpr, SIDE: tl.constexpr, CENTER: tl.constexpr, K: tl.constexpr,
            CELLS: tl.constexpr, BLOCKS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """Write Eq. 6 and 7 into the image [cells, C] at the cells with events; nothing is written into others.

    Events of equal times form a run: their hidden values are summed, and multiplied by their weight (Eq. 5) and
    polynomials when the next time is known.
    """
    kept = tl.load(counts)
    c = tl.arange(0, CHANNELS)
    used = c < channels
    for block in range(BLOCKS):
        entry = (block * tl.num_programs(0) + tl.program_id(0)) * CELLS + tl.arange(0, CELLS)
        here = entry < kept
        if tl.min(entry, 0) < kept:
            cell = tl.load(occupied + entry, mask=here, other=0)
            n = tl.load(size + cell, mask=here, other=0)
            most = tl.max(n, 0)
            result = tl.zeros((CELLS, CHANNELS), tl.float32)
            origin = tl.load(begin + cell, mask=here, other=0)
            event = tl.load(packed + origin, mask=here, other=0)
            before = event >> PIXEL_BITS
            span = (tl.load(packed + origin + n - 1, mask=here, other=0) >> PIXEL_BITS) - before
            even = (span == 0) | UNIFORM
            share, per_span = 1.0 / tl.maximum(n, 1), 0.5 / tl.maximum(span, 1)
            per_us = 2.0 / tl.load(duration_us + cell // cells, mask=here, other=1).to(tl.float32)
            mean_x, mean_y, mean_tau = means(packed, origin, n, most, per_us, SIDE)
            x0, y0 = corner(cell, cells, columns, SIDE)
            w_x, w_y, m_x, m_y, m_tau, across, down, slope, sign, constant = weights_of_features(
                scale, shift, c, used, height, width, SIDE, CENTER
            )
            base = constant[None, :] + x0[:, None] * w_x[None, :] + y0[:, None] * w_y[None, :]
            base -= mean_x[:, None] * m_x[None, :] + mean_y[:, None] * m_y[None, :] + mean_tau[:, None] * m_tau[None, :]
            alpha_0 = tl.load(alpha + c * K, mask=used, other=0.0)
            alpha_1 = tl.load(alpha + c * K + 1, mask=used & (K > 1), other=0.0)
            alpha_2 = tl.load(alpha + c * K + 2, mask=used & (K > 2), other=0.0)
            result += tl.where(here[:, None], tl.load(beta + c, mask=used, other=0.0)[None, :], 0.0)
            run, in_run = tl.zeros((CELLS, CHANNELS), tl.float32), tl.zeros_like(n)
            for m in range(1, most + 1):
                coming = tl.load(packed + origin + m, mask=m < n, other=0)  # loaded while this event is processed
                pixel_code, time = (event & PIXEL_MASK).to(tl.int32), event >> PIXEL_BITS
                tau = time.to(tl.float32) * per_us - 1.0
                x, y = ((pixel_code >> 1) % SIDE).to(tl.float32), ((pixel_code >> 1) // SIDE).to(tl.float32)
                p = (pixel_code & 1).to(tl.float32) * 2.0 - 1.0
                value = base + x[:, None] * across[None, :] + y[:, None] * down[None, :]
                value += tau[:, None] * slope[None, :] + p[:, None] * sign[None, :]
                run += tl.where(value < 0.0, 0.0, value)  # a NaN stays one
                in_run += 1
                after = tl.where(m < n, coming >> PIXEL_BITS, time)
                closes = (m == n) | ((m < n) & (after != time))
                part = tl.where(even, share, (after - before).to(tl.float32) * per_span / in_run)
                part = tl.where(closes, part, 0.0)
                weighted = part[:, None] * alpha_0[None, :]
                if K > 1:
                    weighted += (part * tau)[:, None] * alpha_1[None, :]
                if K > 2:
                    weighted += (part * (1.5 * tau * tau - 0.5))[:, None] * alpha_2[None, :]
                if K > 3:
                    old, new = part * tau, part * (1.5 * tau * tau - 0.5)
                    for k in tl.static_range(3, K):
                        old, new = new, ((2 * k - 1) * tau * new - (k - 1) * old) / k
                        weighted += new[:, None] * tl.load(alpha + c * K + k, mask=used, other=0.0)[None, :]
                result += run * weighted
                run, in_run = tl.where(closes[:, None], 0.0, run), tl.where(closes, 0, in_run)
                before, event = tl.where(closes, time, before), coming
            address = cell[:, None].to(tl.int64) * channels + c[None, :]
            tl.store(image + address, result, mask=here[:, None] & used[None, :])


@triton.jit
def backward(begin, size, packed, share, mean, duration_us, scale, shift, alpha, image, rows, total, cells, columns,
             height, width, channels, SIDE: tl.constexpr, CENTER: tl.constexpr, K: tl.constexpr, FIRST: tl.constexpr,
             CHANNELS: tl.constexpr):  # fmt: skip
    """Sum the gradients over every n-th cell; ``image`` is the gradient of the image [cells, C].

    The gradients of four polynomials' weights are summed, from degree ``FIRST`` on.
    """
    c = tl.arange(0, CHANNELS)
    used = c < channels
    middle: tl.constexpr = (SIDE - 1) / 2
    w_x, w_y, m_x, m_y, m_tau, across, down, slope, sign, constant = weights_of_features(
        scale, shift, c, used, height, width, SIDE, CENTER
    )
    nothing = tl.zeros((CHANNELS,), tl.float32)
    of_x, of_y, of_tau, of_p, of_one, of_beta = nothing, nothing, nothing, nothing, nothing, nothing
    at_x, at_y, mean_of_x, mean_of_y, mean_of_tau = nothing, nothing, nothing, nothing, nothing
    degree_0, degree_1, degree_2, degree_3 = nothing, nothing, nothing, nothing
    for cell in range(tl.program_id(0), total, tl.num_programs(0)):
        n = tl.load(size + cell)
        if n > 0:
            origin = tl.load(begin + cell)
            event, part = tl.load(packed + origin), tl.load(share + origin)
            per_us = 2.0 / tl.load(duration_us + cell // cells).to(tl.float32)
            mean_x, mean_y = tl.load(mean + cell), tl.load(mean + total + cell)
            mean_tau = tl.load(mean + 2 * total + cell)
            x0, y0 = corner(cell, cells, columns, SIDE)
            given = tl.load(image + tl.cast(cell, tl.int64) * channels + c, mask=used, other=0.0)
            base = constant + x0 * w_x + y0 * w_y - mean_x * m_x - mean_y * m_y - mean_tau * m_tau
            here = nothing
            for m in range(1, n + 1):
                coming = tl.load(packed + origin + m, mask=m < n, other=0)  # loaded while this event is processed
                coming_part = tl.load(share + origin + m, mask=m < n, other=0.0)
                pixel_code = (event & PIXEL_MASK).to(tl.int32)
                tau = (event >> PIXEL_BITS).to(tl.float32) * per_us - 1.0
                x, y = ((pixel_code >> 1) % SIDE).to(tl.float32), ((pixel_code >> 1) // SIDE).to(tl.float32)
                p = (pixel_code & 1).to(tl.float32) * 2.0 - 1.0
                value = base + x * across + y * down + tau * slope + p * sign
                felt = given * tl.where(value < 0.0, 0.0, value)  # a NaN stays one
                old, new = 0.0 * part, part
                weighted = new * tl.load(alpha + c * K, mask=used, other=0.0)
                if FIRST == 0:
                    degree_0 += felt * new
                for k in tl.static_range(1, K):
                    old, new = new, ((2 * k - 1) * tau * new - (k - 1) * old) / k
                    weighted += new * tl.load(alpha + c * K + k, mask=used, other=0.0)
                    if k == FIRST:
                        degree_0 += felt * new
                    if k == FIRST + 1:
                        degree_1 += felt * new
                    if k == FIRST + 2:
                        degree_2 += felt * new
                    if k == FIRST + 3:
                        degree_3 += felt * new
                change = tl.where(value > 0.0, given * weighted, 0.0)
                of_x += change * (x - middle)
                of_y += change * (y - middle)
                of_tau += change * tau
                of_p += change * p
                here += change
                event, part = coming, coming_part
            of_one += here
            of_beta += given
            at_x += here * (x0 + middle)
            at_y += here * (y0 + middle)
            mean_of_x += here * (mean_x - middle)
            mean_of_y += here * (mean_y - middle)
            mean_of_tau += here * mean_tau
    out = rows + tl.program_id(0) * 16 * CHANNELS + c
    found = (
        of_x, of_y, of_tau, of_p, of_one, of_beta, at_x, at_y, mean_of_x, mean_of_y, mean_of_tau,
        degree_0, degree_1, degree_2, degree_3, nothing,
    )  # fmt: skip
    for i in tl.static_range(len(found)):
        tl.store(out + i * CHANNELS, found[i])


@triton.jit
def add_moments_of_features(begin, size, packed, duration_us, sums, total, cells, columns, SIDE: tl.constexpr,
                            CELLS: tl.constexpr):  # fmt: skip
    """Compute sums over the events of every n-th block of cells, from which all products of two features follow.

    Offsets from the pillar's mean sum to zero over the pillar: their products with values that are constant in the
    pillar vanish, and their other products are the pillar's covariance.
    """
    none = tl.zeros((CELLS,), tl.float64)  # float64, since a variance is a small difference of these sums
    s_1, s_x, s_y, s_t, s_p, s_xx, s_xy, s_yy, s_xt = none, none, none, none, none, none, none, none, none
    s_yt, s_xp, s_yp, s_tt, s_tp, c_xx, c_xy, c_yy, c_xt = none, none, none, none, none, none, none, none, none
    c_yt, c_tt, c_xp, c_yp, c_tp, m_x, m_y, m_xx, m_xy = none, none, none, none, none, none, none, none, none
    m_yy, m_xt, m_yt, m_xp, m_yp, m_x_x, m_x_y, m_y_x, m_y_y = none, none, none, none, none, none, none, none, none
    middle: tl.constexpr = (SIDE - 1) / 2
    for block in range(tl.program_id(0), tl.cdiv(total, CELLS), tl.num_programs(0)):
        cell = block * CELLS + tl.arange(0, CELLS)
        n = tl.load(size + cell, mask=cell < total, other=0)
        most = tl.max(n, 0)
        if most > 0:
            origin = tl.load(begin + cell, mask=n > 0, other=0)
            per_us = 2.0 / tl.load(duration_us + cell // cells, mask=n > 0, other=1).to(tl.float64)
            zero = tl.zeros_like(n)
            x, y, b, xx, xy, yy, xb, yb = zero, zero, zero, zero, zero, zero, zero, zero
            t, tt, xt, yt, bt = none, none, none, none, none
            coming = tl.load(packed + origin, mask=n > 0, other=0)
            for m in range(0, most):
                event = coming
                coming = tl.load(packed + origin + m + 1, mask=m + 1 < n, other=0)
                inside = m < n
                pixel_code = (event & PIXEL_MASK).to(tl.int32)  # 0 after the last event
                column, line, on = (pixel_code >> 1) % SIDE, (pixel_code >> 1) // SIDE, pixel_code & 1
                tau = tl.where(inside, (event >> PIXEL_BITS).to(tl.float64) * per_us - 1.0, 0.0)
                x += column
                y += line
                b += on
                xx += column * column
                xy += column * line
                yy += line * line
                xb += column * on
                yb += line * on
                t += tau
                tt += tau * tau
                xt += tau * column
                yt += tau * line
                bt += tau * on
            count = tl.maximum(n, 1).to(tl.float64)
            one, x, y, b = n.to(tl.float64), x.to(tl.float64), y.to(tl.float64), b.to(tl.float64)
            xx, xy, yy = xx.to(tl.float64), xy.to(tl.float64), yy.to(tl.float64)
            p, xp, yp, tp = 2.0 * b - one, 2.0 * xb - x, 2.0 * yb - y, 2.0 * bt - t
            x0, y0 = corner(cell, cells, columns, SIDE)
            x0, y0 = x0.to(tl.float64), y0.to(tl.float64)
            ax, ay = x - middle * one, y - middle * one  # from the pillar's centre
            axx, ayx = xx - middle * x, xy - middle * x
            axy, ayy = xy - middle * y, yy - middle * y
            s_1 += one
            s_x += x0 * one + x
            s_y += y0 * one + y
            s_t += t
            s_p += p
            s_xx += x0 * (x0 * one + 2.0 * x) + xx
            s_xy += x0 * (y0 * one + y) + y0 * x + xy
            s_yy += y0 * (y0 * one + 2.0 * y) + yy
            s_xt += x0 * t + xt
            s_yt += y0 * t + yt
            s_xp += x0 * p + xp
            s_yp += y0 * p + yp
            s_tt += tt
            s_tp += tp
            c_xx += xx - x * x / count
            c_xy += xy - x * y / count
            c_yy += yy - y * y / count
            c_xt += xt - x * t / count
            c_yt += yt - y * t / count
            c_tt += tt - t * t / count
            c_xp += xp - x * p / count
            c_yp += yp - y * p / count
            c_tp += tp - t * p / count
            m_x += ax
            m_y += ay
            m_xx += axx - middle * ax
            m_xy += axy - middle * ax
            m_yy += ayy - middle * ay
            m_xt += xt - middle * t
            m_yt += yt - middle * t
            m_xp += xp - middle * p
            m_yp += yp - middle * p
            m_x_x += x0 * ax + axx
            m_x_y += y0 * ax + axy
            m_y_x += x0 * ay + ayx
            m_y_y += y0 * ay + ayy
    found = (
        s_1, s_x, s_y, s_t, s_p, s_xx, s_xy, s_yy, s_xt, s_yt, s_xp, s_yp, s_tt, s_tp,
        c_xx, c_xy, c_yy, c_xt, c_yt, c_tt, c_xp, c_yp, c_tp,
        m_x, m_y, m_xx, m_xy, m_yy, m_xt, m_yt, m_xp, m_yp, m_x_x, m_x_y, m_y_x, m_y_y,
    )  # fmt: skip
    for i in tl.static_range(len(found)):
        tl.store(sums + tl.program_id(0) * len(found) + i, tl.sum(found[i], 0))
