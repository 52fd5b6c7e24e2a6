"""The memory of EvRT-DETR (Torbunov et al. 2025): a ConvLSTM beside each map, between the encoder and the decoder.

What a frame detector sees is carried on through time and added to what it sees now, so that a detector trained on
single windows can be kept as it is and only this part trained on clips. For each map x of a window, with the hidden
map h and the cell c of the window before:

    input      i  = sigmoid(W_i * [x, h] + p_i ∘ c)         forget  f = sigmoid(W_f * [x, h] + p_f ∘ c)
    cell       c' = f ∘ c + i ∘ tanh(W_g * [x, h])
    output     o  = sigmoid(W_o * [x, h] + p_o ∘ c')        hidden  h' = o ∘ tanh(c')
    result     x + P h'

where * is a convolution (Shi et al. 2015), p the peepholes, one number a channel, which begin at 0, and P a 1×1
convolution. Each gate keeps its own kernels, as in the public files; the kernels of all gates run as one convolution.

The published cell counts steps: ten windows of 5 ms change it as much as ten windows of 50 ms. With
``recurrence="time"`` the cell follows elapsed time instead. Its step is read as the solution of a linear equation over
50 ms with constant gates, and is solved for s = (time between windows) / 50 ms:

    cell       c' = f^s ∘ c + (1 - f^s) / (1 - f) ∘ i ∘ tanh(W_g * [x, h])

For s = 1 this is the published cell. With constant gates ten steps of s = 0.1 equal one step of s = 1.
There are no further parameters, so that published weights can be used with either recurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError
from fate.models.renaming import Rules

#: Names below ``net_temp_enc.pth::`` of a public EvRT-DETR checkpoint, as names here.
OFFICIAL_NAMES: Rules = (
    (r"^layers\.(\d)\.layers\.0\.", r"cells.\1."),
    (r"^proj_layers\.", "projections."),
    (r"^(cells\.\d)\.cell_state_gate\.", r"\1.candidate."),
    (r"^(cells\.\d\.\w+)\.gate_to_input\.", r"\1.from_input."),
    (r"^(cells\.\d\.\w+)\.gate_to_hidden\.", r"\1.from_hidden."),
    (r"^(cells\.\d\.\w+)\.gate_to_cell$", r"\1.peephole"),
)

#: What a recurrent cell counts: the published one counts steps.
Recurrence = Literal["steps", "time"]

#: Above this logit a forget gate is 1 in float32; larger logits would lose all digits of 1 - f.
_MAX_FORGET_LOGIT = 16.0

#: Hidden map and cell, both [B, hidden, H, W].
CellState = tuple[Tensor, Tensor]


class LatentMemory(nn.Module):
    """Maps of windows to maps of the same shapes, with what earlier windows of the same stream left behind.

    Attributes:
        channels: of the maps.
    """

    def __init__(
        self,
        channels: Sequence[int],
        hidden: int | None = None,
        kernel: int = 3,
        recurrence: Recurrence = "steps",
    ) -> None:
        """Args:
        channels: of each map.
        hidden: channels of the hidden maps and cells; as many as the map has if None.
        kernel: side of the gates' kernels, odd.
        recurrence: ``"steps"`` for the published cell, ``"time"`` for the cell that follows elapsed time.
        """
        super().__init__()
        if recurrence not in ("steps", "time"):
            raise FateError(f"recurrence={recurrence!r} was given; expected 'steps' or 'time'")
        self.recurrence = recurrence
        if kernel % 2 == 0:
            raise FateError(f"a kernel of side {kernel} was given; expected an odd number")
        self.channels = tuple(channels)
        self.cells = nn.ModuleList(PeepholeConvLSTM(c, hidden or c, kernel) for c in self.channels)
        self.projections = nn.ModuleList(nn.Conv2d(hidden or c, c, 1) for c in self.channels)

    def forward(
        self,
        features: Sequence[Tensor],
        state: Sequence[CellState] | None = None,
        steps: int = 1,
        step_scale: float | Tensor = 1.0,
    ) -> tuple[list[Tensor], tuple[CellState, ...]]:
        """A clip of T = ``steps`` windows of B streams; the same, window by window or all at once.

        Args:
            features: for each map [T · B, C, H, W], time-major.
            state: for each map the hidden map and the cell before the clip, [B, hidden, H, W] each; None to begin.
            steps: T.
            step_scale: time between windows over 50 ms, one number or one for each window [T · B]. It has an effect
                with ``recurrence="time"`` alone.

        Returns:
            maps of the shapes of ``features``, and the state after the clip.
        """
        outputs, after = [], []
        scale = step_scale if self.recurrence == "time" else 1.0
        for index, (maps, cell, project) in enumerate(zip(features, self.cells, self.projections, strict=True)):
            hidden, carried = cell(maps, None if state is None else state[index], steps, scale)
            outputs.append(maps + project(hidden))
            after.append(carried)
        return outputs, tuple(after)

    def fuse_(self) -> None:
        """Join the parameters of all gates, in place and for good, so that no step has to: for a model that runs."""
        for index, cell in enumerate(self.cells):
            if isinstance(cell, PeepholeConvLSTM):
                self.cells[index] = JoinedConvLSTM(cell.joined())


class PeepholeConvLSTM(nn.Module):
    """The ConvLSTM of one map, with the parameters of each gate under its own name, as they are trained and stored."""

    def __init__(self, channels: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.input_gate = Gate(channels, hidden, kernel)
        self.forget_gate = Gate(channels, hidden, kernel)
        self.output_gate = Gate(channels, hidden, kernel)
        self.candidate = Gate(channels, hidden, kernel, peephole=False)

    def forward(
        self, maps: Tensor, state: CellState | None, steps: int, step_scale: float | Tensor = 1.0
    ) -> tuple[Tensor, CellState]:
        return conv_lstm(maps, state, steps, self.joined(), step_scale)

    def joined(self) -> Joined:
        """The parameters of all gates, side by side: one copy for a whole clip."""
        gates = (self.input_gate, self.forget_gate, self.output_gate, self.candidate)
        from_input = torch.cat([gate.from_input.weight for gate in gates])
        from_hidden = torch.cat([gate.from_hidden.weight for gate in gates])
        return Joined(
            torch.cat((from_input, from_hidden), dim=1),
            torch.cat([cast(Tensor, gate.from_input.bias) for gate in gates]),
            torch.cat([gate.peephole for gate in gates[:3]]),
        )


class Gate(nn.Module):
    """The parameters of one gate: kernels for the input and the hidden map, and the peephole."""

    peephole: Tensor

    def __init__(self, channels: int, hidden: int, kernel: int, peephole: bool = True) -> None:
        super().__init__()
        self.from_input = nn.Conv2d(channels, hidden, kernel)
        self.from_hidden = nn.Conv2d(hidden, hidden, kernel, bias=False)
        if peephole:
            self.peephole = nn.Parameter(torch.zeros(1, hidden, 1, 1))


class JoinedConvLSTM(nn.Module):
    """The ConvLSTM of one map with its parameters joined once and for all: to run, not to train."""

    def __init__(self, joined: Joined) -> None:
        super().__init__()
        self.kernels, self.bias, self.peepholes = (nn.Parameter(p.detach(), requires_grad=False) for p in joined)

    def forward(
        self, maps: Tensor, state: CellState | None, steps: int, step_scale: float | Tensor = 1.0
    ) -> tuple[Tensor, CellState]:
        return conv_lstm(maps, state, steps, Joined(self.kernels, self.bias, self.peepholes), step_scale)


class Joined(NamedTuple):
    """The parameters of the gates, in the order input, forget, output, candidate; D is the number of hidden maps."""

    kernels: Tensor  #: [4 D, C + D, k, k] for the input and the hidden map together
    bias: Tensor  #: [4 D]
    peepholes: Tensor  #: [3, D, 1, 1]; the candidate has none


def conv_lstm(
    maps: Tensor, state: CellState | None, steps: int, joined: Joined, step_scale: float | Tensor = 1.0
) -> tuple[Tensor, CellState]:
    """[T · B, C, H, W], time-major, to the hidden maps after each window [T · B, D, H, W] and the last state."""
    channels, padding = maps.shape[1], joined.kernels.shape[-1] // 2
    hidden, cell = _empty_state(maps, steps, joined) if state is None else state
    scales = _scales(step_scale, len(maps), steps, cell.dtype)
    if steps == 1:
        both = torch.cat((maps, hidden), dim=1)
        gates = functional.conv2d(both, joined.kernels, joined.bias, padding=padding)
        hidden, cell = _step(gates, cell, joined.peepholes, maps.dtype, scales[0])
        return hidden, (hidden, cell)
    # What the windows say need not wait: all of them at once. Only the hidden maps have to go step by step.
    from_input = joined.kernels[:, :channels]
    from_hidden = joined.kernels[:, channels:].clone()  # dense, or every step would make it so again
    outputs = []
    windows = functional.conv2d(maps, from_input, joined.bias, padding=padding).chunk(steps)
    for window, scale in zip(windows, scales, strict=True):
        gates = window + functional.conv2d(hidden, from_hidden, padding=padding)
        hidden, cell = _step(gates, cell, joined.peepholes, maps.dtype, scale)
        outputs.append(hidden)
    return torch.cat(outputs), (hidden, cell)


def _scales(step_scale: float | Tensor, windows: int, steps: int, dtype: torch.dtype) -> Sequence[float | Tensor]:
    """The scale of each step: a number, or [B, 1, 1, 1]."""
    if not isinstance(step_scale, Tensor):
        return [step_scale] * steps
    return step_scale.to(dtype).expand(windows).reshape(windows, 1, 1, 1).chunk(steps)


def _step(gates: Tensor, cell: Tensor, peepholes: Tensor, dtype: torch.dtype, scale: float | Tensor = 1.0) -> CellState:
    """One window: from what the convolutions tell the gates [B, 4 D, H, W] and the cell before it to those after it."""
    for_input, for_forget, for_output, candidate = gates.chunk(4, dim=1)
    let_in = torch.addcmul(for_input, peepholes[0], cell).sigmoid()
    for_forget = torch.addcmul(for_forget, peepholes[1], cell)
    if isinstance(scale, Tensor) or scale != 1.0:
        # log f, with the digits of 1 - f, which is what both powers need
        log_keep = functional.logsigmoid(for_forget.to(cell.dtype).clamp(max=_MAX_FORGET_LOGIT))
        scaled = log_keep * scale
        keep = scaled.exp()
        let_in = let_in * (torch.expm1(scaled) / torch.expm1(log_keep))
    else:
        keep = for_forget.sigmoid()
    cell = torch.addcmul(keep * cell, let_in, candidate.tanh())
    let_out = torch.addcmul(for_output, peepholes[2], cell).sigmoid()
    return (let_out * cell.tanh()).to(dtype), cell


def _empty_state(maps: Tensor, steps: int, joined: Joined) -> CellState:
    """Zeros, laid out in memory as the maps are. The cell has at least float32: it adds up for a long time."""
    size = (maps.shape[0] // steps, joined.peepholes.shape[1], *maps.shape[2:])
    precise = torch.promote_types(joined.kernels.dtype, torch.float32)
    layout = torch.contiguous_format if maps.is_contiguous() else torch.channels_last
    hidden = maps.new_zeros(size).to(memory_format=layout)
    return hidden, torch.zeros_like(hidden, dtype=precise)
