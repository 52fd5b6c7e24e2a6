"""How fast files are read, whole and by window, compared with other decoders in the same run.

Every measurement runs in a fresh process, so that peak memory is that of one reader.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fate.bench.decode_peers import PEERS
from fate.bench.harness import BenchResult, Report, describe_cpu, quantiles_ms, run_in_process, time_call
from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.formats.opening import open_recording, recognise
from fate.formats.saving import open_writer
from fate.processes import peak_memory_mb

MADE_FORMATS = {"dat": ".dat", "evt2": ".raw", "evt21": ".raw", "evt3": ".raw"}
#: What is measured, and how the table calls it.
MODES = {
    "index": "time index",
    "whole": "whole file",
    "indexed": "whole file, index kept",
    "window:5000": "5 ms windows",
    "window:50000": "50 ms windows",
    "seek:5000": "5 ms at random times",
}
OUR_MODES = tuple(MODES)

#: At most this many consecutive windows and random times are read, and for about this many seconds.
WINDOWS, SEEKS, SECONDS = 400, 100, 5.0

SENSOR = Sensor(720, 1280)  # of generated recordings
CHUNK = 500_000  # events generated at a time
MEAN_RUN = 4.0  # mean number of further events in one row readout on an edge
NOISE_SHARE = 0.3  # share of readouts that are single noise events


@dataclass(frozen=True)
class Measurement:
    """One reader on one file in one mode. Memory is the highest resident size of a process that did only this."""

    file: str
    format: str
    reader: str
    mode: str
    events: int
    seconds: float
    calls: int
    peak_mb: float | None  #: None if the system does not tell it
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def mev_per_s(self) -> float:
        """Million events per second."""
        return self.events / self.seconds / 1e6 if self.seconds else 0.0

    @property
    def speed(self) -> float:
        """Events per second in millions; for single windows, windows per ms."""
        return 1 / self.p50_ms if self.mode.startswith("seek") and self.p50_ms else self.mev_per_s


@dataclass(frozen=True)
class DecodeBench(BenchResult):
    """Speed and memory of decoders."""

    COLUMNS = ("file", "format", "reader", "what", "Mev/s", "p50 ms", "p99 ms", "peak MB", "fate is")

    measurements: list[Measurement]
    machine: str
    missing: list[str]  #: peers that are not installed

    def to_dict(self) -> dict[str, Any]:
        rows = [{**asdict(m), "mev_per_s": m.mev_per_s} for m in self.measurements]
        return {"machine": self.machine, "missing": self.missing, "measurements": rows}

    def describe(self) -> str:
        return f"Machine: {self.machine}"

    def rows(self) -> Iterable[Sequence[str]]:
        ours = {(m.file, m.mode): m for m in self.measurements if m.reader == "fate"}
        for m in self.measurements:
            p50, p99 = ("" if q is None else f"{q:.3f}" for q in (m.p50_ms, m.p99_ms))
            peak = "" if m.peak_mb is None else f"{m.peak_mb:.0f}"
            ratio = "" if m.reader == "fate" else f"{ours[m.file, m.mode].speed / m.speed:.2f} ×"
            yield m.file, m.format, m.reader, MODES[m.mode], f"{m.mev_per_s:.1f}", p50, p99, peak, ratio

    def table(self) -> str:
        missing = f"\n\nNot installed, so not measured: {', '.join(self.missing)}" if self.missing else ""
        return super().table() + missing


def bench_decode(
    files: Sequence[str | os.PathLike[str]] = (),
    *,
    against: Sequence[str] = tuple(PEERS),
    num_events: int = 20_000_000,
    repeats: int = 3,
    progress: Report | None = None,
) -> DecodeBench:
    """Measure how fast ``files`` are read; without any, recordings are generated in DAT, EVT2, EVT2.1 and EVT3.

    Args:
        files: recordings of any supported format.
        against: peers to measure too, of ``evt3``, ``faery``, ``expelliarmus``, ``searchsorted``,
            ``searchsorted-typed``.
        num_events: number of events in each generated file.
        repeats: how often a whole file is read; the median is reported.
        progress: called with a line about the next measurement.
    """
    unknown = [name for name in against if name not in PEERS]
    if unknown:
        raise FateError(f"against={unknown[0]!r} was given; expected some of {', '.join(PEERS)}")
    if num_events < 1 or repeats < 1:
        raise FateError(f"{num_events} events and {repeats} repeats were asked for; both must be at least 1")
    report = progress or (lambda _: None)
    missing = [name for name in against if not PEERS[name].installed()]
    peers = [name for name in against if name not in missing]
    with tempfile.TemporaryDirectory(prefix="fate-bench-") as folder:
        paths = [Path(file) for file in files] or _make_files(Path(folder), num_events, report)
        environment = {"FATE_CACHE_DIR": str(Path(folder) / "cache")}
        measurements = []
        for path in paths:
            name = recognise(path)
            for reader, mode in _plan(name, peers):
                report(f"{path.name}: {reader}, {mode}")
                try:
                    found = run_in_process(_measure, str(path), reader, mode, repeats, environment=environment)
                except FateError as error:
                    raise FateError(f"{path}: {reader} failed to read it ({mode}): {error}") from None
                measurements.append(Measurement(path.name, name, reader, mode, **found))
    return DecodeBench(measurements, describe_cpu(), missing)


def _plan(name: str, peers: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of reader and mode for a file of this format."""
    plan = [("fate", mode) for mode in OUR_MODES]
    for peer in peers:
        offers = PEERS[peer]
        if name not in offers.formats:
            continue
        plan += [(peer, "whole")] if offers.whole else []
        plan += [(peer, "window:5000"), (peer, "window:50000")] if offers.windows else []
        plan += [(peer, "seek:5000")] if offers.seek else []
    return plan


