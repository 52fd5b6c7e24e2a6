"""Weights on disk: the same detector comes back, files that are not ours or not whole are refused, nothing is half."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fate
from fate.errors import FateError
from fate.models.checkpoints.saved import FORMAT, LARGE, load_model, read_card, save_model
from fate.models.detector import Detector
from fate.models.zoo import build_model
from fate.version import git_hash
from tests.models.small_detectors import (
    CLASSES,
    FAMILIES,
    SENSOR,
    batch_of,
    difference,
    parts_of,
    small_detector,
    some_windows,
    stirred,
)

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL: dict[str, Any] = {"encoder": "pillars", "encoder_options": {"channels": 8}, "dims": (8, 16, 32, 64)}


def nano(**changed: Any) -> Detector:
    """A small S5-ViT; ``changed`` are arguments of ``build_model``."""
    request: dict[str, Any] = {"name": "s5-vit-nano", "classes": CLASSES, "sensor": SENSOR, **SMALL, **changed}
    return stirred(build_model(**request)).eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Detector, Path]:
    """A detector and its file; nobody changes them."""
    detector, file = nano(), tmp_path_factory.mktemp("weights") / "nano.safetensors"
    save_model(detector, file, facts={"protocol": "gen1", "training": {"steps": 3}})
    return detector, file


def rewritten(source: Path, target: Path, card: dict[str, Any] | str | None, **entries: torch.Tensor) -> Path:
    """The same file with another description, and some other entries."""
    metadata = None if card is None else {"fate": card if isinstance(card, str) else json.dumps(card)}
    save_file({**load_file(source), **entries}, target, metadata)
    return target


@pytest.mark.parametrize("family", FAMILIES)
def test_what_comes_back_computes_the_same_to_the_bit(family: str, tmp_path: Path) -> None:
    detector, file, batch = small_detector(family), tmp_path / "weights.safetensors", batch_of(some_windows(4))
    save_model(detector, file)
    again = load_model(file)
    with torch.no_grad():
        outputs, expected = again(batch, steps=2)[0], detector(batch, steps=2)[0]
    for name, part in parts_of(expected).items():
        assert torch.equal(parts_of(outputs)[name], part), name
    assert not again.training
    assert again.classes == detector.classes
    assert again.frame == detector.frame
    assert again.state_dict().keys() == detector.state_dict().keys()


def test_half_precision_makes_a_smaller_file_and_spares_small_tensors(
    saved: tuple[Detector, Path], tmp_path: Path
) -> None:
    (detector, whole), half = saved, tmp_path / "half.safetensors"
    save_model(detector, half, dtype=torch.float16)
    stored = load_file(half)
    for name, value in detector.state_dict().items():
        if value.numel() >= LARGE and value.is_floating_point():
            assert stored[name].dtype == torch.float16
        else:
            assert torch.equal(stored[name], value), name
    assert half.stat().st_size < 0.75 * whole.stat().st_size
    again, batch = load_model(half), batch_of(some_windows(2))
    assert all(parameter.dtype == torch.float32 for parameter in again.parameters())
    with torch.no_grad():
        assert 0 < difference(again(batch)[0], detector(batch)[0]) < 0.05


def test_the_file_says_what_it_holds(saved: tuple[Detector, Path]) -> None:
    detector, file = saved
    card = read_card(file)
    assert card["model"] == json.loads(json.dumps(detector.description))
    assert card["canonical_hz"] == 20
    assert card["version"].split("+")[0] == fate.__version__
    assert card["protocol"] == "gen1"
    assert card["training"] == {"steps": 3}
    assert card["git_hash"] == git_hash()


def test_what_nobody_told_is_said_to_be_unknown_and_weights_of_other_code_keep_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_model(nano(), file)
    assert read_card(file)["protocol"] is None
    assert read_card(file)["training"] is None
    save_model(nano(), file, facts={"git_hash": "0123abc"})
    assert read_card(file)["git_hash"] == "0123abc"


def test_facts_do_not_replace_the_description(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_model(nano(), file, facts={"model": "mine", "format": 99})
    assert load_model(file).classes == CLASSES


def test_weights_that_do_not_fit_are_listed(saved: tuple[Detector, Path], tmp_path: Path) -> None:
    entries = load_file(saved[1])
    gone = sorted(entries)[7]
    del entries[gone]
    entries["extra.weight"] = torch.zeros(2)
    entries["encoder.beta"] = torch.zeros(5)
    file = tmp_path / "other.safetensors"
    save_file(entries, file, {"fate": json.dumps(read_card(saved[1]))})
    with pytest.raises(FateError) as caught:
        load_model(file)
    for part in (
        f"1 missing ({gone})",
        "1 unexpected (extra.weight)",
        "1 of another shape (encoder.beta (5,) instead of (8,))",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_are_refused(saved: tuple[Detector, Path], tmp_path: Path, number: float) -> None:
    broken = load_file(saved[1])["encoder.beta"].index_fill(0, torch.tensor([3]), number)
    file = rewritten(saved[1], tmp_path / "broken.safetensors", read_card(saved[1]), **{"encoder.beta": broken})
    with pytest.raises(FateError, match=r"encoder\.beta holds numbers that are not finite"):
        load_model(file)


class Burglar:
    """Leaves a trace where its pickle is opened."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("kind", ["torch", "torch before 1.6", *range(2, pickle.HIGHEST_PROTOCOL + 1)])
