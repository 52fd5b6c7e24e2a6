"""The unit that necks, heads and convolutional backbones are made of: convolution, BatchNorm, activation."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from fate.errors import FateError

Activation = Literal["silu", "relu", "none"]


class ConvNormAct(nn.Module):
    """[N, in, H, W] → [N, out, ceil(H / stride), ceil(W / stride)]; BatchNorm's shift stands in for the bias.

    Args:
        kernel: side of the kernel, odd, so that (kernel - 1) / 2 zeros around the image keep its middle in place.
        groups: the convolution's groups.
        activation: "silu", "relu" or "none".
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise FateError(f"a kernel of side {kernel} was given; expected an odd number")
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel, stride, padding=(kernel - 1) // 2, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(out_channels, eps=1e-5, momentum=0.1)
        self.activation = activation_of(activation)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.activation(self.norm(self.conv(images)))
        return result


def activation_of(name: Activation) -> nn.Module:
    """The activation of that name; it may write over its input."""
    if name == "silu":
        return nn.SiLU(inplace=True)
    if name == "relu":
        return nn.ReLU(inplace=True)
    if name == "none":
        return nn.Identity()
    raise FateError(f'activation "{name}" was given; expected "silu", "relu" or "none"')
