"""Algorithm 1 of the paper, line by line, with the dense tensor X (D, P, N): slow, readable, in any float type.

This is the text to read beside the paper, and tests compare the fast versions with it. One window is encoded at a time,
as in the paper; only BatchNorm uses all windows. Names and the paper's symbols:

    tau     τ     time in the window, -1 to 1              mask    m     1 for an event, 0 for padding
    X       X     event features (D, P, N)                 w       w     trapezoidal weights, Eq. 5
    hidden  H     latent features (C, P, N)                total   W     sum of the weights of a pillar
    z       z     moments, Eq. 6                           representation  r   of a pillar, Eq. 7
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fate.encoding.batch import EventBatch
from fate.encoding.kernels.torch_kernels import Segments, legendre, prepare
from fate.encoding.spec import PillarSpec, PillarStats

EPS = 1e-5  #: of BatchNorm


class Parameters(NamedTuple):
    """The encoder's parameters: linear layer, BatchNorm, aggregation."""

    weight: Tensor  #: [C, D]
    bias: Tensor  #: [C]
    gamma: Tensor  #: [C]
    delta: Tensor  #: [C]
    alpha: Tensor  #: [C, K]
    beta: Tensor  #: [C]


class Pillars(NamedTuple):
    """One window as dense tensors: P pillars of N events, padded."""

    X: Tensor  #: [D, P, N]
    tau: Tensor  #: [P, N]
    mask: Tensor  #: [P, N]
    cell: Tensor  #: [P] index of the cell in the grid, row by row; -1 for padding


def trapezoid_weights(tau: Tensor, mask: Tensor) -> Tensor:
    """Eq. 5 along the last axis, [P, N]; times increase, padding comes last.

    Events of a pillar with equal times share the sum of their weights equally, so that their order does not matter.
    """
    length = tau.shape[-1]
    last = mask.long().sum(-1, keepdim=True).clamp(min=1) - 1
    index = torch.arange(length, device=tau.device).expand_as(tau)
    before = torch.gather(tau, -1, (index - 1).clamp(min=0))
    after = torch.gather(tau, -1, torch.minimum(index + 1, last))
    w = (after - before) / 2 * mask
    run = (tau != before).long().cumsum(-1)  # events of equal times have the same index
    run = torch.where(mask > 0, run, length)
    total = w.new_zeros(*w.shape[:-1], length + 1).scatter_add(-1, run, w)
    size = w.new_zeros(*w.shape[:-1], length + 1).scatter_add(-1, run, mask)
    return torch.gather(total / size.clamp(min=1), -1, run) * mask


def pillarize(events: Segments, window: int, dtype: torch.dtype) -> Pillars:
    """Lines 1 to 8 and 12: pad the events of one window to P × N; ``prepare`` has sampled and sorted them."""
    spec, here = events.spec, events.cell // events.spec.cells == window
    own = here[events.pillar]
    t, x, y, p, duration_us = (part[own] for part in (events.t_us, events.x, events.y, events.p, events.duration_us))
    pillars = int(here.sum())
    most = spec.max_pillars or max(pillars, 1)
    deep = spec.max_events or int(events.size[here].max() if pillars else 1)
    row = (here.long().cumsum(0) - 1)[events.pillar[own]]
    column = torch.arange(len(t), device=t.device) - torch.searchsorted(row, row)

    def padded(values: Tensor) -> Tensor:
        dense = torch.zeros(most, deep, dtype=dtype, device=t.device)
        dense[row, column] = values.to(dtype)
        return dense

    mask = padded(torch.ones_like(t))
    n = mask.sum(-1, keepdim=True).clamp(min=1)
    height, width = spec.sensor
    tau = padded(2 * t.to(dtype) / duration_us - 1)  # line 5
    x_, y_, p_ = padded(x.to(dtype) / width), padded(y.to(dtype) / height), padded(2 * p - 1)
    features = [x_, y_, tau, p_]
    features += [(value - value.sum(-1, keepdim=True) / n) * mask for value in (x_, y_, tau)]  # line 7
    if spec.center_offsets:
        middle, sides = (spec.pillar - 1) / 2, ((x, width), (y, height))
        features += [padded(((value % spec.pillar).to(dtype) - middle) / side) for value, side in sides]
    cells = torch.full((most,), -1, device=t.device)
    cells[:pillars] = events.cell[here] % spec.cells
    return Pillars(torch.stack(features), tau, mask, cells)


