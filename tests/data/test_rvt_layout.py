"""RVT's preprocessed layout: images and labels as its files hold them, and what is missing named."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fate import FateError, FateWarning, MissingDependencyError, open_dataset
from fate.data.rvt_layout import USUAL_REPRESENTATION, RvtSequence

BOX = np.dtype(
    [
        ("t", "<i8"),
        *((side, "<f4") for side in "xywh"),
        ("class_id", "<u4"),
        ("track_id", "<u4"),
        ("class_confidence", "<f4"),
    ]
)


def write_sequence(
    folder: Path,
    *,
    seed: int = 0,
    images: int = 12,
    size: tuple[int, int] = (240, 304),
    name: str = "event_representations.h5",
    kind: str = "stacked_histogram_dt=50_nbins=10",
    plugin: Any = None,
) -> np.ndarray[Any, Any]:
    """A sequence as RVT's script leaves it, every third image labelled; returns the images."""
    random = np.random.default_rng(seed)
    home = folder / "event_representations_v2" / kind
    home.mkdir(parents=True)
    (folder / "labels_v2").mkdir(exist_ok=True)
    data = (random.random((images, 20, *size)) < 0.01).astype(np.uint8) * random.integers(1, 10, dtype=np.uint8)
    options = {} if plugin is None else dict(plugin.Blosc(cname="zstd", clevel=1, shuffle=plugin.Blosc.SHUFFLE))
    with h5py.File(home / name, "w") as file:
        file.create_dataset("data", data=data, chunks=(1, 20, *size), maxshape=(None, 20, *size), **options)
    ends = 100_000 + 50_000 * np.arange(images, dtype=np.int64)
    np.save(home / "timestamps_us.npy", ends)
    places = np.arange(2, images, 3, dtype=np.int64)
    np.save(home / "objframe_idx_2_repr_idx.npy", places)
    np.save(folder / "labels_v2" / "timestamps_us.npy", ends[places])
    scale = 2 if "ds2" in name else 1
    rows = np.zeros(2 * len(places), BOX)
    rows["t"] = np.repeat(ends[places], 2)
    rows["x"], rows["y"] = random.uniform(0, 40, len(rows)), random.uniform(0, 40, len(rows))
    rows["w"], rows["h"] = 60 * scale, 50 * scale
    rows["class_id"] = np.tile([0, 1], len(places))
    rows["class_confidence"] = 1
    starts = np.arange(0, len(rows), 2)
    np.savez(folder / "labels_v2" / "labels.npz", labels=rows, objframe_idx_2_label_idx=starts)
    return data


