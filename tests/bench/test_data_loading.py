"""What the measurement of reading measures."""

from __future__ import annotations

from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  (registers the filter)
import numpy as np
import pytest

import fate
from fate.bench.data_loading import bench_data, write_histograms
from fate.data.dataset import Dataset
from fate.data.opening import open_dataset
from fate.encoding.grids import StackedHistogram


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("noise")
    (folder / "classes.txt").write_text("car\n")
    for number in range(2):
        random = np.random.default_rng(number)
        t = np.sort(random.integers(0, 400_000, 4_000))
        columns = (random.integers(0, top, len(t)) for top in (32, 24, 2))
        fate.write_events(folder / f"noise_{number}.dat", fate.Events(t, *columns, (24, 32)))
        fate.write_labels(folder / f"noise_{number}_bbox.npy", fate.Labels([200_000], [1], [2], [9], [9], [0]))
    return open_dataset(folder, kind="own")


@pytest.mark.slow
def test_histograms_are_those_of_rvt(dataset: Dataset, tmp_path: Path) -> None:
    recording = dataset.recordings[0]
    path = write_histograms(recording, tmp_path)
    with h5py.File(path) as file, recording.open() as reader:
        frames = file["data"]
        assert frames.dtype == np.uint8
        assert frames.chunks == (1, 20, 24, 32)
        start = recording.start_us
        window = fate.Window(start, start + 50_000)
        batch = fate.EventBatch.from_windows([(window, reader.read(window.start_us, window.end_us))])
        assert np.array_equal(frames[0], StackedHistogram((24, 32))(batch)[0].numpy())


def test_every_way_is_measured_and_none_reads_nothing(dataset: Dataset, tmp_path: Path) -> None:
    result = bench_data(dataset, tmp_path, hz=(20, 100), workers=(0,), seconds=0.2)
    assert [(m.reader, m.hz) for m in result.measurements] == [("events", 20), ("events", 100), ("histograms", 20)]
    assert all(m.windows > 0 and m.windows_per_s > 0 for m in result.measurements)
    table = result.table()
    assert "| histograms | 20 | 0 |" in table
    assert "1.00 ×" in table
