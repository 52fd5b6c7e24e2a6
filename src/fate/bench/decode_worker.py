"""One measurement in a process of its own, so that peak memory is that of the one reader measured.

Called as ``python -m fate.bench.decode_worker '{"path": …, "reader": …, "mode": …}'``; prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from fate.bench.decode_peers import PEERS
from fate.formats.opening import open_recording
from fate.processes import peak_memory_mb

WINDOWS = 400  # at most so many windows are read in a row
SEEKS = 100
SECONDS = 5.0  # and no measurement goes on for much longer


def measure(path: str, reader: str, mode: str, repeats: int) -> dict[str, Any]:
    """Measure one reader on one file. ``mode``: whole, indexed, index, window:µs or seek:µs."""
    kind, _, duration = mode.partition(":")
    if kind in ("whole", "indexed", "index"):
        return _repeat(_whole_reader(reader, kind), path, repeats)
    if kind == "window":
        return _windows(lambda: _window_reader(reader, path, int(duration)))
    return _seeks(_seek_reader(reader, path), path, int(duration))


def _repeat(read: Callable[[str], int], path: str, repeats: int) -> dict[str, Any]:
    read(path)  # compiled code and file cache are warm for every reader
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        events = read(path)
        times.append(time.perf_counter() - start)
    return {"events": events, "seconds": float(np.median(times)), "calls": repeats}


def _windows(read: Callable[[], Iterator[int]]) -> dict[str, Any]:
    next(read())  # compiled code, file cache and time index are warm
    counts = read()
    times, events = [], 0
    begin = start = time.perf_counter()
    for count in islice(counts, WINDOWS):
        now = time.perf_counter()
        times.append(now - start)
        events += count
        start = now
        if now - begin > SECONDS:
            break
    return {
        "events": events,
        "seconds": float(np.sum(times)),
        "calls": len(times),
        "p50_ms": 1e3 * float(np.median(times)),
        "p99_ms": 1e3 * float(np.quantile(times, 0.99)),
    }


def _seeks(read: Callable[[int, int], int], path: str, duration_us: int) -> dict[str, Any]:
    with open_recording(path) as recording:
        starts = np.random.default_rng(0).integers(recording.start_us, recording.end_us, SEEKS).tolist()
    return _windows(lambda: (read(t, t + duration_us) for t in starts))


def _whole_reader(reader: str, kind: str) -> Callable[[str], int]:
    if reader != "fate":
        whole = PEERS[reader].whole
        if whole is None:
            raise LookupError(f"{reader} does not read whole files here")
        return whole

    def read(path: str) -> int:
        with open_recording(path, cache=kind == "indexed") as recording:
            return recording.index().num_events if kind == "index" else len(recording.read())

    return read


def _window_reader(reader: str, path: str, duration_us: int) -> Iterator[int]:
    if reader != "fate":
        windows = PEERS[reader].windows
        if windows is None:
            raise LookupError(f"{reader} does not read by window here")
        yield from windows(path, duration_us)
        return
    with open_recording(path) as recording:
        for _, events in recording.windows(duration_us=duration_us):
            yield len(events)


def _seek_reader(reader: str, path: str) -> Callable[[int, int], int]:
    if reader != "fate":
        seek = PEERS[reader].seek
        if seek is None:
            raise LookupError(f"{reader} does not seek here")
        return seek(path)
    recording = open_recording(path)
    return lambda start, end: len(recording.read(start, end))


if __name__ == "__main__":
    result = measure(**json.loads(sys.argv[1]))
    print(json.dumps({**result, "peak_mb": peak_memory_mb()}))
