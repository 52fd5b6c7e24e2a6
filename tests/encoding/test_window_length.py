"""The length of windows as the last channel of an image."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from fate.encoding.batch import EventBatch
from fate.encoding.grids import ToreVolume, VoxelGrid
from fate.encoding.kernels.cpu_inference import ImageMemory
from fate.encoding.pillars import PillarEncoder
from fate.encoding.window_length import WindowLength, append_length
from tests.encoding.conftest import SENSOR, crowded, window_of

ENCODERS = [PillarEncoder(SENSOR, channels=5), VoxelGrid(SENSOR), ToreVolume(SENSOR)]
encoders = pytest.mark.parametrize("encoder", ENCODERS, ids=lambda encoder: type(encoder).__name__)


def of_lengths(*durations_us: int) -> EventBatch:
    """A batch of windows with one event each."""
    return EventBatch.from_windows([window_of([(7, 3, 4, 1)], duration_us) for duration_us in durations_us])


@encoders
@torch.no_grad()
def test_the_last_channel_is_the_logarithm_of_the_length_and_the_others_are_those_of_the_encoder(encoder: Any) -> None:
    encoder, batch = encoder.eval(), crowded()
    images, plain = WindowLength(encoder)(batch), encoder(batch)
    assert torch.equal(images[:, :-1], plain)
    for image, duration_us in zip(images, batch.duration_us.tolist(), strict=True):
        assert image[-1].unique().tolist() == pytest.approx([math.log(duration_us / 50_000)])


@pytest.mark.parametrize("channels", [5, 16])  # with and without a kernel that keeps images
@pytest.mark.parametrize("spare", [0, 1])
@torch.no_grad()
def test_images_that_are_kept_have_the_length_of_their_own_window(channels: int, spare: int) -> None:
    encoder, memory = WindowLength(PillarEncoder(SENSOR, channels=channels)).eval(), ImageMemory(spare)
    for durations_us in ((5_000,), (5_000,), (50_000,), (5_000, 20_000), (7_000, 20_000)):
        batch = of_lengths(*durations_us)
        assert torch.equal(encoder(batch, memory), encoder(batch))
    with torch.no_grad():
        weight = encoder.encoder.linear.weight.clone()
        encoder.encoder.linear.weight.fill_(math.nan)
        encoder(batch, memory)
        encoder.encoder.linear.weight.copy_(weight)
    assert torch.equal(encoder(batch, memory), encoder(batch))


@torch.no_grad()
def test_windows_of_50_ms_have_exactly_zero_and_those_of_5_ms_have_minus_ln_10() -> None:
    images = WindowLength(VoxelGrid(SENSOR))(of_lengths(50_000, 5_000, 100_000))
    assert images[0, -1].unique().tolist() == [0.0]
    assert images[1:, -1, 0, 0].tolist() == pytest.approx([-math.log(10), math.log(2)])


@encoders
def test_what_others_read_from_an_encoder_is_that_of_the_encoder_inside(encoder: Any) -> None:
    outer = WindowLength(encoder)
    assert (outer.sensor, outer.stride, outer.channels) == (encoder.sensor, encoder.stride, encoder.channels + 1)
    assert outer.empty_value == getattr(encoder, "empty_value", 0.0)
    assert len(list(outer.parameters())) == len(list(encoder.parameters()))


@torch.no_grad()
def test_what_caps_dropped_can_be_read() -> None:
    encoder = WindowLength(PillarEncoder(SENSOR, channels=5, max_events=2)).eval()
    assert encoder.last_stats is None
    encoder(crowded())
    assert encoder.last_stats.events_dropped > 0
    assert WindowLength(VoxelGrid(SENSOR)).last_stats is None


@torch.no_grad()
def test_images_keep_their_type_and_channels_last() -> None:
    images = torch.randn(2, 4, 6, 8)
    durations_us = torch.tensor([5_000, 50_000])
    assert append_length(images, durations_us).is_contiguous()
    last = images.to(memory_format=torch.channels_last)
    assert append_length(last, durations_us).is_contiguous(memory_format=torch.channels_last)
    assert append_length(images.bfloat16(), durations_us).dtype == torch.bfloat16


def test_gradients_reach_the_encoder_inside() -> None:
    encoder = WindowLength(PillarEncoder(SENSOR, channels=5)).train()
    assert isinstance(encoder, nn.Module)
    encoder(crowded()).square().mean().backward()
    assert all(weight.grad is not None for weight in encoder.parameters())
