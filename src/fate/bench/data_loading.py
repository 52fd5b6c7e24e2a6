"""How fast windows come off the disk, by rate and by number of workers, beside histograms in RVT's layout.

RVT converts every recording to histograms first (20 channels for each 50 ms, compressed by blosc) and reads those. Here
events are read in place, at any rate. Both are read in the order of training's streams, in one run, off the same disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fate.data.clips import Clip, evaluation_batches
from fate.data.dataset import Dataset
from fate.data.loading import ClipReader
from fate.encoding.grids import StackedHistogram
from fate.errors import FateError
from fate.processes import worker_start_method

#: Recordings side by side, as a batch of training has.
LANES = 8
#: Calls between two looks at a worker's memory, which take as long as a window.
LOOKS = 64
#: The rate of RVT's histograms.
HISTOGRAM_HZ = 20.0


@dataclass(frozen=True)
class DataMeasurement:
    """One way to read, at one rate."""

    reader: str  #: "events" or "histograms"
    hz: float
    workers: int  #: processes; 0 for the one that asks
    windows: int
    windows_per_s: float
    worker_mb: float | None  #: memory that the fullest worker has for itself; None where that cannot be told


@dataclass(frozen=True)
class DataBench:
    """All measurements of one run."""

    dataset: str
    recordings: int
    events_per_s: float  #: of the recordings
    measurements: list[DataMeasurement]

    def to_dict(self) -> dict[str, Any]:
        """All numbers."""
        return asdict(self)


def bench_data(
    dataset: Dataset,
    folder: str | Path,
    hz: Sequence[float] = (20, 200),
    workers: Sequence[int] = (0, 1, 2),
    seconds: float = 5.0,
    progress: Callable[[str], None] | None = None,
) -> DataBench:
    """Read windows for some seconds each way.

    Args:
        dataset: of events.
        folder: where the histograms of its recordings may be written, some 1 MB for each second of Gen1.
        hz: rates of windows.
        workers: numbers of processes.
        seconds: of each measurement; a short dataset is read again and again.
        progress: is told what is measured next.
    """
    if dataset.holds != "events":
        raise FateError(f"{dataset.root}: holds histograms and no events; give a dataset of recordings")
    tell = progress or (lambda _: None)
    tell("writing histograms in RVT's layout")
    files = [write_histograms(recording, Path(folder)) for recording in dataset.recordings]
    found = []
    for count in workers:
        for rate in hz:
            tell(f"events, {rate:g} Hz, {count} workers")
            found.append(_measured("events", rate, count, partial(_event_windows, dataset, rate), seconds))
        tell(f"histograms, {HISTOGRAM_HZ:g} Hz, {count} workers")
        found.append(_measured("histograms", HISTOGRAM_HZ, count, partial(_histogram_windows, files), seconds))
    spans = sum(recording.end_us - recording.start_us for recording in dataset.recordings)
    events = sum(recording.num_events for recording in dataset.recordings)
    return DataBench(dataset.name, len(dataset), events / max(spans, 1) * 1e6, found)


def data_table(result: DataBench) -> str:
    """The measurements as a Markdown table; ratios are against histograms with as many workers."""
    theirs = {m.workers: m.windows_per_s for m in result.measurements if m.reader == "histograms"}
    lines = [
        f"{result.dataset}: {result.recordings} recordings, {result.events_per_s / 1e6:.2f} Mev/s",
        "",
        "| reader | Hz | workers | windows/s | of histograms | MB a worker |",
        "|---|---|---|---|---|---|",
    ]
    for m in result.measurements:
        memory = "–" if m.worker_mb is None else f"{m.worker_mb:.0f}"
        ratio = m.windows_per_s / theirs[m.workers]
        lines.append(f"| {m.reader} | {m.hz:g} | {m.workers} | {m.windows_per_s:.0f} | {ratio:.2f} × | {memory} |")
    return "\n".join(lines)


def write_histograms(recording: Any, folder: Path) -> Path:
    """A recording's 50 ms histograms as RVT stores them: uint8 [T, 20, H, W], a chunk each, blosc with zstd."""
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


Windows = Iterator[int]


def _event_windows(dataset: Dataset, hz: float) -> Windows:
    """Batches of events, as detectors take them; their windows."""
    reader = ClipReader(dataset.recordings, dataset.sensor, with_labels=False)
    mine, workers = _place()
    plans = evaluation_batches(dataset.recordings, hz, min(LANES, len(dataset)), 1)
    for number, clips in enumerate(plans):
        if number % workers == mine:
            yield _windows_of(reader.batch(clips).ends_us.size, clips)
    reader.close()


def _windows_of(most: int, clips: Sequence[Clip]) -> int:
    return min(most, sum(not clip.is_empty for clip in clips))


def _histogram_windows(files: Sequence[Path]) -> Windows:
    """Frames of the HDF5 files, one by one and in order."""
    import h5py  # noqa: PLC0415
    import hdf5plugin  # noqa: F401, PLC0415  (registers the filter)

    mine, workers = _place()
    for path in files[mine::workers] or files[:1]:
        with h5py.File(path, "r") as file:
            for number in range(len(file["data"])):
                yield int(file["data"][number].shape[0] > 0)


def _place() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class _Timed(IterableDataset[tuple[int, float]]):
    """Windows and this process's own memory in MB, again and again until the time is up."""

    def __init__(self, windows: Callable[[], Windows], seconds: float) -> None:
        self.windows, self.seconds = windows, seconds

    def __iter__(self) -> Iterator[tuple[int, float]]:
        end, calls = None, 0
        while end is None or time.perf_counter() < end:
            for number in self.windows():
                yield number, 0.0 if calls % LOOKS else _own_mb()
                calls += 1
                end = time.perf_counter() + self.seconds if end is None else end  # the first opens files
                if time.perf_counter() >= end:
                    break


def _measured(reader: str, hz: float, workers: int, windows: Callable[[], Windows], seconds: float) -> DataMeasurement:
    context = worker_start_method() if workers else None
    loader = DataLoader(_Timed(windows, seconds), batch_size=None, num_workers=workers, multiprocessing_context=context)
    total, memory, start, last = 0, 0.0, 0.0, 0.0
    for number, own in loader:
        last, memory = time.perf_counter(), max(memory, float(own))
        if not start:
            start = last  # the first opens files
            continue
        total += int(number)
    spent = max(last - start, 1e-9)
    return DataMeasurement(reader, hz, workers, total, total / spent, memory if workers and memory else None)


def _own_mb() -> float:
    """Memory of this process that it shares with nobody; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000
