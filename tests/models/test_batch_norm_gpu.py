"""BatchNorm with its activation in one kernel: values, gradients and running statistics are torch's.

The comparisons also run without a GPU where Triton is installed and told to interpret: ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="the kernel is written in Triton, which is not installed here")

from fate.models.layers import batch_norm_gpu, conv
from fate.models.layers.batch_norm_gpu import NormalisedAndActivated
from fate.models.layers.conv import ACTIVATIONS, FUSED, Activation, ConvNormAct
from fate.training.activation_checkpointing import keep_statistics
from tests.gpu import DEVICE, INTERPRETED, needs_gpu, needs_triton

types = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
activations = pytest.mark.parametrize("activation", ACTIVATIONS)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs have several tiles for each program, and several programs."""
    if INTERPRETED:
        monkeypatch.setattr(batch_norm_gpu, "TILE", 1024)
        monkeypatch.setattr(batch_norm_gpu, "TILE_OF_GRADIENTS", 512)
        monkeypatch.setattr(batch_norm_gpu, "TILE_OF_WRITING", 512)
        monkeypatch.setattr(batch_norm_gpu, "PROGRAMS", 6)


class Pass(NamedTuple):
    """What a pass forward and backward gives, in float64 on the CPU."""

    out: Tensor
    to_maps: Tensor
    to_weight: Tensor
    to_bias: Tensor
    running_mean: Tensor
    running_var: Tensor


def norm_of(channels: int, dtype: torch.dtype = torch.float32) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-5, momentum=0.1)
    torch.manual_seed(1)
    with torch.no_grad():
        norm.weight.normal_(1, 0.5)
        norm.bias.normal_()
        norm.running_mean.normal_()  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return norm.to(dtype)


def result_of(out: Tensor, maps: Tensor, pull: Tensor, norm: nn.BatchNorm2d) -> Pass:
    gradients = torch.autograd.grad(out, [maps, norm.weight, norm.bias], pull)
    found = (out, *gradients, norm.running_mean, norm.running_var)
    return Pass(*(part.detach().double().cpu() for part in found))


def by_kernel(maps: Tensor, pull: Tensor, activation: str) -> Pass:
    """Through the kernel, in the type of the maps."""
    norm = norm_of(maps.shape[1]).to(DEVICE)
    maps = maps.to(DEVICE, memory_format=torch.channels_last).detach().requires_grad_()
    out = NormalisedAndActivated.apply(maps, norm.weight, norm.bias, norm, activation)
    assert out.dtype == maps.dtype
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert norm.num_batches_tracked == 1
    return result_of(out, maps, pull.to(DEVICE), norm)


def by_torch(maps: Tensor, pull: Tensor, activation: Activation) -> Pass:
    """In float64 on the CPU."""
    norm = norm_of(maps.shape[1], torch.float64)
    maps = maps.double().detach().requires_grad_()
    return result_of(ACTIVATIONS[activation]()(norm(maps)), maps, pull.double(), norm)


def compare(found: Pass, wanted: Pass, rounding: float, of_sums: float = 2e-5) -> None:
    """Values and gradients of maps have the given ``rounding``, sums and statistics ``of_sums``, that of float32."""
    for name in Pass._fields:
        mine, other = getattr(found, name), getattr(wanted, name)
        loose = rounding if name in ("out", "to_maps") else of_sums
        worst = float((mine - other).abs().max() / other.abs().max())
        assert worst < loose, (name, worst)


#: Triton's interpreter cuts numbers to bfloat16 instead of rounding them.
ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 9e-3 if INTERPRETED else 5e-3}


def away_from_kinks(maps: Tensor, activation: str) -> Tensor:
    """Maps whose values no rounding moves to the other side of a kink, where the gradient jumps."""
    if activation not in ("relu", "hardswish"):
        return maps
    for _ in range(20):
        z = norm_of(maps.shape[1], torch.float64)(maps.double()).detach()
        kinks = (0.0,) if activation == "relu" else (-3.0, 3.0)
        near = torch.stack([(z - kink).abs() < 1e-4 for kink in kinks]).any(0)
        if not near.any():
            break
        maps = torch.where(near, maps + torch.randn_like(maps) * 0.3, maps)
    assert not near.any()
    return maps


