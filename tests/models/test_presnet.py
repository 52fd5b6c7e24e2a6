"""PResNet: what the public backbone gives, its sizes, and its stem."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fate.errors import FateError
from fate.models.backbones.presnet import AveragedCells, PResNet, averaged_cells
from fate.models.checkpoints.importing import EVRT_DETR
from tests.gpu import needs_gpu
from tests.models.conftest import rename_entries


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def small(**options: int) -> PResNet:
    torch.manual_seed(0)
    return PResNet(4, depth=10, widths=(8, 8, 16, 24), **options)


@pytest.mark.slow
def test_outputs_are_those_of_the_public_backbone(
    golden: Callable[[str], dict[str, np.ndarray]],
    golden_weights: Callable[..., dict[str, Tensor]],
    golden_rule: ModuleType,
    close_to_golden: Callable[..., None],
) -> None:
    backbone = PResNet(20).eval()
    weights = golden_weights("evrtdetr_b_gen1", "net_backbone.pth::_net.")
    backbone.load_state_dict(rename_entries(weights, EVRT_DETR["backbone"]))  # strict: every name, every shape
    images = torch.from_numpy(golden_rule.normal("input", (3, 2, 20, 256, 320)).astype(np.float32))
    arrays = golden("evrtdetr_b")
    with torch.inference_mode():
        features, state = backbone(images.flatten(0, 1), None, steps=3)
    assert state is None
    for level, maps in enumerate(features):
        for step, of_step in enumerate(maps.chunk(3)):
            close_to_golden(of_step, arrays, f"t{step}_backbone{level}", atol=1e-6)


@pytest.mark.parametrize(("depth", "expected"), [(18, 11_204_864), (34, 21_313_024), (50, 23_532_160)])
def test_parameters_are_as_many_as_in_the_public_code(depth: int, expected: int) -> None:
    with torch.device("meta"):
        assert parameters(PResNet(20, depth)) == expected


def test_each_channel_of_the_image_costs_288_parameters() -> None:
    with torch.device("meta"):
        assert parameters(PResNet(64)) - parameters(PResNet(20)) == 44 * 288
        assert parameters(PResNet(64, stem_stride=1)) == parameters(PResNet(64))


@pytest.mark.parametrize("depth", [10, 18, 34, 50, 101])
def test_maps_have_strides_8_16_32_and_the_channels_announced(depth: int) -> None:
    with torch.device("meta"):
        backbone = PResNet(3, depth, widths=(8, 16, 24, 32))
        features, _ = backbone(torch.empty(2, 3, 64, 96))
    assert [maps.shape for maps in features] == [
        (2, channels, 64 // stride, 96 // stride)
        for channels, stride in zip(backbone.channels, (8, 16, 32), strict=True)
    ]
    assert backbone.channels == tuple((4 if depth >= 50 else 1) * width for width in (16, 24, 32))


def test_an_image_of_half_the_size_with_stem_stride_1_gives_maps_of_the_same_size() -> None:
    full, _ = small(stem_stride=2)(torch.zeros(1, 4, 64, 96))
    half, _ = small(stem_stride=1)(torch.zeros(1, 4, 32, 48))
    assert [maps.shape for maps in full] == [maps.shape for maps in half]


def test_stem_strides_differ_only_in_which_cells_the_first_convolution_keeps() -> None:
    two, one = small(stem_stride=2), small(stem_stride=1)
    one.load_state_dict(two.state_dict())
    images = torch.randn(1, 4, 32, 64)
    torch.testing.assert_close(two.stem[0].conv(images), one.stem[0].conv(images)[:, :, ::2, ::2])


def test_a_stage_that_halves_the_image_averages_in_its_shortcut() -> None:
    block = small().stages[1][0].eval()
    maps = torch.randn(2, 8, 7, 10)
    torch.nn.init.zeros_(block.branch[-1].norm.weight)  # leaves the shortcut alone
    padded = functional.pad(maps, (0, 0, 0, 1), mode="replicate")  # an odd last row is averaged with nobody but itself
    averaged = padded.unflatten(2, (4, 2)).unflatten(4, (5, 2)).mean(dim=(3, 5))
    torch.testing.assert_close(block(maps), functional.relu(block.shortcut(averaged)))


def test_the_first_block_of_every_stage_has_a_convolution_in_its_shortcut_and_no_other() -> None:
    with torch.device("meta"):
        for stage in PResNet(3, 18).stages:
            assert [hasattr(block.shortcut, "conv") for block in stage] == [True, False]


def test_a_clip_gives_what_its_windows_give_one_by_one() -> None:
    backbone = small().eval()
    images = torch.randn(6, 4, 32, 64)
    with torch.no_grad():
        together, _ = backbone(images, None, steps=3)
        for step in range(3):
            alone, _ = backbone(images[2 * step : 2 * step + 2])
            for all_steps, one_step in zip(together, alone, strict=True):
                torch.testing.assert_close(all_steps[2 * step : 2 * step + 2], one_step)


def test_gradients_reach_every_parameter() -> None:
    backbone = small()
    features, _ = backbone(torch.randn(2, 4, 64, 64))
    sum(maps.square().mean() for maps in features).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.parameters())


def test_images_with_channels_last_stay_so() -> None:
    backbone = small().eval()
    images = torch.randn(2, 4, 64, 64)
    with torch.no_grad():
        expected, _ = backbone(images)
        features, _ = backbone.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last))
    for maps, other in zip(features, expected, strict=True):
        assert maps.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(maps, other)


def test_unknown_depths_and_bad_widths_are_refused() -> None:
    with pytest.raises(FateError, match="depth 42 was given; expected one of 10, 18, 34, 50, 101"):
        PResNet(3, 42)
    with pytest.raises(FateError, match="expected four, the first of them even"):
        PResNet(3, 18, widths=(7, 8, 8, 8))


@needs_gpu
@pytest.mark.parametrize(("height", "width"), [(8, 10), (7, 10), (8, 9)])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_averaged_cells_on_a_gpu_are_those_of_a_cpu(height: int, width: int, layout: torch.memory_format) -> None:
    maps = torch.randn(2, 6, height, width)
    results = []
    for device in ("cpu", "cuda"):
        own = maps.to(device).contiguous(memory_format=layout).requires_grad_()
        found = averaged_cells(own)
        (gradient,) = torch.autograd.grad(found.square().sum(), own)
        results.append([found.detach().cpu(), gradient.cpu()])
        with torch.no_grad():
            assert torch.equal(averaged_cells(own), found)
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_averaged_cells_are_torch_s_to_the_bit(dtype: torch.dtype) -> None:
    maps = torch.randn(2, 6, 8, 10).to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    found, wanted = AveragedCells.apply(maps), functional.avg_pool2d(maps, 2, ceil_mode=True)
    assert torch.equal(found, wanted)
    for pull in (
        torch.randn_like(wanted),
        torch.randn(2, 6, 4, 5).to(dtype),
        torch.ones(()).to(dtype).expand_as(wanted),
    ):
        (mine,) = torch.autograd.grad(found, maps, pull, retain_graph=True)
        (other,) = torch.autograd.grad(wanted, maps, pull, retain_graph=True)
        assert torch.equal(mine, other)
        assert mine.is_contiguous(memory_format=torch.channels_last)
