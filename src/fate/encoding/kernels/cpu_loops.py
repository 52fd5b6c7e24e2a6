"""The compiled loops of Pillar Encoding on the CPU: some pillars of one window at a time.

Channels are innermost and contiguous, so that each loop over them becomes vector instructions; these loops call
nothing, since passing an array costs as much as a few of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled, compiled_finite_sums, compiled_sums, inlined

Floats = NDArray[Any]


class Folded(NamedTuple):
    """The weights as the loops want them; C is the last axis of all."""

    base: Floats  #: [6, C] to be multiplied with ``Described.shape``
    table: Floats  #: [places, C]
    slope: Floats  #: [C] per tau
    alpha: Floats  #: [K, C]
    beta: Floats  #: [C]


class Part(NamedTuple):
    """Some pillars of one window."""

    cell: NDArray[np.int32]
    begin: NDArray[np.int64]
    size: NDArray[np.int32]
    t_us: NDArray[np.int32]
    place: NDArray[np.int16]
    column: NDArray[np.int64]  #: of each place
    row: NDArray[np.int64]  #: of each place
    side: int
    columns: int  #: pillars in a row of the grid
    per_us: float  #: tau per µs


class Described(NamedTuple):
    """What the loops over channels need to know of some pillars and their events."""

    tau: Floats  #: [E]
    basis: Floats  #: [E, K] an event's share in its pillar (Eq. 5 over its sum) times L_k(tau)
    shape: Floats  #: [J, 6] 1, column and row of the pillar's corner, less the mean column, row and tau of its events


@compiled_finite_sums
def describe(part: Part, uniform: bool, tau: Floats, basis: Floats, shape: Floats) -> None:
    """Fill in ``Described``; events are counted from the first of ``part``.

    Events of equal times share what Eq. 5 gives them together. A pillar with but one time has equal shares.
    """
    cell, begin, size, t_us, place, column, row, side, columns, per_us = part
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
                across += column[place[m]]
                down += row[place[m]]
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
def forward(part: Part, known: Described, of: Folded, image: Floats, start: int, stop: int) -> None:
    """Cells ``start`` to ``stop`` of ``image`` [cells, C]: these pillars, and zero where there is none.

    Eq. 6 and 7: beta + Σ_events relu(hidden) · Σ_k alpha_k basis_k.
    """
    cell, begin, size, _, place, _, _, _, _, _ = part
    tau, basis, shape = known
    base_of, table, slope, alpha, beta = of
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
            at, x = np.intp(place[m + origin]), tau[m]
            for k in range(degree):
                value = basis[m, k]
                for c in range(channels):
                    mix[c] = alpha[k, c] * value + (mix[c] if k else zero)
            for c in range(channels):
                image[here, c] += max(base[c] + table[at, c] + slope[c] * x, zero) * mix[c]
    image[free:stop] = zero


@compiled
def forward_of_maximum(part: Part, known: Described, of: Folded, image: Floats, start: int, stop: int) -> None:
    """The same for max pooling: the largest hidden value, or 0."""
    cell, begin, size, _, place, _, _, _, _, _ = part
    tau, _, shape = known
    base_of, table, slope, _, _ = of
    origin = begin[0]
    image[start:stop] = 0
    for j in range(len(cell)):
        here = cell[j]
        for c in range(len(slope)):
            base = slope.dtype.type(0)
            for f in range(6):
                base += base_of[f, c] * shape[j, f]
            for m in range(begin[j] - origin, begin[j] - origin + size[j]):
                image[here, c] = max(image[here, c], base + table[place[m + origin], c] + slope[c] * tau[m])


@compiled_sums
def backward(part: Part, known: Described, of: Folded, image: Floats, into: Folded) -> None:
    """Gradients of some pillars, given the image's [cells, C], added to ``into`` (float64)."""
    cell, begin, size, _, place, _, _, _, _, _ = part
    tau, basis, shape = known
    base_of, table, slope, alpha, beta = of
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
            at, x = np.intp(place[m + origin]), tau[m]
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
def backward_of_maximum(part: Part, known: Described, of: Folded, image: Floats, into: Folded) -> None:
    """The same for max pooling: a pillar's gradient goes to the first event that has the maximum, if it is above 0."""
    cell, begin, size, _, place, _, _, _, _, _ = part
    tau, _, shape = known
    origin = begin[0]
    for j in range(len(cell)):
        for c in range(len(of.beta)):
            base, best, winner = 0.0, 0.0, -1
            for f in range(6):
                base += of.base[f, c] * shape[j, f]
            for m in range(begin[j] - origin, begin[j] - origin + size[j]):
                hidden = base + of.table[place[m + origin], c] + of.slope[c] * tau[m]
                if hidden > best:
                    best, winner = hidden, m
            if winner >= 0:
                change = image[cell[j], c]
                into.table[place[winner + origin], c] += change
                into.slope[c] += change * tau[winner]
                for f in range(6):
                    into.base[f, c] += change * shape[j, f]


@inlined
def means(part: Part, j: int) -> tuple[float, float, float]:
    """Mean column and row within pillar j, and mean tau."""
    columns, rows, times = 0, 0, 0
    for i in range(part.begin[j], part.begin[j] + part.size[j]):
        place = part.place[i]
        columns += part.column[place]
        rows += part.row[place]
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
            place = part.place[i]
            x, y, tau = part.column[place], part.row[place], part.t_us[i] * part.per_us - 1.0
            f[0], f[1], f[2], f[3] = (x0 + x) / width, (y0 + y) / height, tau, 2.0 * (place & 1) - 1.0
            f[4], f[5], f[6] = (x - column) / width, (y - row) / height, tau - mean_tau
            if center_offsets:
                f[7], f[8] = (x - middle) / width, (y - middle) / height
            for a in range(features):
                for b in range(a + 1):
                    sums[a, b] += f[a] * f[b]
    for a in range(features):
        for b in range(a):
            sums[b, a] = sums[a, b]
