"""The linear recurrence x_t = a_t · x_(t-1) + b_t over complex numbers: what a state-space layer does along time.

A complex vector of length P is held as 2·P real numbers, the P real parts first and the P imaginary parts after them.
No complex tensor is made: matrix products stay plain real ones, and every export format knows the operations.

The steps of a clip run one after the other, each over all pixels of all streams at once. A tree over time would have
fewer dependent steps, but pass log₂ T times over the whole clip, and reading and writing memory is what costs. On a CPU
the loop is in Python; on a GPU, where starting 21 small kernels takes longer than their work, ``scan_gpu`` keeps each
pixel's state in registers from the first window to the last.

The gradient of ``scan`` is written out, so that training keeps only the states. A test compares both with the plain
recurrence in complex numbers.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fate.models.layers.norm import HAS_TRITON


def scan(transition: Tensor, inputs: Tensor, initial: Tensor | None = None) -> Tensor:
    """All states x_1 … x_T [T, B, M, 2·P] of M pixels in B streams.

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
    """One step, a · x + b; all are pairs [.., 2·P] that broadcast."""
    a_real, a_imag = transition.chunk(2, -1)
    b_real, b_imag = inputs.chunk(2, -1)
    x_real, x_imag = state.chunk(2, -1)
    real = torch.addcmul(torch.addcmul(b_real, a_real, x_real), a_imag, x_imag, value=-1)
    imag = torch.addcmul(torch.addcmul(b_imag, a_real, x_imag), a_imag, x_real)
    return torch.cat((real, imag), -1) if out is None else torch.cat((real, imag), -1, out=out)


def complex_multiply(left: Tensor, right: Tensor) -> Tensor:
    """The complex product of pairs [.., 2·P] that broadcast."""
    a, b = left.chunk(2, -1)
    c, d = right.chunk(2, -1)
    return torch.cat((a * c - b * d, a * d + b * c), -1)


def conjugate(pairs: Tensor) -> Tensor:
    """[.., 2·P], complex conjugate."""
    real, imag = pairs.chunk(2, -1)
    return torch.cat((real, -imag), -1)


class _Scan(torch.autograd.Function):
    """``scan`` with its gradient.

    With g_t the gradient of the loss by x_t, through all later steps too, g_t = grad_t + conj(a_(t+1)) · g_(t+1): the
    same recurrence backwards in time. Inputs get g_t itself, the transition conj(x_(t-1)) · g_t summed over pixels.
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
    """Gradients by the transition and by the inputs, shaped like them, of the gradient by the states."""
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
    """``scan_gpu`` if it can be used; it is written in Triton, for float32."""
    if not (HAS_TRITON and inputs.is_cuda and inputs.dtype == torch.float32):
        return None
    from fate.models.layers import scan_gpu  # noqa: PLC0415  (needs triton)

    return scan_gpu
