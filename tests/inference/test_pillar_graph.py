"""Pillar Encoding for graphs is Pillar Encoding: the same image as the encoder's own kernels, caps and all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fate.encoding.batch import EventBatch
from fate.encoding.pillars import PillarEncoder
from fate.encoding.sampling import M32, MUL_1
from fate.encoding.sampling import hash32 as hash_number
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window
from fate.inference.pillar_graph import INPUTS, PillarGraph, hash32, multiply32, shift_right

SENSOR = (20, 31)


def window(events: int, start_us: int, duration_us: int, seed: int, crowd: float = 1.0) -> tuple[Window, Events]:
    """Events at random; a larger ``crowd`` puts more of them into one corner."""
    random = np.random.default_rng(seed)
    t = start_us + np.sort(random.integers(0, max(duration_us // 3, 1), events)) * 3 % duration_us
    y, x = ((random.random(events) ** crowd * side).astype(int) for side in SENSOR)
    return Window(start_us, start_us + duration_us), Events(np.sort(t), x, y, random.integers(0, 2, events), SENSOR)


def trained(**options: Any) -> PillarEncoder:
    """An encoder whose every parameter counts."""
    torch.manual_seed(0)
    encoder = PillarEncoder(SENSOR, channels=8, **options).eval()
    for value in (*encoder.parameters(), encoder.norm.running_mean):
        torch.nn.init.normal_(value)  # type: ignore[arg-type]
    torch.nn.init.uniform_(encoder.norm.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return encoder


def columns(batch: EventBatch) -> dict[str, Tensor]:
    return {name: getattr(batch, name) for name in INPUTS}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_events": None, "max_pillars": None},
        {"max_events": 3, "max_pillars": 40, "seed": 5 << 40 | 17},
        {"max_events": 1, "pillar": 4, "center_offsets": True},
        {"weighting": "uniform", "moments": 1, "max_pillars": 7},
    ],
)
def test_the_image_is_that_of_the_encoder(options: dict[str, Any]) -> None:
    encoder = trained(**options)
    graph = PillarGraph(encoder, windows=3)
    batch = EventBatch.from_windows(
        [window(900, 7_000_000_123, 50_000, 0, crowd=3), window(0, 0, 5_000, 1), window(80, -(10**13), 5_000, 2)]
    )
    with torch.no_grad():
        torch.testing.assert_close(graph(**columns(batch)), encoder(batch), rtol=1e-5, atol=2e-5)


def test_no_event_at_all_is_an_empty_image() -> None:
    graph = PillarGraph(trained(), windows=1)
    batch = EventBatch.from_windows([window(0, 0, 50_000, 0)])
    assert not graph(**columns(batch)).any()


def test_what_stands_behind_the_last_offset_is_ignored() -> None:
    graph = PillarGraph(trained(max_events=2), windows=1)
    batch = EventBatch.from_windows([window(60, 0, 50_000, 3)])
    given = columns(batch)
    longer = {name: torch.cat([given[name], given[name].flip(0)]) for name in ("t_us", "x", "y", "p")}
    assert torch.equal(graph(**(given | longer)), graph(**given))


def test_the_generator_is_that_of_the_caps() -> None:
    values = torch.tensor([0, 1, 0xFFFF, 0x10000, 0x7FFFFFFF, M32, 123_456_789])
    assert hash32(values).tolist() == [hash_number(value) for value in values.tolist()]
    assert multiply32(values, MUL_1).tolist() == [value * MUL_1 & M32 for value in values.tolist()]
    negative = torch.tensor([-1 << 32, -3 << 32, 5 << 32])
    assert shift_right(negative, 32).tolist() == [-1, -3, 5]


def test_max_pooling_cannot_be_part_of_a_graph() -> None:
    with pytest.raises(FateError, match="pooling='max'"):
        PillarGraph(PillarEncoder(SENSOR, pooling="max"), windows=1)
