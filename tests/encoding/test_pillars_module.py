"""PillarEncoder as a module: types of numbers, parameters, copies, and what it refuses."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from fate.encoding.batch import EventBatch
from fate.encoding.pillars import PillarEncoder
from fate.errors import FateError
from tests.encoding.conftest import SENSOR, batch_of, crowded, make_encoder, outcome, window_of

TIGHT: dict[str, Any] = {"max_events": 2, "max_pillars": 4}


# --- types of numbers ---


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_autocast_keeps_the_moments_in_float32(kind: torch.dtype, training: bool) -> None:
    batch = crowded()
    plain, cast = (make_encoder().train(training) for _ in range(2))
    wanted = outcome(plain, batch)
    with torch.autocast("cpu", dtype=kind):
        got = outcome(cast, batch)
    assert got.image.dtype == torch.float32
    assert torch.equal(got.image, wanted.image)
    assert all(torch.equal(got.gradients[name], part) for name, part in wanted.gradients.items())
    assert plain.norm.running_var is not None
    assert torch.equal(plain.norm.running_var, cast.norm.running_var)
    with torch.no_grad():
        image = plain.eval()(batch)
        with torch.autocast("cpu", dtype=kind):
            assert torch.equal(cast.eval()(batch), image)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_parameters_give_the_float32_image_rounded_once(kind: torch.dtype) -> None:
    rounded = make_encoder().to(kind)
    image = rounded(crowded())
    assert image.dtype == kind
    assert torch.equal(image, copy.deepcopy(rounded).float()(crowded()).to(kind))
    with torch.no_grad():
        assert torch.equal(rounded(crowded()), image)


# --- the module ---


@pytest.mark.parametrize(
    ("options", "per_channel"),
    [
        ({}, 14),
        ({"center_offsets": True}, 16),
        ({"moments": 1}, 12),
        ({"moments": 5}, 16),
        ({"pooling": "max"}, 10),
        ({"pillar": 8, "weighting": "uniform"}, 14),
    ],
)
def test_there_are_as_many_parameters_as_the_paper_counts(options: dict[str, Any], per_channel: int) -> None:
    for channels in (64, 20):
        encoder = PillarEncoder((240, 304), channels=channels, **options)
        assert sum(parameter.numel() for parameter in encoder.parameters()) == per_channel * channels
    if not options:
        assert 64 * per_channel == 896


def test_an_encoder_tells_its_channels_and_stride() -> None:
    encoder = PillarEncoder((240, 304), pillar=4, channels=32)
    assert (encoder.channels, encoder.stride, encoder.sensor) == (32, 4, (240, 304))
    batch = EventBatch.from_windows([window_of([(1, 303, 239, 1)], sensor=(240, 304))])
    assert encoder(batch).shape == (1, 32, 60, 76)
    for part in ("304×240", "pillar=4", "channels=32", "moments=3", "max_events=32", "max_pillars=16000", "trapezoid"):
        assert part in repr(encoder)


def test_a_new_encoder_begins_near_the_mean_over_time() -> None:
    encoder = PillarEncoder(SENSOR, channels=512)
    assert encoder.alpha is not None
    assert encoder.beta is not None
    assert encoder.alpha[:, 0].mean().item() == pytest.approx(1, abs=0.01)
    assert encoder.alpha[:, 1:].abs().max() < 0.2
    assert not encoder.beta.any()


@pytest.mark.parametrize("again", [lambda encoder: pickle.loads(pickle.dumps(encoder)), copy.deepcopy])
def test_an_encoder_can_be_copied_before_and_after_a_call(again: Any) -> None:
    encoder, batch = make_encoder(**TIGHT), crowded()
    image = again(encoder)(batch)
    assert torch.equal(encoder(batch), image)
    assert torch.equal(again(encoder)(batch), image)


def test_parameters_come_back_from_a_file() -> None:
    encoder, other = make_encoder(), PillarEncoder(SENSOR, channels=5)
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other.eval()(crowded()), encoder(crowded()))


def test_frozen_parameters_get_no_gradient() -> None:
    encoder = make_encoder()
    encoder.linear.requires_grad_(False)
    encoder(crowded()).sum().backward()
    assert encoder.linear.weight.grad is None
    assert encoder.norm.weight.grad is not None
    with torch.no_grad():
        assert not encoder(crowded()).requires_grad


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"moments": 0}, "moments=0 was given"),
        ({"moments": 2.0}, "moments=2.0 was given"),
        ({"channels": 0}, "channels=0 was given"),
        ({"channels": True}, "channels=True was given"),
        ({"max_events": 0}, "max_events=0 was given"),
        ({"max_events": -3}, "max_events=-3 was given"),
        ({"max_pillars": 0}, "max_pillars=0 was given"),
        ({"max_pillars": 1.5}, "max_pillars=1.5 was given"),
        ({"pillar": 0}, "pillar=0 was given"),
        ({"pillar": 24}, "pillar=24 was given for a 31×23 frame"),
        ({"pillar": 65, "sensor": (240, 304)}, "pillar=65 was given .*expected 1 to 64"),
        ({"weighting": "trapez"}, "weighting='trapez' was given; expected one of 'trapezoid', 'uniform'"),
        ({"pooling": "mean"}, "pooling='mean' was given; expected one of 'legendre', 'max'"),
        ({"center_offsets": "yes"}, "center_offsets='yes' was given"),
        ({"seed": -1}, "seed=-1 was given"),
        ({"seed": 0.5}, "seed=0.5 was given"),
        ({"sensor": (0, 304)}, "sensor .* was given; each side must be 1"),
        ({"sensor": 240}, "sensor 240 was given"),
    ],
)
def test_options_that_cannot_be_are_refused_by_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FateError, match=message):
        PillarEncoder(**{"sensor": SENSOR, **options})


def test_the_largest_pillar_is_the_frame() -> None:
    encoder = make_encoder((23, 23), pillar=23)
    assert encoder(batch_of([(1, 22, 22, 1)], sensor=(23, 23))).shape == (1, 5, 1, 1)


@pytest.mark.parametrize("what", [None, torch.zeros(3), [(1, 2, 3, 4)], window_of([(1, 2, 3, 1)])])
def test_anything_but_a_batch_is_refused(what: Any) -> None:
    with pytest.raises(FateError, match=f"{type(what).__name__} was given; expected an EventBatch"):
        make_encoder()(what)


def test_events_of_another_sensor_are_refused() -> None:
    with pytest.raises(FateError, match="31×23 sensor were given; this encoder is for 23×31"):
        make_encoder((31, 23))(crowded())


def test_events_on_another_device_are_refused() -> None:
    with pytest.raises(FateError, match="events are on meta, the encoder on cpu"):
        make_encoder()(crowded().to("meta"))
    with pytest.raises(FateError, match="events are on cpu, the encoder on meta"):
        make_encoder().to("meta")(crowded())


@pytest.mark.parametrize("pooling", ["legendre", "max"])
@pytest.mark.parametrize("gradients", [False, True])
def test_with_batchnorm_folded_once_the_image_is_the_same(pooling: str, gradients: bool) -> None:
    encoder, batch = make_encoder(pooling=pooling), crowded()
    with torch.set_grad_enabled(gradients):
        image = encoder(batch)
        encoder.fold_norm_()
        torch.testing.assert_close(encoder(batch), image, rtol=1e-5, atol=1e-5)
