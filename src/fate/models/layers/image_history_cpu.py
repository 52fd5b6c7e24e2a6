"""The history of images (``image_history.py``) on a CPU for inference: one pass over the cells of all windows.

The cells are independent of each other. Each one is advanced through all windows of a clip before the next one, so a
history is read and written once, and threads share the cells. Cells without events now are the majority. A cell whose
history has faded (``FADED``) is set to zero; then it costs nothing but the search for events, until the next ones.

The loops over channels are written in LLVM IR, in blocks of ``WIDTH`` channels. numba compares the addresses of all
arrays before each of these short loops, and takes twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from fate.compiled import compiled
from fate.encoding.kernels.cpu_kernels import in_threads

#: Channels of a block; those behind the last whole block are computed one by one.
WIDTH = 16
#: A cell without events is empty from when its count, and its share in the result, are below this.
FADED = 1e-7
#: Below this, a second thread takes longer to start than it saves: values of the images of a call.
FEW_VALUES = 1_000_000

Array = NDArray[np.float32]

_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_FAST = ("contract",)


def complete(
    images: Tensor,
    state: tuple[Tensor, Tensor] | None,
    steps: int,
    step_scale: float | Tensor,
    rates: tuple[Tensor, Tensor, Tensor],
    keep_length: bool,
    reuse_state: bool,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """What ``ImageHistory.forward`` returns, with channels last in memory.

    Args:
        images, state, steps, step_scale, reuse_state: its arguments.
        rates: its parameters ``log_rate``, ``count_log_rate`` and ``gain``.
        keep_length: whether the length is a channel of the result.
    """
    windows, channels, height, width = images.shape
    channels, cells, streams = channels - 1, height * width, windows // steps
    pixels = _channels_last(images).reshape(windows, cells, channels + 1)
    if isinstance(step_scale, Tensor):
        hops = step_scale.float().expand(windows).contiguous().numpy()
    else:
        hops = np.full(windows, step_scale, np.float32)
    log_rate, count_log_rate, gain = (part.detach().float().numpy() for part in rates)
    of_channels, of_windows = np.empty((windows, 2, channels), np.float32), np.empty((windows, 4), np.float32)
    smallest = _describe_windows(pixels, hops, log_rate, count_log_rate, gain, of_channels, of_windows)
    sizes = (streams, cells, channels), (streams, cells)
    if state is None:
        total, count = torch.zeros(sizes[0]).numpy(), torch.zeros(sizes[1]).numpy()
    else:
        total = _channels_last(state[0].float()).reshape(sizes[0])
        count = state[1].float().reshape(sizes[1]).numpy()
    is_own = reuse_state or state is None
    new_total = total if is_own else _empty(sizes[0], total, 1).numpy()
    new_count = count if is_own else np.empty_like(count)
    is_complete = not of_windows[:, STRENGTH].any()  # windows of 50 ms or longer: the result is the images
    result = _empty((0, 0, 0) if is_complete else (windows, cells, channels + keep_length), total, 2)
    arrays = (pixels, total, count, new_total, new_count, result.numpy(), of_channels, of_windows)
    bands = torch.get_num_threads() if pixels.size >= FEW_VALUES else 1

    def complete_band(task: int) -> None:
        stream, band = divmod(task, bands)
        part = (stream, cells * band // bands, cells * (band + 1) // bands)
        _complete_cells(*arrays, part, keep_length, smallest)

    in_threads(complete_band, streams * bands)
    if is_complete:
        completed = images if keep_length else images[:, :-1]
    else:
        completed = result.view(windows, height, width, -1).permute(0, 3, 1, 2)
    sums = torch.from_numpy(new_total).view(streams, height, width, channels).permute(0, 3, 1, 2)
    return completed, (sums, torch.from_numpy(new_count).view(streams, 1, height, width))


def _empty(shape: tuple[int, ...], beside: Array, third: int) -> Tensor:
    """New memory whose address lies so many thirds of 4 KiB behind that of another array.

    A processor tells writes from reads by the last 12 bits of addresses. If results were written where these are those
    of the next sums, each cell would wait for the one before it.
    """
    number = math.prod(shape)
    whole = torch.empty(number + 1024)
    gap = (beside.ctypes.data - whole.data_ptr()) // 4 + third * 336  # in numbers; 336 are 21 lines of a cache
    return whole[gap % 1024 :][:number].view(shape)


def _channels_last(images: Tensor) -> Array:
    """The values [N, H, W, C] of images [N, C, H, W]; copied if they have another order in memory."""
    values: Array = images.permute(0, 2, 3, 1).contiguous().numpy()
    return values


#: Columns of what ``_describe_windows`` writes for each window.
COUNT_KEEP, SHARE, STRENGTH, LOG_LENGTH = range(4)


@compiled
def _describe_windows(
    images: Array, hops: Array, log_rate: Array, count_log_rate: Array, gain: Array, of_channels: Array,
    of_windows: Array,
) -> np.float32:  # fmt: skip
    """Fill the factors of each window: decay and weight of its channels [N, 2, C], and the columns above [N, 4].

    Returns the value of a sum below which it has faded.
    """
    channels, largest = len(log_rate), 1.0
    for w in range(len(images)):
        log_length, hop = images[w, 0, channels], hops[w]
        length = np.exp(log_length)
        strength = max(np.float32(1) - length, np.float32(0))
        for c in range(channels):
            of_channels[w, 0, c] = np.exp(-hop * np.exp(log_rate[c]))
            of_channels[w, 1, c] = strength * gain[c]
        of_windows[w, COUNT_KEEP] = np.exp(-hop * np.exp(count_log_rate.flat[0]))
        of_windows[w, SHARE] = min(hop / length, np.float32(1))
        of_windows[w, STRENGTH], of_windows[w, LOG_LENGTH] = strength, log_length
    for c in range(channels):
        largest = max(largest, abs(gain[c]))
    return np.float32(FADED / largest)


def _loop(width: int, blocks: Any, builder: Any, start: Any, body: Callable[[Any, Any], Any]) -> Any:
    """Write a loop over ``blocks`` blocks; its value begins as ``start``.

    ``body`` writes its content, given the offset of a block in bytes and the value so far; it returns the next value.
    """
    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.cbranch(builder.icmp_signed(">", blocks, _LONG(0)), loop, after)
    builder.position_at_end(loop)
    number, value = builder.phi(_LONG), builder.phi(start.type)
    following = body(builder.mul(number, _LONG(4 * width)), value)
    number_after = builder.add(number, _LONG(1))
    for now, first, later in ((number, _LONG(0), number_after), (value, start, following)):
        now.add_incoming(first, before)
        now.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", number_after, blocks), loop, after)
    builder.position_at_end(after)
    result = builder.phi(start.type)
    result.add_incoming(start, before)
    result.add_incoming(following, loop)
    return result


def _loops(width: int) -> tuple[Any, Any, Any, Any]:
    """Four loops over ``blocks`` blocks of ``width`` channels of a cell; all other arguments are int64 addresses."""
    vector, bits = ir.VectorType(_FLOAT, width), ir.VectorType(_INT, width)

    def load(builder: Any, address: Any, kind: Any = vector) -> Any:
        return builder.load(builder.inttoptr(address, ir.PointerType(kind)), align=4)

    def store(builder: Any, value: Any, address: Any) -> None:
        builder.store(value, builder.inttoptr(address, ir.PointerType(vector)), align=4)

    def broadcast(builder: Any, number: Any) -> Any:
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _INT(0))
        return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(bits, [0] * width))

    def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
        return builder.fadd(builder.fmul(a, b, flags=_FAST), c, flags=_FAST)

    def decayed(builder: Any, total: Any, decay: Any) -> Any:
        # Adding and subtracting 1e-25 makes numbers below 1e-32 zero. Processors need many times longer for those below
        # 1e-38, which a channel with a short time constant reaches before the others have faded.
        little = ir.Constant(vector, [1e-25] * width)
        return builder.fsub(multiply_add(builder, total, decay, little), little)

    @intrinsic
    def has_events(_typing_context, image, blocks):  # type: ignore[no-untyped-def]
        """Whether a value of a cell is not 0."""

        def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            image, blocks = arguments
            zeros = ir.Constant(bits, [0] * width)

            def body(offset: Any, found: Any) -> Any:
                return builder.or_(found, load(builder, builder.add(image, offset), bits))

            found = _loop(width, blocks, builder, zeros, body)
            magnitude = builder.and_(found, ir.Constant(bits, [0x7FFFFFFF] * width))  # -0.0 is 0
            is_set = builder.icmp_signed("!=", magnitude, zeros)
            return builder.icmp_signed(
                "!=", builder.bitcast(is_set, ir.IntType(width)), ir.Constant(ir.IntType(width), 0)
            )

        return types.boolean(types.int64, types.int64), write

    @intrinsic
    def complete_cell(  # type: ignore[no-untyped-def]
        _typing_context, image, total, keep, new_total, share, blocks, weight, result, factor
    ):
        """``advance_cell``, and result = (image + weight · total · keep) · factor."""

        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            image, total, keep, new_total, share, blocks, weight, result, factor = arguments
            share, factor = broadcast(builder, share), broadcast(builder, factor)

            def body(offset: Any, value: Any) -> Any:
                x, h, decay, g = (load(builder, builder.add(each, offset)) for each in (image, total, keep, weight))
                h = decayed(builder, h, decay)
                completed = builder.fmul(multiply_add(builder, g, h, x), factor, flags=_FAST)
                store(builder, multiply_add(builder, share, x, h), builder.add(new_total, offset))
                store(builder, completed, builder.add(result, offset))
                return value

            _loop(width, blocks, builder, _LONG(0), body)
            return context.get_dummy_value()

        address, number = types.int64, types.float32
        arguments = (address, address, address, address, number, address, address, address, number)
        return types.void(*arguments), write

    @intrinsic
    def advance_cell(_typing_context, image, total, keep, new_total, share, blocks):  # type: ignore[no-untyped-def]
        """new_total = total · keep + share · image."""

        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            image, total, keep, new_total, share, blocks = arguments
            share = broadcast(builder, share)

            def body(offset: Any, value: Any) -> Any:
                x, h, decay = (load(builder, builder.add(each, offset)) for each in (image, total, keep))
                h = decayed(builder, h, decay)
                store(builder, multiply_add(builder, share, x, h), builder.add(new_total, offset))
                return value

            _loop(width, blocks, builder, _LONG(0), body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4, types.float32, types.int64), write

    @intrinsic
    def clear(_typing_context, values, blocks):  # type: ignore[no-untyped-def]
        """values = 0."""

        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            values, blocks = arguments

            def body(offset: Any, value: Any) -> Any:
                store(builder, ir.Constant(vector, [0.0] * width), builder.add(values, offset))
                return value

            _loop(width, blocks, builder, _LONG(0), body)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), write

    return has_events, complete_cell, advance_cell, clear


_has_events, _complete_cell, _advance_cell, _clear = _loops(WIDTH)
_has_events_1, _complete_cell_1, _advance_cell_1, _clear_1 = _loops(1)


@compiled
def _complete_cells(
    images: Array, total: Array, count: Array, new_total: Array, new_count: Array, result: Array, of_channels: Array,
    of_windows: Array, part: tuple[int, int, int], keep_length: bool, smallest: np.float32,
) -> None:  # fmt: skip
    """Advance cells of a stream through its windows, and write their results unless ``result`` is empty.

    Args:
        images: [T · B, cells, C + 1], time-major.
        total, count: sums [B, cells, C] and counts [B, cells] before the windows. Where a count is 0, its sums are 0.
        new_total, new_count: those after the windows; they may be the same arrays.
        result: [T · B, cells, C] or, with ``keep_length``, [T · B, cells, C + 1]; or empty.
        of_channels, of_windows: see ``_describe_windows``.
        part: stream, first cell and end.
        smallest: the value of a sum below which it has faded.
    """
    stream, first, end = part
    streams, cells, channels = total.shape
    one, nothing, blocks = np.float32(1), np.float32(0), channels // WIDTH
    rest, tail = channels - blocks * WIDTH, 4 * WIDTH * blocks  # channels behind the blocks, and where they begin
    is_same = total.ctypes.data == new_total.ctypes.data
    row, result_row, writes = 4 * (channels + 1), 4 * result.shape[2], len(result) > 0
    for cell in range(first, end):
        n = count[stream, cell]
        at = 4 * channels * (stream * cells + cell)
        now, after = total.ctypes.data + at, new_total.ctypes.data + at
        w = stream
        while w < len(images):
            number = w * cells + cell
            image, completed = images.ctypes.data + row * number, result.ctypes.data + result_row * number
            filled = _has_events(image, blocks) or _has_events_1(image + tail, rest)
            if n == nothing and not filled:
                if not is_same:
                    _clear(after, blocks)
                    _clear_1(after + tail, rest)
                if writes:
                    _clear(completed, blocks)
                    _clear_1(completed + tail, rest)
            else:
                keep = of_channels.ctypes.data + 8 * channels * w
                weight, occupied = keep + 4 * channels, one if filled else nothing
                share = of_windows[w, SHARE]
                n *= of_windows[w, COUNT_KEEP]
                if writes:
                    factor = one / max(one, occupied + of_windows[w, STRENGTH] * n)
                    _complete_cell(image, now, keep, after, share, blocks, weight, completed, factor)
                    _complete_cell_1(
                        image + tail, now + tail, keep + tail, after + tail, share, rest, weight + tail,
                        completed + tail, factor,
                    )  # fmt: skip
                else:
                    _advance_cell(image, now, keep, after, share, blocks)
                    _advance_cell_1(image + tail, now + tail, keep + tail, after + tail, share, rest)
                n += share * occupied
                if n < FADED and not filled:
                    c = channels - 1
                    while c >= 0 and abs(new_total[stream, cell, c]) < smallest:
                        c -= 1
                    if c < 0:
                        new_total[stream, cell] = n = nothing
                    else:  # a count of 0 would mean that the sum is 0
                        n = max(n, np.float32(1e-30))
            now, w = after, w + streams
            if keep_length and writes:
                result[w - streams, cell, channels] = of_windows[w - streams, LOG_LENGTH]
        new_count[stream, cell] = n
