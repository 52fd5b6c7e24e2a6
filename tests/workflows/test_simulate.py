"""Simulated datasets: what is on disk, the same bytes again, and nothing lost when a run stops."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fate import Events, FateError, FateWarning, open_recording, read_labels
from fate.data.layout import find_recordings
from fate.data.manifests import simulated_sensors
from fate.data.opening import open_dataset
from fate.evaluation.protocols import named_protocol
from fate.events.events import COMMON_FRAME, Sensor
from fate.formats.prophesee.dat import DatWriter
from fate.simulation.art.catalogue import SPLITS
from fate.simulation.camera.camera_model import camera_preset
from fate.simulation.camera.random_sensor import draw_sensor
from fate.simulation.render.scene import Boxes, BoxesAt, RecordedPiece, Scene
from fate.simulation.writing import recording_files
from fate.simulation.writing.manifest import load_manifest
from fate.simulation.writing.recording_files import box_times, label_times, truth_times
from fate.simulation.writing.request import RecordingJob, Request
from fate.workflows import simulate as workflow
from fate.workflows.simulate import shown_in, simulate

STRETCH_US = 100_000
#: Twelve recordings are spread like this.
SPREAD = {"train": 8, "val": 2, "test": 2}


class FakeScene(NamedTuple):
    """What the writer asks of a scene, without a street."""

    seed: int
    duration_us: int
    label_hz: int = 4
    shows: str = "a test"
    classes: tuple[str, ...] = ("car", "pedestrian")
    frame: Sensor = Sensor(240, 304)
    camera: Any = None
    random_sensor: Any = None

    def boxes(self, t_us: int) -> Boxes:
        count = (t_us // 50_000 + self.seed) % 3  # sometimes none
        corners = np.array([[10, 20, 40, 50], [100.5, 80, 140, 121.25]], np.float32)[:count] + t_us / 1e5
        ids = np.arange(count)
        return Boxes(corners, ids.astype(np.int32), ids.astype(np.int64), np.linspace(0.5, 1, 2, dtype="f4")[:count])


def fake_recording(place: int, scene: FakeScene) -> Iterator[RecordedPiece]:
    random = np.random.default_rng(scene.seed)
    times = box_times(scene)  # type: ignore[arg-type]
    for start in range(0, scene.duration_us, STRETCH_US):
        end = min(start + STRETCH_US, scene.duration_us)
        last = end == scene.duration_us
        t = np.sort(random.integers(start, end, 300))
        x, y, p = (random.integers(0, size, 300) for size in (304, 240, 2))
        wanted = times[(times >= start) & ((times < end) | (last & (times == end)))]
        seen = [scene.boxes(int(at)) for at in wanted] or [scene.boxes(start)]
        boxes = Boxes(*(np.concatenate(column) for column in zip(*seen, strict=True)))
        if not len(wanted):
            boxes = Boxes(*(column[:0] for column in boxes))
        count = np.array([len(each.class_id) for each in seen[: len(wanted)]], np.int64)
        events, found = Events(t, x, y, p, scene.frame), BoxesAt(wanted, count, boxes)
        yield RecordedPiece(place, scene, events, found, last)  # type: ignore[arg-type]


Fake = Callable[..., Iterator[RecordedPiece]]


def fake(side_by_side: bool = False) -> Fake:
    """Instead of :func:`simulate_pieces`: random events, one recording after the other or all in turn."""

    def pieces(
        jobs: Sequence[RecordingJob], asked: Request, device: str, threads: int | None
    ) -> Iterator[RecordedPiece]:
        camera = replace(camera_preset("gen1"), threshold_on=0.35)
        running = []
        for place, job in enumerate(jobs):
            scene = FakeScene(job.seed % 1000, asked.duration_us, camera=camera)
            running.append(fake_recording(place, scene))
        if side_by_side:
            yield from (piece for turn in zip_longest(*running) for piece in turn if piece is not None)
        else:
            for recording in running:
                yield from recording

    return pieces


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "simulate_pieces", fake())


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file by its path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# where it may go


def test_a_file_or_a_folder_of_other_things_is_refused_and_left_alone(tmp_path: Path, faked: None) -> None:
    (tmp_path / "file").write_text("mine")
    other = tmp_path / "other"
    (other / "train").mkdir(parents=True)
    for folder, words in (
        (tmp_path / "file", "is not a folder"),
        (tmp_path / "file" / "inside", "is not a folder"),
        (other, "holds 'train' and no manifest.json"),
    ):
        with pytest.raises(FateError, match=words):
            simulate(folder, 3, 0.1)
    (other / "manifest.json").write_text("{}")
    with pytest.raises(FateError, match="is not the manifest of a simulated dataset"):
        simulate(other, 3, 0.1)
    (other / "manifest.json").write_text('{"format": "fate-simulated-dataset", "schema": 99}')
    with pytest.raises(FateError, match="schema is 99"):
        simulate(other, 3, 0.1)
    (other / "manifest.json").write_text('{"format": "fate-simulated-dataset", "schema": 1, "arguments": {}}')
    with pytest.raises(FateError, match="is damaged"):
        simulate(other, 3, 0.1)
    assert not list((other / "train").iterdir())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything is writable for root")
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, faked: None) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(FateError, match=r"cannot be (made|written)"):
            simulate(tmp_path / "set", 3, 0.1)
    finally:
        tmp_path.chmod(0o755)


# what is on disk


@pytest.mark.slow
def test_a_scene_is_written_as_it_is(tmp_path: Path) -> None:
    found = simulate(tmp_path / "set", 1, 0.5, seed=3, preview=False)
    entry = found.recordings[0]
    assert (entry.index, entry.split, entry.name) == (0, "train", "sim_gen1_000000")
    scene = Scene(entry.seed, "gen1", "train", 0.5)
    base = tmp_path / "set" / "train" / entry.name
    truth = read_labels(f"{base}_truth.npz")
    assert truth.classes == scene.classes == found.classes
    assert truth.sensor == tuple(scene.sensor) == found.sensor
    assert truth.labelled_us.tolist() == list(range(5000, 500_001, 5000))
    visible = np.load(f"{base}_truth.npz")["visible"]
    for time in (5000, 105_000, 340_000, 500_000):
        seen = scene.boxes(time)
        rows = truth.t_us == time
        np.testing.assert_array_equal(truth.at(time).boxes, seen.boxes)
        np.testing.assert_array_equal(truth.at(time).class_id, seen.class_id)
        np.testing.assert_array_equal(truth.at(time).track_id, seen.track_id)
        np.testing.assert_array_equal(visible[rows], seen.visible)
    labels = read_labels(f"{base}_bbox.npy")
    assert entry.label_hz == scene.label_hz
    assert labels.labelled_us.tolist() == [k * 1_000_000 // scene.label_hz for k in range(1, scene.label_hz // 2 + 1)]
    for time in labels.labelled_us:
        np.testing.assert_allclose(labels.at(time).boxes, scene.boxes(int(time)).boxes, atol=1e-4)
    with open_recording(f"{base}_td.dat") as recording:
        events = recording.read()
    assert len(events) == entry.events > 1000
    assert int(events.p.sum()) == entry.on_events
    assert 0 <= events.t_us[0] <= events.t_us[-1] < 500_000
    assert entry.camera["threshold_on"] == scene.camera.threshold_on
    assert found.camera["threshold_on"] == 0.3


def test_a_dataset_of_many_sensors_has_one_frame_and_opens_like_any_other(tmp_path: Path) -> None:
    def sizes(seed: int) -> list[Sensor]:
        return [draw_sensor(job.seed).size for job in Request("mixed", seed, recordings=2).jobs()]

    small = next(seed for seed in range(999) if sorted(map(max, sizes(seed))) == [128, 240])
    made = simulate(tmp_path, 2, 0.06, "mixed", small, preview=False, threads=1)
    assert [tuple(entry.camera["sensor"]) for entry in made.recordings] == sizes(small)
    assert len({entry.camera["threshold_on"] for entry in made.recordings}) == 2
    assert {entry.label_hz for entry in made.recordings} == {20}
    dataset = open_dataset(tmp_path)
    assert (dataset.sensor, dataset.classes) == (COMMON_FRAME, ("car", "pedestrian", "two wheeler"))
    assert named_protocol(dataset.protocol, dataset.sensor).min_diagonal == 30
    assert [len(recording.labels.labelled_us) for recording in dataset] == [1, 1]  # at 20 Hz, also without any object
    assert simulated_sensors(tmp_path, [recording.name for recording in dataset]) == sorted(sizes(small))
    assert simulated_sensors(tmp_path, ["train/another"]) == []


def test_the_layout_is_the_public_one_and_the_manifest_tells_all_of_it(tmp_path: Path, faked: None) -> None:
    found = simulate(tmp_path / "set", 12, 0.51, seed=1)
    folder = tmp_path / "set"
    layout = find_recordings(folder)
    assert {split: sum(entry.split == split for entry in layout) for split in SPLITS} == SPREAD
    assert all(entry.labels is not None and entry.truth is not None for entry in layout)
    on_disk = contents(folder)
    del on_disk["manifest.json"]
    told = {name: file.sha256 for entry in found.recordings for name, file in entry.files.items()}
    told |= {f"{split}/preview.mp4": entry.file.sha256 for split, entry in found.previews.items()}
    assert told == on_disk
    assert len(found.previews) == 3
    assert load_manifest(folder) == found
    document = json.loads((folder / "manifest.json").read_text())
    assert document["arguments"] == {
        "profile": "gen1", "seed": 1, "seconds": 0.51, "recordings": 12, "shares": [0.7, 0.15, 0.15],
            "at_rest": 0.0,
    }  # fmt: skip
    assert document["totals"]["all"]["events"] == sum(open_recording(each.events).num_events for each in layout)
    for kind, ending in (("boxes", "_bbox.npy"), ("truth_boxes", "_truth.npz")):
        rows = np.concatenate([read_labels(path).class_id for path in sorted(folder.rglob(f"*{ending}"))])
        assert document["totals"]["all"][kind] == {"car": int((rows == 0).sum()), "pedestrian": int((rows == 1).sum())}
    assert document["recordings"][0]["camera"] == {"threshold_on": 0.35, "threshold_off": 0.25, "bursts": False}


def test_times_without_boxes_are_labelled_and_empty(tmp_path: Path, faked: None) -> None:
    found = simulate(tmp_path, 6, 0.6, preview=False)
    empty = 0
    for entry in found.recordings:
        for ending, times in (("_bbox.npy", [250_000, 500_000]), ("_truth.npz", list(range(5000, 600_001, 5000)))):
            labels = read_labels(tmp_path / entry.split / f"{entry.name}{ending}")
            assert labels.labelled_us.tolist() == times
            empty += len(np.setdiff1d(labels.labelled_us, labels.t_us))
    assert empty > 0


def test_label_times_follow_the_rate_and_start_after_0() -> None:
    at_60 = label_times(1_000_000, 60)
    assert len(at_60) == 60
    assert at_60[[0, 1, 2, 59]].tolist() == [16_667, 33_333, 50_000, 1_000_000]
    assert len(label_times(4999, 4)) == len(truth_times(4999)) == 0
    assert label_times(3_600_000_000, 1).tolist()[-1] == 3_600_000_000


def test_the_shortest_recording_is_complete(tmp_path: Path, faked: None) -> None:
    found = simulate(tmp_path, 1, 0.01)
    assert found.recordings[0].seconds == 0.01
    assert found.previews["train"].file.bytes > 0


def test_previews_show_the_first_recordings_up_to_ten_seconds(tmp_path: Path, faked: None) -> None:
    from imageio_ffmpeg import read_frames

    found = simulate(tmp_path, 3, 0.4)
    for seconds, indices in ((4, [0, 3, 5]), (60, [0])):
        entries = tuple(replace(found.recordings[0], index=index, seconds=seconds) for index in (0, 3, 5, 7))
        made = replace(found, recordings=entries)
        assert [entry.index for entry in shown_in("train", made)] == indices
    frames = read_frames(str(tmp_path / "val" / "preview.mp4"))
    facts = next(frames)
    assert facts["size"] == (608, 480)
    assert facts["fps"] == 25
    assert sum(1 for _ in frames) == len(range(50_000, 400_001, 40_000))
    assert found.previews["val"].of == ("sim_gen1_000001",)


# the same bytes, and nothing lost


def test_recordings_that_come_side_by_side_give_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, side_by_side in (("one", False), ("other", True)):
        monkeypatch.setattr(workflow, "simulate_pieces", fake(side_by_side))
        simulate(tmp_path / name, 5, 0.3, preview=False)
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_a_larger_number_adds_recordings_and_touches_no_old_one(tmp_path: Path, faked: None) -> None:
    simulate(tmp_path / "grown", 4, 0.2)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "grown").rglob("sim_*")}
    simulate(tmp_path / "grown", 9, 0.2)
    assert before.items() <= {path: path.stat().st_mtime_ns for path in (tmp_path / "grown").rglob("sim_*")}.items()
    simulate(tmp_path / "at_once", 9, 0.2)
    assert contents(tmp_path / "grown") == contents(tmp_path / "at_once")


def test_other_arguments_in_the_same_folder_are_refused_with_the_difference(tmp_path: Path, faked: None) -> None:
    simulate(tmp_path, 3, 0.2, preview=False)
    before = contents(tmp_path)
    for arguments, words in (
        ({"seconds": 0.3}, "seconds 0.2, and seconds 0.3 was asked for"),
        ({"seed": 5}, "seed 0, and seed 5"),
        ({"profile": "1mpx"}, "profile gen1, and profile 1mpx"),
        ({"shares": (1, 1, 1)}, "shares 0.7/0.15/0.15"),
        ({"at_rest": 0.5}, "at_rest 0.0, and at_rest 0.5 was asked for"),
        ({"recordings": 2}, "up to number 3, and 2 were asked for"),
    ):
        with pytest.raises(FateError, match=words):
            simulate(tmp_path, **{"recordings": 3, "seconds": 0.2, "preview": False, **arguments})
    assert contents(tmp_path) == before


def test_lost_cut_and_left_over_files_are_put_right(tmp_path: Path, faked: None) -> None:
    folder = tmp_path
    simulate(folder, 4, 0.2)
    whole = contents(folder)
    (folder / "train" / "sim_gen1_000000_truth.npz").unlink()
    with open(folder / "val" / "sim_gen1_000001_td.dat", "r+b") as file:
        file.truncate(100)
    (folder / "test" / "preview.mp4").unlink()
    for left in (
        "train/.sim_gen1_000007_td.dat.ab12.part",
        "train/.sim_gen1_000007_bbox.npy.812.tmp",
        "train/.preview.mp4.xy.part",
        "val/sim_gen1_000009_td.dat",
        "val/sim_gen1_000009_bbox_times.npy",
        ".manifest.json.77.part",
    ):
        (folder / left).write_bytes(b"half")
    (folder / "train" / "notes.txt").write_text("mine")
    simulate(folder, 4, 0.2)
    assert (folder / "train" / "notes.txt").read_text() == "mine"
    (folder / "train" / "notes.txt").unlink()
    assert contents(folder) == whole


KILLED = """
    import os, signal, sys
    from fate.simulation.writing import recording_files
    from fate.workflows import simulate
    calls = []
    usual = recording_files.RecordingFiles.take
    def take(self, *arguments):
        usual(self, *arguments)
        calls.append(self.job.index)
        if calls.count(1) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    recording_files.RecordingFiles.take = take
    simulate.simulate(sys.argv[1], 2, 0.15, preview=False)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL on this system")
