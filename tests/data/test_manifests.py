"""Files of a simulated dataset beside its manifest: each kind of harm is told, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fate import Events, write_events
from fate.data.manifests import Listing, find_listing
from fate.inspection.inspect import inspect
from fate.simulation.writing.manifest import Manifest, PreviewEntry, RecordingEntry, file_facts
from fate.simulation.writing.request import Request
from fate.workflows.inspection_page import write_inspection_page

NAMES = {"train": ("a", "b"), "test": ("c",)}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three recordings and a preview, listed by the simulator's own manifest."""
    home = tmp_path / "set"
    made = Manifest(Request(recordings=3), ("car",), (240, 304))
    for split, names in NAMES.items():
        (home / split).mkdir(parents=True)
        for name in names:
            random = np.random.default_rng(made.totals()["recordings"])
            t = np.sort(random.integers(0, 200_000, 3000))
            x, y, p = (random.integers(0, size, 3000) for size in (304, 240, 2))
            files = [home / split / f"{name}_td.dat", home / split / f"{name}_bbox_times.npy"]
            write_events(files[0], Events(t, x, y, p, (240, 304)))
            np.save(files[1], np.arange(3))
            listed = {f"{split}/{file.name}": file_facts(file) for file in files}
            index = made.totals()["recordings"]
            entry = RecordingEntry(index, name, split, index, 0.2, "cpu", "0", 1, 3000, 1, {}, {}, {}, listed)  # type: ignore[arg-type]
            made = replace(made, recordings=(*made.recordings, entry))
    (home / "train" / "preview.mp4").write_bytes(bytes(5000))
    preview = PreviewEntry(file_facts(home / "train" / "preview.mp4"), ("a",))
    replace(made, previews={"train": preview}).save(home)
    return home


def listing(dataset: Path, split: str | None = None) -> Listing:
    found = find_listing(dataset, split)
    assert found is not None
    return found


def test_a_whole_dataset_has_no_flags(dataset: Path) -> None:
    assert listing(dataset).compare() == ()
    found = inspect(dataset, windows=1)
    assert (found.files_compared, found.flags) == (7, ())
    assert found.file_summary == "manifest.json: all 7 files have the size and SHA-256 that it lists"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.filterwarnings("ignore:.*not a whole DAT record")
@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (Path.unlink, "is missing; it is listed with "),
        (cut, "is cut short: it has "),
        (lengthen, "has changed: it has "),
        (flip, "has changed: its SHA-256 is not the one"),
    ],
)
@pytest.mark.parametrize("name", ["train/b_td.dat", "train/preview.mp4", "test/c_bbox_times.npy"])
def test_a_file_that_is_not_as_listed_is_flagged_and_no_other(
    dataset: Path, harm: Callable[[Path], None], words: str, name: str
) -> None:
    harm(dataset / name)
    (flag,) = listing(dataset).compare()
    assert flag.startswith(f"{name}: {words}")


def test_flags_are_in_the_text_the_json_and_the_page(dataset: Path) -> None:
    flip(dataset / "train" / "b_td.dat")
    (flag,) = listing(dataset).compare()
    found = inspect(dataset, windows=1)
    assert found.flags == (flag,)
    assert f"manifest.json: 1 of 7 files are not as it lists them\nflag: {flag}" in found.text()
    assert found.to_dict()["flags"] == [flag]
    write_inspection_page(found, dataset / "page.html")
    assert flag[:-1] in (dataset / "page.html").read_text("utf-8")


def test_only_what_is_looked_at_is_compared(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(dataset / "train" / "b_td.dat")
    assert [len(listing(dataset, split).files) for split in ("train", "test")] == [5, 2]
    assert [len(listing(dataset / split).compare()) for split in ("train", "test")] == [1, 0]
    assert [len(listing(dataset / "train" / f"{name}_td.dat").files) for name in "ab"] == [2, 2]
    assert [len(listing(dataset / "train" / f"{name}_td.dat").compare()) for name in "ab"] == [0, 1]
    monkeypatch.chdir(dataset / "train")
    assert len(listing(Path()).files) == 5
    (dataset / "train" / "new.dat").write_bytes(b"")
    assert find_listing(dataset / "train" / "new.dat") is None


def test_progress_rises_to_the_end(dataset: Path) -> None:
    (dataset / "test" / "c_td.dat").unlink()
    seen: list[float] = []
    listing(dataset).compare(lambda share, *more: seen.append(share))
    assert len(seen) == 8
    assert seen == sorted(seen)
    assert seen[-1] == 1
    steps: list[tuple[int, int]] = []
    inspect(dataset, windows=1, progress=lambda done, total, *more: steps.append((done, total)))
    assert steps == sorted(steps)
    assert steps[0][0] < 100
    assert steps[-1] == (2200, 2200)


def test_a_manifest_that_cannot_be_used_is_flagged_and_the_rest_inspected(dataset: Path) -> None:
    whole = (dataset / "manifest.json").read_bytes()
    document = json.loads(whole)
    escaping = document | {"previews": {"../..": {"file": {"bytes": 1, "sha256": ""}, "of": []}}}
    for text, words in (
        (whole[:1000], "is damaged"),
        (b"", "is damaged"),
        (json.dumps(document | {"schema": 9}).encode(), "its schema is 9"),
        (json.dumps(document | {"recordings": 5}).encode(), "is damaged"),
        (json.dumps(escaping).encode(), "no path inside the dataset"),
    ):
        (dataset / "manifest.json").write_bytes(text)
        found = inspect(dataset, windows=1)
        (flag,) = found.flags
        assert flag.startswith("manifest.json: ")
        assert words in flag
        assert len(found.reports) == 3


def test_manifests_of_others_are_none_of_ours(dataset: Path) -> None:
    for text in ('[{"file": "a"}]', "not JSON at all"):
        (dataset / "manifest.json").write_text(text)
        assert find_listing(dataset) is None
    (dataset / "manifest.json").unlink()
    found = inspect(dataset, windows=1)
    assert found.files_compared is None
    assert "manifest.json" not in found.text()
