"""Algorithm 1 of the paper, line by line, with the dense tensor X (D, P, N): slow, plain, in any float type.

This is the text to read beside the paper, and tests compare the fast versions with it. It handles one window at a time,
as the paper does; only BatchNorm uses all of them. Names and the paper's symbols:

    tau     τ     time in the window, -1 to 1              mask    m     1 for an event, 0 for padding
    X       X     event features (D, P, N)                 w       w     trapezoidal weights, Eq. 5
    hidden  H     latent features (C, P, N)                total   W     sum of a pillar's weights
    z       z     moments, Eq. 6                           representation  r   of a pillar, Eq. 7
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fate.encoding.batch import EventBatch
from fate.encoding.sampling import event_priority, pillar_priority, ranks, window_key
from fate.encoding.spec import PillarSpec, PillarStats

LatentImage = Callable[..., Tensor]


class Parameters(NamedTuple):
    """The encoder's parameters: linear layer, BatchNorm, aggregation."""

    weight: Tensor  #: [C, D]
    bias: Tensor  #: [C]
    gamma: Tensor  #: [C]
    delta: Tensor  #: [C]
    alpha: Tensor  #: [C, K]
    beta: Tensor  #: [C]


class Pillars(NamedTuple):
    """One window as dense tensors; P rows of N events, the rest padding."""

    X: Tensor  #: [D, P, N]
    tau: Tensor  #: [P, N]
    mask: Tensor  #: [P, N]
    cell: Tensor  #: [P] index of the cell in the grid, row by row; -1 for padding
    stats: PillarStats


def legendre(tau: Tensor, moments: int) -> Tensor:
    """L_0 to L_{K-1} at tau, [K, ...], by Bonnet's recursion: (k + 1) L_{k+1} = (2k + 1) τ L_k - k L_{k-1}."""
    values = [torch.ones_like(tau), tau]
    for k in range(1, moments - 1):
        values.append(((2 * k + 1) * tau * values[k] - k * values[k - 1]) / (k + 1))
    return torch.stack(values[:moments])


def trapezoid_weights(tau: Tensor, mask: Tensor) -> Tensor:
    """Eq. 5 along the last axis, [P, N]; times rise, padding comes last.

    Events of one pillar with equal times share what Eq. 5 gives them together, so that their order does not matter.
    """
    length = tau.shape[-1]
    last = mask.long().sum(-1, keepdim=True).clamp(min=1) - 1
    index = torch.arange(length, device=tau.device).expand_as(tau)
    before = torch.gather(tau, -1, (index - 1).clamp(min=0))
    after = torch.gather(tau, -1, torch.minimum(index + 1, last))
    w = (after - before) / 2 * mask
    run = (tau != before).long().cumsum(-1)  # events of one time have one index
    run = torch.where(mask > 0, run, length)
    total = w.new_zeros(*w.shape[:-1], length + 1).scatter_add(-1, run, w)
    size = w.new_zeros(*w.shape[:-1], length + 1).scatter_add(-1, run, mask)
    return torch.gather(total / size.clamp(min=1), -1, run) * mask


