"""The backbone of RVT and S5-ViT for one window after another, in the operations of ``reference`` or ``kernels``.

Up to 128 channels, all of a stage but its convolution and its attention depends on one pixel only, and the weights are
small: a kernel computes whole rows, from attention to the end of the block. With more channels there are few pixels,
and the weights of a block would pass through few multiprocessors; there, every product is a kernel.

Small detectors have stages of other kinds (``backbones.maxvit.Kind``): a stage with a separable convolution takes one
kernel for it, and a plain stage is one kernel of cuDNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from fate.errors import FateError
from fate.models.backbones.maxvit import MaxViT, PlainStage, Stage, StageState
from fate.models.detector import Frame
from fate.models.fused.canvas import Canvas, padded_weight
from fate.models.fused.presnet import FusedConvReLU
from fate.models.fused.reference import BlockWeights, Norm, S5Weights, SeparableWeights
from fate.models.layers.attention import TransformerBlock
from fate.models.layers.conv import SeparableBlock
from fate.models.layers.conv_lstm import ConvLSTM
from fate.models.layers.s5 import S5Block

#: Most channels for which a program computes whole rows.
WHOLE = 128
#: Most channels of a layer norm, which needs a whole row.
LONGEST = 512


class FusedMaxViT(nn.Module):
    """A trained ``MaxViT`` for T = 1; the images need not be padded. It overwrites the state that it is given."""

    remembers = True

    def __init__(self, backbone: MaxViT, frame: Frame, operations: ModuleType, dtype: torch.dtype) -> None:
        """Args:
        backbone: its weights are copied.
        frame: of the detector.
        operations: ``reference`` or ``kernels``.
        dtype: of weights, features and inputs of products.
        """
        super().__init__()
        self.canvas = Canvas(frame, dtype)
        self.stages = nn.ModuleList(
            FusedStage(stage, backbone.partition, operations, dtype)
            if isinstance(stage, Stage)
            else FusedPlainStage(cast(PlainStage, stage), operations, dtype)
            for stage in backbone.stages
        )
        first = cast(FusedStage | FusedPlainStage, self.stages[0]).conv
        first.weight = _constant(padded_weight(first.weight), dtype)

    def forward(
        self,
        images: Tensor,
        state: Sequence[StageState] | None = None,
        steps: int = 1,
        step_scale: float | Tensor = 1.0,
    ) -> tuple[list[Tensor], tuple[StageState, ...]]:
        """Same arguments and results as ``MaxViT.forward``; features have the type of the weights."""
        if steps != 1:
            raise FateError(f"steps={steps} was given; a fused backbone takes one window of each stream")
        x = self.canvas(images)
        features, states = [], []
        for index, stage in enumerate(self.stages):
            x, after = stage(x, None if state is None else state[index], step_scale)
            features.append(x)
            states.append(after)
        return features[1:], tuple(states)


class FusedStage(nn.Module):
    """A stage: strided convolution, a separable convolution or attention in windows and over a grid, and memory."""

    def __init__(self, stage: Stage, partition: tuple[int, int], operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        given = stage.downsample.conv
        self.conv = nn.Conv2d(
            given.in_channels, given.out_channels, given.kernel_size[0], given.stride[0], cast(Any, given.padding),
            bias=False, device="meta",
        )  # fmt: skip
        self.conv.weight = _constant(given.weight, dtype)
        norm = norm_of(stage.downsample.norm)
        blocks: list[FusedBlock | FusedSeparableBlock] = []
        if stage.mix is not None:
            blocks.append(FusedSeparableBlock(stage.mix, norm, operations, dtype))
        for block, grid in ((stage.window, False), (stage.grid, True)):
            if block is not None:  # the first block also normalises what the convolution returns
                blocks.append(FusedBlock(block, None if blocks else norm, partition, grid, operations, dtype))
        self.blocks = nn.Sequential(*blocks)
        memory = stage.memory
        self.memory: FusedS5 | FusedLSTM
        if isinstance(memory, S5Block):
            self.memory = FusedS5(memory, operations, dtype)
        else:
            self.memory = FusedLSTM(memory, operations, dtype)

    def forward(self, x: Tensor, state: StageState, step_scale: float | Tensor) -> tuple[Tensor, StageState]:
        """[N, C, H, W] and the state before to [N, C', H', W'] and the state after."""
        maps = self.blocks(self.conv(x).permute(0, 2, 3, 1).contiguous())
        maps, after = self.memory(maps, state, step_scale)
        return maps.permute(0, 3, 1, 2), after


class FusedPlainStage(nn.Module):
    """A strided convolution with ReLU, without memory."""

    def __init__(self, stage: PlainStage, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        self.conv = FusedConvReLU(stage.conv.conv, operations, dtype)

    def forward(self, x: Tensor, state: StageState, step_scale: float | Tensor) -> tuple[Tensor, StageState]:
        """[N, C, H, W] to [N, C', H', W'], and no state."""
        return self.conv(x), None


class FusedSeparableBlock(nn.Module):
    """A norm and a ``SeparableBlock`` on maps [N, H, W, C]."""

    def __init__(self, block: SeparableBlock, norm: Norm, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        self.operations = operations
        conv, mix = block.filter.conv, block.mix.conv
        self.weights = SeparableWeights(
            norm=norm,
            filter=_copy(conv.weight[:, 0].permute(1, 2, 0), dtype),
            filter_bias=_float(conv.bias),
            mix=_copy(mix.weight.flatten(1), dtype),
            mix_bias=_float(mix.bias),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """[N, H, W, C] to the same."""
        return cast(Tensor, self.operations.separable_block(maps, self.weights))


class FusedBlock(nn.Module):
    """A transformer block on maps [N, H, W, C]."""

    def __init__(
        self,
        block: TransformerBlock,
        before: Norm | None,
        partition: tuple[int, int],
        grid: bool,
        operations: ModuleType,
        dtype: torch.dtype,
    ) -> None:
        """``before`` normalises the block's input; without it the block has a norm of its own."""
        super().__init__()
        self.operations, self.partition, self.grid = operations, partition, grid
        self.head_dim = block.attention.head_dim
        self.normed = before is not None
        self.norm = before if before is not None else norm_of(cast(nn.LayerNorm, block.attention_norm))
        qkv, out = block.attention.qkv, block.attention.out
        self.qkv, self.qkv_bias = _copy(qkv.weight, dtype), _float(qkv.bias)
        scale = block.attention_scale
        self.out, self.out_bias = _copy(out.weight * scale[:, None], dtype), _float(out.bias * scale)
        self.rest: BlockWeights | None = None
        if block.mlp is None:
            return
        expand, contract = (cast(nn.Linear, block.mlp[index]) for index in (0, 2))
        mlp_scale = block.mlp_scale
        self.rest = BlockWeights(
            out=self.out,
            out_bias=self.out_bias,
            norm=norm_of(block.mlp_norm),
            expand=_copy(expand.weight, dtype),
            expand_bias=_float(expand.bias),
            contract=_copy(contract.weight * mlp_scale[:, None], dtype),
            contract_bias=_float(contract.bias * mlp_scale),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """[N, H, W, C] to the same."""
        run, rest, channels = self.operations, self.rest, maps.shape[-1]
        how = (self.partition, self.head_dim, self.grid)
        if channels <= WHOLE:
            attended, normed = run.normed_attention(maps, self.norm, self.qkv, self.qkv_bias, *how)
        else:
            qkv, normed = run.normed_linear(maps.view(-1, channels), self.norm, self.qkv, self.qkv_bias)
            attended = run.attention(qkv.view(*maps.shape[:3], -1), *how)
        rows, attended = (normed if self.normed else maps).view(-1, channels), attended.view(-1, channels)
        if rest is not None and channels <= WHOLE:
            return cast(Tensor, run.after_attention(attended, rows, rest).view(maps.shape))
        rows = run.linear(attended, self.out, self.out_bias, residual=rows)
        if rest is None:
            return cast(Tensor, rows.view(maps.shape))
        inside, _ = run.normed_linear(rows, rest.norm, rest.expand, rest.expand_bias, activation="gelu")
        return cast(Tensor, run.linear(inside, rest.contract, rest.contract_bias, residual=rows).view(maps.shape))


class FusedS5(nn.Module):
    """A step of ``S5Block``; the state stays in float32 and is overwritten."""

    def __init__(self, block: S5Block, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        self.operations = operations
        self.ssm = block.ssm  # it samples the system, in float32
        b_real, b_imag = block.ssm.input_matrix.unbind(-1)
        c_real, c_imag = block.ssm.output_matrix.unbind(-1)
        self.weights = S5Weights(
            norm=norm_of(block.norm),
            into=_copy(torch.cat((b_real, b_imag)), dtype),
            out=_copy(torch.cat((c_real, -c_imag), 1), dtype),
            feedthrough=_float(block.ssm.feedthrough),
            mlp_norm=norm_of(block.mlp_norm),
            expand=_copy(block.expand.weight, dtype),
            contract=_copy(block.contract.weight, dtype),
        )
        self._sampled: dict[float, tuple[Tensor, Tensor]] = {}

    def forward(self, maps: Tensor, state: StageState, step_scale: float | Tensor) -> tuple[Tensor, StageState]:
        """[N, H, W, C], x before [N, H, W, 2·P] or None for zero, and 20 / hz, to the result and x after."""
        run, weights = self.operations, self.weights
        rows = maps.view(-1, maps.shape[-1])
        shape = (*maps.shape[:3], len(weights.into))
        before = maps.new_zeros(shape, dtype=torch.float32) if state is None else cast(Tensor, state)
        given = (rows, weights, *self._sample(step_scale), before.view(-1, shape[-1]))
        if rows.shape[1] <= WHOLE:
            out, after = run.s5_block(*given)
        else:
            after, normed = run.s5_update(*given)
            summed = run.s5_output(after, normed, weights)
            inside, normed = run.normed_linear(summed, weights.mlp_norm, weights.expand, gated=True)
            out = run.linear(inside, weights.contract, residual=normed)
        return out.view(maps.shape), after.view(shape)

    def _sample(self, step_scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """Λ̄ and the gain, [1, 2·P], or [N, 2·P] if each window has its own step; those of numbers are kept."""
        if not isinstance(step_scale, Tensor):
            if step_scale not in self._sampled:
                self._sampled[step_scale] = self._sample(torch.tensor([step_scale], device=self.ssm.log_step.device))
            return self._sampled[step_scale]
        own = step_scale.to(self.ssm.log_step.device, torch.float32).reshape(-1, 1)
        transition, gain = (part.contiguous() for part in self.ssm.at_rate(own))
        return (torch.zeros_like(transition) if self.ssm.official_state else transition), gain


class FusedLSTM(nn.Module):
    """A step of ``ConvLSTM``; the cell state stays in float32 and is overwritten."""

    def __init__(self, memory: ConvLSTM, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        self.operations = operations
        self.weight, self.bias = _copy(memory.gates.weight.flatten(1), dtype), _float(memory.gates.bias)

    def forward(self, maps: Tensor, state: StageState, step_scale: float | Tensor) -> tuple[Tensor, StageState]:
        """[N, H, W, C] and (hidden, cell) before, or None for zero, to the hidden state and (hidden, cell)."""
        if state is None:
            state = (torch.zeros_like(maps), maps.new_zeros(maps.shape, dtype=torch.float32))
        hidden, cell = (part.view(-1, maps.shape[-1]) for part in state)
        hidden, cell = self.operations.conv_lstm(
            maps.view(-1, maps.shape[-1]), hidden, cell, self.weight, self.bias
        )  # fmt: skip
        hidden = hidden.view(maps.shape)
        return hidden, (hidden, cell.view(maps.shape))


def why_not_fused(backbone: nn.Module, frame: Frame) -> str | None:
    """Why a backbone cannot be fused; None if it can."""
    if not isinstance(backbone, MaxViT):
        return "its backbone is not that of RVT, S5-ViT or EvRT-DETR"
    if backbone.length_affine:
        return "its norms depend on the length of the window"
    if frame.repeat > 1:
        return 'its stem repeats cells (stem="upsample")'
    for stage in backbone.stages:
        if not isinstance(stage, Stage):
            continue
        channels = stage.downsample.conv.out_channels
        if channels > LONGEST:
            return f"a stage has more than {LONGEST} channels"
        if stage.mix is not None and channels > WHOLE:
            return f"a stage with convolutions has more than {WHOLE} channels"
    return None


def norm_of(norm: nn.LayerNorm) -> Norm:
    """The weights of a layer norm in float32."""
    return Norm(_float(norm.weight), _float(norm.bias), norm.eps)


def _copy(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.detach().to(dtype, copy=True).contiguous()


def _float(weight: Tensor | None) -> Tensor:
    return _copy(cast(Tensor, weight), torch.float32)


def _constant(weight: Tensor, dtype: torch.dtype) -> nn.Parameter:
    kept = _copy(weight, dtype).contiguous(memory_format=torch.channels_last)
    return nn.Parameter(kept, requires_grad=False)
