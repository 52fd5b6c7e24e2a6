"""The kernels of fused detectors compute what the readable operations compute in float32.

The comparisons also run without a GPU where Triton is installed and told to interpret: ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the kernels are written in Triton, which is not installed here")

from fate.events.events import Sensor
from fate.inference.fusing import fused
from fate.inference.fusing_network import fuse_network_
from fate.models import state as states
from fate.models.fused import kernels, reference
from fate.models.fused.reference import (
    BlockWeights,
    BoxWeights,
    Norm,
    PositionWeights,
    S5Weights,
    SeparableWeights,
)
from fate.models.layers.image_history import ImageHistory
from fate.models.zoo import build_model
from tests.gpu import DEVICE, HAS_GPU, INTERPRETED, needs_triton
from tests.models.small_detectors import (
    CLASSES,
    SENSOR,
    batch_of,
    difference,
    difference_of_sets,
    small_detector,
    some_windows,
    state_difference,
    stirred,
)

pytestmark = needs_triton
#: Tensor cores of a GPU round float32, so there only float16 is compared.
dtypes = pytest.mark.parametrize("dtype", [torch.float16] if HAS_GPU else [torch.float32, torch.float16])
takes_minutes = pytest.mark.skipif(INTERPRETED, reason="takes ten minutes in Triton's interpreter")
#: Relative to the largest number.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def weight(*shape: int) -> Tensor:
    """Of a layer with the inputs of the last axis, in numbers that float16 has too."""
    return (torch.randn(*shape) / shape[-1] ** 0.5).half().float()


def maps(*shape: int) -> Tensor:
    """Numbers that float16 has too."""
    return torch.randn(*shape).half().float()


def norm(channels: int) -> Norm:
    return Norm(torch.randn(channels), torch.randn(channels), 1e-5)


class Kept:
    """A tensor that is not rounded: norms, biases and states."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def kept(*shape: int) -> Any:
    return Kept(torch.randn(*shape))


def check(name: str, dtype: torch.dtype, *args: Any, **options: Any) -> None:
    """Compare the operation of a kernel in ``dtype`` with the readable one in float32."""

    def of_kernel(value: Any) -> Any:
        if isinstance(value, Kept):
            return value.tensor.clone().to(DEVICE)
        if isinstance(value, Norm):
            return Norm(value.weight.to(DEVICE), value.bias.to(DEVICE), value.eps)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(of_kernel, value))
        if not isinstance(value, Tensor):
            return value
        whole = value if value._base is None else value._base
        if value._base is None or not whole.is_contiguous():
            return value.to(DEVICE, dtype)
        return whole.to(DEVICE, dtype).as_strided(value.shape, value.stride(), value.storage_offset())

    def of_reference(value: Any) -> Any:
        if isinstance(value, Kept):
            return value.tensor.clone()
        if isinstance(value, tuple) and hasattr(value, "_fields") and not isinstance(value, Norm):
            return type(value)(*map(of_reference, value))
        return value

    found = getattr(kernels, name)(*map(of_kernel, args), **{key: of_kernel(value) for key, value in options.items()})
    expected = getattr(reference, name)(
        *map(of_reference, args), **{key: of_reference(value) for key, value in options.items()}
    )
    pairs = [(found, expected)] if isinstance(found, Tensor) else zip(found, expected, strict=True)
    for one, other in pairs:
        assert one.shape == other.shape
        assert one.dtype in (dtype, torch.float32)
        worst = float((one.cpu().float() - other).abs().max() / other.abs().max())
        assert worst < TOLERANCES[dtype], (name, worst)


@dtypes
@pytest.mark.parametrize(("count", "inputs", "outputs"), [(37, 24, 40), (130, 64, 33), (5, 16, 16), (80, 300, 64)])
@pytest.mark.parametrize("activation", ["none", "silu", "hardswish", "gelu"])
def test_a_product(dtype: torch.dtype, count: int, inputs: int, outputs: int, activation: str) -> None:
    rows, bias = maps(count, inputs), kept(outputs)
    check("linear", dtype, rows, weight(outputs, inputs), bias, activation=activation, residual=maps(count, outputs))
    check("linear", dtype, rows, weight(outputs, inputs), activation=activation)


@dtypes
def test_a_product_of_two_maps_of_which_one_is_part_of_another(dtype: torch.dtype) -> None:
    both = maps(37, 48)
    rows, others = both.chunk(2, 1)
    check("linear", dtype, rows, weight(40, 48), kept(40), others=others, activation="silu")