def pillarize(batch: EventBatch, number: int, spec: PillarSpec, seed: int, dtype: torch.dtype) -> Pillars:
    """Lines 1 to 8 and 12: the events of one window as X, with tau and mask."""
    first, last = int(batch.offsets[number]), int(batch.offsets[number + 1])
    t, x, y, p = (getattr(batch, name)[first:last].long() for name in ("t_us", "x", "y", "p"))
    size = spec.pillar
    cell = (y // size) * spec.columns + x // size

    # line 6: in each pillar by time (they come so); line 1: up to P pillars
    order = torch.argsort(cell, stable=True)
    t, x, y, p, cell = t[order], x[order], y[order], p[order], cell[order]
    pillars, pillar_of, counts = torch.unique_consecutive(cell, return_inverse=True, return_counts=True)
    priority = pillar_priority(window_key(seed, batch.start_us[number]), pillars)
    most = spec.max_pillars or max(len(pillars), 1)
    stays = ranks(priority, torch.zeros_like(pillars)) < most
    with_pillars = int(counts[~stays].sum())

    # line 3: up to N events of each
    starts = counts.cumsum(0) - counts
    same = torch.zeros_like(t, dtype=torch.bool)
    same[1:] = (t[1:] == t[:-1]) & (pillar_of[1:] == pillar_of[:-1])
    index = torch.arange(len(t), device=t.device)
    earlier = torch.where(same, -1, index).cummax(0).values - starts[pillar_of] if len(t) else index
    pixel = ((y % size) * size + x % size) * 2 + p
    deep = spec.max_events or max(int(counts.max()) if len(counts) else 1, 1)
    chosen = ranks(event_priority(priority[pillar_of], earlier, pixel), pillar_of) < deep
    crowded_out = int((~chosen & stays[pillar_of]).sum())
    keep = chosen & stays[pillar_of]
    stats = PillarStats(len(t), len(pillars), int((~stays).sum()), with_pillars, crowded_out)
    t, x, y, p, pillar_of = t[keep], x[keep], y[keep], p[keep], pillar_of[keep]

    # lines 3 and 4: padding to P × N
    row = (stays.long().cumsum(0) - 1)[pillar_of]
    column = torch.arange(len(t), device=t.device) - torch.searchsorted(row, row)

    def padded(values: Tensor) -> Tensor:
        dense = torch.zeros(most, deep, dtype=dtype, device=t.device)
        dense[row, column] = values.to(dtype)
        return dense

    mask = padded(torch.ones_like(t))
    n = mask.sum(-1, keepdim=True).clamp(min=1)
    height, width = spec.sensor
    tau = padded(2 * t.to(dtype) / batch.duration_us[number] - 1)  # line 5
    x_, y_, p_ = padded(x.to(dtype) / width), padded(y.to(dtype) / height), padded(2 * p - 1)
    features = [x_, y_, tau, p_]
    features += [(value - value.sum(-1, keepdim=True) / n) * mask for value in (x_, y_, tau)]  # line 7
    if spec.center_offsets:
        middle = (size - 1) / 2
        features += [padded(((value % size).to(dtype) - middle) / side) for value, side in ((x, width), (y, height))]
    cells = torch.full((most,), -1, device=t.device)
    cells[: int(stays.sum())] = pillars[stays]
    return Pillars(torch.stack(features), tau, mask, cells, stats)


def encode(
    batch: EventBatch,
    spec: PillarSpec,
    seed: int,
    parameters: Parameters,
    running: tuple[Tensor, Tensor] | None = None,
    eps: float = 1e-5,
    compiled: LatentImage | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor], list[PillarStats]]:
    """The pseudo-image [B, C, H, W], the mean and variance [C] that BatchNorm used, and each window's statistics.

    Args:
        batch, spec, seed: what is encoded and how.
        parameters: their type is the type of everything.
        running: BatchNorm's running mean and variance; without them, those of this batch.
        eps: of BatchNorm.
        compiled: a compiled ``latent_image``, to be measured instead of the plain one.
    """
    weight, bias = parameters.weight, parameters.bias
    windows = [pillarize(batch, number, spec, seed, weight.dtype) for number in range(len(batch))]

    # line 13: linear layer, BatchNorm over real events, ReLU
    latent = [torch.einsum("cd,dpn->cpn", weight, window.X) + bias[:, None, None] for window in windows]
    mean, variance = running or _statistics(latent, windows)
    to_image = compiled or latent_image
    image = weight.new_zeros(len(batch), len(weight), spec.cells)
    for number, (window, values) in enumerate(zip(windows, latent, strict=True)):
        representation = to_image(values, mean, variance, eps, window.tau, window.mask, spec, parameters)
        real = window.cell >= 0
        image[number, :, window.cell[real]] = representation[:, real]  # line 22
    shape = (len(batch), len(weight), spec.rows, spec.columns)
    return image.view(shape), (mean, variance), [window.stats for window in windows]


def _statistics(latent: list[Tensor], windows: list[Pillars]) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance [C] over real events."""
    count = sum(window.mask.sum() for window in windows)
    count = torch.as_tensor(count).clamp(min=1)
    pairs = list(zip(latent, windows, strict=True))
    mean = torch.stack([(values * window.mask).sum((1, 2)) for values, window in pairs]).sum(0) / count
    squares = [((values - mean[:, None, None]) ** 2 * window.mask).sum((1, 2)) for values, window in pairs]
    return mean, torch.stack(squares).sum(0) / count


def latent_image(
    latent: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    tau: Tensor,
    mask: Tensor,
    spec: PillarSpec,
    parameters: Parameters,
) -> Tensor:
    """Lines 9, 10 and 13 to 21: what the linear layer gave, [C, P, N], to the representation [C, P]."""
    _, _, gamma, delta, alpha, beta = parameters
    mean, variance, gamma, delta = (part[:, None, None] for part in (mean, variance, gamma, delta))
    hidden = torch.relu(gamma * (latent - mean) / torch.sqrt(variance + eps) + delta)  # Eq. 2
    if spec.pooling == "max":
        return torch.amax(hidden * mask, dim=-1)  # after ReLU nothing is below the padding's 0
    w = mask if spec.weighting == "uniform" else trapezoid_weights(tau, mask)  # Eq. 5
    total = w.sum(-1, keepdim=True)
    w = torch.where(total > 0, w, mask)  # one event, or all at one time: the paper has 0 / 0, we take the mean
    total = w.sum(-1).clamp(min=torch.finfo(w.dtype).tiny)  # W_j; 0 for the padding alone
    representation = beta[:, None].expand(-1, len(w))
    for k, polynomial in enumerate(legendre(tau, spec.moments)):
        z = (w * hidden * polynomial).sum(-1) / total  # Eq. 6
        representation = representation + alpha[:, k, None] * z  # Eq. 7
    return representation
