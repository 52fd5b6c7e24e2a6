"""Pillar Encoding on the CPU for inference. The result is that of ``cpu_kernels``.

If there are fewer windows than threads, one thread sorts the events of a window, and all of them encode a part of its
pillars. It supports float32, K = 3 and multiples of sixteen channels.

Most pillars have few events, so loops over the events of one pillar end soon, and a processor predicts their end
wrongly. What can be computed event by event is therefore computed in loops over all events (``_describe_events``,
``_sum_events``, ``_weigh_events``). One loop over pillars divides and corrects the weights (``_describe_pillars``), and
another one writes the channels (``_write_pillars``), so that a pillar need not wait for its own divisions.

The innermost loop (``_write_channels``) is written in LLVM IR. For each channel it needs a slope, a base and K = 3
sums. These stay in registers from the first event of a pillar to the last; numba would keep them in memory. A block has
16 channels: four vectors of NEON, two of AVX, one of AVX-512. Larger blocks visit the events of a pillar less often:
32 channels on x86, and 64 with AVX-512.
"""

from __future__ import annotations

import platform
from functools import partial
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor, nn

from fate.compiled import compiled, compiled_finite_sums
from fate.encoding.batch import EventBatch, host_columns
from fate.encoding.kernels.cpu_kernels import folding, in_threads, tables
from fate.encoding.kernels.cpu_loops import sort_events, split_pillars
from fate.encoding.sampling import M32, window_key
from fate.encoding.spec import PillarSpec, PillarStats

#: Channels of the smallest block; the number of channels must be a multiple of it.
WIDTH = 16


