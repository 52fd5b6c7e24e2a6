"""The history of images: its formula, exact equality at 50 ms, and independence of how time is divided into steps."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fate.errors import FateError
from fate.inference.fusing import fused
from fate.models import state as states
from fate.models.checkpoints import load_model, save_model
from fate.models.detector import Detector
from fate.models.layers.image_history import ImageHistory
from fate.training.loop import transfer
from tests.models.small_detectors import (
    batch_of,
    difference,
    rows,
    small_detector,
    some_windows,
    state_difference,
)
from tests.models.test_length_affine import of_lengths

pytestmark = pytest.mark.usefixtures("one_thread")
DETECTORS: dict[str, tuple[str, dict[str, Any]]] = {
    "s5": ("s5", {}),
    "lstm": ("lstm", {"encoder": "voxel"}),
    "with length_affine": ("s5", {"length_affine": True}),
    "evrt": ("evrt", {"recurrence": "time"}),
    "evrt with length_affine": ("evrt", {"length_affine": True}),
}
detectors = pytest.mark.parametrize("name", DETECTORS)


def pair(name: str) -> tuple[Detector, Detector]:
    """A detector without the option and one with it that started from its weights."""
    family, options = DETECTORS[name]
    plain, completed = small_detector(family, **options), small_detector(family, **options, image_history=True)
    transfer(plain, completed)
    return plain, completed


def layer_of(channels: int) -> ImageHistory:
    """A layer with parameters of its own for each channel, in double precision."""
    torch.manual_seed(1)
    layer = ImageHistory(channels).double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    return layer


def sparse_images(windows: int, channels: int, lengths_ms: list[float]) -> Tensor:
    """Images in which half of the cells are empty, with the length of each window as the last channel."""
    torch.manual_seed(2)
    images = torch.rand(windows, channels, 4, 5, dtype=torch.float64) - 0.3
    images *= torch.rand(windows, 1, 4, 5) < 0.5
    lengths = torch.tensor(lengths_ms, dtype=torch.float64).div(50).log().view(-1, 1, 1, 1)
    return torch.cat([images, lengths.expand(-1, 1, 4, 5)], dim=1)


def reference(layer: ImageHistory, images: Tensor, hops_ms: list[float], streams: int) -> Tensor:
    """The formula of the module, window by window and channel by channel."""
    results, channels = torch.zeros_like(images[:, :-1]), images.shape[1] - 1
    count_tau = 50 / math.exp(float(layer.count_log_rate))
    for stream in range(streams):
        history, count = torch.zeros(channels, 4, 5, dtype=torch.float64), torch.zeros(4, 5, dtype=torch.float64)
        for number in range(stream, len(images), streams):
            x, hop = images[number, :-1], hops_ms[number]
            length = 50 * math.exp(float(images[number, -1, 0, 0]))
            strength, share = max(0.0, 1 - length / 50), min(hop / length, 1.0)
            occupied = (x != 0).any(0).double()
            count = math.exp(-hop / count_tau) * count
            for channel in range(channels):
                tau = 50 / math.exp(float(layer.log_rate[channel]))
                history[channel] *= math.exp(-hop / tau)
                numerator = x[channel] + strength * float(layer.gain[channel]) * history[channel]
                results[number, channel] = numerator / (occupied + strength * count).clamp(min=1)
                history[channel] += share * x[channel]
            count = count + share * occupied
    return results


@torch.no_grad()
def test_it_computes_its_formula() -> None:
    layer, lengths, hops = layer_of(3), [5.0, 50, 10, 20, 12.5, 5], [5.0, 10, 10, 5, 12.5, 5]
    images, scale = sparse_images(6, 3, lengths), torch.tensor(hops, dtype=torch.float64) / 50
    found, _ = layer(images, steps=3, step_scale=scale)
    torch.testing.assert_close(found, reference(layer, images, hops, streams=2), rtol=1e-9, atol=1e-12)


def test_gradients_are_those_of_the_formula() -> None:
    layer, images = layer_of(2), sparse_images(4, 2, [5.0, 5, 10, 20])
    values = images[:, :-1].clone().requires_grad_()
    parameters = list(layer.parameters())

    def completed(values: Tensor, *weights: Tensor) -> Tensor:
        given = dict(zip(("log_rate", "count_log_rate", "gain"), weights, strict=True))
        inputs = (torch.cat([values, images[:, -1:]], dim=1), None, 4, 0.1)
        return torch.func.functional_call(layer, given, inputs)[0]  # type: ignore[no-any-return]

    # empty cells stay empty: a step of finite differences would fill them
    occupied = (values != 0).any(dim=1, keepdim=True)

    def of_occupied(values: Tensor, *weights: Tensor) -> Tensor:
        return completed(torch.where(occupied, values, 0.0), *weights)

    assert torch.autograd.gradcheck(of_occupied, (values, *parameters))


@detectors
@torch.no_grad()
def test_windows_of_50_ms_give_what_the_detector_without_it_gives(name: str) -> None:
    plain, completed = pair(name)
    batch = of_lengths(50_000, 50_000, 50_000, 50_000)
    for hop in (1.0, 0.1):
        (expected, state), (found, after) = (each(batch, steps=2, step_scale=hop) for each in (plain, completed))
        assert difference(found, expected) == 0
        assert state_difference(after[:2], state) == 0


@detectors
@torch.no_grad()
def test_shorter_windows_change_from_the_second_one_on(name: str) -> None:
    plain, completed = pair(name)
    batch = batch_of([window for window in some_windows(4) if window[0].duration_us < 50_000][:2])
    expected, found = plain(batch, steps=2)[0], completed(batch, steps=2)[0]
    assert difference(rows(found, [0]), rows(expected, [0])) == 0
    assert difference(rows(found, [1]), rows(expected, [1])) > 1e-3


@detectors
@torch.no_grad()
def test_a_clip_gives_what_its_windows_give_one_by_one(name: str) -> None:
    _, completed = pair(name)
    images, state = completed.encoder(of_lengths(5_000, 50_000, 12_500, 25_000)), None
    scale = torch.tensor([0.1, 0.2, 0.25, 0.5])
    clip, last = completed(images, steps=2, step_scale=scale)
    for step in range(2):
        two = slice(2 * step, 2 * step + 2)
        outputs, state = completed(images[two], state, step_scale=scale[two])
        assert difference(outputs, rows(clip, two)) < 1e-4
    assert state_difference(state, last) < 1e-4


@torch.no_grad()
def test_what_is_remembered_depends_on_time_and_not_on_steps() -> None:
    layer, images = layer_of(3), sparse_images(2, 3, [5.0, 5.0])
    empty = images[1:] * torch.tensor([0.0, 0, 0, 1], dtype=torch.float64).view(1, -1, 1, 1)
    _, state = layer(images[:1], step_scale=0.1)
    many = state
    for _ in range(10):
        _, many = layer(empty, many, step_scale=0.1)
    once, _ = layer(images[1:], state, step_scale=1.1)
    after_many, _ = layer(images[1:], many, step_scale=0.1)
    torch.testing.assert_close(after_many, once)
    assert (once - images[1:, :-1]).abs().max() > 1e-3


@torch.no_grad()
def test_cells_fade_without_new_events_and_with_one_time_constant_values_stay_in_the_range_of_their_images() -> None:
    layer, images = ImageHistory(3).double(), sparse_images(40, 3, [5.0] * 40)
    layer.log_rate.copy_(layer.count_log_rate.expand(3))
    found, state = layer(images, steps=40, step_scale=0.1)
    assert found.abs().max() <= images[:, :-1].abs().max() + 1e-12
    empty = images[:1] * torch.tensor([0.0, 0, 0, 1], dtype=torch.float64).view(1, -1, 1, 1)
    shown = []
    for _ in range(60):
        completed, state = layer(empty, state, step_scale=0.1)
        shown.append(float(completed.abs().sum()))
    assert all(later < earlier for earlier, later in pairwise(shown))
    assert shown[-1] < 1e-2 * shown[0]


@detectors
def test_gradients_reach_its_parameters_and_those_of_the_encoder(name: str) -> None:
    _, completed = pair(name)
    completed.train()
    features, _ = completed.features(completed.encoder(batch_of(some_windows(4))), steps=4, step_scale=0.1)
    sum(maps.square().mean() for maps in features).backward()  # type: ignore[union-attr]
    assert completed.history is not None
    for key, weight in completed.history.named_parameters():
        assert weight.grad is not None, key
        assert weight.grad.abs().max() > 0, key


@detectors
@torch.no_grad()
def test_a_fused_detector_computes_the_same(name: str) -> None:
    _, completed = pair(name)
    batch = batch_of(some_windows(4))
    assert difference(fused(completed)(batch, steps=4)[0], completed(batch, steps=4)[0]) < 1e-4


@torch.no_grad()
def test_a_reset_stream_starts_like_a_new_one() -> None:
    _, completed = pair("s5")
    images = completed.encoder(of_lengths(5_000, 10_000))
    _, state = completed(images, step_scale=0.1)
    kept, _ = completed(images, completed.reset(state, torch.tensor([True, False])), step_scale=0.1)
    fresh, _ = completed(images, step_scale=0.1)
    assert difference(rows(kept, [0]), rows(fresh, [0])) == 0
    assert difference(rows(kept, [1]), rows(fresh, [1])) > 1e-3


def test_a_detector_is_built_again_from_the_header_of_its_weights(tmp_path: Path) -> None:
    _, completed = pair("evrt")
    save_model(completed, tmp_path / "weights.safetensors")
    loaded, batch = load_model(tmp_path / "weights.safetensors"), batch_of(some_windows(4))
    with torch.no_grad():
        assert difference(loaded(batch, steps=4)[0], completed(batch, steps=4)[0]) == 0


def test_a_state_of_another_detector_or_of_other_streams_is_refused() -> None:
    plain, completed = pair("s5")
    images = completed.encoder(of_lengths(5_000, 10_000)).detach()
    _, without = plain(images[:, :-1])
    with pytest.raises(FateError, match="state of another model"):
        completed(images, without)
    _, state = completed(images)
    one = (*state[:2], states.mapped(lambda part: part[:1], state[2]))
    with pytest.raises(FateError, match="1 streams .* 2 streams"):
        completed(images, one)
    small = (*state[:2], states.mapped(lambda part: part[..., :-1], state[2]))
    with pytest.raises(FateError, match="37.* 38"):
        completed(images, small)


def test_an_encoder_whose_empty_cells_are_not_zero_is_refused() -> None:
    with pytest.raises(FateError, match="image_history.*tore"):
        small_detector("lstm", "tore", image_history=True)


def test_its_weights_are_refused_by_a_detector_without_it() -> None:
    plain, completed = pair("s5")
    with pytest.raises(FateError, match="image_history"):
        transfer(completed, plain)
