"""``fate.train``, ``fate.fine_tune``, ``fate.densify`` and ``fate.evaluate``: commands as Python functions.

They take what the command line takes: detectors as a name, a file or an object, datasets as a folder, a YAML file or an
object. They turn these into objects and call the function of the package that does the work. The functions of the other
commands (``fate.detect``, ``fate.simulate``, …) take all of this themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Literal

from fate.data.dataset import Dataset
from fate.data.opening import as_dataset, path_of
from fate.densify.making import Densified, begin_labels, with_classes
from fate.densify.making import densify as make_labels
from fate.densify.tracklets import TrackletOptions
from fate.errors import FateError, warn
from fate.evaluation.calibration import fit_calibration
from fate.evaluation.evaluate import Evaluation, rates_of
from fate.evaluation.evaluate import evaluate as measure
from fate.evaluation.protocols import Protocol, named_protocol
from fate.events.window import window_us as hop_of
from fate.inference.adapting import fit_dataset
from fate.inference.backends.choosing import Say, run_in
from fate.inference.backends.sessions import Backend
from fate.inference.loading import Model, as_detector, choose_device, known_accuracy, known_sensors, means_a_model
from fate.inference.running import Run
from fate.inference.stream_types import Accuracy
from fate.inference.streaming_step import Precision
from fate.inference.timing import choose_most_accurate_window
from fate.models.checkpoints import add_facts, record_accuracy
from fate.models.detector import Detector
from fate.models.nms import Score
from fate.progress import Progress
from fate.rates import PAPER_RATES
from fate.threads import limit_threads
from fate.training.config import TrainConfig
from fate.training.fine_tuning import fine_tuning
from fate.training.loop import Trained
from fate.training.loop import train as run_training
from fate.view.evaluation_page import write_evaluation_page
from fate.view.evaluation_pictures import draw_samples
from fate.view.learning_curves import draw_curves
from fate.view.page import check_page_name
from fate.workflows.recording_groups import read_groups
from fate.workflows.sharded_evaluation import predict_on_devices
from fate.workflows.spread import Spread, beside, open_spread, run_shards


def train(
    config: TrainConfig | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    *,
    dataset: str | os.PathLike[str] | Dataset | None = None,
    allow_missing: bool = False,
    progress: Progress | None = None,
) -> Trained:
    """Train a detector, or continue the run that is in ``out``.

    Args:
        config: a configuration, its YAML file, or the name of one that is in the package (``fate train --list``).
        out: folder of the run; ``runs/NAME`` for a file NAME.yaml unless given.
        overrides: changes to the file, as ``"key.sub=value"``.
        dataset: folder, YAML file or open dataset to train on, in place of ``data.path`` of the file.
        allow_missing: train although files or boxes of the dataset are missing.
        progress: called with (steps done, steps in all, a short line).

    After Ctrl-C or SIGTERM, the run is saved, and KeyboardInterrupt is raised. The same call continues it.

    Example:
        >>> fate.train("fate-s-nano-20hz", "runs/nano", ["run.epochs=2"], dataset="drives")   # doctest: +SKIP
    """
    if isinstance(config, TrainConfig) and (out is None or overrides or dataset is not None):
        raise FateError(
            "a configuration object was given; expected out=DIR too, and neither overrides nor a dataset: change the"
            " object instead"
        )
    if dataset is not None:
        path, split = path_of(dataset)
        if split is not None:
            raise FateError(f"{path}: only the split {split} was given; training needs the whole dataset")
        overrides = [*overrides, f"data.path={path}"]
    folder = Path("runs") / Path(str(config)).stem if out is None else Path(out)
    done = run_training(
        config,
        folder,
        overrides,
        progress=progress,
        allow_missing=allow_missing,
        draw_samples=draw_samples,
        draw_curves=draw_curves,
    )
    if not done.finished:  # a program must not go on with weights that are half trained
        raise KeyboardInterrupt(f"{folder}: stopped at step {done.step}, saved; the same call goes on from there")
    return done


def fine_tune(
    dataset: str | os.PathLike[str],
    model: str | os.PathLike[str] = "fate-s-nano",
    out: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    *,
    epochs: int | None = None,
    batch: int | None = None,
    freeze: Literal["none", "backbone"] = "none",
    device: str = "auto",
    allow_missing: bool = False,
    progress: Progress | None = None,
) -> Trained:
    """Train a detector for the classes and the sensor of a dataset, from trained weights.

    Args:
        dataset: folder or YAML file with labelled recordings in the splits train and val.
        model: a bundled name, or a ``.safetensors`` file.
        out: folder of the run; ``runs/DATASET-MODEL`` unless given. A run that was stopped there continues.
        overrides: settings, as ``"key.sub=value"``, in place of those that FATE chooses.
        epochs: number of epochs, 10 unless given; an epoch is longer if the dataset has more labels.
        batch: clips in a batch; 4 on a CPU and 32 on a GPU unless given.
        freeze: ``"backbone"`` trains neck and head only, which is faster.
        device: where to train: ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU if there is one.
        allow_missing: train although files or boxes of the dataset are missing.
        progress: called with (steps done, steps in all, a short line).

    After Ctrl-C or SIGTERM, the run is saved, and KeyboardInterrupt is raised. The same call continues it.

    Example:
        >>> fate.fine_tune("dataset.yaml", "fate-s-nano", "runs/van").weights      # doctest: +SKIP
    """
    found = fine_tuning(dataset, model, overrides, epochs=epochs, batch=batch, freeze=freeze, device=device)
    name = f"{Path(os.fspath(dataset)).stem}-{Path(os.fspath(model)).stem}"
    folder = Path("runs") / name if out is None else Path(out)
    return train(found.config, folder, allow_missing=allow_missing, progress=progress)


def densify(
    model: Model,
    dataset: str | os.PathLike[str] | Dataset,
    out: str | os.PathLike[str],
    hz: Sequence[float] = PAPER_RATES[1:],
    *,
    split: str | None = None,
    kind: str | None = None,
    options: TrackletOptions | None = None,
    shard: tuple[int, int] = (1, 1),
    sensor: Sequence[int] | None = None,
    device: str = "auto",
    devices: str | None = None,
    slurm: Mapping[str, Any] | None = None,
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> Densified:
    """Make labels at every time of several rates; labels that are there already are not made again.

    Args:
        model: a bundled name, a ``.safetensors`` file, or a detector, that knows all classes of the dataset.
        dataset: a folder, a YAML file, or an open dataset.
        out: folder of the labels: new, or begun with the same detector, dataset and options.
        hz: rates of the labels, in Hz.
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``. Unless given, a path means its train split if it has
            one, and an open dataset means all of it.
        kind: see ``fate.open_dataset``; for a path only.
        options: how detections become labels.
        shard: (i, n): only every n-th recording, from the i-th on. Shards may run at the same time.
        sensor: (height, width) of the camera, for files that do not say it; for a path only.
        device: where the detector runs: ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU if there is one.
        devices: several of them, which share the recordings, in place of ``device`` and ``shard``: ``"all"`` GPUs
            of this machine, ``"cuda:0,cuda:1"``, ``"cpu,cpu"``, or ``"slurm:8"`` for eight jobs of a SLURM cluster.
        slurm: options of ``sbatch`` for these jobs, such as ``{"partition": "gpu", "time": 600}``.
        batch_size: about how many windows run side by side.
        workers: processes that load events.
        progress: called with the share that is done, 0 to 1.
    """
    spread = None if devices is None else open_spread(devices, slurm)
    given = as_detector(model)
    opened = with_classes(as_dataset(dataset, split, kind=kind, usual="train", sensor=sensor), given.classes)
    detector, note = fit_dataset(given, opened.sensor, opened.name, known_sensors(model))
    if spread is not None:
        labels, rates = begin_labels(detector, opened, out, hz, options)
        make = partial(densify, model, opened, out, rates, options=options, batch_size=batch_size, workers=workers)
        has_labels = [all(labels.has(recording.name, rate) for rate in rates) for recording in opened.recordings]
        shards = [(i, n) for i, n in spread.shards(len(has_labels)) if not all(has_labels[i - 1 :: n])]
        parts = run_shards(partial(make, device=spread.device), shards, spread, beside(out), progress)
        done = Densified(labels, len(has_labels), has_labels.count(True), sum(part.windows for part in parts))
        for part in parts:
            done.count(part.boxes)
        return done
    if note:
        warn(note)
    where = choose_device(device)
    with limit_threads(where):
        return make_labels(
            detector, opened, out, hz, options=options, shard=shard, device=where, batch_size=batch_size,
            workers=workers, progress=progress,
        )  # fmt: skip


def evaluate(
    what: Model,
    dataset: str | os.PathLike[str] | Dataset,
    hz: Sequence[float] | None = None,
    *,
    window_us: int | None = None,
    split: str | None = None,
    kind: str | None = None,
    protocol: str | Protocol | None = None,
    label_tolerance_us: int | None = None,
    score: Score = "product",
    max_overlap: float | None = None,
    device: str = "auto",
    devices: str | None = None,
    slurm: Mapping[str, Any] | None = None,
    streams: int | None = None,
    workers: int = 0,
    shard: tuple[int, int] = (1, 1),
    job_folder: str | os.PathLike[str] | None = None,
    predictions_to: str | os.PathLike[str] | None = None,
    images: str | os.PathLike[str] | None = None,
    record: bool = False,
    calibrate: bool = False,
    report: str | os.PathLike[str] | None = None,
    groups: str | os.PathLike[str] | Mapping[str, str] | None = None,
    precision: Precision | None = None,
    backend: Backend = "torch",
    say: Say | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a detector, or predictions of any detector, on a dataset at several rates.

    Args:
        what: a bundled name, a ``.safetensors`` file, a file of ``fate.export`` (.onnx, .xml), a detector, or a file or
            folder of predictions (FATE's npz, COCO's JSON, Prophesee's box files).
        dataset: a folder, a YAML file, or an open dataset; its labelled recordings are used.
        hz: rates in Hz. Unless given: 20, 40, 80, 100 and 200; only 20 for RVT's histograms; for predictions the rates
            that their files name.
        window_us: length of the windows in µs; 1 / hz unless given. Longer windows overlap. For a detector only.
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``. Unless given, a path means its test split if it has one,
            and an open dataset means all of it.
        kind: see ``fate.open_dataset``; for a path only.
        protocol: ``"gen1"``, ``"1mpx"``, ``"sim"``, ``"custom"`` or a protocol; the dataset's own unless given.
        label_tolerance_us: labels further than this from the end of every window are not used; the protocol's own
            unless given, 2 ms.
        score: what ranks boxes: ``"product"`` is objectness · class, ``"class"`` the class alone.
        max_overlap: IoU above which the weaker of two boxes of a class is dropped; unless given, 0.45 for YOLOX heads
            and none for DETR heads, as published. For a detector only.
        device: where the detector runs: ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU if there is one.
        devices: several of them, which share the recordings, in place of ``device`` and ``shard``: ``"all"`` GPUs
            of this machine, ``"cuda:0,cuda:1"``, ``"cpu,cpu"``, or ``"slurm:8"`` for eight jobs of a SLURM cluster.
        slurm: options of ``sbatch`` for these jobs, such as ``{"partition": "gpu", "time": 600}``.
        streams: recordings that run side by side; None for as many as fit.
        workers: processes that load events.
        shard: (i, n): only every n-th recording, from the i-th on.
        job_folder: folder for the logs of ``devices`` and, until all are done, their predictions. Unless given, it is
            beside ``predictions_to``; without that, it is a temporary one, and a stopped evaluation begins again.
        predictions_to: folder for the predictions, one file for each rate (``--predictions``).
        images: the COCO file of the images, for predictions that are a plain list of COCO results.
        record: whether AP50:95 by rate and length of windows is added to the header of the ``.safetensors`` file;
            ``fate.detect`` chooses the length of its windows by it.
        calibrate: whether scores are calibrated on this dataset, validation data as a rule: the header of the
            ``.safetensors`` file gets the curve and the threshold that gives a precision of 0.9.
        report: name of a page to write, .html: curves, confusion matrices, kinds of errors (TIDE) and sample frames.
        groups: evaluate each group of recordings by itself, too: ``"sensor"`` or ``"scene"`` of a simulated dataset, a
            YAML or JSON file with a line ``recording: group`` for each recording, or such a mapping.
        precision: evaluate what a stream computes on this device in this precision, such as ``"float16"`` on a GPU; see
            ``fate.load_detector``. Unless given, clips of windows are detected in float32.
        backend: what runs the detector on a CPU; see ``fate.load_detector``.
        say: called with a line about what is prepared and which backend was chosen.
        progress: called with the share that is done, 0 to 1.

    Example:
        >>> print(fate.evaluate("fate-s-nano", "dataset.yaml", (20, 200)).table())            # doctest: +SKIP
    """
    weights = str(what) if isinstance(what, str | os.PathLike) and Path(what).suffix == ".safetensors" else None
    if record or calibrate:
        _check_header(what, weights, shard, score)
    if report is not None:
        check_page_name(report)
    spread = None if devices is None else open_spread(devices, slurm)
    opened = as_dataset(dataset, split, kind=kind, usual="test")
    group_of = None if groups is None else read_groups(groups, opened)
    if not isinstance(protocol, Protocol):
        protocol = named_protocol(protocol or opened.protocol, opened.sensor)
    if label_tolerance_us is not None:
        protocol = replace(protocol, label_tolerance_us=label_tolerance_us)
    given: Any
    given, note = what, ""
    if not means_a_model(what) and (precision is not None or backend != "torch"):
        option = f"backend={backend}" if precision is None else f"precision={precision}"
        raise FateError(f"{what}: predictions were given with {option}, which is for a detector; leave it out")
    if means_a_model(what):
        given, note = fit_dataset(as_detector(what, backend), opened.sensor, opened.name, known_sensors(what))
    running: dict[str, Any] = {
        "window_us": window_us, "streams": streams, "workers": workers, "score": score, "max_overlap": max_overlap,
        "precision": precision,
    }  # fmt: skip
    runs = None
    if spread is not None:
        if not means_a_model(what):
            raise FateError(f"{what}: predictions were given with several devices; these are for a detector")
        opened = opened.checked()
        near = None if predictions_to is None else beside(predictions_to)
        if backend != "torch":
            raise FateError(f"backend={backend} was given with several devices; it is for one: give device=cpu")
        hz, runs = _run_on_devices(what, opened, hz, spread, job_folder or near, progress=progress, **running)
    where = choose_device(device)
    if means_a_model(what):
        given = run_in(given, backend, where, clips=True, say=say)
    with limit_threads(where):
        done = measure(
            given, opened, hz, protocol=protocol, images=images, shard=shard, predictions_to=predictions_to, runs=runs,
            errors=report is not None, groups=group_of, progress=progress, device=where, **running,
        )  # fmt: skip
    if record:
        known = [(at.hz, window_us or hop_of(at.hz), at.scores["AP50:95"]) for at in done.rates]
        record_accuracy(weights or "", [(hz, length_us, 100 * ap) for hz, length_us, ap in known if ap is not None])
    notes = [note] if note else []
    if calibrate:
        calibration, said = fit_calibration([at.scores.matches for at in done.rates])
        add_facts(weights or "", {"calibration": calibration.to_dict()})
        notes.append(said)
    if means_a_model(what):
        notes += _describe_other_windows(known_accuracy(what), done, window_us, calibrate)
    done = replace(done, notes=(*notes, *done.notes))
    if report is not None:
        write_evaluation_page(done, opened, report)
    return done


