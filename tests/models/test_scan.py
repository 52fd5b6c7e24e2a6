"""The linear recurrence over time: values and gradients of the fast version are those of the readable one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fate.models.layers.s5 import complex_multiply, conjugate, scan, step
from tests.models.complex_scan import as_complex, as_pairs, scan_in_complex_numbers

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU on this machine")
any_start = pytest.mark.parametrize("with_initial", [False, True], ids=["fresh", "carried"])


def clip(
    steps: int, streams: int = 2, pixels: int = 5, modes: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Transition of modulus at most 1, inputs and a first state."""
    draw = torch.Generator().manual_seed(seed)
    angle = 6 * torch.rand(steps, streams, modes, generator=draw, dtype=torch.float64)
    modulus = 1 - 0.1 * torch.rand(steps, streams, modes, generator=draw, dtype=torch.float64)
    inputs = torch.randn(steps, streams, pixels, 2 * modes, generator=draw, dtype=torch.float64)
    initial = torch.randn(streams, pixels, 2 * modes, generator=draw, dtype=torch.float64)
    return as_pairs(torch.polar(modulus, angle)).to(dtype), inputs.to(dtype), initial.to(dtype)


def values_and_gradients(function: object, *tensors: Tensor | None) -> list[Tensor]:
    leaves = [None if tensor is None else tensor.clone().requires_grad_() for tensor in tensors]
    states = function(*leaves)  # type: ignore[operator]
    weights = torch.linspace(-1, 1, states.numel(), dtype=states.dtype, device=states.device).view(states.shape)
    gradients = torch.autograd.grad((states * weights).sum(), [leaf for leaf in leaves if leaf is not None])
    return [states.detach(), *gradients]


@any_start
@pytest.mark.parametrize("steps", [2, 3, 21])
def test_values_and_gradients_are_those_of_complex_arithmetic(steps: int, with_initial: bool) -> None:
    transition, inputs, initial = clip(steps)
    start = initial if with_initial else None
    ours = values_and_gradients(scan, transition, inputs, start)
    plain = values_and_gradients(scan_in_complex_numbers, transition, inputs, start)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@any_start
def test_one_step_is_a_product_and_a_sum(with_initial: bool) -> None:
    transition, inputs, initial = clip(1)
    states = scan(transition, inputs, initial if with_initial else None)
    before = as_complex(initial) if with_initial else 0.0
    torch.testing.assert_close(
        as_complex(states[0]), as_complex(transition[0])[:, None] * before + as_complex(inputs[0])
    )
    torch.testing.assert_close(states, scan_in_complex_numbers(transition, inputs, initial if with_initial else None))


def test_gradients_are_those_of_finite_differences() -> None:
    transition, inputs, initial = (part.requires_grad_() for part in clip(3, pixels=2, modes=2))
    assert torch.autograd.gradcheck(scan, (transition, inputs, initial))
    assert torch.autograd.gradcheck(scan, (transition, inputs))


@given(steps=st.integers(2, 12), cut=st.integers(1, 11), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_a_clip_may_be_cut_anywhere(steps: int, cut: int, seed: int) -> None:
    cut = min(cut, steps - 1)
    transition, inputs, initial = clip(steps, seed=seed)
    whole = scan(transition, inputs, initial)
    first = scan(transition[:cut], inputs[:cut], initial)
    second = scan(transition[cut:], inputs[cut:], first[-1])
    torch.testing.assert_close(torch.cat((first, second)), whole, rtol=1e-12, atol=1e-12)


def test_without_gradients_the_states_are_the_same() -> None:
    transition, inputs, initial = clip(6, dtype=torch.float32)
    kept = scan(transition.requires_grad_(), inputs, initial)
    with torch.inference_mode():
        torch.testing.assert_close(scan(transition, inputs, initial), kept, rtol=0, atol=0)


def test_float32_holds_fifty_steps_of_undamped_modes() -> None:
    transition, inputs, initial = clip(50, modes=16)
    exact = scan(transition / torch.cat([as_complex(transition).abs()] * 2, -1), inputs, initial)
    unit = (transition / torch.cat([as_complex(transition).abs()] * 2, -1)).float()
    error = (scan(unit, inputs.float(), initial.float()).double() - exact).abs().max()
    assert error < 1e-5 * exact.abs().max()


def test_gradients_stop_where_nothing_is_asked_for() -> None:
    transition, inputs, initial = clip(4)
    states = scan(transition, inputs.requires_grad_(), initial)
    states.sum().backward()
    assert inputs.grad is not None
    assert transition.grad is None
    assert initial.grad is None


def test_pairs_compute_as_complex_numbers() -> None:
    one, other, third = torch.randn(3, 4, 10, dtype=torch.float64)
    a, b, c = as_complex(one), as_complex(other), as_complex(third)
    torch.testing.assert_close(as_complex(complex_multiply(one, other)), a * b)
    torch.testing.assert_close(as_complex(conjugate(one)), a.conj().resolve_conj())
    torch.testing.assert_close(as_complex(step(one, other, third)), a * c + b)


# --- on a GPU ---


@needs_gpu
@any_start
@pytest.mark.parametrize(
    ("steps", "streams", "pixels", "modes"), [(2, 1, 1, 1), (5, 3, 33, 16), (21, 2, 70, 48), (21, 1, 320, 512)]
)
def test_gpu_gives_values_and_gradients_of_the_cpu(
    steps: int, streams: int, pixels: int, modes: int, with_initial: bool
) -> None:
    transition, inputs, initial = clip(steps, streams, pixels, modes)
    here = values_and_gradients(scan_in_complex_numbers, transition, inputs, initial if with_initial else None)
    a, b, start = (part.float().cuda() for part in (transition, inputs, initial))
    there = values_and_gradients(scan, a, b, start if with_initial else None)
    for one, other in zip(there, here, strict=True):
        assert (one.cpu().double() - other).abs().max() < 2e-6 * max(1.0, float(other.abs().max()))


@needs_gpu
def test_gpu_gives_the_same_bits_each_time() -> None:
    tensors = [part.float().cuda() for part in clip(21, 4, 1000, 64)]
    once, again = (values_and_gradients(scan, *tensors) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