@pytest.fixture
def gen1(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        for name in ("a", "b"):
            write_sequence(tmp_path / split / name, seed=len(split))
    return tmp_path


def test_images_and_labels_are_those_of_the_files(tmp_path: Path) -> None:
    plugin = pytest.importorskip("hdf5plugin")
    data = write_sequence(tmp_path / "val" / "seq", plugin=plugin)
    dataset = open_dataset(tmp_path)
    assert (dataset.kind, dataset.holds, dataset.protocol) == ("rvt", "histograms", "gen1")
    assert (dataset.classes, dataset.sensor, dataset.downscale) == (("car", "pedestrian"), (240, 304), 1)
    (sequence,) = dataset
    assert isinstance(sequence, RvtSequence)
    assert (sequence.name, sequence.split, sequence.num_images) == ("val/seq", "val", 12)
    assert np.array_equal(sequence.images(3, 7), data[3:7])
    assert sequence.images(3, 7).dtype == np.uint8
    assert sequence.images(5, 5).shape == (0, 20, 240, 304)
    found, ends = sequence.read_images(150_000, 300_000)
    assert ends.tolist() == [200_000, 250_000, 300_000]  # windows end in (start, end]
    assert np.array_equal(found, data[2:5])
    assert (sequence.start_us, sequence.end_us, sequence.window_us) == (50_000, 650_000, 50_000)
    labels = sequence.labels
    assert labels.labelled_us.tolist() == sequence.timestamps_us[sequence.label_images].tolist()
    with np.load(tmp_path / "val" / "seq" / "labels_v2" / "labels.npz") as stored:
        rows = stored["labels"]
    assert np.array_equal(labels.x1, rows["x"])
    assert np.array_equal(labels.y2, rows["y"] + rows["h"])
    assert np.array_equal(labels.class_id, rows["class_id"])
    assert dataset.faults == ()
    assert np.array_equal(pickle.loads(pickle.dumps(sequence)).images(0, 1), data[:1])


def test_half_resolution_halves_boxes_that_are_stored_in_full(tmp_path: Path) -> None:
    name = "event_representations_ds2_nearest.h5"
    write_sequence(tmp_path / "test" / "s", size=(360, 640), name=name, images=4)
    dataset = open_dataset(tmp_path, "test")
    assert (dataset.protocol, dataset.sensor, dataset.downscale) == ("1mpx", (360, 640), 2)
    assert dataset.classes == ("pedestrian", "two wheeler", "car")
    labels = dataset["test/s"].labels
    assert np.allclose(labels.x2 - labels.x1, 60)
    assert labels.sensor == (360, 640)
    with pytest.raises(FateError, match="holds no event_representations.h5"):
        open_dataset(tmp_path, downscale=1)


def test_events_cannot_be_had_back_and_images_end_where_they_end(gen1: Path) -> None:
    sequence = open_dataset(gen1, "train").recordings[0]
    assert isinstance(sequence, RvtSequence)
    for ask in (sequence.open, lambda: sequence.num_events):
        with pytest.raises(FateError, match="holds histograms.*read_images"):
            ask()
    for first, last in ((0, 13), (-1, 2), (5, 4)):
        with pytest.raises(FateError, match="there are 12, counted from 0"):
            sequence.images(first, last)
    assert sequence.truth is None


def test_a_split_or_one_sequence_opens_too(gen1: Path) -> None:
    assert [r.name for r in open_dataset(gen1)] == ["train/a", "train/b", "val/a", "val/b"]
    assert [(r.name, r.split) for r in open_dataset(gen1 / "val")] == [("a", "val"), ("b", "val")]
    assert [(r.name, r.split) for r in open_dataset(gen1 / "val" / "b")] == [("b", "val")]
    with pytest.raises(FateError, match="has no sequences in RVT's layout of the split 'test'"):
        open_dataset(gen1, "test")


def test_faulty_sequences_are_left_out_or_unlabelled_and_named(gen1: Path) -> None:
    home = gen1 / "train" / "cut"
    write_sequence(home)
    images = home / "event_representations_v2" / USUAL_REPRESENTATION / "event_representations.h5"
    images.write_bytes(images.read_bytes()[:2000])
    write_sequence(gen1 / "train" / "unlabelled")
    (gen1 / "train" / "unlabelled" / "labels_v2" / "labels.npz").unlink()
    write_sequence(gen1 / "train" / "torn")
    torn = gen1 / "train" / "torn" / "labels_v2" / "labels.npz"
    torn.write_bytes(torn.read_bytes()[:100])
    write_sequence(gen1 / "train" / "small", size=(120, 152))
    (gen1 / "train" / "nothing").mkdir()
    write_sequence(gen1 / "train" / "odd", kind="one")
    write_sequence(gen1 / "train" / "odd", kind="two")
    with pytest.warns(FateWarning, match="4 of 8 recordings are left out"):
        dataset = open_dataset(gen1, "train")
    assert [r.name for r in dataset] == ["train/a", "train/b", "train/torn", "train/unlabelled"]
    assert [r.name for r in dataset.labelled] == ["train/a", "train/b"]
    for name, words in (
        ("cut", "left out"),
        ("unlabelled", "has no labels"),
        ("torn", "its labels are not used"),
        ("small", "left out: it is 152×120"),
        ("nothing", "it has no folder event_representations_v2"),
        ("odd", "it has 2 representations and none is stacked_histogram_dt=50_nbins=10"),
    ):
        (fault,) = [fault for fault in dataset.faults if fault.startswith(f"train/{name}: ")]
        assert words in fault
    assert len(dataset.faults) == 6


def test_another_representation_is_used_where_it_is_the_only_one(tmp_path: Path) -> None:
    write_sequence(tmp_path / "val" / "s", kind="stacked_histogram_dt=5_nbins=10")
    (sequence,) = open_dataset(tmp_path)
    assert isinstance(sequence, RvtSequence)
    assert sequence.window_us == 5000


def test_histograms_of_another_camera_need_classes(tmp_path: Path) -> None:
    write_sequence(tmp_path / "val" / "s", size=(120, 160), images=4)
    with pytest.raises(FateError, match="160×120 sensor, neither Gen1 nor 1Mpx; pass classes="):
        open_dataset(tmp_path)
    dataset = open_dataset(tmp_path, classes=["cat", "dog"])
    assert (dataset.protocol, dataset["val/s"].labels.classes) == ("custom", ("cat", "dog"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda file: file.__delitem__("data"), "has no table 'data'"),
        (lambda file: _replace(file, h5py.ExternalLink("/etc/passwd", "/data")), "has no table 'data'"),
        (lambda file: _replace(file, np.zeros((3, 4), np.uint8)), "expected uint8"),
        (lambda file: _replace(file, np.zeros((2, 20, 4, 4), np.float32)), "expected uint8"),
    ],
)
def test_files_that_are_no_histograms_are_refused(tmp_path: Path, spoil: Any, words: str) -> None:
    write_sequence(tmp_path / "val" / "s", images=4)
    path = tmp_path / "val" / "s" / "event_representations_v2" / USUAL_REPRESENTATION / "event_representations.h5"
    with h5py.File(path, "r+") as file:
        spoil(file)
    with pytest.raises(FateError) as caught:
        open_dataset(tmp_path)
    assert words in str(caught.value)


def _replace(file: Any, data: Any) -> None:
    del file["data"]
    file["data"] = data


def test_a_missing_filter_names_the_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = pytest.importorskip("hdf5plugin")
    write_sequence(tmp_path / "val" / "s", images=4, plugin=plugin)
    usual = importlib.import_module

    def without(name: str, *rest: Any) -> Any:
        if name == "hdf5plugin":
            raise ImportError(name)
        return usual(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
    with pytest.raises(MissingDependencyError, match="pip install hdf5plugin"):
        open_dataset(tmp_path)
