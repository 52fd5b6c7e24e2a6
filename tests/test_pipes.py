"""A pipe that nobody writes to, under every name that a user can give: one sentence, and no waiting."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fate
from fate.boxes.dense_labels import open_dense_labels
from fate.boxes.detection_files import read_frames
from fate.boxes.label_files import read_labels, write_labels
from fate.boxes.labels import Labels
from fate.boxes.predictions import read_predictions
from fate.data.manifests import find_manifest
from fate.data.opening import open_dataset
from fate.data.rvt_layout import RvtSequence
from fate.errors import FateError
from fate.models.checkpoints import is_own, load_model, read_card
from fate.models.checkpoints.public_files import read_tensors
from fate.simulation.writing.manifest import load_manifest
from fate.training.config import read_config


class Waited(BaseException):
    """A call waits for the pipe; no ``except`` but that of pytest stops this."""


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """End a call that waits for the pipe."""

    def waited(*_: Any) -> None:
        raise Waited

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.yaml", read_config),
        ("a.yaml", open_dataset),
        ("a.json", read_labels),
        ("a.npy", read_labels),
        ("a.npz", read_labels),
        ("a.json", read_frames),
        ("a.jsonl", read_frames),
        ("a.json", read_predictions),
        ("a.npz", read_predictions),
        ("a.safetensors", load_model),
        ("a.safetensors", read_card),
        ("a.ckpt", read_tensors),
        ("a.raw", fate.open_recording),
        ("net_a.pth", lambda path: read_tensors(path.parent)),
        ("model.safetensors", lambda path: read_tensors(path.parent)),
        ("manifest.json", lambda path: open_dense_labels(path.parent)),
        ("manifest.json", lambda path: find_manifest(path.parent)),
        ("manifest.json", lambda path: load_manifest(path.parent)),
        ("a.npy", lambda path: open_dataset(path.parent)),
        ("a.txt", lambda path: read_labels(path.parent)),
    ],
)
def test_a_pipe_is_refused(tmp_path: Path, name: str, read: Any) -> None:
    with pytest.raises(FateError):
        read(pipe(tmp_path / "given" / name))


def test_pipes_beside_good_files_are_refused(tmp_path: Path) -> None:
    write_labels(tmp_path / "a_bbox.npy", Labels([1000], [1], [1], [5], [5], [0]))
    pipe(tmp_path / "a_bbox_times.npy")
    with pytest.raises(FateError, match="pipe"):
        read_labels(tmp_path / "a_bbox.npy")
    assert not is_own(pipe(tmp_path / "b.safetensors"))


def test_pipes_in_a_dataset_do_not_block(tmp_path: Path) -> None:
    pipe(tmp_path / "drive_bbox.npy")
    fate.write_events(tmp_path / "drive_td.dat", fate.Events([1, 2], [3, 4], [5, 6], [0, 1], (240, 304)))
    pipe(tmp_path / "notes.csv")
    with pytest.raises(FateError, match="drive"):
        dataset = open_dataset(tmp_path, classes=["car"])
        _ = [recording.labels for recording in dataset]


def test_a_sequence_of_rvt_with_a_pipe_is_refused(tmp_path: Path) -> None:
    file = pipe(tmp_path / "labels_v2" / "labels.npz")
    with pytest.raises(FateError, match="pipe"):
        RvtSequence.read_label_file(None, file)  # type: ignore[arg-type]  # it does not look at itself
