"""``fate bench decode``: how fast files are read, whole and by window, beside other decoders in the same run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fate.bench.decode_data import SENSOR, readout
from fate.bench.decode_peers import PEERS
from fate.errors import FateError
from fate.formats.opening import recognise
from fate.formats.saving import open_writer

MADE_FORMATS = {"dat": ".dat", "evt2": ".raw", "evt21": ".raw", "evt3": ".raw"}
OUR_MODES = ("index", "whole", "indexed", "window:5000", "window:50000", "seek:5000")


@dataclass(frozen=True)
class Measurement:
    """One reader on one file in one way. Memory is the highest resident size of a process that did only this."""

    file: str
    format: str
    reader: str
    mode: str
    events: int
    seconds: float
    calls: int
    peak_mb: float | None  #: None where the system does not tell it
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def mev_per_s(self) -> float:
        """Million events a second."""
        return self.events / self.seconds / 1e6 if self.seconds else 0.0


@dataclass(frozen=True)
class DecodeBench:
    """All measurements of one run, and the machine they were taken on."""

    measurements: list[Measurement]
    machine: str
    missing: list[str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = [{**asdict(m), "mev_per_s": m.mev_per_s} for m in self.measurements]
        return {"machine": self.machine, "missing": self.missing, "measurements": rows}


def bench_decode(
    files: Sequence[str | os.PathLike[str]] = (),
    *,
    against: Sequence[str] = tuple(PEERS),
    num_events: int = 20_000_000,
    repeats: int = 3,
    progress: Callable[[str], None] | None = None,
) -> DecodeBench:
    """Measure reading ``files``; without any, files of ``num_events`` made-up events in DAT, EVT2, EVT2.1 and EVT3.

    Args:
        files: recordings of any supported format.
        against: peers to measure beside ours, of ``evt3``, ``faery``, ``expelliarmus``, ``searchsorted``.
        num_events: size of the made-up files.
        repeats: whole-file reads; the median counts.
        progress: told what is being done.
    """
    unknown = [name for name in against if name not in PEERS]
    if unknown:
        raise FateError(f"against={unknown[0]!r} was given; expected some of {', '.join(PEERS)}")
    if num_events < 1 or repeats < 1:
        raise FateError(f"{num_events} events and {repeats} repeats were asked for; both must be at least 1")
    say = progress or (lambda _: None)
    missing = [name for name in against if not PEERS[name].installed()]
    peers = [name for name in against if name not in missing]
    with tempfile.TemporaryDirectory(prefix="fate-bench-") as folder:
        paths = [Path(file) for file in files] or _make_files(Path(folder), num_events, say)
        environment = {**os.environ, "FATE_CACHE_DIR": str(Path(folder) / "cache")}
        measurements = []
        for path in paths:
            name = recognise(path)
            for reader, mode in _plan(name, peers):
                say(f"{path.name}: {reader}, {mode}")
                found = _run(path, reader, mode, repeats, environment)
                measurements.append(Measurement(path.name, name, reader, mode, **found))
    return DecodeBench(measurements, _machine(), missing)


def _plan(name: str, peers: Sequence[str]) -> list[tuple[str, str]]:
    plan = [("fate", mode) for mode in OUR_MODES]
    for peer in peers:
        offers = PEERS[peer]
        if name not in offers.formats:
            continue
        plan += [(peer, "whole")] if offers.whole else []
        plan += [(peer, "window:5000"), (peer, "window:50000")] if offers.windows else []
        plan += [(peer, "seek:5000")] if offers.seek else []
    return plan


def _run(path: Path, reader: str, mode: str, repeats: int, environment: dict[str, str]) -> dict[str, Any]:
    task = json.dumps({"path": str(path), "reader": reader, "mode": mode, "repeats": repeats})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "fate.bench.decode_worker", task],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FateError(f"{path}: {reader} failed to read it ({mode}): {reason}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _make_files(folder: Path, num_events: int, say: Callable[[str], None]) -> list[Path]:
    paths = [folder / f"made_{name}{suffix}" for name, suffix in MADE_FORMATS.items()]
    say(f"making {len(paths)} files of {num_events:,} events")
    writers = [open_writer(path, SENSOR, name) for path, name in zip(paths, MADE_FORMATS, strict=True)]
    try:
        for events in readout(num_events):
            for writer in writers:
                writer.write(events)
    except BaseException:
        for writer in writers:
            writer.discard()
        raise
    for writer in writers:
        writer.close()
    return paths


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
