"""Pillar Encoding in operations of export formats: whole tensors, no loop, no shape that depends on values.

The function of ``encoding.kernels.torch_kernels``, for graphs that run without FATE. The other versions list the
pillars with events; this one has a table of all cells of the grid, and computes their values like that version. Where
they leave events out, this one moves them to one *extra cell* that is no part of the image, so the number of events is
the only length that varies. One event is always in the extra cell, so no table is ever empty.

Times are summed in int64 and divided in float64. The generator of ``encoding.sampling``, which decides what the caps
keep, multiplies 32-bit numbers in halves here, because export formats do not define overflows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fate.encoding.batch import COLUMNS
from fate.encoding.kernels.torch_kernels import Segments, pillar_values, runs
from fate.encoding.pillars import PillarEncoder
from fate.encoding.sampling import GOLDEN, M32, MUL_1, MUL_2, seed_key
from fate.encoding.spec import PillarStats, Weights
from fate.errors import FateError

#: The inputs, as in ``EventBatch``: four columns with a row per event, three with a row per window.
EVENT_COLUMNS = ("t_us", "x", "y", "p")
INPUTS = {name: COLUMNS[name] for name in (*EVENT_COLUMNS, "offsets", "start_us", "duration_us")}


class PillarGraph(nn.Module):
    """Maps the columns of a batch of B windows to the pseudo-image [B, C, H', W'] of a trained encoder."""

    scale: Tensor
    shift: Tensor
    alpha: Tensor
    beta: Tensor

    def __init__(self, encoder: PillarEncoder, windows: int) -> None:
        super().__init__()
        norm = encoder.norm
        if encoder.alpha is None or encoder.beta is None:
            raise FateError("an encoder with pooling='max' was given; only pooling='legendre' can be part of a graph")
        if norm.running_mean is None or norm.running_var is None:
            raise FateError("an encoder whose BatchNorm keeps no statistics was given; it cannot be part of a graph")
        self.spec, self.windows, self.seed = encoder.spec, windows, encoder.seed
        factor = torch.rsqrt(norm.running_var + norm.eps) * norm.weight
        parts = {
            "scale": encoder.linear.weight * factor[:, None],
            "shift": (encoder.linear.bias - norm.running_mean) * factor + norm.bias,
            "alpha": encoder.alpha,
            "beta": encoder.beta,
        }
        for name, value in parts.items():
            self.register_buffer(name, value.detach().float().clone())

    def forward(
        self, t_us: Tensor, x: Tensor, y: Tensor, p: Tensor, offsets: Tensor, start_us: Tensor, duration_us: Tensor
    ) -> Tensor:
        """Takes the columns of ``EventBatch``; events after the last offset are ignored, so buffers may be longer."""
        spec, side, extra_cell = self.spec, self.spec.pillar, self.windows * self.spec.cells
        t, x, y, p = (torch.cat([column.long(), column.new_zeros(1).long()]) for column in (t_us, x, y, p))
        number = torch.arange(t.shape[0])
        window = (number[:, None] >= offsets[1:]).long().sum(1)  # events after the last offset are in the extra cell
        cell = ((window * spec.rows + y // side) * spec.columns + x // side).clamp(max=extra_cell)
        window = window.clamp(max=self.windows - 1)
        by_cell = _Events(t, x, y, p, window, cell).sorted()
        keep = self._select(by_cell, start_us)
        kept = by_cell._replace(cell=torch.where(keep, by_cell.cell, extra_cell)).sorted()
        return self._image(kept, duration_us)

    def _select(self, events: _Events, start_us: Tensor) -> Tensor:
        """Whether the caps keep each event [E]; events are sorted by cell and time."""
        spec, cell, window = self.spec, events.cell, events.window
        size, first = self._sizes(cell)
        low = start_us & M32
        key = hash32(hash32(seed_key(self.seed) ^ low) ^
                     (shift_right(start_us - low, 32) & M32))  # fmt: skip
        priority = hash32((cell - window * spec.cells) ^ key.index_select(0, window))
        keep = torch.ones_like(cell, dtype=torch.bool)
        if spec.max_pillars is not None and spec.max_pillars < spec.cells:
            of_pillars = hash32(torch.arange(spec.cells) ^ key[:, None])
            there = size[:-1].view(self.windows, spec.cells) > 0
            lowest = torch.where(there, of_pillars, M32 + 1).topk(spec.max_pillars, largest=False, sorted=True).values
            keep = priority <= lowest[:, -1].index_select(0, window)
        if spec.max_events is None:
            return keep
        number, start = torch.arange(cell.shape[0]), first.index_select(0, cell)
        earlier = runs(cell, events.t)[0] - start
        pixel = ((events.y % spec.pillar) * spec.pillar + events.x % spec.pillar) * 2 + events.p
        of_events = hash32(hash32((priority + GOLDEN * (earlier + 1)) & M32) ^ pixel)
        order = (cell * (M32 + 1) + of_events).sort().indices  # the cells stay in their order
        rank = _sums(order, number, cell.shape[0]) - start
        return keep & (rank < spec.max_events)

    def _image(self, events: _Events, duration_us: Tensor) -> Tensor:
        """The image of events that are sorted by cell and time; those in the extra cell are ignored."""
        spec, cell = self.spec, events.cell
        size, _ = self._sizes(cell)
        duration = duration_us.index_select(0, events.window)
        columns = events.t, duration, events.x, events.y, events.p
        segments = Segments(
            spec, self.windows, *columns, pillar=cell, size=size, cell=cell, stats=PillarStats(0, 0, 0, 0, 0)
        )
        values = pillar_values(segments, Weights(self.scale, self.shift, self.alpha, self.beta))
        image = torch.where(size[:, None] > 0, values, 0.0)[:-1]
        return image.view(self.windows, spec.rows, spec.columns, -1).permute(0, 3, 1, 2)

    def _sizes(self, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Number of events and index of the first event of each cell, with the extra one: [cells + 1] both."""
        size = _sums(cell, torch.ones_like(cell), self.windows * self.spec.cells + 1)
        return size, size.cumsum(0) - size


