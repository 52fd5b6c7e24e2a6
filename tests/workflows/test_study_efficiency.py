"""The study of efficiency, and published figures beside ours: parameters, AP50, AP75, latency."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fate
from fate.models.checkpoints import save_model
from fate.workflows.studies.declared import STUDIES
from fate.workflows.studies.table import StudyResult
from tests.training.conftest import SENSOR, write_drives

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")

EFFICIENCY, CHANNELS = STUDIES["efficiency"], STUDIES["channels"]


def test_published_parameters_and_all_metrics_stand_beside_ours() -> None:
    figures = {"AP50:95": 0.53, "AP50": 0.81, "AP75": 0.55}
    cells = {row.name: {0: dict.fromkeys(CHANNELS.rates, figures)} for row in CHANNELS.rows}
    result = StudyResult(CHANNELS, "gen1", "gen1", (0,), cells, {}, {row.name: 57.16 for row in CHANNELS.rows})
    line = next(line for line in result.table("AP50").splitlines() if "C = 64" in line)
    assert "81.0 [paper 82.3, -1.3]" in line
    assert "57.160 [paper 57.161, -0.001]" in line
    assert "[paper 56.8, -1.8]" in result.table("AP75")
    assert "paper" not in StudyResult(CHANNELS, "drives", "sim", (0,), cells, {}).table()


def test_latency_is_a_table_of_its_own_with_its_stages() -> None:
    row = EFFICIENCY.rows[0].name
    latency = {row: {20.0: {"encode": 0.2, "model": 1.1, "post": 0.1, "total": 1.4}}}
    cells = {each.name: {0: None} for each in EFFICIENCY.rows}
    result = StudyResult(EFFICIENCY, "gen1", "gen1", (0,), cells, {}, latency=latency)
    table = result.latency_table()
    assert f"| {row} | 20 | 1.40 [paper 11.40, -10.00] | 0.20 | 1.10 | 0.10 |" in table
    assert "not run" in table
    on_gpu = StudyResult(EFFICIENCY, "drives", "sim", (0,), cells, {}, latency={row: {20.0: {"model": 1, "total": 1}}})
    assert f"| {row} | 20 | 1.00 | – | 1.00 | – |" in on_gpu.latency_table()  # one graph, and other detectors
    assert result.to_dict()["latency_ms"][row]["20"]["model"] == 1.1
    assert table in result.text()


@pytest.mark.slow
def test_the_study_measures_parameters_and_latency(tmp_path: Path) -> None:
    first, other = (tmp_path / name for name in ("first", "other"))
    for folder in (first, other):
        folder.mkdir()
        write_drives(folder, ("train", "val", "test"))
    model = fate.build_model("s5-vit-nano", ("square",), SENSOR)
    save_model(model, tmp_path / "given.safetensors")
    done = fate.study(
        "efficiency", first / "drives.yaml", tmp_path / "out", device="cpu", workers=0, rows=["S5-ViT"],
        weights={"s5-vit-nano": tmp_path / "given.safetensors"},
    )  # fmt: skip
    assert done.parameters["S5-ViT"] == pytest.approx(sum(w.numel() for w in model.parameters()) / 1e6)
    assert done.latency["S5-ViT"].keys() == set(EFFICIENCY.rates)
    assert all(stages["total"] > 0 for stages in done.latency["S5-ViT"].values())
    told = json.loads((tmp_path / "out" / "efficiency.json").read_text())
    assert told["million_parameters"]["S5-ViT"] == pytest.approx(done.parameters["S5-ViT"])
    assert "S5-ViT + PE" not in done.latency
    # on another dataset, given weights are measured again
    measured = next((tmp_path / "out").rglob("measured.json"))
    evaluated = measured.with_name("evaluation.json").stat().st_mtime_ns
    fate.study(
        "efficiency", other / "drives.yaml", tmp_path / "out", device="cpu", workers=0, rows=["S5-ViT"],
        weights={"s5-vit-nano": tmp_path / "given.safetensors"},
    )  # fmt: skip
    assert json.loads(measured.read_text())["dataset"] == str(other)
    assert measured.with_name("evaluation.json").stat().st_mtime_ns > evaluated
