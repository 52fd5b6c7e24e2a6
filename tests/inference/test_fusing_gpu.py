"""Convolutions with bias and activation in one or two kernels: equal to the modules that they replace."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fate.models.backbones.presnet import ResidualBlock
from fate.models.layers.conv import Activation, ConvNormAct
from tests.gpu import needs_gpu

pytest.importorskip("triton", reason="the kernels are written in Triton, which is not installed here")
pytestmark = needs_gpu

from fate.inference.fusing import fold_norms_  # noqa: E402  (after the skips)
from fate.inference.fusing_gpu import ConvActivation, ConvReLU, ResidualReLU, fuse_for_gpu_  # noqa: E402


def _pair(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The module with folded BatchNorm, and with the kernels; both in a container, as in a detector."""
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean = torch.randn_like(part.bias)
            part.running_var = torch.rand_like(part.bias) + 0.5
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    folded = nn.Sequential(module).eval().requires_grad_(False)
    replaced = copy.deepcopy(folded)
    for each in (folded, replaced):
        fold_norms_(each)
        each.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fuse_for_gpu_(replaced)
    return folded, replaced


def _assert_same(folded: nn.Module, replaced: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    images = torch.randn(2, 16, 33, 47, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        torch.testing.assert_close(replaced(images), folded(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("activation", "kind"), [("relu", ConvReLU), ("silu", ConvActivation), ("hardswish", ConvActivation)]
)
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_with_bias_and_activation_is_the_layer(
    activation: Activation, kind: type[nn.Module], stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded, replaced = _pair(ConvNormAct(16, 24, 3, stride, activation=activation))
    assert type(replaced[0]) is kind  # type: ignore[index]
    _assert_same(folded, replaced, monkeypatch)


@pytest.mark.parametrize("activation", ["relu", "hardswish", "none"])
def test_depthwise_convolutions_are_the_layers(activation: Activation, monkeypatch: pytest.MonkeyPatch) -> None:
    _assert_same(*_pair(ConvNormAct(16, 16, 3, groups=16, activation=activation)), monkeypatch)


@pytest.mark.parametrize("bottleneck", [True, False])
@pytest.mark.parametrize(("stride", "first"), [(1, False), (1, True), (2, True)])
def test_residual_blocks_are_the_blocks(
    bottleneck: bool, stride: int, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = 4 if bottleneck else 16  # so that the channels of the shortcut fit
    folded, replaced = _pair(ResidualBlock(16, width, stride, first, bottleneck))
    assert type(replaced[0]) is ResidualReLU  # type: ignore[index]
    _assert_same(folded, replaced, monkeypatch)
