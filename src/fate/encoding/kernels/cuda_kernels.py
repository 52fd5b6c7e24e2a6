"""Triton kernels from pillars to the pseudo-image and back.

A program has some cells and all channels: it goes through the first event of every cell, then the second, and so on.
Where gradients are summed an event's ``features`` (Eq. 1), ``hidden`` value (Eq. 2) and ``mixture`` of polynomials are
made one by one; ``forward`` has them folded together.
"""

import triton
import triton.language as tl

from fate.encoding.kernels.cuda_binning import PLACE_BITS, PLACE_MASK

#: Rows of what ``backward`` sums for each channel: nine features (seven without the centre), shift, beta; padding.
ROWS = 16


@triton.jit
def corner(cell, cells, columns, SIDE: tl.constexpr):
    """Column and row of a pillar's corner in pixels."""
    inside = cell % cells
    return (inside % columns * SIDE).to(tl.float32), (inside // columns * SIDE).to(tl.float32)


@triton.jit
def features(event, per_us, x0, y0, mean_x, mean_y, mean_tau, height, width, SIDE: tl.constexpr):
    """x, y, tau, p, offsets from the mean (x, y, tau) and from the centre (x, y) of one event of each cell."""
    place = (event & PLACE_MASK).to(tl.int32)
    tau = (event >> PLACE_BITS).to(tl.float32) * per_us - 1.0
    column, row = (place >> 1) % SIDE, (place >> 1) // SIDE
    x, y, p = column.to(tl.float32), row.to(tl.float32), (place & 1).to(tl.float32) * 2.0 - 1.0
    middle: tl.constexpr = (SIDE - 1) / 2
    return ((x0 + x) / width, (y0 + y) / height, tau, p, (x - mean_x) / width, (y - mean_y) / height, tau - mean_tau,
            (x - middle) / width, (y - middle) / height)  # fmt: skip


@triton.jit
def hidden(f0, f1, f2, f3, f4, f5, f6, f7, f8, scale, shift, c, used, D: tl.constexpr):
    """scale · features + shift, [cells, C], before ReLU."""
    value = tl.load(shift + c, mask=used, other=0.0)[None, :]
    value = value + f0[:, None] * tl.load(scale + c * D, mask=used, other=0.0)[None, :]
    value = value + f1[:, None] * tl.load(scale + c * D + 1, mask=used, other=0.0)[None, :]
    value = value + f2[:, None] * tl.load(scale + c * D + 2, mask=used, other=0.0)[None, :]
    value = value + f3[:, None] * tl.load(scale + c * D + 3, mask=used, other=0.0)[None, :]
    value = value + f4[:, None] * tl.load(scale + c * D + 4, mask=used, other=0.0)[None, :]
    value = value + f5[:, None] * tl.load(scale + c * D + 5, mask=used, other=0.0)[None, :]
    value = value + f6[:, None] * tl.load(scale + c * D + 6, mask=used, other=0.0)[None, :]
    if D == 9:
        value = value + f7[:, None] * tl.load(scale + c * D + 7, mask=used, other=0.0)[None, :]
        value = value + f8[:, None] * tl.load(scale + c * D + 8, mask=used, other=0.0)[None, :]
    return value


@triton.jit
def mixture(tau, share, alpha, c, used, K: tl.constexpr):
    """share · Σ_k alpha_k L_k(tau), [cells, C]."""
    old, new = tl.zeros_like(tau), share
    mixed = new[:, None] * tl.load(alpha + c * K, mask=used, other=0.0)[None, :]
    for k in tl.static_range(1, K):
        old, new = new, ((2 * k - 1) * tau * new - (k - 1) * old) / k
        mixed = mixed + new[:, None] * tl.load(alpha + c * K + k, mask=used, other=0.0)[None, :]
    return mixed


@triton.jit
def fold_weights(weight, bias, gamma, delta, mean, variance, scale, shift, eps, channels, features,
                 CHANNELS: tl.constexpr, FEATURES: tl.constexpr):  # fmt: skip
    """Linear layer and BatchNorm with running statistics as one affine map."""
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
    """Mean column and row in the pillar and mean tau of each cell's events, 32 of them at a time."""
    lane = tl.arange(0, 32)
    columns, rows, times = tl.zeros_like(n), tl.zeros_like(n), tl.zeros_like(n).to(tl.int64)
    for chunk in range(0, most, 32):
        i = chunk + lane[None, :]
        event = tl.load(packed + origin[:, None] + i, mask=i < n[:, None], other=0)
        pixel = ((event & PLACE_MASK) >> 1).to(tl.int32)
        columns += tl.sum(pixel % SIDE, 1)
        rows += tl.sum(pixel // SIDE, 1)
        times += tl.sum((event >> PLACE_BITS).to(tl.int64), 1)
    count = tl.maximum(n, 1)
    mean_tau = times.to(tl.float64) / count.to(tl.float64) * per_us.to(tl.float64) - 1.0
    return columns.to(tl.float32) / count, rows.to(tl.float32) / count, mean_tau.to(tl.float32)


@triton.jit
def forward(begin, size, packed, duration_us, scale, shift, alpha, beta, image, total, cells, columns, height, width,
            channels, UNIFORM: tl.constexpr, SIDE: tl.constexpr, CENTER: tl.constexpr, K: tl.constexpr,
            CELLS: tl.constexpr, BLOCKS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """The image [cells, C]: Eq. 6 and 7 where a cell has events, zero elsewhere.

    An event's hidden value is ``base`` + across · column + down · row + slope · tau + sign · p, with one base a pillar.
    Events of equal times form a run: their hidden values are summed, and get their weight (Eq. 5) and polynomials when
    the next time is known.
    """
    for block in range(BLOCKS):
        cell = (tl.program_id(0) * BLOCKS + block) * CELLS + tl.arange(0, CELLS)
        c = tl.arange(0, CHANNELS)
        used = c < channels
        n = tl.load(size + cell, mask=cell < total, other=0)
        result = tl.zeros((CELLS, CHANNELS), tl.float32)
        most = tl.max(n, 0)
        if most > 0:
            here = n > 0
            origin = tl.load(begin + cell, mask=here, other=0)
            event = tl.load(packed + origin, mask=here, other=0)
            before = event >> PLACE_BITS
            span = (tl.load(packed + origin + n - 1, mask=here, other=0) >> PLACE_BITS) - before
            even = (span == 0) | UNIFORM
            share, per_span = 1.0 / tl.maximum(n, 1), 0.5 / tl.maximum(span, 1)
            per_us = 2.0 / tl.load(duration_us + cell // cells, mask=here, other=1).to(tl.float32)
            mean_x, mean_y, mean_tau = means(packed, origin, n, most, per_us, SIDE)
            x0, y0 = corner(cell, cells, columns, SIDE)
            D: tl.constexpr = 9 if CENTER else 7
            row = scale + c * D
            w_x, w_y = tl.load(row, mask=used, other=0.0) / width, tl.load(row + 1, mask=used, other=0.0) / height
            slope, sign = tl.load(row + 2, mask=used, other=0.0), tl.load(row + 3, mask=used, other=0.0)
            m_x, m_y = tl.load(row + 4, mask=used, other=0.0) / width, tl.load(row + 5, mask=used, other=0.0) / height
            m_tau = tl.load(row + 6, mask=used, other=0.0)
            constant = tl.load(shift + c, mask=used, other=0.0)
            across, down, slope = w_x + m_x, w_y + m_y, slope + m_tau
            if CENTER:
                c_x, c_y = (
                    tl.load(row + 7, mask=used, other=0.0) / width,
                    tl.load(row + 8, mask=used, other=0.0) / height,
                )
                across, down, constant = across + c_x, down + c_y, constant - (c_x + c_y) * ((SIDE - 1) / 2)
            base = constant[None, :] + x0[:, None] * w_x[None, :] + y0[:, None] * w_y[None, :]
            base -= mean_x[:, None] * m_x[None, :] + mean_y[:, None] * m_y[None, :] + mean_tau[:, None] * m_tau[None, :]
            alpha_0 = tl.load(alpha + c * K, mask=used, other=0.0)
            alpha_1 = tl.load(alpha + c * K + 1, mask=used & (K > 1), other=0.0)
            alpha_2 = tl.load(alpha + c * K + 2, mask=used & (K > 2), other=0.0)
            result += tl.where(here[:, None], tl.load(beta + c, mask=used, other=0.0)[None, :], 0.0)
            run, in_run = tl.zeros((CELLS, CHANNELS), tl.float32), tl.zeros_like(n)
            for m in range(1, most + 1):
                coming = tl.load(packed + origin + m, mask=m < n, other=0)  # on its way while this event is worked on
                place, time = (event & PLACE_MASK).to(tl.int32), event >> PLACE_BITS
                tau = time.to(tl.float32) * per_us - 1.0
                x, y = ((place >> 1) % SIDE).to(tl.float32), ((place >> 1) // SIDE).to(tl.float32)
                p = (place & 1).to(tl.float32) * 2.0 - 1.0
                value = base + x[:, None] * across[None, :] + y[:, None] * down[None, :]
                value += tau[:, None] * slope[None, :] + p[:, None] * sign[None, :]
                run += tl.where(value < 0.0, 0.0, value)  # a NaN stays one
                in_run += 1
                after = tl.where(m < n, coming >> PLACE_BITS, time)
                closes = (m == n) | ((m < n) & (after != time))
                part = tl.where(even, share, (after - before).to(tl.float32) * per_span / in_run)
                part = tl.where(closes, part, 0.0)
                mixed = part[:, None] * alpha_0[None, :]
                if K > 1:
                    mixed += (part * tau)[:, None] * alpha_1[None, :]
                if K > 2:
                    mixed += (part * (1.5 * tau * tau - 0.5))[:, None] * alpha_2[None, :]
                if K > 3:
                    old, new = part * tau, part * (1.5 * tau * tau - 0.5)
                    for k in tl.static_range(3, K):
                        old, new = new, ((2 * k - 1) * tau * new - (k - 1) * old) / k
                        mixed += new[:, None] * tl.load(alpha + c * K + k, mask=used, other=0.0)[None, :]
                result += run * mixed
                run, in_run = tl.where(closes[:, None], 0.0, run), tl.where(closes, 0, in_run)
                before, event = tl.where(closes, time, before), coming
        address = cell[:, None].to(tl.int64) * channels + c[None, :]
        tl.store(image + address, result, mask=(cell < total)[:, None] & used[None, :])


@triton.jit
def backward(begin, size, packed, share, mean, duration_us, scale, shift, alpha, beta, image, rows, mixed_rows, total,
             cells, columns, height, width, channels, SIDE: tl.constexpr, CENTER: tl.constexpr, K: tl.constexpr,
             DEGREE: tl.constexpr, CELLS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """Gradients summed over every n-th block of cells; ``image`` is the image's gradient [cells, C]."""
    c = tl.arange(0, CHANNELS)
    used = c < channels
    D: tl.constexpr = 9 if CENTER else 7
    d0 = tl.zeros((CHANNELS,), tl.float32)
    d1, d2, d3, d4, d5, d6, d7, d8, d9, d10 = d0, d0, d0, d0, d0, d0, d0, d0, d0, d0
    by_degree = tl.zeros((CHANNELS, DEGREE), tl.float32)
    degree = tl.arange(0, DEGREE)
    for block in range(tl.program_id(0), tl.cdiv(total, CELLS), tl.num_programs(0)):
        cell = block * CELLS + tl.arange(0, CELLS)
        n = tl.load(size + cell, mask=cell < total, other=0)
        most = tl.max(n, 0)
        if most > 0:
            here = n > 0
            origin = tl.load(begin + cell, mask=here, other=0)
            per_us = 2.0 / tl.load(duration_us + cell // cells, mask=here, other=1).to(tl.float32)
            mean_x = tl.load(mean + cell, mask=here, other=0.0)
            mean_y = tl.load(mean + total + cell, mask=here, other=0.0)
            mean_tau = tl.load(mean + 2 * total + cell, mask=here, other=0.0)
            x0, y0 = corner(cell, cells, columns, SIDE)
            address = cell[:, None].to(tl.int64) * channels + c[None, :]
            given = tl.load(image + address, mask=here[:, None] & used[None, :], other=0.0)
            nothing = tl.zeros((CELLS, CHANNELS), tl.float32)
            s_x, s_y, s_tau, s_p, s_1 = nothing, nothing, nothing, nothing, nothing
            moment = tl.zeros((CELLS, CHANNELS, DEGREE), tl.float32)
            for m in range(0, most):
                event = tl.load(packed + origin + m, mask=m < n, other=0)
                part = tl.load(share + origin + m, mask=m < n, other=0.0)
                f0, f1, f2, f3, f4, f5, f6, f7, f8 = features(
                    event, per_us, x0, y0, mean_x, mean_y, mean_tau, height, width, SIDE
                )
                value = hidden(f0, f1, f2, f3, f4, f5, f6, f7, f8, scale, shift, c, used, D)
                change = tl.where(value > 0.0, given * mixture(f2, part, alpha, c, used, K), 0.0)
                value = tl.where(value < 0.0, 0.0, value)
                old, new = tl.zeros_like(part), part
                basis = tl.where(degree[None, :] == 0, new[:, None], 0.0)
                for k in tl.static_range(1, K):
                    old, new = new, ((2 * k - 1) * f2 * new - (k - 1) * old) / k
                    basis = tl.where(degree[None, :] == k, new[:, None], basis)
                moment += value[:, :, None] * basis[:, None, :]
                s_x += change * f7[:, None]  # offsets from the centre stand for the event's place in the pillar
                s_y += change * f8[:, None]
                s_tau += change * f2[:, None]
                s_p += change * f3[:, None]
                s_1 += change
            middle: tl.constexpr = (SIDE - 1) / 2
            d0 += tl.sum(s_x + s_1 * ((x0 + middle) / width)[:, None], 0)
            d1 += tl.sum(s_y + s_1 * ((y0 + middle) / height)[:, None], 0)
            d2 += tl.sum(s_tau, 0)
            d3 += tl.sum(s_p, 0)
            d4 += tl.sum(s_x - s_1 * ((mean_x - middle) / width)[:, None], 0)
            d5 += tl.sum(s_y - s_1 * ((mean_y - middle) / height)[:, None], 0)
            d6 += tl.sum(s_tau - s_1 * mean_tau[:, None], 0)
            d7 += tl.sum(s_x, 0)
            d8 += tl.sum(s_y, 0)
            d9 += tl.sum(s_1, 0)
            d10 += tl.sum(given, 0)
            by_degree += tl.sum(moment * given[:, :, None], 0)
    out = rows + tl.program_id(0) * 16 * CHANNELS + c
    tl.store(out, d0)
    tl.store(out + CHANNELS, d1)
    tl.store(out + 2 * CHANNELS, d2)
    tl.store(out + 3 * CHANNELS, d3)
    tl.store(out + 4 * CHANNELS, d4)
    tl.store(out + 5 * CHANNELS, d5)
    tl.store(out + 6 * CHANNELS, d6)
    tl.store(out + 7 * CHANNELS, d7)
    tl.store(out + 8 * CHANNELS, d8)
    tl.store(out + 9 * CHANNELS, d9)
    tl.store(out + 10 * CHANNELS, d10)
    out = mixed_rows + tl.program_id(0) * CHANNELS * DEGREE + c[:, None] * DEGREE + degree[None, :]
    tl.store(out, by_degree)


@triton.jit
def add_moments_of_features(begin, size, packed, mean, duration_us, parts, total, cells, columns, height, width,
                            SIDE: tl.constexpr, CENTER: tl.constexpr, CELLS: tl.constexpr):  # fmt: skip
    """Products of two features, [16, 16], summed over every n-th block of cells; feature D is 1."""
    d = tl.arange(0, 16)
    sums = tl.zeros((16, 16), tl.float64)  # a variance is a small difference of these
    for block in range(tl.program_id(0), tl.cdiv(total, CELLS), tl.num_programs(0)):
        cell = block * CELLS + tl.arange(0, CELLS)
        n = tl.load(size + cell, mask=cell < total, other=0)
        most = tl.max(n, 0)
        if most > 0:
            here = n > 0
            origin = tl.load(begin + cell, mask=here, other=0)
            per_us = 2.0 / tl.load(duration_us + cell // cells, mask=here, other=1).to(tl.float32)
            mean_x = tl.load(mean + cell, mask=here, other=0.0)
            mean_y = tl.load(mean + total + cell, mask=here, other=0.0)
            mean_tau = tl.load(mean + 2 * total + cell, mask=here, other=0.0)
            x0, y0 = corner(cell, cells, columns, SIDE)
            for m in range(0, most):
                event = tl.load(packed + origin + m, mask=m < n, other=0)
                f0, f1, f2, f3, f4, f5, f6, f7, f8 = features(
                    event, per_us, x0, y0, mean_x, mean_y, mean_tau, height, width, SIDE
                )
                one = (m < n).to(tl.float32)
                row = tl.where(d[None, :] == 0, f0[:, None], 0.0)
                row = tl.where(d[None, :] == 1, f1[:, None], row)
                row = tl.where(d[None, :] == 2, f2[:, None], row)
                row = tl.where(d[None, :] == 3, f3[:, None], row)
                row = tl.where(d[None, :] == 4, f4[:, None], row)
                row = tl.where(d[None, :] == 5, f5[:, None], row)
                row = tl.where(d[None, :] == 6, f6[:, None], row)
                if CENTER:
                    row = tl.where(d[None, :] == 7, f7[:, None], row)
                    row = tl.where(d[None, :] == 8, f8[:, None], row)
                    row = tl.where(d[None, :] == 9, 1.0, row)
                else:
                    row = tl.where(d[None, :] == 7, 1.0, row)
                row = (row * one[:, None]).to(tl.float64)
                sums += tl.sum(row[:, :, None] * row[:, None, :], 0)
    tl.store(parts + tl.program_id(0) * 256 + d[:, None] * 16 + d[None, :], sums)
