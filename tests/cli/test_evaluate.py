"""``fate evaluate`` and ``fate bench data`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fate
from fate.cli.main import app
from fate.errors import FateError
from fate.evaluation.predictions import write_predictions


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings with a box every 100 ms, in the folder of a split."""
    folder = tmp_path_factory.mktemp("set") / "test"
    folder.mkdir()
    (folder.parent / "classes.txt").write_text("car\n")
    for number in range(2):
        random = np.random.default_rng(number)
        t = np.sort(random.integers(0, 1_200_000, 3_000))
        columns = (random.integers(0, top, len(t)) for top in (32, 24, 2))
        fate.write_events(folder / f"noise_{number}.dat", fate.Events(t, *columns, (24, 32)))
        times = np.arange(100_000, 1_200_000, 100_000)
        ones = np.ones(len(times), np.float32)
        fate.write_labels(
            folder / f"noise_{number}_bbox.npz", fate.Labels(times, ones, ones, 20 * ones, 22 * ones, 0 * times,
                                                             classes=("car",)))  # fmt: skip
    return folder.parent


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, FateError):  # ``main`` prints it and exits with 1
        return 1, str(result.exception)
    return result.exit_code, result.output


def test_the_truth_as_predictions_is_perfect_and_the_figures_are_kept(dataset: Path, tmp_path: Path) -> None:
    opened = fate.open_dataset(dataset, kind="own")
    write_predictions(tmp_path / "exact.npz", {each.name: each.labels for each in opened.recordings})
    code, text = run("evaluate", str(tmp_path / "exact.npz"), str(dataset), "--hz", "20", "--kind", "own", "--json",
                     str(tmp_path / "figures.json"))  # fmt: skip
    assert code == 0, text
    assert "protocol custom" in text
    assert "| 20 | 100.00 | 100.00 | 100.00 | 100.0% |" in text
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["rates"][0]["scores"]["metrics"]["AP50:95"] == pytest.approx(1.0)
    assert (tmp_path / "figures.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--shard", "5/4"), "--shard 5/4 was given"),
        (("--shard", "x"), "--shard x was given"),
        (("--hz", "0"), "expected rates of 1 to 1000"),
        (("--device", "tpu"), "--device tpu was given"),
        (("--streams", "0"), "--streams 0"),
    ],
)
def test_bad_usage_exits_with_2(dataset: Path, arguments: tuple[str, ...], words: str) -> None:
    code, text = run("evaluate", "boxes.npz", str(dataset), *arguments)
    assert code == 2
    assert words in text.replace("\n", " ")


def test_bad_input_is_one_sentence(dataset: Path, tmp_path: Path) -> None:
    code, text = run("evaluate", str(tmp_path / "none.safetensors"), str(dataset), "--kind", "own")
    assert code == 1
    assert "none.safetensors" in text
    code, text = run("evaluate", "boxes.npz", str(tmp_path / "nowhere"))
    assert code == 1
    assert "nowhere" in text


def test_reading_is_measured(dataset: Path) -> None:
    code, text = run("bench", "data", str(dataset), "--hz", "20", "--workers", "0", "--seconds", "0.1")
    assert code == 0, text
    assert "| events | 20 | 0 |" in text
    assert run("bench", "data", str(dataset), "--workers", "1.5")[0] == 2
