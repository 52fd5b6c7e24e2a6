"""Detectors for large sensors keep every pillar: the paper's limit is meant for the grid of Gen1."""

from __future__ import annotations

from typing import Any

import pytest

from fate.encoding.pillars import PillarEncoder
from fate.models.zoo import build_model, rebuild


@pytest.mark.parametrize(
    ("sensor", "options", "expected"),
    [
        ((240, 304), {}, 16_000),
        ((128, 128), {}, 16_000),
        ((360, 640), {}, None),
        ((720, 1280), {}, None),
        ((360, 640), {"max_pillars": 5_000}, 5_000),
        ((240, 304), {"max_pillars": None}, None),
    ],
)
def test_the_limit_of_pillars_depends_on_the_sensor(
    sensor: tuple[int, int], options: dict[str, Any], expected: int | None
) -> None:
    detector = build_model("fate-s-nano", ("car",), sensor, encoder_options=options)
    for built in (detector, rebuild(detector.description)):
        assert isinstance(built.encoder, PillarEncoder)
        assert built.encoder.spec.max_pillars == expected
