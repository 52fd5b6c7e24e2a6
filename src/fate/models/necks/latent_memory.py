"""The memory of EvRT-DETR (Torbunov et al. 2025): a ConvLSTM for each feature map between neck and head.

The hidden state is added to the features of the current window, so that a detector trained on single windows can be
frozen and only the memory trained on clips. For a feature map x, and hidden state h and cell state c of the window
before:

    input      i  = sigmoid(W_i * [x, h] + p_i ∘ c)         forget  f = sigmoid(W_f * [x, h] + p_f ∘ c)
    cell       c' = f ∘ c + i ∘ tanh(W_g * [x, h])
    output     o  = sigmoid(W_o * [x, h] + p_o ∘ c')        hidden  h' = o ∘ tanh(c')
    result     x + P h'

where * is a convolution (Shi et al. 2015), p are peephole weights, one per channel, initially 0, and P is a 1×1
convolution. Each gate has its own kernels, as in the public files, but all kernels run as one convolution.

The published cell depends on the number of steps: ten windows of 5 ms change it as much as ten windows of 50 ms. With
``recurrence="time"`` it depends on elapsed time. The published step is the solution of a linear differential equation
with constant gates after 50 ms; for s = (time between windows) / 50 ms the solution is

    cell       c' = f^s ∘ c + (1 - f^s) / (1 - f) ∘ i ∘ tanh(W_g * [x, h])

For s = 1 this is the published cell. With constant gates ten steps of s = 0.1 equal one step of s = 1. There are no
additional parameters, so published weights work with both. For other s, f is at most 1 - 1e-6, so that the fraction
has a value; a gate at this limit has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.encoding.spec import check_choice

#: Whether the cell depends on the number of steps, as published, or on time.
Recurrence = Literal["steps", "time"]

#: Largest log f of a forget gate f: a memory of fourteen hours. Runtimes compute log f to about 1e-6 there, and 0 would
#: make 0 / 0.
_MAX_LOG_FORGET = -1e-6

#: Hidden and cell state, both [B, hidden, H, W].
CellState = tuple[Tensor, Tensor]


class LatentMemory(nn.Module):
    """Feature maps of windows to recurrent feature maps of the same shapes."""

    def __init__(
        self, channels: Sequence[int], hidden: int | None = None, kernel: int = 3, recurrence: Recurrence = "steps"
    ) -> None:
        """``hidden``: channels of the states, None for those of the map; ``kernel``: odd side of the gates' kernels."""
        super().__init__()
        check_choice("recurrence", recurrence, get_args(Recurrence))
        self.recurrence = recurrence
        self.follows_time = recurrence == "time"
        self.cells = nn.ModuleList(PeepholeConvLSTM(c, hidden or c, kernel) for c in channels)
        self.projections = nn.ModuleList(nn.Conv2d(hidden or c, c, 1) for c in channels)

    def forward(
        self,
        features: Sequence[Tensor],
        state: Sequence[CellState] | None = None,
        steps: int = 1,
        step_scale: float | Tensor = 1.0,
    ) -> tuple[list[Tensor], tuple[CellState, ...]]:
        """Recurrent features of a clip of T = ``steps`` windows of B streams, and the state after the clip.

        Args:
            features: feature maps [T · B, C, H, W], time-major.
            state: state of each map before the clip; None for zeros.
            steps: T.
            step_scale: time between windows over 50 ms, one number or [T · B]; used with ``recurrence="time"`` only.
        """
        outputs, after = [], []
        scale = step_scale if self.follows_time else 1.0
        for index, (maps, cell, project) in enumerate(zip(features, self.cells, self.projections, strict=True)):
            hidden, carried = cell(maps, None if state is None else state[index], steps, scale)
            outputs.append(maps + project(hidden))
            after.append(carried)
        return outputs, tuple(after)

    def fuse_(self) -> None:
        """Concatenate the parameters of all gates permanently, for inference."""
        for index, cell in enumerate(self.cells):
            self.cells[index] = FusedConvLSTM(*cell.gates())  # type: ignore[operator]