def test_a_killed_run_goes_on_and_gives_the_bytes_of_an_unbroken_one(tmp_path: Path) -> None:
    simulate(tmp_path / "unbroken", 2, 0.15, preview=False)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "killed")], check=False)
    assert done.returncode == -signal.SIGKILL
    known = load_manifest(tmp_path / "killed")
    assert known is not None
    assert [entry.index for entry in known.recordings] == [0]
    assert list((tmp_path / "killed" / "val").glob(".*.part"))
    kept = next((tmp_path / "killed" / "train").glob("*.dat"))
    written = kept.stat().st_mtime_ns
    simulate(tmp_path / "killed", 2, 0.15, preview=False, threads=1)
    assert kept.stat().st_mtime_ns == written
    assert contents(tmp_path / "killed") == contents(tmp_path / "unbroken")


def full_after(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, calls: int) -> None:
    """The disk is full from the given call of a function on."""
    usual, left = getattr(target, name), [calls]

    def maybe(*arguments: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return usual(*arguments, **more)

    monkeypatch.setattr(target, name, maybe)


@pytest.mark.parametrize(
    ("target", "name", "calls", "finished"),
    [
        (DatWriter, "append", 7, 2),
        (DatWriter, "finish", 2, 2),
        (recording_files.npz, "encode_labels", 3, 3),
        (os, "replace", 8, 1),
    ],
)
@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_full_disk_is_one_sentence_and_loses_no_finished_recording(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: Any,
    name: str,
    calls: int,
    finished: int,
    side_by_side: bool,
) -> None:
    monkeypatch.setattr(workflow, "simulate_pieces", fake(side_by_side))
    simulate(tmp_path / "whole", 4, 0.3, preview=False)
    folder = tmp_path / "set"
    with monkeypatch.context() as patched:
        full_after(patched, target, name, calls)
        with pytest.raises(FateError, match=r"[Nn]o space left.* of 4 recordings are finished and kept") as caught:
            simulate(folder, 4, 0.3, preview=False)
    assert "\n" not in str(caught.value)
    known = load_manifest(folder)
    assert known is not None
    if not side_by_side:
        assert len(known.recordings) == finished
    assert f"; {len(known.recordings)} of 4" in str(caught.value)
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there == {"manifest.json"} | {name for entry in known.recordings for name in entry.files}
    simulate(folder, 4, 0.3, preview=False)
    assert contents(folder) == contents(tmp_path / "whole")


def test_without_previews_a_dataset_is_complete_and_says_why(
    tmp_path: Path, faked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise FateError("no ffmpeg was found")

    monkeypatch.setattr(workflow, "make_preview", broken)
    with pytest.warns(FateWarning, match="no preview: no ffmpeg was found") as told:
        found = simulate(tmp_path, 3, 0.2)
    assert [str(warning.message).split()[0] for warning in told] == ["train", "val", "test"]
    assert len(found.recordings) == 3
    assert not found.previews
    monkeypatch.undo()
    monkeypatch.setattr(workflow, "simulate_pieces", fake())
    assert set(simulate(tmp_path, 3, 0.2).previews) == set(SPLITS)


def test_only_one_run_writes_a_folder(tmp_path: Path, faked: None) -> None:
    fcntl = pytest.importorskip("fcntl")
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(FateError, match="another process writes"):
        simulate(tmp_path, 3, 0.2)
    os.close(handle)
    assert len(simulate(tmp_path, 3, 0.2, preview=False).recordings) == 3


def test_progress_counts_simulated_seconds_from_what_is_there_to_all(tmp_path: Path, faked: None) -> None:
    simulate(tmp_path, 2, 0.3, preview=False)
    calls: list[tuple[float, float]] = []
    simulate(tmp_path, 3, 0.3, preview=False, progress=lambda done, total: calls.append((done, total)))
    assert calls[0] == pytest.approx((0.6, 0.9))
    assert calls[-1] == pytest.approx((0.9, 0.9))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
