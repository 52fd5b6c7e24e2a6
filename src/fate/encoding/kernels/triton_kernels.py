"""Pillar Encoding on a GPU: a counting sort by cell, then kernels that process the events of each pillar.

There are no arrays of size P·N or E·C, and no operation waits for the GPU, so a call can be captured in a CUDA graph.
Sums have a fixed order, so the same input gives the same image to the bit. ``torch_kernels.py`` is the readable
version; the device code is in ``triton_loops.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property

import torch
import triton
from torch import Tensor, nn

from fate.encoding.batch import EventBatch
from fate.encoding.kernels import triton_loops as loops
from fate.encoding.sampling import seed_key
from fate.encoding.spec import PillarSpec, PillarStats, Weights
from fate.errors import FateError

#: Events and cells that a program sorts, and events that an event is compared with at a time.
EVENTS, ALLOCATED, COMPARED = 128, 512, 8
#: Pillars of a block of ``loops.forward``, whose programs compute all channels of a pillar.
CELLS = 2
#: Programs that fill a large GPU; if there may be more pillars, a program processes several blocks.
FULL_GPU = 32_768
#: Programs that cap pillars, for any GPU; each processes every n-th full pillar.
CAP_PROGRAMS = 4096
#: Programs of one warp that compute sums, for any GPU; each processes every n-th cell or block of cells.
SUM_PROGRAMS = 8192
#: The sum of ``loops.add_moments_of_features`` that is the product of two features. Features are x, y, tau, p, offsets
#: of x, y, tau from the pillar's mean, offsets of x, y from its centre, and 1. The sum of offsets from a mean is 0 (-).
PRODUCTS = """
    s_xx  s_xy  s_xt s_xp c_xx c_xy c_xt m_x_x m_y_x s_x
    s_xy  s_yy  s_yt s_yp c_xy c_yy c_yt m_x_y m_y_y s_y
    s_xt  s_yt  s_tt s_tp c_xt c_yt c_tt m_xt  m_yt  s_t
    s_xp  s_yp  s_tp s_1  c_xp c_yp c_tp m_xp  m_yp  s_p
    c_xx  c_xy  c_xt c_xp c_xx c_xy c_xt c_xx  c_xy  -
    c_xy  c_yy  c_yt c_yp c_xy c_yy c_yt c_xy  c_yy  -
    c_xt  c_yt  c_tt c_tp c_xt c_yt c_tt c_xt  c_yt  -
    m_x_x m_x_y m_xt m_xp c_xx c_xy c_xt m_xx  m_xy  m_x
    m_y_x m_y_y m_yt m_yp c_xy c_yy c_yt m_xy  m_yy  m_y
    s_x   s_y   s_t  s_p  -    -    -    m_x   m_y   s_1