def encode(
    batch: EventBatch,
    spec: PillarSpec,
    seed: int,
    parameters: Parameters,
    running: tuple[Tensor, Tensor] | None = None,
    compiled: Callable[..., Tensor] | None = None,
) -> tuple[Tensor, PillarStats]:
    """The pseudo-image [B, C, H, W], and the counts of events and pillars.

    Args:
        batch, spec, seed: the events, the settings, and the seed of the sampling.
        parameters: everything is computed in their float type.
        running: mean and variance of BatchNorm; None for those of this batch.
        compiled: a compiled version of ``latent_image``, for benchmarks.
    """
    weight, bias = parameters.weight, parameters.bias
    events = prepare(batch, spec, seed)
    windows = [pillarize(events, number, weight.dtype) for number in range(len(batch))]

    # line 13: linear layer, BatchNorm over real events, ReLU
    latent = [torch.einsum("cd,dpn->cpn", weight, window.X) + bias[:, None, None] for window in windows]
    mean, variance = running or _statistics(latent, windows)
    image = weight.new_zeros(len(batch), len(weight), spec.cells)
    for number, (window, values) in enumerate(zip(windows, latent, strict=True)):
        representation = (compiled or latent_image)(values, mean, variance, window, spec, parameters)
        real = window.cell >= 0
        image[number, :, window.cell[real]] = representation[:, real]  # line 22
    return image.view(len(batch), len(weight), spec.rows, spec.columns), events.stats


def _statistics(latent: list[Tensor], windows: list[Pillars]) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance [C] over real events."""
    count = torch.as_tensor(sum(window.mask.sum() for window in windows)).clamp(min=1)
    pairs = list(zip(latent, windows, strict=True))
    mean = torch.stack([(values * window.mask).sum((1, 2)) for values, window in pairs]).sum(0) / count
    squares = [((values - mean[:, None, None]) ** 2 * window.mask).sum((1, 2)) for values, window in pairs]
    return mean, torch.stack(squares).sum(0) / count


def latent_image(
    latent: Tensor, mean: Tensor, variance: Tensor, window: Pillars, spec: PillarSpec, parameters: Parameters
) -> Tensor:
    """Lines 9, 10 and 13 to 21: the output of the linear layer [C, P, N] to the representation [C, P]."""
    _, _, gamma, delta, alpha, beta = parameters
    mean, variance, gamma, delta = (part[:, None, None] for part in (mean, variance, gamma, delta))
    hidden = torch.relu(gamma * (latent - mean) / torch.sqrt(variance + EPS) + delta)  # Eq. 2
    mask = window.mask
    if spec.pooling == "max":
        return torch.amax(hidden * mask, dim=-1)  # after ReLU nothing is below the padding's 0
    w = mask if spec.weighting == "uniform" else trapezoid_weights(window.tau, mask)  # Eq. 5
    total = w.sum(-1, keepdim=True)
    w = torch.where(total > 0, w, mask)  # one event, or equal times: the paper has 0 / 0, we take the mean
    total = w.sum(-1).clamp(min=torch.finfo(w.dtype).tiny)  # W_j; 0 for padding only
    representation = beta[:, None].expand(-1, len(w))
    for k, polynomial in enumerate(legendre(window.tau, spec.moments)):
        z = (w * hidden * polynomial).sum(-1) / total  # Eq. 6
        representation = representation + alpha[:, k, None] * z  # Eq. 7
    return representation
