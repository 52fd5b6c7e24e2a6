"""The memory of EvRT-DETR for one window after another: a convolution of cuDNN and one kernel for each map.

Nothing but a 1×1 convolution stands between the hidden state and the head, which begins with a 1×1 convolution too. So
the head gets features and hidden state side by side, and its first product does the work of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError
from fate.models.fused.pafpn import rows_of
from fate.models.necks.latent_memory import CellState, LatentMemory, PeepholeConvLSTM


class FusedLatentMemory(nn.Module):
    """A trained ``LatentMemory`` for T = 1; it overwrites the state that it is given, and the cell state is float32."""

    def __init__(self, memory: LatentMemory, operations: ModuleType, dtype: torch.dtype) -> None:
        """``operations`` are ``reference`` or ``kernels``; ``dtype`` is that of weights and maps."""
        super().__init__()
        self.follows_time = memory.follows_time
        self.cells = nn.ModuleList(
            FusedCell(cast(PeepholeConvLSTM, cell), operations, dtype) for cell in memory.cells
        )  # fmt: skip

    def forward(
        self,
        features: Sequence[Tensor],
        state: Sequence[CellState] | None = None,
        steps: int = 1,
        step_scale: float | Tensor = 1.0,
    ) -> tuple[list[Tensor], tuple[CellState, ...]]:
        """Feature maps [N, C, H, W] to features and hidden states [N, C + D, H, W], and the state after."""
        if steps != 1:
            raise FateError(f"steps={steps} was given; a fused memory takes one window of each stream")
        outputs, after = [], []
        scale = step_scale if self.follows_time else 1.0
        for index, (maps, cell) in enumerate(zip(features, self.cells, strict=True)):
            output, carried = cell(maps, None if state is None else state[index], scale)
            outputs.append(output)
            after.append(carried)
        return outputs, tuple(after)


class FusedCell(nn.Module):
    """The ConvLSTM of one map."""

    def __init__(self, cell: PeepholeConvLSTM, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        self.operations = operations
        kernels, bias, peepholes = (part.detach() for part in cell.gates())
        self.kernels = kernels.to(dtype, copy=True).contiguous(memory_format=torch.channels_last)
        self.bias, self.peepholes = bias.float(), peepholes.flatten(1).float()

    def forward(
        self, maps: Tensor, state: CellState | None, scale: float | Tensor
    ) -> tuple[Tensor, CellState]:  # fmt: skip
        """[N, C, H, W] and the state before to [N, C + D, H, W] and the state after."""
        windows, _, height, width = maps.shape
        shape = (windows, height, width, self.peepholes.shape[1])
        if state is None:
            zeros = maps.new_zeros(shape).permute(0, 3, 1, 2)
            state = (zeros, zeros.to(torch.promote_types(zeros.dtype, torch.float32), copy=True))
        hidden, cell = state
        both = torch.cat((maps, hidden), 1).contiguous(memory_format=torch.channels_last)
        gates = functional.conv2d(both, self.kernels, None, padding=self.kernels.shape[-1] // 2)
        after = self.operations.peephole_lstm(
            rows_of(gates), self.bias, self.peepholes, rows_of(both), rows_of(cell), _each(scale, windows)
        )
        after_hidden, after_cell = (part.view(shape).permute(0, 3, 1, 2) for part in after)
        return both, (after_hidden, after_cell)


def _each(scale: float | Tensor, windows: int) -> float | Tensor:
    """A number, or one for each window."""
    return scale.to(torch.float32).expand(windows) if isinstance(scale, Tensor) else scale


def why_not_fused(memory: nn.Module | None) -> str | None:
    """Why the memory between neck and head cannot be fused; None if it can."""
    return None if memory is None or isinstance(memory, LatentMemory) else "its memory is not that of EvRT-DETR"
