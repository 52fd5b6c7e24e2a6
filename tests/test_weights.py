"""Bundled weights: each has a card that belongs to it, and a card says what its sources say, no more."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fate.cli.detect import detect as detect_command
from fate.errors import FateError
from fate.inference.loading import DEFAULT_DETECTOR, FASTEST_ON_A_CPU, WEIGHTS, bundled_weights
from fate.models.checkpoints import load_model, read_card, save_model
from fate.models.zoo import build_model
from fate.workflows.detect import detect
from fate.workflows.simulate import simulate
from tests.conftest import load_script

ROOT = Path(__file__).resolve().parents[1]
FIGURES = {
    "20": {"AP50:95": 0.4, "AP50": 0.7, "AP75": 0.41, "delay_p50_ms": 80.2, "delay_p90_ms": 400.0},
    "200": {"AP50:95": 0.3, "AP50": 0.66, "AP75": None, "delay_p50_ms": None, "delay_p90_ms": None},
}
LATENCY = {
    "device": "a slow one",
    "threads": 3,
    "measurements": [
        {"model": name, "hz": 200.0, "way": "streaming", "precision": "float32", "p50_ms": p50, "p99_ms": 2 * p50}
        for name, p50 in (("fate-s-nano", 12.34), ("fate-s", 56.78))
    ],
}


@pytest.fixture(scope="module")
def script() -> Any:
    return load_script("model_card")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights, their figures, and the drives they would have been trained on."""
    place = tmp_path_factory.mktemp("card")
    torch.manual_seed(0)
    facts = {"training": {"step": 1234, "strategy": "fat", "seed": 5, "data": "/home/elsewhere/drives"}}
    save_model(
        build_model("fate-s-nano", ("car", "pedestrian"), (240, 304)), place / "fate-s-nano.safetensors", facts=facts
    )
    (place / "evaluation.json").write_text(json.dumps(FIGURES))
    (place / "latency.json").write_text(json.dumps(LATENCY))
    simulate(place / "drives", recordings=3, seconds=0.2, seed=17, preview=False, shares=(1, 1, 1))
    return place


def _card(script: Any, folder: Path, **given: Any) -> str:
    return str(script.model_card(folder / "fate-s-nano.safetensors", folder / "evaluation.json", **given))


def test_a_card_says_what_header_figures_drives_and_latency_say(script: Any, folder: Path) -> None:
    text = _card(
        script, folder, drives=folder / "drives", commands=["fate train this", "fate train that"],
        latency=[folder / "latency.json"], limits=["It sees ghosts."],
    )  # fmt: skip
    weights = load_model(folder / "fate-s-nano.safetensors")
    count = sum(parameter.numel() for parameter in weights.parameters())
    assert f"| parameters | {count:,} |".replace(",", " ") in text
    assert hashlib.sha256((folder / "fate-s-nano.safetensors").read_bytes()).hexdigest() in text
    assert "| 20 | 40.0 | 70.0 | 41.0 | 100% | 80 | 400 |" in text
    assert "| 200 | 30.0 | 66.0 | – | 75% | – | – |" in text
    assert "| a slow one | 3 | 200 | streaming | float32 | 12.34 | 24.68 |" in text
    assert "56.78" not in text  # that is another model's
    assert "\n- It sees ghosts.\n- Nothing real" in text
    assert "| strategy | fat |" in text
    assert "| steps | 1 234 |" in text
    assert "fate simulate drives --recordings 3 --seconds 0.2 --seed 17" in text
    assert "3 of 0.2 s: 1 train, 1 val, 1 test" in text
    assert "fate train this\nfate train that" in text


def test_a_card_tells_of_cameras_at_rest(script: Any, folder: Path, tmp_path: Path) -> None:
    driving = _card(script, folder, drives=folder / "drives")
    simulate(tmp_path / "both", recordings=2, seconds=0.2, seed=17, preview=False, at_rest=0.5)
    both = _card(script, folder, drives=tmp_path / "both")
    assert "at rest" not in driving
    assert "beside" not in driving
    assert "in 50% of the recordings at rest beside a street" in both
    assert "fate simulate drives --recordings 2 --seconds 0.2 --seed 17 --at-rest 0.5" in both
    assert "as a camera in a moving car or beside a street sees them" in both


def test_what_nobody_wrote_down_is_not_recorded_and_paths_stay_private(script: Any, folder: Path) -> None:
    text = _card(script, folder)
    assert "Command: not recorded." in text
    assert "## Latency\n\nNot recorded." in text
    assert "| dataset | drives |" in text
    assert "elsewhere" not in text


def test_links_of_a_card_lead_to_pages_of_the_documents(script: Any, folder: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", _card(script, folder, latency=[folder / "latency.json"]))
    assert links
    beside = ROOT / "src" / "fate" / "weights"  # the package may be installed elsewhere
    assert all((beside / link).resolve().is_relative_to(ROOT / "docs") for link in links)
    assert [link for link in links if not (beside / link).resolve().exists()] == []


def test_sources_that_do_not_fit_are_refused(script: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FateError, match="has no manifest.json"):
        _card(script, folder, drives=tmp_path)
    (tmp_path / "other.json").write_text(json.dumps({**LATENCY, "measurements": LATENCY["measurements"][1:]}))
    with pytest.raises(FateError, match="has no fate-s-nano"):
        _card(script, folder, latency=[tmp_path / "other.json"])
    (tmp_path / "evaluation.json").write_text("{}")
    with pytest.raises(FateError, match="no AP50:95"):
        script.model_card(folder / "fate-s-nano.safetensors", tmp_path / "evaluation.json")


def test_bundled_weights_have_cards_that_belong_to_them() -> None:
    cards = {file.stem for file in WEIGHTS.glob("*.md")} - {"README"}
    assert cards == set(bundled_weights())
    for name, file in bundled_weights().items():
        header = read_card(file)
        assert header["model"]["name"] == name
        assert hashlib.sha256(file.read_bytes()).hexdigest() in (WEIGHTS / f"{name}.md").read_text(), name
        assert "/" not in str((header["training"] or {}).get("data", "")), (
            f"{name} names a folder of somebody's machine"
        )


@pytest.mark.parametrize("function", [detect, detect_command])
def test_functions_and_commands_begin_with_the_same_bundled_detector(function: Any) -> None:
    assert {DEFAULT_DETECTOR, FASTEST_ON_A_CPU} <= set(bundled_weights())
    assert inspect.signature(function).parameters["model"].default == DEFAULT_DETECTOR
