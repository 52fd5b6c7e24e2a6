"""``--devices``: several processes, or jobs of SLURM, give what one process gives, and repeat only what failed.

Where bytes are compared, a detector gets one window at a time: it rounds the seventh digit by the size of its batch.
"""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fate.data.opening import open_dataset
from fate.errors import FateError
from fate.evaluation.evaluate import predict_rates
from fate.models.checkpoints import save_model
from fate.workflows.sharded_evaluation import predict_on_devices
from fate.workflows.spread import open_spread
from tests.cli.running import fate
from tests.densify.squares import seeing_detector, squares
from tests.training.conftest import write_drives
from tests.workflows.parts import load_unless_first, write_slurm

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows cannot spread work")

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--recordings", "3", "--seconds", "0.05", "--threads", "1")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four short recordings, with a box every 100 ms also after the first half second, which protocols skip."""
    folder = tmp_path_factory.mktemp("squares")
    squares(folder, lengths_us=(620_000, 560_000, 610_000, 620_000))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "seeing.safetensors"
    save_model(seeing_detector(), file)
    return file


def run(*words: str | Path) -> str:
    """The standard output of a command that succeeds."""
    done = fate(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, by its path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def logs(folder: Path) -> set[Path]:
    """The logs of all jobs."""
    return set(folder.glob("*_log.out"))


def without_times(file: Path) -> dict[str, Any]:
    """The content of a JSON file of an evaluation, without the time that each window took."""
    content: dict[str, Any] = json.loads(file.read_text())
    for rate in content["rates"]:
        assert rate.pop("ms_per_window").keys() == {"load", "encode", "model", "post"}
    return content


@pytest.mark.slow
@pytest.mark.parametrize(
    "devices",
    [("cpu,cpu",), ("slurm:2", "--slurm", "gpus_per_node=0")],
    ids=["here", "slurm"],
)
def test_simulated_bytes_do_not_depend_on_the_number_of_processes(
    tmp_path: Path, devices: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in write_slurm(tmp_path / "cluster").items():
        monkeypatch.setenv(name, value)
    one = run("simulate", tmp_path / "one", *TINY)
    two = run("simulate", tmp_path / "two", *TINY, "--devices", *devices)
    assert two == one.replace(str(tmp_path / "one"), str(tmp_path / "two"))
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert len(logs(tmp_path / "two-jobs")) == 2
    assert run("simulate", tmp_path / "two", *TINY, "--devices", *devices) == two
    assert len(logs(tmp_path / "two-jobs")) == 2  # nothing was left to do


@pytest.mark.slow
def test_shards_that_are_simulated_by_hand_are_brought_together(tmp_path: Path) -> None:
    one, parts = tmp_path / "one", tmp_path / "parts"
    run("simulate", one, *TINY)
    assert "shard 2/2 has 1 recording" in run("simulate", parts, *TINY, "--shard", "2/2")
    before = next((parts / ".shard-2of2" / "val").glob("*.dat")).stat().st_mtime_ns
    run("simulate", parts, *TINY, "--shard", "1/2")
    other = fate("simulate", parts, *TINY, "--seed", "5")
    assert other.returncode == 1
    assert "holds a dataset with seed 0" in other.stderr
    run("simulate", parts, *TINY)
    assert contents(parts) == contents(one)
    assert next((parts / "val").glob("*.dat")).stat().st_mtime_ns == before


@pytest.mark.slow
def test_an_evaluation_on_two_devices_is_that_on_one(dataset: Path, model: Path, tmp_path: Path) -> None:
    words = ("evaluate", model, dataset, "--kind", "own", "--hz", "20", "--streams", "1")
    one = run(*words, "--json", tmp_path / "one.json", "--predictions", tmp_path / "one")
    two = run(*words, "--json", tmp_path / "two.json", "--predictions", tmp_path / "two", "--devices", "cpu,cpu")
    assert without_times(tmp_path / "two.json") == without_times(tmp_path / "one.json")
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert json.loads((tmp_path / "one.json").read_text())["label_times"]["used"] > 0
    spent = re.compile(r"( \| [\d.]+){4}(?= \| [\d.]+% \|$)", re.M)  # load, encode, model and post
    assert spent.search(one)
    assert spent.sub("", two) == spent.sub("", one)
    assert [file.suffix for file in (tmp_path / "two-jobs").iterdir()] == [".out", ".out"]


def check_repeat(blocked: Path, *words: str | Path) -> str:
    """A command whose second shard fails names it, and does only this shard when it runs again; returns its output."""
    jobs = next(Path(word) for word in words if word in blocked.parents).with_name("two-jobs")
    failed = fate(*words)
    assert failed.returncode == 1
    assert "1 of 2 jobs failed: shard 2/2: " in failed.stderr
    assert blocked.name in failed.stderr
    assert failed.stderr.count("error:") == 1
    assert "Traceback" not in failed.stderr
    assert failed.stdout == ""
    log, before = Path(failed.stderr.split("(log: ")[1].split(")")[0]), logs(jobs)
    assert log in before
    assert "error: " in log.read_text()
    blocked.rmdir() if blocked.is_dir() else blocked.unlink()
    text = run(*words)
    (repeated,) = logs(jobs) - before
    assert "shard 2/2 is done" in repeated.read_text()
    return text


@pytest.mark.slow
def test_densified_labels_do_not_depend_on_the_number_of_processes(dataset: Path, model: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    words = ("densify", model, dataset, "--kind", "own", "--batch", "1", "--hz", "40", "--out")
    assert run(*words, two, "--devices", "cpu,cpu") == run(*words, one).replace(str(one), str(two))
    assert contents(two) == contents(one)
    assert "4 of them done before, 0 windows" in run(*words, two, "--devices", "cpu,cpu")


@pytest.mark.slow
def test_densify_repeats_only_the_shard_that_failed(dataset: Path, model: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    words = ("densify", model, dataset, "--kind", "own", "--batch", "1", "--out")
    for out, rate in ((one, "20"), (one, "40"), (two, "20")):
        run(*words, out, "--hz", rate)
    blocked = two / "labels" / "40hz" / "square_1.npz"
    blocked.mkdir(parents=True)
    text = check_repeat(blocked, *words, two, "--hz", "40", "--devices", "cpu,cpu")
    assert re.search("4 recordings, [23] of them done before", text)
    assert contents(two) == contents(one)


@pytest.mark.slow
def test_simulation_repeats_only_the_shard_that_failed(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    run("simulate", one, *TINY)
    two.mkdir()
    (two / ".shard-2of2").touch()
    assert check_repeat(two / ".shard-2of2", "simulate", two, *TINY, "--devices", "cpu,cpu")
    assert contents(two) == contents(one)


@pytest.mark.slow
def test_only_the_shard_of_an_evaluation_that_was_killed_is_repeated(
    dataset: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    opened, token = open_dataset(dataset, kind="own").checked(), tmp_path / "token"
    load = partial(load_unless_first, model, token)
    predict = partial(
        predict_on_devices, load, opened, (20.0,), open_spread("cpu,cpu"), tmp_path, streams=1, score="product"
    )
    token.touch()
    with pytest.raises(FateError, match=r"1 of 2 jobs failed: shard ./2: it ended without a result.*reading drive.raw"):
        predict()
    assert len(list(tmp_path.glob("20hz_*.npz"))) == 1
    before = logs(tmp_path)
    (run,) = predict()
    assert len(logs(tmp_path) - before) == 1
    (whole,) = predict_rates(load(), opened, (20.0,), streams=1)
    assert run.predictions == whole.predictions
    assert list(run.predictions) == list(whole.predictions)
    assert (run.windows, run.events, run.score) == (whole.windows, whole.events, whole.score)
    assert not list(tmp_path.glob("20hz_*.npz"))


@pytest.mark.slow
def test_a_study_on_two_devices_trains_everything_once_and_writes_its_table(tmp_path: Path) -> None:
    dataset = write_drives(tmp_path, ("train", "val", "test"))
    words = ("study", "smoke", "--dataset", dataset, "--out", tmp_path, "--set", "run.epoch_steps=2", "--set",
             "data.steps=2", "--workers", "0", "--devices", "cpu,cpu")  # fmt: skip
    text = run(*words)
    assert "| S5-ViT + PE + FAT |" in text
    assert "not run" not in text
    said = "".join(log.read_text() for log in logs(tmp_path / "smoke-jobs"))
    for title in ("train sim/fate-s-nano-20hz", "label sim/fate-s-nano-20hz", "train sim/fate-s-nano"):
        assert said.count(f"{title}, seed 0 is done") == 1
    before = logs(tmp_path / "smoke-jobs")
    assert run(*words).split("Training,")[0] == text.split("Training,")[0]
    assert logs(tmp_path / "smoke-jobs") == before


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        ("evaluate fate-s-nano DIR --devices none", 2, "none was given; expected all"),
        ("evaluate fate-s-nano DIR --devices cpu,cpu --device cpu", 2, "--devices cpu,cpu and --device cpu"),
        ("evaluate fate-s-nano DIR --devices cpu,cpu --shard 1/2", 2, "--devices cpu,cpu and --shard 1/2"),
        ("densify fate-s-nano DIR --out o --devices cpu,cpu --shard 1/2", 2, "give one of them"),
        ("densify --check DIR --labels o --devices cpu,cpu", 2, "without MODEL, DATASET, --out and --devices"),
        ("simulate NEW --devices cpu,cpu --slurm partition=gpu", 2, "goes with --devices slurm:N"),
        ("simulate NEW --slurm partition=gpu", 2, "goes with --devices slurm:N"),
        ("simulate NEW --devices slurm:2 --slurm partition", 2, "expected NAME=VALUE, such as partition=gpu"),
        ("simulate NEW --shard 3/2", 2, "3/2 was given"),
        ("study labels --dataset sim --devices cpu,cpu", 2, "one detector at a time"),
        ("evaluate fate-s-nano SET --devices slurm:2 --kind own", 1, "give --predictions DIR or --json FILE"),
        ("evaluate BOXES SET --devices cpu,cpu --kind own", 1, "these are for a detector"),
    ],
)
def test_bad_usage_is_one_sentence_and_starts_nothing(
    words: str, code: int, named: str, dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "boxes").mkdir()
    there = {"DIR": str(tmp_path), "NEW": str(tmp_path / "new"), "SET": str(dataset), "BOXES": str(tmp_path / "boxes")}
    done = fate(*(there.get(word, word) for word in words.split()))
    assert done.returncode == code, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["boxes"]
