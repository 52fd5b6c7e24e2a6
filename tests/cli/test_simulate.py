"""``fate simulate`` as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fate.cli import simulate
from fate.simulation.manifest import load_manifest
from fate.simulation.request import DEVICES
from fate.simulation.scene import PROFILES
from tests.cli.test_commands import fate


def test_a_dataset_is_made_and_summed_up_and_nothing_is_left_to_do_the_second_time(tmp_path: Path) -> None:
    arguments = ["simulate", str(tmp_path / "set"), "--recordings", "2", "--seconds", "0.12", "--threads", "1"]
    done = fate(*arguments)
    assert done.returncode == 0, done.stderr
    found = load_manifest(tmp_path / "set")
    assert found is not None
    assert len(found.recordings) == 2
    table = [line.split() for line in done.stdout.splitlines()]
    assert [row[:3] for row in table[1:4]] == [["train", "1", "0.12"], ["val", "1", "0.12"], ["all", "2", "0.24"]]
    assert f"fate inspect {tmp_path / 'set'}" in done.stdout
    assert "train/preview.mp4, val/preview.mp4" in done.stdout
    dates = {path: path.stat().st_mtime_ns for path in (tmp_path / "set").rglob("sim_*")}
    assert fate(*arguments).stdout == done.stdout
    assert dates == {path: path.stat().st_mtime_ns for path in dates}
    other = fate(*arguments, "--seed", "4")
    assert other.returncode == 1
    assert other.stderr.startswith(f"error: {tmp_path / 'set'}: holds a dataset with seed 0")
    assert other.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        (["--recordings", "0"], 1, "give a whole number from 1"),
        (["--seconds", "0"], 1, "more than 0"),
        (["--seconds", "nan"], 1, "more than 0"),
        (["--recordings", "900000", "--seconds", "3600"], 1, "GB are free"),
        (["--threads", "-1"], 1, "threads is -1"),
        (["--profile", "gen9"], 2, "gen1, 1mpx"),
        (["--device", "tpu"], 2, "cpu, cuda"),
        (["--recordings", "many"], 2, "--recordings"),
    ],
)
def test_bad_values_are_one_sentence_and_nothing_is_made(
    tmp_path: Path, extra: list[str], code: int, words: str
) -> None:
    done = fate("simulate", tmp_path / "set", *extra)
    assert done.returncode == code, done.stderr
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    if code == 1:
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_help_has_an_example_and_the_choices_are_those_of_the_library() -> None:
    done = fate("simulate", "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert tuple(PROFILES) == simulate.PROFILES
    assert simulate.DEVICES == DEVICES
