"""Pillar Encoding on the CPU for inference: each thread takes a band of the image, from events to pixels in one call.

The same as ``cpu.forward`` on ``binning.bin_events`` (its readable twin, which training uses), without anything in
between: every thread counts all events, so that it knows where its band lies and what the caps leave out, then sorts
its own and encodes pillar after pillar while their events are in the cache. For float32, the paper's K = 3 and a number
of channels that is a multiple of sixteen.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fate.compiled import compiled, compiled_finite_sums, inlined
from fate.encoding.batch import EventBatch, host_columns
from fate.encoding.kernels import vectors
from fate.encoding.kernels.binning import keep, lowest, tables
from fate.encoding.kernels.folding import folding, places
from fate.encoding.kernels.threads import in_threads, num_threads
from fate.encoding.sampling import mixed_u32, window_key
from fate.encoding.spec import PillarSpec, PillarStats

#: What an event, a pillar and an empty cell take, relative to each other.
EVENT, PILLAR, EMPTY = 5, 16, 1
LOW = 0xFFFFFFFF


def can_encode(spec: PillarSpec, channels: int, dtype: torch.dtype) -> bool:
    """Whether ``encode`` is made for this."""
    fits = spec.moments == vectors.MOMENTS and channels % vectors.WIDTH == 0
    return fits and spec.pooling == "legendre" and dtype == torch.float32


def encode(
    batch: EventBatch, spec: PillarSpec, seed: int, linear: nn.Linear, norm: nn.BatchNorm1d, alpha: Tensor, beta: Tensor
) -> tuple[Tensor, PillarStats]:
    """The pseudo-image [B, C, H, W], channels last in memory, with BatchNorm's running statistics."""
    columns, channels = host_columns(batch), len(beta)
    of_x, of_y, of_place = _packed(spec)
    image = torch.empty(len(batch), spec.rows, spec.columns, channels)
    pixels = image.numpy().reshape(len(batch), spec.cells, channels)
    parts = (linear.weight, linear.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var, alpha, beta)
    folded = np.empty((8 + len(of_place) + vectors.MOMENTS, channels), np.float32)
    finite = _fold(tuple(part.detach().numpy() for part in parts if part is not None), norm.eps, folding(spec), folded)
    bands = max(-(-num_threads() // len(batch)), 1)
    grid = (spec.columns, spec.pillar, spec.max_pillars or 0, spec.max_events or 0, spec.weighting == "uniform")
    events = tuple(columns[name] for name in ("t_us", "x", "y", "p"))
    offsets, starts, durations = (columns[name].tolist() for name in ("offsets", "start_us", "duration_us"))

    def one(task: int) -> NDArray[np.int64]:
        window, band = divmod(task, bands)
        key = np.uint32(window_key(seed, starts[window]))
        part = (offsets[window], offsets[window + 1], band, bands)
        return _encode_band(
            events, part, of_x, of_y, of_place, grid, key, 2.0 / durations[window], folded, pixels[window]
        )

    counts = np.stack(in_threads(one, range(len(batch) * bands))).sum(0)
    given, dropped, with_pillars, crowded_out = counts.tolist()
    if not finite:  # the loops take finite numbers for granted: a channel that has diverged must not look quiet
        pixels[:, :, ~np.isfinite(folded).all(0)] = np.nan
    stats = PillarStats(batch.num_events, given, dropped, with_pillars, crowded_out)
    return image.permute(0, 3, 1, 2), stats


@lru_cache(maxsize=64)
def _packed(spec: PillarSpec) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """What a column and what a row adds to an event's place and cell; a place's row and column: two to a number."""
    x_cell, y_cell, x_place, y_place = (table.astype(np.int64) for table in tables(spec))
    column, row, _ = places(spec.pillar)
    return x_place << 32 | x_cell, y_place << 32 | y_cell, row << 32 | column


@compiled
def _fold(
    parts: tuple[NDArray[Any], ...], eps: float, matrix: NDArray[np.float64], folded: NDArray[np.float32]
) -> bool:
    """Linear layer and BatchNorm as base, table and slope (``folding.py``), then alpha and beta, as rows of ``folded``.

    Returns whether all numbers are finite.
    """
    weight, bias, gamma, delta, mean, variance, alpha, beta = parts
    rows, features = matrix.shape
    finite = True
    for c in range(len(bias)):
        factor = gamma[c] / np.sqrt(variance[c] + eps)
        for r in range(rows):
            total = 0.0
            for d in range(features):
                total += matrix[r, d] * weight[c, d] * factor
            folded[r, c] = total
        folded[0, c] += (bias[c] - mean[c]) * factor + delta[c]
        for k in range(alpha.shape[1]):
            folded[rows + k, c] = alpha[c, k]
        folded[rows + alpha.shape[1], c] = beta[c]
        for r in range(len(folded)):
            finite &= bool(np.isfinite(folded[r, c]))
    return finite


@compiled_finite_sums
def _encode_band(given: tuple[NDArray[Any], ...], part: tuple[int, int, int, int], of_x: NDArray[np.int64],
                 of_y: NDArray[np.int64], of_place: NDArray[np.int64], grid: tuple[int, int, int, int, bool],
                 key: np.uint32, per_us: float, folded: NDArray[np.float32], image: NDArray[np.float32],
                 ) -> NDArray[np.int64]:  # fmt: skip
    """One band of ``image`` [cells, C] from the events of a window, (t, x, y, p) from first to last.

    Returns pillars, pillars dropped, events dropped with them, events dropped from full pillars, of this band.
    """
    t, x, y, p = given
    begin, end, band, bands = part
    columns, side, max_pillars, max_events, uniform = grid
    cells = len(image)
    count = np.zeros(cells, np.int32)
    for i in range(begin, end):
        count[np.int32(of_x[x[i]] + of_y[y[i]])] += 1
    start, stop, filled = _borders(count, band, bands)
    limit = _limit(count, filled, max_pillars, key)
    result = np.zeros(4, np.int64)
    own = 0
    for c in range(start, stop):
        own += count[c]
    pillars = np.empty((min(stop - start, own), 3), np.int32)  # cell, first event and events of each
    free, number, largest = 0, 0, 0
    for c in range(cells):  # from now on count holds where a cell's next event goes; ``own`` is nowhere
        here = count[c]
        count[c] = own
        if here and start <= c < stop:
            result[0] += 1
            if mixed_u32(np.uint32(np.uint32(c) ^ key)) <= limit:
                pillars[number, 0], pillars[number, 1], pillars[number, 2] = c, free, here
                number += 1
                count[c] = free
                free += int(here)
                largest = max(largest, int(here))
            else:
                result[1] += 1
                result[2] += here
    packed = np.empty(own + 1, np.int64)  # place and time of an event
    for i in range(begin, end):
        both = of_x[x[i]] + of_y[y[i]]
        slot = count[np.int32(both)]
        packed[slot] = ((both >> 32) + p[i]) << 32 | np.int64(t[i])
        count[np.int32(both)] = slot + (slot < own)
    if max_events and largest > max_events:
        result[3] = _keep_in_all(pillars[:number], packed, max_events, key)
        largest = max_events
    _encode_pillars(
        pillars[:number], packed, largest, of_place, columns, side, uniform, per_us, folded, image, start, stop
    )
    return result


@compiled
def _borders(count: NDArray[np.int32], band: int, bands: int) -> tuple[int, int, int]:
    """First and last cell of a band, such that all take equally long; and how many cells of the window hold events."""
    total, filled = 0, 0
    for c in range(len(count)):
        total += EVENT * count[c] + (PILLAR if count[c] else EMPTY)
        filled += count[c] > 0
    start, stop = len(count) if band else 0, len(count)
    cost = 0
    for c in range(len(count)):
        cost += EVENT * count[c] + (PILLAR if count[c] else EMPTY)
        if cost * bands >= total * band and c + 1 < start and band:
            start = c + 1
        if cost * bands >= total * (band + 1) and band + 1 < bands:
            stop = c + 1
            break
    return start, stop, filled


@compiled
def _limit(count: NDArray[np.int32], filled: int, max_pillars: int, key: np.uint32) -> np.uint32:
    """The highest priority of a pillar that stays."""
    if not max_pillars or filled <= max_pillars:
        return np.uint32(LOW)
    priority = np.empty(filled, np.uint32)
    found = 0
    for c in range(len(count)):
        if count[c]:
            priority[found] = mixed_u32(np.uint32(np.uint32(c) ^ key))
            found += 1
    return lowest(priority, max_pillars)


@compiled
def _keep_in_all(pillars: NDArray[np.int32], packed: NDArray[np.int64], most: int, key: np.uint32) -> int:
    """Bring the events that stay to the front of each pillar that has more than ``most``; returns how many go."""
    dropped = 0
    for j in range(len(pillars)):
        cell, first, events = pillars[j]
        if events > most:
            t_us, place = np.empty(events, np.int32), np.empty(events, np.int16)
            for i in range(events):
                t_us[i], place[i] = packed[first + i], packed[first + i] >> 32
            keep(t_us, place, mixed_u32(np.uint32(np.uint32(cell) ^ key)), most)
            for i in range(most):
                packed[first + i] = np.int64(place[i]) << 32 | np.int64(t_us[i])
            pillars[j, 2] = most
            dropped += events - most
    return dropped


@compiled_finite_sums
def _encode_pillars(pillars: NDArray[np.int32], packed: NDArray[np.int64], largest: int, of_place: NDArray[np.int64],
                    columns: int, side: int, uniform: bool, per_us: float, folded: NDArray[np.float32],
                    image: NDArray[np.float32], start: int, stop: int) -> None:  # fmt: skip
    """Cells ``start`` to ``stop``: these pillars, and zero where there is none."""
    channels = image.shape[1]
    described, place = np.empty((largest, 4), np.float32), np.empty(largest, np.int32)
    shape = np.empty(6, np.float32)
    events_at, places_at, shape_at = described.ctypes.data, place.ctypes.data, shape.ctypes.data
    row = 4 * channels
    base_at = folded.ctypes.data
    table_at = base_at + 6 * row
    slope_at = table_at + len(of_place) * row
    alpha_at = slope_at + row
    beta_at = alpha_at + 3 * row
    free = start
    for j in range(len(pillars)):
        cell, first, events = pillars[j]
        if free < cell:
            image[free:cell] = 0
        free = cell + 1
        _describe(packed[first : first + events], of_place, uniform, per_us, described, place, shape)
        shape[1], shape[2] = cell % columns * side, cell // columns * side
        image_at = image.ctypes.data + cell * row
        for c in range(0, row, 4 * vectors.WIDTH):
            vectors.sixteen_channels(  # type: ignore[call-arg]  # the compiler hands over the first
                events_at, places_at, events, shape_at, base_at + c, table_at + c, slope_at + c, alpha_at + c,
                beta_at + c, image_at + c, channels,
            )  # fmt: skip
    image[free:stop] = 0


@inlined
def _describe(packed: NDArray[np.int64], of_place: NDArray[np.int64], uniform: bool, per_us: float,
              described: NDArray[np.float32], place: NDArray[np.int32], shape: NDArray[np.float32],
              ) -> None:  # fmt: skip
    """``cpu_loops.describe`` of one pillar: tau and basis of its events, and their means."""
    n = len(packed)
    earliest, latest = packed[0] & LOW, packed[n - 1] & LOW
    even = uniform or earliest == latest
    per_span = np.float32(0.5) / np.float32(max(latest - earliest, 1))
    per_event = np.float32(1) / np.float32(n)
    where, times, before, i = 0, 0, earliest, 0
    while i < n:
        now, end = packed[i] & LOW, i + 1
        while end < n and packed[end] & LOW == now:
            end += 1
        after = packed[end] & LOW if end < n else now
        share = per_event if even else np.float32(after - before) * per_span
        if end > i + 1 and not even:
            share /= np.float32(end - i)
        before = now
        tau = np.float32(now * per_us - 1.0)
        times += now * (end - i)
        for m in range(i, end):
            at = np.int32(packed[m] >> 32)
            where += of_place[at]
            place[m] = at
            described[m, 0], described[m, 1], described[m, 2] = tau, share, share * tau
            described[m, 3] = share * (np.float32(1.5) * tau * tau - np.float32(0.5))
        i = end
    shape[3], shape[4] = -np.float32(where & LOW) * per_event, -np.float32(where >> 32) * per_event
    shape[5] = 1.0 - times / n * per_us