"""
#: Longest window in µs whose events fit into 32 bits.
SHORT_US = 1 << 31 - 14


@dataclass(frozen=True)
class Prepared:
    """The pillars of a batch by cell; events of a cell are contiguous, by time and pixel code. Cells have any order."""

    spec: PillarSpec
    windows: int
    begin: Tensor  #: [B · cells] int32 index of the first event; of an empty cell it means nothing
    size: Tensor  #: [B · cells] int32 number of sampled events
    occupied: Tensor  #: int32 the cells with events, in any order; as many as the first of counts
    counts: Tensor  #: int32 counts of ``loops``; the first is the number of pillars that stay
    packed: Tensor  #: [E] int32 or int64: µs since the window's start, and pixel code in the lower bits
    duration_us: Tensor  #: [B]
    stats: Callable[[], PillarStats]

    @cached_property
    def described(self) -> tuple[Tensor, Tensor]:
        """For training: [E] weights of Eq. 5 over their sum; [3, B · cells] mean column, row and tau of each pillar."""
        total = len(self.begin)
        mean = torch.empty(3, total, dtype=torch.float32, device=self.begin.device)
        share = torch.empty(len(self.packed), dtype=torch.float32, device=self.begin.device)
        with _on(mean.device):
            loops.describe[(triton.cdiv(total, 32),)](
                self.begin, self.size, self.packed, share, mean, self.duration_us, total, self.spec.cells,
                self.spec.pillar, UNIFORM=self.spec.weighting == "uniform", BLOCK=32, num_warps=1,
            )  # fmt: skip
        return share, mean


def prepare(batch: EventBatch, spec: PillarSpec, seed: int) -> Prepared:
    """Sort events by pillar and sample those that the caps keep (``sampling.py``).

    The image of a spare window is not made (see ``EventBatch``): its events are not touched.
    """
    device, events, first = batch.device, batch.num_events, seed_key(seed)
    windows = len(batch) - batch.has_spare
    total = windows * spec.cells
    if max(total, events) >= 2**31:
        raise FateError(f"{windows} windows of {spec.cells} pillars are too many for one call; give smaller batches")
    most = max(batch.counts)  # events of a window
    crowded = spec.max_pillars is not None and spec.max_pillars < min(spec.cells, most)
    # size, pillars of each window, pillars at the limit of priorities, pillars that stay and counts of PillarStats, the
    # length of full and of the array of events, a histogram of priorities for each window
    sizes = [total, windows, windows, 6, windows * loops.BINS if crowded else 0]
    size, pillars, listed, counts, histograms = _parts(torch.zeros, sizes, device)
    short = batch.durations is not None and max(batch.durations) <= SHORT_US
    bits = torch.int32 if short else torch.int64
    unsorted, packed = (torch.empty(events, dtype=bits, device=device) for _ in range(2))
    # slots, limit of priorities of each window, begin, cells with events, cells with more than max_events
    staying = min(total, events, windows * spec.max_pillars if spec.max_pillars else total)
    lengths = [events, 2 * windows, total, staying, events // (spec.max_events + 1) + 1 if spec.max_events else 1]
    slots, limits, begin, occupied, full = _parts(torch.empty, lengths, device)
    border = torch.empty(total if crowded else 1, dtype=torch.int64, device=device)
    with _on(device):
        if events:
            by_event = triton.cdiv(most, EVENTS), windows
            columns = batch.t_us, batch.x, batch.y, batch.p, batch.offsets
            grid = spec.cells, spec.columns, spec.pillar
            loops.count_events[by_event](batch.x, batch.y, batch.offsets, size, slots, *grid, BLOCK=EVENTS)
            loops.allocate[(triton.cdiv(spec.cells, ALLOCATED), windows)](
                size, batch.start_us, begin, histograms, pillars, counts, full, first, spec.cells, spec.max_events or 0,
                COUNT=crowded, CAP=spec.max_events is not None, BLOCK=ALLOCATED,
            )  # fmt: skip
            loops.scatter[by_event](
                *columns, slots, begin, unsorted, size, batch.start_us, histograms, pillars, listed, border, limits,
                spec.max_pillars or 0, first, *grid, COUNT=crowded, BLOCK=EVENTS, CELLS=1024,
            )  # fmt: skip
            loops.order[by_event](
                *columns, slots, begin, unsorted, packed, occupied, size, batch.start_us, pillars, listed, border,
                limits, counts, spec.max_pillars or 0, first, *grid, COUNT=crowded, BLOCK=EVENTS, WIDTH=COMPARED,
            )  # fmt: skip
        if spec.max_events is not None and events:
            priority = torch.empty(events, dtype=torch.int64, device=device)
            loops.cap_events[(CAP_PROGRAMS,)](
                begin, size, packed, priority, batch.start_us, counts, full, first, spec.cells, spec.max_events,
                BLOCK=128, num_warps=1,
            )  # fmt: skip

    def stats() -> PillarStats:
        given = int(batch.offsets[windows]) if batch.has_spare else events
        return PillarStats(given, int(pillars.sum()), *(int(n) for n in counts[1:4].tolist()))

    return Prepared(spec, windows, begin, size, occupied, counts, packed, batch.duration_us, stats)


def moments(prepared: Prepared) -> tuple[Tensor, Tensor, Tensor]:
    """Number of events, sum of their features [D], and sum of the products of two features [D, D], in float64."""
    spec, total = prepared.spec, len(prepared.begin)
    programs = min(triton.cdiv(total, 32), SUM_PROGRAMS)
    parts = torch.empty(programs, len(loops.SUMS), dtype=torch.float64, device=prepared.begin.device)
    with _on(parts.device):
        loops.add_moments_of_features[(programs,)](
            prepared.begin, prepared.size, prepared.packed, prepared.duration_us, parts, total, spec.cells,
            spec.columns, SIDE=spec.pillar, CELLS=32, num_warps=1,
        )  # fmt: skip
    indices, factor = _products(spec.features, tuple(spec.sensor), parts.device)
    products = parts.sum(0)[indices] * factor
    return products[-1, -1], products[-1, :-1], products[:-1, :-1]


@cache
def _products(features: int, sensor: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """``PRODUCTS`` of D features and 1: indices of the sums [D + 1, D + 1], and their factors."""
    height, width = sensor
    chosen = [*range(features), 9]
    names = [line.split() for line in PRODUCTS.split("\n") if line]
    indices = [[loops.SUMS.index(names[i][j]) if names[i][j] != "-" else 0 for j in chosen] for i in chosen]
    there = torch.tensor([[names[i][j] != "-" for j in chosen] for i in chosen], dtype=torch.float64)
    scale = torch.tensor([(1 / width, 1 / height, 1, 1, 1 / width, 1 / height, 1, 1 / width, 1 / height, 1)[i]
                          for i in chosen], dtype=torch.float64)  # fmt: skip
    return torch.tensor(indices, device=device), (there * scale[:, None] * scale).to(device)


def fold_running(linear: nn.Linear, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Scale and shift of the linear layer and BatchNorm with running statistics, without gradients."""
    scale, shift = torch.empty_like(linear.weight), torch.empty_like(linear.bias)
    channels, features = scale.shape
    with _on(scale.device):
        loops.fold_weights[(1,)](
            linear.weight, linear.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var, scale, shift,
            norm.eps, channels, features, CHANNELS=triton.next_power_of_2(channels), FEATURES=16,
        )  # fmt: skip
    return scale, shift


