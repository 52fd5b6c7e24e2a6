"""RVT's memory: a ConvLSTM with 1×1 kernels, so that every pixel has an LSTM of its own.

Gehrig & Scaramuzza, "Recurrent Vision Transformers for Object Detection with Event Cameras" (CVPR 2023).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ConvLSTM(nn.Module):
    """Features of C channels to hidden states of C channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gates = nn.Conv2d(2 * channels, 4 * channels, 1)  # from (x, h) to forget, input, output, candidate

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None, steps: int = 1
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the hidden states [N, H, W, C] and the last (hidden, cell), each [B, H, W, C], at least in float32.

        Args:
            x: [N, H, W, C], N = steps · B, time-major.
            state: hidden and cell state before the first window; None for zeros.
            steps: T.
        """
        of_x, of_h = self.gates.weight.flatten(1).chunk(2, 1)
        states = []
        for from_x in functional.linear(x, of_x, self.gates.bias).chunk(steps):
            gates = from_x if state is None else from_x + functional.linear(state[0].to(x.dtype), of_h)
            state = _step(
                gates.to(torch.promote_types(gates.dtype, torch.float32)), None if state is None else state[1]
            )
            states.append(state)
        hidden = states[0][0] if steps == 1 else torch.cat([hidden for hidden, _ in states])
        return hidden.to(x.dtype), states[-1]


def _step(gates: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
    """One step: pre-activations of the gates [B, H, W, 4·C] and cell state (None for zero) to hidden and cell state."""
    channels = gates.shape[-1] // 4
    forget, enter, leave = gates[..., : 3 * channels].sigmoid().chunk(3, -1)
    entered = enter * gates[..., 3 * channels :].tanh()
    cell = entered if cell is None else torch.addcmul(entered, forget, cell)
    return leave * cell.tanh(), cell
