"""How fast windows are loaded from disk, by rate and by number of workers, compared with histograms in RVT's layout.

RVT converts every recording to histograms first (20 channels for each 50 ms, compressed by blosc) and reads those. Here
events are read in place, at any rate. Both are read in the order of training's streams, in one run, from the same disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fate.bench.harness import BenchResult, Measurement, Report, private_memory_mb
from fate.data.clips import evaluation_batches
from fate.data.dataset import Dataset
from fate.data.loading import ClipReader
from fate.data.opening import as_dataset
from fate.encoding.grids import StackedHistogram
from fate.errors import FateError
from fate.processes import worker_start_method

BATCH = 8  # recordings in a batch, as in training
MEMORY_EVERY = 64  # calls between two readings of a worker's memory, which take as long as a window
HISTOGRAM_HZ = 20.0  # rate of RVT's histograms


def bench_data(
    dataset: str | os.PathLike[str] | Dataset,
    folder: str | os.PathLike[str],
    hz: Sequence[float] = (20, 200),
    workers: Sequence[int] = (0, 1, 2),
    seconds: float = 5.0,
    progress: Report | None = None,
) -> BenchResult:
    """Measure how fast the windows of a dataset are loaded.

    Args:
        dataset: a folder, a YAML file, or an open dataset of events.
        folder: where the histograms of its recordings are written, about 1 MB for each second of Gen1.
        hz: rates of windows.
        workers: numbers of loading processes.
        seconds: length of each measurement; a short dataset is read repeatedly.
        progress: called with a line about the next measurement.
    """
    dataset = as_dataset(dataset)
    if dataset.holds != "events":
        raise FateError(f"{dataset.root}: holds histograms and no events; give a dataset of recordings")
    report = progress or (lambda _: None)
    report("writing histograms in RVT's layout")
    files = [write_histograms(recording, Path(folder)) for recording in dataset.recordings]
    readers = [("events", rate, partial(_read_events, dataset, rate)) for rate in hz]
    readers.append(("histograms", HISTOGRAM_HZ, partial(_read_histograms, files)))
    found = []
    for count in workers:
        for name, rate, windows in readers:
            report(f"{name}, {rate:g} Hz, {count} workers")
            found.append(_measure(name, rate, count, windows, seconds))
    spans = sum(recording.end_us - recording.start_us for recording in dataset.recordings)
    rate = sum(recording.num_events for recording in dataset.recordings) / max(spans, 1) * 1e6
    theirs = {each.workers: each.windows_per_s for each in found if each.reader == "histograms"}
    return BenchResult(
        f"{dataset.name}: {len(dataset)} recordings, {rate / 1e6:.2f} Mev/s",
        {"dataset": dataset.name, "recordings": len(dataset), "events_per_s": rate},
        "reader | Hz | workers | windows/s | of histograms | MB a worker",
        "{reader} | {hz:g} | {workers} | {windows_per_s:.0f} | {ratio:.2f} × | {worker_mb:.0f}",
        found,
        lambda each: {"ratio": each.windows_per_s / theirs[each.workers]},
        missing="–",
    )


def write_histograms(recording: Any, folder: Path) -> Path:
    """Write the 50 ms histograms of a recording as RVT stores them: uint8 [T, 20, H, W], one chunk each, blosc zstd."""
    import h5py  # noqa: PLC0415
    import hdf5plugin  # noqa: PLC0415

    path = folder / f"{recording.name.replace('/', '_')}.h5"
    encoder = StackedHistogram(recording.sensor)
    reader = ClipReader([recording], recording.sensor, with_labels=False)
    frames = [
        encoder(batch.inputs("cpu"))[0].numpy().astype(np.uint8)
        for batch in map(reader.batch, evaluation_batches([recording], HISTOGRAM_HZ, 1, 1))
    ]
    reader.close()
    with h5py.File(path, "w") as file:
        blosc = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE)
        file.create_dataset("data", data=np.stack(frames), chunks=(1, *frames[0].shape), **blosc)
    return path


def _read_events(dataset: Dataset, hz: float) -> Iterator[int]:
    """Read batches of events as detectors take them, and yield their numbers of windows."""
    reader = ClipReader(dataset.recordings, dataset.sensor, with_labels=False)
    worker, workers = _own_share()
    for index, clips in enumerate(evaluation_batches(dataset.recordings, hz, min(BATCH, len(dataset)), 1)):
        if index % workers == worker:
            yield min(reader.batch(clips).ends_us.size, sum(not clip.is_empty for clip in clips))
    reader.close()


def _read_histograms(files: Sequence[Path]) -> Iterator[int]:
    """Read the histograms of the files in order, and yield 1 for each."""
    import h5py  # noqa: PLC0415
    import hdf5plugin  # noqa: F401, PLC0415  (registers the filter)

    worker, workers = _own_share()
    for path in files[worker::workers] or files[:1]:
        with h5py.File(path, "r") as file:
            for index in range(len(file["data"])):
                yield int(file["data"][index].shape[0] > 0)


def _own_share() -> tuple[int, int]:
    """Return the index of this worker and the number of workers."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class _Timed(IterableDataset[tuple[int, float]]):
    """Numbers of windows with the memory of this process in MB, repeated until the time is over."""

    def __init__(self, windows: Callable[[], Iterator[int]], seconds: float) -> None:
        self.windows, self.seconds = windows, seconds

    def __iter__(self) -> Iterator[tuple[int, float]]:
        end, calls = None, 0
        while end is None or time.perf_counter() < end:
            for count in self.windows():
                yield count, 0.0 if calls % MEMORY_EVERY else private_memory_mb()
                calls += 1
                end = time.perf_counter() + self.seconds if end is None else end  # the first call opens files
                if time.perf_counter() >= end:
                    break


def _measure(reader: str, hz: float, workers: int, windows: Callable[[], Iterator[int]], seconds: float) -> Measurement:
    """Load windows for some seconds; the memory is the private one of the largest worker, None if it is not known."""
    context = worker_start_method() if workers else None
    loader = DataLoader(_Timed(windows, seconds), batch_size=None, num_workers=workers, multiprocessing_context=context)
    total, memory, start, last = 0, 0.0, 0.0, 0.0
    for count, own_mb in loader:
        last, memory = time.perf_counter(), max(memory, float(own_mb))
        if not start:
            start = last  # the first call opens files and is not counted
            continue
        total += int(count)
    return Measurement(
        reader=reader,
        hz=hz,
        workers=workers,
        windows=total,
        windows_per_s=total / max(last - start, 1e-9),
        worker_mb=memory if workers and memory else None,
    )
