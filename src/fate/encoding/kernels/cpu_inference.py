"""Pillar Encoding on the CPU for inference: pillar after pillar, while its events are in the cache.

The result is that of ``cpu_kernels``, without intermediate arrays. If there are fewer windows than threads, one thread
sorts the events of a window, and all of them encode a part of its pillars. It supports float32, K = 3 and multiples of
sixteen channels.

The innermost loop (``_write_channels``) is written in LLVM IR. For each channel it needs a slope, a base and K = 3
sums. These stay in registers from the first event of a pillar to the last; numba would keep them in memory. A block has
16 channels: four vectors of NEON, two of AVX, one of AVX-512. Most pillars have few events, so what a pillar costs
besides its events counts too: on x86, blocks of 32 channels save a quarter of the time of the loops with AVX-512, and a
tenth with AVX2, where they need more registers than there are.
"""

from __future__ import annotations

import platform
from functools import partial
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor, nn

from fate.compiled import compiled, compiled_finite_sums, inlined
from fate.encoding.batch import EventBatch, host_columns
from fate.encoding.kernels.cpu_kernels import folding, in_threads, tables
from fate.encoding.kernels.cpu_loops import sort_events, split_pillars
from fate.encoding.sampling import M32, window_key
from fate.encoding.spec import PillarSpec, PillarStats

#: Channels of a block; the number of channels must be a multiple of it.
WIDTH = 16
#: Channels of the blocks that are taken first; 0 for none. Every block visits the events of a pillar again.
WIDE = 32 if platform.machine().lower() in ("x86_64", "amd64") else 0
MOMENTS = 3
#: Below both, a second thread takes longer to start than it saves: events of a window, and values of an image that is
#: not kept. An image below the second is not kept: it costs no more to write it as a whole.
FEW_EVENTS, SMALL_IMAGE = 20_000, 2_000_000

#: What ``sort_events`` returns.
Sorted = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]

_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_EVENT = ir.VectorType(_FLOAT, 1 + MOMENTS)
_FAST = ("contract", "nnan", "nsz")


def can_encode(spec: PillarSpec, channels: int, dtype: torch.dtype) -> bool:
    """Whether ``encode`` supports these settings."""
    fits = spec.moments == MOMENTS and channels % WIDTH == 0
    return fits and spec.pooling == "legendre" and dtype == torch.float32


