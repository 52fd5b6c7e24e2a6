"""Protocols say all their rules, cannot be changed unseen, and refuse what makes no sense."""

from __future__ import annotations

import dataclasses
import json

import pytest

from fate import FateError
from fate.evaluation.protocols import NAMES, Protocol, named_protocol


def test_named_protocols_have_the_limits_of_the_public_datasets() -> None:
    limits = {
        ("gen1", (240, 304)): (30, 10),
        ("1mpx", (720, 1280)): (60, 20),
        ("1mpx", (360, 640)): (30, 10),
        ("sim", (720, 1280)): (60, 20),
        ("sim", (240, 320)): (30, 10),
        ("sim", (180, 240)): (24, 8),  # a simulated camera of another size: those of Gen1 × 240 / 304
    }
    for (name, sensor), expected in limits.items():
        protocol = named_protocol(name, sensor)
        assert (protocol.min_diagonal, protocol.min_side) == expected
        assert protocol.sensor == sensor
        assert protocol.name == name


@pytest.mark.parametrize("name", ["gen1", "1mpx"])
def test_public_datasets_follow_the_toolbox(name: str) -> None:
    protocol = named_protocol(name)
    assert (protocol.time_rule, protocol.time_tolerance_us()) == ("window", 50_000)
    assert (protocol.skip_us, protocol.count_empty, protocol.max_detections) == (500_000, False, 100)
    assert protocol.score_floor == 0.001


def test_text_names_every_figure_of_the_rules() -> None:
    text = str(named_protocol("1mpx", tolerance_us=40_000, max_detections=77, score_floor=0.02))
    for part in ("1280×720", "≥ 60 px", "≥ 20 px", "0.5 s", "± 40 ms", "≥ 0.02", "77", "two wheeler", "left out"):
        assert part in text
    text = str(named_protocol("sim").at(80))
    for part in ("12.5 ms", "80 Hz", "nearest", "± 2 ms", "empty ones too"):
        assert part in text


def test_a_changed_protocol_says_so_in_its_name() -> None:
    assert named_protocol("gen1", tolerance_us=40_000).name == "gen1, changed"
    assert named_protocol("gen1", tolerance_us=50_000).name == "gen1"
    assert named_protocol("gen1", tolerance_us=40_000, name="mine").name == "mine"


def test_at_a_rate_one_label_within_2_ms_of_the_end_of_a_window_is_taken() -> None:
    protocol = named_protocol("gen1").at(200)
    assert (protocol.time_rule, protocol.time_tolerance_us(), protocol.window_us) == ("nearest", 2000, 5000)
    assert named_protocol("gen1").at(200, window=50_000).window_us == 50_000


def test_a_protocol_without_rate_and_tolerance_asks_for_one() -> None:
    with pytest.raises(FateError, match="at\\(hz\\)"):
        named_protocol("sim").time_tolerance_us()


@pytest.mark.parametrize("name", NAMES)
def test_json_gives_the_protocol_back(name: str) -> None:
    protocol = named_protocol(name).at(40)
    assert Protocol.from_dict(json.loads(json.dumps(protocol.to_dict()))) == protocol


def test_protocols_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        named_protocol("gen1").min_side = 3  # type: ignore[misc]


def test_an_unknown_field_names_the_nearest_known_one() -> None:
    with pytest.raises(FateError, match="min_diagonal"):
        Protocol.from_dict({"min_diag": 30})
    with pytest.raises(FateError, match="tolerance_us"):
        named_protocol("gen1", tolerance=30)


@pytest.mark.parametrize(
    "bad",
    [
        {"min_diagonal": -1},
        {"min_side": float("nan")},
        {"min_side": "10"},
        {"skip_us": 0.5},
        {"skip_us": None},
        {"tolerance_us": -1},
        {"time_rule": "closest"},
        {"score_floor": 1.5},
        {"max_detections": 0},
        {"classes": "car"},
        {"count_empty": 1},
        {"hz": 0},
        {"sensor": (0, 3)},
        {"name": ""},
    ],
)
def test_rules_without_sense_are_refused_in_one_sentence(bad: dict[str, object]) -> None:
    with pytest.raises(FateError) as error:
        Protocol.from_dict(bad)
    assert "\n" not in str(error.value)


def test_unknown_names_and_sensors_are_refused_with_those_known() -> None:
    with pytest.raises(FateError, match="gen1, 1mpx, sim"):
        named_protocol("gen4")
    with pytest.raises(FateError, match="1280×720"):
        named_protocol("1mpx", (480, 640))
    assert named_protocol("custom", (480, 640), min_side=3.0).min_side == 3
