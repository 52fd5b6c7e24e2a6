"""Run a detector on the shards of a dataset, each in a job of its own, and bring their predictions together.

Every shard writes one file of predictions for each rate. The name of the file has a hash of all that the predictions
depend on, so a file that is there is right: a command that was stopped only makes the files that are missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from fate.boxes.labels import Labels
from fate.boxes.predictions import read_predictions, write_predictions
from fate.data.dataset import Dataset
from fate.data.labelled_recording import LabelledRecording
from fate.densify.making import weights_hash
from fate.evaluation.evaluate import predict_rates
from fate.inference.running import Run
from fate.models.detector import Detector
from fate.progress import Progress, scale
from fate.version import __version__
from fate.workflows.spread import Spread, run_shards

#: What a run counts, which its file of predictions holds too.
_COUNTED = tuple(field.name for field in fields(Run) if field.name not in ("hz", "predictions"))


def predict_on_devices(
    load: Callable[[], Detector],
    dataset: Dataset,
    rates: Sequence[float],
    spread: Spread,
    folder: Path,
    *,
    progress: Progress | None = None,
    **running: Any,
) -> list[Run]:
    """Run a detector on the labelled recordings of a dataset at several rates, and return a run for each rate.

    Args:
        load: makes the detector, here and in every job.
        dataset: its labels have been read (``Dataset.checked``).
        rates: in Hz.
        spread: where the jobs run.
        folder: for logs and, until all shards are done, their predictions.
        progress: called with the number of shards that are done.
        running: further arguments of ``evaluation.predict_rates``.
    """
    recordings = dataset.labelled
    options = {name: running.get(name) for name in ("window_us", "score", "max_overlap", "precision")}
    options["keep"] = all(recording.truth_file is None for recording in recordings)  # dense truth keeps every window
    facts = [weights_hash(detector := load()), detector.description, options, __version__]
    files: dict[tuple[int, int], dict[float, Path]] = {}
    for number, count in spread.shards(len(recordings)):
        key = _hash(facts, recordings[number - 1 :: count])
        names = {rate: f"{rate:g}hz_{number}of{count}_{key}.npz" for rate in rates}
        files[number, count] = {rate: folder.absolute() / name for rate, name in names.items()}
    missing = [shard for shard in files if not all(file.exists() for file in files[shard].values())]
    predict = partial(_predict_shard, load, dataset, files, device=spread.device, **running)
    run_shards(predict, missing, spread, folder, progress)
    runs = [_merge([files[shard][rate] for shard in files], rate, recordings) for rate in rates]
    for file in folder.glob("*hz_*of*_*.npz"):
        file.unlink()
    return runs


def _predict_shard(
    load: Callable[[], Detector],
    dataset: Dataset,
    files: Mapping[tuple[int, int], Mapping[float, Path]],
    shard: tuple[int, int],
    progress: Progress,
    **running: Any,
) -> None:
    """Write the files of one shard that are missing."""
    missing = {rate: file for rate, file in files[shard].items() if not file.exists()}
    left = scale(progress, 1 - len(missing) / len(files[shard]), 1.0)
    for run in predict_rates(load(), dataset, tuple(missing), shard, progress=left, **running):
        counted = {name: getattr(run, name) for name in _COUNTED}
        write_predictions(missing[run.hz], run.predictions, {"hz": run.hz, "run": counted})


def _merge(files: Sequence[Path], hz: float, recordings: Sequence[LabelledRecording]) -> Run:
    """The run of all shards together, with the recordings in the order of the dataset."""
    run, tables = Run(hz), dict[str, Labels]()
    for file in files:
        read = read_predictions(file)
        tables |= read
        for name, value in read.facts["run"].items():
            if name == "seconds":
                run.seconds = {stage: run.seconds[stage] + spent for stage, spent in value.items()}
            else:
                setattr(run, name, value if name == "score" else getattr(run, name) + value)
    run.predictions = {recording.name: tables[recording.name] for recording in recordings}
    return run


def _hash(facts: Sequence[Any], recordings: Sequence[LabelledRecording]) -> str:
    """Sixteen digits that differ if predictions may differ: by weights, options, events, or the times that are kept."""
    inputs: list[Any] = [*facts]
    for recording in recordings:
        file, times = recording.events_file.stat(), recording.labels.labelled_us
        inputs.append([recording.name, file.st_size, file.st_mtime_ns, hashlib.sha256(times.tobytes()).hexdigest()])
    return hashlib.sha256(json.dumps(inputs, default=str).encode()).hexdigest()[:16]