@dtypes
@pytest.mark.parametrize(("windows", "size"), [(1, (4, 6)), (2, (6, 4))])
def test_a_product_of_a_map_of_half_the_size(dtype: torch.dtype, windows: int, size: tuple[int, int]) -> None:
    count = windows * size[0] * size[1]
    small, others = maps(count // 4, 24), maps(count, 8)
    check("linear", dtype, small, weight(16, 32), others=others, doubled=size)


@dtypes
def test_a_product_writes_where_it_is_told(dtype: torch.dtype) -> None:
    rows, layer = maps(20, 24).to(DEVICE, dtype), weight(16, 24).to(DEVICE, dtype)
    whole = torch.zeros(20, 32, dtype=dtype, device=DEVICE)
    kernels.linear(rows, layer, out=whole[:, 8:24])
    assert torch.equal(whole[:, 8:24], kernels.linear(rows, layer))
    assert not bool(whole[:, :8].any())
    assert not bool(whole[:, 24:].any())


@dtypes
@pytest.mark.parametrize(("count", "channels"), [(37, 24), (300, 64)])
def test_positions_are_added_for_some_outputs(dtype: torch.dtype, count: int, channels: int) -> None:
    rows, positions, layer = maps(count, channels), maps(count, channels), weight(3 * channels, channels)
    check("linear", dtype, rows, layer, kept(3 * channels), positions=positions, positioned=2 * channels)
    options = {"positions": positions, "precise": True, "activation": "relu"}
    check("normed_linear", dtype, rows, norm(channels), layer, kept(3 * channels), **options)


@dtypes
@pytest.mark.parametrize(("count", "channels", "outputs"), [(37, 24, 40), (130, 64, 96), (20, 384, 64), (20, 512, 48)])
def test_a_norm_and_a_product(dtype: torch.dtype, count: int, channels: int, outputs: int) -> None:
    rows = maps(count, channels) + 3
    check("normed_linear", dtype, rows, norm(channels), weight(outputs, channels), kept(outputs), activation="gelu")
    check("normed_linear", dtype, rows, norm(channels), weight(2 * outputs, channels), gated=True)


@dtypes
@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize(
    ("channels", "head_dim", "partition", "size"),
    [(24, 8, (4, 5), (8, 15)), (64, 32, (8, 10), (16, 20)), (32, 32, (2, 3), (2, 3)), (8, 4, (2, 3), (4, 6))],
)
def test_attention(
    dtype: torch.dtype, grid: bool, channels: int, head_dim: int, partition: tuple[int, int], size: tuple[int, int]
) -> None:
    check("attention", dtype, maps(2, *size, 3 * channels), partition, head_dim, grid)
    check(
        "normed_attention", dtype, maps(2, *size, channels), norm(channels), weight(3 * channels, channels),
        kept(3 * channels), partition, head_dim, grid,
    )  # fmt: skip


@dtypes
@pytest.mark.parametrize(("count", "channels", "ratio"), [(37, 24, 4), (160, 64, 4), (16, 128, 2)])
def test_the_rest_of_a_block(dtype: torch.dtype, count: int, channels: int, ratio: int) -> None:
    hidden = ratio * channels
    weights = BlockWeights(
        weight(channels, channels), kept(channels), norm(channels), weight(hidden, channels), kept(hidden),
        weight(channels, hidden), kept(channels),
    )  # fmt: skip
    check("after_attention", dtype, maps(count, channels), maps(count, channels), weights)


@dtypes
@pytest.mark.parametrize(("count", "channels"), [(36, 24), (160, 64), (32, 128)])
@pytest.mark.parametrize("own_steps", [1, 2])
def test_a_step_of_s5(dtype: torch.dtype, count: int, channels: int, own_steps: int) -> None:
    weights = S5Weights(
        norm(channels), weight(2 * channels, channels), weight(channels, 2 * channels), kept(channels), norm(channels),
        weight(2 * channels, channels), weight(channels, channels),
    )  # fmt: skip
    system = kept(own_steps, 2 * channels), kept(own_steps, 2 * channels)
    rows, state = maps(count, channels), kept(count, 2 * channels)
    check("s5_block", dtype, rows, weights, *system, state)
    check("s5_update", dtype, rows, weights, *system, state)
    check("s5_output", dtype, state, rows, weights)


@dtypes
@pytest.mark.parametrize(("count", "channels"), [(37, 24), (160, 64), (80, 200)])
def test_a_step_of_an_lstm(dtype: torch.dtype, count: int, channels: int) -> None:
    rows, hidden = maps(count, channels), maps(count, channels)
    check(
        "conv_lstm", dtype, rows, hidden, kept(count, channels), weight(4 * channels, 2 * channels), kept(4 * channels)
    )


@dtypes
@pytest.mark.parametrize(
    ("sizes", "stride", "groups", "side"),
    [
        ([(7, 9)], 1, 1, 3),
        ([(7, 9)], 2, 1, 3),
        ([(8, 6)], 2, 1, 3),
        ([(1, 1)], 1, 1, 3),
        ([(8, 10), (4, 5), (2, 3)], 1, 2, 3),
        ([(8, 10), (4, 5)], 1, 1, 1),
    ],
)
@pytest.mark.parametrize("inputs", [24, 160])
def test_a_convolution(
    dtype: torch.dtype, sizes: list[tuple[int, int]], stride: int, groups: int, side: int, inputs: int
) -> None:
    pixels = sum(height * width for height, width in sizes)
    wider = maps(2, pixels, groups * inputs + 8)
    kernel = weight(len(sizes), groups, 20, side, side, inputs)
    check("conv", dtype, wider[:, :, : groups * inputs], sizes, kernel, kept(len(sizes), groups * 20), stride)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("channels", "size"), [(5, (6, 7)), (32, (8, 10))])