def forward(prepared: Prepared, weights: Weights) -> Tensor:
    """The pseudo-image [B, C, H, W], channels last in memory."""
    spec, channels = prepared.spec, len(weights.beta)
    total = prepared.windows * spec.cells
    image = torch.zeros(total, channels, dtype=torch.float32, device=prepared.begin.device)
    most = len(prepared.occupied)  # as far as the host knows
    blocks = min(triton.next_power_of_2(triton.cdiv(most, CELLS * FULL_GPU)), 8)
    with _on(image.device):
        if most:
            loops.forward[(triton.cdiv(most, CELLS * blocks),)](
                prepared.occupied, prepared.counts, prepared.begin, prepared.size, prepared.packed,
                prepared.duration_us, *_contiguous(weights), image, spec.cells, spec.columns, *spec.sensor, channels,
                UNIFORM=spec.weighting == "uniform", SIDE=spec.pillar, CENTER=spec.center_offsets, K=spec.moments,
                CELLS=CELLS, BLOCKS=blocks, CHANNELS=triton.next_power_of_2(channels), num_warps=1,
            )  # fmt: skip
    return image.view(prepared.windows, spec.rows, spec.columns, channels).permute(0, 3, 1, 2)


def backward(prepared: Prepared, weights: Weights, gradient: Tensor) -> Weights:
    """Gradients of the weights, given the gradient [B, C, H, W] of the image."""
    spec, channels, total = prepared.spec, len(weights.beta), len(prepared.begin)
    by_cell = gradient.permute(0, 2, 3, 1).contiguous()
    width = triton.next_power_of_2(channels)
    scale, shift, alpha, _ = _contiguous(weights)
    rows = torch.empty(min(triton.cdiv(total, 64), SUM_PROGRAMS), loops.ROWS, width, device=gradient.device)
    degrees = []
    for first in range(0, spec.moments, loops.DEGREES):
        with _on(gradient.device):
            loops.backward[(len(rows),)](
                prepared.begin, prepared.size, prepared.packed, *prepared.described, prepared.duration_us, scale, shift,
                alpha, by_cell, rows, total, spec.cells, spec.columns, *spec.sensor, channels, SIDE=spec.pillar,
                CENTER=spec.center_offsets, K=spec.moments, FIRST=first, CHANNELS=width, num_warps=1,
            )  # fmt: skip
        sums = rows.sum(0, dtype=torch.float64)[:, :channels]
        degrees.append(sums[11:15])
    to_alpha = torch.cat(degrees)[: spec.moments].T.to(weights.alpha.dtype)
    combined = (_combination(spec.features, tuple(spec.sensor), gradient.device) @ sums[:11]).to(weights.scale.dtype)
    return Weights(combined[:-2].T.contiguous(), combined[-2], to_alpha.contiguous(), combined[-1])


@cache
def _combination(features: int, sensor: tuple[int, int], device: torch.device) -> Tensor:
    """[D + 2, 11] matrix from the sums of ``loops.backward`` to the gradients of scale, shift and beta."""
    height, width = sensor
    x, y, tau, p, one, beta, at_x, at_y, mean_x, mean_y, mean_tau = torch.eye(11, dtype=torch.float64)
    rows = [(x + at_x) / width, (y + at_y) / height, tau, p, (x - mean_x) / width, (y - mean_y) / height]
    rows += [tau - mean_tau, x / width, y / height]
    return torch.stack([*rows[:features], one, beta]).to(device)


def _parts(make: Callable[..., Tensor], lengths: Sequence[int], device: torch.device) -> list[Tensor]:
    """int32 tensors of these lengths in one block; all begin at multiples of 16 bytes, as ``EventBatch`` explains."""
    padded = [-(-length // 4) * 4 for length in lengths]
    block = make(sum(padded), dtype=torch.int32, device=device)
    return [part[:length] for part, length in zip(torch.split(block, padded), lengths, strict=True)]


def _on(device: torch.device) -> AbstractContextManager[object]:
    """A context in which kernels run on the GPU of the tensors (Triton's interpreter has no GPU)."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _contiguous(weights: Weights) -> list[Tensor]:
    return [part.detach().contiguous() for part in weights]