class PeepholeConvLSTM(nn.Module):
    """The ConvLSTM of one feature map, with separate parameters for each gate, as they are trained and stored."""

    def __init__(self, channels: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.input_gate = Gate(channels, hidden, kernel)
        self.forget_gate = Gate(channels, hidden, kernel)
        self.output_gate = Gate(channels, hidden, kernel)
        self.candidate = Gate(channels, hidden, kernel, peephole=False)

    def forward(
        self, maps: Tensor, state: CellState | None, steps: int, step_scale: float | Tensor
    ) -> tuple[Tensor, CellState]:
        """Maps [T · B, C, H, W], time-major, to the hidden states [T · B, D, H, W] and the state after the clip."""
        kernels, bias, peepholes = self.gates()
        channels, padding = maps.shape[1], kernels.shape[-1] // 2
        hidden, cell = _initial_state(maps, steps, peepholes) if state is None else state
        scales: Sequence[float | Tensor] = [step_scale] * steps
        if isinstance(step_scale, Tensor):  # [B, 1, 1, 1] for each step
            scales = step_scale.to(cell.dtype).expand(len(maps)).reshape(-1, 1, 1, 1).chunk(steps)
        if steps == 1:
            gates = functional.conv2d(torch.cat((maps, hidden), dim=1), kernels, bias, padding=padding)
            hidden, cell = step(gates, cell, peepholes, maps.dtype, scales[0])
            return hidden, (hidden, cell)
        # The input is convolved for all windows at once, the hidden state step by step.
        from_hidden = kernels[:, channels:].clone()  # contiguous, or every step would copy it
        outputs = []
        windows = functional.conv2d(maps, kernels[:, :channels], bias, padding=padding).chunk(steps)
        for window, scale in zip(windows, scales, strict=True):
            gates = window + functional.conv2d(hidden, from_hidden, padding=padding)
            hidden, cell = step(gates, cell, peepholes, maps.dtype, scale)
            outputs.append(hidden)
        return torch.cat(outputs), (hidden, cell)

    def gates(self) -> tuple[Tensor, Tensor, Tensor]:
        """The parameters of all gates, concatenated in the order input, forget, output, candidate; D hidden channels.

        Returns kernels [4 D, C + D, k, k] for the input and the hidden state together, the bias [4 D], and the
        peephole weights [3, D, 1, 1], which the candidate does not have.
        """
        gates = (self.input_gate, self.forget_gate, self.output_gate, self.candidate)
        from_input = torch.cat([gate.from_input.weight for gate in gates])
        from_hidden = torch.cat([gate.from_hidden.weight for gate in gates])
        bias = torch.cat([cast(Tensor, gate.from_input.bias) for gate in gates])
        return torch.cat((from_input, from_hidden), dim=1), bias, torch.cat([gate.peephole for gate in gates[:3]])


class Gate(nn.Module):
    """The parameters of one gate: kernels for the input and the hidden state, and the peephole weights."""

    peephole: Tensor

    def __init__(self, channels: int, hidden: int, kernel: int, peephole: bool = True) -> None:
        super().__init__()
        self.from_input = nn.Conv2d(channels, hidden, kernel)
        self.from_hidden = nn.Conv2d(hidden, hidden, kernel, bias=False)
        if peephole:
            self.peephole = nn.Parameter(torch.zeros(1, hidden, 1, 1))


class FusedConvLSTM(PeepholeConvLSTM):
    """The ConvLSTM of one feature map with the parameters of all gates concatenated, for inference."""

    def __init__(self, *parameters: Tensor) -> None:
        nn.Module.__init__(self)
        self.kernels, self.bias, self.peepholes = (nn.Parameter(p.detach(), requires_grad=False) for p in parameters)

    def gates(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.kernels, self.bias, self.peepholes


def step(gates: Tensor, cell: Tensor, peepholes: Tensor, dtype: torch.dtype, scale: float | Tensor = 1.0) -> CellState:
    """One step: from the gates' pre-activations [B, 4 D, H, W] and the cell state to the next hidden and cell state.

    Rows [M, 4 D] are possible too, with peepholes [3, D] and a scale [M, 1].
    """
    for_input, for_forget, for_output, candidate = gates.chunk(4, dim=1)
    input_gate = torch.addcmul(for_input, peepholes[0], cell).sigmoid()
    for_forget = torch.addcmul(for_forget, peepholes[1], cell)
    if isinstance(scale, Tensor) or scale != 1.0:
        # log f is exact also if f is close to 1. If f is close to 0, softplus keeps log f exact in graphs too; they
        # compute logsigmoid as log(sigmoid(x)), and the sigmoid of ONNX Runtime has no correct digit there.
        log_keep = (-functional.softplus(-for_forget.to(cell.dtype))).clamp(max=_MAX_LOG_FORGET)
        scaled = log_keep * scale
        keep = scaled.exp()
        input_gate = input_gate * (_expm1(scaled) / _expm1(log_keep))
    else:
        keep = for_forget.sigmoid()
    cell = torch.addcmul(keep * cell, input_gate, candidate.tanh())
    output_gate = torch.addcmul(for_output, peepholes[2], cell).sigmoid()
    return (output_gate * cell.tanh()).to(dtype), cell


def _expm1(x: Tensor) -> Tensor:
    """exp(x) - 1 for x <= 0, also near 0, from operations that exported graphs compute as exactly.

    ONNX has no such operation, and the difference itself would have no correct digit near 0.
    """
    return (x / 2).tanh() * (x.exp() + 1)


def _initial_state(maps: Tensor, steps: int, peepholes: Tensor) -> CellState:
    """Zeros in the memory format of the features; the cell state, a sum over time, is at least float32."""
    size = (maps.shape[0] // steps, peepholes.shape[1], *maps.shape[2:])
    precise = torch.promote_types(peepholes.dtype, torch.float32)
    layout = torch.contiguous_format if maps.is_contiguous() else torch.channels_last
    hidden = maps.new_zeros(size).to(memory_format=layout)
    return hidden, torch.zeros_like(hidden, dtype=precise)
