"""The history of images in one pass on a CPU: the values of the operations in PyTorch, and whose memory is changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fate.models import state as states
from fate.models.layers import image_history_cpu
from fate.models.layers.image_history import History, ImageHistory

HEIGHT, WIDTH = 6, 7
STEPS = [1, 3]


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"], autouse=True)
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(image_history_cpu, "FEW_VALUES", 0)
    usual = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(usual)


def layers(channels: int, keep_length: bool = False) -> tuple[ImageHistory, ImageHistory]:
    """The layer with its kernel, and the one in PyTorch; each channel has parameters of its own."""
    torch.manual_seed(1)
    compiled = ImageHistory(channels, keep_length)
    with torch.no_grad():
        for weight in compiled.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    plain = ImageHistory(channels, keep_length)
    plain.load_state_dict(compiled.state_dict())
    plain.compiled = False
    return compiled, plain


def images_of(windows: int, channels: int, lengths_ms: Tensor, filled: float = 0.3) -> Tensor:
    """Images in which a part of the cells have values, channels last in memory; the last channel is the length."""
    values = torch.randn(windows, channels, HEIGHT, WIDTH) * (torch.rand(windows, 1, HEIGHT, WIDTH) < filled)
    values[:, 0, 0, 0] = -0.0
    length = (lengths_ms / 50).log().view(-1, 1, 1, 1).expand(-1, 1, HEIGHT, WIDTH)
    return torch.cat([values, length], dim=1).contiguous(memory_format=torch.channels_last)


def random_lengths(windows: int) -> Tensor:
    """5 to 50 ms; often exactly 50 ms."""
    return (5 + 70 * torch.rand(windows)).clamp(max=50)


def assert_near(found: tuple[Tensor, History], expected: tuple[Tensor, History]) -> None:
    for ours, theirs in zip(states.tensors(found), states.tensors(expected), strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("reuse_state", [False, True])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("channels", "streams", "keep_length"), [(3, 2, False), (16, 1, True), (37, 3, True)])
def test_it_computes_what_the_operations_in_pytorch_do(
    channels: int, streams: int, keep_length: bool, steps: int, reuse_state: bool
) -> None:
    compiled, plain = layers(channels, keep_length)
    state, expected_state = None, None
    for call in range(12):
        windows = steps * streams
        lengths = random_lengths(windows)
        hops = (lengths / 50 * (0.2 + torch.rand(windows))) if call % 3 else 0.1
        images = images_of(windows, channels, lengths, filled=0.3 if call % 4 else 0.0)
        before = images.clone()
        found = compiled(images, state, steps, hops, reuse_state)
        expected = plain(images, expected_state, steps, hops)
        assert_near(found, expected)
        assert torch.equal(images, before)
        state, expected_state = found[1], expected[1]
        if call == 6:
            mask = torch.arange(streams) % 2 == 0
            state, expected_state = (states.reset(each, mask) for each in (state, expected_state))


@torch.no_grad()
@pytest.mark.parametrize("steps", STEPS)
def test_the_given_state_is_changed_only_if_it_may_be_reused(steps: int) -> None:
    compiled, _ = layers(16)
    images = images_of(2 * steps, 16, random_lengths(2 * steps))
    _, state = compiled(images, None, steps, 0.1)
    kept = states.mapped(Tensor.clone, state)
    expected = compiled(images, state, steps, 0.1)
    assert all(torch.equal(a, b) for a, b in zip(state, kept, strict=True))
    found = compiled(images, state, steps, 0.1, reuse_state=True)
    assert_near(found, expected)
    assert [part.data_ptr() for part in found[1]] == [part.data_ptr() for part in state]


@torch.no_grad()
@pytest.mark.parametrize("channels", [4, 16])
def test_cells_fade_to_zero_and_fill_again(channels: int) -> None:
    compiled, plain = layers(channels)
    lengths = torch.full((1,), 5.0)
    state, expected_state = None, None
    for call in range(500):
        images = images_of(1, channels, lengths, filled=0.5 if call in (0, 450) else 0.0)
        found, state = compiled(images, state, 1, 0.1, call % 2 == 0)
        expected, expected_state = plain(images, expected_state, 1, 0.1)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        if call == 449:
            assert not any(part.any() for part in (found, *state))
    assert state is not None
    assert state[1].any()


@torch.no_grad()
@pytest.mark.parametrize("keep_length", [False, True])
def test_images_of_50_ms_are_returned_without_a_copy(keep_length: bool) -> None:
    compiled, plain = layers(5, keep_length)
    state = expected_state = None
    for length in (50.0, 50.0, 5.0):
        images = images_of(1, 5, torch.full((1,), length))
        found, state = compiled(images, state)
        expected, expected_state = plain(images, expected_state)
        assert_near((found, state), (expected, expected_state))
        assert (found.data_ptr() == images.data_ptr()) == (length == 50)


@torch.no_grad()
def test_images_and_states_may_have_any_order_in_memory() -> None:
    compiled, plain = layers(16)
    state = None
    for _ in range(3):
        images = images_of(2, 16, random_lengths(2))
        expected, after = plain(images, state, step_scale=0.1)
        found = compiled(images.contiguous(), states.mapped(Tensor.contiguous, state), step_scale=0.1)
        assert_near(found, (expected, after))
        state = after


@torch.no_grad()
def test_other_types_are_left_to_pytorch() -> None:
    compiled, plain = (layer.double() for layer in layers(3))
    images = images_of(1, 3, torch.full((1,), 5.0)).double()
    assert_near(compiled(images), plain(images))


def test_gradients_are_left_to_pytorch() -> None:
    compiled, _ = layers(3)
    images = images_of(2, 3, torch.full((2,), 5.0))
    compiled(images, None, 2, 0.1)[0].sum().backward()
    assert compiled.gain.grad is not None
    assert compiled.gain.grad.abs().max() > 0
