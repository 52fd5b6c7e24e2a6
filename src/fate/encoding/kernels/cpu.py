"""Pillar Encoding on the CPU, compiled: one pass over a pillar's events, nothing of size P·N or E·C.

The weights are folded into the form of ``folding.py`` and gradients, summed in it, are unfolded at the end; the loops
are in ``cpu_loops.py``. ``segments.py`` is the readable twin. Where no gradient is needed, ``cpu_bands.py`` does the
same in one call for each thread.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.encoding.batch import EventBatch
from fate.encoding.kernels import cpu_loops as loops
from fate.encoding.kernels.binning import Binned, bin_events
from fate.encoding.kernels.cpu_bands import can_encode, encode
from fate.encoding.kernels.cpu_loops import Described, Folded, Part
from fate.encoding.kernels.folding import fold, places, unfold
from fate.encoding.kernels.gradients import Gradients, Weights
from fate.encoding.kernels.threads import in_threads, num_threads
from fate.encoding.spec import PillarSpec

__all__ = ["backward", "can_encode", "encode", "forward", "moments", "prepare"]

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
    run = loops.forward_of_maximum if spec.pooling == "max" else loops.forward

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
