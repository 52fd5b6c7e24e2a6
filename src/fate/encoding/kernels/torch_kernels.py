"""Pillar Encoding in plain torch, on any device and in any float type: events sorted by pillar, sums by segment.

The compiled versions are compared with this one, and it runs where they cannot (a GPU without Triton, MPS). Autograd
computes the gradient, so H (E × C) is kept for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fate.encoding.batch import EventBatch, window_of_events
from fate.encoding.kernels.reference import legendre
from fate.encoding.sampling import event_priority, pillar_priority, ranks, window_key
from fate.encoding.spec import PillarSpec, PillarStats, Weights


class Segments(NamedTuple):
    """The events that the caps keep, by pillar and time; J pillars, E events."""

    spec: PillarSpec
    windows: int
    t_us: Tensor  #: [E] since the window's start
    duration_us: Tensor  #: [E] of the event's window
    x: Tensor  #: [E]
    y: Tensor  #: [E]
    p: Tensor  #: [E] 0 or 1
    pillar: Tensor  #: [E] index of the event's pillar, ascending
    size: Tensor  #: [J] events of each pillar
    cell: Tensor  #: [J] its cell of the grid, window by window, row by row
    stats: PillarStats


def prepare(batch: EventBatch, spec: PillarSpec, seed: int) -> Segments:
    """Sort events by pillar and apply the caps."""
    window = window_of_events(batch)
    t_us, x, y, p = (getattr(batch, name).long() for name in ("t_us", "x", "y", "p"))
    side = spec.pillar
    cell = (window * spec.rows + y // side) * spec.columns + x // side
    order = torch.argsort(cell, stable=True)
    window, t_us, x, y, p, cell = (column[order] for column in (window, t_us, x, y, p, cell))
    cells, pillar, size = torch.unique_consecutive(cell, return_inverse=True, return_counts=True)

    owner = cells // spec.cells
    priority = pillar_priority(window_key(seed, batch.start_us)[owner], cells % spec.cells)
    stays = torch.ones_like(cells, dtype=torch.bool)
    if spec.max_pillars is not None:
        stays = ranks(priority, owner) < spec.max_pillars
    chosen = torch.ones_like(pillar, dtype=torch.bool)
    if spec.max_events is not None and len(t_us):
        earlier = _first_of_run(_run_starts(pillar, t_us)) - (size.cumsum(0) - size)[pillar]
        pixel = ((y % side) * side + x % side) * 2 + p
        chosen = ranks(event_priority(priority[pillar], earlier, pixel), pillar) < spec.max_events
    keep = chosen & stays[pillar]
    stats = PillarStats(
        events=len(t_us),
        pillars=len(cells),
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


def event_features(events: Segments, dtype: torch.dtype) -> Tensor:
    """[E, D] features of each event, in the order of Eq. 1."""
    spec, wide = events.spec, widest(events.t_us.device)
    height, width = spec.sensor

    def mean(values: Tensor) -> Tensor:  # of whole numbers, so exact up to the division
        sums = torch.zeros_like(events.size).index_add(0, events.pillar, values)
        return (sums / events.size.to(wide))[events.pillar]

    x, y, t = events.x.to(wide), events.y.to(wide), events.t_us.to(wide)
    tau = 2 * t / events.duration_us - 1
    columns = [x / width, y / height, tau, 2.0 * events.p - 1]
    columns += [(x - mean(events.x)) / width, (y - mean(events.y)) / height]
    columns += [2 * (t - mean(events.t_us)) / events.duration_us]
    if spec.center_offsets:
        middle = (spec.pillar - 1) / 2
        columns += [(x % spec.pillar - middle) / width, (y % spec.pillar - middle) / height]
    return torch.stack([column.to(dtype) for column in columns], dim=1)


def normalized_weights(events: Segments) -> Tensor:
    """[E] weights of Eq. 5 divided by their sum; uniform where all events of a pillar have one time."""
    size = events.size[events.pillar]
    wide = widest(size.device)
    uniform = 1 / size.to(wide)
    if events.spec.weighting == "uniform" or not len(events.t_us):
        return uniform
    starts = _run_starts(events.pillar, events.t_us)
    run = starts.long().cumsum(0) - 1
    time, owner = events.t_us[starts], events.pillar[starts]
    same = owner[1:] == owner[:-1]
    gap = torch.where(same, time[1:] - time[:-1], 0)
    none = gap.new_zeros(1)
    weight = torch.cat([none, gap]) + torch.cat([gap, none])
    last = events.size.cumsum(0) - 1
    span = (events.t_us[last] - events.t_us[last - events.size + 1])[events.pillar]
    together = torch.bincount(run)[run]
    return torch.where(span > 0, weight[run].to(wide) / (2.0 * span.clamp(min=1) * together), uniform)


def moments(events: Segments) -> tuple[int, Tensor, Tensor]:
    """The number of events, the sum [D] of their features, and the sum of products of two features [D, D]."""
    values = event_features(events, widest(events.t_us.device))
    return len(values), values.sum(0), values.T @ values


def forward(events: Segments, weights: Weights) -> Tensor:
    """The pseudo-image [B, C, H, W]."""
    spec, dtype = events.spec, weights.scale.dtype
    channels, cells = len(weights.beta), events.windows * spec.cells
    hidden = torch.relu(event_features(events, dtype) @ weights.scale.T + weights.shift)  # [E, C]
    if spec.pooling == "max":
        index = events.pillar[:, None].expand_as(hidden)
        values = hidden.new_zeros(len(events.size), channels).scatter_reduce(
            0, index, hidden, "amax", include_self=False
        )
    else:
        tau = 2 * events.t_us.to(widest(events.t_us.device)) / events.duration_us - 1
        basis = (legendre(tau, spec.moments) * normalized_weights(events)).to(dtype)  # [K, E]
        weighted = hidden * (basis.T @ weights.alpha.T)
        values = hidden.new_zeros(len(events.size), channels).index_add(0, events.pillar, weighted) + weights.beta
    image = values.new_zeros(cells, channels).index_copy(0, events.cell, values)
    return image.view(events.windows, spec.rows, spec.columns, channels).permute(0, 3, 1, 2)


def _run_starts(pillar: Tensor, t_us: Tensor) -> Tensor:
    """[E] whether an event is the first of its pillar and time."""
    starts = torch.ones_like(pillar, dtype=torch.bool)
    starts[1:] = (pillar[1:] != pillar[:-1]) | (t_us[1:] != t_us[:-1])
    return starts


def _first_of_run(starts: Tensor) -> Tensor:
    """[E] index of the first event of each event's run."""
    return torch.where(starts, torch.arange(len(starts), device=starts.device), 0).cummax(0).values