# ---- one measurement, in a process of its own ---------------------------------------------------------------------


def _measure(path: str, reader: str, mode: str, repeats: int) -> dict[str, Any]:
    """Measure one reader on one file in one of ``MODES``."""
    kind, _, duration = mode.partition(":")
    if kind == "window":
        found = _measure_windows(partial(_read_windows, reader, path, int(duration)))
    elif kind == "seek":
        found = _measure_seeks(reader, path, int(duration))
    else:
        found = _measure_whole(partial(_read_whole, reader, path, kind), repeats)
    return {**found, "peak_mb": peak_memory_mb()}


def _measure_whole(read: Callable[[], int], repeats: int) -> dict[str, Any]:
    events = read()  # compiled code and file cache are warm for every reader
    seconds = float(np.median([time_call(read) for _ in range(repeats)]))
    return {"events": events, "seconds": seconds, "calls": repeats}


def _measure_windows(read: Callable[[], Iterator[int]]) -> dict[str, Any]:
    next(read())  # compiled code, file cache and time index are warm
    counts = read()
    times, events = [], 0
    begin = start = time.perf_counter()
    for count in islice(counts, WINDOWS):
        end = time.perf_counter()
        times.append(end - start)
        events += count
        start = end
        if end - begin > SECONDS:
            break
    p50, p99 = quantiles_ms(times)
    return {"events": events, "seconds": float(np.sum(times)), "calls": len(times), "p50_ms": p50, "p99_ms": p99}


def _measure_seeks(reader: str, path: str, duration_us: int) -> dict[str, Any]:
    with open_recording(path) as recording:
        starts = np.random.default_rng(0).integers(recording.start_us, recording.end_us, SEEKS).tolist()
    read = _open_for_seeks(path) if reader == "fate" else _function_of(reader, "seek")(path)
    return _measure_windows(lambda: (read(t, t + duration_us) for t in starts))


def _open_for_seeks(path: str) -> Callable[[int, int], int]:
    recording = open_recording(path)
    return lambda start_us, end_us: len(recording.read(start_us, end_us))


def _read_whole(reader: str, path: str, kind: str) -> int:
    """Read a whole file, or build only its time index, and return the number of events."""
    if reader != "fate":
        return int(_function_of(reader, "whole")(path))
    with open_recording(path, cache=kind == "indexed") as recording:
        return recording.index().num_events if kind == "index" else len(recording.read())


def _read_windows(reader: str, path: str, duration_us: int) -> Iterator[int]:
    """Read consecutive windows and yield their numbers of events."""
    if reader != "fate":
        yield from _function_of(reader, "windows")(path, duration_us)
        return
    with open_recording(path) as recording:
        for _, events in recording.windows(duration_us=duration_us):
            yield len(events)


def _function_of(reader: str, name: str) -> Any:
    """Return the function ``whole``, ``windows`` or ``seek`` of a peer."""
    function = getattr(PEERS[reader], name)
    if function is None:
        raise LookupError(f"{reader} has no function {name!r}")
    return function


# ---- generated recordings -----------------------------------------------------------------------------------------


def _make_files(folder: Path, num_events: int, report: Report) -> list[Path]:
    paths = [folder / f"made_{name}{suffix}" for name, suffix in MADE_FORMATS.items()]
    report(f"making {len(paths)} files of {num_events:,} events")
    writers = [open_writer(path, SENSOR, name) for path, name in zip(paths, MADE_FORMATS, strict=True)]
    try:
        for events in _generate_events(num_events):
            for writer in writers:
                writer.write(events)
    except BaseException:
        for writer in writers:
            writer.discard()
        raise
    for writer in writers:
        writer.close()
    return paths


def _generate_events(num_events: int, rate_hz: float = 1e6, seed: int = 0, sensor: Sensor = SENSOR) -> Iterator[Events]:
    """Yield about ``num_events`` events in chunks, with the statistics of a sensor's readout.

    A sensor reads out row by row: most events come in bursts of one time and one row, in neighbouring columns of one
    polarity (an edge), with single noise events in between. This decides how many vectors and repeated rows a file
    has, and so how fast it is decoded.
    """
    random = np.random.default_rng(seed)
    mean_length = NOISE_SHARE + (1 - NOISE_SHARE) * (1 + MEAN_RUN)
    start = 0.0
    left = num_events
    while left > 0:
        readouts = max(1, int(min(CHUNK, left) / mean_length))
        edge = random.random(readouts) >= NOISE_SHARE
        length = np.where(edge, 1 + random.poisson(MEAN_RUN, readouts), 1)
        times = start + np.cumsum(random.exponential(mean_length / rate_hz * 1e6, readouts))
        start = float(times[-1])
        rows = random.integers(0, sensor.height, readouts)
        # edges drift over the sensor; noise is anywhere
        drift = (times / 1e6 * 200 + rows * 0.5) % sensor.width
        first = np.where(edge, drift + random.integers(-3, 4, readouts), random.integers(0, sensor.width, readouts))
        owner = np.repeat(np.arange(readouts), length)
        step = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
        x = np.clip(first[owner].astype(np.int64) + step, 0, sensor.width - 1)
        p = (random.random(readouts) < 0.5)[owner]
        yield Events(times.astype(np.int64)[owner], x, rows[owner], p.astype(np.uint8), sensor)
        left -= len(owner)
