"""scripts/average_weights.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fate import FateError
from fate.models.checkpoints import load_model, read_card, save_model
from fate.models.zoo import build_model
from tests.conftest import load_script


@pytest.fixture(scope="module")
def script() -> Any:
    return load_script("average_weights")


def save(path: Path, seed: int, step: int, **options: Any) -> Path:
    torch.manual_seed(seed)
    model = build_model("fate-s-nano", ("car",), (64, 96), dims=(8, 16, 32, 64), **options)
    save_model(model, path, facts={"training": {"step": step}})
    return path


def test_every_number_is_the_weighted_mean(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = save(tmp_path / "a.safetensors", 1, 10), save(tmp_path / "b.safetensors", 2, 20)
    out = tmp_path / "out.safetensors"
    monkeypatch.setattr(sys, "argv", ["average_weights", *map(str, (out, first, 0.25, second, 0.75))])
    script.main()
    states = [load_model(path).state_dict() for path in (first, second, out)]
    for name, found in states[2].items():
        if found.is_floating_point():
            expected = 0.25 * states[0][name] + 0.75 * states[1][name]
            assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4), name
    assert read_card(out)["training"] == {"step": 20, "averaged": [["a.safetensors", 0.25], ["b.safetensors", 0.75]]}


@pytest.mark.parametrize("option", ["length_affine", "image_history"])
def test_parameters_that_the_first_file_does_not_have_count_as_new(script: Any, tmp_path: Path, option: str) -> None:
    first, second = save(tmp_path / "a.safetensors", 1, 10), save(tmp_path / "b.safetensors", 2, 20, **{option: True})
    averaged, new = script.average([(first, 0.5), (second, 0.5)]).state_dict(), load_model(second).state_dict()
    fresh = build_model("fate-s-nano", ("car",), (64, 96), dims=(8, 16, 32, 64), **{option: True}).state_dict()
    old = load_model(first).state_dict()
    own = [name for name in new if "length_affine" in name or name.startswith("history.")]
    assert own
    for name in own:
        assert torch.allclose(averaged[name], (fresh[name] + new[name]) / 2, atol=1e-5), name
    shared = [name for name in old if name.startswith(("neck.", "head.")) and old[name].is_floating_point()]
    assert shared
    for name in shared:
        assert torch.allclose(averaged[name], (old[name] + new[name]) / 2, rtol=1e-3, atol=1e-5), name


def test_other_detectors_and_other_sums_are_refused(script: Any, tmp_path: Path) -> None:
    first, other = save(tmp_path / "a.safetensors", 1, 10), save(tmp_path / "c.safetensors", 1, 10, length_affine=True)
    with pytest.raises(FateError, match=r"c\.safetensors: .*a\.safetensors.*length_affine.*one detector"):
        script.average([(other, 0.5), (first, 0.5)])
    torch.manual_seed(3)
    dogs = build_model("fate-s-nano", ("dog",), (64, 96), dims=(8, 16, 32, 64))
    save_model(dogs, tmp_path / "dogs.safetensors")
    with pytest.raises(FateError, match=r"dogs\.safetensors: .*c\.safetensors.*classes.*one detector"):
        script.average([(tmp_path / "dogs.safetensors", 0.5), (other, 0.5)])
    with pytest.raises(FateError, match=r"0\.5, 0\.6.*sum of 1"):
        script.average([(first, 0.5), (first, 0.6)])
    with pytest.raises(FateError, match=r"-0\.5, 1\.5.*0 to 1"):
        script.average([(first, -0.5), (first, 1.5)])


def test_wrong_arguments_are_named_without_a_traceback(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, out = save(tmp_path / "a.safetensors", 1, 10), tmp_path / "out.safetensors"
    cases = {"exists": [first, first, "1"], "in turns": [out, first], "half": [out, first, "half"],
             "missing": [out, tmp_path / "missing.safetensors", "1"]}  # fmt: skip
    for words, arguments in cases.items():
        monkeypatch.setattr(sys, "argv", ["average_weights", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            script.main()
        assert stopped.value.code == 2
        assert words in capsys.readouterr().err
    assert not out.exists()
