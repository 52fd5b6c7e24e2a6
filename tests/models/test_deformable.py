"""Multi-scale deformable attention against a plain computation, point by point, and on maps whose answer is known."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fate.models.layers.deformable import DeformableAttention, sampled

SIZES = [(6, 9), (3, 5), (2, 2)]
CELLS = sum(rows * columns for rows, columns in SIZES)


def bilinear(image: Tensor, x: float, y: float) -> Tensor:
    """[C, rows, columns] read at a fraction of its width and height; cells are squares, and nothing lies outside."""
    channels, rows, columns = image.shape
    column, row = x * columns - 0.5, y * rows - 0.5
    total = torch.zeros(channels, dtype=image.dtype)
    for i in (math.floor(row), math.floor(row) + 1):
        for j in (math.floor(column), math.floor(column) + 1):
            if 0 <= i < rows and 0 <= j < columns:
                total += image[:, i, j] * (1 - abs(row - i)) * (1 - abs(column - j))
    return total


def plain(attention: DeformableAttention, queries: Tensor, boxes: Tensor, memory: Tensor) -> Tensor:
    """The same by loops over windows, queries, heads, maps and points."""
    batch, count, width = queries.shape
    heads, points = attention.heads, attention.points
    values = attention.values(memory).view(batch, CELLS, heads, width // heads)
    offsets = attention.offsets(queries).view(batch, count, heads, len(SIZES), points, 2)
    weights = attention.weights(queries).view(batch, count, heads, -1).softmax(-1).view(offsets.shape[:-1])
    result = torch.zeros(batch, count, heads, width // heads, dtype=queries.dtype)
    for n in range(batch):
        for q in range(count):
            cx, cy, w, h = boxes[n, q].tolist()
            for head in range(heads):
                start = 0
                for level, (rows, columns) in enumerate(SIZES):
                    part = values[n, start : start + rows * columns, head]
                    image = part.view(rows, columns, -1).permute(2, 0, 1)
                    start += rows * columns
                    for point in range(points):
                        dx, dy = offsets[n, q, head, level, point].tolist()
                        read = bilinear(image, cx + dx / points * w / 2, cy + dy / points * h / 2)
                        result[n, q, head] += weights[n, q, head, level, point] * read
    return attention.output(result.flatten(2))  # type: ignore[no-any-return]


def attention_of(width: int = 8, heads: int = 2, points: int = 4) -> DeformableAttention:
    """With all weights drawn at random, in double precision."""
    attention = DeformableAttention(width, heads, len(SIZES), points).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(torch.randn_like(parameter) / 2)
    return attention


def test_equals_bilinear_reading_point_by_point_also_outside_the_frame() -> None:
    torch.manual_seed(0)
    attention = attention_of()
    queries, memory = torch.randn(2, 5, 8).double(), torch.randn(2, CELLS, 8).double()
    boxes = torch.rand(2, 5, 4).double()
    boxes[0, 0] = torch.tensor([0.0, 1.0, 0.9, 0.9])  # half of its points lie outside
    with torch.no_grad():
        torch.testing.assert_close(attention(queries, boxes, memory, SIZES), plain(attention, queries, boxes, memory))


def test_reading_at_the_middle_of_a_cell_gives_that_cell() -> None:
    values = torch.randn(1, 4, CELLS, dtype=torch.float64)
    places = torch.zeros(1, 1, 2, 3, 1, 2, dtype=torch.float64)
    places[..., 0, 0, :] = torch.tensor([2 * 2.5 / 9 - 1, 2 * 4.5 / 6 - 1])  # row 4, column 2 of the first map
    weights = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).expand(1, 1, 2, 3)
    torch.testing.assert_close(sampled(values, SIZES, places, weights)[0, 0], values[0, :, 4 * 9 + 2])


def test_at_first_a_query_reads_symmetrically_around_its_centre() -> None:
    """On maps that rise linearly from left to right, the mean of what a fresh layer reads is the centre's value."""
    attention = DeformableAttention(8, 8, len(SIZES), 4).double()
    ramps = [((torch.arange(c) + 0.5) / c).expand(r, c).reshape(-1) for r, c in SIZES]
    memory = torch.cat(ramps).double()[None, :, None].expand(1, CELLS, 8)
    boxes = torch.tensor([[[0.45, 0.5, 0.1, 0.3], [0.5, 0.6, 0.2, 0.2]]]).double()
    with torch.no_grad():
        attention.values.weight.copy_(torch.eye(8))
        attention.output.weight.copy_(torch.ones(8, 8) / 8)  # the mean over heads
        read = attention(torch.randn(1, 2, 8).double(), boxes, memory, SIZES)
    torch.testing.assert_close(read, boxes[..., :1].expand(1, 2, 8), rtol=0, atol=1e-7)


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(1)
    attention = attention_of(width=4, points=1)
    inputs = [torch.randn(1, 2, 4), torch.rand(1, 2, 4) * 0.5 + 0.2, torch.randn(1, CELLS, 4)]
    inputs = [tensor.double().requires_grad_() for tensor in inputs]
    assert torch.autograd.gradcheck(lambda q, b, m: attention(q, b, m, SIZES), inputs)


def test_places_keep_float32_where_everything_else_is_bfloat16() -> None:
    """A ramp of 128 columns is read within its own rounding: 16-bit places alone would be off by half a column."""
    attention = DeformableAttention(8, 1, 1, 1)
    with torch.no_grad():
        attention.offsets.bias.zero_()
        attention.values.weight.copy_(torch.eye(8))
        attention.output.weight.copy_(torch.eye(8))
    ramp = torch.arange(128.0)[None, :, None].expand(1, 128, 8)  # whole numbers below 256 are exact in bfloat16
    boxes = torch.tensor([[[(100 + 0.5) / 128, 0.5, 0.1, 0.1]]])
    read = attention.bfloat16()(torch.zeros(1, 1, 8).bfloat16(), boxes, ramp.bfloat16(), [(1, 128)])
    assert read.dtype == torch.bfloat16
    assert (read == 100).all()


def test_no_windows_are_no_error() -> None:
    attention = DeformableAttention(8, 2, len(SIZES), 4)
    none = attention(torch.zeros(0, 5, 8), torch.zeros(0, 5, 4), torch.zeros(0, CELLS, 8), SIZES)
    assert none.shape == (0, 5, 8)
    none.sum().backward()
    assert all(parameter.grad is not None for parameter in attention.parameters())
