"""Pillar Encoding on a GPU: one stable sort by cell, then kernels that pass over each pillar's events.

Nothing of size P·N or E·C is made, nothing waits for the host, and sums are made in a fixed order, so that the same
input gives the same image to the bit; a call can be captured in a graph. ``segments.py`` is the readable twin; the
kernels are in ``cuda_binning.py`` (events to pillars) and ``cuda_kernels.py`` (pillars to image, and back).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from fate.encoding.batch import EventBatch
from fate.encoding.kernels import cuda_binning as binning
from fate.encoding.kernels import cuda_kernels as kernels
from fate.encoding.kernels.gradients import Gradients, Weights
from fate.encoding.sampling import GOLDEN, M32, mixed
from fate.encoding.spec import PillarSpec, PillarStats
from fate.errors import FateError

#: Cells that one program takes at a time, where it has all channels of them.
CELLS = 8
#: Programs that sum over the whole batch; each takes every so-manieth block of cells, whatever the GPU.
SUMMING = 1024


class Prepared(NamedTuple):
    """The pillars of a batch, by cell; events of a cell stand together, by time."""

    spec: PillarSpec
    windows: int
    begin: Tensor  #: [B · cells] int32 first event
    size: Tensor  #: [B · cells] int32 events kept
    packed: Tensor  #: [E] int64: µs since the window's start, and place in the pillar
    share: Tensor  #: [E] float32, Eq. 5 over its sum
    mean: Tensor  #: [3, B · cells] float32 mean column and row in the pillar, and mean tau
    duration_us: Tensor  #: [B]
    stats: Callable[[], PillarStats]


def prepare(batch: EventBatch, spec: PillarSpec, seed: int) -> Prepared:
    """Events by pillar, the caps applied, and each event's share."""
    total = len(batch) * spec.cells
    if max(total, batch.num_events) >= 2**31:
        raise FateError(f"{len(batch)} windows of {spec.cells} pillars are too many for one call; give smaller batches")
    with _on(batch.device):
        first = mixed(mixed(seed ^ GOLDEN) ^ (seed >> 32 & M32))
        cells = _sort(batch, spec, first)
        _cap_pillars(batch, spec, first, cells)
        _cap_events(batch, spec, first, cells)
        mean = torch.empty(3, total, dtype=torch.float32, device=batch.device)
        share = torch.empty(batch.num_events, dtype=torch.float32, device=batch.device)
        binning.describe[(triton.cdiv(total, 32),)](
            cells.begin, cells.size, cells.packed, share, mean, batch.duration_us, total, spec.cells,
            spec.pillar, UNIFORM=spec.weighting == "uniform", BLOCK=32, num_warps=1,
        )  # fmt: skip
    counts, events = cells.counts, batch.num_events

    def stats() -> PillarStats:
        return PillarStats(events, *(int(n) for n in counts.tolist()))

    return Prepared(
        spec, len(batch), cells.begin, cells.size, cells.packed, share, mean, batch.duration_us, stats
    )  # fmt: skip


class _Cells(NamedTuple):
    begin: Tensor
    size: Tensor
    packed: Tensor
    priorities: Tensor  # [B, 2048] how many pillars have a priority that begins with these bits
    counts: Tensor  # [4] as in PillarStats


def _sort(batch: EventBatch, spec: PillarSpec, first: int) -> _Cells:
    """Events by cell; a stable sort keeps their order in time."""
    device, events, windows = batch.device, batch.num_events, len(batch)
    keys = torch.empty(events, dtype=torch.int32, device=device)
    # zeros in one go: begin, size, the counts, the first histogram of priorities
    total = windows * spec.cells
    zeros = torch.zeros(2 * total + windows * binning.BINS, dtype=torch.int32, device=device)
    begin, size, priorities = zeros[:total], zeros[total : 2 * total], zeros[2 * total :].view(windows, -1)
    counts = torch.zeros(4, dtype=torch.int64, device=device)
    packed = torch.empty(events, dtype=torch.int64, device=device)
    if events:
        most = max(batch.counts)
        grid = (triton.cdiv(most, 1024), windows)
        binning.cell_keys[grid](
            batch.x, batch.y, batch.offsets, keys, spec.cells, spec.columns, spec.pillar, BLOCK=1024
        )  # fmt: skip
        ordered, order = torch.sort(keys, stable=True)
        capped = spec.max_pillars is not None and spec.max_pillars < spec.cells
        binning.gather[(triton.cdiv(events, 512),)](
            ordered, order, batch.t_us, batch.x, batch.y, batch.p, batch.start_us, packed, begin, size, priorities,
            counts, events, first, spec.cells, spec.pillar, COUNT=capped, BLOCK=512,
        )  # fmt: skip
    return _Cells(begin, size, packed, priorities, counts)