@needs_triton
@types
@activations
@pytest.mark.parametrize("channels", [8, 24, 64, 100, 320])
def test_values_gradients_and_statistics_are_torch_s(channels: int, activation: Activation, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    maps = torch.randn(3, channels, 7, 9) * 2 + torch.randn(channels, 1, 1)
    maps = away_from_kinks(maps.to(dtype), activation)
    pull = torch.randn_like(maps)
    compare(by_kernel(maps, pull, activation), by_torch(maps, pull, activation), ROUNDING[dtype])


@needs_triton
@pytest.mark.parametrize("shape", [(4, 8, 1, 1), (1, 1, 9, 1), (7, 3, 1, 1), (1, 130, 11, 3), (2, 2048, 3, 5)], ids=str)
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    maps, pull = torch.randn(shape), torch.randn(shape)
    compare(by_kernel(maps, pull, "silu"), by_torch(maps, pull, "silu"), 2e-5)


@needs_triton
@pytest.mark.parametrize("first", [None, -40.0], ids=["", "with an outlier in the first cells"])
def test_a_mean_much_larger_than_the_deviation_costs_no_precision(first: float | None) -> None:
    torch.manual_seed(0)
    maps = 100 + 0.1 * torch.randn(4, 24, 16, 10)
    if first is not None:
        maps[:, :, 0, 0] = first
    pull = torch.randn_like(maps)
    found, wanted = by_kernel(maps, pull, "silu"), by_torch(maps, pull, "silu")
    # A mean of 100 in float32 is exact to 4e-6, a 25 000th of the deviation.
    compare(found._replace(to_weight=wanted.to_weight), wanted, 2e-4, of_sums=1e-4)
    assert float((found.to_weight - wanted.to_weight).abs().max() / wanted.to_weight.abs().max()) < 2e-4
    spread = maps.double().var(dim=(0, 2, 3))
    change = (found.running_var - wanted.running_var).abs() / spread
    assert float(change.max()) < 1e-4  # the old running variance of 2 is a hundred times the new one


@needs_triton
def test_a_gradient_of_another_layout_is_the_same_gradient() -> None:
    torch.manual_seed(0)
    maps = torch.randn(2, 24, 6, 7)
    row = torch.randn(7)
    for pull in (row.expand(2, 24, 6, 7), torch.randn(2, 24, 6, 7)):
        compare(by_kernel(maps, pull, "silu"), by_torch(maps, pull, "silu"), 2e-5)


@needs_triton
def test_the_same_call_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    maps, pull = torch.randn(8, 100, 17, 13), torch.randn(8, 100, 17, 13)
    first, *others = (by_kernel(maps, pull, "relu") for _ in range(3))
    assert all(torch.equal(mine, other) for again in others for mine, other in zip(again, first, strict=True))


@needs_triton
@activations
def test_a_number_that_is_not_finite_is_seen(activation: str) -> None:
    maps = torch.randn(2, 8, 4, 4)
    maps[0, 3, 1, 2] = float("nan")
    found = by_kernel(maps, torch.ones_like(maps), activation)
    assert found.out[:, 3].isnan().all()
    assert found.running_var[3].isnan()
    assert found.out[:, [0, 1, 2, 4, 5, 6, 7]].isfinite().all()


@needs_triton
def test_statistics_can_be_kept_as_they_are() -> None:
    """As in the second run of a block of activation checkpointing."""
    norm, maps = norm_of(8).to(DEVICE), torch.randn(2, 8, 4, 4, device=DEVICE)
    maps = maps.contiguous(memory_format=torch.channels_last)
    mean, var = norm.running_mean.clone(), norm.running_var.clone()  # type: ignore[union-attr]
    with keep_statistics(norm):
        NormalisedAndActivated.apply(maps, norm.weight, norm.bias, norm, "relu")
    assert torch.equal(norm.running_mean, mean)  # type: ignore[arg-type]
    assert torch.equal(norm.running_var, var)  # type: ignore[arg-type]
    assert norm.num_batches_tracked == 0


# --- on a GPU alone ---


def uses_kernel(layer: ConvNormAct, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> bool:
    used = []

    class Watched(NormalisedAndActivated):
        @staticmethod
        def apply(*given: object) -> object:
            used.append(given)
            return NormalisedAndActivated.apply(*given)

    with monkeypatch.context() as patch:
        patch.setattr(batch_norm_gpu, "NormalisedAndActivated", Watched)
        layer(images)
    return bool(used)


@needs_gpu
@activations
@pytest.mark.parametrize("kind", [None, torch.bfloat16], ids=["float32", "autocast"])
def test_a_layer_with_the_kernel_is_the_layer_without(
    activation: Activation, kind: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.backends.cudnn.allow_tf32 = False
    found = []
    for kernel in (True, False):
        monkeypatch.setattr(conv, "HAS_TRITON", kernel)
        torch.manual_seed(0)
        layer = ConvNormAct(16, 40, 3, 2, activation=activation).cuda().to(memory_format=torch.channels_last)
        images = torch.randn(6, 16, 33, 47, device="cuda").contiguous(memory_format=torch.channels_last)
        assert uses_kernel(layer, images.requires_grad_(), monkeypatch) is kernel
        with torch.autocast("cuda", kind or torch.bfloat16, enabled=kind is not None):
            out = layer(images)
        assert out.dtype == (kind or torch.float32)
        pull = torch.randn_like(out, dtype=torch.float32).to(out.dtype)
        learning = [images, layer.conv.weight, layer.norm.weight, layer.norm.bias]
        gradients = torch.autograd.grad(out, learning, pull)
        buffers = [buffer.clone() for buffer in layer.norm.buffers()]
        found.append([out, *gradients, *buffers])
    for mine, other in zip(*found, strict=True):
        far = (mine.double() - other.double()).norm() / other.double().norm()
        assert float(far) < (2e-2 if kind is not None else 1e-4)


@needs_gpu
def test_what_the_kernel_does_not_compute_is_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randn(2, 8, 6, 5, device="cuda").contiguous(memory_format=torch.channels_last)

    def fresh(**options: bool) -> ConvNormAct:
        return ConvNormAct(8, 8, activation="relu", **options).cuda().to(memory_format=torch.channels_last)

    assert uses_kernel(fresh(), images, monkeypatch)
    assert not uses_kernel(fresh().eval(), images, monkeypatch)
    assert not uses_kernel(fresh().double(), images.double(), monkeypatch)
    assert not uses_kernel(nn.SyncBatchNorm.convert_sync_batchnorm(fresh()), images, monkeypatch)
    for options in ({"momentum": None}, {"track_running_stats": False}, {"affine": False}):
        other = fresh()
        other.norm = nn.BatchNorm2d(8, **options).cuda()  # type: ignore[arg-type]
        assert not uses_kernel(other, images, monkeypatch), options
    first = fresh().to(memory_format=torch.contiguous_format)
    assert not uses_kernel(first, images.contiguous(), monkeypatch)
    with torch.no_grad():
        assert not uses_kernel(fresh(), images, monkeypatch)


@needs_gpu
def test_a_captured_graph_gives_what_the_layer_gives() -> None:
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    layer = ConvNormAct(16, 24, 3, activation="relu").cuda().to(memory_format=torch.channels_last)
    images = torch.randn(4, 16, 20, 24, device="cuda").contiguous(memory_format=torch.channels_last).requires_grad_()
    pull = torch.randn(4, 24, 20, 24, device="cuda").contiguous(memory_format=torch.channels_last)
    learning = [images, layer.conv.weight, layer.norm.weight, layer.norm.bias]

    def step() -> tuple[Tensor, ...]:
        out = layer(images)
        return (out, *torch.autograd.grad(out, learning, pull))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    with torch.no_grad():
        images.copy_(torch.randn_like(images))
    before = [buffer.clone() for buffer in layer.norm.buffers()]
    wanted = step()
    after = [buffer.clone() for buffer in layer.norm.buffers()]
    for buffer, value in zip(layer.norm.buffers(), before, strict=True):
        buffer.copy_(value)
    graph.replay()
    for mine, other in zip(recorded, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    for mine, other in zip(layer.norm.buffers(), after, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)


@needs_gpu
def test_nothing_waits_for_the_gpu() -> None:
    layer = ConvNormAct(16, 24, activation="relu").cuda().to(memory_format=torch.channels_last)
    images = torch.randn(4, 16, 20, 24, device="cuda").contiguous(memory_format=torch.channels_last)
    layer(images).sum().backward()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")  # an operation that waits for the GPU raises an error
    try:
        with pytest.raises(RuntimeError):
            images.sum().item()  # one that waits
        layer(images).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode(before)


@needs_gpu
def test_more_than_two_to_the_31_numbers() -> None:
    """Offsets that a 32-bit integer does not hold: the last rows are normalised, too."""
    if torch.cuda.get_device_properties(0).total_memory < 40 * 2**30:
        pytest.skip("the maps take 26 GB of a GPU's memory")
    maps = torch.zeros(2**31 // 2**16 + 1, 64, 32, 32, device="cuda", dtype=torch.bfloat16)
    maps = maps.contiguous(memory_format=torch.channels_last)
    maps[-1] = 1
    maps.requires_grad_()
    norm = norm_of(64).cuda()
    out = NormalisedAndActivated.apply(maps, norm.weight, norm.bias, norm, "none")
    (to_maps,) = torch.autograd.grad(out, maps, torch.ones_like(out))
    mean = 1 / len(maps)
    high = (1 - mean) / (mean * (1 - mean) + 1e-5) ** 0.5
    expected = (high * norm.weight + norm.bias).view(1, -1, 1, 1).expand(1, -1, 32, 32)
    torch.testing.assert_close(out[-1:].float(), expected.float(), rtol=1e-2, atol=1e-2)
    assert float(to_maps[-1].abs().max()) < 1e-2


def test_every_activation_is_known_to_the_kernel() -> None:
    assert {FUSED[type(make())] for make in ACTIVATIONS.values()} == set(ACTIVATIONS)
