"""The compiled loops of Pillar Encoding on the CPU: events to pillars, pillars to image, and gradients.

Channels are innermost and contiguous, so that each loop over them becomes vector instructions. Those loops call no
functions, since passing an array costs as much as a few additions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled, compiled_finite_sums, compiled_sums, inlined
from fate.encoding.sampling import M32, event_priority_u32, hash_u32

Floats = NDArray[Any]


class Folded(NamedTuple):
    """The weights in the form of the loops (see ``cpu_kernels.folding``); C is the last axis of all."""

    base: Floats  #: [6, C] to be multiplied with ``Described.shape``
    table: Floats  #: [pixels, C]
    slope: Floats  #: [C] per tau
    alpha: Floats  #: [K, C]
    beta: Floats  #: [C]


class Part(NamedTuple):
    """Some pillars of one window."""

    cell: NDArray[np.int32]
    begin: NDArray[np.int64]
    size: NDArray[np.int32]
    t_us: NDArray[np.int32]
    pixel: NDArray[np.int16]
    column: NDArray[np.int64]  #: of each pixel code
    row: NDArray[np.int64]  #: of each pixel code
    side: int
    columns: int  #: pillars in a row of the grid
    per_us: float  #: tau per µs


class Described(NamedTuple):
    """Times, weights and means of some pillars and their events, which do not depend on the channel."""

    tau: Floats  #: [E]
    basis: Floats  #: [E, K] an event's share in its pillar (Eq. 5 over its sum) times L_k(tau)
    shape: Floats  #: [J, 6] 1, column and row of the pillar's corner, less the mean column, row and tau of its events


@compiled
def bin_window(events: tuple[NDArray[Any], ...], tables: tuple[NDArray[Any], ...], cells: int, max_pillars: int,
                max_events: int, key: np.uint32, offset: int, kept: tuple[NDArray[Any], ...],
                ) -> NDArray[np.int64]:  # fmt: skip
    """Sort the events of one window, (t, x, y, p), into ``kept``, (cell, begin, size, t, pixel): a counting sort.

    Returns pillars, pillars dropped, events dropped with them, events dropped from full pillars.
    """
    t, x, y, p = events
    x_cell, y_cell, x_pixel, y_pixel = tables
    cell, begin, size, t_us, pixel = kept
    total = len(t)
    count = np.zeros(cells, np.int32)
    where = np.empty(total, np.int32)
    for i in range(total):
        c = y_cell[y[i]] + x_cell[x[i]]
        where[i] = c
        count[c] += 1
    result = np.zeros(4, np.int64)
    for c in range(cells):
        if count[c]:
            result[0] += 1
    limit = pillar_limit(count, result[0], max_pillars, key)
    free, number = 0, 0
    for c in range(cells):  # from now on count holds where a cell's next event goes
        here = count[c]
        if here:
            if hash_u32(np.uint32(np.uint32(c) ^ key)) <= limit:
                cell[number], begin[number], size[number] = c, offset + free, here
                count[c] = free
                free += here
                number += 1
            else:
                count[c] = -1
                result[1] += 1
                result[2] += here
    for i in range(total):
        c = where[i]
        slot = count[c]
        if slot >= 0:
            t_us[slot] = t[i]
            pixel[slot] = y_pixel[y[i]] + x_pixel[x[i]] + p[i]
            count[c] = slot + 1
    if max_events:
        for j in range(number):
            if size[j] > max_events:
                first = begin[j] - offset
                priority = hash_u32(np.uint32(np.uint32(cell[j]) ^ key))
                keep_lowest(t_us[first : first + size[j]], pixel[first : first + size[j]], priority, max_events)
                result[3] += size[j] - max_events
                size[j] = max_events
    return result


@compiled
def pillar_limit(count: NDArray[np.int32], filled: int, max_pillars: int, key: np.uint32) -> np.uint32:
    """The highest priority of a pillar that the cap keeps; ``filled`` cells of ``count`` have events."""
    if not max_pillars or filled <= max_pillars:
        return np.uint32(M32)
    priority = np.empty(filled, np.uint32)
    index = 0
    for c in range(len(count)):
        if count[c]:
            priority[index] = hash_u32(np.uint32(np.uint32(c) ^ key))
            index += 1
    return kth_lowest(priority, max_pillars)


@compiled
def kth_lowest(priority: NDArray[np.uint32], most: int) -> np.uint32:
    """A limit such that ``most`` priorities are at or below it (more if several equal it), found bit by bit."""
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
def keep_lowest(t_us: NDArray[np.int32], pixel: NDArray[np.int16], pillar: np.uint32, most: int) -> None:
    """Move the ``most`` events of a pillar with the lowest priorities to the front; their order stays."""
    events = len(t_us)
    priority = np.empty(events, np.uint32)
    earlier = 0
    for i in range(events):
        if i and t_us[i] != t_us[i - 1]:
            earlier = i
        priority[i] = event_priority_u32(pillar, earlier, pixel[i])
    limit = kth_lowest(priority, most)
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
            t_us[kept], pixel[kept] = t_us[i], pixel[i]
            kept += 1


@compiled_finite_sums
def describe(part: Part, uniform: bool, tau: Floats, basis: Floats, shape: Floats) -> None:
    """Fill in ``Described``; events are counted from the first of ``part``.

    Events of equal times share their weights of Eq. 5. A pillar with a single time has uniform weights.
    """
    cell, begin, size, t_us, pixel, column, row, side, columns, per_us = part
    degree, origin = basis.shape[1], begin[0]
    for j in range(len(cell)):
        first, n = begin[j], size[j]
        span = t_us[first + n - 1] - t_us[first]
        even = uniform or span == 0
        per_span = 0.5 / max(span, 1)
        across, down, times = 0, 0, 0
        i = 0
        while i < n:
            now, end = t_us[first + i], i + 1
            while end < n and t_us[first + end] == now:
                end += 1
            if even:
                share = 1.0 / n
            else:
                before = t_us[first + i - 1] if i > 0 else now
                after = t_us[first + end] if end < n else now
                share = (after - before) * per_span
                if end > i + 1:
                    share /= end - i
            x = now * per_us - 1.0
            times += now * (end - i)
            for m in range(first + i, first + end):
                across += column[pixel[m]]
                down += row[pixel[m]]
                m_ = m - origin
                tau[m_], basis[m_, 0] = x, share
                if degree > 1:
                    basis[m_, 1] = share * x
                if degree > 2:
                    basis[m_, 2] = share * (1.5 * x * x - 0.5)
            if degree > 3:
                old, new = x, 1.5 * x * x - 0.5
                for k in range(2, degree - 1):
                    old, new = new, ((2 * k + 1) * x * new - k * old) / (k + 1)
                    for m in range(first + i, first + end):
                        basis[m - origin, k + 1] = share * new
            i = end
        shape[j, 0], shape[j, 1], shape[j, 2] = 1.0, cell[j] % columns * side, cell[j] // columns * side
        shape[j, 3], shape[j, 4], shape[j, 5] = -across / n, -down / n, 1.0 - times / n * per_us


@compiled_finite_sums
def forward(part: Part, described: Described, folded: Folded, image: Floats, start: int, stop: int) -> None:
    """Write cells ``start`` to ``stop`` of ``image`` [cells, C]; cells without a pillar become zero.

    Eq. 6 and 7: beta + Σ_events relu(hidden) · Σ_k alpha_k basis_k.
    """
    cell, begin, size, _, pixel, _, _, _, _, _ = part
    tau, basis, shape = described
    base_of, table, slope, alpha, beta = folded
    channels, degree, origin = len(beta), len(alpha), begin[0]
    base, mix = np.empty_like(beta), np.empty_like(beta)
    zero = base.dtype.type(0)
    free = start
    for j in range(len(cell)):
        here, first, n = cell[j], begin[j] - origin, size[j]
        if free < here:
            image[free:here] = zero
        free = here + 1
        f1, f2, f3, f4, f5 = shape[j, 1], shape[j, 2], shape[j, 3], shape[j, 4], shape[j, 5]
        for c in range(channels):
            base[c] = (
                base_of[0, c] + base_of[1, c] * f1 + base_of[2, c] * f2
                + base_of[3, c] * f3 + base_of[4, c] * f4 + base_of[5, c] * f5
            )  # fmt: skip
            image[here, c] = beta[c]
        for m in range(first, first + n):
            at, x = np.intp(pixel[m + origin]), tau[m]
            for k in range(degree):
                value = basis[m, k]
                for c in range(channels):
                    mix[c] = alpha[k, c] * value + (mix[c] if k else zero)
            for c in range(channels):
                image[here, c] += max(base[c] + table[at, c] + slope[c] * x, zero) * mix[c]
    image[free:stop] = zero


@compiled
def forward_max(part: Part, described: Described, folded: Folded, image: Floats, start: int, stop: int) -> None:
    """``forward`` for max pooling: the largest hidden value, or 0."""
    cell, begin, size, _, pixel, _, _, _, _, _ = part
    tau, _, shape = described
    base_of, table, slope, _, _ = folded
    origin = begin[0]
    image[start:stop] = 0
    for j in range(len(cell)):
        here = cell[j]
        for c in range(len(slope)):
            base = slope.dtype.type(0)
            for f in range(6):
                base += base_of[f, c] * shape[j, f]
            for m in range(begin[j] - origin, begin[j] - origin + size[j]):
                image[here, c] = max(image[here, c], base + table[pixel[m + origin], c] + slope[c] * tau[m])


@compiled_sums
def backward(part: Part, described: Described, folded: Folded, image: Floats, into: Folded) -> None:
    """Add the gradients of some pillars to ``into`` (float64), given the gradient [cells, C] of the image."""
    cell, begin, size, _, pixel, _, _, _, _, _ = part
    tau, basis, shape = described
    base_of, table, slope, alpha, beta = folded
    base_into, table_into, slope_into, alpha_into, beta_into = into
    channels, degree, origin = len(beta), len(alpha), begin[0]
    base, mix, hidden = np.empty_like(beta), np.empty_like(beta), np.empty_like(beta)
    total, sloped, moment = np.empty(channels), np.empty(channels), np.empty(alpha.shape)
    zero = base.dtype.type(0)
    for j in range(len(cell)):
        here, first, n = cell[j], begin[j] - origin, size[j]
        for c in range(channels):
            base[c] = zero
            total[c] = sloped[c] = 0.0
        for f in range(6):
            factor = shape[j, f]
            for c in range(channels):
                base[c] += base_of[f, c] * factor
        for k in range(degree):
            for c in range(channels):
                moment[k, c] = 0.0
        for m in range(first, first + n):
            at, x = np.intp(pixel[m + origin]), tau[m]
            for k in range(degree):
                value = basis[m, k]
                for c in range(channels):
                    mix[c] = alpha[k, c] * value + (mix[c] if k else zero)
            for c in range(channels):
                hidden[c] = max(base[c] + table[at, c] + slope[c] * x, zero)
            for k in range(degree):
                value = basis[m, k]
                for c in range(channels):
                    moment[k, c] += hidden[c] * value
            for c in range(channels):
                mix[c] = image[here, c] * mix[c] if hidden[c] > zero else zero
            for c in range(channels):
                total[c] += mix[c]
                sloped[c] += mix[c] * x
            for c in range(channels):
                table_into[at, c] += mix[c]
        for f in range(6):
            factor = shape[j, f]
            for c in range(channels):
                base_into[f, c] += total[c] * factor
        for c in range(channels):
            slope_into[c] += sloped[c]
            beta_into[c] += image[here, c]
        for k in range(degree):
            for c in range(channels):
                alpha_into[k, c] += image[here, c] * moment[k, c]


@compiled
def backward_max(part: Part, described: Described, folded: Folded, image: Floats, into: Folded) -> None:
    """``backward`` for max pooling: the gradient goes to the first event that has the maximum, if it is above 0."""
    cell, begin, size, _, pixel, _, _, _, _, _ = part
    tau, _, shape = described
    origin = begin[0]
    for j in range(len(cell)):
        for c in range(len(folded.beta)):
            base, best, winner = 0.0, 0.0, -1
            for f in range(6):
                base += folded.base[f, c] * shape[j, f]
            for m in range(begin[j] - origin, begin[j] - origin + size[j]):
                hidden = base + folded.table[pixel[m + origin], c] + folded.slope[c] * tau[m]
                if hidden > best:
                    best, winner = hidden, m
            if winner >= 0:
                change = image[cell[j], c]
                into.table[pixel[winner + origin], c] += change
                into.slope[c] += change * tau[winner]
                for f in range(6):
                    into.base[f, c] += change * shape[j, f]


@inlined
def means(part: Part, j: int) -> tuple[float, float, float]:
    """Mean column and row within pillar j, and mean tau."""
    columns, rows, times = 0, 0, 0
    for i in range(part.begin[j], part.begin[j] + part.size[j]):
        pixel = part.pixel[i]
        columns += part.column[pixel]
        rows += part.row[pixel]
        times += part.t_us[i]
    n = part.size[j]
    return columns / n, rows / n, times / n * part.per_us - 1.0


@compiled
def add_moments_of_features(part: Part, height: int, width: int, center_offsets: bool, sums: Floats) -> None:
    """Products of two features, summed over the events of some pillars, into ``sums`` [D + 1, D + 1]; the last is 1."""
    features = len(sums)
    f = np.ones(features)
    middle = (part.side - 1) / 2
    for j in range(len(part.cell)):
        column, row, mean_tau = means(part, j)
        x0, y0 = part.cell[j] % part.columns * part.side, part.cell[j] // part.columns * part.side
        for i in range(part.begin[j], part.begin[j] + part.size[j]):
            pixel = part.pixel[i]
            x, y, tau = part.column[pixel], part.row[pixel], part.t_us[i] * part.per_us - 1.0
            f[0], f[1], f[2], f[3] = (x0 + x) / width, (y0 + y) / height, tau, 2.0 * (pixel & 1) - 1.0
            f[4], f[5], f[6] = (x - column) / width, (y - row) / height, tau - mean_tau
            if center_offsets:
                f[7], f[8] = (x - middle) / width, (y - middle) / height
            for a in range(features):
                for b in range(a + 1):
                    sums[a, b] += f[a] * f[b]
    for a in range(features):
        for b in range(a):
            sums[b, a] = sums[a, b]
