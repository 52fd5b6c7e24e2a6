"""Pillar Encoding on the CPU, compiled: one pass over a pillar's events, nothing of size P·N or E·C.

An event's latent feature before ReLU is affine in the event: within a pillar it is

    base_c + table[place, c] + slope_c · tau

with one base per pillar (its position and the mean of its events), one table for the few places an event can have in
a pillar (pixel and polarity), and one slope. ``Folded`` holds these; gradients are summed in the same form and
unfolded at the end. ``segments.py`` is the readable twin.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.compiled import compiled, compiled_contracted, inlined
from fate.encoding.batch import EventBatch
from fate.encoding.kernels.binning import Binned, bin_events
from fate.encoding.kernels.gradients import Gradients, Weights
from fate.encoding.kernels.threads import in_threads
from fate.encoding.spec import PillarSpec

#: Pillars to a task. Fixed, so that sums are made in the same order whatever the number of threads.
CHUNK = 1024

Floats = NDArray[np.floating]


class Folded(NamedTuple):
    """Weights [C, D] as the loops want them; every array is [.., C]."""

    base: Floats  #: [6, C] constant, per column and row of the pillar's corner, per mean column, row and tau
    table: Floats  #: [places, C]
    slope: Floats  #: [C] per tau
    alpha: Floats  #: [K, C]
    beta: Floats  #: [C]


def prepare(batch: EventBatch, spec: PillarSpec, seed: int) -> Binned:
    """The events by pillar; see ``binning.py``."""
    return bin_events(batch, spec, seed)


def moments(binned: Binned) -> tuple[int, Tensor, Tensor]:
    """How many events are in the image, the sum [D] of their features and of products of two of them [D, D], float64."""
    spec = binned.spec
    size = (spec.pillar, spec.columns, *spec.sensor)

    def one(task: int) -> NDArray[np.float64]:
        window, first, last = tasks[task]
        sums = np.zeros((spec.features + 1, spec.features + 1))
        _add_moments(_part(binned, window, first, last), size, spec.center_offsets, sums)
        return sums

    tasks = _tasks(binned)
    empty = np.zeros((spec.features + 1, spec.features + 1))
    sums = torch.from_numpy(sum(in_threads(one, range(len(tasks))), start=empty))
    return binned.stats.events_kept, sums[-1, :-1], sums[:-1, :-1]


def forward(binned: Binned, weights: Weights) -> Tensor:
    """The pseudo-image [B, C, H, W], channels last in memory."""
    spec, channels = binned.spec, len(weights.beta)
    image = torch.zeros(len(binned.pillars), spec.cells, channels, dtype=weights.beta.dtype)
    pixels, folded = image.numpy(), fold(weights, spec)
    size = (spec.pillar, spec.columns)
    kind = _kind(spec)
    tasks = _tasks(binned)

    def one(task: int) -> None:
        window, first, last = tasks[task]
        _forward(_part(binned, window, first, last), size, kind, folded, pixels[window])

    in_threads(one, range(len(tasks)))
    return image.view(len(image), spec.rows, spec.columns, channels).permute(0, 3, 1, 2)


def backward(binned: Binned, weights: Weights, gradient: Tensor) -> Gradients:
    """What the parameters get of the image's gradient [B, C, H, W]."""
    spec = binned.spec
    pixels = gradient.detach().permute(0, 2, 3, 1).reshape(len(gradient), spec.cells, -1).contiguous().numpy()
    folded = fold(weights, spec)
    size = (spec.pillar, spec.columns)
    kind = _kind(spec)
    tasks = _tasks(binned)

    def one(task: int) -> Folded:
        window, first, last = tasks[task]
        into = Folded(*(np.zeros(part.shape, np.float64) for part in folded))
        _backward(_part(binned, window, first, last), size, kind, folded, pixels[window], into)
        return into

    parts = in_threads(one, range(len(tasks)))
    total = [np.sum([part[n] for part in parts], axis=0) if parts else np.zeros(folded[n].shape) for n in range(5)]
    return unfold(Folded(*total), spec, weights)


