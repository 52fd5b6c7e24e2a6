"""``s5.scan`` on a GPU: a program computes the whole clip for some pixels and some modes of one stream.

State and gradient stay in registers from one window to the next, so every number is read and written once. Sums over
pixels have a fixed order, so the same input gives the same gradient to the bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Pixels of a program; with at most 32 modes these are a thousand complex numbers for 128 threads.
PIXELS = 32


def states(transition: Tensor, inputs: Tensor, initial: Tensor | None) -> Tensor:
    """``scan`` without a gradient: [T, B, 2·P], [T, B, M, 2·P] and [B, M, 2·P] to [T, B, M, 2·P], float32."""
    inputs, transition = inputs.contiguous(), transition.contiguous()
    results = torch.empty_like(inputs)
    first = inputs if initial is None else initial.contiguous()  # the kernel does not read it without one
    grid, sizes, modes = _tiles(inputs)
    with torch.cuda.device_of(inputs):
        _forward[grid](transition, inputs, first, results, *sizes, initial is not None, PIXELS, modes)
    return results


def gradients(transition: Tensor, states: Tensor, initial: Tensor | None, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the transition and of the inputs, given the gradient of the states."""
    grad, transition = grad.contiguous(), transition.contiguous()
    first = states if initial is None else initial.contiguous()
    grid, sizes, modes = _tiles(states)
    blocks = triton.cdiv(states.shape[2], PIXELS)
    to_inputs = torch.empty_like(states)
    sums = torch.empty(blocks, *transition.shape, device=states.device)
    with torch.cuda.device_of(states):
        _backward[grid](
            transition, states, first, grad, to_inputs, sums, *sizes, initial is not None, PIXELS, modes
        )  # fmt: skip
    return sums.sum(0), to_inputs


def _tiles(inputs: Tensor) -> tuple[tuple[int, int, int], tuple[int, int, int, int], int]:
    """The grid (blocks of pixels, streams, blocks of modes), the sizes (T, B, M, P), and the modes of a block."""
    steps, streams, pixels, pairs = inputs.shape
    modes = min(32, triton.next_power_of_2(pairs // 2))
    grid = (triton.cdiv(pixels, PIXELS), streams, triton.cdiv(pairs // 2, modes))
    return grid, (steps, streams, pixels, pairs // 2), modes


@triton.jit
def _tile(pixels, modes, n_pixels: tl.constexpr, n_modes: tl.constexpr):
    """Offsets of the program's numbers in the [B, M, 2·P] of one window, a mask of those that exist, and its modes."""
    pixel = tl.program_id(0) * n_pixels + tl.arange(0, n_pixels)
    mode = tl.program_id(2) * n_modes + tl.arange(0, n_modes)
    row = tl.program_id(1).to(tl.int64) * pixels + pixel
    return row[:, None] * (2 * modes) + mode[None, :], (pixel < pixels)[:, None] & (mode < modes)[None, :], mode


@triton.jit
def _pair(base, offset, modes, inside):
    """Real and imaginary parts; 0 outside the mask."""
    return tl.load(base + offset, mask=inside, other=0.0), tl.load(base + offset + modes, mask=inside, other=0.0)


@triton.jit
def _forward(
    transition, inputs, initial, states, steps, streams, pixels, modes,
    has_initial: tl.constexpr, n_pixels: tl.constexpr, n_modes: tl.constexpr,
):  # fmt: skip
    offset, inside, mode = _tile(pixels, modes, n_pixels, n_modes)
    window = tl.cast(streams, tl.int64) * pixels * 2 * modes
    x_real, x_imag = _pair(initial, offset, modes, inside & has_initial)
    for t in range(steps):
        row = transition + (t * streams + tl.program_id(1)) * 2 * modes
        a_real, a_imag = _pair(row, mode[None, :], modes, mode[None, :] < modes)
        b_real, b_imag = _pair(inputs + t * window, offset, modes, inside)
        real = b_real + a_real * x_real - a_imag * x_imag
        x_imag = b_imag + a_real * x_imag + a_imag * x_real
        x_real = real
        tl.store(states + t * window + offset, x_real, mask=inside)
        tl.store(states + t * window + offset + modes, x_imag, mask=inside)


@triton.jit
def _backward(
    transition, states, initial, grad, to_inputs, sums, steps, streams, pixels, modes,
    has_initial: tl.constexpr, n_pixels: tl.constexpr, n_modes: tl.constexpr,
):  # fmt: skip
    offset, inside, mode = _tile(pixels, modes, n_pixels, n_modes)
    exists = mode[None, :] < modes
    window = tl.cast(streams, tl.int64) * pixels * 2 * modes
    g_real = tl.zeros((n_pixels, n_modes), tl.float32)
    g_imag = tl.zeros((n_pixels, n_modes), tl.float32)
    for back in range(steps):
        t = steps - 1 - back
        after = tl.minimum(t + 1, steps - 1)  # the last window has no next one; any row will do, since g is 0
        row = transition + (after * streams + tl.program_id(1)) * 2 * modes
        a_real, a_imag = _pair(row, mode[None, :], modes, exists)
        d_real, d_imag = _pair(grad + t * window, offset, modes, inside)
        real = d_real + a_real * g_real + a_imag * g_imag
        g_imag = d_imag + a_real * g_imag - a_imag * g_real
        g_real = real
        tl.store(to_inputs + t * window + offset, g_real, mask=inside)
        tl.store(to_inputs + t * window + offset + modes, g_imag, mask=inside)

        before = states + tl.maximum(t - 1, 0) * window
        x_real, x_imag = _pair(before, offset, modes, inside & (t > 0))
        if has_initial:
            first_real, first_imag = _pair(initial, offset, modes, inside & (t == 0))
            x_real += first_real
            x_imag += first_imag
        cell = sums + ((tl.program_id(0) * steps + t) * streams + tl.program_id(1)).to(tl.int64) * 2 * modes
        along = tl.sum(x_real * g_real + x_imag * g_imag, 0)
        across = tl.sum(x_real * g_imag - x_imag * g_real, 0)
        tl.store(cell + mode, along, mask=mode < modes)
        tl.store(cell + modes + mode, across, mask=mode < modes)