def _cap_pillars(batch: EventBatch, spec: PillarSpec, first: int, cells: _Cells) -> None:
    """Empty the pillars that ``max_pillars`` leaves out: find the limit of priorities, eleven bits at a time."""
    if spec.max_pillars is None or spec.max_pillars >= spec.cells or not batch.num_events:
        return
    windows = len(batch)
    state = torch.zeros(windows, 2, dtype=torch.int64, device=batch.device)  # the limit so far, pillars still wanted
    histogram = cells.priorities
    total = windows * spec.cells
    for level in range(3):
        if level:
            histogram = torch.zeros_like(histogram)
            binning.count_priorities[(triton.cdiv(total, 1024),)](
                cells.size, batch.start_us, state, histogram, total, first, spec.cells, LEVEL=level, BLOCK=1024
            )
        binning.choose_limit[(windows,)](histogram, state, spec.max_pillars, LEVEL=level, num_warps=8)
    binning.drop_pillars[(triton.cdiv(total, 1024),)](
        cells.size, batch.start_us, state, cells.counts, total, first, spec.cells, BLOCK=1024
    )


def _cap_events(batch: EventBatch, spec: PillarSpec, first: int, cells: _Cells) -> None:
    """Keep ``max_events`` of the fuller pillars."""
    if spec.max_events is None or not batch.num_events:
        return
    total = len(batch) * spec.cells
    priority = torch.empty(batch.num_events, dtype=torch.int64, device=batch.device)
    binning.cap_events[(triton.cdiv(total, 8),)](
        cells.begin, cells.size, cells.packed, priority, batch.start_us, cells.counts, total, first, spec.cells,
        spec.max_events, PILLARS=8, BLOCK=128, num_warps=1,
    )  # fmt: skip


def moments(prepared: Prepared) -> tuple[Tensor, Tensor, Tensor]:
    """How many events are in the image, the sum [D] of their features, and of products of two [D, D]; float64."""
    spec = prepared.spec
    parts = torch.empty(SUMMING, 16, 16, dtype=torch.float32, device=prepared.begin.device)
    with _on(parts.device):
        kernels.add_moments_of_features[(SUMMING,)](
            prepared.begin, prepared.size, prepared.packed, prepared.mean, prepared.duration_us, parts,
            prepared.windows * spec.cells, spec.cells, spec.columns, *spec.sensor, SIDE=spec.pillar,
            CENTER=spec.center_offsets, CELLS=8, num_warps=2,
        )  # fmt: skip
    sums = parts.double().sum(0)[: spec.features + 1, : spec.features + 1]
    return sums[-1, -1], sums[-1, :-1], sums[:-1, :-1]


def forward(prepared: Prepared, weights: Weights) -> Tensor:
    """The pseudo-image [B, C, H, W], channels last in memory."""
    spec, channels = prepared.spec, len(weights.beta)
    total = prepared.windows * spec.cells
    image = torch.empty(total, channels, dtype=torch.float32, device=prepared.begin.device)
    width = triton.next_power_of_2(channels)
    with _on(image.device):
        kernels.forward[(triton.cdiv(total, CELLS),)](
            prepared.begin, prepared.size, prepared.packed, prepared.share, prepared.mean, prepared.duration_us,
            *_contiguous(weights), image, total, spec.cells, spec.columns, *spec.sensor, channels, SIDE=spec.pillar,
            CENTER=spec.center_offsets, K=spec.moments, CELLS=CELLS, CHANNELS=width, num_warps=2,
        )  # fmt: skip
    return image.view(prepared.windows, spec.rows, spec.columns, channels).permute(0, 3, 1, 2)


def backward(prepared: Prepared, weights: Weights, gradient: Tensor) -> Gradients:
    """What the weights get of the image's gradient [B, C, H, W]."""
    spec, channels = prepared.spec, len(weights.beta)
    given = gradient.permute(0, 2, 3, 1).contiguous()
    width, degree = triton.next_power_of_2(channels), triton.next_power_of_2(spec.moments)
    device = gradient.device
    rows = torch.empty(SUMMING, kernels.ROWS, width, dtype=torch.float32, device=device)
    mixed_rows = torch.empty(SUMMING, width, degree, dtype=torch.float32, device=device)
    with _on(device):
        kernels.backward[(SUMMING,)](
            prepared.begin, prepared.size, prepared.packed, prepared.share, prepared.mean, prepared.duration_us,
            *_contiguous(weights), given, rows, mixed_rows, prepared.windows * spec.cells, spec.cells, spec.columns,
            *spec.sensor, channels, SIDE=spec.pillar, CENTER=spec.center_offsets, K=spec.moments, DEGREE=degree,
            CELLS=4, CHANNELS=width, num_warps=4,
        )  # fmt: skip
    sums = rows.double().sum(0)[:, :channels].to(weights.scale.dtype)
    alpha = mixed_rows.double().sum(0)[:channels, : spec.moments].to(weights.alpha.dtype)
    return Gradients(sums[: spec.features].T.contiguous(), sums[9], alpha, sums[10])


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Kernels start on the tensors' GPU, whichever is current (Triton's interpreter has none)."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _contiguous(weights: Weights) -> list[Tensor]:
    return [part.detach().contiguous() for part in weights]
