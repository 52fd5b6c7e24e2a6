"""Pillar Encoding on a GPU: one stable sort by cell, then kernels that pass over each pillar's events.

Nothing of size P·N or E·C is made, nothing waits for the host, and sums are made in a fixed order, so that the same
input gives the same image to the bit; a call can be captured in a graph. ``segments.py`` is the readable twin; the
kernels are in ``cuda_binning.py`` (events to pillars) and ``cuda_kernels.py`` (pillars to image, and back).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import triton
from torch import Tensor, nn

from fate.encoding.batch import EventBatch
from fate.encoding.kernels import cuda_binning as binning
from fate.encoding.kernels import cuda_kernels as kernels
from fate.encoding.kernels.gradients import Gradients, Weights
from fate.encoding.sampling import GOLDEN, M32, mixed
from fate.encoding.spec import PillarSpec, PillarStats
from fate.errors import FateError

#: Cells that one program takes at a time, where it has all channels of them.
CELLS = 2
#: Programs that fill a large GPU: of more, each takes several blocks of cells, since most have none but empty ones.
ENOUGH = 32_768
#: Programs that cap pillars or sum gradients over a whole batch; each takes every n-th, whatever the GPU.
SUMMING = 1024
#: Programs that sum products of features, in a large batch.
MOMENTS = 4096
#: Windows shorter than this, µs, leave room for an event in 32 bits.
SHORT_US = 1 << 31 - 14


@dataclass(frozen=True)
class Prepared:
    """The pillars of a batch, by cell; events of a cell stand together, by time."""

    spec: PillarSpec
    windows: int
    begin: Tensor  #: [B · cells] int32 first event
    size: Tensor  #: [B · cells] int32 events kept
    packed: Tensor  #: [E] int32 or int64: µs since the window's start, and place in the pillar
    duration_us: Tensor  #: [B]
    stats: Callable[[], PillarStats]

    @cached_property
    def described(self) -> tuple[Tensor, Tensor]:
        """What only training needs: [E] float32, Eq. 5 over its sum; [3, B · cells], mean column, row and tau."""
        total = len(self.begin)
        mean = torch.empty(3, total, dtype=torch.float32, device=self.begin.device)
        share = torch.empty(len(self.packed), dtype=torch.float32, device=self.begin.device)
        with _on(mean.device):
            binning.describe[(triton.cdiv(total, 32),)](
                self.begin, self.size, self.packed, share, mean, self.duration_us, total, self.spec.cells,
                self.spec.pillar, UNIFORM=self.spec.weighting == "uniform", BLOCK=32, num_warps=1,
            )  # fmt: skip
        return share, mean


def prepare(batch: EventBatch, spec: PillarSpec, seed: int) -> Prepared:
    """Events by pillar, the caps applied."""
    total = len(batch) * spec.cells
    if max(total, batch.num_events) >= 2**31:
        raise FateError(f"{len(batch)} windows of {spec.cells} pillars are too many for one call; give smaller batches")
    with _on(batch.device):
        first = mixed(mixed(seed ^ GOLDEN) ^ (seed >> 32 & M32))
        cells = _sort(batch, spec, first)
        _cap_pillars(batch, spec, first, cells)
        _cap_events(batch, spec, first, cells)
    counts, events = cells.counts[:4], batch.num_events

    def stats() -> PillarStats:
        return PillarStats(events, *(int(n) for n in counts.tolist()))

    return Prepared(spec, len(batch), cells.begin, cells.size, cells.packed, batch.duration_us, stats)


class _Cells(NamedTuple):
    begin: Tensor
    size: Tensor
    packed: Tensor
    histograms: Tensor  # [3, B, 2048] pillars by priority
    counts: Tensor  # [5] four as in PillarStats, and how many entries of ``full`` are used
    full: Tensor  # pillars with more than max_events


def _sort(batch: EventBatch, spec: PillarSpec, first: int) -> _Cells:
    """Events by cell; a stable sort keeps their order in time."""
    device, events, windows = batch.device, batch.num_events, len(batch)
    total = windows * spec.cells
    keys = torch.empty(
        events, dtype=torch.int16 if total < 2**15 else torch.int32, device=device
    )  # short ones sort faster
    sizes = [total, total, 3 * windows * binning.BINS, 5]
    zeros = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
    begin, size, histograms, counts = torch.split(zeros, sizes)
    short = batch.durations is not None and max(batch.durations) <= SHORT_US
    bits = torch.int32 if short else torch.int64
    unsorted, packed = (torch.empty(events, dtype=bits, device=device) for _ in range(2))
    capped = spec.max_events is not None
    full = torch.empty(events // (spec.max_events + 1) + 1 if spec.max_events else 1, dtype=torch.int32, device=device)
    if events:
        grid = (triton.cdiv(max(batch.counts), 1024), windows)
        binning.cell_keys[grid](
            batch.t_us, batch.x, batch.y, batch.p, batch.offsets, keys, unsorted, spec.cells, spec.columns,
            spec.pillar, BLOCK=1024,
        )  # fmt: skip
        ordered, order = torch.sort(keys, stable=True)
        binning.gather[(triton.cdiv(events, 512),)](
            ordered, order, unsorted, batch.start_us, packed, begin, size, histograms, counts, full, events, first,
            spec.cells, spec.max_events or 0, COUNT=_crowded(batch, spec), CAP=capped, BLOCK=512,
        )  # fmt: skip
    return _Cells(begin, size, packed, histograms, counts, full)


def _crowded(batch: EventBatch, spec: PillarSpec) -> bool:
    """Whether some window may have more than ``max_pillars``."""
    return spec.max_pillars is not None and spec.max_pillars < min(spec.cells, max(batch.counts))


def _cap_pillars(batch: EventBatch, spec: PillarSpec, first: int, cells: _Cells) -> None:
    """Empty the pillars that ``max_pillars`` leaves out: find the limit of priorities, eleven bits at a time."""
    if not _crowded(batch, spec):
        return
    grid = (triton.cdiv(spec.cells, 1024), len(batch))
    for level in (1, 2):
        binning.count_priorities[grid](
            cells.size, batch.start_us, cells.histograms, spec.max_pillars, first, spec.cells, LEVEL=level, BLOCK=1024
        )
    binning.drop_pillars[grid](
        cells.size, batch.start_us, cells.histograms, cells.counts, spec.max_pillars, first, spec.cells, BLOCK=1024
    )


def _cap_events(batch: EventBatch, spec: PillarSpec, first: int, cells: _Cells) -> None:
    """Keep ``max_events`` of the fuller pillars."""
    if spec.max_events is None or not batch.num_events:
        return
    priority = torch.empty(batch.num_events, dtype=torch.int64, device=batch.device)
    binning.cap_events[(SUMMING,)](
        cells.begin, cells.size, cells.packed, priority, batch.start_us, cells.counts, cells.full, first, spec.cells,
        spec.max_events, BLOCK=128, num_warps=1,
    )  # fmt: skip


def moments(prepared: Prepared) -> tuple[Tensor, Tensor, Tensor]:
    """How many events are in the image, the sum [D] of their features, and of products of two [D, D]; float64."""
    spec = prepared.spec
    total, cells = prepared.windows * spec.cells, 8
    programs = min(triton.cdiv(total, 16 * cells), MOMENTS)
    parts = torch.empty(programs, 16, 16, dtype=torch.float64, device=prepared.begin.device)
    with _on(parts.device):
        kernels.add_moments_of_features[(programs,)](
            prepared.begin, prepared.size, prepared.packed, prepared.described[1], prepared.duration_us, parts, total,
            spec.cells, spec.columns, *spec.sensor, SIDE=spec.pillar, CENTER=spec.center_offsets, CELLS=cells,
            num_warps=2,
        )  # fmt: skip
    sums = parts.sum(0)[: spec.features + 1, : spec.features + 1]
    return sums[-1, -1], sums[-1, :-1], sums[:-1, :-1]


def fold_running(linear: nn.Linear, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Linear layer and BatchNorm with running statistics as one affine map, without gradients: scale and shift."""
    scale, shift = torch.empty_like(linear.weight), torch.empty_like(linear.bias)
    channels, features = scale.shape
    with _on(scale.device):
        kernels.fold_weights[(1,)](
            linear.weight, linear.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var, scale, shift,
            norm.eps, channels, features, CHANNELS=triton.next_power_of_2(channels), FEATURES=16,
        )  # fmt: skip
    return scale, shift


def forward(prepared: Prepared, weights: Weights) -> Tensor:
    """The pseudo-image [B, C, H, W], channels last in memory."""
    spec, channels = prepared.spec, len(weights.beta)
    total = prepared.windows * spec.cells
    image = torch.empty(total, channels, dtype=torch.float32, device=prepared.begin.device)
    width = triton.next_power_of_2(channels)
    blocks = min(triton.next_power_of_2(triton.cdiv(total, CELLS * ENOUGH)), 8)
    with _on(image.device):
        kernels.forward[(triton.cdiv(total, CELLS * blocks),)](
            prepared.begin, prepared.size, prepared.packed, prepared.duration_us, *_contiguous(weights), image, total,
            spec.cells, spec.columns, *spec.sensor, channels, UNIFORM=spec.weighting == "uniform", SIDE=spec.pillar,
            CENTER=spec.center_offsets, K=spec.moments, CELLS=CELLS, BLOCKS=blocks, CHANNELS=width, num_warps=1,
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
            prepared.begin, prepared.size, prepared.packed, *prepared.described, prepared.duration_us,
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