class _Events(NamedTuple):
    """Columns of E events, int64."""

    t: Tensor  #: µs since the window's start
    x: Tensor
    y: Tensor
    p: Tensor
    window: Tensor
    cell: Tensor  #: index of the cell, by window, row and column; the last is the extra cell

    def sorted(self) -> _Events:
        """Sorted by cell, and by time in each cell. All keys are different, so the sort need not be stable."""
        number = torch.arange(self.cell.shape[0])
        order = (self.cell * self.cell.shape[0] + number).sort().indices
        return _Events(*(column.index_select(0, order) for column in self))


def _sums(index: Tensor, values: Tensor, length: int) -> Tensor:
    """A table of ``length`` rows with the sums of the values [E] at their indices [E]."""
    return values.new_zeros(length).scatter_add(0, index, values)


def hash32(value: Tensor) -> Tensor:
    """``sampling.hash32`` of 32-bit numbers in int64."""
    value = multiply32(value ^ shift_right(value, 16), MUL_1)
    value = multiply32(value ^ shift_right(value, 13), MUL_2)
    return value ^ shift_right(value, 16)


def multiply32(value: Tensor, factor: int) -> Tensor:
    """The lower 32 bits of a product of 32-bit numbers; no intermediate value has more than 49."""
    low, high = value & 0xFFFF, shift_right(value, 16)
    return (low * factor + ((high * factor) & 0xFFFF) * 0x10000) & M32


def shift_right(value: Tensor, bits: int) -> Tensor:
    """``value >> bits`` of integers that float64 represents exactly; ONNX cannot shift signed integers."""
    return (value.double() * 2.0**-bits).floor().long()
