"""S5: a state-space layer along time, as the memory of S5-ViT (Zubić et al., CVPR 2024; Smith et al., ICLR 2023).

Every pixel is a signal u(t) of C channels that drives P damped oscillators, the modes of a linear system:

    x'(t) = Λ x(t) + B u(t),      y(t) = Re(C x(t)) + D u(t)

with complex x, diagonal Λ, and B, C, D and Λ learned. Sampled in steps of Δ by the bilinear rule,

    x_t = Λ̄ x_(t-1) + B̄ u_t,      Λ̄ = (1 + Δ/2 Λ) / (1 - Δ/2 Λ),      B̄ = Δ / (1 - Δ/2 Λ) · B

**The rate.** Each mode learns its own Δ = exp(log_step) at the canonical 20 Hz. At another rate Δ is multiplied by
``step_scale`` = 20 / hz, so the modes stay the same in continuous time, and so does the state: windows of different
length may follow each other.

**The band limit.** A mode makes Δ |Im Λ| / 2π cycles per step. Modes with BAND_LIMIT or more cycles per step (half of
the Nyquist limit) alias, and are switched off at this rate: they take no input, keep no state and put out zero. A mode
that is switched off at 20 Hz may be used at 200 Hz.

**What the public code does instead** (``official_state=True``, for its checkpoints): columns of C are zeroed once at
initialisation, for 20 Hz (as here), but nothing is switched off afterwards; and the state carried into a call does not
reach its output, so that memory lasts as long as one clip.

Complex numbers are real pairs, see ``scan``. All of it runs in float32, under autocast too: Λ̄ of slow modes is so
close to 1 that bfloat16 would round their memory away.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.models.layers.norm import LayerNorm
from fate.models.layers.scan import complex_multiply, scan, step

BAND_LIMIT = 0.25  # cycles per step; the public "bandlimit" 0.5 is this as a share of Nyquist's 0.5
SLOWEST, FASTEST = 1e-3, 1e-1  # Δ is drawn between them


class Sampled(NamedTuple):
    """The system in steps of some length; weights are of plain real matrix products."""

    transition: Tensor  #: Λ̄ [2·P], or [N, 2·P] with a step for each window
    gain: Tensor | None  #: what is still to be multiplied with the input, [N, 2·P]; None if it is in the weight
    input_weight: Tensor  #: [2·P, C]
    output_weight: Tensor  #: [C, 2·P]


class S5(nn.Module):
    """Signals of C channels at every pixel to signals of C channels, through P modes."""

    def __init__(self, channels: int, modes: int | None = None, official_state: bool = False) -> None:
        """``modes`` is P, by default as many as channels; ``official_state`` computes what the public code computes."""
        super().__init__()
        modes = channels if modes is None else modes
        self.official_state = official_state
        self.eigenvalues = nn.Parameter(torch.empty(modes, 2))  # Λ, real and imaginary parts
        self.input_matrix = nn.Parameter(torch.empty(modes, channels, 2))  # B
        self.output_matrix = nn.Parameter(torch.empty(channels, modes, 2))  # C
        self.feedthrough = nn.Parameter(torch.empty(channels))  # D
        self.log_step = nn.Parameter(torch.empty(modes))  # ln Δ at the canonical rate
        self._frozen: dict[float, Sampled] = {}
        if not self.log_step.is_meta:  # where shapes alone are wanted
            self._initialise(channels, modes)

    @torch.no_grad()
    def _initialise(self, channels: int, modes: int) -> None:
        """Modes of HiPPO-LegS, as the public code starts (its odd scales included)."""
        eigenvalues, vectors = hippo_modes(modes)
        nn.init.uniform_(self.log_step, math.log(SLOWEST), math.log(FASTEST))
        nn.init.uniform_(self.feedthrough)
        within = cycles_per_step(eigenvalues, torch.exp(self.log_step).cpu()) < BAND_LIMIT
        b = _truncated_normal((modes, channels), variance=1 / modes).to(torch.complex128)
        c = torch.view_as_complex(_truncated_normal((channels, modes, 2), variance=1 / (channels * modes)))
        self.eigenvalues.copy_(eigenvalues)
        self.input_matrix.copy_(torch.view_as_real(vectors.mH @ b))
        self.output_matrix.copy_(torch.view_as_real(c @ vectors * within))

    def forward(
        self, u: Tensor, state: Tensor | None = None, steps: int = 1, step_scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """y [N, H, W, C] and x after the last window [B, H, W, 2·P], both float32 (float64 for float64 inputs).

        Args:
            u: [N, H, W, C], N = steps · B, time-major.
            state: x before the first window [B, H, W, 2·P]; None for zero.
            steps: T.
            step_scale: 20 / hz; one number, or one for each window [N].
        """
        with _without_autocast(u.device.type):
            u = u.to(torch.promote_types(u.dtype, torch.float32))
            sampled = self.sample(step_scale, u.dtype)
            driven = functional.linear(u, sampled.input_weight)
            if sampled.gain is not None:
                driven = complex_multiply(sampled.gain[:, None, None], driven)
            before = None if state is None or self.official_state else state.to(u.dtype)
            states, last = self._states(sampled.transition, driven, before, steps)
            y = functional.linear(states, sampled.output_weight)
            return torch.addcmul(y, u, self.feedthrough.to(u.dtype)), last

    def _states(self, transition: Tensor, driven: Tensor, before: Tensor | None, steps: int) -> tuple[Tensor, Tensor]:
        """All states [N, H, W, 2·P] and the last of each stream; ``driven`` is B̄ u, shaped like the states."""
        if steps == 1:
            per_window = transition if transition.ndim == 1 else transition[:, None, None]
            states = driven if before is None else step(per_window, driven, before)
            return states, states
        shape = (steps, len(driven) // steps, -1, driven.shape[-1])  # T, B, pixels, pairs
        initial = None if before is None else before.reshape(shape[1:])
        states = scan(transition.expand(len(driven), -1).view(*shape[:2], -1), driven.view(shape), initial)
        # A view of the last would keep the whole clip in memory.
        return states.view(driven.shape), states[-1].clone().view(-1, *driven.shape[1:])

    def sample(self, step_scale: float | Tensor = 1.0, dtype: torch.dtype = torch.float32) -> Sampled:
        """The system in steps of ``step_scale`` (a number, or [N]) times Δ."""
        if not isinstance(step_scale, Tensor):
            frozen = self._frozen.get(float(step_scale))
            key = (self.log_step.device, dtype)
            if frozen is not None and (frozen.transition.device, frozen.transition.dtype) == key:
                return frozen
        else:
            step_scale = step_scale.to(self.log_step.device, dtype)
            step_scale = step_scale if step_scale.numel() == 1 else step_scale[:, None]
        eigenvalues, delta = self.eigenvalues.to(dtype), torch.exp(self.log_step.to(dtype)) * step_scale
        transition, gain = bilinear(eigenvalues, delta)
        if not self.official_state:
            within = (cycles_per_step(eigenvalues, delta) < BAND_LIMIT).to(dtype)
            within = torch.cat((within, within), -1)
            transition, gain = transition * within, gain * within

        b_real, b_imag = self.input_matrix.to(dtype).unbind(-1)
        c_real, c_imag = self.output_matrix.to(dtype).unbind(-1)
        output_weight = torch.cat((c_real, -c_imag), 1)  # Re(C x) = C_real x_real - C_imag x_imag
        if gain.ndim > 1:
            return Sampled(transition, gain, torch.cat((b_real, b_imag)), output_weight)
        g_real, g_imag = gain[:, None].chunk(2)
        real = torch.addcmul(g_real * b_real, g_imag, b_imag, value=-1)
        imag = torch.addcmul(g_real * b_imag, g_imag, b_real)
        return Sampled(transition, None, torch.cat((real, imag)), output_weight)

    @torch.no_grad()
    def freeze(self, step_scale: float = 1.0) -> None:
        """Keep the system as sampled at this rate, for streaming; ``train()`` forgets it, for parameters change."""
        self._frozen.pop(float(step_scale), None)
        sampled = self.sample(step_scale, torch.promote_types(self.log_step.dtype, torch.float32))
        if self.log_step.device.type == "cpu":  # a CPU multiplies faster with this memory layout
            into, out = (weight.t().contiguous().t() for weight in (sampled.input_weight, sampled.output_weight))
            sampled = sampled._replace(input_weight=into, output_weight=out)
        self._frozen[float(step_scale)] = sampled

    def train(self, mode: bool = True) -> S5:
        """Switch to training, which discards the frozen systems, or to inference."""
        if mode:
            self._frozen.clear()
        return super().train(mode)


class S5Block(nn.Module):
    """A state-space layer over time, then a gated MLP over channels; both add to their *normalised* input."""

    def __init__(self, channels: int, official_state: bool = False) -> None:
        super().__init__()
        self.norm = LayerNorm(channels)
        self.ssm = S5(channels, official_state=official_state)
        self.mlp_norm = LayerNorm(channels)
        self.expand = nn.Linear(channels, 2 * channels, bias=False)
        self.contract = nn.Linear(channels, channels, bias=False)

    def forward(
        self, x: Tensor, state: Tensor | None = None, steps: int = 1, step_scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """As ``S5.forward``: [N, H, W, C] and [B, H, W, 2·C] to the same."""
        u = self.norm(x)
        y, state = self.ssm(u, state, steps, step_scale)
        v = self.mlp_norm((functional.gelu(y) + u).to(u.dtype))
        values, gates = self.expand(v).chunk(2, -1)
        return self.contract(values * functional.gelu(gates)) + v, state


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """A context in which autocast is off, so that S5 computes in full precision."""
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if autocast else nullcontext()


def bilinear(eigenvalues: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Λ̄ = (1 + Δ/2 Λ) / (1 - Δ/2 Λ) and the gain Δ / (1 - Δ/2 Λ), pairs [.., 2·P], of Λ [P, 2] and Δ [.., P]."""
    real, imag = (delta / 2 * part for part in eigenvalues.unbind(-1))
    size = (1 - real) ** 2 + imag**2  # |1 - Δ/2 Λ|²
    transition = torch.cat(((1 - real**2 - imag**2) / size, 2 * imag / size), -1)
    return transition, torch.cat((delta * (1 - real) / size, delta * imag / size), -1)


