"""``fate simulate`` as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from fate.cli.main import app
from fate.simulation.writing import request
from fate.simulation.writing.manifest import load_manifest
from fate.simulation.writing.request import DEVICES, PROFILES
from tests.cli.running import fate


@pytest.mark.slow
def test_a_dataset_is_made_and_summed_up_and_nothing_is_left_to_do_the_second_time(tmp_path: Path) -> None:
    arguments = ["simulate", str(tmp_path / "set"), "--recordings", "2", "--seconds", "0.06", "--threads", "1"]
    done = fate(*arguments)
    assert done.returncode == 0, done.stderr
    found = load_manifest(tmp_path / "set")
    assert found is not None
    assert len(found.recordings) == 2
    table = [line.split() for line in done.stdout.splitlines()]
    assert [row[:3] for row in table[1:4]] == [["train", "1", "0.06"], ["val", "1", "0.06"], ["all", "2", "0.12"]]
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
    ("extra", "words"),
    [
        (["--recordings", "0"], "give a whole number from 1"),
        (["--seconds", "0"], "from 0.01 to 3600"),
        (["--seconds", "-2"], "from 0.01 to 3600"),
        (["--seconds", "nan"], "from 0.01 to 3600"),
        (["--seconds", "0.0001"], "from 0.01 to 3600"),
        (["--threads", "-1"], "'--threads': -1 was given"),
        (["--profile", "gen9"], f"one of {', '.join(PROFILES)}"),
        (["--device", "tpu"], "expected auto, cpu, cuda"),
        (["--recordings", "many"], "--recordings"),
    ],
)
@pytest.mark.parametrize("bench", [False, True])
def test_bad_values_on_the_command_line_are_bad_usage_and_nothing_is_made(
    tmp_path: Path, bench: bool, extra: list[str], words: str
) -> None:
    done = fate("bench", "simulate", *extra) if bench else fate("simulate", tmp_path / "set", *extra)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    sentences = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(sentences) == 1
    assert words in sentences[0]
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_share_of_cameras_at_rest_beyond_1_is_bad_usage(tmp_path: Path) -> None:
    done = fate("simulate", tmp_path / "set", "--at-rest", "1.5")
    assert done.returncode == 2
    assert "the share of cameras at rest is 1.5; give a number from 0 to 1" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_which_recordings_are_of_cameras_at_rest_is_told_and_kept(tmp_path: Path) -> None:
    words = ("--seconds", "0.02", "--no-preview")
    both = fate("simulate", tmp_path / "both", *words, "--recordings", "4", "--at-rest", "0.5")
    driving = fate("simulate", tmp_path / "no", *words, "--recordings", "1")
    kept = load_manifest(tmp_path / "both")
    assert kept is not None
    expected = {job.name: job.at_rest for job in kept.request.jobs()}
    assert {entry.name: entry.at_rest for entry in kept.recordings} == expected
    head, *_, last = (line.split("  ") for line in both.stdout.split("\n\n")[0].splitlines())
    columns = [cell.strip() for cell in head if cell]
    assert [cell.strip() for cell in last if cell][columns.index("at rest")] == str(sum(expected.values()))
    assert "at rest" not in driving.stdout


def test_a_seed_below_0_is_bad_usage(tmp_path: Path) -> None:
    done = fate("simulate", tmp_path / "set", "--seed", "-1")
    assert done.returncode == 2
    assert "the seed is -1" in done.stderr


@pytest.mark.parametrize(
    ("folder", "extra", "words"),
    [
        ("set", ["--recordings", "900000", "--seconds", "3600"], "GB are free"),
        ("file", [], "is not a folder"),
        ("file/set", [], "is not a folder"),
        ("long" * 64, [], "no folder can be there (File name too long)"),
    ],
)
def test_what_cannot_be_written_is_bad_input_in_one_sentence(
    tmp_path: Path, folder: str, extra: list[str], words: str
) -> None:
    (tmp_path / "file").write_text("mine")
    done = fate("simulate", tmp_path / folder, *extra)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("command", [["simulate"], ["bench", "simulate"]])
def test_help_has_an_example_and_names_the_choices_of_the_library(command: list[str]) -> None:
    done = fate(*command, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert all(name in done.stdout for name in (*PROFILES, *DEVICES))


def test_a_command_takes_its_choices_from_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "PROFILES", ("gen7", "gen8"))
    with pytest.raises(typer.BadParameter, match="gen7, gen8"):
        app(["simulate", "set"], standalone_mode=False)


@pytest.mark.parametrize(
    ("extra", "words", "code"),
    [
        (["--labels", "a.txt"], "it goes with --video", 2),
        (["--video", "a.mp4", "--device", "cuda"], "converted on the CPU", 2),
        (["--video", "a.mp4", "--camera", "gen9"], "gen1, 1mpx, park, ideal", 2),
        (["--video", "a.mp4", "--split", "all"], "train, val, test", 2),
        (["--video", "missing.mp4"], "missing.mp4", 1),
    ],
)
def test_bad_options_of_videos_are_refused_and_nothing_is_made(
    tmp_path: Path, extra: list[str], words: str, code: int
) -> None:
    done = fate("simulate", tmp_path / "set", *extra)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert not (tmp_path / "set").exists()