@torch.inference_mode()
def test_images_are_completed(channels: int, size: tuple[int, int], each: bool, last: bool) -> None:
    history = ImageHistory(channels).to(DEVICE)
    history.compiled = False
    for weight in history.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.3)
    scale: float | Tensor = torch.tensor([0.1, 0.4], device=DEVICE) if each else 0.1
    own = other = None
    for lengths in ([0.1, 1.0], [0.05, 0.4], [0.1, 2.0]):
        images = torch.randn(2, channels + 1, *size) * (torch.rand(2, 1, *size) < 0.5)
        images[:, -1] = torch.tensor(lengths).log()[:, None, None]
        images = images.to(DEVICE, memory_format=torch.channels_last if last else torch.contiguous_format)
        expected, other = history(images, other, 1, scale)
        own = states.mapped(torch.zeros_like, other) if own is None else own
        places = [part.data_ptr() for part in states.tensors(own)]
        completed, own = kernels.complete_images(history, images, own, scale)
        assert [part.data_ptr() for part in states.tensors(own)] == places
        for found, wanted in zip((completed, *own), (expected, *other), strict=True):
            assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


@dtypes
@pytest.mark.parametrize(
    ("sizes", "stride", "side"),
    [([(6, 7)], 1, 3), ([(6, 7)], 2, 3), ([(1, 1)], 1, 5), ([(8, 10), (4, 5), (2, 3)], 1, 5), ([(8, 10)], 2, 5)],
)
@pytest.mark.parametrize("channels", [24, 160])
def test_a_depthwise_convolution(
    dtype: torch.dtype, sizes: list[tuple[int, int]], stride: int, side: int, channels: int
) -> None:
    wider = maps(2, sum(height * width for height, width in sizes), channels + 8)
    kernel = weight(channels, side, side).permute(1, 2, 0).contiguous().expand(len(sizes), -1, -1, -1).contiguous()
    args = (wider[:, :, :channels], sizes, kernel, kept(len(sizes), channels), stride)
    check("depthwise", dtype, *args, activation="hardswish")


@dtypes
@pytest.mark.parametrize(("size", "channels"), [((5, 7), 24), ((8, 10), 32), ((2, 3), 128)])
@pytest.mark.parametrize("side", [3, 5])
def test_a_separable_block(dtype: torch.dtype, size: tuple[int, int], channels: int, side: int) -> None:
    kernel = weight(channels, side, side).permute(1, 2, 0).contiguous()
    weights = SeparableWeights(norm(channels), kernel, kept(channels), weight(channels, channels), kept(channels))
    check("separable_block", dtype, maps(2, *size, channels), weights)


@dtypes
@pytest.mark.parametrize("windows", [1, 2])
def test_a_convolution_adds_a_part_of_another_map(dtype: torch.dtype, windows: int) -> None:
    maps_and_more = maps(windows, 63, 48)
    images, residual = maps_and_more.chunk(2, 2)
    check("conv", dtype, images, [(7, 9)], weight(1, 1, 24, 3, 3, 24), kept(1, 24), residual=residual)


