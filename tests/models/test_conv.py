"""Convolutions: groups of one channel, and batches that are filled up, give the same, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fate.models.heads.rtdetr import RtDetrHead
from fate.models.heads.yolox import YOLOXHead
from fate.models.layers import conv as layers
from fate.models.layers.conv import COUNTS, AnyCountConv2d, ConvNormAct, depthwise_on_gpu

LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])


@LAYOUTS
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (5, 1), (3, 2)])
def test_depthwise_on_gpu(layout: torch.memory_format, kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    conv = ConvNormAct(6, 6, kernel, stride, groups=6).to(memory_format=layout).conv
    images = torch.randn(3, 6, 9, 11).to(memory_format=layout)
    wanted, found = conv(images), depthwise_on_gpu(conv, images)
    assert torch.allclose(found, wanted, atol=1e-6)
    assert found.is_contiguous(memory_format=layout)
    asked = torch.randn_like(wanted)
    (expected,) = torch.autograd.grad(wanted, conv.weight, asked)
    (gradient,) = torch.autograd.grad(found, conv.weight, asked)
    assert torch.allclose(gradient, expected, atol=1e-5)
    one = functional.conv2d(images[:, 2:3], conv.weight[2:3], stride=stride, padding=kernel // 2)
    assert torch.allclose(found[:, 2:3], one, atol=1e-5)


@LAYOUTS
@pytest.mark.parametrize("count", [0, 1, COUNTS - 1, COUNTS, COUNTS + 1])
def test_a_batch_that_is_filled_up(count: int, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    conv = AnyCountConv2d(3, 5, 3, 2, padding=1).to(memory_format=layout)
    images = torch.randn(count, 3, 7, 6).to(memory_format=layout).requires_grad_()
    wanted = conv(images)
    asked = torch.randn_like(wanted)
    expected = torch.autograd.grad(wanted, [images, conv.weight, conv.bias], asked)
    seen = []
    monkeypatch.setattr(layers, "must_prepare", lambda given: seen.append(len(given)) or True)
    found = conv(images)
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, atol=1e-6)
    for gradient, of in zip(torch.autograd.grad(found, [images, conv.weight, conv.bias], asked), expected, strict=True):
        assert torch.allclose(gradient, of, atol=1e-5)
    assert seen == [count]


def test_a_graph_with_an_open_number_of_images_can_be_exported() -> None:
    conv, images = AnyCountConv2d(2, 3, 1).eval(), torch.randn(5, 2, 4, 4)
    number = torch.export.Dim("number", min=2)
    graph = torch.export.export(conv, (images,), dynamic_shapes=({0: number},)).module()
    assert torch.equal(graph(images[:3]), conv(images[:3]))


def test_cudnn_sees_few_numbers_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of labelled windows, no convolution of a head is run with another than a multiple."""
    monkeypatch.setattr(layers, "must_prepare", lambda given: True)
    seen = set()
    plain = torch.nn.Conv2d._conv_forward

    def noted(self: torch.nn.Conv2d, images: torch.Tensor, *given: torch.Tensor | None) -> torch.Tensor:
        seen.add(len(images))
        return plain(self, images, *given)

    monkeypatch.setattr(torch.nn.Conv2d, "_conv_forward", noted)
    heads = [YOLOXHead((4, 4, 8), 2), RtDetrHead((4, 4, 8), 2, hidden=8, queries=3, layers=1, heads=2, denoising=0)]
    for head in heads:
        for count in (3, COUNTS + 5):
            head([torch.randn(count, width, side, side) for width, side in ((4, 8), (4, 4), (8, 2))])
    assert seen == {COUNTS, 2 * COUNTS}
