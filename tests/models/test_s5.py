"""S5: a continuous system sampled at any rate, carried from call to call, and as the public code computes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.errors import FateError
from fate.models.checkpoints.importing import RVT
from fate.models.layers.s5 import BAND_LIMIT, S5, S5Block, cycles_per_step, hippo_modes
from tests.models.complex_scan import as_complex
from tests.models.conftest import rename_entries

Golden = Callable[[str], dict[str, NDArray[np.generic]]]
Weights = Callable[..., dict[str, Tensor]]


def layer(channels: int = 6, modes: int = 8, official_state: bool = False, slowest: float = 0.3) -> S5:
    """Well-scaled weights and modes from still to fast; float64."""
    torch.manual_seed(0)
    ssm = S5(channels, modes, official_state).double()
    with torch.no_grad():
        ssm.eigenvalues[:, 0] = -torch.linspace(slowest, 2, modes)
        ssm.eigenvalues[:, 1] = torch.linspace(-20, 60, modes)
        ssm.log_step.copy_(torch.log(torch.linspace(0.02, 0.1, modes)))
        ssm.input_matrix.normal_()
        ssm.output_matrix.normal_(std=modes**-0.5)
    return ssm


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_the_book(ssm: S5, u: Tensor, state: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """The equations in complex numbers, one step after the other, a window of a stream [C] at a time.

    u [T, B, C], state [B, P] complex, scales [T, B] to y [T, B, C] and the last state.
    """
    eigenvalues, b, c = (
        torch.view_as_complex(part.detach()) for part in (ssm.eigenvalues, ssm.input_matrix, ssm.output_matrix)
    )
    outputs = torch.empty_like(u)
    state = state.clone()
    for t, stream in np.ndindex(*u.shape[:2]):
        delta = scales[t, stream] * torch.exp(ssm.log_step.detach())
        below = 1 / (1 - delta / 2 * eigenvalues)
        moved = below * (1 + delta / 2 * eigenvalues) * state[stream]
        moved = moved + (below * delta)[:, None] * b @ u[t, stream].to(b.dtype)
        if not ssm.official_state:
            moved = torch.where(delta * eigenvalues.imag.abs() / (2 * math.pi) < 0.25, moved, 0)
        state[stream] = moved
        outputs[t, stream] = (c @ moved).real + ssm.feedthrough.detach() * u[t, stream]
    return outputs, state


def as_images(signals: Tensor) -> Tensor:
    """[T, B, C] to the [N, 1, 1, C] that the layer takes."""
    return signals.flatten(0, 1)[:, None, None]


# --- the equations ---


@pytest.mark.parametrize("official", [False, True], ids=["ours", "official"])
@pytest.mark.parametrize("step_scale", [1.0, 0.1, 2.0])
def test_layer_computes_the_equations(step_scale: float, official: bool) -> None:
    ssm, u = layer(official_state=official), drawn(5, 2, 6)
    y, state = ssm(as_images(u), None, 5, step_scale)
    expected, last = by_the_book(ssm, u, torch.zeros(2, 8, dtype=torch.complex128), torch.full((5, 2), step_scale))
    torch.testing.assert_close(y.view(5, 2, 6), expected)
    torch.testing.assert_close(as_complex(state).view(2, 8), last)


def test_every_window_may_have_its_own_rate() -> None:
    ssm, u, scales = layer(), drawn(6, 3, 6), torch.rand(6, 3, dtype=torch.float64) + 0.05
    before = drawn(3, 1, 1, 16, seed=2)
    y, state = ssm(as_images(u), before, 6, scales.flatten())
    expected, last = by_the_book(ssm, u, as_complex(before).view(3, 8), scales)
    torch.testing.assert_close(y.view(6, 3, 6), expected)
    torch.testing.assert_close(as_complex(state).view(3, 8), last)


def test_one_rate_may_be_given_as_a_number_or_for_each_window() -> None:
    ssm, u = layer(), drawn(6, 2, 3, 6)
    expected, last = ssm(u, None, 3, 0.4)
    for scale in (torch.tensor(0.4), torch.tensor([0.4]), torch.full((6,), 0.4)):
        y, state = ssm(u, None, 3, scale.double())
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(state, last)


@pytest.mark.parametrize("step_scale", [1.0, 0.1])
def test_steps_one_by_one_give_the_clip(step_scale: float) -> None:
    torch.manual_seed(0)
    block, x = S5Block(32).eval(), torch.randn(7 * 2, 4, 5, 32)
    with torch.no_grad():
        clip, last = block(x, None, 7, step_scale)
        state, outputs = None, []
        for window in x.chunk(7):
            y, state = block(window, state, 1, step_scale)
            outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs), clip, rtol=0, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=0, atol=1e-5)


def test_the_carried_state_reaches_the_output_unless_official() -> None:
    u, before = drawn(4, 1, 1, 6), drawn(2, 1, 1, 16, seed=2)
    for official in (False, True):
        ssm = layer(official_state=official)
        fresh, carried = ssm(u, None, 2)[0], ssm(u, before, 2)[0]
        assert torch.equal(fresh, carried) is official


# --- rates ---


def test_state_at_shared_times_is_the_same_at_20_and_at_200_hz() -> None:
    """A signal that is constant for 50 ms at a time is the same signal at both rates; its state is known exactly."""
    ssm, u = layer(official_state=True), drawn(8, 1, 6)
    eigenvalues, b = (torch.view_as_complex(part.detach()) for part in (ssm.eigenvalues, ssm.input_matrix))
    delta = torch.exp(ssm.log_step.detach())
    exact = torch.zeros(8, dtype=torch.complex128)
    for window in u[:, 0]:
        grown = torch.exp(eigenvalues * delta)
        exact = grown * exact + (grown - 1) / eigenvalues * (b @ window.to(b.dtype))
    at_20 = as_complex(ssm(as_images(u), None, 8, 1.0)[1]).flatten()
    at_200 = as_complex(ssm(as_images(u.repeat_interleave(10, 0)), None, 80, 0.1)[1]).flatten()
    slow = cycles_per_step(ssm.eigenvalues, delta) < BAND_LIMIT / 3
    assert slow.sum() >= 3
    error_20, error_200 = ((state - exact).abs() / exact.abs() for state in (at_20, at_200))
    assert error_20[slow].max() < 0.15
    assert error_200[slow].max() < 0.002  # of second order: ten times shorter steps, a hundred times less
    assert (at_20 - at_200)[slow].abs().max() < 0.15 * exact[slow].abs().max()


def test_output_for_a_slow_signal_is_the_same_at_20_and_at_200_hz() -> None:
    ssm = layer()
    with torch.no_grad():
        ssm.eigenvalues[:, 1] /= 40  # all modes within the band at both rates
        ssm.feedthrough.zero_()  # the state alone; the input itself is another at every moment of a window
    seconds = torch.arange(0.5, 400, dtype=torch.float64) / 200
    u = torch.stack([torch.sin(2 * math.pi * 0.4 * seconds + phase) for phase in range(6)], -1)[:, None]
    at_200 = ssm(as_images(u), None, 400, 0.1)[0][9::10]
    at_20 = ssm(as_images(u.view(40, 10, 1, 6).mean(1)), None, 40, 1.0)[0]
    assert (at_20 - at_200).abs().max() < 0.005 * at_200.abs().max()


def test_a_rate_may_change_within_a_recording() -> None:
    ssm, u = layer(official_state=False), drawn(2, 1, 6)
    with torch.no_grad():
        ssm.eigenvalues[:, 1] /= 40
    _, steady = ssm(as_images(u), None, 2, 1.0)
    _, state = ssm(as_images(u[:1]), None, 1, 1.0)
    _, changed = ssm(as_images(u[1:].repeat_interleave(10, 0)), state, 10, 0.1)
    assert (steady - changed).abs().max() < 0.01 * steady.abs().max()


@pytest.mark.parametrize("step_scale", [2.0, 1.0, 0.5, 0.1])
def test_modes_above_the_band_limit_of_the_rate_are_silent(step_scale: float) -> None:
    ssm, u = layer(), drawn(3, 1, 6)
    fast = cycles_per_step(ssm.eigenvalues, step_scale * torch.exp(ssm.log_step)) >= BAND_LIMIT
    _, state = ssm(as_images(u), torch.ones(1, 1, 1, 16, dtype=torch.float64), 3, step_scale)
    assert torch.equal(as_complex(state).flatten() == 0, fast)
    whole = ssm(as_images(u), None, 3, step_scale)[0]
    with torch.no_grad():
        ssm.output_matrix[:, fast] = 0
    ssm.official_state = True  # no mode is switched off any more, but the fast ones are not read
    torch.testing.assert_close(ssm(as_images(u), None, 3, step_scale)[0], whole)


def test_more_modes_are_heard_at_higher_rates() -> None:
    ssm = layer()
    heard = [
        int((cycles_per_step(ssm.eigenvalues, scale * torch.exp(ssm.log_step)) < BAND_LIMIT).sum())
        for scale in (4, 1, 0.1)
    ]
    assert heard[0] < heard[1] < heard[2] == 8


# --- training ---


def test_every_parameter_gets_a_gradient_and_silent_modes_get_none() -> None:
    torch.manual_seed(0)
    block = S5Block(64)
    block(torch.randn(6, 2, 2, 64), None, 3)[0].square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in block.parameters())
    ssm = block.ssm
    heard = cycles_per_step(ssm.eigenvalues, torch.exp(ssm.log_step)) < BAND_LIMIT
    assert 0 < heard.sum() < 64
    for parameter in (ssm.log_step, ssm.eigenvalues, ssm.input_matrix):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad.flatten(1).ne(0).any(1) if parameter.ndim > 1 else parameter.grad != 0, heard)


def test_autocast_leaves_the_layer_in_float32() -> None:
    torch.manual_seed(0)
    ssm, u, before = S5(32), torch.randn(4, 3, 3, 32), torch.randn(2, 3, 3, 64)
    plain = ssm(u, before, 2)
    with torch.autocast("cpu", torch.bfloat16):
        cast = ssm(u, before, 2)
    assert all(torch.equal(one, other) for one, other in zip(plain, cast, strict=True))
    assert ssm(u.bfloat16(), before, 2)[0].dtype == torch.float32


def test_block_is_finite_in_bfloat16_autocast() -> None:
    torch.manual_seed(0)
    block = S5Block(32)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = block(100 * torch.randn(42, 2, 2, 32), None, 21, torch.rand(42))
    (y.float().square().mean() + state.square().mean()).backward()
    assert y.isfinite().all()
    assert state.dtype == torch.float32
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in block.parameters())


def test_the_state_of_a_clip_does_not_hold_the_clip_in_memory() -> None:
    _, state = S5(4)(torch.randn(10, 2, 2, 4), None, 10)
    assert state.untyped_storage().nbytes() == state.numel() * 4


# --- beginnings ---


def test_modes_begin_as_those_of_hippo(golden_rule: ModuleType) -> None:
    ssm = S5(64)
    np.testing.assert_allclose(ssm.eigenvalues.detach(), golden_rule.hippo_lambda(64), rtol=1e-5, atol=1e-5)


def test_hippo_modes_diagonalise_a_normal_matrix() -> None:
    eigenvalues, vectors = hippo_modes(32)
    identity = torch.eye(32, dtype=torch.complex128)
    torch.testing.assert_close(vectors.mH @ vectors, identity, rtol=0, atol=1e-12)
    matrix = vectors @ torch.diag(torch.view_as_complex(eigenvalues)) @ vectors.mH
    assert matrix.imag.abs().max() < 1e-10
    torch.testing.assert_close((matrix.real + matrix.real.T) / 2, -identity.real / 2, rtol=0, atol=1e-10)


def test_parameters_begin_with_the_public_scales() -> None:
    torch.manual_seed(0)
    ssm = S5(256).requires_grad_(False)
    assert ssm.log_step.min() >= math.log(1e-3)
    assert ssm.log_step.max() <= math.log(1e-1)
    assert ssm.feedthrough.min() >= 0
    assert ssm.feedthrough.max() <= 1
    cut = 0.774  # variance of a unit normal cut at two deviations; the unitary change of basis keeps it
    variance = ssm.input_matrix.square().sum(-1).mean()
    assert variance == pytest.approx(cut * 0.8796**2 / 256, rel=0.03)
    within = cycles_per_step(ssm.eigenvalues, torch.exp(ssm.log_step)) < BAND_LIMIT
    assert torch.equal(ssm.output_matrix.ne(0).any(-1).any(0), within)
    kept = ssm.output_matrix[:, within].square().sum(-1).mean()
    assert kept == pytest.approx(2 * cut * 0.8796**2 / 256**2, rel=0.03)


@pytest.mark.parametrize("channels", [64, 128])
def test_parameters_are_as_many_as_the_public_ones(channels: int) -> None:
    assert sum(parameter.numel() for parameter in S5Block(channels).parameters()) == 7 * channels**2 + 8 * channels


# --- streaming ---


def test_a_frozen_layer_computes_the_same() -> None:
    torch.manual_seed(0)
    ssm, u, before = S5(16).eval(), torch.randn(2, 3, 3, 16), torch.randn(2, 3, 3, 32)
    expected = {scale: ssm(u, before, 1, scale) for scale in (0.1, 1.0)}
    ssm.freeze(0.1)
    for scale, outputs in expected.items():  # at the frozen rate and at another
        for one, other in zip(ssm(u, before, 1, scale), outputs, strict=True):
            assert torch.equal(one, other)


def test_training_forgets_what_was_frozen() -> None:
    ssm, u = S5(4).eval(), torch.randn(1, 2, 2, 4)
    ssm.freeze()
    ssm.train()
    with torch.no_grad():
        ssm.input_matrix.zero_()
    torch.testing.assert_close(ssm(u)[0], u * ssm.feedthrough)


def test_one_window_is_a_graph_of_real_tensors() -> None:
    block = S5Block(8).eval()
    example = (torch.randn(1, 4, 5, 8), torch.randn(1, 4, 5, 16))
    program = torch.export.export(block, example)
    kinds = {
        value.dtype for node in program.graph.nodes for value in [node.meta.get("val")] if isinstance(value, Tensor)
    }
    assert not any(kind.is_complex for kind in kinds)
    for one, other in zip(program.module()(*example), block(*example), strict=True):
        torch.testing.assert_close(one, other)


# --- the public code ---


@pytest.fixture
def official_block(golden_weights: Weights) -> S5Block:
    prefix = "mdl.backbone.stages.1.s5_block."
    weights = golden_weights("s5vit_b_gen1", prefix)
    block = S5Block(128, official_state=True).eval()
    names = rename_entries({f".s5_block.{key}": value for key, value in weights.items()}, RVT["backbone"])
    block.load_state_dict({key.removeprefix(".memory."): value for key, value in names.items()})
    return block


@pytest.mark.parametrize("scale", ["1.0", "0.5", "0.25", "0.2", "0.1"])
@torch.no_grad()
def test_layer_gives_known_outputs(official_block: S5Block, golden: Golden, scale: str) -> None:
    known = golden("s5vit_b")
    u = as_images(torch.from_numpy(known["unit_u"]).transpose(0, 1))  # stored as [B, T, C]
    y, state = official_block.ssm(u, None, 7, float(scale))
    np.testing.assert_allclose(y.view(7, 4, 128).transpose(0, 1), known[f"unit_s5_y_scale{scale}"], rtol=0, atol=1e-6)
    pairs = torch.stack(state.view(4, 256).chunk(2, -1), -1)
    np.testing.assert_allclose(pairs, known[f"unit_s5_state_scale{scale}"], rtol=0, atol=1e-6)


@torch.no_grad()
def test_block_gives_known_outputs(official_block: S5Block, golden: Golden) -> None:
    known = golden("s5vit_b")
    y, _ = official_block(as_images(torch.from_numpy(known["unit_u"]).transpose(0, 1)), None, 7)
    np.testing.assert_allclose(y.view(7, 4, 128).transpose(0, 1), known["unit_block_y"], rtol=0, atol=1e-5)


def test_a_longest_memory_limits_every_mode_at_every_rate() -> None:
    ssm = layer(modes=8)
    with torch.no_grad():
        ssm.eigenvalues[:, 1] = 0  # no oscillation, so that the state shows the time constant
        ssm.eigenvalues[:4, 0] = torch.tensor([0.5, 0.0, -1e-4, -1e-3])  # growing, still, and nearly still
    before = torch.rand(1, 1, 1, 16, dtype=torch.float64)
    before[..., 8:] = 0
    silence, hop_s = torch.zeros(1, 1, 1, 6, dtype=torch.float64), 0.05
    for hz in (20, 200):
        ratio = {}
        for longest in (None, 2.0):
            ssm.longest_memory_s, state = longest, before
            for _ in range(2 * hz):  # two seconds
                _, state = ssm(silence, state, 1, 20 / hz)
            ratio[longest] = (state / before)[0, 0, 0, :8].detach()
        own_s = -hop_s / (torch.exp(ssm.log_step) * ssm.eigenvalues[:, 0]).detach()
        slow = (own_s > 2) | (own_s <= 0)
        assert slow[:4].all()
        assert (ratio[None][slow] > math.exp(-1)).all()
        assert ratio[2.0][slow].numpy() == pytest.approx(math.exp(-1), rel=0.01)
        assert torch.equal(ratio[2.0][~slow], ratio[None][~slow])  # shorter memories stay as they are


def test_with_a_longest_memory_a_constant_input_ends_in_a_constant_state() -> None:
    ssm = layer()
    with torch.no_grad():
        ssm.eigenvalues[0] = torch.tensor([0.2, 0.0])
    inputs = drawn(1, 1, 1, 6)

    def state_after(steps: int) -> Tensor:
        state = None
        for _ in range(steps):
            _, state = ssm(inputs, state)
        assert state is not None
        return state

    assert state_after(2000).abs().max() > 1e3  # without a limit it grows
    ssm.longest_memory_s = 1.0
    assert torch.allclose(state_after(2000), state_after(1000), rtol=1e-6)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_longest_memory_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(FateError, match="longest_memory_s"):
        S5(4, longest_memory_s=seconds)
