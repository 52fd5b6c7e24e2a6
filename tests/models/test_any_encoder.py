"""Any encoder before any family of detectors: strides of features, parameters, what padding holds."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from fate.models.detector import Stem
from tests.models.small_detectors import (
    FAMILIES,
    SENSOR,
    batch_of,
    difference,
    parts_of,
    small_detector,
    some_windows,
)

pytestmark = pytest.mark.usefixtures("one_thread")
#: Every encoder, with options where its stride can be chosen.
ENCODERS: list[tuple[str, dict[str, Any]]] = [
    *(("pillars", {"pillar": side}) for side in (1, 2, 4, 8)),
    *((name, {}) for name in ("histogram", "evrt-histogram", "voxel", "time-surface", "tore", "group-tokens")),
]
families = pytest.mark.parametrize("family", FAMILIES)
encoders = pytest.mark.parametrize(("encoder", "options"), ENCODERS, ids=str)


@families
@encoders
def test_any_encoder_goes_with_any_family(family: str, encoder: str, options: dict[str, Any]) -> None:
    batch, counts = batch_of(some_windows(1)), []
    for stem in get_args(Stem):
        detector = small_detector(family, encoder, options, stem=stem)
        counts.append(sum(parameter.numel() for parameter in detector.parameters()))
        if stem == "upsample" and detector.frame.encoder_stride == 1:
            break  # there is nothing to repeat: the same detector again
        with torch.no_grad():
            features, _ = detector.features(detector.encoder(batch))
            outputs = detector.head(features)
        assert [tuple(of.shape[2:]) for of in features] == [(64 // s, 96 // s) for s in (8, 16, 32)]
        assert all(bool(part.isfinite().all()) for part in parts_of(outputs).values())
    token_maps = family == "get" and detector.frame.encoder_stride >= 4  # GET reads those by a smaller kernel
    assert (counts[0] == counts[1]) is not token_maps


def test_stems_differ_only_for_encoders_coarser_than_the_sensor() -> None:
    native, upsampled = (small_detector("s5", encoder_options={"pillar": 1}, stem=stem) for stem in get_args(Stem))
    batch = batch_of(some_windows(2))
    assert native.frame == upsampled.frame
    with torch.no_grad():
        assert difference(native(batch)[0], upsampled(batch)[0]) == 0


def test_padding_holds_what_an_encoder_writes_where_nothing_happened() -> None:
    detector = small_detector("lstm", "tore")
    with torch.no_grad():
        image = detector.frame.padded_image(detector.encoder(batch_of(some_windows(2))))
    assert image.shape[-2:] == (64, 96)
    assert detector.frame.empty_value != 0
    assert bool((image[:, :, SENSOR[0] :] == detector.frame.empty_value).all())
    assert bool((image[:, :, :, SENSOR[1] :] == detector.frame.empty_value).all())
    assert bool((image[1] == detector.frame.empty_value).all())  # an empty window looks like the padding
