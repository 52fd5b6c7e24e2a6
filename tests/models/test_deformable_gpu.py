"""Deformable attention on a GPU: values and gradients of the kernels are those of ``sampled`` in double precision.

The comparisons also run without a GPU where Triton is installed and told to interpret: ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="deformable attention on a GPU is written in Triton, which is not installed here")

from fate.models.layers import deformable, deformable_gpu
from fate.models.layers.deformable import DeformableAttention, sampled
from fate.models.layers.deformable_gpu import Sampled
from tests.gpu import DEVICE, needs_gpu, needs_triton

SIZES = [(7, 11), (3, 5), (2, 1)]  # (rows, columns)

Inputs = tuple[Tensor, Tensor, Tensor]  # values, points and weights, as ``Sampled`` takes them


def cells_of(sizes: list[tuple[int, int]]) -> int:
    return sum(rows * columns for rows, columns in sizes)


def some_inputs(
    batch: int = 2, queries: int = 7, heads: int = 2, channels: int = 8, points: int = 4, sizes: object = SIZES
) -> Inputs:
    """Drawn at random; a third of the points lies outside."""
    assert isinstance(sizes, list)
    torch.manual_seed(0)
    values = torch.randn(batch, cells_of(sizes), heads * channels)
    places = torch.rand(batch, queries, heads, len(sizes), points, 2) * 2.5 - 1.25
    return values, places, torch.randn(batch, queries, heads, len(sizes) * points)


def by_kernel(
    inputs: Inputs, pull: Tensor, sizes: list[tuple[int, int]], dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """The result and the gradients of values, points and weights."""
    leaves = [tensor.detach().to(DEVICE).requires_grad_() for tensor in inputs]
    result = Sampled.apply(*leaves, sizes, dtype)  # type: ignore[no-untyped-call]
    assert result.dtype == dtype
    result.backward(pull.to(DEVICE, dtype))
    return [result.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves if leaf.grad is not None)]


def by_reference(inputs: Inputs, pull: Tensor, sizes: list[tuple[int, int]]) -> list[Tensor]:
    leaves = [tensor.detach().double().requires_grad_() for tensor in inputs]
    result = sampled(leaves[0].mT.contiguous(), sizes, leaves[1], leaves[2])
    result.backward(pull.double())
    return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def check_equal(mine: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    """Within the tolerance, relative to the largest number of each tensor."""
    assert len(mine) == len(expected) == 4
    for one, other in zip(mine, expected, strict=True):
        scale = max(float(other.abs().max()), 1e-30)
        torch.testing.assert_close(one.double() / scale, other / scale, rtol=0, atol=tolerance)


@pytest.fixture(params=["small", "large"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both divisions of the work."""
    if request.param == "large":
        monkeypatch.setattr(deformable_gpu, "FEWEST", 0)


@needs_triton
@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("channels", [8, 16, 32])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_values_and_gradients_are_those_of_grid_sample(channels: int, levels: int) -> None:
    sizes = SIZES[:levels]
    inputs = some_inputs(channels=channels, sizes=sizes)
    pull = torch.randn(2, 7, 2 * channels)
    check_equal(by_kernel(inputs, pull, sizes), by_reference(inputs, pull, sizes))


@needs_triton
@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(
    ("batch", "queries", "heads", "channels", "points"),
    [(1, 1, 1, 1, 1), (1, 41, 1, 8, 4), (3, 18, 4, 4, 2), (1, 5, 2, 64, 8), (2, 3, 3, 16, 1)],
)
def test_any_number_of_windows_queries_and_heads(
    batch: int, queries: int, heads: int, channels: int, points: int
) -> None:
    inputs = some_inputs(batch, queries, heads, channels, points)
    pull = torch.randn(batch, queries, heads * channels)
    check_equal(by_kernel(inputs, pull, SIZES), by_reference(inputs, pull, SIZES))


@needs_triton
@pytest.mark.parametrize("sizes", [[(4, 8), (2, 2), (1, 1), (16, 4)], [(1, 16)]])
def test_points_at_edges_and_middles_of_cells(sizes: list[tuple[int, int]]) -> None:
    """Sides are powers of two, so that these points are exact in float32 and lie in the same cell in both."""
    sixteenths = torch.linspace(-1.25, 1.25, 41)
    places = torch.stack(torch.meshgrid(sixteenths, sixteenths, indexing="xy"), -1).view(1, -1, 1, 1, 1, 2)
    places = torch.cat([places, torch.full_like(places[:, :1], 1e9), torch.full_like(places[:, :1], -3e38)], 1)
    places = places.expand(-1, -1, -1, len(sizes), -1, -1).contiguous()
    torch.manual_seed(0)
    inputs = (torch.randn(1, cells_of(sizes), 8), places, torch.randn(*places.shape[:3], len(sizes)))
    pull = torch.randn(1, places.shape[1], 8)
    mine, expected = by_kernel(inputs, pull, sizes), by_reference(inputs, pull, sizes)
    check_equal(mine, expected)
    assert not mine[0][:, -2:].any()


