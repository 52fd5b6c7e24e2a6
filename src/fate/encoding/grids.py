"""Representations of other detectors: images of the events of a window, as encoders with the same interface.

========================  ===========================================  =================================  ========
name                      channels                                     value of a cell without events     stride
========================  ===========================================  =================================  ========
``histogram``             2 polarities × 10 bins, OFF first (RVT)      0                                  1
``evrt-histogram``        2 polarities × 10 bins, ON first (EvRT-DETR) 0                                  1
``voxel``                 5 bins, signed                               0                                  1
``time-surface``          OFF, ON                                      0                                  1
``tore``                  2 polarities × 3 events, ON first            the largest (``empty_value``)      1
``group-tokens``          24 groups × 2 × 16 (GET)                     0                                  4
========================  ===========================================  =================================  ========

Each is an ``nn.Module`` without parameters, from an ``EventBatch`` of B windows of any durations to [B, ``channels``,
H', W'] float32. Each is implemented twice: in tensor operations for any device, and as a compiled pass over the events
on the CPU (``kernels/grid_loops.py``). Both give the same image.

**The same numbers on every device.** Sums are integer sums (of events or microseconds), divided once at the end. They
depend neither on the device nor on the order in which a GPU adds: counts, voxels and tokens are equal to the bit. Only
the exponential and the logarithm of the two surfaces may differ in the last digit. No operation waits for the device or
has a shape that depends on values, so a forward pass can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.encoding.batch import EventBatch, check_batch, host_columns, window_of_events
from fate.encoding.kernels import grid_loops as loops
from fate.encoding.kernels.cpu_kernels import in_threads
from fate.encoding.kernels.grid_loops import OVER_EVENTS, OVER_EVENTS_INCLUDING_LAST, OVER_WINDOW
from fate.encoding.spec import check_choice, check_options, whole_number
from fate.errors import FateError
from fate.events.events import Sensor

EVENTS_A_THREAD = 20_000  # starting a thread takes longer than processing fewer events
UINT8_VALUES = 256
NO_SPAN = 1e-4  # µs added to the span of group tokens, which avoids 0 / 0 if all events have the same time

#: A loop of ``grid_loops``, the shape of a window's image in the loop, and further arguments of the loop.
Loop = tuple[Callable[..., None], Sequence[int], Sequence[Any]]


class GridEncoder(nn.Module, ABC):
    """Events of B windows to images [B, C, H', W'], float32, without parameters.

    Attributes:
        sensor: (height, width) of the events, pixels.
        channels: C.
        stride: pixels along a side of one cell of the image.
        size: (H', W').
        empty_value: the value of a cell without events; images are padded with it.
    """

    empty_value: float = 0.0

    def __init__(
        self, sensor: Sequence[int], channels: int, stride: int = 1, size: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.sensor = Sensor.of(sensor)
        self.channels, self.stride = channels, stride
        self.size = Sensor.of(size if size is not None else self.sensor)

    def forward(self, batch: EventBatch) -> Tensor:
        """[B, C, H', W'] float32, on the batch's device."""
        check_batch(batch, self.sensor)
        return self.encode_cpu(batch) if batch.device.type == "cpu" else self.encode_torch(batch)

    def encode_torch(self, batch: EventBatch) -> Tensor:
        """Compute the image in tensor operations, on any device."""
        return self.finish(self.by_tensors(batch), len(batch))

    def encode_cpu(self, batch: EventBatch) -> Tensor:
        """Compute the image by a compiled loop on the CPU; threads share the windows of a large batch."""
        loop, shape, arguments = self.by_loop()
        full = (len(batch), *shape)
        # np.zeros allocates memory without writing to it, so untouched cells cost nothing
        image = np.full(full, self.empty_value, np.float32) if self.empty_value else np.zeros(full, np.float32)
        columns = host_columns(batch)
        events = [columns[name] for name in ("t_us", "x", "y", "p")]
        offsets, duration_us = columns["offsets"], columns["duration_us"]
        parts = min(torch.get_num_threads(), len(batch), max(1, batch.num_events // EVENTS_A_THREAD))

        def fill(part: int) -> None:
            first, last = len(batch) * part // parts, len(batch) * (part + 1) // parts
            loop((*events, offsets[first : last + 1], duration_us[first:last]), image[first:last], *arguments)

        in_threads(fill, parts)
        return self.finish(torch.from_numpy(image), len(batch))

    @abstractmethod
    def by_tensors(self, batch: EventBatch) -> Tensor:
        """The values of ``encode_torch`` in any shape."""

    @abstractmethod
    def by_loop(self) -> Loop:
        """The loop of ``encode_cpu``."""

    def finish(self, image: Tensor, windows: int) -> Tensor:
        """The values of ``windows`` images in any shape to [B, C, H', W']."""
        return image.view(windows, self.channels, *self.size)

    def extra_repr(self) -> str:
        return f"{self.sensor}, channels={self.channels}, stride={self.stride}"


class StackedHistogram(GridEncoder):
    """RVT's stacked histogram: events per polarity, time bin and pixel. Channel = polarity · bins + bin, OFF first.

    An event ``d`` µs after the first one, in a span of ``s`` µs, is in bin ``d · bins // s``. RVT computes this in
    single precision, which gives the same bin for every event of every window up to half a second at up to 21 bins.

    Args:
        bins: time bins of a window.
        count_cutoff: larger counts are set to this value; None for no limit.
        bins_over: "events" divides the time from the window's first to its last event into bins, as RVT does; "window"
            divides the window, so that bins have the same length in all windows.
        wrap: counts have 8 bits, as in RVT's published data: 256 events count as 0, 257 as 1.
        downsample: keep one pixel of ``downsample`` × ``downsample``, as RVT does with 2 for 1Mpx (nearest-exact: the
            pixel right of and below the middle). Events of other pixels only affect the first and last time.
    """

    on_first = 0  #: 1 if the channels of ON events come first

    def __init__(
        self,
        sensor: Sequence[int],
        bins: int = 10,
        count_cutoff: int | None = 10,
        bins_over: Literal["events", "window"] = "events",
        wrap: bool = True,
        downsample: int = 1,
    ) -> None:
        super().__init__(sensor, 2 * whole_number("bins", bins), *_downsampled(sensor, downsample))
        self.bins = int(bins)
        self.count_cutoff = None if count_cutoff is None else whole_number("count_cutoff", count_cutoff)
        check_choice("bins_over", bins_over, ("events", "window"))
        self.over = OVER_WINDOW if bins_over == "window" else OVER_EVENTS
        self.wrap = bool(wrap)
        self.step = self.stride  #: pixels from one pixel that is counted to the next

    def by_tensors(self, batch: EventBatch) -> Tensor:
        window, time_bin, _, _ = _time_bins(batch, self.bins, self.over)
        step, (rows, columns) = self.step, (side // self.step for side in self.sensor)
        y, x = batch.y.long(), batch.x.long()
        row, column = torch.div(y, step, rounding_mode="floor"), torch.div(x, step, rounding_mode="floor")
        middle = (y - row * step == step // 2) & (x - column * step == step // 2)
        counted = middle & (row < rows) & (column < columns)
        row, column = row.clamp(max=rows - 1), column.clamp(max=columns - 1)
        plane = (window * 2 + (batch.p.long() ^ self.on_first)) * self.bins + time_bin
        counts = torch.zeros(len(batch) * self.channels * rows * columns, dtype=torch.int32, device=batch.device)
        counts.index_add_(0, (plane * rows + row) * columns + column, counted.int())
        if self.wrap:
            counts.bitwise_and_(UINT8_VALUES - 1)
        if self.count_cutoff is not None:
            counts.clamp_(max=self.count_cutoff)
        return counts.float()

    def by_loop(self) -> Loop:
        modulus = float(UINT8_VALUES) if self.wrap else math.inf
        cutoff = math.inf if self.count_cutoff is None else float(self.count_cutoff)
        shape = (2, self.bins, math.prod(side // self.step for side in self.sensor))
        return loops.count_events, shape, (self.over, self.on_first, modulus, cutoff, self.step, *self.sensor)


class EvrtHistogram(StackedHistogram):
    """EvRT-DETR's stacked histogram: plain counts. Channel = polarity · bins + bin, **ON first**.

    EvRT-DETR adds up bin edges in double precision, which may move an event that lies exactly on an edge.

    Args:
        bins: time bins between the window's first event and 1 µs after its last.
        downsample: shrink the image by this factor by bilinear interpolation with antialiasing, as EvRT-DETR does with
            2 for 1Mpx.
    """

    on_first = 1

    def __init__(self, sensor: Sequence[int], bins: int = 10, downsample: int = 1) -> None:
        super().__init__(sensor, bins, count_cutoff=None, wrap=False)
        self.over = OVER_EVENTS_INCLUDING_LAST
        self.stride, self.size = _downsampled(sensor, downsample)

    def finish(self, image: Tensor, windows: int) -> Tensor:
        image = image.view(windows, self.channels, *self.sensor)
        if self.stride == 1:
            return image
        return functional.interpolate(image, tuple(self.size), mode="bilinear", align_corners=False, antialias=True)


class VoxelGrid(GridEncoder):
    """Voxel grid: every event is shared between the two nearest time bins, by its distance to each.

    Bin k of K represents the time ``k · duration / (K - 1)``, so the first represents the window's start and the last
    its end. Shares are integers in units of ``1 / duration``, and their sums are divided at the end.

    Args:
        bins: K; with 1, all events count fully.
        polarity: "signed", ON counts 1 and OFF -1 (K channels), or "separate", both count 1 in their own channels
            (2 K channels, channel = polarity · K + bin, OFF first).
    """

    def __init__(
        self, sensor: Sequence[int], bins: int = 5, polarity: Literal["signed", "separate"] = "signed"
    ) -> None:
        check_choice("polarity", polarity, ("signed", "separate"))
        planes = 1 if polarity == "signed" else 2
        super().__init__(sensor, planes * whole_number("bins", bins))
        self.bins, self.planes, self.signed = int(bins), planes, polarity == "signed"

    def by_tensors(self, batch: EventBatch) -> Tensor:
        window, polarity = window_of_events(batch), batch.p.long()
        duration = batch.duration_us[window]
        scaled = batch.t_us.long() * (self.bins - 1)
        left = torch.div(scaled, duration, rounding_mode="floor")
        late = scaled - left * duration  # 0 to duration - 1
        right = (left + 1).clamp_(max=self.bins - 1)  # with one bin its share is 0
        sign = polarity * 2 - 1 if self.signed else 1
        first = (window if self.signed else window * 2 + polarity) * self.bins
        sums = torch.zeros(len(batch) * self.channels * math.prod(self.sensor), dtype=torch.int64, device=batch.device)
        sums.index_add_(0, _cells(batch, first + left), sign * (duration - late))
        sums.index_add_(0, _cells(batch, first + right), sign * late)
        return sums.view(len(batch), -1).float() / batch.duration_us.float().view(-1, 1)

    def by_loop(self) -> Loop:
        shape = (self.planes, self.bins, math.prod(self.sensor))
        return loops.spread_events, shape, (self.signed, self.sensor.width)


class TimeSurface(GridEncoder):
    """``exp(-age / tau)`` of the last event of each polarity and pixel, from 0 to 1. Channels OFF, ON.

    The age is measured at the window's end. Only events of the window count, unlike in a surface that is updated
    continuously; if windows are as long as the decay, the difference is small.

    Args:
        tau_us: µs after which a value has decayed to 37 %.
    """

    def __init__(self, sensor: Sequence[int], tau_us: float = 50_000) -> None:
        super().__init__(sensor, 2)
        self.tau_us = _microseconds("tau_us", tau_us)

    def by_tensors(self, batch: EventBatch) -> Tensor:
        cell = _cells(batch, window_of_events(batch) * 2 + batch.p.long())
        last = torch.full((len(batch) * 2 * math.prod(self.sensor),), -1, dtype=torch.int32, device=batch.device)
        last = last.scatter_reduce_(0, cell, batch.t_us, "amax").view(len(batch), -1)
        age = batch.duration_us.view(-1, 1) - last
        return torch.exp(age.float() / -self.tau_us).masked_fill_(last < 0, 0.0)

    def by_loop(self) -> Loop:
        return loops.decay_last_events, (2, math.prod(self.sensor)), (self.tau_us, self.sensor.width)


class ToreVolume(GridEncoder):
    """TORE, time-ordered recent events: log ages of the last ``depth`` events of each polarity and pixel.

    The value is ``ln(age + 1) - ln(min_us + 1)``, at least 0. Channel = polarity · depth + rank, **ON first**; the
    newest event has rank 0. The age is measured at the window's end and is at most ``max_us``. **Cells without events
    have the largest value**, ``ln(max_us + 1) - ln(min_us + 1)``: pad images with ``empty_value``, not with zeros.

    Args:
        depth: K. The published code uses 3 for classification, 4 for reconstruction, 5 for poses, 7 for denoising.
        min_us: smaller ages are set to this value.
        max_us: larger ages are set to this value.
    """

    def __init__(self, sensor: Sequence[int], depth: int = 3, min_us: float = 150, max_us: float = 5_000_000) -> None:
        super().__init__(sensor, 2 * whole_number("depth", depth))
        self.depth = int(depth)
        self.min_us = _microseconds("min_us", min_us)
        self.max_us = _microseconds("max_us", max_us)
        if self.max_us <= self.min_us:
            raise FateError(f"min_us={min_us!r} and max_us={max_us!r} were given; expected min_us below max_us")
        self.empty_value = math.log(self.max_us + 1) - math.log(self.min_us + 1)

    def by_tensors(self, batch: EventBatch) -> Tensor:
        """A stable sort by cell gives ranks; events of rank K and above are written to one element after the image."""
        cell, order = torch.sort(_cells(batch, window_of_events(batch) * 2 + 1 - batch.p.long()), stable=True)
        rank = torch.searchsorted(cell, cell, right=True) - 1 - torch.arange(len(cell), device=batch.device)
        area = math.prod(self.sensor)
        index = (torch.div(cell, area, rounding_mode="floor") * self.depth + rank) * area + cell % area
        cells = len(batch) * self.channels * area
        age = (batch.duration_us[window_of_events(batch)] - batch.t_us)[order].float()
        value = torch.log1p(age.clamp_(max=self.max_us)) - math.log1p(self.min_us)
        image = torch.full((cells + 1,), self.empty_value, device=batch.device, dtype=torch.float32)
        image[index.masked_fill_(rank >= self.depth, cells)] = value.clamp_(min=0)
        return image[:-1]

    def by_loop(self) -> Loop:
        shape = (2, self.depth, math.prod(self.sensor))
        return loops.queue_last_events, shape, (self.min_us, self.max_us, self.sensor.width)


class GroupTokens(GridEncoder):
    """GET's group tokens [B, C, H / patch, W / patch]: patches of the frame as vectors, C = groups · 2 · patch².

    A *group* is one time bin and polarity. Each group and pixel of a patch has two values: the number of events, and
    the sum of their times as shares of the span from the window's first to its last event. Bins divide the time from
    the first event to 1 µs after the last. The channel is

        ((bin · 2 + polarity) · 2 + {0: count, 1: time}) · patch² + row in patch · patch + column in patch

    with OFF first. The token embedding belongs to the detector (``models/backbones/get.py``). The public code has 24
    groups (768 channels) or 48 (1536) at patches of 4 pixels. If ``patch`` does not divide the frame, the frame is
    padded at the right and the bottom. (The public code stretches its patches instead, which mixes pixels of a patch.)

    Args:
        groups: time bins times the two polarities, an even number.
        patch: pixels along a side of a patch; the stride.
    """

    def __init__(self, sensor: Sequence[int], groups: int = 24, patch: int = 4) -> None:
        frame, side = Sensor.of(sensor), whole_number("patch", patch)
        if whole_number("groups", groups, least=2) % 2:
            raise FateError(f"groups={groups} was given; expected an even number, time bins times two polarities")
        size = Sensor(-(-frame.height // side), -(-frame.width // side))
        super().__init__(frame, groups * 2 * side * side, side, size)
        self.groups, self.bins, self.patch = int(groups), int(groups) // 2, side

    def by_tensors(self, batch: EventBatch) -> Tensor:
        side = self.patch
        window, time_bin, since, span = _time_bins(batch, self.bins, OVER_EVENTS_INCLUDING_LAST)
        y, x = batch.y.long(), batch.x.long()
        row, column = torch.div(y, side, rounding_mode="floor"), torch.div(x, side, rounding_mode="floor")
        inside = (y - row * side) * side + (x - column * side)
        group = (window * self.bins + time_bin) * 2 + batch.p.long()
        each = side * side * math.prod(self.size)
        cells = group * each + (inside * self.size.height + row) * self.size.width + column
        length, shape = len(batch) * self.groups * each, (len(batch), self.groups, -1)
        counts = torch.zeros(length, dtype=torch.int32, device=batch.device)
        counts.index_add_(0, cells, torch.ones_like(cells, dtype=torch.int32))
        times = torch.zeros(length, dtype=torch.int64, device=batch.device).index_add_(0, cells, since)
        shares = times.view(shape).float() / ((span - 1).float() + NO_SPAN).view(-1, 1, 1)
        return torch.stack((counts.view(shape).float(), shares), dim=2)

    def by_loop(self) -> Loop:
        return loops.count_tokens, (self.bins, 2, 2, self.patch**2 * math.prod(self.size)), (self.patch, *self.size)


#: Builders by name; each takes the sensor first.
GRIDS: dict[str, Callable[..., GridEncoder]] = {
    "histogram": StackedHistogram,
    "evrt-histogram": EvrtHistogram,
    "voxel": VoxelGrid,
    "time-surface": TimeSurface,
    "tore": ToreVolume,
    "group-tokens": GroupTokens,
}


def build_grid(name: str, sensor: Sequence[int], **arguments: Any) -> GridEncoder:
    """Build a representation by its name, a key of ``GRIDS``, with arguments of its class.

    >>> build_grid("voxel", (240, 304), bins=9).channels
    9
    """
    if name not in GRIDS:
        raise FateError(f"representation {name!r} was asked for; there are {', '.join(GRIDS)}")
    check_options(name, GRIDS[name], 1, arguments)
    return GRIDS[name](sensor, **arguments)


def _time_bins(batch: EventBatch, bins: int, over: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Assign events to time bins; ``over``, a constant of ``grid_loops``, is the time that the bins divide.

    Returns, in int64, the window [E], the time bin [E] and the µs since the start of the first bin [E] of each event,
    and the µs of all bins of each window [B].
    """
    window, begin, span = window_of_events(batch), torch.zeros_like(batch.duration_us), batch.duration_us
    if over != OVER_WINDOW and batch.num_events:
        begin = batch.t_us[batch.offsets[:-1].clamp(max=batch.num_events - 1)].long()  # any value for empty windows
        last = batch.t_us[(batch.offsets[1:] - 1).clamp(min=0)].long()
        span = last - begin + 1 if over == OVER_EVENTS_INCLUDING_LAST else (last - begin).clamp(min=1)
    since = batch.t_us.long() - begin[window]
    time_bin = torch.div(since * bins, span[window], rounding_mode="floor").clamp_(max=bins - 1)
    return window, time_bin, since, span


def _cells(batch: EventBatch, plane: Tensor) -> Tensor:
    """[E] int64 index of each event in images [planes, H, W], given the plane [E] of each event."""
    return (plane * batch.sensor.height + batch.y.long()) * batch.sensor.width + batch.x.long()


def _downsampled(sensor: Sequence[int], downsample: int) -> tuple[int, Sensor]:
    """The stride and the size of the image."""
    step, size = whole_number("downsample", downsample), Sensor.of(sensor)
    if step > min(size):
        raise FateError(f"downsample={step} was given for a {size} sensor; no pixel would be left")
    return step, Sensor(size.height // step, size.width // step)


def _microseconds(name: str, value: Any) -> float:
    """``value`` as a float above 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise FateError(f"{name}={value!r} was given; expected a time in µs, more than 0")
    return number