def _check_header(what: Any, weights: str | None, shard: tuple[int, int], score: str) -> None:
    """Refuse an evaluation whose results cannot be written into the header of weights."""
    reason = ""
    if weights is None:
        reason = "and it is no .safetensors file; give one, such as a copy of the bundled weights"
    elif shard != (1, 1):
        reason = f"for the part {shard[0]}/{shard[1]} of the recordings; evaluate all of them"
    elif score != "product":
        reason = f"for boxes ranked by score={score!r}; expected score='product'"
    if reason:
        raise FateError(f"{what}: results were to be written into its header, {reason}")


def _describe_other_windows(
    card: Sequence[Accuracy], done: Evaluation, window_us: int | None, calibrated: bool
) -> list[str]:
    """A sentence if scores were measured, or calibrated, with other windows than ``fate detect`` chooses."""
    best = {at.hz: choose_most_accurate_window(card, at.hz) for at in done.rates}
    others = [
        f"{best[at.hz] / 1000:g} ms at {at.hz:g} Hz" for at in done.rates if best[at.hz] != (window_us or hop_of(at.hz))
    ]
    if not others:
        return []
    what = "scores were calibrated with" if calibrated else "these are"
    said = f"{what} other windows than those of fate detect ({', '.join(others)})"
    if len(lengths := {*best.values()}) == 1:
        said += f"; give --window {lengths.pop() / 1000:g}ms"
    return [said]


def _run_on_devices(
    what: Model,
    dataset: Dataset,
    hz: Sequence[float] | None,
    spread: Spread,
    job_folder: str | os.PathLike[str] | None,
    **running: Any,
) -> tuple[tuple[float, ...], list[Run] | None]:
    """The rates, and what a detector predicts at each of them on a dataset; None if no recording has labels."""
    if not dataset.labelled:
        return tuple(hz or ()), None
    if job_folder is None and spread.slurm is not None:
        raise FateError("jobs of SLURM need a folder on a disk that all machines share; give predictions_to=DIR")
    rates = rates_of(dataset, hz)
    folder = Path(mkdtemp(prefix="fate-evaluate-") if job_folder is None else job_folder)
    runs = predict_on_devices(partial(_load_for, what, dataset), dataset, rates, spread, folder, **running)
    if job_folder is None:  # logs of jobs that failed are kept
        rmtree(folder)
    return rates, runs


def _load_for(what: Model, dataset: Dataset) -> Detector:
    """The detector, adapted to the sensor of the dataset."""
    return fit_dataset(as_detector(what), dataset.sensor, dataset.name)[0]
