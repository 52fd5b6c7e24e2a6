"""Events to image in one call for each thread, compared with the several steps of training."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from fate.encoding import pillars
from fate.encoding.batch import EventBatch
from fate.encoding.kernels import cpu_inference, cpu_kernels, cpu_loops
from fate.encoding.kernels.cpu_inference import ImageMemory
from fate.encoding.pillars import PillarEncoder
from fate.encoding.spec import PillarSpec, PillarStats

from .conftest import SENSOR, Row, batch_of, crowded, make_encoder, rows_of_events, special_batches

OPTIONS: list[dict[str, Any]] = [
    {},
    {"max_events": 3, "max_pillars": 20},
    {"max_events": None, "max_pillars": None},
    {"pillar": 1, "center_offsets": True},
    {"pillar": 4, "weighting": "uniform", "max_events": 5},
    {"pillar": 8, "max_pillars": 1},
]


def both_ways(encoder: PillarEncoder, batch: EventBatch) -> tuple[Tensor, Tensor, PillarStats, PillarStats]:
    """Image at once, image step by step, and the counts of each."""
    with torch.no_grad():
        chosen = pillars.kernel_for(torch.device("cpu"), torch.float32, encoder.spec, encoder.channels)
        assert chosen is cpu_inference
        image, counts = encoder(batch), encoder.last_stats
        with patch.object(pillars, "kernel_for", lambda *_: cpu_kernels):
            stepwise, expected = encoder(batch), encoder.last_stats
    assert counts is not None
    assert expected is not None
    return image, stepwise, counts, expected


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_at_once_equals_step_by_step_for_any_number_of_threads(options: dict[str, Any], threads: int) -> None:
    encoder = make_encoder(channels=32, **options)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    batches = [crowded(seed) for seed in range(4)] + [batch_of([(5, 3, 3, 1)]), batch_of([])]
    try:
        with (
            patch.object(cpu_inference, "FEW_EVENTS", 0),
            patch.object(cpu_inference, "split_pillars", wraps=cpu_loops.split_pillars) as split,
        ):
            for batch in batches:
                image, stepwise, counts, expected = both_ways(encoder, batch)
                torch.testing.assert_close(image, stepwise, rtol=1e-5, atol=1e-5)
                assert counts == expected
        assert split.called == (threads > 1)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("channels", [16, 32, 48, 64, 112])
def test_at_once_equals_step_by_step_for_blocks_of_all_widths(channels: int) -> None:
    image, stepwise, counts, expected = both_ways(make_encoder(channels=channels), crowded(1))
    torch.testing.assert_close(image, stepwise, rtol=1e-5, atol=1e-5)
    assert counts == expected


@pytest.mark.parametrize("weighting", ["trapezoid", "uniform"])
@pytest.mark.parametrize("name", special_batches())
def test_at_once_equals_step_by_step_on_special_windows(name: str, weighting: str) -> None:
    encoder = make_encoder(channels=16, max_events=4, weighting=weighting)
    image, stepwise, counts, expected = both_ways(encoder, special_batches()[name])
    torch.testing.assert_close(image, stepwise, rtol=1e-5, atol=1e-5)
    assert counts == expected


@given(rows_of_events())
@settings(max_examples=60, deadline=None)
def test_at_once_equals_step_by_step_on_any_events(rows: list[Row]) -> None:
    image, stepwise, counts, expected = both_ways(make_encoder(channels=16, max_pillars=7), batch_of(rows))
    torch.testing.assert_close(image, stepwise, rtol=1e-5, atol=1e-5)
    assert counts == expected


def test_the_image_does_not_depend_on_how_many_threads_share_it() -> None:
    encoder, batch, before = make_encoder(channels=16), crowded(3), torch.get_num_threads()
    images = []
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            with torch.no_grad(), patch.object(cpu_inference, "FEW_EVENTS", 0):
                images.append(encoder(batch))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(images[0], images[1])
    assert torch.equal(images[0], images[2])


@pytest.mark.parametrize(("threads", "few_events"), [(1, 0), (2, 0), (5, 0), (2, cpu_inference.FEW_EVENTS)])
def test_a_stream_that_keeps_its_images_gets_the_same_ones(threads: int, few_events: int) -> None:
    encoder, memory, before = make_encoder(channels=16, max_pillars=40), ImageMemory(), torch.get_num_threads()
    empty = batch_of([], [], [])
    batches = [crowded(0), crowded(1), empty, crowded(2), batch_of([(5, 3, 3, 1)]), crowded(3), crowded(4)]
    torch.set_num_threads(threads)
    try:
        with (
            torch.no_grad(),
            patch.object(cpu_inference, "FEW_EVENTS", few_events),
        ):
            for batch in batches:
                assert torch.equal(encoder(batch, memory), encoder(batch))
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def test_spare_channels_of_kept_images_are_those_of_the_caller() -> None:
    encoder, memory = make_encoder(channels=16, max_pillars=40), ImageMemory(spare=2)
    for number in range(5):
        images = encoder(crowded(number), memory)
        assert torch.equal(images[:, :16], encoder(crowded(number)))
        assert images[:, 16:].unique().tolist() == [float(number)]
        images[:, 16:] = number + 1
    encoder.linear.weight[3, 2] = float("nan")
    assert encoder(crowded(1), memory)[:, [3, 16]].isnan().any((0, 2, 3)).tolist() == [True, False]


def test_a_kept_image_has_no_trace_of_a_channel_that_had_diverged() -> None:
    encoder, memory = make_encoder(channels=16), ImageMemory()
    with torch.no_grad():
        weight = encoder.linear.weight.clone()
        encoder.linear.weight[3, 2] = float("nan")
        assert encoder(crowded(1), memory)[:, 3].isnan().all()
        encoder.linear.weight.copy_(weight)
        assert torch.equal(encoder(crowded(2), memory), encoder(crowded(2)))


def test_parts_have_every_pillar_once_and_cost_about_the_same() -> None:
    draw = np.random.default_rng(2)
    cells = np.flatnonzero(draw.random(900) < 0.4)
    sizes = draw.integers(1, 30, len(cells))
    pillars = np.stack([cells, sizes.cumsum() - sizes, sizes], 1).astype(np.int32)
    cost = cpu_loops.EVENT * sizes + cpu_loops.PILLAR + cpu_loops.EMPTY * np.diff(cells, prepend=0)
    for parts in (1, 2, 3, 9, 1000):
        firsts = cpu_loops.split_pillars(pillars, parts)
        assert (len(firsts), firsts[0], firsts[-1]) == (parts + 1, 0, len(pillars))
        assert (np.diff(firsts) >= 0).all()
        shares = [cost[one:other].sum() for one, other in pairwise(firsts)]
        assert max(shares) <= cost.sum() / parts + cost.max()
    assert cpu_loops.split_pillars(pillars[:0], 3).tolist() == [0, 0, 0, 0]


def test_a_channel_that_has_diverged_shows() -> None:
    encoder = make_encoder(channels=16)
    with torch.no_grad():
        encoder.linear.weight[3, 2] = float("nan")
        encoder.alpha[5, 1] = float("inf")  # type: ignore[index]
        image = encoder(crowded(1))
    assert image[:, [3, 5]].isnan().all()
    assert image[:, [0, 1, 2, 4, *range(6, 16)]].isfinite().all()


def test_what_is_not_made_for_goes_the_other_way() -> None:
    spec = PillarSpec(SENSOR)  # type: ignore[arg-type]
    assert cpu_inference.can_encode(spec, 64, torch.float32)
    assert not cpu_inference.can_encode(spec, 64, torch.float64)
    assert not cpu_inference.can_encode(spec, cpu_inference.WIDTH + 1, torch.float32)
    assert not cpu_inference.can_encode(PillarSpec(SENSOR, moments=2), 64, torch.float32)  # type: ignore[arg-type]
    assert not cpu_inference.can_encode(PillarSpec(SENSOR, pooling="max"), 64, torch.float32)  # type: ignore[arg-type]
