"""``fate densify`` on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fate
from fate.boxes.dense_labels import open_dense_labels
from fate.cli.arguments import parse_rates
from fate.cli.command import spread
from fate.cli.main import app
from fate.cli.terminal import with_options
from fate.errors import FateError
from fate.inference import loading
from fate.models.checkpoints import save_model
from tests.densify.squares import CLASSES, SENSOR, seeing_detector, squares


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["densify", *map(str, arguments)])
    if isinstance(result.exception, FateError):  # ``main`` prints it and exits with 1
        return 1, with_options(str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output.replace("\n", " ")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and a dataset in the folder of a split, with exact truth as the simulator writes it."""
    folder = tmp_path_factory.mktemp("drives")
    train = folder / "train"
    train.mkdir()
    opened = squares(train, start_us=0)
    for recording in opened.recordings:
        times = np.arange(5_000, recording.end_us, 5_000)
        left = (10 + 30 * times / (recording.end_us)).astype(np.float32)
        ones, none = np.ones_like(left), np.zeros(len(times), int)
        truth = fate.Labels(times, left, 20 * ones, left + 12, 35 * ones, none, none, classes=CLASSES, sensor=SENSOR)
        fate.write_labels(train / f"{recording.name}_truth.npz", truth)
    model = tmp_path_factory.mktemp("model") / "seeing.safetensors"
    save_model(seeing_detector(), model)
    return model, folder


@pytest.mark.slow
def test_labels_are_made_for_the_rates_given_and_gone_on_with(files: tuple[Path, Path], tmp_path: Path) -> None:
    model, folder = files
    options = ("--out", tmp_path / "dense", "--kind", "own", "--track-score", "0.15", "--output-threshold", "car=0.2")
    code, text = run(model, folder, "--hz", "20", "40", *options)
    assert code == 0, text
    assert "3 recordings, 0 of them done before" in text
    assert "40 Hz:" in text
    opened = open_dense_labels(tmp_path / "dense")
    assert opened.rates == (20, 40)
    assert opened.manifest["options"]["thresholds"] == {"car": 0.2, "pedestrian": 0.3, "two wheeler": 0.3}
    code, text = run(model, folder, "--hz", "40,20", *options)
    assert code == 0, text
    assert "3 of them done before, 0 windows detected" in text
    code, text = run(model, folder, *options[:-1], "car=0.3")
    assert code == 1
    assert "options.thresholds.car was 0.2 and is 0.3" in text


@pytest.mark.parametrize("truth", [(), ("--without-truth",)])
def test_a_folder_without_labels_takes_the_classes_of_the_model(
    files: tuple[Path, Path], tmp_path: Path, truth: tuple[str, ...]
) -> None:
    model, folder = files
    bare = tmp_path / "bare"
    bare.mkdir()
    for recording in fate.open_dataset(folder, kind="own"):
        shutil.copy(recording.events_file, bare)
    options = (*truth, "--track-score", "0.15", "--output-threshold", "car=0.2")
    code, text = run(model, bare, "--out", tmp_path / "dense", "--hz", "40", *options)
    assert code == 0, text
    opened = open_dense_labels(tmp_path / "dense")
    assert opened.classes == CLASSES
    names = [recording.name for recording in fate.open_dataset(bare)]
    boxes = [opened.labels(name, 40) for name in names]
    assert len(names) == 3
    assert sum(map(len, boxes)) > 0
    assert {each.classes for each in boxes} == {CLASSES}


def test_a_bundled_name_makes_labels_too(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = files
    monkeypatch.setattr(loading, "WEIGHTS", model.parent)
    for number, what in enumerate(("seeing", model)):
        code, text = run(what, folder, "--hz", "20", "--out", tmp_path / str(number), "--kind", "own")
        assert code == 0, text
    first, second = (open_dense_labels(tmp_path / str(number)) for number in range(2))
    assert first.manifest == second.manifest
    code, text = run("seing", folder, "--out", tmp_path / "none", "--kind", "own")
    assert code == 1
    assert "there are seeing; train one" in text
    assert "did you mean 'seeing'" in text
    assert not (tmp_path / "none").exists()


def test_a_check_prints_the_table_and_keeps_the_figures(files: tuple[Path, Path], tmp_path: Path) -> None:
    model, folder = files
    assert run(model, folder, "--hz", "40", "--out", tmp_path / "dense", "--kind", "own")[0] == 0
    code, text = run("--check", folder, "--labels", tmp_path / "dense", "--json", tmp_path / "q.json", "--kind", "own")
    assert code == 0, text
    assert "between annotated times" in text
    assert json.loads((tmp_path / "q.json").read_text())["rows"][0]["hz"] == 40
    assert (tmp_path / "q.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected MODEL DATASET --out DIR"),
        (("m.safetensors", "d"), "expected MODEL DATASET --out DIR"),
        (("m.safetensors", "d", "--out", "o", "--hz", "0"), "--hz 0 was given"),
        (("m.safetensors", "d", "--out", "o", "--hz", "fast"), "--hz fast was given"),
        (("m.safetensors", "d", "--out", "o", "--shard", "5/4"), "5/4 was given"),
        (("m.safetensors", "d", "--out", "o", "--output-threshold", "car"), "--output-threshold car was given"),
        (("m.safetensors", "d", "--out", "o", "--output-threshold", "car=7"), "the threshold of car is 7"),
        (("m.safetensors", "d", "--out", "o", "--device", "tpu"), "tpu was given"),
        (("m.safetensors", "d", "--out", "o", "--json", "f.json"), "go with --check"),
        (("--check", "d"), "goes with --labels DIR"),
        (("m.safetensors", "--check", "d", "--labels", "o"), "without MODEL"),
    ],
)
def test_bad_usage_exits_with_2(arguments: tuple[str, ...], words: str) -> None:
    code, text = run(*arguments)
    assert code == 2, text
    assert words in text


def test_bad_input_is_one_sentence(files: tuple[Path, Path], tmp_path: Path) -> None:
    model, folder = files
    code, text = run(tmp_path / "none.safetensors", folder, "--out", tmp_path / "o", "--kind", "own")
    assert (code, "none.safetensors" in text) == (1, True)
    code, text = run("--check", folder, "--labels", tmp_path, "--kind", "own")
    assert (code, "has no manifest.json" in text) == (1, True)
    code, text = run(model, folder, "--out", tmp_path / "o", "--kind", "own", "--shard", "9/9")
    assert (code, "shard 9/9 of 3 recordings is empty" in text) == (1, True)


def test_rates_may_be_given_in_three_ways() -> None:
    assert spread(["--hz", "40", "80", "--out", "7"]) == ["--hz", "40", "--hz", "80", "--out", "7"]
    assert spread(["--hz", "40", "--hz", "80", "drives"]) == ["--hz", "40", "--hz", "80", "drives"]
    assert parse_rates(["40,80", "100"], ()) == (40, 80, 100)
    assert parse_rates(None, (20,)) == (20,)