def _find_widest() -> int:
    """Return the channels of the largest block on this processor: 64 with AVX-512, 32 on other x86, or ``WIDTH``."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return WIDTH
    try:
        return 64 if get_host_cpu_features().get("avx512f") else 32
    except RuntimeError:  # not known on this system
        return 32


WIDEST = _find_widest()
MOMENTS = 3
#: Below both, a second thread takes longer to start than it saves: events of a window, and values of an image that is
#: not kept.
FEW_EVENTS, SMALL_IMAGE = 20_000, 2_000_000

#: What ``sort_events`` returns.
Sorted = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]

_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
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

    def __init__(self, spare: int = 0) -> None:
        """``spare``: channels behind those of the encoder, which the caller writes and the encoder leaves as they are.

        They are 0 in new images.
        """
        self.spare = spare
        #: what the caller has written to the spare channels; None for new images
        self.written: object = None
        self._images: Tensor | None = None
        self._cells: list[NDArray[np.int32]] = []  #: written in each window, in ascending order

    def take(self, shape: tuple[int, ...]) -> tuple[Tensor, list[NDArray[np.int32]]]:
        """Images [B, H, W, C + spare] and the cells of each window that are not zero.

        The images are forgotten until ``keep``, in case writing them fails.
        """
        images, cells = self._images, self._cells
        self._images, self._cells = None, []
        if images is None or tuple(images.shape) != shape:
            self.written = None
            return torch.zeros(shape), [np.empty(0, np.int32)] * shape[0]
        return images, cells

    def keep(self, images: Tensor, cells: list[NDArray[np.int32]]) -> None:
        """Keep written images, and the cells that are not zero in each window, in ascending order."""
        self._images, self._cells = images, cells


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

    With ``memory``, it is valid until the next call with the same memory, and has its spare channels, too.
    """
    columns, channels, of = host_columns(batch), len(beta), tables(spec)
    shape = (len(batch), spec.rows, spec.columns, channels + (0 if memory is None else memory.spare))
    is_cleared_fast = memory is not None or spec.cells * channels < SMALL_IMAGE
    threads = 1 if is_cleared_fast and batch.num_events < FEW_EVENTS * len(batch) else torch.get_num_threads()
    bands = max(-(-threads // len(batch)), 1)
    image, before = (torch.empty(shape), None) if memory is None else memory.take(shape)
    pixels = image.numpy().reshape(len(batch), spec.cells, shape[-1])
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
        if before is None:
            _clear_empty(pixels[window], pillars, part)
        else:
            _clear_earlier(pixels[window], channels, before[window], pillars, part)
        _encode_pillars(pillars, packed, part, of.pixel, grid, 2.0 / durations[window], folded, pixels[window])

    def encode_window(window: int) -> Sorted:
        pillars, packed, counts = sort(window)
        encode_part(window, pillars, packed, (0, len(pillars)))
        return pillars, packed, counts

    if bands == 1:
        found = in_threads(encode_window, len(batch))
    else:
        found = in_threads(sort, len(batch))
        limits = [split_pillars(pillars, bands).tolist() for pillars, _, _ in found]

        def encode_band(task: int) -> None:
            window, band = divmod(task, bands)
            pillars, packed, _ = found[window]
            first, end = limits[window][band : band + 2]
            if first < end or not (band or len(pillars)):  # the first part clears a window without pillars
                encode_part(window, pillars, packed, (first, end))

        in_threads(encode_band, len(batch) * bands)
    if not finite:  # the loops assume finite numbers; a diverged channel must not look like an empty one
        pixels[:, :, :channels][:, :, ~np.isfinite(folded).all(0)] = np.nan
    elif memory is not None:
        memory.keep(image, [pillars[:, 0].copy() for pillars, _, _ in found])
    counts = np.sum([each for _, _, each in found], axis=0)
    return image.permute(0, 3, 1, 2), PillarStats(batch.num_events, *counts.tolist())


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

    def number(self, address: Any) -> Any:
        """Broadcast a number in memory to all elements."""
        vector = self.builder.insert_element(
            ir.Constant(self.vector, ir.Undefined), self.load(address, _FLOAT), _INT(0)
        )
        first = ir.Constant(ir.VectorType(_INT, self.width), [0] * self.width)
        return self.builder.shuffle_vector(vector, ir.Constant(self.vector, ir.Undefined), first)


def _block(width: int) -> Any:
    """A function that writes ``width`` channels of one pillar; its arguments are int64 addresses, except three numbers.

    Its arguments:
        events: float32, tau of each event of the pillar.
        row: bytes from there to the first of K further rows, and from each row to the next, see ``_describe_events``.
        pixels: int32 [count], pixel codes, see ``cpu_loops.Tables``.
        count: number of events, 1 or more.
        shape: float32 [6], see ``_describe_pillars``.
        base, table, slope, alpha, beta: the block's first channel in the parts of ``Folded``.
        image: the block's first channel in the pillar's cell.
        channels: C.
    """

    @intrinsic
    def channels_of_pillar(  # type: ignore[no-untyped-def]
        _typing_context, events, row, pixels, count, shape, base, table, slope, alpha, beta, image, channels
    ):
        return types.void(*[types.int64] * 12), partial(_write_channels, width)

    return channels_of_pillar


def _write_channels(width: int, context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    """beta + scale · Σ_k alpha_k Σ_events relu(base + table[pixel] + slope · tau) · basis_k."""
    events, row, pixels, count, shape, base, table, slope, alpha, beta, image, channels = arguments
    write = _Writer(builder, channels, width)
    zero = ir.Constant(write.vector, [0.0] * width)
    sums = [write.load(base), zero, zero]  # three, since each addition waits for the one before
    for feature in range(1, 6):
        factor = write.number(builder.add(shape, _LONG(4 * feature)))
        sums[feature % 3] = write.multiply_add(write.of_row(base, _LONG(feature)), factor, sums[feature % 3])
    offset = builder.fadd(builder.fadd(sums[1], sums[2], flags=_FAST), sums[0], flags=_FAST)
    slopes = write.load(slope)
    rows = [events]
    for _ in range(MOMENTS):
        rows.append(builder.add(rows[-1], row))

    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    number = builder.phi(_LONG)
    sums = [builder.phi(write.vector) for _ in range(MOMENTS)]
    offset_bytes = builder.mul(number, _LONG(4))
    tau, *basis = (write.number(builder.add(each, offset_bytes)) for each in rows)
    pixel = builder.sext(write.load(builder.add(pixels, offset_bytes), _INT), _LONG)
    hidden = builder.fadd(offset, write.of_row(table, pixel), flags=_FAST)
    hidden = write.multiply_add(slopes, tau, hidden)
    hidden = builder.select(builder.fcmp_ordered(">", hidden, zero, flags=_FAST), hidden, zero)
    longer = [write.multiply_add(hidden, each, so_far) for each, so_far in zip(basis, sums, strict=True)]
    following = builder.add(number, _LONG(1))
    for now, first, later in zip([number, *sums], [_LONG(0)] + [zero] * MOMENTS, [following, *longer], strict=True):
        now.add_incoming(first, before)
        now.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)

    builder.position_at_end(after)
    result, scale = write.load(beta), write.number(shape)
    for k in range(MOMENTS):
        scaled = builder.fmul(longer[k], scale, flags=_FAST)
        result = write.multiply_add(write.of_row(alpha, _LONG(k)), scaled, result)
    builder.store(result, builder.inttoptr(image, ir.PointerType(write.vector)), align=4)
    return context.get_dummy_value()


_block_of_64, _block_of_32, _block_of_16 = _block(64), _block(32), _block(WIDTH)


@compiled
def _clear_empty(image: NDArray[np.float32], pillars: NDArray[np.int32], part: tuple[int, int]) -> None:
    """Set cells without a pillar to zero in an image [cells, C], from a part of the pillars to the next part.

    ``part`` is its first pillar and its end. Cells in front of all pillars belong to the first part.
    """
    first, end = part
    free = pillars[first, 0] if first else 0
    for j in range(first, end):
        cell = pillars[j, 0]
        if free < cell:
            image[free:cell] = 0
        free = cell + 1
    stop = pillars[end, 0] if end < len(pillars) else len(image)
    if free < stop:
        image[free:stop] = 0


@compiled
def _clear_earlier(image: NDArray[np.float32], channels: int, before: NDArray[np.int32], pillars: NDArray[np.int32],
                   part: tuple[int, int]) -> None:  # fmt: skip
    """``_clear_empty`` for an image in which only the cells ``before`` are not zero, in ascending order.

    Only the first ``channels`` are cleared.
    """
    first, end = part
    start = pillars[first, 0] if first else 0
    stop = pillars[end, 0] if end < len(pillars) else len(image)
    j = first
    for i in range(np.searchsorted(before, start), len(before)):
        cell = before[i]
        if cell >= stop:
            break
        while j < end and pillars[j, 0] < cell:
            j += 1
        if j == end or pillars[j, 0] != cell:
            for c in range(channels):
                image[cell, c] = 0


@compiled
def _encode_pillars(pillars: NDArray[np.int32], packed: NDArray[np.int64], part: tuple[int, int],
                    of_pixel: NDArray[np.int64], grid: tuple[int, int, bool], per_us: float,
                    folded: NDArray[np.float32], image: NDArray[np.float32]) -> None:  # fmt: skip
    """Write a part of the pillars of a window, first and end, to the first channels of ``image`` [cells, C or more]."""
    own = pillars[part[0] : part[1]]
    if len(own) == 0:
        return
    begin, end = own[0, 1], own[-1, 1] + own[-1, 2]
    number = end - begin
    around = packed[begin - 1 : end + 1]  # one event more on either side
    described, pixels = np.empty((1 + MOMENTS, number), np.float32), np.empty(number, np.int32)
    sums, ties = np.empty((number + 1, 2), np.int64), np.empty(number + 2, np.int32)
    shapes = np.empty((len(own), 6), np.float32)
    _describe_events(around, per_us, described, pixels)
    _sum_events(around, of_pixel, sums, ties)
    _describe_pillars(own, around, sums, ties, grid, per_us, described[1], shapes)
    _weigh_events(described)
    _write_pillars(own, described, pixels, shapes, folded, image)


@compiled_finite_sums
def _describe_events(around: NDArray[np.int64], per_us: float, described: NDArray[np.float32],
                     pixels: NDArray[np.int32]) -> None:  # fmt: skip
    """Fill tau and weight, two rows of ``described`` [1 + K, E], and the pixel codes [E] of events.

    ``around`` has one event more on either side. The weight is that of Eq. 5 but for a factor that the events of a
    pillar share, ``shapes[:, 0]``. Each event is treated like one with others of its pillar before and after it.
    """
    for i in range(len(pixels)):
        pixels[i] = np.int32(around[i + 1] >> 32)
        described[0, i] = np.float32((around[i + 1] & M32) * per_us - 1.0)
        described[1, i] = np.float32((around[i + 2] & M32) - (around[i] & M32))


@compiled_finite_sums
def _weigh_events(described: NDArray[np.float32]) -> None:
    """Multiply the weights with L_k(tau): row 1 + k of ``described`` for each k above 0."""
    for i in range(described.shape[1]):
        tau, weight = described[0, i], described[1, i]
        described[2, i] = weight * tau
        described[3, i] = weight * (np.float32(1.5) * tau * tau - np.float32(0.5))


@compiled
def _sum_events(around: NDArray[np.int64], of_pixel: NDArray[np.int64], sums: NDArray[np.int64],
                ties: NDArray[np.int32]) -> None:  # fmt: skip
    """Sums over all events before each one, [E + 1, 2], and which have the time of the one before, E at the end.

    The sums are those of ``of_pixel`` (rows in the upper 32 bits, columns) and of times.
    """
    where, times, found, number = np.int64(0), np.int64(0), np.uint32(0), len(sums) - 1
    for i in range(number):
        event = around[i + 1]
        sums[i, 0], sums[i, 1] = where, times
        where += of_pixel[np.uint32(event >> 32)]
        times += event & M32
        ties[found] = i
        found += np.uint32(event & M32 == around[i] & M32)
    sums[number, 0], sums[number, 1] = where, times
    ties[found] = ties[found + np.uint32(1)] = number


@compiled_finite_sums
def _describe_pillars(pillars: NDArray[np.int32], around: NDArray[np.int64], sums: NDArray[np.int64],
                      ties: NDArray[np.int32], grid: tuple[int, int, bool], per_us: float,
                      weight: NDArray[np.float32], shapes: NDArray[np.float32]) -> None:  # fmt: skip
    """Fill ``shapes`` [J, 6], and correct the weights of the first and last event of a pillar and of equal times.

    ``shapes`` has the factor that the weights of Eq. 5 share, column and row of the pillar's corner, and the negated
    mean column, row and tau. Indices are unsigned, since signed ones may be negative, which takes time to check.
    """
    columns, side, uniform = grid
    one, origin, tie, row = np.uint32(1), np.uint32(pillars[0, 1]), np.uint32(0), np.int32(0)
    for j in range(len(pillars)):
        cell, events = pillars[j, 0], pillars[j, 2]
        while cell >= (row + 1) * columns:
            row += 1
        first = np.uint32(np.uint32(pillars[j, 1]) - origin)
        end = np.uint32(first + np.uint32(events))
        earliest, second = around[np.uint32(first + one)] & M32, around[np.uint32(first + one + one)] & M32
        latest, last_but_one = around[end] & M32, around[np.uint32(end - one)] & M32
        even = uniform or earliest == latest
        per_event = np.float32(1) / np.float32(events)
        shapes[j, 0] = per_event if even else np.float32(0.5) / np.float32(latest - earliest)
        shapes[j, 1], shapes[j, 2] = (cell - row * columns) * side, row * side
        where, times = sums[end, 0] - sums[first, 0], sums[end, 1] - sums[first, 1]
        shapes[j, 3], shapes[j, 4] = -np.float32(where & M32) * per_event, -np.float32(where >> 32) * per_event
        shapes[j, 5] = np.float32(1.0 - times * per_us / events)
        weight[first] = np.float32(1) if even else np.float32(second - earliest)
        weight[np.uint32(end - one)] = np.float32(1) if even else np.float32(latest - last_but_one)
        while ties[tie] <= first:  # those of dropped events, and of a pillar's first event with another pillar's last
            tie = np.uint32(tie + one)
        if even and (uniform or ties[tie] < end):
            for i in range(first, end):
                weight[np.uint32(i)] = np.float32(1)
        while not even and ties[tie] < end:  # events of equal times share the sum of their weights
            begin, stop = np.uint32(ties[tie] - 1), np.uint32(ties[tie] + 1)
            tie = np.uint32(tie + one)
            while ties[tie] == stop and stop < end:
                stop, tie = np.uint32(stop + one), np.uint32(tie + one)
            now = around[stop] & M32
            before = around[begin] & M32 if begin > first else now
            after = around[np.uint32(stop + one)] & M32 if stop < end else now
            share = np.float32(after - before) / np.float32(stop - begin)
            for i in range(begin, stop):
                weight[np.uint32(i)] = share


@compiled
def _write_pillars(pillars: NDArray[np.int32], described: NDArray[np.float32], pixels: NDArray[np.int32],
                   shapes: NDArray[np.float32], folded: NDArray[np.float32], image: NDArray[np.float32],
                   ) -> None:  # fmt: skip
    """Write the channels of pillars to the first ones of ``image`` [cells, C or more]."""
    channels, origin = folded.shape[1], pillars[0, 1]
    row, per_event, per_cell = 4 * channels, 4 * described.shape[1], 4 * image.shape[1]
    base = folded.ctypes.data
    slope = base + (len(folded) - 2 - MOMENTS) * row
    for j in range(len(pillars)):
        events, offset_bytes = np.int64(pillars[j, 2]), 4 * np.int64(pillars[j, 1] - origin)
        event, pixel, shape = (
            described.ctypes.data + offset_bytes,
            pixels.ctypes.data + offset_bytes,
            shapes.ctypes.data + 24 * j,
        )
        cell = image.ctypes.data + per_cell * np.int64(pillars[j, 0])
        c = 0  # bytes
        while WIDEST >= 64 and c + 256 <= row:
            _block_of_64(
                event, per_event, pixel, events, shape, base + c, base + 6 * row + c, slope + c, slope + row + c,
                slope + (1 + MOMENTS) * row + c, cell + c, channels,
            )  # fmt: skip
            c += 256
        while WIDEST >= 32 and c + 128 <= row:
            _block_of_32(
                event, per_event, pixel, events, shape, base + c, base + 6 * row + c, slope + c, slope + row + c,
                slope + (1 + MOMENTS) * row + c, cell + c, channels,
            )  # fmt: skip
            c += 128
        while c < row:
            _block_of_16(
                event, per_event, pixel, events, shape, base + c, base + 6 * row + c, slope + c, slope + row + c,
                slope + (1 + MOMENTS) * row + c, cell + c, channels,
            )  # fmt: skip
            c += 64