class ImageMemory:
    """The images of the last call and the cells that it has written, for a stream: the next call clears only these.

    Most cells have no events. Without it, every call takes new memory from the system and writes all cells, which for
    a window of 1280×720 pixels takes longer than all else.
    """

    def __init__(self) -> None:
        self._images: Tensor | None = None
        self._cells: list[NDArray[np.int32]] = []  #: written in each part of each window

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """Images [B, H, W, C] of zeros. They are forgotten until ``keep``, in case writing them fails."""
        images, cells = self._images, self._cells
        self._images, self._cells = None, []
        if images is None or tuple(images.shape) != shape:
            return torch.zeros(shape)
        pixels, bands = images.numpy().reshape(shape[0], -1, shape[-1]), len(cells) // shape[0]
        in_threads(lambda part: _clear(pixels[part // bands], cells[part]), len(cells))
        return images

    def keep(self, images: Tensor, cells: list[NDArray[np.int32]]) -> None:
        """Keep written images, and the cells that were written: equally many parts of each window, in order."""
        self._images, self._cells = images, cells


@compiled
def _clear(image: NDArray[np.float32], cells: NDArray[np.int32]) -> None:
    """Set cells of an image [cells, C] to zero."""
    for cell in cells:
        for c in range(image.shape[1]):
            image[cell, c] = 0


def encode(
    batch: EventBatch,
    spec: PillarSpec,
    seed: int,
    linear: nn.Linear,
    norm: nn.BatchNorm1d,
    alpha: Tensor,
    beta: Tensor,
    memory: ImageMemory | None = None,
) -> tuple[Tensor, PillarStats]:
    """The pseudo-image [B, C, H, W], channels last in memory, with BatchNorm's running statistics.

    With ``memory``, it is valid until the next call with the same memory.
    """
    columns, channels, of = host_columns(batch), len(beta), tables(spec)
    shape = (len(batch), spec.rows, spec.columns, channels)
    is_small = spec.cells * channels < SMALL_IMAGE
    memory = None if is_small else memory
    is_quick = (is_small or memory is not None) and batch.num_events < FEW_EVENTS * len(batch)
    threads = 1 if is_quick else torch.get_num_threads()
    bands = max(-(-threads // len(batch)), 1)
    image = torch.empty(shape) if memory is None else memory.take(shape)
    pixels = image.numpy().reshape(len(batch), spec.cells, channels)
    parts = (linear.weight, linear.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var, alpha, beta)
    folded = np.empty((8 + len(of.pixel) + MOMENTS, channels), np.float32)
    finite = _fold(tuple(part.detach().numpy() for part in parts if part is not None), norm.eps, folding(spec), folded)
    grid = (spec.columns, spec.pillar, spec.weighting == "uniform")
    caps = (spec.max_pillars or 0, spec.max_events or 0)
    events = tuple(columns[name] for name in ("t_us", "x", "y", "p"))
    offsets, starts, durations = (columns[name].tolist() for name in ("offsets", "start_us", "duration_us"))

    def sort(window: int) -> Sorted:
        bounds, key = (offsets[window], offsets[window + 1]), np.uint32(window_key(seed, starts[window]))
        return sort_events(events, bounds, of, spec.cells, caps, key)

    def encode_part(window: int, pillars: NDArray[np.int32], packed: NDArray[np.int64], part: tuple[int, int]) -> None:
        per_us, clears = 2.0 / durations[window], memory is None
        _encode_pillars(pillars, packed, part, of.pixel, grid, per_us, folded, pixels[window], clears)

    def encode_window(window: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        pillars, packed, counts = sort(window)
        encode_part(window, pillars, packed, (0, len(pillars)))
        return pillars[:, 0].copy(), counts

    if bands == 1:
        whole = in_threads(encode_window, len(batch))
        written, counts = [cells for cells, _ in whole], [each for _, each in whole]
    else:
        found = in_threads(sort, len(batch))
        limits = [split_pillars(pillars, bands).tolist() for pillars, _, _ in found]

        def encode_band(task: int) -> NDArray[np.int32]:
            window, band = divmod(task, bands)
            pillars, packed, _ = found[window]
            first, end = limits[window][band : band + 2]
            if first < end or not (band or len(pillars)):  # the first part clears a window without pillars
                encode_part(window, pillars, packed, (first, end))
            return pillars[first:end, 0].copy()

        written, counts = in_threads(encode_band, len(batch) * bands), [each for _, _, each in found]
    if not finite:  # the loops assume finite numbers; a diverged channel must not look like an empty one
        pixels[:, :, ~np.isfinite(folded).all(0)] = np.nan
    elif memory is not None:
        memory.keep(image, written)
    return image.permute(0, 3, 1, 2), PillarStats(batch.num_events, *np.sum(counts, axis=0).tolist())


@compiled
def _fold(
    parts: tuple[NDArray[Any], ...], eps: float, matrix: NDArray[np.float64], folded: NDArray[np.float32]
) -> bool:
    """Fill the rows of ``folded``: base, table and slope (``cpu_kernels.folding``) with BatchNorm, then alpha and beta.

    Returns whether all numbers are finite.
    """
    weight, bias, gamma, delta, mean, variance, alpha, beta = parts
    rows, features = matrix.shape
    finite = True
    for c in range(len(bias)):
        factor = gamma[c] / np.sqrt(variance[c] + eps)
        for r in range(rows):
            total = 0.0
            for d in range(features):
                total += matrix[r, d] * weight[c, d] * factor
            folded[r, c] = total
        folded[0, c] += (bias[c] - mean[c]) * factor + delta[c]
        for k in range(alpha.shape[1]):
            folded[rows + k, c] = alpha[c, k]
        folded[rows + alpha.shape[1], c] = beta[c]
        for r in range(len(folded)):
            finite &= bool(np.isfinite(folded[r, c]))
    return finite


class _Writer:
    """Writes LLVM instructions for one block of ``width`` channels."""

    def __init__(self, builder: Any, channels: Any, width: int) -> None:
        self.builder = builder
        self.row = builder.mul(channels, _LONG(4))  # bytes from one row of a table to the next
        self.width, self.vector = width, ir.VectorType(_FLOAT, width)

    def load(self, address: Any, kind: Any = None) -> Any:
        """Load a block, or another type."""
        return self.builder.load(self.builder.inttoptr(address, ir.PointerType(kind or self.vector)), align=4)

    def of_row(self, table: Any, row: Any) -> Any:
        """Load this block of a row."""
        return self.load(self.builder.add(table, self.builder.mul(row, self.row)))

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.fadd(self.builder.fmul(a, b, flags=_FAST), c, flags=_FAST)

    def broadcast(self, numbers: Any, index: int) -> Any:
        """Broadcast one of several numbers to all elements."""
        indices = ir.Constant(ir.VectorType(_INT, self.width), [index] * self.width)
        return self.builder.shuffle_vector(numbers, ir.Constant(numbers.type, ir.Undefined), indices)

    def number(self, address: Any) -> Any:
        """Broadcast a number in memory to all elements."""
        one = self.load(address, _FLOAT)
        vector = self.builder.insert_element(ir.Constant(self.vector, ir.Undefined), one, _INT(0))
        return self.broadcast(vector, 0)


def _block(width: int) -> Any:
    """A function that writes ``width`` channels of one pillar; its arguments are int64 addresses, except two numbers.

    Its arguments:
        events: float32 [count, 4], tau and the three ``Described.basis`` of each event.
        pixels: int32 [count], pixel codes, see ``cpu_loops.Tables``.
        count: number of events, 1 or more.
        shape: float32 [6], see ``Described.shape``.
        base, table, slope, alpha, beta: the block's first channel in the parts of ``Folded``.
        image: the block's first channel in the pillar's cell.
        channels: C.
    """

    @intrinsic
    def channels_of_pillar(  # type: ignore[no-untyped-def]
        _typing_context, events, pixels, count, shape, base, table, slope, alpha, beta, image, channels
    ):
        return types.void(*[types.int64] * 11), partial(_write_channels, width)

    return channels_of_pillar


def _write_channels(width: int, context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    """beta + Σ_k alpha_k Σ_events relu(base + table[pixel] + slope · tau) · basis_k."""
    events, pixels, count, shape, base, table, slope, alpha, beta, image, channels = arguments
    write = _Writer(builder, channels, width)
    zero = ir.Constant(write.vector, [0.0] * width)
    offset = write.load(base)
    for feature in range(1, 6):
        factor = write.number(builder.add(shape, _LONG(4 * feature)))
        offset = write.multiply_add(write.of_row(base, _LONG(feature)), factor, offset)
    slopes = write.load(slope)

    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    number = builder.phi(_LONG)
    sums = [builder.phi(write.vector) for _ in range(MOMENTS)]
    event = write.load(builder.add(events, builder.mul(number, _LONG(4 * (1 + MOMENTS)))), _EVENT)
    pixel = builder.sext(write.load(builder.add(pixels, builder.mul(number, _LONG(4))), _INT), _LONG)
    hidden = builder.fadd(offset, write.of_row(table, pixel), flags=_FAST)
    hidden = write.multiply_add(slopes, write.broadcast(event, 0), hidden)
    hidden = builder.select(builder.fcmp_ordered(">", hidden, zero, flags=_FAST), hidden, zero)
    longer = [write.multiply_add(hidden, write.broadcast(event, k + 1), sums[k]) for k in range(MOMENTS)]
    following = builder.add(number, _LONG(1))
    for now, first, later in zip([number, *sums], [_LONG(0)] + [zero] * MOMENTS, [following, *longer], strict=True):
        now.add_incoming(first, before)
        now.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)

    builder.position_at_end(after)
    result = write.load(beta)
    for k in range(MOMENTS):
        result = write.multiply_add(write.of_row(alpha, _LONG(k)), longer[k], result)
    builder.store(result, builder.inttoptr(image, ir.PointerType(write.vector)), align=4)
    return context.get_dummy_value()


_wide_block, _narrow_block = _block(WIDE or WIDTH), _block(WIDTH)


@compiled_finite_sums
def _encode_pillars(pillars: NDArray[np.int32], packed: NDArray[np.int64], part: tuple[int, int],
                    of_pixel: NDArray[np.int64], grid: tuple[int, int, bool], per_us: float,
                    folded: NDArray[np.float32], image: NDArray[np.float32], clears: bool) -> None:  # fmt: skip
    """Write a part of the pillars of a window, first and end, to ``image`` [cells, C].

    ``clears``: set the cells without a pillar to zero, up to the first pillar of the next part.
    """
    own_first, own_end = part
    columns, side, uniform = grid
    channels, largest = image.shape[1], 0
    for j in range(own_first, own_end):
        largest = max(largest, int(pillars[j, 2]))
    described, pixel = np.empty((largest, 4), np.float32), np.empty(largest, np.int32)
    shape = np.empty(6, np.float32)
    events_at, pixels_at, shape_at = described.ctypes.data, pixel.ctypes.data, shape.ctypes.data
    row = 4 * channels
    base_at = folded.ctypes.data
    table_at = base_at + 6 * row
    slope_at = table_at + len(of_pixel) * row
    alpha_at = slope_at + row
    beta_at = alpha_at + 3 * row
    free = pillars[own_first, 0] if own_first else 0  # empty cells before a pillar belong to the previous part
    for j in range(own_first, own_end):
        cell, first, events = pillars[j, 0], pillars[j, 1], pillars[j, 2]  # unpacking a row takes long
        if clears and free < cell:
            image[free:cell] = 0
        free = cell + 1
        _describe(packed, np.uint32(first), np.uint32(events), of_pixel, uniform, per_us, described, pixel, shape)
        shape[1], shape[2] = cell % columns * side, cell // columns * side
        image_at = image.ctypes.data + cell * row
        c = 0
        while WIDE and c + 4 * WIDE <= row:
            _wide_block(
                events_at, pixels_at, events, shape_at, base_at + c, table_at + c, slope_at + c, alpha_at + c,
                beta_at + c, image_at + c, channels,
            )  # fmt: skip
            c += 4 * WIDE
        while c < row:
            _narrow_block(
                events_at, pixels_at, events, shape_at, base_at + c, table_at + c, slope_at + c, alpha_at + c,
                beta_at + c, image_at + c, channels,
            )  # fmt: skip
            c += 4 * WIDTH
    stop = pillars[own_end, 0] if own_end < len(pillars) else len(image)
    if clears and free < stop:
        image[free:stop] = 0


@inlined
def _describe(packed: NDArray[np.int64], first: np.uint32, events: np.uint32, of_pixel: NDArray[np.int64],
              uniform: bool, per_us: float, described: NDArray[np.float32], pixel: NDArray[np.int32],
              shape: NDArray[np.float32]) -> None:  # fmt: skip
    """``cpu_loops.describe`` of one pillar: tau and basis of its events, and their means.

    Most pillars have few events. So the first loop has no branch that a processor could predict wrongly, unsigned
    indices that the compiler need not check, and no part of an array, which would count references.
    """
    last = np.uint32(first + events - np.uint32(1))
    earliest, latest = packed[first] & M32, packed[last] & M32
    even = uniform or earliest == latest
    per_event = np.float32(1) / np.float32(events)
    per_span = np.float32(0) if even else np.float32(0.5) / np.float32(latest - earliest)
    flat = per_event if even else np.float32(0)
    where, times, equal, before, now = np.int64(0), np.int64(0), np.int64(0), earliest, earliest
    for number in range(events):
        i = np.uint32(number)
        at = np.int32(packed[np.uint32(first + i)] >> 32)
        after = packed[min(np.uint32(first + i + np.uint32(1)), last)] & M32
        share = np.float32(after - before) * per_span + flat
        tau = np.float32(now * per_us - 1.0)
        where += of_pixel[np.uint32(at)]
        times += now
        equal += now == before
        pixel[i] = at
        described[i, 0], described[i, 1], described[i, 2] = tau, share, share * tau
        described[i, 3] = share * (np.float32(1.5) * tau * tau - np.float32(0.5))
        before, now = now, after
    if equal > 1 and not even:  # the first event counts as equal; others share the sum of their weights
        earlier, begin = earliest, np.uint32(0)
        while begin < events:
            time, end = packed[np.uint32(first + begin)] & M32, np.uint32(begin + np.uint32(1))
            while end < events and packed[np.uint32(first + end)] & M32 == time:
                end = np.uint32(end + np.uint32(1))
            later = packed[np.uint32(first + end)] & M32 if end < events else time
            part = np.float32(later - earlier) * per_span / np.float32(end - begin)
            earlier = time
            for m in range(begin, end):
                j = np.uint32(m)
                x = described[j, 0]
                described[j, 1], described[j, 2] = part, part * x
                described[j, 3] = part * (np.float32(1.5) * x * x - np.float32(0.5))
            begin = end
    shape[3], shape[4] = -np.float32(where & M32) * per_event, -np.float32(where >> 32) * per_event
    shape[5] = 1.0 - times / np.int64(events) * per_us
