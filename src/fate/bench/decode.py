"""How fast files are read, whole and by window, compared with other decoders in the same run.

Every measurement runs in a fresh process, so that peak memory is that of one decoder. Other decoders are measured if
they are installed; none of them is a dependency.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice, product, repeat
from pathlib import Path
from typing import Any

import numpy as np

from fate.bench.harness import BenchResult, Measurement, Report, quantiles_ms, run_in_process, time_call
from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.formats.opening import open_recording, recognise
from fate.formats.prophesee.header import parse_header
from fate.formats.saving import open_writer
from fate.processes import peak_memory_mb
from fate.text import format_markdown_table, grouped

MADE_FORMATS = {"dat": ".dat", "evt2": ".raw", "evt21": ".raw", "evt3": ".raw"}
PACKAGES = ("evt3", "faery", "expelliarmus")
PEERS = (*PACKAGES, "searchsorted", "searchsorted-typed")
#: What is measured, with the length of windows in µs, and how the table calls it.
MODES = {
    "index": "time index",
    "whole": "whole file",
    "indexed": "whole file, index kept",
    "window:5000": "5 ms windows",
    "window:50000": "50 ms windows",
    "seek:5000": "5 ms at random times",
}

#: At most this many consecutive windows and random times are read, and for about this many seconds.
WINDOWS, SEEKS, SECONDS = 400, 100, 5.0

#: Head of the table of whole files. The first read finds no stored index, builds it and checks every event.
WHOLE_HEAD = (
    "format | events | fate, first read, Mev/s | fate, second read, Mev/s | peer | peer, Mev/s | first read of fate is"
)

SENSOR = Sensor(720, 1280)  # of generated recordings
CHUNK, RATE_HZ = 500_000, 1e6  # events generated at a time, and in a second of the recording
MEAN_RUN = 4.0  # mean number of further events in one row readout on an edge
NOISE_SHARE = 0.3  # share of readouts that are single noise events


def bench_decode(
    files: Sequence[str | os.PathLike[str]] = (),
    *,
    against: Sequence[str] = PEERS,
    num_events: int = 20_000_000,
    repeats: int = 3,
    progress: Report | None = None,
) -> BenchResult:
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
    missing = [name for name in against if name in PACKAGES and find_spec(name) is None]
    measured = [name for name in ("fate", *against) if name not in missing]
    found = []
    with tempfile.TemporaryDirectory(prefix="fate-bench-") as folder:
        paths = [Path(file) for file in files]
        if not paths:
            report(f"making {len(MADE_FORMATS)} files of {num_events:,} events")
            paths = [Path(folder) / f"made_{name}{suffix}" for name, suffix in MADE_FORMATS.items()]
            with ExitStack() as stack:
                writers = [stack.enter_context(open_writer(*each)) for each in zip(paths, repeat(SENSOR), MADE_FORMATS)]
                for events in _generate_events(num_events):
                    for writer in writers:
                        writer.write(events)
        environment = {"FATE_CACHE_DIR": str(Path(folder) / "cache")}
        for path in paths:
            kind = recognise(path)
            for name, mode in product(measured, MODES):
                _, formats = READS.get((name, mode.partition(":")[0]), (None, ()))
                if formats is not None and kind not in formats:
                    continue
                report(f"{path.name}: {name}, {mode}")
                try:
                    values = run_in_process(_measure, str(path), name, mode, repeats, environment=environment)
                except FateError as error:
                    raise FateError(f"{path}: {name} failed to read it ({mode}): {error}") from None
                found.append(Measurement(file=path.name, format=kind, reader=name, mode=mode, **values))
    return _result(found, missing)


def _result(found: Sequence[Measurement], missing: Sequence[str]) -> BenchResult:
    """Return the measurements with the ratio of our speed to that of each peer."""
    ours = {(each.file, each.mode): each for each in found if each.reader == "fate"}

    def speed(of: Measurement) -> float:
        """Events per second in millions; for single windows, windows per ms."""
        return float(1 / of.p50_ms if of.mode.startswith("seek") and of.p50_ms else of.mev_per_s)

    def ratio(of: Measurement) -> str:
        return "" if of.reader == "fate" else f"{speed(ours[of.file, of.mode]) / speed(of):.2f} ×"

    def compare_whole_files() -> str:
        """The table of first and second reads, with a row for each peer that reads the format."""
        rows = []
        for (file, mode), first in ours.items():
            if mode != "whole":
                continue
            speeds = [f"{each.mev_per_s:.0f}" for each in (first, ours[file, "indexed"])]
            own = [first.format, grouped(first.events), *speeds]
            peers = [each for each in found if (each.file, each.mode) == (file, mode) and each.reader != "fate"]
            compared = [[each.reader, f"{each.mev_per_s:.0f}", ratio(each)] for each in peers]
            compared += [
                [name, "not installed", ""] for name in missing if first.format in (READS[name, mode][1] or ())
            ]
            rows += [own + peer for peer in compared or [["", "", ""]]]
        return format_markdown_table(WHOLE_HEAD.split(" | "), rows)

    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    return BenchResult(
        f"Machine: {machine}\n\n{compare_whole_files()}\n\nAll measurements:",
        {"machine": machine, "missing": missing},
        "file | format | reader | what | Mev/s | p50 ms | p99 ms | peak MB | fate is",
        "{file} | {format} | {reader} | {what}"
        " | {mev_per_s:.1f} | {p50_ms:.3f} | {p99_ms:.3f} | {peak_mb:.0f} | {ratio}",
        found,
        lambda each: {"what": MODES[each.mode], "ratio": ratio(each)},
        note=f"\n\nNot installed, so not measured: {', '.join(missing)}" if missing else "",
    )


def _measure(path: str, name: str, mode: str, repeats: int) -> dict[str, Any]:
    """Measure one decoder on one file in one of ``MODES``; meant for a fresh process."""
    kind, _, duration = mode.partition(":")
    read, _ = READS[name, kind]
    if kind == "window":
        events, times = _time_windows(partial(read, path, int(duration)))
    elif kind == "seek":
        with open_recording(path) as recording:
            starts = np.random.default_rng(0).integers(recording.start_us, recording.end_us, SEEKS).tolist()
        read_at = read(path)
        events, times = _time_windows(lambda: (read_at(start, start + int(duration)) for start in starts))
    else:
        events = read(path)  # compiled code and file cache are warm for every decoder
        times = [time_call(partial(read, path)) for _ in range(repeats)]
    seconds = float(np.sum(times) if duration else np.median(times))
    p50, p99 = quantiles_ms(times) if duration else (None, None)
    return {
        "events": events,
        "seconds": seconds,
        "calls": len(times),
        "peak_mb": peak_memory_mb(),
        "p50_ms": p50,
        "p99_ms": p99,
        "mev_per_s": events / seconds / 1e6 if seconds else 0.0,
    }


def _time_windows(read: Callable[[], Iterator[int]]) -> tuple[int, list[float]]:
    """Return the number of events of many windows, and the seconds that each took."""
    next(read())  # compiled code, file cache and time index are warm
    times, events = [], 0
    begin = start = time.perf_counter()
    for count in islice(read(), WINDOWS):
        end = time.perf_counter()
        times.append(end - start)
        events += count
        start = end
        if end - begin > SECONDS:
            break
    return events, times


def _fate_whole(path: str, cache: bool = False) -> int:
    with open_recording(path, cache=cache) as recording:
        return len(recording.read())


def _fate_index(path: str) -> int:
    with open_recording(path, cache=False) as recording:
        return recording.index().num_events


def _fate_windows(path: str, duration_us: int) -> Iterator[int]:
    with open_recording(path) as recording:
        for _, events in recording.windows(duration_us=duration_us):
            yield len(events)


def _fate_seek(path: str) -> Callable[[int, int], int]:
    recording = open_recording(path)
    return lambda start_us, end_us: len(recording.read(start_us, end_us))


def _evt3_whole(path: str) -> int:
    events = import_module("evt3").decode_file(path)
    return sum(map(len, (events.x, events.y, events.polarity, events.timestamp))) // 4


def _faery_whole(path: str) -> int:
    return len(import_module("faery").events_stream_from_file(path).to_array())


def _expelliarmus(path: str) -> Any:
    return import_module("expelliarmus").Wizard(
        encoding=parse_header(Path(path).read_bytes()[:65536]).event_format() or "dat"
    )


def _expelliarmus_windows(path: str, duration_us: int) -> Iterator[int]:
    wizard = _expelliarmus(path)
    wizard.set_file(path)
    wizard.set_time_window(duration_us)
    for window in wizard.read_time_window():
        yield len(window)


def _searchsorted_seek(path: str, key: type = int) -> Callable[[int, int], int]:
    """Map a DAT file, bisect its times with ``np.searchsorted`` and unpack the rows, as one would by hand.

    With a Python integer as key, numpy converts the whole column first.
    """
    start = parse_header(Path(path).read_bytes()[:65536]).num_bytes + 2
    table = np.memmap(path, np.dtype([("t", "<u4"), ("address", "<u4")]), "r", start)

    def read(start_us: int, end_us: int) -> int:
        first = np.searchsorted(table["t"], key(start_us))
        last = np.searchsorted(table["t"], key(end_us))
        rows = table[first:last]
        address = rows["address"]
        x, y, p = address & 0x3FFF, (address >> 14) & 0x3FFF, address >> 28
        return min(len(rows["t"].astype(np.int64)), len(x), len(y), len(p))

    return read


#: For each reader and mode: the function that is measured, and the formats that it reads correctly enough for a
#: comparison (None for all). Functions return the number of events, so that results can be compared too. Those of
#: "window" yield it for each window of a length in µs; those of "seek" return a function that reads [start_us, end_us).
READS: dict[tuple[str, str], tuple[Callable[..., Any], tuple[str, ...] | None]] = {
    ("fate", "index"): (_fate_index, None),
    ("fate", "whole"): (_fate_whole, None),
    ("fate", "indexed"): (partial(_fate_whole, cache=True), None),
    ("fate", "window"): (_fate_windows, None),
    ("fate", "seek"): (_fate_seek, None),
    ("evt3", "whole"): (_evt3_whole, ("evt3",)),
    ("faery", "whole"): (_faery_whole, ("dat", "evt2", "evt3")),
    ("expelliarmus", "whole"): (lambda path: len(_expelliarmus(path).read(path)), ("dat", "evt2")),
    ("expelliarmus", "window"): (_expelliarmus_windows, ("dat", "evt2")),
    ("searchsorted", "seek"): (_searchsorted_seek, ("dat",)),
    ("searchsorted-typed", "seek"): (partial(_searchsorted_seek, key=np.uint32), ("dat",)),
}


def _generate_events(num_events: int) -> Iterator[Events]:
    """Yield about ``num_events`` events in chunks, with the statistics of a sensor's readout.

    A sensor reads out row by row: most events come in bursts of one time and one row, in neighbouring columns of one
    polarity (an edge), with single noise events in between. This decides how many vectors and repeated rows a file
    has, and so how fast it is decoded.
    """
    random = np.random.default_rng(0)
    mean_length = NOISE_SHARE + (1 - NOISE_SHARE) * (1 + MEAN_RUN)
    start, left = 0.0, num_events
    while left > 0:
        readouts = max(1, int(min(CHUNK, left) / mean_length))
        edge = random.random(readouts) >= NOISE_SHARE
        length = np.where(edge, 1 + random.poisson(MEAN_RUN, readouts), 1)
        times = start + np.cumsum(random.exponential(mean_length / RATE_HZ * 1e6, readouts))
        start = float(times[-1])
        rows = random.integers(0, SENSOR.height, readouts)
        # edges drift over the sensor; noise is anywhere
        drift = (times / 1e6 * 200 + rows * 0.5) % SENSOR.width
        first = np.where(edge, drift + random.integers(-3, 4, readouts), random.integers(0, SENSOR.width, readouts))
        owner = np.repeat(np.arange(readouts), length)
        step = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
        x = np.clip(first[owner].astype(np.int64) + step, 0, SENSOR.width - 1)
        p = (random.random(readouts) < 0.5)[owner]
        yield Events(times.astype(np.int64)[owner], x, rows[owner], p.astype(np.uint8), SENSOR)
        left -= len(owner)
