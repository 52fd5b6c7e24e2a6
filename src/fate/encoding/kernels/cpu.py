"""Pillar Encoding on the CPU, compiled: one pass over a pillar's events, nothing of size P·N or E·C.

An event's latent feature before ReLU is affine in the event: within a pillar it is

    base_c + table[place, c] + slope_c · tau

with one base per pillar (its position and the mean of its events), one table for the few places an event can have in
a pillar (pixel and polarity), and one slope. The weights are folded into that form and gradients, summed in it, are
unfolded at the end; the loops are in ``cpu_loops.py``. ``segments.py`` is the readable twin.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fate.encoding.batch import EventBatch
from fate.encoding.kernels import cpu_loops as loops
from fate.encoding.kernels.binning import Binned, bin_events
from fate.encoding.kernels.cpu_loops import Described, Folded, Part
from fate.encoding.kernels.gradients import Gradients, Weights
from fate.encoding.kernels.threads import in_threads, num_threads
from fate.encoding.spec import PillarSpec

#: Pillars to a task where sums are made; fixed, so that they do not depend on the number of threads.
CHUNK = 1024


def prepare(batch: EventBatch, spec: PillarSpec, seed: int) -> Binned:
    """The events by pillar; see ``binning.py``."""
    return bin_events(batch, spec, seed)


def moments(binned: Binned) -> tuple[int, Tensor, Tensor]:
    """How many events are in the image, the sum [D] of their features, and of products of two [D, D]; float64."""
    spec, tasks = binned.spec, _tasks(binned, CHUNK)
    empty = np.zeros((spec.features + 1, spec.features + 1))

    def one(task: int) -> NDArray[np.float64]:
        sums = empty.copy()
        loops.add_moments_of_features(_part(binned, *tasks[task]), *spec.sensor, spec.center_offsets, sums)
        return sums

    sums = torch.from_numpy(sum(in_threads(one, range(len(tasks))), start=empty))
    return binned.stats.events_kept, sums[-1, :-1], sums[:-1, :-1]


def forward(binned: Binned, weights: Weights) -> Tensor:
    """The pseudo-image [B, C, H, W], channels last in memory."""
    spec, channels = binned.spec, len(weights.beta)
    image = torch.empty(len(binned.pillars), spec.cells, channels, dtype=weights.beta.dtype)
    pixels, folded = image.numpy(), fold(weights, spec)
    tasks = _even_tasks(binned)
    run = loops.forward_of_three if spec.moments == 3 else loops.forward
    run = loops.forward_of_maximum if spec.pooling == "max" else run

    def one(task: int) -> None:
        window, first, last = tasks[task]
        part = _part(binned, window, first, last)
        start = part.cell[0] if first else 0  # what lies before a pillar is the task's before
        more = last < binned.pillars[window]
        stop = binned.cell[binned.offsets[window] + last] if more else spec.cells
        run(part, _described(part, folded, spec), folded, pixels[window], start, stop)

    in_threads(one, range(len(tasks)))
    if len(tasks) < len(binned.pillars) or not binned.pillars.all():
        pixels[binned.pillars == 0] = 0
    if not all(np.isfinite(part).all() for part in (folded.base, folded.table, folded.slope, folded.alpha)):
        # the loops take finite numbers for granted: a channel that has diverged must not look like a quiet one
        broken = ~np.isfinite(np.concatenate([folded.base, folded.table, folded.slope[None], folded.alpha])).all(0)
        pixels[:, :, broken] = np.nan
    return image.view(len(image), spec.rows, spec.columns, channels).permute(0, 3, 1, 2)


def backward(binned: Binned, weights: Weights, gradient: Tensor) -> Gradients:
    """What the weights get of the image's gradient [B, C, H, W]."""
    spec, tasks = binned.spec, _tasks(binned, CHUNK)
    pixels = gradient.detach().permute(0, 2, 3, 1).reshape(len(gradient), spec.cells, -1).contiguous().numpy()
    folded = fold(weights, spec)
    run = loops.backward_of_maximum if spec.pooling == "max" else loops.backward
    total = Folded(*(np.zeros(part.shape) for part in folded))

    def one(task: int) -> Folded:
        into = Folded(*(np.zeros(part.shape) for part in folded))
        part = _part(binned, *tasks[task])
        run(part, _described(part, folded, spec), folded, pixels[tasks[task][0]], into)
        return into

    for part in in_threads(one, range(len(tasks))):
        for sums, more in zip(total, part, strict=True):
            np.add(sums, more, out=sums)
    return unfold(total, spec, weights)


