"""Pillar Encoding on the CPU, compiled: one pass over a pillar's events, nothing of size P·N or E·C.

``prepare`` sorts events into pillars, ``forward`` and ``backward`` go through the pillars; the loops are in
``cpu_loops.py``. ``torch_kernels.py`` is the readable version. Inference uses ``cpu_inference.py``, which computes the
same in one call for each thread.

The latent feature of an event before ReLU is affine in the event: within a pillar it is

    base_c + table[pixel, c] + slope_c · tau

with one base per pillar (its position and the mean of its events), one table for the few pixel codes an event can have
in a pillar (pixel and polarity), and one slope. ``fold`` brings the weights into this form; gradients are summed in it
and brought back by ``unfold``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.encoding.batch import EventBatch, host_columns
from fate.encoding.kernels import cpu_loops as loops
from fate.encoding.kernels.cpu_loops import Described, Folded, Part
from fate.encoding.sampling import window_key
from fate.encoding.spec import PillarSpec, PillarStats, Weights

#: Pillars in a task where sums are made; fixed, so that sums do not depend on the number of threads.
CHUNK = 1024

Result = TypeVar("Result")
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


class Binned(NamedTuple):
    """The pillars of a batch. A window's rows start at its offset in the batch; the first J of them are used.

    Events of a pillar are adjacent and in time order; events that the caps drop are left out.
    """

    spec: PillarSpec
    offsets: NDArray[np.int64]  #: [B + 1] of the batch
    duration_us: NDArray[np.int64]  #: [B]
    pillars: NDArray[np.int64]  #: [B] J of each window
    cell: NDArray[np.int32]  #: [E] of each pillar
    begin: NDArray[np.int64]  #: [E] first event of each pillar
    size: NDArray[np.int32]  #: [E] number of events of each pillar
    t_us: NDArray[np.int32]  #: [E] of each event, since the window's start
    pixel: NDArray[np.int16]  #: [E] (row in pillar × side + column in pillar) × 2 + polarity
    stats: PillarStats


def prepare(batch: EventBatch, spec: PillarSpec, seed: int) -> Binned:
    """Sort the events of every window by pillar and apply the caps."""
    columns, events = host_columns(batch), batch.num_events
    offsets = columns["offsets"]
    cell, size = np.empty(events, np.int32), np.empty(events, np.int32)
    begin = np.empty(events, np.int64)
    t_us, pixel = np.empty(events, np.int32), np.empty(events, np.int16)
    of_pixels = tables(spec)

    def bin_one(number: int) -> NDArray[np.int64]:
        part = slice(int(offsets[number]), int(offsets[number + 1]))
        key = np.uint32(window_key(seed, int(columns["start_us"][number])))
        rows = tuple(columns[name][part] for name in ("t_us", "x", "y", "p"))
        sorted_rows = tuple(array[part] for array in (cell, begin, size, t_us, pixel))
        return loops.bin_window(
            rows, of_pixels, spec.cells, spec.max_pillars or 0, spec.max_events or 0, key, part.start, sorted_rows
        )

    counts = np.stack(in_threads(bin_one, range(len(batch))))
    pillars, dropped, with_pillars, crowded_out = counts.sum(0).tolist()
    stats = PillarStats(events, pillars, dropped, with_pillars, crowded_out)
    kept = counts[:, 0] - counts[:, 1]
    return Binned(spec, offsets, columns["duration_us"], kept, cell, begin, size, t_us, pixel, stats)


def moments(binned: Binned) -> tuple[int, Tensor, Tensor]:
    """The number of events, the sum [D] of their features, and the sum of products of two [D, D]; float64."""
    spec, tasks = binned.spec, _tasks(binned, CHUNK)
    empty = np.zeros((spec.features + 1, spec.features + 1))

    def run_one(task: int) -> NDArray[np.float64]:
        sums = empty.copy()
        loops.add_moments_of_features(_part(binned, *tasks[task]), *spec.sensor, spec.center_offsets, sums)
        return sums

    sums = torch.from_numpy(sum(in_threads(run_one, range(len(tasks))), start=empty))
    return binned.stats.events_kept, sums[-1, :-1], sums[:-1, :-1]


def forward(binned: Binned, weights: Weights) -> Tensor:
    """The pseudo-image [B, C, H, W], channels last in memory."""
    spec, channels = binned.spec, len(weights.beta)
    image = torch.empty(len(binned.pillars), spec.cells, channels, dtype=weights.beta.dtype)
    pixels, folded = image.numpy(), fold(weights, spec)
    tasks = _even_tasks(binned)
    run = loops.forward_max if spec.pooling == "max" else loops.forward

    def run_one(task: int) -> None:
        window, first, last = tasks[task]
        part = _part(binned, window, first, last)
        start = part.cell[0] if first else 0  # empty cells before a pillar belong to the previous task
        more = last < binned.pillars[window]
        stop = binned.cell[binned.offsets[window] + last] if more else spec.cells
        run(part, _described(part, folded, spec), folded, pixels[window], start, stop)

    in_threads(run_one, range(len(tasks)))
    if len(tasks) < len(binned.pillars) or not binned.pillars.all():
        pixels[binned.pillars == 0] = 0
    if not all(np.isfinite(part).all() for part in (folded.base, folded.table, folded.slope, folded.alpha)):
        # the loops assume finite numbers; a channel that has diverged must not look like an empty one
        broken = ~np.isfinite(np.concatenate([folded.base, folded.table, folded.slope[None], folded.alpha])).all(0)
        pixels[:, :, broken] = np.nan
    return image.view(len(image), spec.rows, spec.columns, channels).permute(0, 3, 1, 2)


def backward(binned: Binned, weights: Weights, gradient: Tensor) -> Weights:
    """Gradients of the weights from the gradient [B, C, H, W] of the image."""
    spec, tasks = binned.spec, _tasks(binned, CHUNK)
    pixels = gradient.detach().permute(0, 2, 3, 1).reshape(len(gradient), spec.cells, -1).contiguous().numpy()
    folded = fold(weights, spec)
    run = loops.backward_max if spec.pooling == "max" else loops.backward
    total = Folded(*(np.zeros(part.shape) for part in folded))

    def run_one(task: int) -> Folded:
        into = Folded(*(np.zeros(part.shape) for part in folded))
        part = _part(binned, *tasks[task])
        run(part, _described(part, folded, spec), folded, pixels[tasks[task][0]], into)
        return into

    for part in in_threads(run_one, range(len(tasks))):
        for sums, more in zip(total, part, strict=True):
            np.add(sums, more, out=sums)
    return unfold(total, spec, weights)


def _described(part: Part, folded: Folded, spec: PillarSpec) -> Described:
    """Times, weights and means of some pillars."""
    events = int(part.begin[-1] + part.size[-1] - part.begin[0])
    dtype = folded.slope.dtype
    described = Described(
        np.empty(events, dtype), np.empty((events, len(folded.alpha)), dtype), np.empty((len(part.cell), 6), dtype)
    )
    loops.describe(part, spec.weighting == "uniform", *described)
    return described


def _tasks(binned: Binned, chunk: int) -> list[tuple[int, int, int]]:
    """(window, first pillar, last pillar) of each task."""
    return [
        (window, first, min(first + chunk, int(count)))
        for window, count in enumerate(binned.pillars)
        for first in range(0, int(count), chunk)
    ]


def _even_tasks(binned: Binned) -> list[tuple[int, int, int]]:
    """One task a thread, all of about equal duration: for results that do not depend on where tasks are cut."""
    parts = max(num_threads() // len(binned.pillars), 1)
    tasks = []
    for window, count in enumerate(binned.pillars.tolist()):
        first = int(binned.offsets[window])
        cost = np.cumsum(binned.size[first : first + count] + 2)  # a pillar takes as long as two events do
        cuts = np.searchsorted(cost, cost[-1] / parts * np.arange(1, parts)).tolist() if count and parts > 1 else []
        borders = sorted({0, *cuts, count})
        tasks += [(window, start, stop) for start, stop in pairwise(borders)]
    return tasks


def _part(binned: Binned, window: int, first: int, last: int) -> Part:
    """Pillars ``first`` to ``last`` of a window."""
    rows = slice(int(binned.offsets[window]) + first, int(binned.offsets[window]) + last)
    column, row, _ = pixel_table(binned.spec.pillar)
    return Part(
        binned.cell[rows],
        binned.begin[rows],
        binned.size[rows],
        binned.t_us,
        binned.pixel,
        column,
        row,
        binned.spec.pillar,
        binned.spec.columns,
        2.0 / float(binned.duration_us[window]),
    )


@lru_cache(maxsize=64)
def tables(spec: PillarSpec) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int16], NDArray[np.int16]]:
    """The parts of the cell and of the pixel code that come from an event's column and row."""
    side = spec.pillar
    across, down = np.arange(spec.sensor.width), np.arange(spec.sensor.height)
    return (
        (across // side).astype(np.int32),
        (down // side * spec.columns).astype(np.int32),
        (across % side * 2).astype(np.int16),
        (down % side * side * 2).astype(np.int16),
    )


@lru_cache(maxsize=64)
def folding(spec: PillarSpec, dtype: str = "float64") -> NDArray[Any]:
    """[6 + pixels + 1, D]: how much each feature's weight contributes to base, table and slope."""
    height, width = spec.sensor
    column, row, polarity = pixel_table(spec.pillar)
    count = len(column)
    matrix = np.zeros((7 + count, spec.features))
    table, slope = slice(6, 6 + count), 6 + count
    matrix[1, 0], matrix[2, 1] = 1 / width, 1 / height  # x and y of the corner
    matrix[3, 4], matrix[4, 5], matrix[5, 6] = 1 / width, 1 / height, 1  # the means, to be taken off
    matrix[table, 0], matrix[table, 1], matrix[table, 3] = column / width, row / height, polarity
    matrix[table, 4], matrix[table, 5] = column / width, row / height
    matrix[slope, 2] = matrix[slope, 6] = 1
    if spec.center_offsets:
        middle = (spec.pillar - 1) / 2
        matrix[table, 7], matrix[table, 8] = (column - middle) / width, (row - middle) / height
    return matrix.astype(dtype)


def fold(weights: Weights, spec: PillarSpec) -> Folded:
    """Weights of features to base, table and slope."""
    scale, shift, alpha, beta = (part.detach().numpy() for part in weights)
    stacked = folding(spec, scale.dtype.name) @ scale.T
    stacked[0] += shift
    return Folded(stacked[:6], stacked[6:-1], stacked[-1], np.ascontiguousarray(alpha.T), beta)


def unfold(gradient: Folded, spec: PillarSpec, weights: Weights) -> Weights:
    """Gradients of base, table and slope to gradients of the weights: the transpose of ``fold``."""
    stacked = np.concatenate([gradient.base, gradient.table, gradient.slope[None]])
    with np.errstate(invalid="ignore"):  # of a gradient that has overflowed
        scale = stacked.T @ folding(spec)
    parts = (scale, gradient.base[0], gradient.alpha.T, gradient.beta)
    return Weights(*(torch.from_numpy(np.ascontiguousarray(part)).to(weights.beta.dtype) for part in parts))


@lru_cache(maxsize=64)
def pixel_table(side: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Column, row and polarity (-1, 1) of each pixel code [2 side²]; see ``Binned.pixel``."""
    pixel = np.arange(2 * side * side)
    return pixel // 2 % side, pixel // 2 // side, 2 * (pixel % 2) - 1


def in_threads(work: Callable[[int], Result], items: Sequence[int]) -> list[Result]:
    """The results of ``work`` for each item, in order, computed on as many threads as torch may use."""
    threads = min(num_threads(), len(items))
    if threads <= 1:
        return [work(item) for item in items]
    results: dict[int, Result] = {}
    indices = iter(range(len(items)))  # shared: each thread takes the next

    def run() -> None:
        for index in indices:
            results[index] = work(items[index])

    pool = _pool(threads - 1)
    helpers = [pool.submit(run) for _ in range(threads - 1)]
    run()  # the caller works too: waking a thread takes as long as a small task
    for helper in helpers:
        helper.result()
    return [results[index] for index in range(len(items))]


def num_threads() -> int:
    """The number of threads that ``torch.set_num_threads`` has set."""
    return torch.get_num_threads()


def _pool(threads: int) -> ThreadPoolExecutor:
    """The pool of this process; threads do not survive a fork, so a forked data loader makes its own."""
    key = (os.getpid(), threads)
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="fate-encode")
    return _pools[key]