def fold(weights: Weights, spec: PillarSpec) -> Folded:
    """Weights of features to base, table and slope."""
    by_feature = np.ascontiguousarray(weights.scale.detach().numpy().T)  # [D, C]
    height, width = spec.sensor
    x, y, tau, p, x_mean, y_mean, tau_mean = by_feature[:7]
    x, y, x_mean, y_mean = x / width, y / height, x_mean / width, y_mean / height
    constant = weights.shift.detach().numpy()
    column, row, polarity = places(spec.pillar)
    across, down = x + x_mean, y + y_mean
    if spec.center_offsets:
        middle = (spec.pillar - 1) / 2
        constant = constant - middle * (by_feature[7] / width + by_feature[8] / height)
        across, down = across + by_feature[7] / width, down + by_feature[8] / height
    table = column[:, None] * across + row[:, None] * down + polarity[:, None] * p
    dtype = by_feature.dtype
    return Folded(
        np.stack([constant, x, y, x_mean, y_mean, tau_mean]).astype(dtype),
        table.astype(dtype),
        (tau + tau_mean).astype(dtype),
        np.ascontiguousarray(weights.alpha.detach().numpy().T),
        weights.beta.detach().numpy(),
    )


def unfold(gradient: Folded, spec: PillarSpec, weights: Weights) -> Gradients:
    """Gradients of base, table and slope to those of the weights: the transpose of ``fold``."""
    height, width = spec.sensor
    column, row, polarity = places(spec.pillar)
    constant, x0, y0, x_mean, y_mean, tau_mean = gradient.base
    across, down = column @ gradient.table, row @ gradient.table
    by_feature = [
        (x0 + across) / width,
        (y0 + down) / height,
        gradient.slope,
        polarity @ gradient.table,
        (x_mean + across) / width,
        (y_mean + down) / height,
        gradient.slope + tau_mean,
    ]
    if spec.center_offsets:
        middle = (spec.pillar - 1) / 2
        by_feature += [(across - middle * constant) / width, (down - middle * constant) / height]
    scale = np.stack(by_feature, axis=1)
    parts = (scale, constant, gradient.alpha.T, gradient.beta)
    return Gradients(*(torch.from_numpy(np.ascontiguousarray(part)).to(weights.beta.dtype) for part in parts))


