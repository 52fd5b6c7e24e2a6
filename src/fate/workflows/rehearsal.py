"""Rehearse the paper's training at full scale: what it will take on this machine, measured on a small sample.

A simulated sample has the statistics of the real dataset: files of 60 s, its label rate, event rate and classes, and
faults (a missing file, one that ends early, labels beyond the end of a recording). The documented commands run on it
with the real settings of the paper, for a few hundred steps over the whole curriculum:

    prepare → phase 1 → densify → phase 2 → evaluate

Each command is a process of its own, as for a user. Its time and memory are measured and projected to the full dataset
and the full schedule. A rehearsal that was stopped continues with the first command that is not done.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fate.data.class_maps import EXPECTED_RECORDINGS
from fate.data.opening import open_dataset
from fate.errors import FateError
from fate.inspection.prepare import EXPECTED_HOURS
from fate.json_files import read_object, write_json
from fate.progress import Progress, ignore
from fate.rates import PAPER_RATES
from fate.text import format_table, suggest_name
from fate.training.config import read_config

#: Length of a recording of Gen1 and 1Mpx, in seconds.
RECORDING_S = 60.0
#: Epochs of the short schedule: the curriculum of the paper in a few steps, from 20 Hz only to all rates.
EPOCHS = 5
MODELS = ("fate-s", "fate-e")


def full_hours(dataset: str) -> dict[str, float]:
    """Hours of recording of a real dataset, by split; of 1Mpx only the total is published, and shares are Gen1's."""
    counts = EXPECTED_RECORDINGS["gen1"]
    hours = sum(counts.values()) * RECORDING_S / 3600
    scale = EXPECTED_HOURS.get(dataset, hours) / hours
    return {split: count * RECORDING_S / 3600 * scale for split, count in counts.items()}


