"""The unit that necks, heads and convolutional backbones are made of: convolution, BatchNorm, activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

#: "hardswish" is nearly "silu", made of multiplications alone: for small models on CPUs, where exp takes its time.
Activation = Literal["silu", "hardswish", "relu", "none"]
#: By name; they may write over their input.
ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "silu": partial(nn.SiLU, inplace=True),
    "hardswish": partial(nn.Hardswish, inplace=True),
    "relu": partial(nn.ReLU, inplace=True),
    "none": nn.Identity,
}
#: Numbers of images that ``AnyCountConv2d`` is run with in training are multiples of this.
COUNTS = 16


class AnyCountConv2d(nn.Conv2d):
    """``nn.Conv2d`` for a number of images that changes from call to call, as that of labelled windows does.

    cuDNN takes milliseconds to prepare itself for every new number, 0.1 s for a detection head. So in training on a
    GPU, of a teacher too, zeros fill batches up to numbers that come again, and what is made of them goes.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[N, in, H, W] → [N, out, H', W']."""
        # Asked first: an export may leave the number open.
        if not must_prepare(input) or (missing := -input.shape[0] % COUNTS) == 0:
            return super().forward(input)
        filled = nn.functional.pad(input, (0, 0, 0, 0, 0, 0, 0, missing))
        return super().forward(filled)[: input.shape[0]]


def must_prepare(images: Tensor) -> bool:
    """Whether cuDNN would prepare for the number of these; in pure inference it stays the same."""
    return images.is_cuda and not torch.is_inference_mode_enabled()


class ConvNormAct(nn.Module):
    """[N, in, H, W] → [N, out, ceil(H / stride), ceil(W / stride)]; BatchNorm's shift stands in for the bias.

    The kernel is odd, so that zeros around the image keep its middle in place; ``any_count``: see ``AnyCountConv2d``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: Activation = "silu",
        any_count: bool = False,
    ) -> None:
        super().__init__()
        convolution = AnyCountConv2d if any_count else nn.Conv2d
        self.conv = convolution(
            in_channels, out_channels, kernel, stride, padding=(kernel - 1) // 2, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(out_channels, eps=1e-5, momentum=0.1)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, images: Tensor) -> Tensor:
        apart = self.conv.groups > 1 and self.conv.groups == self.conv.in_channels
        filtered = channel_by_channel(self.conv, images) if apart and images.is_cuda else self.conv(images)
        result: Tensor = self.activation(self.norm(filtered))
        return result


def channel_by_channel(conv: nn.Conv2d, images: Tensor) -> Tensor:
    """What ``conv``, with a group for each channel, makes of images, by torch's own kernels, which want channels first.

    With channels last cuDNN takes seconds to prepare itself for every new number of images.
    """
    weight = conv.weight.flatten(1).view(conv.weight.shape)  # strides say nothing of channels last
    result = nn.functional.conv2d(
        images.contiguous(), weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups
    )
    last = images.is_contiguous(memory_format=torch.channels_last)
    return result.contiguous(memory_format=torch.channels_last) if last else result


class SeparableBlock(nn.Module):
    """[N, C, H, W] → the same: each channel filtered by itself, then channels mixed, and added to the input."""

    def __init__(self, channels: int, kernel: int = 5) -> None:
        super().__init__()
        self.filter = ConvNormAct(channels, channels, kernel, groups=channels, activation="none")
        self.mix = ConvNormAct(channels, channels, activation="hardswish")

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = images + self.mix(self.filter(images))
        return result


def side_by_side(convs: Sequence[nn.Conv2d]) -> nn.Conv2d:
    """Convolutions of one input, kernel and stride, with biases, as one whose channels are theirs in a row."""
    biases = [conv.bias for conv in convs if conv.bias is not None]
    return _like(convs[0], torch.cat([conv.weight for conv in convs]), torch.cat(biases))


def block_diagonal(convs: Sequence[nn.Conv2d]) -> nn.Conv2d:
    """1×1 convolutions with biases, each of its own input, as one of all inputs in a row."""
    inputs, before, rows = sum(conv.in_channels for conv in convs), 0, []
    for conv in convs:
        rows.append(conv.weight.new_zeros(conv.out_channels, inputs, 1, 1))
        rows[-1][:, before : before + conv.in_channels] = conv.weight
        before += conv.in_channels
    biases = [conv.bias for conv in convs if conv.bias is not None]
    return _like(convs[0], torch.cat(rows), torch.cat(biases))


def _like(conv: nn.Conv2d, weight: Tensor, bias: Tensor) -> nn.Conv2d:
    """A convolution that goes over the image as ``conv`` does, with other weights, which stay as they are."""
    out_channels, in_channels, kernel, _ = weight.shape
    result = nn.Conv2d(in_channels, out_channels, kernel, conv.stride[0], padding=kernel // 2, device="meta")
    result.weight = nn.Parameter(weight.detach(), requires_grad=False)
    result.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return result
