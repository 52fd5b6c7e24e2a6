"""A checkpoint that is not whole is refused in one sentence that says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fate.errors import FateError
from fate.training.loop import build, train
from fate.training.run_directory import RunDirectory, read_metrics
from tests.training.conftest import small_config

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A folder with something as large as it need be in its checkpoint."""
    made = RunDirectory(tmp_path)
    torch.save({"global_step": 7, "state_dict": {"weight": torch.arange(1000.0)}}, made.checkpoint)
    return made


def fault(run: RunDirectory) -> str:
    """What is said of the checkpoint: one line, that says what to do, and nothing of how it was found."""
    with pytest.raises(FateError) as caught:
        run.saved_step()
    text = str(caught.value)
    assert text.startswith(f"{run.checkpoint}: ")
    assert "delete it" in text
    assert "\n" not in text
    for word in ("torch", "Pytorch", "pickle", "zip", "archive", "weights_only", "Traceback", "Error"):
        assert word not in text.replace(str(run.folder), "")
    return text


def test_a_whole_checkpoint_tells_its_step(run: RunDirectory) -> None:
    assert run.saved_step() == 7


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_checkpoint_that_was_cut_short_is_said_to_be(run: RunDirectory, share: float) -> None:
    content = run.checkpoint.read_bytes()
    kept = int(share * len(content))
    run.checkpoint.write_bytes(content[:kept])
    assert f"cut short or overwritten (its {kept} bytes" in fault(run)


def test_one_changed_byte_of_a_weight_is_found(run: RunDirectory) -> None:
    content = bytearray(run.checkpoint.read_bytes())
    content[content.index(np.arange(1000, dtype=np.float32).tobytes()) + 1234] ^= 1
    run.checkpoint.write_bytes(content)
    assert "has been changed since it was written" in fault(run)


def test_any_changed_byte_is_refused_in_our_words_or_does_not_matter(run: RunDirectory) -> None:
    whole = run.checkpoint.read_bytes()
    random, refused = np.random.default_rng(0), 0
    for place in random.integers(0, len(whole), 150).tolist():
        content = bytearray(whole)
        content[place] ^= int(random.integers(1, 256))
        run.checkpoint.write_bytes(content)
        try:
            assert run.saved_step() == 7  # in what fills up between the parts
            assert torch.equal(
                torch.load(run.checkpoint, weights_only=True)["state_dict"]["weight"], torch.arange(1000.0)
            )
        except FateError:
            refused += 1
            fault(run)
    assert refused > 100


@pytest.mark.parametrize("content", [{"weight": torch.zeros(3)}, [1, 2], {"global_step": "late"}])
def test_a_file_of_something_else_is_said_to_be(run: RunDirectory, content: object) -> None:
    torch.save(content, run.checkpoint)
    assert "holds something else than the state of a training run" in fault(run)


@pytest.mark.slow
def test_a_run_with_a_damaged_checkpoint_names_the_weights_that_are_left_and_begins_anew_without_it(
    drives: Path, tmp_path: Path
) -> None:
    config, folder = small_config(drives, run={"epochs": 1}), tmp_path / "run"
    train(config, folder)
    content = (folder / "last.ckpt").read_bytes()
    (folder / "last.ckpt").write_bytes(content[: len(content) // 2])
    with pytest.raises(FateError, match=f"or give model.weights={folder / 'last.safetensors'} and another out=DIR"):
        train(config, folder)
    (folder / "last.ckpt").unlink()
    assert train(config, folder).step == 2
    build(small_config(drives, f"model.weights={folder / 'last.safetensors'}"))  # the other way can be gone too


def test_half_a_line_of_metrics_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    path.write_text('{"step": 0, "score": 0.1}\n[1]\n{"step": 2, "sco')
    assert read_metrics(path) == [{"step": 0, "score": 0.1}]
