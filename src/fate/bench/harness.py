"""What all benchmarks share: the description of the machine, one timer, quantiles, peak memory and the printed table.

The timer is a loop of our own. ``torch.utils.benchmark.Timer`` averages over blocks of calls, so it cannot give the p99
of single calls. It also repeats one statement, but consecutive calls of a stream differ: each takes the next window and
the state of the call before.

torch is imported inside functions, because peak memory of a decoder is measured in a process without torch.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pickle
import platform
import string
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.events.window import Window, WindowGrid
from fate.processes import peak_memory_mb
from fate.text import format_markdown_table

#: Called with a line about the next measurement.
Report = Callable[[str], None]

#: A timed call is repeated at least and at most this often, and in between until this many seconds have passed.
LEAST_CALLS, MOST_CALLS, SECONDS = 5, 500, 0.5

CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")

#: Program of a fresh process: calls the pickled function of standard input and prints its result as JSON.
_CHILD = "import json, pickle, sys; call, args = pickle.load(sys.stdin.buffer); print('\\n' + json.dumps(call(*args)))"

#: The values of one measurement by name.
Measurement = SimpleNamespace


@dataclass(frozen=True)
class BenchResult:
    """The result of one benchmark."""

    about: str  #: text about the machine and the data, printed above the table
    facts: dict[str, Any]  #: values that hold for all measurements
    head: str  #: head of the table, with " | " between the columns
    row: str  #: row of the table, a template for ``str.format`` with the values of a measurement
    measurements: Sequence[Measurement]  #: one for each row
    shown: Callable[[Measurement], dict[str, Any]] = lambda _: {}  #: returns more values for a row that are not saved
    missing: str = ""  #: text for values that are None
    note: str = ""  #: text below the table

    def to_dict(self) -> dict[str, Any]:
        """Return all values for JSON."""
        return {**self.facts, "measurements": [vars(each) for each in self.measurements]}

    def table(self) -> str:
        """Return all texts and the table as Markdown."""
        template = _Template(self.missing)
        rows = [template.format(self.row, **vars(each), **self.shown(each)) for each in self.measurements]
        table = format_markdown_table(self.head.split(" | "), [row.split(" | ") for row in rows])
        return f"{self.about}\n\n{table}{self.note}"


class _Template(string.Formatter):
    """``str.format`` that shows None as a text of its own, whatever the format."""

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def format_field(self, value: Any, format_spec: str) -> str:
        return self.missing if value is None else str(super().format_field(value, format_spec))


def describe_device(device: str) -> str:
    """Return the name of the GPU, or the type of processor for "cpu"."""
    import torch  # noqa: PLC0415

    return torch.cuda.get_device_name() if device == "cuda" else platform.machine()


def describe_torch(device: str, sensor: Sensor, more: str) -> str:
    """Return one line about the device, torch, the sensor and what else was measured."""
    import torch  # noqa: PLC0415

    machine = f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    return f"{machine}; {sensor.width}×{sensor.height}, {more}"


def check_device(device: str) -> None:
    """Refuse "cuda" if torch finds no GPU."""
    import torch  # noqa: PLC0415

    if device == "cuda" and not torch.cuda.is_available():
        raise FateError("device cuda was given, but torch finds no CUDA GPU; give cpu")


def cut_windows(events: Events, length_us: int, most: int | None = None) -> list[tuple[Window, Events]]:
    """Return consecutive whole windows from the first event on, at most ``most`` of them and at least one."""
    if not len(events):
        raise FateError("no events were given; a measurement needs part of a recording")
    start = int(events.t_us[0])
    count = max(1, (int(events.t_us[-1]) + 1 - start) // length_us)
    count = count if most is None else min(count, most)
    spans = map(WindowGrid(start, length_us, length_us).window, range(count))
    return [(window, events.between(window.start_us, window.end_us)) for window in spans]


def now(device: str = "cpu") -> float:
    """Return the time in seconds, after all work on the device has finished."""
    if device == "cuda":
        import torch  # noqa: PLC0415

        torch.cuda.synchronize()
    return time.perf_counter()


def time_call(call: Callable[[], object], device: str = "cpu") -> float:
    """Return the seconds from the start of a call until its work on the device has finished."""
    start = now(device)
    call()
    return now(device) - start


def time_repeated(call: Callable[[], object], device: str) -> list[float]:
    """Return the seconds of each of many equal calls, after two calls that are not counted.

    On a GPU the times are those between two CUDA events, so that the wait of the host does not count.
    """
    for _ in range(2):
        call()
    timer = _time_on_gpu if device == "cuda" else time_call
    times: list[float] = []
    while len(times) < LEAST_CALLS or (sum(times) < SECONDS and len(times) < MOST_CALLS):
        times.append(timer(call))
    return times


def _time_on_gpu(call: Callable[[], object]) -> float:
    import torch  # noqa: PLC0415

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def quantiles_ms(times_s: Sequence[float]) -> tuple[float, float]:
    """Return median and 99th percentile, in milliseconds, of times in seconds."""
    p50, p99 = 1000 * np.percentile(times_s, (50, 99))
    return float(p50), float(p99)


def run_in_process(function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] | None = None) -> Any:
    """Return what a function returns in a fresh Python process, so that its memory is that of this call alone.

    The function is at the top level of a module, its arguments can be pickled, and its result is plain values.
    ``environment`` holds variables to set in the process.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CHILD],
        input=pickle.dumps((function, arguments)),
        capture_output=True,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise FateError(lines[-1] if lines else f"the process ended with exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_on_cpu_mb(call: Callable[[], object]) -> float | None:
    """Return the MB of resident memory that a call adds, its result included; None if the system is not Linux.

    Allocators keep freed memory, so the process must not have done other work before; see :func:`run_in_process`.
    """
    if not CLEAR_REFS.exists():
        return None
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library keeps freed memory, and the result is a little lower
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # give freed memory back to the system
    CLEAR_REFS.write_text("5")  # resets the peak
    lines = STATUS.read_text(encoding="utf-8").splitlines()
    before_kb = int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
    kept = call()
    peak = peak_memory_mb()
    del kept
    return None if peak is None else peak - before_kb * 1024 / 1e6


def private_memory_mb() -> float:
    """Return the MB of this process that it shares with no other; 0 if the system is not Linux."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6
