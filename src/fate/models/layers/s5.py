"""S5: a state-space layer over time, the memory of S5-ViT (Zubić et al., CVPR 2024; Smith et al., ICLR 2023).

At every pixel, a signal u(t) of C channels drives P damped oscillators, the modes of a linear system:

    x'(t) = Λ x(t) + B u(t),      y(t) = Re(C x(t)) + D u(t)

with complex x, diagonal Λ, and learned B, C, D and Λ. Sampled in steps of Δ by the bilinear rule this becomes

    x_t = Λ̄ x_(t-1) + B̄ u_t,      Λ̄ = (1 + Δ/2 Λ) / (1 - Δ/2 Λ),      B̄ = Δ / (1 - Δ/2 Λ) · B

**The rate.** Each mode learns its own Δ = exp(log_step) for the canonical 20 Hz. At another rate Δ is multiplied by
``step_scale`` = 20 / hz. The modes and the state then stay the same in continuous time, so windows of different
durations may follow each other.

**The band limit.** A mode makes Δ |Im Λ| / 2π cycles per step. Modes with ``BAND_LIMIT`` or more cycles per step (half
of the Nyquist limit) alias, and are switched off at this rate: they take no input, keep no state and have no output. A
mode that is switched off at 20 Hz may be active at 200 Hz.

**The longest memory.** A mode forgets with the time constant -50 ms / (Δ Re Λ), and nothing keeps training from making
it longer than every training recording, or from Re Λ > 0, with which the state grows. Such modes drift to values that
were never seen in training. ``longest_memory_s`` limits all time constants; None, as published, sets no limit.

**The public code** differs (``official_state=True`` computes the same, for its checkpoints): columns of C are zeroed
once at initialisation, for 20 Hz (as here), but no mode is switched off later. The state passed to a call does not
reach its output, so memory ends with the clip.

**Complex numbers** of length P are stored as 2·P real numbers, first the P real parts, then the P imaginary parts.
Matrix products are then real, and every export format supports the operations. Everything is computed in float32, under
autocast too: Λ̄ of slow modes is so close to 1 that bfloat16 would lose their memory.

**The recurrence** (``scan``) runs over the windows of a clip one after the other, for all pixels of all streams at
once. A parallel scan would have fewer sequential steps but read and write the clip log₂ T times, and memory access is
what takes time. On the CPU the loop is in Python; on a GPU, where launching 21 small kernels takes longer than
computing them, ``scan_gpu`` keeps the state of a pixel in registers for the whole clip. The gradient is explicit, so
that training stores only the states.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fate.errors import FateError
from fate.models.layers.norm import HAS_TRITON, LayerNorm
from fate.rates import CANONICAL_US

BAND_LIMIT = 0.25  # cycles per step; the public "bandlimit" 0.5 is this as a share of the Nyquist limit 0.5
SLOWEST, FASTEST = 1e-3, 1e-1  # range of the initial Δ


class Sampled(NamedTuple):
    """The system sampled in steps of a given length; the weights are real matrices."""

    transition: Tensor  #: Λ̄ [2·P], or [N, 2·P] if each window has its own step
    gain: Tensor | None  #: [N, 2·P] factor of the driven input; None if it is part of ``input_weight``
    input_weight: Tensor  #: [2·P, C]
    output_weight: Tensor  #: [C, 2·P]


class S5(nn.Module):
    """A state-space layer of P modes for signals of C channels at every pixel."""

    follows_time = True

    def __init__(
        self,
        channels: int,
        modes: int | None = None,
        official_state: bool = False,
        longest_memory_s: float | None = None,
    ) -> None:
        """Args:
        channels: C.
        modes: P, by default C.
        official_state: compute the same as the public code.
        longest_memory_s: longest time constant of a mode in seconds; None for no limit.
        """
        super().__init__()
        if longest_memory_s is not None and not 0 < longest_memory_s < math.inf:
            raise FateError(f"longest_memory_s={longest_memory_s!r} was given; expected seconds above 0, or None")
        modes = channels if modes is None else modes
        self.official_state, self.longest_memory_s = official_state, longest_memory_s
        self.eigenvalues = nn.Parameter(torch.empty(modes, 2))  # Λ, real and imaginary parts
        self.input_matrix = nn.Parameter(torch.empty(modes, channels, 2))  # B
        self.output_matrix = nn.Parameter(torch.empty(channels, modes, 2))  # C
        self.feedthrough = nn.Parameter(torch.empty(channels))  # D
        self.log_step = nn.Parameter(torch.empty(modes))  # ln Δ at the canonical rate
        self._frozen: dict[float, Sampled] = {}
        if not self.log_step.is_meta:  # on the device "meta" tensors have shapes but no values
            self._initialise(channels, modes)

    @torch.no_grad()
    def _initialise(self, channels: int, modes: int) -> None:
        """Initialise with the modes of HiPPO-LegS, with the same scales as the public code."""
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
        """Return y [N, H, W, C] and x after the last window [B, H, W, 2·P], in float32 (float64 for float64 inputs).

        Args:
            u: [N, H, W, C], N = steps · B, time-major.
            state: x before the first window [B, H, W, 2·P]; None for zero.
            steps: T.
            step_scale: 20 / hz, one number or [N].
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
        # clone: a view of the last state would keep the whole clip in memory
        return states.view(driven.shape), states[-1].clone().view(-1, *driven.shape[1:])

    def sample(self, step_scale: float | Tensor = 1.0, dtype: torch.dtype = torch.float32) -> Sampled:
        """Sample the system in steps of ``step_scale`` · Δ; ``step_scale`` is a number or [N]."""
        if not isinstance(step_scale, Tensor):
            frozen = self._frozen.get(float(step_scale))
            key = (self.log_step.device, dtype)
            if frozen is not None and (frozen.transition.device, frozen.transition.dtype) == key:
                return frozen
        else:
            step_scale = step_scale.to(self.log_step.device, dtype)
            step_scale = step_scale if step_scale.numel() == 1 else step_scale[:, None]
        transition, gain = self.at_rate(step_scale, dtype)
        b_real, b_imag = self.input_matrix.to(dtype).unbind(-1)
        c_real, c_imag = self.output_matrix.to(dtype).unbind(-1)
        output_weight = torch.cat((c_real, -c_imag), 1)  # Re(C x) = C_real x_real - C_imag x_imag
        if gain.ndim > 1:
            return Sampled(transition, gain, torch.cat((b_real, b_imag)), output_weight)
        g_real, g_imag = gain[:, None].chunk(2)
        real = torch.addcmul(g_real * b_real, g_imag, b_imag, value=-1)
        imag = torch.addcmul(g_real * b_imag, g_imag, b_real)
        return Sampled(transition, None, torch.cat((real, imag)), output_weight)

    def at_rate(self, step_scale: float | Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Λ̄ and the gain Δ / (1 - Δ/2 Λ), each [.., 2·P], for a number, [1] or [N, 1]; 0 for modes that are off."""
        eigenvalues, canonical = self.eigenvalues.to(dtype), torch.exp(self.log_step.to(dtype))
        if self.longest_memory_s is not None:
            least = CANONICAL_US / 1e6 / self.longest_memory_s / canonical
            eigenvalues = torch.stack((torch.minimum(eigenvalues[:, 0], -least), eigenvalues[:, 1]), -1)
        delta = canonical * step_scale
        transition, gain = bilinear(eigenvalues, delta)
        if not self.official_state:
            within = (cycles_per_step(eigenvalues, delta) < BAND_LIMIT).to(dtype)
            within = torch.cat((within, within), -1)
            transition, gain = transition * within, gain * within
        return transition, gain

    @torch.no_grad()
    def freeze(self, step_scale: float = 1.0) -> None:
        """Store the system sampled at this rate, for streaming; ``train()`` discards it, since parameters change."""
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
    """A state-space layer over time, then a gated MLP over channels; each is added to its *normalised* input."""

    def __init__(self, channels: int, official_state: bool = False, longest_memory_s: float | None = None) -> None:
        super().__init__()
        self.norm = LayerNorm(channels)
        self.ssm = S5(channels, official_state=official_state, longest_memory_s=longest_memory_s)
        self.mlp_norm = LayerNorm(channels)
        self.expand = nn.Linear(channels, 2 * channels, bias=False)
        self.contract = nn.Linear(channels, channels, bias=False)

    def forward(
        self, x: Tensor, state: Tensor | None = None, steps: int = 1, step_scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Same arguments and shapes as ``S5.forward``, with P = C."""
        u = self.norm(x)
        y, state = self.ssm(u, state, steps, step_scale)
        v = self.mlp_norm((functional.gelu(y) + u).to(u.dtype))
        values, gates = self.expand(v).chunk(2, -1)
        return self.contract(values * functional.gelu(gates)) + v, state


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """A context without autocast."""
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if autocast else nullcontext()


def bilinear(eigenvalues: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Λ̄ = (1 + Δ/2 Λ) / (1 - Δ/2 Λ) and the gain Δ / (1 - Δ/2 Λ), each [.., 2·P], for Λ [P, 2] and Δ [.., P]."""
    real, imag = (delta / 2 * part for part in eigenvalues.unbind(-1))
    size = (1 - real) ** 2 + imag**2  # |1 - Δ/2 Λ|²
    transition = torch.cat(((1 - real**2 - imag**2) / size, 2 * imag / size), -1)
    return transition, torch.cat((delta * (1 - real) / size, delta * imag / size), -1)


def cycles_per_step(eigenvalues: Tensor, delta: Tensor) -> Tensor:
    """Cycles of each mode per step [.., P], for Λ [P, 2] and Δ [.., P]."""
    return delta * eigenvalues[:, 1].abs() / (2 * math.pi)


@cache
def hippo_modes(modes: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues [P, 2] and eigenvectors [P, P] of the normal part of HiPPO-LegS, imaginary parts ascending.

    Without a term of rank one, HiPPO-LegS is -1/2 plus a skew-symmetric matrix, whose eigenvectors are orthonormal.
    """
    n = torch.arange(modes, dtype=torch.float64)
    root = torch.sqrt(2 * n + 1)
    legs = torch.diag(n) - torch.tril(torch.outer(root, root))
    half = torch.sqrt(n + 0.5)
    normal = legs + torch.outer(half, half)
    imag, vectors = torch.linalg.eigh(-1j * normal)
    return torch.stack((torch.full_like(imag, -0.5), imag), -1), vectors


def _truncated_normal(shape: tuple[int, ...], variance: float) -> Tensor:
    """Normal numbers truncated at two standard deviations, which reduces a deviation of 1 to 0.8796.

    The public code multiplies by this number, although JAX, which it follows, divides by it.
    """
    deviation = 0.87962566103423978 * math.sqrt(variance)
    drawn = torch.empty(shape, dtype=torch.float64)
    return nn.init.trunc_normal_(drawn, std=deviation, a=-2 * deviation, b=2 * deviation)


def scan(transition: Tensor, inputs: Tensor, initial: Tensor | None = None) -> Tensor:
    """The recurrence x_t = a_t · x_(t-1) + b_t: all states x_1 … x_T [T, B, M, 2·P] of M pixels in B streams.

    Args:
        transition: a [T, B, 2·P], the same for all pixels.
        inputs: b [T, B, M, 2·P].
        initial: x_0 [B, M, 2·P]; None for zero.
    """
    if len(inputs) == 1:
        return inputs if initial is None else step(transition[0, :, None], inputs[0], initial)[None]
    if torch.is_grad_enabled():
        states: Tensor = _Scan.apply(transition, inputs, initial)  # type: ignore[no-untyped-call]
        return states
    return _states(transition, inputs, initial)


def step(transition: Tensor, inputs: Tensor, state: Tensor, out: Tensor | None = None) -> Tensor:
    """One step, a · x + b, of complex numbers [.., 2·P] that broadcast."""
    a_real, a_imag = transition.chunk(2, -1)
    b_real, b_imag = inputs.chunk(2, -1)
    x_real, x_imag = state.chunk(2, -1)
    real = torch.addcmul(torch.addcmul(b_real, a_real, x_real), a_imag, x_imag, value=-1)
    imag = torch.addcmul(torch.addcmul(b_imag, a_real, x_imag), a_imag, x_real)
    return torch.cat((real, imag), -1) if out is None else torch.cat((real, imag), -1, out=out)


def complex_multiply(left: Tensor, right: Tensor) -> Tensor:
    """The product of complex numbers [.., 2·P] that broadcast."""
    a, b = left.chunk(2, -1)
    c, d = right.chunk(2, -1)
    return torch.cat((a * c - b * d, a * d + b * c), -1)


def conjugate(pairs: Tensor) -> Tensor:
    """The conjugate of complex numbers [.., 2·P]."""
    real, imag = pairs.chunk(2, -1)
    return torch.cat((real, -imag), -1)


class _Scan(torch.autograd.Function):
    """``scan`` with its gradient.

    The total gradient of x_t, including its effect on later states, is g_t = grad_t + conj(a_(t+1)) · g_(t+1): the same
    recurrence backwards in time. The gradient of the inputs is g_t, that of the transition conj(x_(t-1)) · g_t summed
    over pixels.
    """

    @staticmethod
    def forward(ctx: Any, transition: Tensor, inputs: Tensor, initial: Tensor | None) -> Tensor:
        states = _states(transition, inputs, initial)
        ctx.save_for_backward(transition, states, initial)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        transition, states, initial = ctx.saved_tensors
        to_transition, to_inputs = _gradients(transition, states, initial, grad)
        to_initial = None if initial is None else complex_multiply(conjugate(transition[0, :, None]), to_inputs[0])
        return to_transition, to_inputs, to_initial


def _states(transition: Tensor, inputs: Tensor, initial: Tensor | None) -> Tensor:
    """``scan`` without a gradient."""
    gpu = _kernels(inputs)
    if gpu is not None:
        return gpu.states(transition, inputs, initial)  # type: ignore[no-any-return]
    states = torch.empty_like(inputs)
    for t in range(len(inputs)):
        before = initial if t == 0 else states[t - 1]
        if before is None:
            states[t] = inputs[t]
        else:
            step(transition[t, :, None], inputs[t], before, out=states[t])
    return states


def _gradients(transition: Tensor, states: Tensor, initial: Tensor | None, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the transition and of the inputs, given the gradient of the states."""
    gpu = _kernels(states)
    if gpu is not None:
        return gpu.gradients(transition, states, initial, grad)  # type: ignore[no-any-return]
    conjugates = conjugate(transition)
    to_transition, to_inputs = torch.zeros_like(transition), torch.empty_like(states)
    for t in range(len(states) - 1, -1, -1):
        if t == len(states) - 1:
            to_inputs[t] = grad[t]
        else:
            step(conjugates[t + 1, :, None], grad[t], to_inputs[t + 1], out=to_inputs[t])
        before = initial if t == 0 else states[t - 1]
        if before is not None:
            to_transition[t] = _summed_product(before, to_inputs[t])
    return to_transition, to_inputs


def _summed_product(left: Tensor, right: Tensor) -> Tensor:
    """conj(left) · right, [B, M, 2·P] each, summed over M."""
    a, b = left.chunk(2, -1)
    c, d = right.chunk(2, -1)
    ac, bd = (left * right).sum(1).chunk(2, -1)
    return torch.cat((ac + bd, (a * d).sum(1) - (b * c).sum(1)), -1)


def _kernels(inputs: Tensor) -> ModuleType | None:
    """``scan_gpu`` if it can be used: it needs Triton, a GPU and float32."""
    if not (HAS_TRITON and inputs.is_cuda and inputs.dtype == torch.float32):
        return None
    from fate.models.layers import scan_gpu  # noqa: PLC0415  (needs triton)

    return scan_gpu
