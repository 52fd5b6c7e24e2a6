"""The backbone of RVT (Gehrig & Scaramuzza, CVPR 2023) and of S5-ViT (Zubić et al., CVPR 2024).

Four stages, each at half the resolution of the one before: a strided convolution with a norm, attention within windows
and then over a grid, and a memory at every pixel, which is an LSTM in RVT and a state-space layer in S5-ViT. What the
memory says is the stage's output, for the next stage and, from the second on, for the neck.

The smallest detectors cannot afford attention where pixels are many: there a stage may mix neighbours by a cheap
convolution instead, and the first may be its strided convolution alone (``Kind``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fate.errors import FateError
from fate.models.layers.attention import TransformerBlock, from_groups, to_groups
from fate.models.layers.conv import ConvNormAct, SeparableBlock
from fate.models.layers.conv_lstm import ConvLSTM
from fate.models.layers.norm import LayerNorm
from fate.models.layers.s5 import S5, S5Block

Memory = Literal["lstm", "s5"]
#: What stands before a stage's memory: "attention" (as in RVT) in windows and then over a grid; "global": over the grid
#: alone; "convolution", each channel by itself, in its place. A "plain" stage is its strided convolution, and has no
#: memory either.
Kind = Literal["attention", "global", "convolution", "plain"]
#: Of one stage: the LSTM's (hidden, cell), or the state of S5; None where it has no memory.
StageState = Tensor | tuple[Tensor, Tensor] | None


class MaxViT(nn.Module):
    """Images of N windows to features at strides 8, 16 and 32, of ``channels``, with a memory in every stage."""

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
    ) -> None:
        """Args:
        in_channels: of the images.
        dims: channels of the four stages.
        memory: "lstm" (RVT) or "s5" (S5-ViT).
        stem_stride: 4 for images of one pixel a cell, 2 for pillars of two.
        partition: (rows, columns) that attend to each other in all stages, see ``frame``.
        head_dim: channels of one head of attention; by default the first stage that has attention has two heads.
        official_state: S5 as the public code computes it, for its checkpoints; see ``layers.s5``.
        kinds: what each of the four stages does before it remembers.
        stem_kernel: side of the first convolution's kernel, odd.
        mlp_ratio: channels inside the MLPs behind attention over those around them; 0 for none (S5 brings its own).
        """
        super().__init__()
        head_dim = _head_dim(dims, kinds, head_dim)
        if memory not in ("lstm", "s5"):
            raise FateError(f"memory={memory!r} was given; expected 'lstm' or 's5'")
        self.channels = tuple(dims[1:])
        self.partition = (int(partition[0]), int(partition[1]))
        self.stem_stride = stem_stride
        widths = zip((in_channels, *dims[:-1]), dims, strict=True)
        self.stages = nn.ModuleList()
        for number, (kind, (before, dim)) in enumerate(zip(kinds, widths, strict=True)):
            kernel, stride = (stem_kernel, stem_stride) if number == 0 else (3, 2)
            if kind == "plain":
                self.stages.append(PlainStage(before, dim, stride, kernel))
                continue
            stage = Stage(Downsample(before, dim, stride, kernel), self.partition)
            if kind == "convolution":
                stage.mix = SeparableBlock(dim)
            if kind == "attention":
                stage.window = TransformerBlock(dim, head_dim, normed=True, mlp_ratio=mlp_ratio)
            if kind in ("attention", "global"):
                stage.grid = TransformerBlock(dim, head_dim, normed=kind == "global", mlp_ratio=mlp_ratio)
            stage.memory = ConvLSTM(dim) if memory == "lstm" else S5Block(dim, official_state)
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
            state: of the four stages, B first; None for fresh ones.
            steps: T.
            step_scale: 20 / hz; one number, or one for each window [N]. Only S5 uses it.
        """
        x = images.contiguous(memory_format=torch.channels_last)
        features, states = [], []
        for index, stage in enumerate(self.stages):
            x, after = stage(x, None if state is None else state[index], steps, step_scale)
            features.append(x)
            states.append(after)
        return features[1:], tuple(states)

    def freeze(self, step_scale: float = 1.0) -> None:
        """Prepare S5 for streaming at one rate, in evaluation, on the device where it will run; others still work."""
        for module in self.modules():
            if isinstance(module, S5):
                module.freeze(step_scale)


class Downsample(nn.Module):
    """A convolution with stride, whose output is normalised over channels."""

    def __init__(self, in_channels: int, channels: int, stride: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, bias=False)
        self.norm = LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to [N, H', W', C']."""
        normed: Tensor = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return normed


class Stage(nn.Module):
    """Half the resolution, a mix of neighbours or attention in windows and over a grid (what there is), memory."""

    mix: SeparableBlock | None
    window: TransformerBlock | None
    grid: TransformerBlock | None
    memory: ConvLSTM | S5Block

    def __init__(self, downsample: Downsample, partition: tuple[int, int]) -> None:
        super().__init__()
        self.downsample, self.partition = downsample, partition
        self.mix = self.window = self.grid = None

    def forward(
        self, x: Tensor, state: StageState, steps: int, step_scale: float | Tensor
    ) -> tuple[Tensor, StageState]:
        """[N, C, H, W] and the state before to [N, C', H', W'] and the state after."""
        x = self.downsample(x)
        _, height, width, _ = x.shape
        if self.mix is not None:
            x = self.mix(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        # All of a block but attention works token by token, so the whole block runs in the order of the groups.
        for block, grid in ((self.window, False), (self.grid, True)):
            if block is not None:
                x = from_groups(block(to_groups(x, self.partition, grid)), self.partition, height, width, grid)
        if isinstance(self.memory, S5Block):
            x, state = self.memory(x, state, steps, step_scale)
        else:
            x, state = self.memory(x, state, steps)
        return x.permute(0, 3, 1, 2), state


class PlainStage(nn.Module):
    """A convolution with stride, BatchNorm and ReLU: nothing that costs more than it."""

    def __init__(self, in_channels: int, channels: int, stride: int, kernel: int) -> None:
        super().__init__()
        self.conv = ConvNormAct(in_channels, channels, kernel, stride, activation="relu")

    def forward(
        self, x: Tensor, state: StageState, steps: int, step_scale: float | Tensor
    ) -> tuple[Tensor, StageState]:
        """[N, C, H, W] to [N, C', H', W']; there is no state."""
        return self.conv(x), None


def _head_dim(dims: Sequence[int], kinds: Sequence[Kind], asked: int | None) -> int:
    """Channels of one head of attention."""
    if len(kinds) != 4 or not set(kinds) <= set(get_args(Kind)):
        raise FateError(f"kinds={tuple(kinds)} were given; expected four of {', '.join(get_args(Kind))}")
    attending = [dim for dim, kind in zip(dims, kinds, strict=False) if kind in ("attention", "global")]
    head_dim = asked if asked is not None else attending[0] // 2 if attending else 1
    if len(dims) != 4 or head_dim < 1 or any(dim % head_dim for dim in attending):
        raise FateError(f"dims={tuple(dims)} were given; expected four multiples of head_dim={head_dim}")
    return head_dim
