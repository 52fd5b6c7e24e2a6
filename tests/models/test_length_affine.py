"""Parameters that depend on the length of windows: no effect at 50 ms or at zero, an effect on short windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.window import Window
from fate.inference.fusing import fused
from fate.models.checkpoints import load_model, save_model
from fate.models.detector import Detector
from fate.models.layers.length_affine import LengthAffine, split_length
from fate.models.zoo import build_model
from tests.models.small_detectors import (
    CLASSES,
    SENSOR,
    batch_of,
    difference,
    rows,
    small_detector,
    some_windows,
    state_difference,
)

pytestmark = pytest.mark.usefixtures("one_thread")
#: Detectors of both backbones, with stages of every kind, encoders of several strides and padding that is not zero.
DETECTORS: dict[str, tuple[str, dict[str, Any]]] = {
    "s5": ("s5", {}),
    "lstm": ("lstm", {"encoder": "tore"}),
    "lean": ("s5", {"kinds": ("plain", "convolution", "global", "attention"), "depthwise": True}),
    "upsampled": ("s5", {"encoder_options": {"pillar": 4}, "stem": "upsample"}),
    "evrt": ("evrt", {}),
    "evrt-histogram": ("evrt", {"encoder": "evrt-histogram"}),
}
detectors = pytest.mark.parametrize("name", DETECTORS)


def pair(name: str) -> tuple[Detector, Detector]:
    """A detector without the option and one with it, whose other weights are the same."""
    family, options = DETECTORS[name]
    plain = small_detector(family, **options)
    conditioned = small_detector(family, **options, length_affine=True)
    weights = {key.replace("encoder.", "encoder.encoder.", 1) if key.startswith("encoder.") else key: value
               for key, value in plain.state_dict().items()}  # fmt: skip
    missing, unexpected = conditioned.load_state_dict(weights, strict=False)
    assert all(".length_affine." in key for key in missing)
    assert not unexpected
    return plain, conditioned


def parameters_of_length(detector: Detector) -> dict[str, Tensor]:
    return {name: weight for name, weight in detector.named_parameters() if ".length_affine." in name}


def of_lengths(*durations_us: int) -> EventBatch:
    """Windows of these lengths, all with the same 5 ms of events at their start."""
    _, events = some_windows(1)[0]
    first = int(events.t_us[0])
    events = events.between(first, first + 5_000)
    assert len(events) > 50
    return batch_of([(Window(first, first + duration_us), events) for duration_us in durations_us])


@detectors
@torch.no_grad()
def test_with_zero_parameters_the_outputs_are_those_of_the_plain_detector_at_any_length(name: str) -> None:
    plain, conditioned = pair(name)
    for weight in parameters_of_length(conditioned).values():
        weight.zero_()
    batch = batch_of(some_windows(4))  # of 5 to 50 ms
    (expected, state), (found, after) = plain(batch, steps=2), conditioned(batch, steps=2)
    assert difference(found, expected) == 0
    assert state_difference(after, state) == 0


@detectors
@torch.no_grad()
def test_only_windows_of_another_length_than_50_ms_change(name: str) -> None:
    plain, conditioned = pair(name)
    assert all(bool((weight != 0).all()) for weight in parameters_of_length(conditioned).values())
    batch = of_lengths(5_000, 50_000, 12_500, 50_000)
    expected, found = plain(batch, step_scale=1.0)[0], conditioned(batch, step_scale=1.0)[0]
    assert difference(rows(found, [1, 3]), rows(expected, [1, 3])) == 0
    for changed in (0, 2):
        assert difference(rows(found, [changed]), rows(expected, [changed])) > 1e-3


@detectors
def test_every_stage_has_parameters_and_gradients_reach_them(name: str) -> None:
    _, conditioned = pair(name)
    own = parameters_of_length(conditioned)
    assert len(own) == (8 if "evrt" not in name else 10)  # four stages, and the stem of PResNet
    features, _ = conditioned.train().features(conditioned.encoder(of_lengths(5_000, 50_000, 20_000)))
    sum(maps.square().mean() for maps in features).backward()  # type: ignore[union-attr]
    for key, weight in own.items():
        assert weight.grad is not None, key
        assert weight.grad.abs().max() > 0, key


def test_windows_of_50_ms_give_no_gradient() -> None:
    _, conditioned = pair("lean")
    features, _ = conditioned.train().features(conditioned.encoder(of_lengths(50_000, 50_000)))
    sum(maps.square().mean() for maps in features).backward()  # type: ignore[union-attr]
    for weight in parameters_of_length(conditioned).values():
        assert weight.grad is not None
        assert weight.grad.abs().max() == 0


@detectors
@torch.no_grad()
def test_a_fused_detector_computes_the_same(name: str) -> None:
    _, conditioned = pair(name)
    batch = batch_of(some_windows(4))
    assert difference(fused(conditioned)(batch)[0], conditioned(batch)[0]) < 1e-4


@detectors
@torch.no_grad()
def test_bfloat16_is_near(name: str) -> None:
    plain, conditioned = pair(name)
    images = conditioned.encoder(of_lengths(5_000, 20_000))
    exact, without = conditioned.features(images)[0], plain.features(images[:, :-1])[0]
    with torch.autocast("cpu", torch.bfloat16):
        near = conditioned.features(images)[0]
    for rounded, maps, other in zip(near, exact, without, strict=True):
        assert (rounded - maps).abs().mean() < 0.2 * (maps - other).abs().mean()


@torch.no_grad()
def test_a_clip_gives_what_its_windows_give_one_by_one() -> None:
    for name in ("lean", "evrt"):
        _, conditioned = pair(name)
        images, state = conditioned.encoder(of_lengths(5_000, 50_000, 12_500, 25_000)), None
        clip, last = conditioned(images, steps=2, step_scale=1.0)
        for step in range(2):
            outputs, state = conditioned(images[2 * step : 2 * step + 2], state, step_scale=1.0)
            assert difference(outputs, rows(clip, slice(2 * step, 2 * step + 2))) < 1e-4
        assert state_difference(state, last) < 1e-4


@pytest.mark.parametrize("axis", [1, -1])
@torch.no_grad()
def test_a_layer_computes_its_formula(axis: int) -> None:
    layer, length = LengthAffine(4, axis), torch.tensor([0.0, -2.3, 0.7])
    layer.scale.normal_()
    layer.offset.normal_()
    x = torch.randn(3, 4, 5, 6)
    side = (slice(None), None, None)
    expected = torch.stack([
        maps * (1 + of_window * layer.scale[side]) + of_window * layer.offset[side]
        for maps, of_window in zip(x, length, strict=True)
    ])  # fmt: skip
    given = x if axis == 1 else x.permute(0, 2, 3, 1)
    found = layer(given, length)
    torch.testing.assert_close(found if axis == 1 else found.permute(0, 3, 1, 2), expected)
    assert torch.equal(layer(given, torch.zeros(3)), given)


def test_the_length_is_read_from_a_cell_that_is_never_padding() -> None:
    detector = small_detector("lstm", "tore", length_affine=True)
    with torch.no_grad():
        images = detector.frame.padded_image(detector.encoder(of_lengths(50_000, 5_000)))
    plain, length = split_length(images)
    assert plain.shape[1] == images.shape[1] - 1
    assert length.tolist() == pytest.approx([0.0, -2.302585])


def test_a_detector_is_built_again_from_the_header_of_its_weights(tmp_path: Path) -> None:
    _, conditioned = pair("evrt")
    save_model(conditioned, tmp_path / "weights.safetensors")
    loaded, batch = load_model(tmp_path / "weights.safetensors"), of_lengths(5_000, 50_000)
    with torch.no_grad():
        assert difference(loaded(batch)[0], conditioned(batch)[0]) == 0


def test_images_without_the_length_are_refused() -> None:
    detector = small_detector("s5", length_affine=True)
    with pytest.raises(FateError, match="expected .N, 9, 30, 38."):
        detector(torch.zeros(1, 8, 30, 38))


def test_get_has_no_such_option() -> None:
    with pytest.raises(FateError, match="length_affine=True was given; get-b takes"):
        build_model("get-b", CLASSES, SENSOR, length_affine=True)


def test_without_the_option_a_detector_has_no_such_parameters() -> None:
    for family in ("s5", "lstm", "evrt"):
        plain = small_detector(family)
        assert not parameters_of_length(plain)
        assert not any(isinstance(module, LengthAffine) for module in plain.modules())