@dataclass(frozen=True)
class Stage:
    """The measurement of one command."""

    name: str
    command: str
    seconds: float
    memory_gb: float | None  #: peak of main memory of the command and its workers; None where it is unknown
    gpu_gb: float | None  #: peak of GPU memory
    disk_gb: float  #: size of what it wrote
    done: float  #: work that was done, in ``unit``
    full: float  #: work of the full scale
    unit: str  #: "steps", or "hours" of recording
    rate: float  #: work per second; commands that read recordings include their start
    waiting: float | None = None  #: share of the time that training waits for data

    @property
    def speed(self) -> str:
        """The speed in steps per second, or in hours of recording per hour."""
        return f"{self.rate:.3g} / s" if self.unit == "steps" else f"{self.rate * 3600:.3g} × real time"

    @property
    def projected_h(self) -> float:
        """Hours of the full scale."""
        return self.full / self.rate / 3600


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal."""

    dataset: str
    model: str
    machine: str
    settings: str  #: changes to the paper's settings that were needed to fit in memory
    faults: tuple[str, ...]  #: faults of the data that were named before training
    stages: tuple[Stage, ...]

    def table(self) -> str:
        """A row for each command, and the sum of hours."""
        rows = [["", "measured", "full scale", "speed", "waiting", "hours", "GPU GB", "RAM GB", "disk GB"]]
        for stage in self.stages:
            waiting = "" if stage.waiting is None else f"{stage.waiting:.0%}"
            disk = stage.disk_gb * (stage.full / stage.done if stage.unit != "steps" else 1)
            rows.append([
                stage.name, f"{stage.done:.3g} {stage.unit}", f"{stage.full:,.0f}".replace(",", " "),
                stage.speed, waiting, f"{stage.projected_h:.1f}",
                *("" if value is None else f"{value:.1f}" for value in (stage.gpu_gb, stage.memory_gb)), f"{disk:.1f}",
            ])  # fmt: skip
        total = sum(stage.projected_h for stage in self.stages)
        rows.append(["in all", "", "", "", "", f"{total:.1f}", "", "", ""])
        settings = f"\nchanged to fit in memory: {self.settings}" if self.settings else ""
        return f"{self.model} on {self.dataset}, {self.machine}{settings}\n\n{format_table(rows)}"


@dataclass(frozen=True)
class RehearsalRequest:
    """What to rehearse, and how much of it."""

    dataset: str  #: "gen1" or "1mpx"
    model: str = "fate-s"
    recordings: int = 12  #: of the sample
    seconds: float = RECORDING_S  #: length of each
    steps: int = 200  #: of each phase
    device: str = "auto"
    workers: int = 8  #: processes that load data
    settings: tuple[str, ...] = ()  #: further settings of training, ``key.sub=value``

    def check(self) -> None:
        """Refuse what cannot be rehearsed."""
        for name, given, known in (("dataset", self.dataset, ("gen1", "1mpx")), ("model", self.model, MODELS)):
            if given not in known:
                raise FateError(
                    f"{name} {given!r} was given; expected {' or '.join(known)}{suggest_name(given, known)}"
                )
        if self.recordings < 6 or self.steps < 4 * EPOCHS or self.steps % EPOCHS:
            raise FateError(
                f"{self.recordings} recordings and {self.steps} steps were given; expected at least 6 recordings, three"
                f" of which get faults, and a multiple of {EPOCHS} steps, at least {4 * EPOCHS}"
            )


def rehearse(request: RehearsalRequest, out: str | os.PathLike[str], progress: Progress = ignore) -> Rehearsal:
    """Predict what the paper's training will take on this machine, from a simulated sample.

    Args:
        request: dataset and detector, and the size of the sample.
        out: folder for the sample and its runs; a rehearsal that was stopped there continues.
        progress: called with a text about each command.

    Example:
        >>> print(fate.rehearse(fate.RehearsalRequest("gen1"), "rehearsal").table())      # doctest: +SKIP
    """
    request.check()
    return _Rehearsed(request, Path(out), progress).run()


class _Rehearsed:
    """The commands of one rehearsal in one folder."""

    def __init__(self, request: RehearsalRequest, folder: Path, progress: Progress) -> None:
        self.request, self.folder, self.progress = request, folder, progress
        self.file = folder / "rehearsal.json"
        self.full_hours = full_hours(request.dataset)
        folder.mkdir(parents=True, exist_ok=True)
        asked = json.loads(json.dumps(asdict(request)))
        self.known: dict[str, Any] = {"request": asked}
        if self.file.exists():
            self.known = read_object(self.file, "the measurements of a rehearsal; delete it to rehearse again")
        if self.known.get("request") != asked:
            before = self.known.get("request")
            raise FateError(f"{self.file}: made with other arguments ({before}); use another folder")

    def run(self) -> Rehearsal:
        """Run every command that is not done."""
        data, model, kind = self.folder / "data", self.request.model, self.request.dataset
        sample = ["--profile", kind, "--recordings", str(self.request.recordings), "--seconds"]
        sample += [f"{self.request.seconds:g}", "--device", self.request.device, "--no-preview"]
        self._once("simulated", lambda: self._run("simulate", str(data), *sample))
        self._once("damaged", lambda: damage(data / "train"))
        prepared, runs, dense = self.folder / "prepared", self.folder / "runs", self.folder / "dense"
        preparing = ["prepare", kind, str(data), str(prepared), "--allow-missing"]
        if kind == "1mpx":  # workers cannot read and augment this many events
            preparing.append("--compact")
        stages = [self._stage("prepare", preparing, prepared)]
        faults = self._once("faults", lambda: self._named_faults(prepared))
        first = self._train("phase 1", f"{kind}/{model}-20hz", prepared, runs, [])
        weights = runs / "phase-1" / "last.safetensors"
        rates = [f"{hz:g}" for hz in PAPER_RATES]
        inference = ["--device", self.request.device, "--workers", str(self.request.workers)]
        labelling = ["densify", str(weights), str(prepared), "--split", "train", "--hz", *rates, "--out", str(dense)]
        stages += [first, self._stage("densify", [*labelling, *inference], dense)]
        second = [f"model.weights={weights}", f"strategy.labels={dense}"]
        stages.append(self._train("phase 2", f"{kind}/{model}", prepared, runs, second))
        result = self.folder / "evaluation.json"
        # The speed of an evaluation depends on the number of recordings side by side: the training split has enough.
        measuring = ["evaluate", str(runs / "phase-2" / "last.safetensors"), str(prepared), "--split", "train", "--hz"]
        evaluated = self._stage("evaluate", [*measuring, *rates, "--json", str(result), *inference], result)
        stages += [evaluated, self._validations(evaluated)]
        changes = {name: self.known[f"settings of {name}"] for name in ("phase 1", "phase 2")}
        settings = "; ".join(f"{name}: {text}" for name, text in changes.items() if text)
        return Rehearsal(kind, model, machine(self.request.device), settings, tuple(faults), tuple(stages))

    def _once(self, name: str, action: Callable[[], Any]) -> Any:
        """Do something once, and keep its result in ``rehearsal.json``."""
        if name not in self.known:
            self.known[name] = action()
            write_json(self.file, self.known)
        return self.known[name]

    def _run(self, *command: str, fails: bool = False) -> dict[str, Any]:
        """Run a command of fate in a process of its own: seconds, peaks of memory, and what it printed."""
        log = self.folder / "log.txt"
        self.progress(0, None, f"fate {' '.join(command)} (output: {log})")
        began = time.perf_counter()
        with MemoryWatch() as watch, log.open("w+", encoding="utf-8") as output:
            done = subprocess.run(
                [sys.executable, "-m", "fate.cli", *command], check=False, stdout=output, stderr=subprocess.STDOUT
            )
            output.seek(0)
            printed = output.read()
        seconds = time.perf_counter() - began
        if bool(done.returncode) != fails:
            last = " ".join(printed.strip().splitlines()[-1:])
            raise FateError(f"fate {' '.join(command)} ended with code {done.returncode}: {last} (output: {log})")
        return {"seconds": seconds, "memory_gb": watch.main_gb, "gpu_gb": watch.gpu_gb, "printed": printed}

    def _named_faults(self, prepared: Path) -> list[str]:
        """Check that training names every fault and refuses to start; return the faults."""
        command = ["train", f"{self.request.dataset}/{self.request.model}-20hz", f"data.path={prepared}"]
        command += ["run.epochs=1", "run.epoch_steps=1"]  # short, should it not be refused
        refused = self._run(*command, "--out", str(self.folder / "runs" / "refused"), fails=True)
        lines = [line for line in refused["printed"].splitlines() if line.startswith("dataset: ")]
        unnamed = [name for name in self.known["damaged"] if not any(name in line for line in lines)]
        if unnamed:
            last = refused["printed"].strip().splitlines()[-1]
            raise FateError(f"training did not name the faults of {', '.join(unnamed)} before it started: {last}")
        return lines

    def _stage(self, name: str, command: Sequence[str], written: Path) -> Stage:
        """Run a command that reads recordings, once."""
        split = None if name == "prepare" else "train"

        def measure() -> dict[str, Any]:
            if written.is_dir():
                shutil.rmtree(written)  # begun before; the rest alone would take less time
            return self._run(*command) | {"disk_gb": size_gb(written)}

        measured = self._once(name, measure)
        recordings = open_dataset(self.folder / "prepared", split).labelled
        hours = sum(each.end_us - each.start_us for each in recordings) / 3.6e9
        full = sum(self.full_hours.values())
        if name in ("evaluate", "densify"):
            full = self.full_hours["test" if name == "evaluate" else "train"]
        return Stage(
            name, f"fate {' '.join(command)}", measured["seconds"], measured["memory_gb"], measured["gpu_gb"],
            measured["disk_gb"], hours, full, "hours", hours / measured["seconds"],
        )  # fmt: skip

    def _train(self, name: str, config: str, data: Path, runs: Path, settings: Sequence[str]) -> Stage:
        """Train one phase for a few steps, once, with settings that fit in memory."""
        request, run = self.request, runs / name.replace(" ", "-")
        # The sample would fit on the GPU, the real dataset does not: events are read from disk, as they will be.
        common = [f"data.path={data}", "data.resident_gb=0", f"data.workers={request.workers}"]
        common += [f"run.device={request.device}"]
        common += [*request.settings, *settings]
        found = self._once(f"settings of {name}", lambda: self._fitting(config, common))
        epoch_steps = request.steps // EPOCHS
        short = [f"run.epochs={EPOCHS}", f"run.epoch_steps={epoch_steps}", f"run.log_every={max(epoch_steps // 8, 1)}"]
        short += [f"run.validate_every={EPOCHS}", "run.validate_recordings=2", "run.validate_hz=[20]"]
        command = ["train", config, *common, *found.split(), *short, "--allow-missing", "--out", str(run)]

        def measure() -> dict[str, Any]:
            found = self._run(*command)
            return found | step_speed(run / "metrics.jsonl", request.steps) | {"disk_gb": size_gb(run)}

        measured = self._once(name, measure)
        return Stage(
            name, f"fate {' '.join(command)}", measured["seconds"], measured["memory_gb"], measured["gpu_gb"],
            measured["disk_gb"], request.steps, read_config(config).steps, "steps", measured["steps_per_s"],
            measured["waiting"],
        )  # fmt: skip

    def _validations(self, evaluated: Stage) -> Stage:
        """The validations of both phases, which detect like the evaluation but at fewer rates."""
        run = read_config(f"{self.request.dataset}/{self.request.model}").run
        windows = sum(run.validate_hz) / sum(PAPER_RATES)
        recordings = run.validate_recordings or EXPECTED_RECORDINGS["gen1"]["val"]
        hours = 2 * -(-run.epochs // run.validate_every) * recordings * RECORDING_S / 3600 * windows
        return replace(evaluated, name="validate", command="", full=hours, disk_gb=0.0)

    def _fitting(self, config: str, settings: Sequence[str]) -> str:
        """The changes to the settings with which a whole batch fits in memory, from a dry run."""
        tried = self._run("train", config, *settings, "--dry-run", "--allow-missing")
        lines = [line for line in tried["printed"].splitlines() if "do not fit" in line]
        return lines[0].rpartition(": ")[2] if lines else ""


def step_speed(metrics: Path, steps: int) -> dict[str, float]:
    """Mean speed over the epochs of the curriculum: steps per second, and the share of the time that waits for data.

    The median of an epoch leaves out kernels that are compiled and CUDA graphs that are recorded when a rate first
    appears: the full schedule does this as often as the short one. The first tenth of the steps warms up.
    """
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    epochs: dict[int, list[dict[str, float]]] = {}
    for line in lines:
        if "step_s" in line and line["step"] > steps / 10:
            epochs.setdefault(line["epoch"], []).append(line)
    if not epochs:
        raise FateError(f"{metrics}: no training step is logged; delete the folder and rehearse again")

    def typical(name: str) -> float:
        return statistics.mean(statistics.median(line[name] for line in logged) for logged in epochs.values())

    return {"steps_per_s": 1 / typical("step_s"), "waiting": typical("waiting_for_data")}


def damage(folder: Path) -> list[str]:
    """Remove a recording, cut another, and add a label beyond the end of a third; return their names."""
    named = {
        file: file.with_name(file.name.replace("_td.dat", "_bbox.npy")) for file in sorted(folder.glob("*_td.dat"))
    }
    recordings = [file for file, labels in named.items() if labels.exists() and len(np.load(labels))][:3]
    if len(recordings) < 3:
        raise FateError(
            f"{folder}: {len(recordings)} recordings have boxes; expected 3 for faults: simulate longer ones"
        )
    gone, cut, late = recordings
    gone.unlink()
    with cut.open("r+b") as file:
        file.truncate(cut.stat().st_size // 2 + 3)
    labels_file = named[late]
    boxes = np.load(labels_file)
    beyond = boxes[-1:].copy()
    beyond[boxes.dtype.names[0]] += 3_600_000_000
    np.save(labels_file, np.concatenate([boxes, beyond]))
    return [recording.name.removesuffix("_td.dat") for recording in recordings]


def size_gb(path: Path) -> float:
    """Size of a file, or of all files of a folder, in GB."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e9


