"""Learning curves from the metrics of a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fate.training.run_directory import read_metrics
from fate.view.learning_curves import draw_curves


def step(number: int) -> str:
    numbers = {"lr": 1e-4, "loss": 3 / number, "iou": 1 / number, "windows_per_s": 9, "waiting_for_data": 0.1}
    return json.dumps({"step": number, "epoch": 0, **numbers, "step_s": 0.5, "rates": {"20": 4}})


def validation(number: int, ap: float | None) -> str:
    figures = {"20": {"AP50:95": ap, "AP50": ap, "AP75": None}, "200": {"AP50:95": ap, "AP50": ap, "AP75": ap}}
    return json.dumps({"step": number, "validation": figures, "score": ap, "is_best": ap is not None})


def test_the_page_has_every_validation_and_the_newest_pictures(tmp_path: Path) -> None:
    lines = [step(1), step(2), validation(2, 0.125), step(3), step(4), validation(4, 0.25)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 5, "lo')  # a line that is being written
    (tmp_path / "pictures").mkdir()
    for number in (2, 4):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "pictures" / f"step-{number:07d}-20hz.png")
    draw_curves(tmp_path)
    text = (tmp_path / "curves.html").read_text()
    for part in (
        "Step 4; best mean AP50:95 25.0 %",
        "<td>12.5</td>",
        "<td>25.0</td>",
        "step-0000004-20hz",
        "best so far",
    ):
        assert part in text
    assert "step-0000002-20hz" not in text
    assert Image.open(tmp_path / "curves.png").size[0] > 1000
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 6


def test_a_run_without_metrics_has_no_page_and_one_without_labels_has_no_accuracy(tmp_path: Path) -> None:
    draw_curves(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "metrics.jsonl").write_text(f"{step(1)}\n{validation(1, None)}\n")
    draw_curves(tmp_path)
    assert "Step 1" in (tmp_path / "curves.html").read_text()


def test_there_is_no_panel_of_accuracy_before_the_first_validation(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{step(1)}\n")
    draw_curves(tmp_path)
    narrow = Image.open(tmp_path / "curves.png").size[0]
    (tmp_path / "metrics.jsonl").write_text(f"{step(1)}\n{validation(1, 0.5)}\n")
    draw_curves(tmp_path)
    assert Image.open(tmp_path / "curves.png").size[0] == pytest.approx(1.5 * narrow, abs=2)