@needs_triton
@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_16_bit_values_are_added_in_32_bits(kind: torch.dtype) -> None:
    values, places, weights = some_inputs(channels=16)
    inputs = (values.to(kind), places, weights)
    pull = torch.randn(2, 7, 32)
    mine, expected = by_kernel(inputs, pull, SIZES), by_reference(inputs, pull, SIZES)
    assert mine[1].dtype == kind
    check_equal([mine[0], expected[1], *mine[2:]], expected)
    torch.testing.assert_close(mine[1].double(), expected[1], rtol=1e-2, atol=1e-5)


@needs_triton
def test_the_result_has_the_type_that_is_asked_for() -> None:
    inputs, pull = some_inputs(), torch.randn(2, 7, 16).bfloat16()
    check_equal(by_kernel(inputs, pull, SIZES, torch.bfloat16), by_reference(inputs, pull, SIZES), 1e-2)


@needs_triton
def test_a_point_that_is_no_number_gives_none() -> None:
    values, places, weights = (tensor.to(DEVICE) for tensor in some_inputs())
    places[0, 3, 0, 0, 0, 0] = float("nan")
    read = Sampled.apply(values, places, weights, SIZES, torch.float32)  # type: ignore[no-untyped-call]
    assert read[0, 3, :8].isnan().any()
    assert read[1].isfinite().all()


@needs_triton
def test_values_that_need_no_gradient_get_none_and_the_rest_is_the_same() -> None:
    values, places, weights = (tensor.to(DEVICE) for tensor in some_inputs())
    places.requires_grad_()
    weights.requires_grad_()
    grads = []
    for learns in (True, False):
        read = Sampled.apply(values.requires_grad_(learns), places, weights, SIZES, torch.float32)  # type: ignore[no-untyped-call]
        grads.append(torch.autograd.grad(read.square().sum(), (places, weights)))
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


def attention_of(width: int = 32, heads: int = 2) -> DeformableAttention:
    torch.manual_seed(1)
    attention = DeformableAttention(width, heads, len(SIZES), 4).to(DEVICE)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return attention


def use(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deformable, "_kernels", lambda *_: deformable_gpu if kernels else None)


@needs_triton
@pytest.mark.parametrize("autocast", [False, True])
def test_a_layer_gives_the_same_by_both_ways(autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = attention_of()
    torch.manual_seed(2)
    given = [torch.randn(2, 9, 32), torch.rand(2, 9, 4), torch.randn(2, cells_of(SIZES), 32)]
    found = []
    for kernels in (True, False):
        use(kernels, monkeypatch)
        queries, boxes, memory = (tensor.clone().to(DEVICE).requires_grad_() for tensor in given)
        attention.zero_grad()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
            read = attention(queries, boxes, memory, SIZES)
        read.square().sum().backward()
        grads = [leaf.grad for leaf in (queries, boxes, memory, *attention.parameters())]
        found.append([read.detach(), *(grad for grad in grads if grad is not None)])
    assert len(found[0]) == len(found[1]) == 4 + 8
    for mine, other in zip(*found, strict=True):
        assert mine.dtype == other.dtype
        scale = float(other.abs().max())
        torch.testing.assert_close(mine / scale, other / scale, rtol=0, atol=2e-2 if autocast else 1e-5)


@needs_triton
def test_in_inference_mode_a_layer_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = attention_of()
    given = [torch.randn(1, 5, 32), torch.rand(1, 5, 4), torch.randn(1, cells_of(SIZES), 32)]
    found = []
    for kernels in (True, False):
        use(kernels, monkeypatch)
        with torch.inference_mode():
            found.append(attention(*(tensor.to(DEVICE) for tensor in given), SIZES))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@needs_triton
def test_no_windows_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use(True, monkeypatch)
    attention = attention_of()
    shapes = ((0, 5, 32), (0, 5, 4), (0, cells_of(SIZES), 32))
    none = attention(*(torch.zeros(shape, device=DEVICE) for shape in shapes), SIZES)
    assert none.shape == (0, 5, 32)
    none.sum().backward()
    assert all(parameter.grad is not None for parameter in attention.parameters())


def test_the_kernels_are_for_gpus_and_for_numbers_of_at_most_32_bits() -> None:
    values, boxes = torch.zeros(1, 4, 32), torch.zeros(1, 3, 4)
    assert deformable._kernels(values, boxes, 4, 4) is None
    assert deformable_gpu.can_sample(values, 4, 4)
    assert not deformable_gpu.can_sample(values.double(), 4, 4)
    assert not deformable_gpu.can_sample(torch.zeros(1, 4, 24), 4, 4)  # 6 channels of a head


@needs_gpu
def test_a_layer_can_be_recorded_in_a_graph() -> None:
    attention = attention_of()
    shapes = ((1, 5, 32), (1, 5, 4), (1, cells_of(SIZES), 32))
    given = [torch.rand(shape, device=DEVICE) for shape in shapes]
    with torch.inference_mode():
        attention(*given, SIZES)  # builds the kernel
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            read = attention(*given, SIZES)
        for tensor in given:
            tensor.uniform_()
        graph.replay()
        torch.testing.assert_close(read, attention(*given, SIZES))
