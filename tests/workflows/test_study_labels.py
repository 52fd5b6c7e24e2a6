"""The study of dense labels: what was measured is in its table, beside the paper's figures where it has some."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fate.errors import FateError
from fate.rates import PAPER_RATES
from fate.workflows.check_labels import BESIDE, METHODS, SPANS
from fate.workflows.studies.declared import PUBLISHED_LABELS, STUDIES

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")

from fate.boxes.dense_labels import open_dense_labels
from fate.workflows.studies.study import study
from fate.workflows.studies.table import FIGURES, LabelStudyResult, figures_of
from tests.training.conftest import write_drives


def checked(precision: float, spans: tuple[str, ...] = SPANS) -> dict[str, Any]:
    """A check as its JSON has it: every class, rate and method has its own figures."""
    methods = METHODS if spans == SPANS else METHODS[:1]
    rows = [
        {"span": span, "hz": hz, "method": method, "class": name} | dict.fromkeys(FIGURES, precision - 0.1 * place)
        for span in spans
        for hz in PAPER_RATES
        for place, method in enumerate(methods)
        for name in ("car", "pedestrian")
    ]
    if spans == SPANS:
        for row in rows[: len(rows) // 2]:  # of the span that is not shown
            row.update(dict.fromkeys(FIGURES, 0.99))
    curve = {"threshold": [0.0, 0.5], "precision": [0.5, None], "recall": [0.9, 0.0]}
    curves = {"car": curve, "pedestrian": curve}
    return {"rows": rows, "detections": [{"hz": hz, "curves": curves} for hz in PAPER_RATES],
            "thresholds": {"car": 0.6, "pedestrian": 0.3}}  # fmt: skip


def result(kind: str, *checks: dict[str, Any] | None) -> LabelStudyResult:
    """Of the first row alone, a seed for each check."""
    seeds = tuple(range(len(checks)))
    found = {seed: None if check is None else figures_of(check) for seed, check in enumerate(checks)}
    first, second = (row.name for row in STUDIES["labels"].rows)
    cells: dict[str, dict[int, Any]] = {first: found, second: dict.fromkeys(seeds)}
    return LabelStudyResult(STUDIES["labels"], "drives", kind, seeds, cells, {})


def lines_of(table: str, name: str) -> list[list[str]]:
    """Cells of the lines that begin with this name."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()
            if line.startswith(f"| {name}")]  # fmt: skip


def test_what_was_measured_is_shown_and_what_was_not_says_so(tmp_path: Path) -> None:
    found = result("sim", checked(0.8), checked(0.9), None)
    table = found.table()
    assert "all times, drives, 3 seeds" in table
    lines = lines_of(table, "PE + S5-ViT")
    assert [line[:2] for line in lines] == [["PE + S5-ViT (2 of 3)", f"{hz:g}"] for hz in PAPER_RATES]
    assert all(line[2:] == ["0.85 ± 0.05"] * 8 for line in lines)
    assert [line[2] for line in lines_of(table, "PE + EvRT-DETR")] == ["not run"] * len(PAPER_RATES)
    naive = lines_of(table, "naive interpolation, tracks known")
    assert [line[2:] for line in naive] == [["0.75"] * 8] * len(PAPER_RATES)
    assert len({line.count("|") for line in table.splitlines()[2:]}) == 1  # lines of one width
    found.save(tmp_path)
    rows = list(csv.DictReader((tmp_path / "labels.csv").open()))
    assert len(rows) == 2 * len(PAPER_RATES) * len(METHODS) * 2
    assert {row["span"] for row in rows} == {"all times"}
    kept = json.loads((tmp_path / "labels.json").read_text())["rows"]["PE + S5-ViT"]
    assert kept["1"]["200"]["densified car recall"] == 0.9
    assert kept["2"] is None
    assert (tmp_path / "labels.png").stat().st_size > 10_000


def test_figures_of_the_paper_stand_beside_those_of_gen1() -> None:
    table = result("gen1", checked(0.8, (BESIDE,))).table()
    assert f"; {BESIDE}, " in table
    assert lines_of(table, "naive") == []
    for line, hz in zip(lines_of(table, "PE + S5-ViT"), PAPER_RATES, strict=True):
        expected = [f"0.80 [paper {value:.2f}, {0.8 - value:+.2f}]" for value in PUBLISHED_LABELS["PE + S5-ViT"][hz]]
        assert line[2:] == expected
    assert "paper" not in result("sim", checked(0.8)).table()


def test_what_was_run_and_found_nothing_is_not_called_not_run() -> None:
    check = checked(0.8)
    for row in check["rows"]:
        if row["hz"] == 20:
            row.update(dict.fromkeys(FIGURES))
    lines = lines_of(result("sim", check).table(), "PE + S5-ViT")
    assert lines[0][2:] == ["–"] * 8
    assert lines[1][2] == "0.80"


def test_interpolation_does_not_depend_on_seeds() -> None:
    (line, *_) = lines_of(result("sim", checked(0.8), checked(0.8)).table(), "naive interpolation, tracks unknown")
    assert line[2:] == ["0.60"] * 8


def test_nothing_run_is_a_table_too(tmp_path: Path) -> None:
    found = result("sim", None)
    assert found.table().count("not run") == 2 * len(PAPER_RATES)
    found.save(tmp_path)
    assert not (tmp_path / "labels.png").exists()


@pytest.mark.slow
def test_labels_of_a_recorded_set_stand_on_their_own_where_they_are_judged(tmp_path: Path) -> None:
    path = write_drives(tmp_path)
    document = yaml.safe_load(path.read_text())
    document["recordings"][0]["split"] = "test"
    path.write_text(yaml.safe_dump(document))
    settings = ["run.epochs=1", "run.epoch_steps=1", "data.steps=2"]
    words: list[str] = []
    for _ in range(2):
        found = study(
            "labels", path, tmp_path / "out", scale="smoke", rows=["PE + S5-ViT"], device="cpu",
            workers=0, settings=settings, progress=lambda done, total, text: words.append(text),
        )  # fmt: skip
        assert lines_of(found.table(), "PE + S5-ViT")[0][2] != "not run"
        assert BESIDE in found.table()
    assert sum("dense labels of test" in word for word in words) == 1  # what is known is not measured again
    with pytest.raises(FateError, match="holds a run with other settings: optimiser.lr"):
        study(
            "labels", path, tmp_path / "out", scale="smoke", rows=["PE + S5-ViT"], device="cpu", workers=0,
            settings=[*settings, "optimiser.lr=1e-5"],
        )  # fmt: skip
    (run,) = (tmp_path / "out" / "seed-0").iterdir()
    assert open_dense_labels(run / "dense-test").manifest["options"]["with_truth"] is False
