"""Convolutions: a group for each channel gives the same by either way, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fate.models.layers.conv import ConvNormAct, channel_by_channel

LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])


@LAYOUTS
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (5, 1), (3, 2)])
def test_channel_by_channel(layout: torch.memory_format, kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    conv = ConvNormAct(6, 6, kernel, stride, groups=6).to(memory_format=layout).conv
    images = torch.randn(3, 6, 9, 11).to(memory_format=layout)
    wanted, found = conv(images), channel_by_channel(conv, images)
    assert torch.allclose(found, wanted, atol=1e-6)
    assert found.is_contiguous(memory_format=layout)
    asked = torch.randn_like(wanted)
    (expected,) = torch.autograd.grad(wanted, conv.weight, asked)
    (gradient,) = torch.autograd.grad(found, conv.weight, asked)
    assert torch.allclose(gradient, expected, atol=1e-5)
    one = functional.conv2d(images[:, 2:3], conv.weight[2:3], stride=stride, padding=kernel // 2)
    assert torch.allclose(found[:, 2:3], one, atol=1e-5)
