"""The backbone of RVT (Gehrig & Scaramuzza, CVPR 2023) and of S5-ViT (Zubić et al., CVPR 2024).

Four stages, each at half the resolution of the one before: a strided convolution with LayerNorm, attention within
windows and then over a grid, and a memory at every pixel, an LSTM in RVT and a state-space layer in S5-ViT. The output
of the memory goes to the next stage and, from the second stage on, to the neck.

In the smallest detectors attention at high resolution is too slow: there a convolution replaces it, or the stage is its
strided convolution alone (``Kind``).

With ``length_affine`` the last channel of an image is the length of its window (``encoding.window_length``), and a
``LengthAffine`` follows the norm of every stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from fate.encoding.spec import check_choice
from fate.errors import FateError
from fate.models.layers.attention import TransformerBlock, from_groups, to_groups
from fate.models.layers.conv import ConvNormAct, SeparableBlock
from fate.models.layers.conv_lstm import ConvLSTM
from fate.models.layers.length_affine import LengthAffine, split_length
from fate.models.layers.norm import LayerNorm
from fate.models.layers.s5 import S5, S5Block

Memory = Literal["lstm", "s5"]
#: What precedes the memory of a stage: "attention" in windows and then over a grid, as in RVT; "global" attention over
#: the grid only; or a separable "convolution". A "plain" stage is a strided convolution without memory.
Kind = Literal["attention", "global", "convolution", "plain"]
#: State of one stage: (hidden, cell) of an LSTM, or the state of S5; None for a stage without memory.
StageState = Tensor | tuple[Tensor, Tensor] | None


class MaxViT(nn.Module):
    """Images of N windows to features at strides 8, 16 and 32, of ``channels`` channels."""

    remembers = True

    def __init__(
        self,
        in_channels: int,
        dims: Sequence[int] = (64, 128, 256, 512),
        memory: Memory = "lstm",
        stem_stride: int = 4,
        partition: Sequence[int] = (8, 10),
        head_dim: int | None = None,
        official_state: bool = False,
        kinds: Sequence[Kind] = ("attention",) * 4,
        stem_kernel: int = 7,
        mlp_ratio: int = 4,
        longest_memory_s: float | None = None,
        length_affine: bool = False,
    ) -> None:
        """Args:
        in_channels: of the images.
        dims: channels of the four stages.
        memory: "lstm" (RVT) or "s5" (S5-ViT).
        stem_stride: 4 for images at the sensor's resolution, 2 for pillars of two pixels.
        partition: (rows, columns) of an attention window in all stages, see ``detector.Frame``.
        head_dim: channels of an attention head; by default the first stage with attention has two heads.
        official_state: compute S5 as the public code does, for its checkpoints; see ``layers.s5``.
        kinds: the kind of each of the four stages.
        stem_kernel: side of the first convolution's kernel, odd.
        mlp_ratio: width inside the MLPs after attention over the width outside; 0 for no MLPs (S5 has its own).
        longest_memory_s: longest time constant of S5, see ``layers.s5``; None for no limit.
        length_affine: make scale and offset of every stage depend on the length of the window, which is then the last
            of the ``in_channels``.
        """
        super().__init__()
        head_dim = _head_dim(dims, kinds, head_dim)
        check_choice("memory", memory, get_args(Memory))
        self.channels = tuple(dims[1:])
        self.partition = (int(partition[0]), int(partition[1]))
        self.stem_stride, self.length_affine = stem_stride, length_affine
        widths = zip((in_channels - length_affine, *dims[:-1]), dims, strict=True)
        self.stages = nn.ModuleList()
        for number, (kind, (before, dim)) in enumerate(zip(kinds, widths, strict=True)):
            kernel, stride = (stem_kernel, stem_stride) if number == 0 else (3, 2)
            if kind == "plain":
                self.stages.append(PlainStage(before, dim, stride, kernel, length_affine))
                continue
            stage = Stage(Downsample(before, dim, stride, kernel, length_affine), self.partition)
            if kind == "convolution":
                stage.mix = SeparableBlock(dim)
            if kind == "attention":
                stage.window = TransformerBlock(dim, head_dim, normed=True, mlp_ratio=mlp_ratio)
            if kind in ("attention", "global"):
                stage.grid = TransformerBlock(dim, head_dim, normed=kind == "global", mlp_ratio=mlp_ratio)
            stage.memory = ConvLSTM(dim) if memory == "lstm" else S5Block(dim, official_state, longest_memory_s)
            self.stages.append(stage)

    def forward(
        self,
        images: Tensor,
        state: Sequence[StageState] | None = None,
        steps: int = 1,
        step_scale: float | Tensor = 1.0,
    ) -> tuple[list[Tensor], tuple[StageState, ...]]:
        """Features [N, C_i, H_i, W_i] at strides 8, 16 and 32 of the frame, channels last in memory, and the state.

        Args:
            images: [N, C, H, W], N = steps · B, time-major; ``partition`` divides H and W in every stage.
            state: of the four stages, B first; None for the initial state.
            steps: T.
            step_scale: 20 / hz, one number or [N]; only S5 uses it.
        """
        images, length = split_length(images) if self.length_affine else (images, None)
        x = images.contiguous(memory_format=torch.channels_last)
        features, states = [], []
        for index, stage in enumerate(self.stages):
            x, after = stage(x, None if state is None else state[index], steps, step_scale, length)
            features.append(x)
            states.append(after)
        return features[1:], tuple(states)

    def freeze(self, step_scale: float = 1.0) -> None:
        """Prepare S5 for fast streaming at one rate, in evaluation, on its final device; other rates still work."""
        for module in self.modules():
            if isinstance(module, S5):
                module.freeze(step_scale)


class Downsample(nn.Module):
    """A strided convolution with LayerNorm."""

    length_affine: LengthAffine | None

    def __init__(self, in_channels: int, channels: int, stride: int, kernel: int, length_affine: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, bias=False)
        self.norm = LayerNorm(channels)
        self.length_affine = LengthAffine(channels, axis=-1) if length_affine else None

    def forward(self, x: Tensor, length: Tensor | None = None) -> Tensor:
        """[N, C, H, W], and l of each window if the layer depends on it, to [N, H', W', C']."""
        normed = cast(Tensor, self.norm(self.conv(x).permute(0, 2, 3, 1)))
        if self.length_affine is not None:
            normed = self.length_affine(normed, length)
        return normed


class Stage(nn.Module):
    """Downsampling, then a convolution or attention in windows and over a grid (those that are set), then memory."""

    mix: SeparableBlock | None
    window: TransformerBlock | None
    grid: TransformerBlock | None
    memory: ConvLSTM | S5Block

    def __init__(self, downsample: Downsample, partition: tuple[int, int]) -> None:
        super().__init__()
        self.downsample, self.partition = downsample, partition
        self.mix = self.window = self.grid = None

    def forward(
        self, x: Tensor, state: StageState, steps: int, step_scale: float | Tensor, length: Tensor | None = None
    ) -> tuple[Tensor, StageState]:
        """[N, C, H, W] and the state before to [N, C', H', W'] and the state after."""
        x = self.downsample(x, length)
        _, height, width, _ = x.shape
        if self.mix is not None:
            x = self.mix(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        # All of a block but attention works token by token, so the whole block runs on grouped tokens.
        for block, grid in ((self.window, False), (self.grid, True)):
            if block is not None:
                x = from_groups(block(to_groups(x, self.partition, grid)), self.partition, height, width, grid)
        if isinstance(self.memory, S5Block):
            x, state = self.memory(x, state, steps, step_scale)
        else:
            x, state = self.memory(x, state, steps)
        return x.permute(0, 3, 1, 2), state


class PlainStage(nn.Module):
    """A strided convolution with BatchNorm and ReLU, without memory."""

    def __init__(self, in_channels: int, channels: int, stride: int, kernel: int, length_affine: bool = False) -> None:
        super().__init__()
        self.conv = ConvNormAct(in_channels, channels, kernel, stride, activation="relu", length_affine=length_affine)

    def forward(
        self, x: Tensor, state: StageState, steps: int, step_scale: float | Tensor, length: Tensor | None = None
    ) -> tuple[Tensor, StageState]:
        """[N, C, H, W] to [N, C', H', W'], and no state."""
        return self.conv(x, length), None


def _head_dim(dims: Sequence[int], kinds: Sequence[Kind], asked: int | None) -> int:
    """Check the sizes of a backbone, and return the channels of an attention head."""
    if len(kinds) != 4 or not set(kinds) <= set(get_args(Kind)):
        raise FateError(f"kinds={tuple(kinds)} were given; expected four of {', '.join(get_args(Kind))}")
    attending = [dim for dim, kind in zip(dims, kinds, strict=False) if kind in ("attention", "global")]
    head_dim = asked if asked is not None else attending[0] // 2 if attending else 1
    if len(dims) != 4 or head_dim < 1 or any(dim % head_dim for dim in attending):
        raise FateError(f"dims={tuple(dims)} were given; expected four multiples of head_dim={head_dim}")
    return head_dim