def machine(device: str) -> str:
    """The GPU, or the number of processors."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{os.cpu_count()} processors"


#: Seconds between two samples of memory.
INTERVAL_S = 0.5
PROC = Path("/proc")


class MemoryWatch:
    """``with MemoryWatch() as watch:`` samples memory inside the block; the peaks are None where they are unknown.

    Main memory is that of all processes below this one; memory that several of them share counts once. Only Linux
    reports it. GPU memory is what everybody uses on the current GPU, less what was in use before.
    """

    def __init__(self) -> None:
        self.main_gb: float | None = None
        self.gpu_gb: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._before = used_gpu_gb() or 0.0
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            main, gpu = memory_of_children_gb(), used_gpu_gb()
            if main is not None:
                self.main_gb = max(self.main_gb or 0.0, main)
            if gpu is not None:
                self.gpu_gb = max(self.gpu_gb or 0.0, gpu - self._before)


def used_gpu_gb() -> float | None:
    """Memory in use on the current GPU; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


def memory_of_children_gb() -> float | None:
    """Main memory of all processes below this one; None where the system does not report it."""
    parents: dict[int, int] = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # processes end at any time
            # the name in brackets may hold spaces
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    if not parents:
        return None
    below, found = {os.getpid()}, 0
    while len(below) > found:
        found = len(below)
        below |= {process for process, parent in parents.items() if parent in below}
    total = 0
    for process in below - {os.getpid()}:
        with suppress(OSError, StopIteration):
            lines = (PROC / str(process) / "smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total * 1024 / 1e9
