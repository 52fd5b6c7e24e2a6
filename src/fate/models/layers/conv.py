"""Convolution, BatchNorm and activation: the building block of necks, heads and convolutional backbones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn

from fate.models.layers.length_affine import LengthAffine
from fate.models.layers.norm import HAS_TRITON

#: "hardswish" approximates "silu" without exp, which is slow on CPUs; small models use it.
Activation = Literal["silu", "hardswish", "relu", "none"]
#: Activations by name; they may overwrite their input.
ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "silu": partial(nn.SiLU, inplace=True),
    "hardswish": partial(nn.Hardswish, inplace=True),
    "relu": partial(nn.ReLU, inplace=True),
    "none": nn.Identity,
}
#: Names of the activations that the kernel of ``norm_and_activation`` knows.
FUSED: dict[type[nn.Module], Activation] = {
    nn.SiLU: "silu",
    nn.Hardswish: "hardswish",
    nn.ReLU: "relu",
    nn.Identity: "none",
}
#: ``AnyCountConv2d`` pads batches to a multiple of this number of images.
COUNTS = 16


class AnyCountConv2d(nn.Conv2d):
    """``nn.Conv2d`` for a number of images that changes from call to call, such as the number of labelled windows.

    cuDNN takes milliseconds to prepare for every new number of images, 0.1 s for a whole detection head. So on a GPU,
    except in inference mode, batches are padded with zeros to numbers that occur again, and the output is cut.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[N, in, H, W] → [N, out, H', W']."""
        # The device is checked first: in an export the number of images may be symbolic.
        if not must_prepare(input) or (missing := -input.shape[0] % COUNTS) == 0:
            return super().forward(input)
        filled = nn.functional.pad(input, (0, 0, 0, 0, 0, 0, 0, missing))
        return super().forward(filled)[: input.shape[0]]


def must_prepare(images: Tensor) -> bool:
    """Whether cuDNN would prepare for a new number of images; in inference mode the number does not change."""
    return images.is_cuda and not torch.is_inference_mode_enabled()


class ConvNormAct(nn.Module):
    """[N, in, H, W] → [N, out, ceil(H / stride), ceil(W / stride)]; BatchNorm's shift replaces the bias.

    The side of the kernel is odd. ``any_count`` uses ``AnyCountConv2d``. ``length_affine`` adds a ``LengthAffine``
    between norm and activation, as in FiLM (Perez et al. 2018), so that the length of the window can also decide which
    values the activation sets to zero.
    """

    length_affine: LengthAffine | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: Activation = "silu",
        any_count: bool = False,
        length_affine: bool = False,
    ) -> None:
        super().__init__()
        convolution = AnyCountConv2d if any_count else nn.Conv2d
        self.conv = convolution(
            in_channels, out_channels, kernel, stride, padding=(kernel - 1) // 2, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(out_channels, eps=1e-5, momentum=0.1)
        self.activation = ACTIVATIONS[activation]()
        self.length_affine = LengthAffine(out_channels) if length_affine else None

    def forward(self, images: Tensor, length: Tensor | None = None) -> Tensor:
        """``length``: l of each image, for ``length_affine``; has no effect without it."""
        depthwise = self.conv.groups > 1 and self.conv.groups == self.conv.in_channels
        filtered = depthwise_on_gpu(self.conv, images) if depthwise and images.is_cuda else self.conv(images)
        if self.length_affine is None:
            return norm_and_activation(self.norm, self.activation, filtered)
        return cast(Tensor, self.activation(self.length_affine(self.norm(filtered), length)))


def norm_and_activation(norm: nn.Module, activation: nn.Module, maps: Tensor) -> Tensor:
    """Normalise [N, C, H, W] and apply the activation; in training on a GPU, one kernel does both if it can."""
    if not (isinstance(norm, nn.BatchNorm2d) and can_fuse(norm, activation, maps)):
        return cast(Tensor, activation(norm(maps)))
    from fate.models.layers.batch_norm_gpu import NormalisedAndActivated  # noqa: PLC0415  (needs triton)

    result: Tensor = NormalisedAndActivated.apply(  # type: ignore[no-untyped-call]
        maps, norm.weight, norm.bias, norm, FUSED[type(activation)]
    )
    return result


def can_fuse(norm: nn.BatchNorm2d, activation: nn.Module, maps: Tensor) -> bool:
    """Whether the kernel computes what norm and activation would compute: statistics of the batch, with gradients."""
    # The device is checked first: in an export shapes may be symbolic.
    if not (HAS_TRITON and maps.is_cuda and norm.training and torch.is_grad_enabled()):
        return False
    if torch.compiler.is_compiling() or type(norm) is not nn.BatchNorm2d or type(activation) not in FUSED:
        return False  # a subclass may compute something else
    plain = norm.affine and norm.track_running_stats and norm.momentum is not None
    return (
        plain
        and norm.weight.dtype == torch.float32
        and maps.dtype in (torch.float32, torch.bfloat16)
        and maps.is_contiguous(memory_format=torch.channels_last)
        and maps.numel() > maps.shape[1]  # torch refuses a single value per channel
    )


def depthwise_on_gpu(conv: nn.Conv2d, images: Tensor) -> Tensor:
    """Compute a depthwise convolution by torch's own kernels, which need channels first.

    With channels last cuDNN takes seconds to prepare for every new number of images.
    """
    weight = conv.weight.flatten(1).view(conv.weight.shape)  # removes strides that mean channels last
    result = nn.functional.conv2d(
        images.contiguous(), weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups
    )
    last = images.is_contiguous(memory_format=torch.channels_last)
    return result.contiguous(memory_format=torch.channels_last) if last else result


class SeparableBlock(nn.Module):
    """[N, C, H, W] → [N, C, H, W]: a depthwise and a 1×1 convolution, added to the input."""

    def __init__(self, channels: int, kernel: int = 5) -> None:
        super().__init__()
        self.filter = ConvNormAct(channels, channels, kernel, groups=channels, activation="none")
        self.mix = ConvNormAct(channels, channels, activation="hardswish")

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, images + self.mix(self.filter(images)))


def side_by_side(convs: Sequence[nn.Conv2d]) -> nn.Conv2d:
    """Merge convolutions of the same input, kernel and stride; the output concatenates their channels."""
    biases = [conv.bias for conv in convs if conv.bias is not None]
    return _like(convs[0], torch.cat([conv.weight for conv in convs]), torch.cat(biases))


def block_diagonal(convs: Sequence[nn.Conv2d]) -> nn.Conv2d:
    """Merge 1×1 convolutions of different inputs; the input and the output concatenate their channels."""
    inputs, before, rows = sum(conv.in_channels for conv in convs), 0, []
    for conv in convs:
        rows.append(conv.weight.new_zeros(conv.out_channels, inputs, 1, 1))
        rows[-1][:, before : before + conv.in_channels] = conv.weight
        before += conv.in_channels
    biases = [conv.bias for conv in convs if conv.bias is not None]
    return _like(convs[0], torch.cat(rows), torch.cat(biases))


def _like(conv: nn.Conv2d, weight: Tensor, bias: Tensor) -> nn.Conv2d:
    """A convolution with the stride of ``conv`` and other, constant weights."""
    out_channels, in_channels, kernel, _ = weight.shape
    result = nn.Conv2d(in_channels, out_channels, kernel, conv.stride[0], padding=kernel // 2, device="meta")
    result.weight = nn.Parameter(weight.detach(), requires_grad=False)
    result.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return result