def cycles_per_step(eigenvalues: Tensor, delta: Tensor) -> Tensor:
    """Oscillations of each mode in a step [.., P], of Λ [P, 2] (Im Λ in radians) and Δ [.., P]."""
    return delta * eigenvalues[:, 1].abs() / (2 * math.pi)


@cache
def hippo_modes(modes: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues [P, 2] and eigenvectors [P, P] of the normal part of HiPPO-LegS, imaginary parts ascending.

    Less a term of rank one, HiPPO-LegS is -1/2 plus a skew-symmetric matrix, whose eigenvectors are orthonormal.
    """
    n = torch.arange(modes, dtype=torch.float64)
    root = torch.sqrt(2 * n + 1)
    legs = torch.diag(n) - torch.tril(torch.outer(root, root))
    half = torch.sqrt(n + 0.5)
    normal = legs + torch.outer(half, half)
    imag, vectors = torch.linalg.eigh(-1j * normal)
    return torch.stack((torch.full_like(imag, -0.5), imag), -1), vectors


def _truncated_normal(shape: tuple[int, ...], variance: float) -> Tensor:
    """Normal numbers cut at two deviations; 0.8796 is the deviation that is left of 1, and the public code multiplies
    by it where JAX, which it follows, divides."""
    deviation = 0.87962566103423978 * math.sqrt(variance)
    drawn = torch.empty(shape, dtype=torch.float64)
    return nn.init.trunc_normal_(drawn, std=deviation, a=-2 * deviation, b=2 * deviation)