@dtypes
@pytest.mark.parametrize(
    ("windows", "count", "heads", "channels"), [(1, 300, 8, 256), (2, 80, 4, 32), (1, 20, 8, 64), (1, 5, 1, 16)]
)
def test_attention_of_tokens(dtype: torch.dtype, windows: int, count: int, heads: int, channels: int) -> None:
    check("token_attention", dtype, maps(windows, count, 3 * channels), heads)


@dtypes
@pytest.mark.parametrize("scale", [1.0, 0.1, torch.tensor([0.02, 3.0])])
@pytest.mark.parametrize("forget", [0.0, 12.0, -12.0])
def test_a_step_of_an_lstm_with_peepholes(dtype: torch.dtype, scale: Any, forget: float) -> None:
    rows, bias = maps(34, 48), torch.randn(4 * 24)
    bias[24:48] += forget
    given = Kept(scale) if isinstance(scale, Tensor) else scale
    check("peephole_lstm", dtype, maps(34, 96), Kept(bias), kept(3, 24), rows, kept(34, 24), given)
    changed = [rows.to(DEVICE, dtype), rows.clone()]
    args = maps(34, 96), bias, torch.randn(3, 24), torch.randn(34, 24), scale
    found = []
    for module, own in zip((kernels, reference), changed, strict=True):
        gates, *others = (part.clone().to(own.device) if isinstance(part, Tensor) else part for part in args)
        hidden, _ = module.peephole_lstm(gates.to(own.dtype), *others[:2], own, *others[2:])
        assert torch.equal(own[:, 24:], hidden)
        assert torch.equal(own[:, :24], rows[:, :24].to(own))
        found.append(hidden.cpu().float())
    assert float((found[0] - found[1]).abs().max()) < TOLERANCES[dtype]


@dtypes
@pytest.mark.parametrize(
    ("windows", "cells", "channels", "classes"), [(1, 300, 64, 2), (2, 37, 24, 1), (1, 40, 256, 20)]
)
def test_the_best_cells(dtype: torch.dtype, windows: int, cells: int, channels: int, classes: int) -> None:
    wider, usable = maps(windows * cells, channels + 8), torch.rand(cells) < 0.8
    layer = weight(classes, channels), kept(classes)
    check("score_cells", dtype, wider[:, 8:], Kept(usable), kept(channels), norm(channels), *layer)
    best, anchors = torch.randint(9, (windows * cells,)).float(), torch.randn(cells, 4)
    anchors[3] = torch.inf
    features = maps(windows * cells, channels)
    for count in (20, cells):
        found = kernels.best_cells(features.to(DEVICE, dtype), best.to(DEVICE), anchors.to(DEVICE), count)
        expected = reference.best_cells(features, best, anchors, count)
        assert all(torch.equal(one.cpu().float(), other) for one, other in zip(found, expected, strict=True))


def box_weights(channels: int, farthest: float) -> BoxWeights:
    return BoxWeights(weight(4, channels), kept(4), farthest)


@dtypes
@pytest.mark.parametrize(("count", "channels"), [(37, 24), (300, 64)])
@pytest.mark.parametrize("farthest", [math.inf, 2.0])
def test_boxes_are_refined(dtype: torch.dtype, count: int, channels: int, farthest: float) -> None:
    positions = PositionWeights(
        kept(2 * channels, 4), kept(2 * channels), weight(channels, 2 * channels), kept(channels)
    )  # fmt: skip
    inside, box, before = maps(count, channels), box_weights(channels, farthest), kept(count, 4)
    check("refine_boxes", dtype, inside, box, before, positions)
    layer = weight(3, channels), kept(3)
    check("predict_queries", dtype, inside, box, before, maps(count, channels), *layer, Sensor(240, 304))


def test_a_box_at_infinity_stays_there_and_is_limited_later() -> None:
    inside, before = torch.zeros(3, 16), torch.full((3, 4), math.inf)
    parts = (torch.zeros(16, 4), torch.zeros(16), torch.zeros(16, 16), torch.zeros(16))
    for farthest in (math.inf, 2.0):
        box = BoxWeights(torch.zeros(4, 16).to(DEVICE), torch.zeros(4).to(DEVICE), farthest)
        positions = PositionWeights(*(part.to(DEVICE) for part in parts))
        moved, out = kernels.refine_boxes(inside.to(DEVICE), box, before.to(DEVICE), positions)
        assert bool((moved == farthest).all())
        assert not bool(out.any())


