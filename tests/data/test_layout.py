"""Which files of a folder are recordings, and which labels belong to them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fate import FateError, Labels, open_recording, read_labels, write_events, write_labels
from fate.data import layout as layout_module
from fate.data.layout import find_recordings
from fate.data.rvt_layout import find_sequences
from tests.conftest import make_events

EVENTS = make_events(50)
LABELS = Labels([100, 200], [1, 2], [1, 2], [9, 9], [9, 9], [0, 0], sensor=(48, 64), classes=("car",))


def put(path: Path) -> Path:
    """A file of events or, by its name, of labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = path.stem.endswith(("_bbox", "_labels", "_truth")) or path.suffix in (".json", "")
    labels |= path.name in ("labels.npz", "tracks.npy")
    if labels:
        write_labels(path, LABELS)
    else:
        write_events(path, EVENTS)
    return path


def test_the_public_layout_gives_splits_labels_and_truth(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        put(tmp_path / split / "drive_1_td.dat")
        put(tmp_path / split / "drive_1_bbox.npy")
        put(tmp_path / split / "drive_1_truth.npz")
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "train" / "preview.mp4").write_bytes(b"x")
    layout = find_recordings(tmp_path)
    assert [entry.name for entry in layout] == ["test/drive_1", "train/drive_1", "val/drive_1"]
    for entry in layout:
        assert entry.labels == entry.events.with_name("drive_1_bbox.npy")
        assert entry.truth == entry.events.with_name("drive_1_truth.npz")
    only = find_recordings(tmp_path, "val")
    assert [entry.name for entry in only] == ["val/drive_1"]
    assert find_recordings(tmp_path / "test")[0].split == "test"


@pytest.mark.parametrize(
    "events", ["a.raw", "a.dat", "a_td.dat", "a.h5", "a.hdf5", "a.npz", "a.npy", "a.csv", "a_td.dat.h5"]
)
@pytest.mark.parametrize("labels", ["a_bbox.npy", "a_labels.npz", "a.json", "labels/a_bbox.npy", "a"])
def test_labels_are_found_by_the_stem_of_the_recording(tmp_path: Path, events: str, labels: str) -> None:
    put(tmp_path / events)
    put(tmp_path / labels)
    (entry,) = find_recordings(tmp_path)
    assert (entry.name, entry.split) == ("a", None)
    assert entry.events == tmp_path / events
    assert entry.labels == tmp_path / labels
    assert len(read_labels(entry.labels)) == len(LABELS)
    assert len(open_recording(entry.events, sensor=(48, 64)).read()) == len(EVENTS)


def test_an_npz_of_labels_is_not_a_recording_and_one_of_events_no_labels(tmp_path: Path) -> None:
    put(tmp_path / "a.raw")
    write_labels(tmp_path / "a.npz", LABELS)
    put(tmp_path / "b.raw")
    write_events(tmp_path / "b.npz", EVENTS)
    layout = find_recordings(tmp_path)
    assert [(entry.name, entry.labels) for entry in layout] == [
        ("a", tmp_path / "a.npz"),
        ("b.npz", None),
        ("b.raw", None),
    ]


def test_a_folder_for_each_recording_gives_its_name(tmp_path: Path) -> None:
    put(tmp_path / "train" / "zurich" / "events.h5")
    put(tmp_path / "train" / "zurich" / "labels.npz")
    (entry,) = find_recordings(tmp_path)
    assert (entry.name, entry.split) == ("train/zurich", "train")
    assert entry.labels == tmp_path / "train" / "zurich" / "labels.npz"


def test_tables_of_other_things_are_left_out(tmp_path: Path) -> None:
    put(tmp_path / "a.raw")
    np.save(tmp_path / "timestamps.npy", np.arange(5))
    (tmp_path / "README.txt").write_text("Recorded on Monday.\n")
    (tmp_path / "a_calibration.csv").write_text("fx,fy\n1.0,2.0\n")
    (tmp_path / ".hidden.raw").write_bytes(b"x")
    assert [entry.name for entry in find_recordings(tmp_path)] == ["a"]


def test_a_single_recording_finds_its_labels(tmp_path: Path) -> None:
    put(tmp_path / "a_td.dat")
    put(tmp_path / "a_bbox.npy")
    put(tmp_path / "b_td.dat")
    (entry,) = find_recordings(tmp_path / "a_td.dat")
    assert (entry.name, entry.labels) == ("a", tmp_path / "a_bbox.npy")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    put(tmp_path / "data" / "a.raw")
    (tmp_path / "data" / "again").symlink_to(tmp_path / "data")
    assert len(find_recordings(tmp_path)) == 1


def test_nothing_to_find_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FateError, match="no such folder or file"):
        find_recordings(tmp_path / "missing")
    with pytest.raises(FateError, match=r"has no event recordings; looked, in all folders below, for \.dat"):
        find_recordings(tmp_path)
    put(tmp_path / "train" / "a_td.dat")
    with pytest.raises(FateError, match="no recordings of the split 'test'; its splits are train"):
        find_recordings(tmp_path, "test")
    with pytest.raises(FateError, match="expected train, val or test"):
        find_recordings(tmp_path, "holdout")
    shutil.rmtree(tmp_path / "train")
    put(tmp_path / "x" / "event_representations_v2" / "histogram" / "event_representations.h5")
    with pytest.raises(FateError, match="RVT's histograms are none"):
        find_recordings(tmp_path)


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, lock_folder: Callable[[Path], None]) -> None:
    put(tmp_path / "open" / "drive_1_td.dat")
    put(tmp_path / "locked" / "drive_2_td.dat")
    put(tmp_path / ".hidden" / "drive_3_td.dat")
    lock_folder(tmp_path / ".hidden")
    assert [entry.name for entry in find_recordings(tmp_path)] == ["locked/drive_2", "open/drive_1"]
    lock_folder(tmp_path / "locked")
    with pytest.raises(FateError, match="locked.*[Pp]ermission denied"):
        find_recordings(tmp_path)


def test_labels_that_may_not_be_looked_for_are_named(tmp_path: Path, lock_folder: Callable[[Path], None]) -> None:
    put(tmp_path / "train" / "drive_1_td.dat")
    (tmp_path / "labels").mkdir()
    lock_folder(tmp_path / "labels")
    with pytest.raises(FateError, match="labels.*[Pp]ermission denied"):
        find_recordings(tmp_path / "train")


def test_sequences_that_may_not_be_read_are_named(tmp_path: Path, lock_folder: Callable[[Path], None]) -> None:
    (tmp_path / "train" / "drive_1").mkdir(parents=True)
    lock_folder(tmp_path / "train")
    with pytest.raises(FateError, match="train.*[Pp]ermission denied"):
        find_sequences(tmp_path)


def test_a_folder_with_very_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        put(tmp_path / f"part_{number}" / "drive_td.dat")
    monkeypatch.setattr(layout_module, "MAX_ENTRIES", 12)
    assert len(find_recordings(tmp_path)) == 6
    monkeypatch.setattr(layout_module, "MAX_ENTRIES", 11)
    with pytest.raises(FateError, match="more than 11 files"):
        find_recordings(tmp_path)
