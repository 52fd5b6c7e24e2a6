"""Pillar Encoding on the CPU, compiled: one pass over the events of a pillar, no arrays of size P·N or E·C.

``prepare`` sorts events into pillars, ``forward`` and ``backward`` process the pillars; the loops are in
``cpu_loops.py``. ``torch_kernels.py`` is the readable version. ``cpu_inference.py`` is faster for common settings.

The latent feature of an event before ReLU is affine in the features of the event. Within a pillar it is

    base_c + table[pixel, c] + slope_c · tau

with one base per pillar (from its position and the mean of its events), a table for the few pixel codes (pixel in the
pillar and polarity), and one slope. ``fold`` converts the weights to this form, ``unfold`` gradients back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.encoding.batch import EventBatch, host_columns
from fate.encoding.kernels import cpu_loops as loops
from fate.encoding.kernels.cpu_loops import Folded, Part, Tables
from fate.encoding.sampling import window_key
from fate.encoding.spec import PillarSpec, PillarStats, Weights

#: Pillars of a task; fixed, so that sums do not depend on the number of threads.
CHUNK = 1024

Result = TypeVar("Result")


class Binned(NamedTuple):
    """The sampled pillars of a batch, window by window."""

    spec: PillarSpec
    windows: list[Part]
    stats: PillarStats


def prepare(batch: EventBatch, spec: PillarSpec, seed: int) -> Binned:
    """Sort the events of every window by pillar and sample those that the caps keep (``sampling.py``)."""
    columns, of = host_columns(batch), tables(spec)
    events = tuple(columns[name] for name in ("t_us", "x", "y", "p"))
    offsets, starts, durations = (columns[name].tolist() for name in ("offsets", "start_us", "duration_us"))
    caps = (spec.max_pillars or 0, spec.max_events or 0)

    def sort(window: int) -> tuple[Part, NDArray[np.int64]]:
        bounds, key = (offsets[window], offsets[window + 1]), np.uint32(window_key(seed, starts[window]))
        pillars, packed, counts = loops.sort_events(events, bounds, of, spec.cells, caps, key)
        return Part(pillars, packed, of.pixel, spec.pillar, spec.columns, 2.0 / durations[window]), counts

    windows, counts = zip(*in_threads(sort, len(batch)), strict=True)
    return Binned(spec, list(windows), PillarStats(batch.num_events, *np.sum(counts, axis=0).tolist()))


def moments(binned: Binned) -> tuple[int, Tensor, Tensor]:
    """Number of events, sum of their features [D], and sum of the products of two features [D, D], in float64."""
    spec, tasks = binned.spec, _tasks(binned)
    empty = np.zeros((spec.features + 1, spec.features + 1))

    def run(task: int) -> NDArray[np.float64]:
        sums = empty.copy()
        loops.add_moments_of_features(_part(binned, *tasks[task]), *spec.sensor, spec.center_offsets, sums)
        return sums

    sums = torch.from_numpy(sum(in_threads(run, len(tasks)), start=empty))
    return binned.stats.events_kept, sums[-1, :-1], sums[:-1, :-1]


def forward(binned: Binned, weights: Weights) -> Tensor:
    """The pseudo-image [B, C, H, W], channels last in memory."""
    spec, tasks, channels = binned.spec, _tasks(binned), len(weights.beta)
    image = torch.empty(len(binned.windows), spec.cells, channels, dtype=weights.beta.dtype)
    pixels, folded = image.numpy(), fold(weights, spec)
    write = loops.forward_max if spec.pooling == "max" else loops.forward

    def run(task: int) -> None:
        window, first, last = tasks[task]
        part, cells = _part(binned, window, first, last), binned.windows[window].pillars[:, 0]
        start = cells[first] if first else 0  # empty cells before a pillar belong to the previous task
        stop = cells[last] if last < len(cells) else spec.cells
        write(part, loops.describe(part, spec.weighting == "uniform", folded), folded, pixels[window], start, stop)

    in_threads(run, len(tasks))
    for window, part in enumerate(binned.windows):
        if not len(part.pillars):
            pixels[window] = 0
    stacked = np.concatenate([folded.base, folded.table, folded.slope[None], folded.alpha])
    if not np.isfinite(stacked).all():
        # the loops assume finite numbers; a diverged channel must not look like an empty one
        pixels[:, :, ~np.isfinite(stacked).all(0)] = np.nan
    return image.view(len(image), spec.rows, spec.columns, channels).permute(0, 3, 1, 2)


def backward(binned: Binned, weights: Weights, gradient: Tensor) -> Weights:
    """Gradients of the weights, given the gradient [B, C, H, W] of the image."""
    spec, tasks = binned.spec, _tasks(binned)
    pixels = gradient.detach().permute(0, 2, 3, 1).reshape(len(gradient), spec.cells, -1).contiguous().numpy()
    folded = fold(weights, spec)
    add = loops.backward_max if spec.pooling == "max" else loops.backward
    total = Folded(*(np.zeros(part.shape) for part in folded))

    def run(task: int) -> Folded:
        into = Folded(*(np.zeros(part.shape) for part in folded))
        part = _part(binned, *tasks[task])
        described = loops.describe(part, spec.weighting == "uniform", folded)
        add(part, described, folded, pixels[tasks[task][0]], into)
        return into

    for part in in_threads(run, len(tasks)):
        for sums, more in zip(total, part, strict=True):
            np.add(sums, more, out=sums)
    return unfold(total, spec, weights)


def _tasks(binned: Binned) -> list[tuple[int, int, int]]:
    """(window, first pillar, end) of each task."""
    return [
        (window, first, min(first + CHUNK, len(part.pillars)))
        for window, part in enumerate(binned.windows)
        for first in range(0, len(part.pillars), CHUNK)
    ]


def _part(binned: Binned, window: int, first: int, last: int) -> Part:
    """Pillars ``first`` to ``last`` - 1 of a window."""
    whole = binned.windows[window]
    return whole._replace(pillars=whole.pillars[first:last])


@lru_cache(maxsize=64)
def tables(spec: PillarSpec) -> Tables:
    """The tables of a grid for ``cpu_loops.sort_events``."""
    side = spec.pillar
    x, y = np.arange(spec.sensor.width), np.arange(spec.sensor.height)
    column, row, _ = pixel_table(side)
    return Tables(
        (x % side * 2) << 32 | x // side, (y % side * side * 2) << 32 | y // side * spec.columns, row << 32 | column
    )


@lru_cache(maxsize=64)
def folding(spec: PillarSpec, dtype: str = "float64") -> NDArray[Any]:
    """[6 + pixels + 1, D] matrix from the weights of the features to base, table and slope."""
    height, width = spec.sensor
    column, row, polarity = pixel_table(spec.pillar)
    count = len(column)
    matrix = np.zeros((7 + count, spec.features))
    table, slope = slice(6, 6 + count), 6 + count
    matrix[1, 0], matrix[2, 1] = 1 / width, 1 / height  # x and y of the corner
    matrix[3, 4], matrix[4, 5], matrix[5, 6] = 1 / width, 1 / height, 1  # the negated means
    matrix[table, 0], matrix[table, 1], matrix[table, 3] = column / width, row / height, polarity
    matrix[table, 4], matrix[table, 5] = column / width, row / height
    matrix[slope, 2] = matrix[slope, 6] = 1
    if spec.center_offsets:
        middle = (spec.pillar - 1) / 2
        matrix[table, 7], matrix[table, 8] = (column - middle) / width, (row - middle) / height
    return matrix.astype(dtype)


def fold(weights: Weights, spec: PillarSpec) -> Folded:
    """Convert the weights of the features to base, table and slope."""
    scale, shift, alpha, beta = (part.detach().numpy() for part in weights)
    stacked = folding(spec, scale.dtype.name) @ scale.T
    stacked[0] += shift
    return Folded(stacked[:6], stacked[6:-1], stacked[-1], np.ascontiguousarray(alpha.T), beta)


def unfold(gradient: Folded, spec: PillarSpec, weights: Weights) -> Weights:
    """Convert gradients of base, table and slope to gradients of the weights: the transpose of ``fold``."""
    stacked = np.concatenate([gradient.base, gradient.table, gradient.slope[None]])
    with np.errstate(invalid="ignore"):  # a gradient may have overflowed
        scale = stacked.T @ folding(spec)
    parts = (scale, gradient.base[0], gradient.alpha.T, gradient.beta)
    return Weights(*(torch.from_numpy(np.ascontiguousarray(part)).to(weights.beta.dtype) for part in parts))


@lru_cache(maxsize=64)
def pixel_table(side: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Column, row and polarity (-1 or 1) of each pixel code [2 side²]; see ``Tables``."""
    pixel = np.arange(2 * side * side)
    return pixel // 2 % side, pixel // 2 // side, 2 * (pixel % 2) - 1


def in_threads(work: Callable[[int], Result], count: int) -> list[Result]:
    """Results of ``work(0)`` to ``work(count - 1)``, computed on as many threads as torch may use."""
    threads = min(torch.get_num_threads(), count)
    if threads <= 1:
        return [work(index) for index in range(count)]
    results: dict[int, Result] = {}
    indices = iter(range(count))  # shared by the threads: each takes the next index

    def run() -> None:
        for index in indices:
            results[index] = work(index)

    pool = _pool(os.getpid(), threads - 1)
    helpers = [pool.submit(run) for _ in range(threads - 1)]
    run()  # the calling thread works too, since starting a thread takes as long as a small task
    for helper in helpers:
        helper.result()
    return [results[index] for index in range(count)]


@lru_cache
def _pool(_process: int, threads: int) -> ThreadPoolExecutor:
    """A pool of threads; threads do not survive a fork, so each process has its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="fate-encode")