@lru_cache(maxsize=64)
def folding(spec: PillarSpec, dtype: str = "float64") -> NDArray[Any]:
    """[6 + places + 1, D]: what each feature's weight adds to base, table and slope."""
    height, width = spec.sensor
    column, row, polarity = places(spec.pillar)
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


def fold_running(linear: nn.Linear, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Linear layer and BatchNorm with running statistics as one affine map, without gradients: scale and shift."""
    parts = (linear.weight, linear.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var)
    weight, bias, gamma, delta, mean, variance = (part.detach().numpy() for part in parts if part is not None)
    factor = gamma / np.sqrt(variance + weight.dtype.type(norm.eps))
    return torch.from_numpy(weight * factor[:, None]), torch.from_numpy((bias - mean) * factor + delta)


def fold(weights: Weights, spec: PillarSpec) -> Folded:
    """Weights of features to base, table and slope."""
    scale, shift, alpha, beta = (part.detach().numpy() for part in weights)
    both = folding(spec, scale.dtype.name) @ scale.T
    both[0] += shift
    return Folded(both[:6], both[6:-1], both[-1], np.ascontiguousarray(alpha.T), beta)


def unfold(gradient: Folded, spec: PillarSpec, weights: Weights) -> Gradients:
    """Gradients of base, table and slope to those of the weights: the transpose of ``fold``."""
    both = np.concatenate([gradient.base, gradient.table, gradient.slope[None]])
    with np.errstate(invalid="ignore"):  # of a gradient that has overflown
        scale = both.T @ folding(spec)
    parts = (scale, gradient.base[0], gradient.alpha.T, gradient.beta)
    return Gradients(*(torch.from_numpy(np.ascontiguousarray(part)).to(weights.beta.dtype) for part in parts))


@lru_cache(maxsize=64)
def places(side: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Column, row and polarity (-1, 1) of each place in a pillar [2 side²]; see ``Binned.place``."""
    place = np.arange(2 * side * side)
    return place // 2 % side, place // 2 // side, 2 * (place % 2) - 1


def _described(part: Part, folded: Folded, spec: PillarSpec) -> Described:
    """What the loops need to know of the pillars and their events."""
    events = int(part.begin[-1] + part.size[-1] - part.begin[0])
    dtype = folded.slope.dtype
    known = Described(
        np.empty(events, dtype), np.empty((events, len(folded.alpha)), dtype), np.empty((len(part.cell), 6), dtype)
    )
    loops.describe(part, spec.weighting == "uniform", *known)
    return known


def _tasks(binned: Binned, chunk: int) -> list[tuple[int, int, int]]:
    """(window, first pillar, last pillar) of each task."""
    return [
        (window, first, min(first + chunk, int(count)))
        for window, count in enumerate(binned.pillars)
        for first in range(0, int(count), chunk)
    ]


def _even_tasks(binned: Binned) -> list[tuple[int, int, int]]:
    """The same in a task a thread that take equally long, for what does not depend on how it is cut."""
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
    column, row, _ = places(binned.spec.pillar)
    return Part(
        binned.cell[rows],
        binned.begin[rows],
        binned.size[rows],
        binned.t_us,
        binned.place,
        column,
        row,
        binned.spec.pillar,
        binned.spec.columns,
        2.0 / float(binned.duration_us[window]),
    )
