"""The folder of a run: its settings, its results, and the checkpoint to continue from.

    config.yaml          every setting, defaults included
    environment.json     versions, device, seed, the code's git hash
    data.json            the recordings, and a hash of their names, spans and labels
    metrics.jsonl        a line every few steps, and one for each validation; AP is a fraction, 0 to 1
    last.ckpt            weights, optimiser, schedule, states, generators; training continues from here
    last.safetensors     the teacher's weights at that time; best.safetensors: those that validated best
    curves.png           learning curves, and curves.html: the same as a page with the last validation
    pictures/            predictions beside labels, at each validation
    log.txt              messages with their time: the loss every few steps, AP in percent, faults of the data

Files are written atomically. Training in the folder of a run continues it; other settings are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from fate.boxes.dense_labels import SAME, open_dense_labels
from fate.errors import FateError, warn
from fate.json_files import read_object, write_json
from fate.processes import lock_file
from fate.training.config import EXACT, TrainConfig, read_config
from fate.version import full_version, git_hash
from fate.whole_files import write_whole


class RunDirectory:
    """A run's folder, open for one process at a time."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.checkpoint = self.folder / "last.ckpt"  #: the checkpoint that training continues from
        self.pictures = self.folder / "pictures"  #: folder of sample pictures
        self._lock: IO[str] | None = None
        self.metrics_failed = False

    def begin(self, config: TrainConfig) -> bool:
        """Make the folder, or check that the run in it has these settings; returns whether it has a checkpoint."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.pictures.mkdir(exist_ok=True)
            self._lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise FateError(
                f"{self.folder}: cannot be made or written to ({error.strerror}); choose another out=DIR"
            ) from None
        try:
            lock_file(self._lock.fileno())
        except BlockingIOError:
            self.close()
            raise FateError(
                f"{self.folder}: another process trains here; wait for it, or choose another out=DIR"
            ) from None
        except OSError as error:
            warn(
                f"{self.folder}: this disk cannot lock the folder for one run ({error.strerror}); start no second run"
                " in it"
            )
        settings = self.folder / "config.yaml"
        begun = self.checkpoint.exists() or (self.folder / "metrics.jsonl").exists()
        if begun and settings.exists():
            self._compare(settings, config)
        write_whole(settings, config.to_yaml().encode())
        return self.checkpoint.exists()

    def describe(self, config: TrainConfig, recordings: Sequence[Any], device: str, faults: Mapping[str, Any]) -> None:
        """Write data.json, with the faults of the data, and environment.json; other data than before are refused."""
        content = {**data_facts(recordings, config.strategy.labels), **faults}
        known = self.folder / "data.json"
        if known.exists() and self.checkpoint.exists():
            before = read_object(known, "what a run was begun on; choose another out=DIR")
            if before.get("hash") != content["hash"]:
                raise FateError(
                    f"{self.folder}: this run was begun on other data ({before.get('recordings')} recordings, hash"
                    f" {before.get('hash')}; now {content['recordings']}, {content['hash']}); choose another out=DIR"
                )
        write_json(known, content)
        import torch  # noqa: PLC0415  (it takes seconds to load)

        environment = {
            "fate": full_version(),
            "git": git_hash(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "seed": config.run.seed,
            "fingerprint": config.fingerprint(),
            "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        write_json(self.folder / "environment.json", environment)

    def saved_step(self) -> int:
        """The step of ``last.ckpt``; the whole file is checked first."""
        import torch  # noqa: PLC0415

        try:
            with zipfile.ZipFile(self.checkpoint) as archive:
                fault = "has been changed since it was written (its checksums do not fit)" if archive.testzip() else ""
        except OSError as error:
            fault = f"cannot be read ({error.strerror})"
        except Exception:  # a damaged table of contents raises many kinds of errors
            size = self.checkpoint.stat().st_size
            fault = f"has been cut short or overwritten (its {size} bytes do not end as a checkpoint does)"
        if not fault:
            try:
                return int(torch.load(self.checkpoint, map_location="cpu", weights_only=True, mmap=True)["global_step"])
            except Exception:  # torch raises many kinds of errors
                fault = "holds something else than the state of a training run"
        weights = [path for name in ("last", "best") if (path := self.folder / f"{name}.safetensors").exists()]
        instead = f", or give model.weights={weights[0]} and another out=DIR to begin from those" if weights else ""
        raise FateError(f"{self.checkpoint}: {fault}; delete it, and the same command starts again{instead}")

    def log(self, text: str) -> None:
        """Write a message with its time to log.txt; errors of the disk are ignored, so that training continues."""
        with suppress(OSError), (self.folder / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def announce(self, text: str) -> None:
        """Print a message, and write it to log.txt."""
        print(text, flush=True)
        self.log(text)

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl; an error of the disk is printed once, and training continues."""
        try:
            with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            if not self.metrics_failed:
                print(f"metrics.jsonl: cannot be written ({error.strerror}); training continues", file=sys.stderr)
            self.metrics_failed = True

    def scores(self) -> tuple[float | None, float | None]:
        """The validation score before the first step and the highest one, from metrics.jsonl; None without any."""
        lines = read_metrics(self.folder / "metrics.jsonl")
        scored = [(line["step"], line["score"]) for line in lines if line.get("score") is not None]
        before = next((score for step, score in scored if step == 0), None)
        return before, max((score for step, score in scored if step > 0), default=None)

    def cut_metrics(self, step: int) -> None:
        """Remove the lines after the step that training continues from, because it writes them again."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, KeyError, TypeError, RecursionError):  # half a line, from the moment of a crash
                continue
        write_whole(path, "".join(f"{line}\n" for line in kept).encode())

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            self._lock.close()

    def _compare(self, settings: Path, config: TrainConfig) -> None:
        try:
            before = read_config(settings)
        except FateError as error:
            raise FateError(f"{error}; repair it, or choose another out=DIR") from None
        if before.fingerprint() == config.fingerprint():
            return
        old, new = (each.model_dump(mode="json", by_alias=True) for each in (before, config))
        keys = [(section, key) for section in sorted(old) for key in sorted(old[section])]
        differing = [f"{section}.{key} was {old[section][key]!r}, now {new[section][key]!r}" for section, key in keys
                     if old[section][key] != new[section][key]]  # fmt: skip
        more = " (OneCycle cannot be stretched: a longer run starts again)" if before.steps != config.steps else ""
        raise FateError(
            f"{self.folder}: holds a run with other settings: {'; '.join(differing[:5])}{more}; choose another out=DIR"
        )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl``; a last line that is being written, or was cut by a crash, is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and "step" in line:
            lines.append(line)
    return lines


def data_facts(recordings: Sequence[Any], dense: str | None = None) -> dict[str, Any]:
    """A hash of the data: names, spans and labels of all recordings, and the options of the dense labels."""
    seen = hashlib.sha256()
    boxes = 0
    for recording in recordings:
        seen.update(f"{recording.name} {recording.start_us} {recording.end_us}\n".encode("utf-8", "surrogateescape"))
        if recording.labelled:
            labels = recording.labels
            boxes += len(labels)
            for column in (labels.t_us, labels.boxes, labels.class_id, labels.labelled_us):
                seen.update(np.ascontiguousarray(column).tobytes())
    if dense == EXACT:
        seen.update(EXACT.encode())
    elif dense is not None:  # rates are added to a folder later; its model, dataset and options stay
        made_by = open_dense_labels(dense).manifest
        seen.update(json.dumps({part: made_by[part] for part in SAME}, sort_keys=True).encode())
    return {"recordings": len(recordings), "boxes": boxes, "hash": seen.hexdigest()[:16],
            "names": [recording.name for recording in recordings]}  # fmt: skip