@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_a_pickle_is_refused_with_the_command_that_imports_it(kind: str | int, suffix: str, tmp_path: Path) -> None:
    trace, file = tmp_path / "trace", tmp_path / f"public{suffix}"
    if isinstance(kind, int):
        file.write_bytes(pickle.dumps({"state_dict": Burglar(trace)}, protocol=kind))
    else:
        torch.save({"state_dict": Burglar(trace)}, file, _use_new_zipfile_serialization=kind == "torch")
    with pytest.raises(FateError, match=r"could run any code.*fate import-checkpoint .*public"):
        load_model(file)
    assert not trace.exists()


@pytest.mark.parametrize("start", [b"\x80", b"PK"])
def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path, start: bytes) -> None:
    """A safetensors file begins with the length of its header, a multiple of 8: one in 32 begins like a pickle."""
    detector, file = nano(), tmp_path / "weights.safetensors"

    def begins(note: str) -> bytes:
        save_model(detector, file, facts={"note": note})
        return file.read_bytes()[:8]

    shortest = int.from_bytes(begins(""), "little")
    more = next(n for n in range(0, 1 << 17, 8) if (shortest + n).to_bytes(8, "little").startswith(start))
    assert begins("x" * more).startswith(start)
    assert load_model(file).classes == CLASSES


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100, 5000, -1])
def test_a_file_that_is_not_whole_is_refused(saved: tuple[Detector, Path], tmp_path: Path, size: int) -> None:
    file = tmp_path / "short.safetensors"
    file.write_bytes(saved[1].read_bytes()[:size])
    with pytest.raises(FateError, match="short.safetensors: not a whole safetensors file"):
        load_model(file)


def test_foreign_files_are_refused(saved: tuple[Detector, Path], tmp_path: Path) -> None:
    picture = tmp_path / "picture.safetensors"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    with pytest.raises(FateError, match="not a whole safetensors file"):
        load_model(picture)
    foreign = rewritten(saved[1], tmp_path / "foreign.safetensors", None)
    with pytest.raises(FateError, match=r"without FATE's description.*fate import-checkpoint"):
        load_model(foreign)
    with pytest.raises(FateError, match="nothing.safetensors: there is no such file"):
        load_model(tmp_path / "nothing.safetensors")
    with pytest.raises(FateError, match="is a folder; expected a .safetensors file"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fate-s", r"^fate-s: no file has this name; .* fate\.build_model\('fate-s', "),
        ("fate-tiny", r"no such file, and no model of this name; .*; did you mean 'fate-[se]-tiny'\?$"),
        ("@", r"^@: there is no such file, .* expected a .safetensors file$"),
        ("fate-s.safetensors", "^fate-s.safetensors: there is no such file, .* expected a .safetensors file$"),
    ],
)
def test_a_name_without_a_file_is_answered_with_what_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FateError, match=said):
        load_model(name)


def test_a_newer_format_says_so(saved: tuple[Detector, Path], tmp_path: Path) -> None:
    for card in ({**read_card(saved[1]), "format": FORMAT + 1, "version": "9.0"}, {"format": 7, "version": "9.0"}):
        file = rewritten(saved[1], tmp_path / "newer.safetensors", card)
        with pytest.raises(FateError, match=r"written by a newer FATE \(9\.0\)"):
            load_model(file)


@pytest.mark.parametrize("damage", ["{", "[]", "3", "null", "{}", '{"format": 1}', '{"format": "1", "model": {}}',
                                    '{"format": 1, "model": {"name": "s5-vit-nano"}}', '{"format": 1, "model": null}',
                                    "more"])  # fmt: skip
def test_a_damaged_description_is_refused(saved: tuple[Detector, Path], tmp_path: Path, damage: str) -> None:
    card = read_card(saved[1])
    text = json.dumps({**card, "model": {**card["model"], "more": 1}}) if damage == "more" else damage
    with pytest.raises(FateError, match="the description in the header is damaged"):
        load_model(rewritten(saved[1], tmp_path / "damaged.safetensors", text))


def test_bad_targets_are_refused(tmp_path: Path) -> None:
    detector = nano()
    with pytest.raises(FateError, match="expected one that ends in .safetensors"):
        save_model(detector, tmp_path / "weights.pt")
    with pytest.raises(FateError, match="the folder .*none does not exist; make it first"):
        save_model(detector, tmp_path / "none" / "weights.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(FateError, match=r"folder\.safetensors: is a folder"):
        save_model(detector, tmp_path / "folder.safetensors")
    with pytest.raises(FateError, match="cannot be written as JSON"):
        save_model(detector, tmp_path / "weights.safetensors", facts={"losses": torch.zeros(2)})
    detector.description = {}
    with pytest.raises(FateError, match="without a description"):
        save_model(detector, tmp_path / "weights.safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["folder.safetensors"]  # and nothing is left lying about


def test_a_file_has_the_mode_of_any_new_file(saved: tuple[Detector, Path], tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    assert saved[1].stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_save_that_fails_leaves_the_old_file(
    saved: tuple[Detector, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(saved[1].read_bytes())

    def full(descriptor: int) -> None:  # where a full disk shows at the latest
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FateError, match=r"cannot be written \(No space left on device\)"):
        save_model(nano(), file)
    assert file.read_bytes() == saved[1].read_bytes()
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
def test_a_process_killed_in_the_middle_leaves_the_old_file(saved: tuple[Detector, Path], tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(saved[1].read_bytes())
    code = f"""
        import os, signal
        from fate.models.checkpoints import load_model, save_model

        detector = load_model({str(file)!r})
        def killed(descriptor):  # all bytes are in the draft, and the file still has its old ones
            os.kill(os.getpid(), signal.SIGKILL)
        os.fsync = killed
        save_model(detector, {str(file)!r})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False, env=os.environ)
    assert done.returncode != 0
    assert file.read_bytes() == saved[1].read_bytes()
    assert load_model(file).classes == CLASSES
