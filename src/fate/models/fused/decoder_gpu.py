"""The decoder of RT-DETR on a GPU: attention of the queries, what they read from the maps, and their boxes."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from fate.events.events import Sensor
from fate.models.fused.products_gpu import STAGES, block, depth, on, power_of_two, transposed
from fate.models.fused.reference import BoxWeights, PositionWeights

#: Queries of a program of the attention, and keys that it reads at once.
QUERIES, KEYS = 32, 64
#: Numbers that a program of ``read_maps`` holds, one for each of its queries, points of a map and channels.
HELD = 512


def token_attention(tokens: Tensor, heads: int) -> Tensor:
    """``reference.token_attention``."""
    windows, count, triple = tokens.shape
    out = tokens.new_empty(windows, count, triple // 3)
    channels = triple // 3 // heads
    with on(tokens.device):
        _token_attention[(triton.cdiv(count, QUERIES), heads, windows)](
            tokens, out, count, triple // 3, channels**-0.5, HEAD=channels, QUERIES=QUERIES, KEYS=KEYS,
            WIDE=power_of_two(channels), num_warps=4,
        )  # fmt: skip
    return out


def refine_boxes(
    inside: Tensor, box: BoxWeights, reference: Tensor, positions: PositionWeights
) -> tuple[Tensor, Tensor]:
    """``reference.refine_boxes``."""
    count, inputs = inside.shape
    columns, units = positions.contract.shape
    moved = reference.new_empty(count, 4)
    out = inside.new_empty(count, columns)
    tall, wide = block(count, columns)
    with on(inside.device):
        _refine_boxes[(triton.cdiv(count, tall), triton.cdiv(columns, wide))](
            inside, box.weight, box.bias, box.farthest, reference, positions.expand, positions.expand_bias,
            positions.contract, positions.contract_bias, moved, out, count, columns, inputs, units, TALL=tall,
            WIDE=wide, DEEP=min(depth(inputs, box.weight, tall + wide), 64),
            UNITS=min(depth(units, positions.contract, tall + wide), 64), num_stages=STAGES,
        )  # fmt: skip
    return moved, out


def read_maps(
    product: Tensor, reference: Tensor, values: Tensor, sizes: Sequence[tuple[int, int]], heads: int, points: int
) -> Tensor:
    """``reference.read_maps``; channels of a head and points are powers of two."""
    levels, cells = len(sizes), sum(rows * columns for rows, columns in sizes)
    count = len(product) * cells // len(values)  # queries of a window
    width = values.shape[1]
    out = values.new_empty(len(product), width)
    queries = max(HELD // (points * width // heads), 1)
    with on(values.device):
        _read_maps[(triton.cdiv(len(product), queries), heads)](
            product, reference, values, out, len(product), count, cells, values.stride(0), SIZES=tuple(sizes),
            HEADS=heads, POINTS=points, CHANNELS=width // heads, QUERIES=queries,
            ALL=int(triton.next_power_of_2(levels * points)), num_warps=2,
        )  # fmt: skip
    return out


def predict_queries(
    inside: Tensor, box: BoxWeights, reference: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, frame: Sensor
) -> Tensor:
    """``reference.predict_queries``."""
    (count, inputs), classes = rows.shape, len(weight)
    out = reference.new_empty(count, 4 + classes)
    tall = 16
    with on(inside.device):
        _predict_queries[(triton.cdiv(count, tall),)](
            inside, box.weight, box.bias, box.farthest, reference, rows, weight, bias, out, count, inputs, classes,
            frame.width, frame.height, TALL=tall, WIDE=power_of_two(classes),
            DEEP=min(depth(inputs, weight, tall + power_of_two(classes)), 64), num_stages=STAGES,
        )  # fmt: skip
    return out


@triton.jit
def _token_attention(
    tokens, out, count, width, scale, HEAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr
):
    """A program attends with some queries of a head to all keys of a window, some of them at a time."""
    window = tl.program_id(2)
    row = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    channel = tl.arange(0, WIDE)
    used = channel < HEAD
    first = tokens + window * count * (3 * width) + tl.program_id(1) * HEAD
    inside = (row < count)[:, None] & used[None, :]
    query = tl.load(first + row[:, None] * (3 * width) + channel[None, :], mask=inside, other=0.0)
    largest = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    result = tl.zeros((QUERIES, WIDE), tl.float32)
    for start in range(0, count, KEYS):
        other = start + tl.arange(0, KEYS)
        there = (other < count)[:, None] & used[None, :]
        own = first + other[:, None] * (3 * width) + channel[None, :]
        key = tl.load(own + width, mask=there, other=0.0)
        value = tl.load(own + 2 * width, mask=there, other=0.0)
        scores = tl.dot(query, tl.trans(key)) * scale
        scores = tl.where((other < count)[None, :], scores, -1e30)
        larger = tl.maximum(largest, tl.max(scores, 1))
        powers = tl.exp(scores - larger[:, None])
        shrunk = tl.exp(largest - larger)
        total = total * shrunk + tl.sum(powers, 1)
        result = tl.dot(powers.to(value.dtype), value, result * shrunk[:, None])
        largest = larger
    to = out + window * count * width + row[:, None] * width + tl.program_id(1) * HEAD + channel[None, :]
    tl.store(to, (result / total[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _moved(
    inside, weight, bias, farthest, reference, row, count, inputs, TALL: tl.constexpr, DEEP: tl.constexpr
):  # fmt: skip
    """The changed boxes of some rows as logits [TALL, 16], of which four columns are used."""
    side = tl.arange(0, 16)
    exists, used = row < count, side < 4
    change = tl.zeros((TALL, 16), tl.float32)
    for start in range(0, inputs, DEEP):
        k = start + tl.arange(0, DEEP)
        there = exists[:, None] & (k < inputs)[None, :]
        a = tl.load(inside + row[:, None] * inputs + k[None, :], mask=there, other=0.0)
        change = tl.dot(a, transposed(weight, side, k, 4, inputs, inputs), change)
    change += tl.load(bias + side, mask=used, other=0.0)[None, :]
    there = exists[:, None] & used[None, :]
    before = tl.load(reference + row[:, None] * 4 + side[None, :], mask=there, other=0.0)
    return change + tl.minimum(tl.maximum(before, -farthest), farthest)


@triton.jit
def _column(values, number):
    """One of 16 columns of a block."""
    return tl.sum(tl.where((tl.arange(0, 16) == number)[None, :], values, 0.0), 1)


@triton.jit
def _refine_boxes(
    inside, weight, bias, farthest, reference, expand, expand_bias, contract, contract_bias, moved, out, count, columns,
    inputs, units, TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """All programs of a row compute its box, which is four columns; one of them stores it."""
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    side = tl.arange(0, 16)
    exists, used = row < count, column < columns
    after = _moved(inside, weight, bias, farthest, reference, row, count, inputs, TALL, DEEP)
    stored = exists[:, None] & (side < 4)[None, :] & (tl.program_id(1) == 0)
    tl.store(moved + row[:, None] * 4 + side[None, :], after, mask=stored)
    box = tl.sigmoid(after)
    x, y, w, h = _column(box, 0), _column(box, 1), _column(box, 2), _column(box, 3)
    result = tl.zeros((TALL, WIDE), tl.float32)
    for start in range(0, units, UNITS):
        unit = start + tl.arange(0, UNITS)
        there = unit < units
        hidden = tl.load(expand_bias + unit, mask=there, other=0.0)[None, :]
        hidden += x[:, None] * tl.load(expand + unit * 4, mask=there, other=0.0)[None, :]
        hidden += y[:, None] * tl.load(expand + unit * 4 + 1, mask=there, other=0.0)[None, :]
        hidden += w[:, None] * tl.load(expand + unit * 4 + 2, mask=there, other=0.0)[None, :]
        hidden += h[:, None] * tl.load(expand + unit * 4 + 3, mask=there, other=0.0)[None, :]
        hidden = tl.maximum(hidden, 0.0).to(out.dtype.element_ty)
        result = tl.dot(hidden, transposed(contract, column, unit, columns, units, units), result)
    result += tl.load(contract_bias + column, mask=used, other=0.0)[None, :]
    to = out + row[:, None] * columns + column[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=exists[:, None] & used[None, :])


@triton.jit
def _between(along, cells):
    """The first of the two cells that points at fractions of the frame lie between, and the share of the second."""
    position = tl.minimum(tl.maximum(along * cells - 0.5, -2.0), cells + 1.0)
    first = tl.floor(position)
    return first.to(tl.int32), position - first


@triton.jit
def _read_maps(
    product, reference, values, out, total, count, cells, stride, SIZES: tl.constexpr, HEADS: tl.constexpr,
    POINTS: tl.constexpr, CHANNELS: tl.constexpr, QUERIES: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """A program reads with some queries of a head; see ``layers.deformable_gpu``."""
    numbers: tl.constexpr = len(SIZES) * POINTS  # of a query and head
    head = tl.program_id(1)
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    exists = query < total
    point, channel, every = tl.arange(0, POINTS), tl.arange(0, CHANNELS), tl.arange(0, ALL)
    there = exists[:, None]
    of_query = product + (query * (3 * HEADS * numbers))[:, None]
    of_head = of_query + 2 * HEADS * numbers + head * numbers
    # The softmax over the points of all maps needs only their maximum and sum; each weight is read again below.
    raw = tl.load(of_head + every[None, :], mask=there & (every < numbers)[None, :], other=-1e30)
    largest = tl.max(raw, 1)
    scale = 1.0 / tl.sum(tl.exp(raw - largest[:, None]), 1)
    box = reference + query * 4
    centre_x = tl.sigmoid(tl.load(box, mask=exists, other=0.0))[:, None]
    centre_y = tl.sigmoid(tl.load(box + 1, mask=exists, other=0.0))[:, None]
    # An offset of ``POINTS`` is half a side of the box.
    side_x = tl.sigmoid(tl.load(box + 2, mask=exists, other=0.0))[:, None] / (2 * POINTS)
    side_y = tl.sigmoid(tl.load(box + 3, mask=exists, other=0.0))[:, None] / (2 * POINTS)
    offset = of_query + (head * (2 * numbers)) + 2 * point[None, :]
    own = of_head + point[None, :]
    cell = ((query // count) * cells)[:, None]
    result = tl.zeros((QUERIES, POINTS, CHANNELS), tl.float32)
    for level in tl.static_range(len(SIZES)):
        rows, columns = SIZES[level]
        j, right = _between(centre_x + tl.load(offset, mask=there, other=0.0) * side_x, columns)
        i, below = _between(centre_y + tl.load(offset + 1, mask=there, other=0.0) * side_y, rows)
        weight = tl.exp(tl.load(own, mask=there, other=-1e30) - largest[:, None]) * scale[:, None]
        for corner in tl.static_range(4):
            y, x = i + corner // 2, j + corner % 2
            share = weight * (below if corner // 2 else 1 - below) * (right if corner % 2 else 1 - right)
            inside = there & (y >= 0) & (y < rows) & (x >= 0) & (x < columns)
            source = ((cell + y * columns + x) * stride + head * CHANNELS)[:, :, None] + channel[None, None, :]
            read = tl.load(values + source, mask=inside[:, :, None], other=0.0).to(tl.float32)
            result += share[:, :, None] * read
        offset += 2 * POINTS
        own += POINTS
        cell += rows * columns
    to = out + (query * (HEADS * CHANNELS))[:, None] + head * CHANNELS + channel[None, :]
    tl.store(to, tl.sum(result, 1).to(out.dtype.element_ty), mask=there & (channel < CHANNELS)[None, :])


@triton.jit
def _predict_queries(
    inside, box_weight, box_bias, farthest, reference, rows, weight, bias, out, count, inputs, classes, width, height,
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    number = tl.arange(0, WIDE)
    exists = row < count
    box = tl.sigmoid(_moved(inside, box_weight, box_bias, farthest, reference, row, count, inputs, TALL, DEEP))
    x, y, w, h = _column(box, 0), _column(box, 1), _column(box, 2), _column(box, 3)
    own = out + row * (4 + classes)
    tl.store(own, (x - 0.5 * w) * width, mask=exists)
    tl.store(own + 1, (y - 0.5 * h) * height, mask=exists)
    tl.store(own + 2, (x + 0.5 * w) * width, mask=exists)
    tl.store(own + 3, (y + 0.5 * h) * height, mask=exists)
    result = tl.zeros((TALL, WIDE), tl.float32)
    for start in range(0, inputs, DEEP):
        k = start + tl.arange(0, DEEP)
        there = exists[:, None] & (k < inputs)[None, :]
        a = tl.load(rows + row[:, None] * inputs + k[None, :], mask=there, other=0.0)
        result = tl.dot(a, transposed(weight, number, k, classes, inputs, inputs), result)
    result += tl.load(bias + number, mask=number < classes, other=0.0)[None, :]
    tl.store(own[:, None] + 4 + number[None, :], result, mask=exists[:, None] & (number < classes)[None, :])