@dtypes
@pytest.mark.parametrize(("windows", "count", "heads", "channels"), [(1, 30, 8, 64), (2, 7, 4, 8), (1, 5, 8, 256)])
def test_what_queries_read(dtype: torch.dtype, windows: int, count: int, heads: int, channels: int) -> None:
    sizes, points = [(6, 8), (3, 4), (2, 2)], 4
    values = maps(windows * 64, 3 * channels)[:, channels : 2 * channels]
    product = torch.randn(windows * count, 9 * heads * points) * 2
    check("read_maps", dtype, Kept(product), kept(windows * count, 4), values, sizes, heads, points)


@dtypes
@pytest.mark.parametrize("classes", [1, 2, 30])
def test_predictions(dtype: torch.dtype, classes: int) -> None:
    sizes = [(8, 10), (4, 5), (2, 3)]
    features, layer = maps(2, 106, 40), weight(3, 5 + classes, 40)
    check("predict", dtype, features, sizes, (8, 16, 32), layer, kept(3, 5 + classes))


@dtypes
@pytest.mark.parametrize(
    ("family", "dims"), [("s5", (8, 16, 32, 64)), ("lstm", (8, 16, 32, 64)), ("s5", (8, 8, 8, 136))]
)
@takes_minutes
@torch.inference_mode()
def test_a_whole_detector(dtype: torch.dtype, family: str, dims: tuple[int, ...]) -> None:
    detector = small_detector(family, dims=dims).to(DEVICE)
    other = fused(detector)
    fuse_network_(other, kernels, dtype)
    state = other_state = None
    for pair in some_windows(3):
        batch = batch_of([pair]).to(DEVICE)
        outputs, state = detector(batch, state)
        others, other_state = other(batch, other_state)
        limit = 2e-4 if dtype == torch.float32 else 0.05
        assert difference(others, outputs) < limit
        assert state_difference(other_state, state) < limit


@dtypes
@pytest.mark.parametrize("more", [{}, {"depth": 50, "expansion": 1.0, "recurrence": "time"}])
@takes_minutes
@torch.inference_mode()
def test_a_whole_detector_of_evrt_detr(dtype: torch.dtype, more: dict[str, Any]) -> None:
    """All cells become queries, since rounding decides between nearly equal ones; it also decides on their order."""
    detector = small_detector("evrt", queries=300, **more).to(DEVICE)
    other = fused(detector)
    fuse_network_(other, kernels, dtype)
    state = other_state = None
    for first in (0, 2):
        batch = batch_of(some_windows(4)[first : first + 2]).to(DEVICE)
        outputs, state = detector(batch, state)
        others, other_state = other(batch, other_state)
        limit = 2e-4 if dtype == torch.float32 else 0.2  # 50 layers of random weights
        assert difference_of_sets(others, outputs) < limit
        assert state_difference(other_state, state) < limit


@dtypes
@pytest.mark.parametrize("name", ["fate-s-tiny", "fate-s-nano"])
@pytest.mark.parametrize("more", [{}, {"image_history": True}])
@takes_minutes
@torch.inference_mode()
def test_a_whole_bundled_detector(dtype: torch.dtype, name: str, more: dict[str, Any]) -> None:
    detector = stirred(build_model(name, CLASSES, SENSOR, **more)).eval().to(DEVICE)
    other = fused(detector)
    fuse_network_(other, kernels, dtype)
    state = other_state = None
    for first in (0, 2):
        batch = batch_of(some_windows(4)[first : first + 2]).to(DEVICE)
        outputs, state = detector(batch, state)
        others, other_state = other(batch, other_state)
        limit = 2e-4 if dtype == torch.float32 else 0.05
        assert difference(others, outputs) < limit
        assert state_difference(other_state, state) < limit


@takes_minutes
@torch.inference_mode()
def test_the_state_of_s5_is_overwritten() -> None:
    other = fused(small_detector("s5").to(DEVICE))
    fuse_network_(other, kernels, torch.float16)
    batch = batch_of(some_windows(1)).to(DEVICE)
    _, state = other(batch)
    places = [part.data_ptr() for part in states.tensors(state)]
    _, after = other(batch, state)
    assert [part.data_ptr() for part in states.tensors(after)] == places
