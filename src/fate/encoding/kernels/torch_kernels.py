"""Pillar Encoding in plain torch, on any device and in any float type: events sorted by pillar, sums over segments.

Tests compare the compiled versions with this one. It runs on devices that they do not support (a GPU without Triton,
MPS). Autograd computes the gradient, which needs H (E × C) in memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fate.encoding.batch import EventBatch, window_of_events
from fate.encoding.sampling import event_priority, pillar_priority, ranks, window_key
from fate.encoding.spec import PillarSpec, PillarStats, Weights


class Segments(NamedTuple):
    """The E sampled events of J pillars, sorted by pillar and time."""

    spec: PillarSpec
    windows: int
    t_us: Tensor  #: [E] µs since the window's start
    duration_us: Tensor  #: [E] duration of the event's window
    x: Tensor  #: [E]
    y: Tensor  #: [E]
    p: Tensor  #: [E] 0 or 1
    pillar: Tensor  #: [E] index of the event's pillar, ascending
    size: Tensor  #: [J] events of each pillar
    cell: Tensor  #: [J] index of the pillar's cell, counted window by window, row by row
    stats: PillarStats


def prepare(batch: EventBatch, spec: PillarSpec, seed: int) -> Segments:
    """Sort events by pillar and sample those that the caps keep (``sampling.py``)."""
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
    if spec.max_events is not None:
        earlier = runs(pillar, t_us)[0] - (size.cumsum(0) - size)[pillar]
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
    t_us, x, y, p = (column[keep] for column in (t_us, x, y, p))
    return Segments(spec, len(batch), t_us, duration_us, x, y, p, pillar, size, kept, stats)


def legendre(tau: Tensor, moments: int) -> Tensor:
    """L_0 to L_{K-1} at tau, [K, ...], by Bonnet's recursion: (k + 1) L_{k+1} = (2k + 1) τ L_k - k L_{k-1}."""
    values = [torch.ones_like(tau), tau]
    for k in range(1, moments - 1):
        values.append(((2 * k + 1) * tau * values[k] - k * values[k - 1]) / (k + 1))
    return torch.stack(values[:moments])


def widest(device: torch.device) -> torch.dtype:
    """The widest float type of a device: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def event_features(events: Segments, dtype: torch.dtype) -> Tensor:
    """[E, D] features of each event, in the order of Eq. 1."""
    spec, wide = events.spec, widest(events.t_us.device)
    height, width = spec.sensor

    def mean(values: Tensor) -> Tensor:  # the sum of integers is exact
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
    """[E] weights of Eq. 5 divided by their sum; uniform if all events of a pillar have the same time."""
    pillar, t_us, size = events.pillar, events.t_us, events.size[events.pillar]
    wide = widest(size.device)
    uniform = 1 / size.to(wide)
    if events.spec.weighting == "uniform":
        return uniform
    first, together = runs(pillar, t_us)
    before, after = (first - 1).clamp(min=0), (first + together).clamp(max=t_us.shape[0] - 1)
    earlier = torch.where(pillar[before] == pillar, t_us[before], t_us)
    later = torch.where(pillar[after] == pillar, t_us[after], t_us)
    begin = (events.size.cumsum(0) - events.size)[pillar]
    span = t_us[begin + size - 1] - t_us[begin]
    share = (later - earlier).to(wide) / (2 * span.clamp(min=1) * together).to(wide)
    return torch.where(span > 0, share, uniform)


def runs(pillar: Tensor, t_us: Tensor) -> tuple[Tensor, Tensor]:
    """[E] index of the first event with the same pillar and time, and [E] number of such events."""
    changes = (pillar[1:] != pillar[:-1]) | (t_us[1:] != t_us[:-1])
    starts = torch.cat([torch.ones_like(pillar[:1], dtype=torch.bool), changes])
    run, index = starts.long().cumsum(0) - 1, torch.arange(pillar.shape[0], device=pillar.device)
    first = torch.zeros_like(run).scatter_add(0, run, torch.where(starts, index, 0))
    return first[run], torch.zeros_like(run).scatter_add(0, run, torch.ones_like(run))[run]


def moments(events: Segments) -> tuple[int, Tensor, Tensor]:
    """Number of events, sum of their features [D], and sum of the products of two features [D, D]."""
    values = event_features(events, widest(events.t_us.device))
    return len(values), values.sum(0), values.T @ values


def hidden_values(events: Segments, weights: Weights) -> Tensor:
    """H [E, C], Eq. 2."""
    return torch.relu(event_features(events, weights.scale.dtype) @ weights.scale.T + weights.shift)


def pillar_values(events: Segments, weights: Weights) -> Tensor:
    """Representations of the pillars [J, C], Eq. 6 and 7."""
    hidden = hidden_values(events, weights)
    tau = 2 * events.t_us.to(widest(events.t_us.device)) / events.duration_us - 1
    basis = (legendre(tau, events.spec.moments) * normalized_weights(events)).to(hidden.dtype)  # [K, E]
    weighted = hidden * (basis.T @ weights.alpha.T)
    sums = hidden.new_zeros(events.size.shape[0], hidden.shape[1]).index_add(0, events.pillar, weighted)
    return sums + weights.beta


def forward(events: Segments, weights: Weights) -> Tensor:
    """The pseudo-image [B, C, H, W]."""
    spec, channels = events.spec, len(weights.beta)
    if spec.pooling == "max":
        hidden = hidden_values(events, weights)
        index = events.pillar[:, None].expand_as(hidden)
        empty = hidden.new_zeros(len(events.size), channels)
        values = empty.scatter_reduce(0, index, hidden, "amax", include_self=False)
    else:
        values = pillar_values(events, weights)
    image = values.new_zeros(events.windows * spec.cells, channels).index_copy(0, events.cell, values)
    return image.view(events.windows, spec.rows, spec.columns, channels).permute(0, 3, 1, 2)
