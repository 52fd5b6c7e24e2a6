"""Compact files give the events, batches and images that reading in place gives."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fate
from fate.boxes.labels import Labels
from fate.data import event_table
from fate.data.clips import NOTHING, Clip
from fate.data.compact_events import CompactEvents
from fate.data.compact_files import CompactFile, WordLayout, write_compact
from fate.data.loading import ClipReader, WindowRequests
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events, Sensor
from tests.conftest import make_events
from tests.data.test_loading import SENSOR, SOURCES, Reader, Source
from tests.data.test_resident import CHANGES, DEVICES, check_same, clips_strategy


class Compacted(NamedTuple):
    """A recording with a compact file."""

    whole: Source
    compact_file: Path
    name: str = "compacted"

    @property
    def start_us(self) -> int:
        return self.whole.start_us

    @property
    def end_us(self) -> int:
        return self.whole.end_us

    @property
    def labels(self) -> Labels:
        return self.whole.labels

    def open(self) -> Reader:
        return self.whole.open()


def compacted(folder: Path) -> list[Compacted]:
    found = []
    for number, source in enumerate(SOURCES):
        events = source.open().read(-(2**62), 2**62)
        path = folder / f"{number}.h5"
        start, end = (int(events.t_us[0]), int(events.t_us[-1]) + 1) if len(events) else (0, 1)
        write_compact(path, events.between, Sensor.of(SENSOR), start, end, len(events))
        found.append(Compacted(source, path))
    return found


@pytest.fixture(scope="module", params=DEVICES)
def compact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CompactEvents:
    return CompactEvents(compacted(tmp_path_factory.mktemp("compact")), SENSOR, request.param)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CHANGES)
@settings(max_examples=40, deadline=None)
@given(clips=clips_strategy, warmup=st.sampled_from([None, 0, 3]))
def test_batches_are_those_that_are_read(
    compact: CompactEvents, name: str, clips: list[Clip], warmup: int | None
) -> None:
    readers = [
        ClipReader(SOURCES, SENSOR, augmentation=CHANGES[name], warmup=warmup, resident=each) for each in (False, True)
    ]
    read, sought = (reader.batch(clips) for reader in readers)
    assert isinstance(sought.events, WindowRequests)
    found = compact.complete(sought)
    assert isinstance(read.events, EventBatch)
    assert isinstance(found.events, EventBatch)
    check_same(read.events, found.events)
    if read.teacher is not None:
        assert found.teacher is not None
        check_same(read.teacher.events, found.teacher.events)  # type: ignore[arg-type]


def test_a_large_batch_is_selected_in_groups(compact: CompactEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_table, "EVENTS_AT_ONCE", 100)
    clips = [Clip(0, 20.0, 0, 8, True, 3), NOTHING, Clip(1, 200.0, 4, 8, True, 5)]
    readers = [
        ClipReader(SOURCES, SENSOR, augmentation=CHANGES["paper"], warmup=2, resident=each) for each in (False, True)
    ]
    read, sought = (reader.batch(clips) for reader in readers)
    check_same(read.events, compact.complete(sought).events)  # type: ignore[arg-type]


def test_a_batch_of_empty_clips_has_no_events(compact: CompactEvents) -> None:
    sought = ClipReader(SOURCES, SENSOR, resident=True).batch([NOTHING._replace(steps=2)])
    found = compact.complete(sought).events
    assert isinstance(found, EventBatch)
    assert found.counts == (0, 0)


LABELS = Labels([100_000, 200_000], [1, 2], [3, 4], [40, 50], [25, 40], [0, 1])
SIZES = [Sensor(240, 304), Sensor(360, 640), Sensor(720, 1280), Sensor(1, 1), Sensor(2048, 4096)]


@pytest.mark.parametrize("sensor", SIZES, ids=str)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_time_span_reads_as_in_memory(
    tmp_path_factory: pytest.TempPathFactory, sensor: Sensor, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    number, start = data.draw(st.integers(1, 2000)), data.draw(st.integers(-(10**6), 10**12))
    t = np.sort(start + rng.integers(0, data.draw(st.sampled_from([1, 50_000, 500_000])), number))
    t[-1] += data.draw(st.sampled_from([0, 400_000]))  # a gap without events
    x, y = (rng.integers(0, side, number) for side in (sensor.width, sensor.height))
    events = Events(t, x, y, rng.integers(0, 2, number), sensor)
    path = tmp_path_factory.mktemp("spans") / "events.h5"
    write_compact(path, events.between, sensor, int(t[0]), int(t[-1]) + 1, number)
    file = CompactFile.open(path, sensor)
    assert file.read(-(2**62), 2**62) == events
    for _ in range(5):
        first, length = data.draw(st.integers(-60_000, 560_000)), data.draw(st.integers(0, 300_000))
        bounds = int(t[0]) + first, int(t[0]) + first + length
        assert file.read(*bounds) == events.between(*bounds)


def test_words_have_the_documented_bits() -> None:
    layout = WordLayout(Sensor(360, 640))
    assert (layout.position_bits, layout.block_us) == (20, 2048)
    events = Events([7], [639], [359], [1], (360, 640))
    assert layout.pack(events, np.array([0])).tolist() == [7 << 20 | 359 << 11 | 639 << 1 | 1]
    assert WordLayout(Sensor(240, 304)).block_us == 8192


def test_a_sensor_that_leaves_no_bits_for_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FateError, match="8192"):
        write_compact(tmp_path / "a.h5", lambda a, b: Events.empty((8192, 8192)), Sensor(8192, 8192), 0, 1, 0)
    assert not list(tmp_path.iterdir())


def _written(path: Path) -> Events:
    events = Events([5, 6, 9000], [0, 3, 2], [1, 1, 0], [1, 0, 1], (3, 5))
    write_compact(path, events.between, Sensor(3, 5), 5, 9001, 3)
    return events


def _move_outside(file: h5py.File) -> None:
    file["words"][1] |= 7 << 1  # x = 7 of 5 columns


def _disorder(file: h5py.File) -> None:
    file["words"][:2] = file["words"][:2][::-1]


def _wrong_index(file: h5py.File) -> None:
    file["offsets"][-1] = 99


def _other_version(file: h5py.File) -> None:
    file.attrs["version"] = 9


def _no_words(file: h5py.File) -> None:
    del file["words"]


@pytest.mark.parametrize("damage", [_move_outside, _disorder, _wrong_index, _other_version, _no_words])
def test_damage_is_named_with_the_file_and_the_remedy(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "drive.h5"
    _written(path)
    with h5py.File(path, "r+") as file:
        damage(file)  # type: ignore[operator]
    source = Compacted(SOURCES[0], path)
    requests = WindowRequests(
        np.array([[0, 10_000]]), np.array([0]), np.array([-1]), np.zeros((0, 2, 3)), np.zeros((1, 4), np.int64)
    )
    batch = ClipReader(SOURCES, SENSOR, resident=True).batch([Clip(0, 20.0, 0, 1, True, 0)])._replace(events=requests)
    with pytest.raises(FateError, match=r"drive\.h5.*fate prepare"):
        CompactEvents([source], (3, 5), "cpu").complete(batch)  # type: ignore[list-item]
    with pytest.raises(FateError, match=r"drive\.h5.*fate prepare"):
        CompactFile.open(path, Sensor(3, 5)).read(0, 10_000)


def test_a_file_that_is_cut_or_no_hdf5_file_or_of_another_sensor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "drive.h5"
    _written(path)
    whole = CompactFile.open(path, Sensor(3, 5))
    with pytest.raises(FateError, match="3×5|5×3"):
        CompactFile.open(path, Sensor(5, 5))
    data = path.read_bytes()
    path.write_bytes(data[: whole.position + 4])
    for reading in (lambda: whole.read(0, 10_000), lambda: CompactFile.open(path, Sensor(3, 5))):
        with pytest.raises(FateError, match=r"drive\.h5"):
            reading()
    path.write_bytes(b"no events")
    with pytest.raises(FateError, match=r"drive\.h5"):
        CompactFile.open(path, Sensor(3, 5))


# ---- a prepared dataset -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("1mpx")
    for number, split in enumerate(("train", "val", "test")):
        (folder / split).mkdir()
        events = make_events(20_000, (720, 1280), seed=number)
        fate.write_events(folder / split / f"{split}_td.dat", events)
        fate.write_labels(folder / split / f"{split}_bbox.npy", LABELS)
    return folder


def test_images_of_a_prepared_dataset_are_those_of_reading_in_place(recordings: Path, tmp_path: Path) -> None:
    done = fate.prepare("1mpx", recordings, tmp_path, compact=True)
    assert "compact files of 3 recordings" in done.text()
    plain, quick = fate.open_dataset(recordings, "train"), fate.open_dataset(tmp_path, "train")
    assert quick.sensor == (360, 640)
    assert all(each.compact_file is not None for each in quick.recordings)
    clips = [Clip(0, hz, 1, 3, True, 7) for hz in (20.0, 200.0)]
    encoder = fate.PillarEncoder((360, 640)).eval()
    images = []
    for dataset in (plain, quick):
        reader = ClipReader(dataset.recordings, dataset.sensor, augmentation=CHANGES["paper"])
        images.append(encoder(reader.batch(clips).inputs("cpu")))
    assert images[0].count_nonzero() > 100
    assert torch.equal(*images)
    size = sum(file.stat().st_size for file in (tmp_path / "events").rglob("*.h5"))
    found = fate.open_dataset(tmp_path).recordings
    blocks = sum((each.end_us - each.start_us) // 2048 + 2 for each in found)
    assert size < 4 * sum(each.num_events for each in found) + 8 * blocks + 8192 * len(found)


def test_only_what_is_missing_is_written_again(recordings: Path, tmp_path: Path) -> None:
    fate.prepare("1mpx", recordings, tmp_path, compact=True)
    files = sorted((tmp_path / "events").rglob("*.h5"))
    before = {file: file.stat().st_mtime_ns for file in files}
    files[0].unlink()
    dataset = fate.open_dataset(tmp_path)
    assert any(files[0].stem in fault and "compact" in fault for fault in dataset.faults)
    assert sum(each.compact_file is None for each in dataset.recordings) == 1
    fate.prepare("1mpx", recordings, tmp_path)  # without compact files nothing of them changes
    assert not files[0].exists()
    fate.prepare("1mpx", recordings, tmp_path, compact=True)
    assert files[0].exists()
    assert all(file.stat().st_mtime_ns == before[file] for file in files[1:])
    assert all(each.compact_file is not None for each in fate.open_dataset(tmp_path).recordings)