def places(side: int) -> tuple[Floats, Floats, Floats]:
    """Column, row and polarity (-1, 1) of each place [2 side²]."""
    place = np.arange(2 * side * side)
    return (place // 2 % side).astype(float), (place // 2 // side).astype(float), (2 * (place % 2) - 1).astype(float)


def _kind(spec: PillarSpec) -> int:
    """0: Legendre moments with trapezoidal weights, 1: with uniform ones, 2: max pooling."""
    return 2 if spec.pooling == "max" else 1 if spec.weighting == "uniform" else 0


def _tasks(binned: Binned) -> list[tuple[int, int, int]]:
    """(window, first pillar, last pillar) of each task."""
    return [
        (window, first, min(first + CHUNK, int(count)))
        for window, count in enumerate(binned.pillars)
        for first in range(0, int(count), CHUNK)
    ]


class _Part(NamedTuple):
    """Some pillars of one window."""

    cell: NDArray[np.int32]
    begin: NDArray[np.int64]
    size: NDArray[np.int32]
    t_us: NDArray[np.int32]
    place: NDArray[np.int16]
    per_us: float  #: tau per µs


def _part(binned: Binned, window: int, first: int, last: int) -> _Part:
    rows = slice(int(binned.offsets[window]) + first, int(binned.offsets[window]) + last)
    per_us = 2.0 / float(binned.duration_us[window])
    return _Part(binned.cell[rows], binned.begin[rows], binned.size[rows], binned.t_us, binned.place, per_us)


@inlined
def _means(part: _Part, j: int, side: int) -> tuple[float, float, float]:
    """Mean column and row within the pillar, and mean tau."""
    columns, rows, times = 0, 0, 0
    for i in range(part.begin[j], part.begin[j] + part.size[j]):
        pixel = part.place[i] >> 1
        columns += pixel % side
        rows += pixel // side
        times += part.t_us[i]
    n = part.size[j]
    return columns / n, rows / n, times / n * part.per_us - 1.0


@compiled
def _shares(part: _Part, j: int, uniform: bool, share: NDArray[np.float64]) -> None:
    """Eq. 5 over its sum: the share of each event of pillar j in a moment. Events of equal times share theirs."""
    first, n = part.begin[j], part.size[j]
    span = part.t_us[first + n - 1] - part.t_us[first]
    if uniform or span == 0:
        share[:n] = 1.0 / n
        return
    i = 0
    while i < n:
        now, end = part.t_us[first + i], i + 1
        while end < n and part.t_us[first + end] == now:
            end += 1
        before = part.t_us[first + i - 1] if i > 0 else now
        after = part.t_us[first + end] if end < n else now
        share[i:end] = (after - before) / (2.0 * span * (end - i))
        i = end


@inlined
def _set_base(part: _Part, j: int, side: int, columns: int, of: Floats, base: Floats) -> tuple[float, float, float]:
    """``base`` of pillar j."""
    column, row, tau = _means(part, j, side)
    x0, y0 = part.cell[j] % columns * side, part.cell[j] // columns * side
    for c in range(len(base)):
        base[c] = of[0, c] + of[1, c] * x0 + of[2, c] * y0 - of[3, c] * column - of[4, c] * row - of[5, c] * tau
    return column, row, tau


@inlined
def _legendre(tau: float, share: float, values: Floats) -> None:
    """L_k(tau) · share for k = 0 … K - 1."""
    values[0] = share
    if len(values) > 1:
        values[1] = tau * share
    for k in range(1, len(values) - 1):
        values[k + 1] = ((2 * k + 1) * tau * values[k] - k * values[k - 1]) / (k + 1)


@compiled_contracted
def _forward(part: _Part, size: tuple[int, int], kind: int, of: Folded, image: Floats) -> None:
    """Some pillars into ``image`` [cells, C]."""
    side, columns = size
    channels, degree = len(of.beta), len(of.alpha)
    share = np.empty(max(np.max(part.size), 1), np.float64)
    base, values, sums = np.empty_like(of.beta), np.empty(degree, of.beta.dtype), np.empty_like(of.beta)
    table, slope, alpha = of.table, of.slope, of.alpha
    for j in range(len(part.cell)):
        _set_base(part, j, side, columns, of.base, base)
        _shares(part, j, kind > 0, share)
        for c in range(channels):
            sums[c] = of.beta[c] if kind < 2 else 0.0
        for n in range(part.size[j]):
            i = part.begin[j] + n
            row = table[part.place[i]]
            tau = base.dtype.type(part.t_us[i] * part.per_us - 1.0)
            _legendre(tau, share[n], values)
            if kind == 2:
                for c in range(channels):
                    sums[c] = max(sums[c], base[c] + row[c] + slope[c] * tau)
            elif degree == 3:  # the paper's, in one sweep
                v0, v1, v2 = values[0], values[1], values[2]
                for c in range(channels):
                    hidden = base[c] + row[c] + slope[c] * tau
                    hidden = hidden if hidden > 0 else base.dtype.type(0)
                    sums[c] += hidden * (alpha[0, c] * v0 + alpha[1, c] * v1 + alpha[2, c] * v2)
            else:
                for k in range(degree):
                    for c in range(channels):
                        hidden = base[c] + row[c] + slope[c] * tau
                        hidden = hidden if hidden > 0 else base.dtype.type(0)
                        sums[c] += hidden * alpha[k, c] * values[k]
        image[part.cell[j]] = sums


@compiled_contracted
def _backward(part: _Part, size: tuple[int, int], kind: int, of: Folded, image: Floats, into: Folded) -> None:
    """Gradients of some pillars, given the image's [cells, C], added to ``into``."""
    side, columns = size
    channels, degree = len(of.beta), len(of.alpha)
    share = np.empty(max(np.max(part.size), 1), np.float64)
    base, values, best = np.empty_like(of.beta), np.empty(degree, of.beta.dtype), np.empty_like(of.beta)
    change, total, sloped = np.empty_like(of.beta), np.empty_like(of.beta), np.empty_like(of.beta)
    moment = np.empty_like(of.alpha)
    zero = base.dtype.type(0)
    for j in range(len(part.cell)):
        column, line, mean_tau = _set_base(part, j, side, columns, of.base, base)
        _shares(part, j, kind > 0, share)
        given = image[part.cell[j]]
        total[:], sloped[:], moment[:], best[:] = zero, zero, zero, zero
        if kind == 2:
            for n in range(part.size[j]):
                i = part.begin[j] + n
                tau = base.dtype.type(part.t_us[i] * part.per_us - 1.0)
                for c in range(channels):
                    best[c] = max(best[c], base[c] + of.table[part.place[i], c] + of.slope[c] * tau)
        for n in range(part.size[j]):
            i = part.begin[j] + n
            place = part.place[i]
            tau = base.dtype.type(part.t_us[i] * part.per_us - 1.0)
            _legendre(tau, share[n], values)
            for c in range(channels):
                hidden = base[c] + of.table[place, c] + of.slope[c] * tau
                if kind == 2:  # the first event at the maximum has it all
                    wins = hidden > 0 and hidden == best[c]
                    change[c] = given[c] if wins else zero
                    best[c] = base.dtype.type(np.inf) if wins else best[c]
                else:
                    mixed = zero
                    for k in range(degree):
                        mixed += of.alpha[k, c] * values[k]
                        moment[k, c] += (hidden if hidden > 0 else zero) * values[k]
                    change[c] = given[c] * mixed if hidden > 0 else zero
                total[c] += change[c]
                sloped[c] += change[c] * tau
            for c in range(channels):
                into.table[place, c] += change[c]
        x0, y0 = part.cell[j] % columns * side, part.cell[j] // columns * side
        for c in range(channels):
            into.base[0, c] += total[c]
            into.base[1, c] += total[c] * x0
            into.base[2, c] += total[c] * y0
            into.base[3, c] -= total[c] * column
            into.base[4, c] -= total[c] * line
            into.base[5, c] -= total[c] * mean_tau
            into.slope[c] += sloped[c]
            if kind < 2:
                into.beta[c] += given[c]
                for k in range(degree):
                    into.alpha[k, c] += given[c] * moment[k, c]


@compiled
def _add_moments(part: _Part, size: tuple[int, int, int, int], center_offsets: bool, sums: Floats) -> None:
    """Products of two features, summed over the events of some pillars, into ``sums`` [D + 1, D + 1]; the last is 1."""
    side, columns, height, width = size
    features = len(sums)
    f = np.ones(features)
    for j in range(len(part.cell)):
        column, row, mean_tau = _means(part, j, side)
        x0, y0 = part.cell[j] % columns * side, part.cell[j] // columns * side
        for i in range(part.begin[j], part.begin[j] + part.size[j]):
            pixel = part.place[i] >> 1
            x, y, tau = pixel % side, pixel // side, part.t_us[i] * part.per_us - 1.0
            f[0], f[1], f[2], f[3] = (x0 + x) / width, (y0 + y) / height, tau, 2.0 * (part.place[i] & 1) - 1.0
            f[4], f[5], f[6] = (x - column) / width, (y - row) / height, tau - mean_tau
            if center_offsets:
                f[7], f[8] = (x - (side - 1) / 2) / width, (y - (side - 1) / 2) / height
            for a in range(features):
                for b in range(a + 1):
                    sums[a, b] += f[a] * f[b]
    for a in range(features):
        for b in range(a):
            sums[b, a] = sums[a, b]
