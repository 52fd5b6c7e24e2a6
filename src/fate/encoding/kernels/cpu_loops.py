"""The compiled loops of ``cpu_kernels``: events to pillars, pillars to image, and gradients.

Channels are innermost and contiguous, so that each loop over them is compiled to vector instructions. These loops call
no functions, since passing an array takes as long as a few additions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled, compiled_finite_sums, compiled_sums
from fate.encoding.sampling import M32, event_priority_u32, hash_u32

Floats = NDArray[Any]
#: Relative costs of an event, a pillar and an empty cell.
EVENT, PILLAR, EMPTY = 5, 16, 1


class Folded(NamedTuple):
    """The weights as base, table and slope (see ``cpu_kernels``); C is the last axis of all."""

    base: Floats  #: [6, C] factors of ``Described.shape``
    table: Floats  #: [pixels, C]
    slope: Floats  #: [C] factor of tau
    alpha: Floats  #: [K, C]
    beta: Floats  #: [C]


class Tables(NamedTuple):
    """Lookup tables for events; each entry holds two numbers, the first in the upper 32 bits.

    A pixel code is (row in pillar × side + column in pillar) × 2 + polarity. The pixel code and the cell of an event
    are the sums of its entries in ``x`` and ``y``, plus the polarity.
    """

    x: NDArray[np.int64]  #: [W] for each column: part of the pixel code, part of the cell
    y: NDArray[np.int64]  #: [H] for each row: part of the pixel code, part of the cell
    pixel: NDArray[np.int64]  #: [2 side²] for each pixel code: row in the pillar, column in the pillar


class Part(NamedTuple):
    """Some pillars of one window; events of a pillar are contiguous and in time order."""

    pillars: NDArray[np.int32]  #: [J, 3] cell, first event and number of events
    packed: NDArray[np.int64]  #: [E + 2] pixel code (upper 32 bits) and µs since the window's start; slot 0 is empty
    of_pixel: NDArray[np.int64]  #: ``Tables.pixel``
    side: int
    columns: int  #: pillars in a row of the grid
    per_us: float  #: tau per µs


class Described(NamedTuple):
    """Values of some pillars and their events that are the same for all channels."""

    tau: Floats  #: [E]
    basis: Floats  #: [E, K] the weight of an event (Eq. 5, divided by the sum over its pillar) times L_k(tau)
    shape: Floats  #: [J, 6] 1, column and row of the pillar's corner, and the negated mean column, row and tau


@compiled
def sort_events(events: tuple[NDArray[Any], ...], bounds: tuple[int, int], tables: Tables, cells: int,
                caps: tuple[int, int], key: np.uint32,
                ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """Sort the events (t, x, y, p) of one window by pillar with a counting sort, and apply the caps.

    Args:
        events, tables: the columns of a batch, and its lookup tables.
        bounds: first event of the window and end.
        cells: of the grid.
        caps: most pillars, most events of a pillar; 0 for no limit.
        key: of the window, see ``sampling.window_key``.

    Returns ``Part.pillars`` and ``Part.packed`` of the window, and four counts: pillars, pillars dropped, events
    dropped with them, events dropped from full pillars.
    """
    begin, end = bounds
    t, p = events[0][begin:end], events[3][begin:end]
    # Unsigned indices: signed ones may be negative, which the compiler would have to check.
    x, y = events[1][begin:end].view(np.uint16), events[2][begin:end].view(np.uint16)
    of_x, of_y, _ = tables
    max_pillars, max_events = caps
    number = end - begin
    count, both = np.zeros(cells, np.int32), np.empty(number, np.int64)
    for i in range(number):
        both[i] = of_x[x[i]] + of_y[y[i]]
        count[np.uint32(both[i])] += 1
    filled = 0
    for c in range(cells):
        filled += count[c] > 0
    limit = pillar_limit(count, filled, max_pillars, key)
    counts, pillars = np.zeros(4, np.int64), np.empty((filled, 3), np.int32)
    free, stays = 1, 0
    for c in range(cells):  # count becomes the slot of a cell's next event; the last slot is for dropped pillars
        here = count[c]
        if not here:
            continue
        counts[0] += 1
        if limit == M32 or hash_u32(np.uint32(np.uint32(c) ^ key)) <= limit:
            pillars[stays, 0], pillars[stays, 1], pillars[stays, 2] = c, free, here
            stays += 1
            count[c] = free
            free += int(here)
        else:
            counts[1] += 1
            counts[2] += here
            count[c] = number + 1
    packed = np.empty(number + 2, np.int64)
    packed[0] = 0
    for i in range(number):
        cell = np.uint32(both[i])
        slot = count[cell]
        packed[slot] = ((both[i] >> 32) + p[i]) << 32 | np.int64(t[i])
        count[cell] = slot + (slot <= number)
    largest = 0
    for j in range(stays):
        largest = max(largest, int(pillars[j, 2]))
    if max_events and largest > max_events:
        priority = np.empty(largest, np.uint32)
        for j in range(stays):
            first, size = pillars[j, 1], pillars[j, 2]
            if size > max_events:
                pillar = hash_u32(np.uint32(np.uint32(pillars[j, 0]) ^ key))
                keep_lowest(packed[first : first + size], pillar, max_events, priority)
                pillars[j, 2] = max_events
                counts[3] += size - max_events
    return pillars[:stays], packed, counts


@compiled
def split_pillars(pillars: NDArray[np.int32], parts: int) -> NDArray[np.int64]:
    """Divide the pillars of a window into parts of equal cost: the first pillar of each part, and the end."""
    total, before = 0, 0
    for j in range(len(pillars)):
        total += EVENT * pillars[j, 2] + PILLAR + EMPTY * (pillars[j, 0] - before)
        before = pillars[j, 0]
    firsts = np.full(parts + 1, len(pillars), np.int64)
    firsts[0] = 0
    cost, before, part = 0, 0, 1
    for j in range(len(pillars)):
        while part < parts and cost * parts >= total * part:
            firsts[part] = j
            part += 1
        cost += EVENT * pillars[j, 2] + PILLAR + EMPTY * (pillars[j, 0] - before)
        before = pillars[j, 0]
    return firsts


@compiled
def pillar_limit(count: NDArray[np.int32], filled: int, max_pillars: int, key: np.uint32) -> np.uint32:
    """The highest priority that the cap of pillars keeps; ``filled`` cells of ``count`` have events."""
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
    """A limit such that ``most`` priorities (or more, if there are ties) are at or below it, found bit by bit."""
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
def keep_lowest(packed: NDArray[np.int64], pillar: np.uint32, most: int, memory: NDArray[np.uint32]) -> None:
    """Move the ``most`` events of a pillar with the lowest priorities to the front, in their order.

    ``memory`` has room for one number for each event.
    """
    events, earlier = len(packed), 0
    priority = memory[:events]
    for i in range(events):
        if i and packed[i] & M32 != packed[i - 1] & M32:
            earlier = i
        priority[i] = event_priority_u32(pillar, earlier, packed[i] >> 32)
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
            packed[kept] = packed[i]
            kept += 1


@compiled_finite_sums
def describe(part: Part, uniform: bool, folded: Folded) -> Described:
    """Compute ``Described`` in the type of ``folded``; events are counted from the first of ``part``.

    Events of equal times share the sum of their weights of Eq. 5. If all times are equal, weights are uniform.
    """
    pillars, packed, of_pixel, side, columns, per_us = part
    degree, origin, number = len(folded.alpha), pillars[0, 1], len(pillars)
    events = pillars[number - 1, 1] + pillars[number - 1, 2] - origin
    tau, basis = np.empty(events, folded.slope.dtype), np.empty((events, degree), folded.slope.dtype)
    shape = np.empty((number, 6), folded.slope.dtype)
    for j in range(number):
        cell, first, n = pillars[j]
        span = (packed[first + n - 1] & M32) - (packed[first] & M32)
        even = uniform or span == 0
        per_span = 0.5 / max(span, 1)
        where, times = 0, 0
        i = 0
        while i < n:
            now, end = packed[first + i] & M32, i + 1
            while end < n and packed[first + end] & M32 == now:
                end += 1
            if even:
                share = 1.0 / n
            else:
                before = packed[first + i - 1] & M32 if i > 0 else now
                after = packed[first + end] & M32 if end < n else now
                share = (after - before) * per_span
                if end > i + 1:
                    share /= end - i
            x = now * per_us - 1.0
            times += now * (end - i)
            for m in range(first + i, first + end):
                where += of_pixel[packed[m] >> 32]
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
        shape[j, 0], shape[j, 1], shape[j, 2] = 1.0, cell % columns * side, cell // columns * side
        shape[j, 3], shape[j, 4] = -(where & M32) / n, -(where >> 32) / n
        shape[j, 5] = 1.0 - times / n * per_us
    return Described(tau, basis, shape)


@compiled_finite_sums
def forward(part: Part, described: Described, folded: Folded, image: Floats, start: int, stop: int) -> None:
    """Write cells ``start`` to ``stop`` of ``image`` [cells, C]; cells without a pillar become zero.

    Eq. 6 and 7: beta + Σ_events relu(hidden) · Σ_k alpha_k basis_k.
    """
    pillars, packed, _, _, _, _ = part
    tau, basis, shape = described
    base_of, table, slope, alpha, beta = folded
    channels, degree, origin = len(beta), len(alpha), pillars[0, 1]
    base, mix = np.empty_like(beta), np.empty_like(beta)
    zero = base.dtype.type(0)
    free = start
    for j in range(len(pillars)):
        here, first, n = pillars[j]
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
        for m in range(first - origin, first - origin + n):
            at, x = packed[m + origin] >> 32, tau[m]
            for k in range(degree):
                value = basis[m, k]
                for c in range(channels):
                    mix[c] = alpha[k, c] * value + (mix[c] if k else zero)
            for c in range(channels):
                image[here, c] += max(base[c] + table[at, c] + slope[c] * x, zero) * mix[c]
    image[free:stop] = zero


@compiled
def forward_max(part: Part, described: Described, folded: Folded, image: Floats, start: int, stop: int) -> None:
    """``forward`` for max pooling: the largest hidden value, at least 0."""
    pillars, packed, _, _, _, _ = part
    tau, _, shape = described
    base_of, table, slope, _, _ = folded
    origin = pillars[0, 1]
    image[start:stop] = 0
    for j in range(len(pillars)):
        here, first, n = pillars[j]
        for c in range(len(slope)):
            base = slope.dtype.type(0)
            for f in range(6):
                base += base_of[f, c] * shape[j, f]
            for m in range(first, first + n):
                hidden = base + table[packed[m] >> 32, c] + slope[c] * tau[m - origin]
                image[here, c] = max(image[here, c], hidden)


@compiled_sums
def backward(part: Part, described: Described, folded: Folded, image: Floats, into: Folded) -> None:
    """Add the gradients of some pillars to ``into`` (float64), given the gradient [cells, C] of the image."""
    pillars, packed, _, _, _, _ = part
    tau, basis, shape = described
    base_of, table, slope, alpha, beta = folded
    base_into, table_into, slope_into, alpha_into, beta_into = into
    channels, degree, origin = len(beta), len(alpha), pillars[0, 1]
    base, mix, hidden = np.empty_like(beta), np.empty_like(beta), np.empty_like(beta)
    total, sloped, moment = np.empty(channels), np.empty(channels), np.empty(alpha.shape)
    zero = base.dtype.type(0)
    for j in range(len(pillars)):
        here, first, n = pillars[j]
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
        for m in range(first - origin, first - origin + n):
            at, x = packed[m + origin] >> 32, tau[m]
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
    """``backward`` for max pooling: the first event with the maximum gets the gradient, if the maximum is above 0."""
    pillars, packed, _, _, _, _ = part
    tau, _, shape = described
    origin = pillars[0, 1]
    for j in range(len(pillars)):
        here, first, n = pillars[j]
        for c in range(len(folded.beta)):
            base, best, winner = 0.0, 0.0, -1
            for f in range(6):
                base += folded.base[f, c] * shape[j, f]
            for m in range(first, first + n):
                hidden = base + folded.table[packed[m] >> 32, c] + folded.slope[c] * tau[m - origin]
                if hidden > best:
                    best, winner = hidden, m
            if winner >= 0:
                change = image[here, c]
                into.table[packed[winner] >> 32, c] += change
                into.slope[c] += change * tau[winner - origin]
                for f in range(6):
                    into.base[f, c] += change * shape[j, f]


@compiled
def add_moments_of_features(part: Part, height: int, width: int, center_offsets: bool, sums: Floats) -> None:
    """Add the products of two features of all events to ``sums`` [D + 1, D + 1]; the last feature is the constant 1."""
    pillars, packed, of_pixel, side, columns, per_us = part
    features = len(sums)
    f = np.ones(features)
    middle = (side - 1) / 2
    for j in range(len(pillars)):
        cell, first, n = pillars[j]
        where, times = 0, 0
        for i in range(first, first + n):
            where += of_pixel[packed[i] >> 32]
            times += packed[i] & M32
        column, row, mean_tau = (where & M32) / n, (where >> 32) / n, times / n * per_us - 1.0
        x0, y0 = cell % columns * side, cell // columns * side
        for i in range(first, first + n):
            pixel = packed[i] >> 32
            x, y, tau = of_pixel[pixel] & M32, of_pixel[pixel] >> 32, (packed[i] & M32) * per_us - 1.0
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
