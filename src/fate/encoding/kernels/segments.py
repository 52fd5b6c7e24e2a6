"""Pillar Encoding in plain torch, on any device and in any float type: events sorted by pillar, sums by segment.

The readable twin of the compiled versions, and what runs where they cannot (a GPU without Triton, MPS). Autograd does
the backward, so H (E × C) is kept for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fate.encoding.batch import EventBatch, window_of_events
from fate.encoding.kernels.gradients import Weights
from fate.encoding.kernels.reference import legendre
from fate.encoding.sampling import event_priorities, pillar_priorities, ranks
from fate.encoding.spec import PillarSpec, PillarStats


class Segments(NamedTuple):
    """The events that the caps keep, by pillar and time; J pillars, E events."""

    spec: PillarSpec
    windows: int
    t_us: Tensor  #: [E] since the window's start
    duration_us: Tensor  #: [E] of the event's window
    x: Tensor  #: [E]
    y: Tensor  #: [E]
    p: Tensor  #: [E] 0 or 1
    pillar: Tensor  #: [E] number of the event's pillar, rising from 0
    size: Tensor  #: [J] events of each pillar
    cell: Tensor  #: [J] its place, window by window, row by row
    stats: PillarStats


def prepare(batch: EventBatch, spec: PillarSpec, seed: int) -> Segments:
    """Events by pillar, the caps applied."""
    window = window_of_events(batch)
    t_us, x, y, p = (getattr(batch, name).long() for name in ("t_us", "x", "y", "p"))
    side = spec.pillar
    cell = (window * spec.rows + y // side) * spec.columns + x // side
    order = torch.argsort(cell, stable=True)
    window, t_us, x, y, p, cell = (column[order] for column in (window, t_us, x, y, p, cell))
    found, pillar, size = torch.unique_consecutive(cell, return_inverse=True, return_counts=True)

    of = found // spec.cells
    priority = pillar_priorities(seed, batch.start_us, of, found % spec.cells)
    stays = torch.ones_like(found, dtype=torch.bool)
    if spec.max_pillars is not None:
        stays = ranks(priority, of) < spec.max_pillars
    chosen = torch.ones_like(pillar, dtype=torch.bool)
    if spec.max_events is not None and len(t_us):
        earlier = _first_of_run(_run_starts(pillar, t_us)) - (size.cumsum(0) - size)[pillar]
        place = ((y % side) * side + x % side) * 2 + p
        chosen = ranks(event_priorities(priority[pillar], earlier, place), pillar) < spec.max_events
    keep = chosen & stays[pillar]
    stats = PillarStats(
        events=len(t_us),
        pillars=len(found),
        pillars_dropped=int((~stays).sum()),
        events_dropped_with_pillars=int(size[~stays].sum()),
        events_dropped=int((~chosen & stays[pillar]).sum()),
    )
    kept, pillar, size = torch.unique_consecutive(cell[keep], return_inverse=True, return_counts=True)
    duration_us = batch.duration_us[window[keep]]
    return Segments(
        spec, len(batch), t_us[keep], duration_us, x[keep], y[keep], p[keep], pillar, size, kept, stats
    )  # fmt: skip


def widest(device: torch.device) -> torch.dtype:
    """The widest float type of a device: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def features(of: Segments, dtype: torch.dtype) -> Tensor:
    """[E, D] what describes each event; the order is DESIGN's and the paper's Eq. 1."""
    spec, wide = of.spec, widest(of.t_us.device)
    height, width = spec.sensor

    def mean(values: Tensor) -> Tensor:  # of whole numbers, so exact up to the division
        return (torch.zeros_like(of.size).index_add(0, of.pillar, values) / of.size.to(wide))[of.pillar]

    x, y, t = of.x.to(wide), of.y.to(wide), of.t_us.to(wide)
    tau = 2 * t / of.duration_us - 1
    columns = [x / width, y / height, tau, 2.0 * of.p - 1]
    columns += [(x - mean(of.x)) / width, (y - mean(of.y)) / height, 2 * (t - mean(of.t_us)) / of.duration_us]
    if spec.center_offsets:
        middle = (spec.pillar - 1) / 2
        columns += [(x % spec.pillar - middle) / width, (y % spec.pillar - middle) / height]
    return torch.stack([column.to(dtype) for column in columns], dim=1)


def shares(of: Segments) -> Tensor:
    """[E] Eq. 5 over its sum; events of equal times share theirs; uniform where a pillar has but one time."""
    size = of.size[of.pillar]
    wide = widest(size.device)
    uniform = 1 / size.to(wide)
    if of.spec.weighting == "uniform" or not len(of.t_us):
        return uniform
    starts = _run_starts(of.pillar, of.t_us)
    run = starts.long().cumsum(0) - 1
    time, owner = of.t_us[starts], of.pillar[starts]
    same = owner[1:] == owner[:-1]
    gap = torch.where(same, time[1:] - time[:-1], 0)
    none = gap.new_zeros(1)
    weight = torch.cat([none, gap]) + torch.cat([gap, none])
    last = of.size.cumsum(0) - 1
    span = (of.t_us[last] - of.t_us[last - of.size + 1])[of.pillar]
    together = torch.bincount(run)[run]
    return torch.where(span > 0, weight[run].to(wide) / (2.0 * span.clamp(min=1) * together), uniform)


def moments(of: Segments) -> tuple[int, Tensor, Tensor]:
    """How many events there are, the sum [D] of their features, and of products of two [D, D]."""
    values = features(of, widest(of.t_us.device))
    return len(values), values.sum(0), values.T @ values


def forward(of: Segments, weights: Weights) -> Tensor:
    """The pseudo-image [B, C, H, W]."""
    spec, dtype = of.spec, weights.scale.dtype
    channels, cells = len(weights.beta), of.windows * spec.cells
    hidden = torch.relu(features(of, dtype) @ weights.scale.T + weights.shift)  # [E, C]
    if spec.pooling == "max":
        index = of.pillar[:, None].expand_as(hidden)
        values = hidden.new_zeros(len(of.size), channels).scatter_reduce(0, index, hidden, "amax", include_self=False)
    else:
        tau = 2 * of.t_us.to(widest(of.t_us.device)) / of.duration_us - 1
        basis = (legendre(tau, spec.moments) * shares(of)).to(dtype)  # [K, E]
        mixed = hidden * (basis.T @ weights.alpha.T)
        values = hidden.new_zeros(len(of.size), channels).index_add(0, of.pillar, mixed) + weights.beta
    image = values.new_zeros(cells, channels).index_copy(0, of.cell, values)
    return image.view(of.windows, spec.rows, spec.columns, channels).permute(0, 3, 1, 2)


def _run_starts(pillar: Tensor, t_us: Tensor) -> Tensor:
    """[E] whether an event is the first of its pillar and time."""
    starts = torch.ones_like(pillar, dtype=torch.bool)
    starts[1:] = (pillar[1:] != pillar[:-1]) | (t_us[1:] != t_us[:-1])
    return starts


def _first_of_run(starts: Tensor) -> Tensor:
    """[E] index of the first event of each event's run."""
    return torch.where(starts, torch.arange(len(starts), device=starts.device), 0).cummax(0).values
