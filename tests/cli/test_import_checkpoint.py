"""``fate import-checkpoint`` as a user runs it."""

from __future__ import annotations

import ast
import sys
import warnings
from pathlib import Path

import pytest
import torch

from fate.cli import import_checkpoint
from fate.cli.main import main
from fate.models.checkpoints import read_card, save_model
from fate.models.checkpoints.importing import TRANSFORMERS_DETECTORS as DETECTORS
from fate.models.zoo import build_model
from tests.cli.running import fate
from tests.models.conftest import FOLDER


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with the names and shapes of the public RVT-B."""
    keys = FOLDER / "keys_rvt_b_gen1.txt"
    if not keys.exists():
        pytest.skip("the names in the public checkpoints are not beside this checkout")
    entries = {}
    for line in keys.read_text().splitlines():
        name, rest = line.split(" ", 1)
        shape, dtype = rest.rsplit(" ", 1)
        entries[name] = torch.ones((), dtype=getattr(torch, dtype)).expand(ast.literal_eval(shape))
    path = tmp_path_factory.mktemp("public") / "rvt-b.ckpt"
    torch.save({"state_dict": {**entries, "loss.weight": torch.ones(2)}, "epoch": 3}, path)
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line that a run with bad input prints; in this process, since torch is imported here already."""
    with (
        warnings.catch_warnings(),
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(SystemExit) as ended,
    ):
        patch.setattr(sys, "argv", ["fate", "import-checkpoint", *map(str, arguments)])
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("error: ")


def test_a_checkpoint_is_written_and_what_was_found_is_told(public: Path, tmp_path: Path) -> None:
    target = tmp_path / "ours.safetensors"
    done = fate("import-checkpoint", public, target, "--classes", "bus, dog", "--sensor", "160x128")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert told == {
        "layout": "RVT",
        "model": "rvt-b, 18.54 M parameters",
        "classes": "bus, dog",
        "sensor": "160×128",
        "taken": "424 tensors",
        "fresh": "nothing",
        "unused": "1 tensor (loss.weight)",
        "written": str(target),
    }
    card = read_card(target)
    assert card["model"]["name"] == "rvt-b"
    assert card["model"]["sensor"] == [128, 160]
    assert card["imported"]["from"] == "rvt-b.ckpt"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--classes", "car"], "has 2 classes; 1 were given (car)"),
        (["--classes", "bus, dog"], "(bus, dog)"),
        (["--model", "fate-e"], "holds rvt-b, but fate-e"),
    ],
)
def test_what_does_not_agree_with_the_checkpoint_is_bad_input_in_one_sentence(
    public: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    sentence = refused(capsys, public, tmp_path / "ours.safetensors", *options)
    assert sentence.startswith(f"{public}: ")
    assert words in sentence
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"mine", b"PK\x03\x04 and no more", b"\x80\x02}q\x00.", None])
def test_what_is_no_checkpoint_is_bad_input_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    source = tmp_path / "source.ckpt"
    if content is not None:
        source.write_bytes(content)
    sentence = refused(capsys, source, tmp_path / "ours.safetensors")
    assert sentence.startswith(f"{source}: ")
    assert not (tmp_path / "ours.safetensors").exists()


def test_an_output_that_cannot_be_written_is_refused_before_the_source_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "no" / "ours.safetensors"
    sentence = refused(capsys, tmp_path / "nothing.ckpt", target)
    assert sentence.startswith(f"OUT {target}: the folder ")


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("b.pth", [], "b.pth: expected a name that ends in .safetensors"),
        ("a.safetensors", [], "would replace what is read"),
        ("b.safetensors", ["--sensor", "big"], "'--sensor': big was given; expected WIDTHxHEIGHT"),
        ("b.safetensors", ["--classes", "car,,bus"], "'--classes': car,,bus was given; expected different names"),
        ("b.safetensors", ["--classes", "car,car"], "'--classes': car,car was given; expected different names"),
        ("b.safetensors", ["--classes", ""], "expected different names"),
        ("b.safetensors", ["--model", "rvt-b"], "expected one of evrt-detr-b, fate-e, evrt-detr-s"),
        ("b.safetensors", ["c.safetensors"], "unexpected extra argument"),
    ],
)
def test_bad_values_on_the_command_line_are_bad_usage(
    tmp_path: Path, target: str, options: list[str], words: str
) -> None:
    done = fate("import-checkpoint", tmp_path / "a.safetensors", tmp_path / target, *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_help_has_an_example_and_names_the_models_of_the_library() -> None:
    done = fate("import-checkpoint", "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert tuple(name for names in DETECTORS.values() for name in names) == import_checkpoint.MODELS
    assert all(name in done.stdout for name in import_checkpoint.MODELS)


def test_a_file_of_fates_own_needs_no_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.safetensors"
    save_model(build_model("s5-vit-nano", "car", (64, 64)), own)
    said = refused(capsys, own, tmp_path / "out.safetensors")
    assert "written by FATE, so it needs no import" in said
    assert not (tmp_path / "out.safetensors").exists()
