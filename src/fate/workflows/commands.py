"""The commands as Python functions, for those whose arguments need preparation.

``fate.evaluate`` and the others below take what the command line takes: detectors as a name, a file or an object,
datasets as a folder, a YAML file or an object. They turn these into objects and call the function of the package that
does the work. Commands whose function takes all of this already (``fate.detect``, ``fate.simulate``, …) are not here.

Each function imports what it needs when it is called, because torch and Lightning take seconds to load.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fate.rates import PAPER_RATES

if TYPE_CHECKING:
    from fate.bench.harness import BenchResult
    from fate.boxes.dense_labels import DenseLabels
    from fate.boxes.detections import DetectionFrame
    from fate.data.dataset import Dataset
    from fate.densify.making import Densified
    from fate.densify.tracklets import TrackletOptions
    from fate.evaluation.evaluate import Evaluation
    from fate.evaluation.protocols import Protocol
    from fate.formats.converting import Converted
    from fate.formats.decoder import OutOfBounds
    from fate.formats.recording import Recording
    from fate.formats.summary import Info
    from fate.inference.loading import Model
    from fate.inspection.inspect import Inspection
    from fate.models.nms import Score
    from fate.models.table import Entry
    from fate.progress import Progress
    from fate.training.config import TrainConfig
    from fate.training.loop import Trained
    from fate.view.rerun_view import Shown
    from fate.workflows.check_labels import LabelCheck
    from fate.workflows.studies.table import StudyResult

# ruff: noqa: PLC0415  (see above)


def info(
    path: str | os.PathLike[str] | Recording,
    *,
    sensor: Sequence[int] | None = None,
    format: str | None = None,
    columns: str | None = None,
    time_unit: Literal["s", "ms", "us", "ns"] | None = None,
    strict: bool = False,
    out_of_bounds: OutOfBounds = "raise",
    unsorted: Literal["raise", "sort"] = "raise",
    cache: bool = True,
    progress: Progress | None = None,
) -> Info:
    """Count what a recording holds: format, sensor, events, times, rate, and what was skipped or dropped.

    Args:
        path: a file, or an open recording.
        sensor, format, columns, time_unit, strict, out_of_bounds, unsorted, cache: see ``fate.open_recording``; for a
            file only.
        progress: called with (events done, events in all).
    """
    from fate.formats.summary import info as run

    return run(
        path, sensor=sensor, format=format, columns=columns, time_unit=time_unit, strict=strict,
        out_of_bounds=out_of_bounds, unsorted=unsorted, cache=cache, progress=progress,
    )  # fmt: skip


def convert(
    source: str | os.PathLike[str] | Recording,
    target: str | os.PathLike[str],
    *,
    start_us: int | None = None,
    end_us: int | None = None,
    roi: tuple[int, int, int, int] | None = None,
    zero_time: bool = False,
    output_format: str | None = None,
    sensor: Sequence[int] | None = None,
    format: str | None = None,
    columns: str | None = None,
    time_unit: Literal["s", "ms", "us", "ns"] | None = None,
    strict: bool = False,
    out_of_bounds: OutOfBounds = "raise",
    unsorted: Literal["raise", "sort"] = "raise",
    cache: bool = True,
    progress: Progress | None = None,
) -> Converted:
    """Copy a recording into another format, whole or in part.

    Args:
        source: a file, or an open recording.
        target: the new file. It is written completely or not at all, and replaced if it exists.
        start_us: first time to copy, in µs on the clock of the recording.
        end_us: first time not to copy.
        roi: ``(x1, y1, x2, y2)`` in pixels, the last two not included; coordinates and sensor stay as they are.
        zero_time: shift times so that the copy starts at 0 µs.
        output_format: format of ``target`` if its suffix does not give it: ``"dat"``, ``"evt2"``, ``"evt21"``,
            ``"evt3"``, ``"prophesee-hdf5"``, ``"rvt-hdf5"``, ``"npz"``, ``"npy"`` or ``"csv"``.
        sensor, format, columns, time_unit, strict, out_of_bounds, unsorted, cache: how to read ``source``, see
            ``fate.open_recording``; for a file only.
        progress: called with (events read, events in all).
    """
    from fate.formats.converting import convert as run

    return run(
        source, target, start_us=start_us, end_us=end_us, roi=roi, zero_time=zero_time, output_format=output_format,
        progress=progress, sensor=sensor, format=format, columns=columns, time_unit=time_unit, strict=strict,
        out_of_bounds=out_of_bounds, unsorted=unsorted, cache=cache,
    )  # fmt: skip


def models(
    classes: Sequence[str] = ("car", "pedestrian"),
    sensor: Sequence[int] = (240, 304),
    progress: Progress | None = None,
) -> list[Entry]:
    """List the detectors that can be built by name, with parameters and GFLOPs per window.

    Args:
        classes: names of the classes they are built for.
        sensor: (height, width) in pixels.
        progress: called with (detectors counted, detectors in all).
    """
    from fate.models.zoo import list_models

    return list_models(classes, sensor, progress)


def inspect(
    dataset: str | os.PathLike[str] | Dataset,
    *,
    split: str | None = None,
    windows: int = 200,
    sensor: Sequence[int] | None = None,
    out_of_bounds: OutOfBounds = "raise",
    unsorted: Literal["raise", "sort"] = "raise",
    cache: bool = True,
    progress: Progress | None = None,
) -> Inspection:
    """Measure what events and boxes of a dataset are like, beside the figures of Gen1 and 1Mpx.

    Args:
        dataset: a folder, a YAML file, one recording, or an open dataset (whole, or one split of it).
        split: only ``"train"``, ``"val"`` or ``"test"``.
        windows: the most windows of each length, and labelled frames, to measure in each recording.
        sensor, out_of_bounds, unsorted, cache: see ``fate.open_recording``.
        progress: called with (done, in all), in thousandths of a recording.
    """
    from fate.data.dataset import path_of
    from fate.inspection.inspect import inspect as run

    place, only = path_of(dataset)
    return run(
        place, split=split or only, windows=windows, progress=progress, sensor=sensor, out_of_bounds=out_of_bounds,
        unsorted=unsorted, cache=cache,
    )  # fmt: skip


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

    Example:
        >>> fate.train("fate-s-nano-20hz", "runs/nano", ["run.epochs=2"], dataset="drives")   # doctest: +SKIP
    """
    from fate.data.dataset import path_of
    from fate.errors import FateError
    from fate.training.config import TrainConfig
    from fate.training.loop import train as run
    from fate.view.evaluation_pictures import draw_samples

    if isinstance(config, TrainConfig):
        if out is None:
            raise FateError("a configuration without a file was given; expected a folder for the run too: out=DIR")
        if overrides or dataset is not None:
            raise FateError("overrides or a dataset were given with a configuration object; change the object instead")
        return run(config, Path(out), progress=progress, allow_missing=allow_missing, draw_samples=draw_samples)
    if dataset is not None:
        place, split = path_of(dataset)
        if split is not None:
            raise FateError(f"{place}: only the split {split} was given; training needs the whole dataset")
        overrides = [*overrides, f"data.path={place}"]
    folder = Path("runs") / Path(config).stem if out is None else Path(out)
    return run(config, folder, overrides, progress=progress, allow_missing=allow_missing, draw_samples=draw_samples)


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
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> Densified:
    """Make labels at every time of several rates; labels that are there already are not made again.

    Args:
        model: a bundled name, a ``.safetensors`` file, or a detector, trained on the classes of the dataset.
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
        batch_size: about how many windows run side by side.
        workers: processes that load events.
        progress: called with the share that is done, 0 to 1.
    """
    from fate.data.dataset import as_dataset
    from fate.densify.making import densify as run
    from fate.densify.making import with_classes
    from fate.errors import warn
    from fate.inference.adapting import fit_dataset
    from fate.inference.loading import as_detector, choose_device

    given = as_detector(model)
    opened = with_classes(as_dataset(dataset, split, kind=kind, usual="train", sensor=sensor), given.classes)
    detector, note = fit_dataset(given, opened.sensor, opened.name)
    if note:
        warn(note)
    return run(
        detector, opened, out, hz, options=options, shard=shard, device=choose_device(device), batch_size=batch_size,
        workers=workers, progress=progress,
    )  # fmt: skip


def check_labels(
    labels: str | os.PathLike[str] | DenseLabels,
    dataset: str | os.PathLike[str] | Dataset,
    hz: Sequence[float] | None = None,
    *,
    split: str | None = None,
    kind: str | None = None,
    progress: Progress | None = None,
) -> LabelCheck:
    """Measure the quality of dense labels (``fate densify --check``).

    Args:
        labels: the folder that ``fate.densify`` wrote.
        dataset: a folder, a YAML file, or an open dataset: exact boxes if it is simulated, else its annotated boxes.
        hz: rates to measure; all that the labels have unless given.
        split, kind: see ``fate.densify``.
        progress: called with the share that is done, 0 to 1.
    """
    from fate.data.dataset import as_dataset
    from fate.workflows.check_labels import check_labels as run

    return run(labels, as_dataset(dataset, split, kind=kind, usual="train"), hz, progress=progress)


def evaluate(
    what: Model,
    dataset: str | os.PathLike[str] | Dataset,
    hz: Sequence[float] | None = None,
    *,
    window_us: int | None = None,
    split: str | None = None,
    kind: str | None = None,
    protocol: str | Protocol | None = None,
    score: Score = "product",
    max_overlap: float | None = None,
    device: str = "auto",
    streams: int = 8,
    workers: int = 0,
    shard: tuple[int, int] = (1, 1),
    predictions_to: str | os.PathLike[str] | None = None,
    images: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a detector, or predictions of any detector, on a dataset at several rates.

    Args:
        what: a bundled name, a ``.safetensors`` file, a detector, or a file or folder of predictions (FATE's npz,
            COCO's JSON, Prophesee's box files).
        dataset: a folder, a YAML file, or an open dataset; its labelled recordings are used.
        hz: rates in Hz. Unless given: 20, 40, 80, 100 and 200; only 20 for RVT's histograms; for predictions the rates
            that their files name.
        window_us: length of the windows in µs; 1 / hz unless given. Longer windows overlap. For a detector only.
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``. Unless given, a path means its test split if it has one,
            and an open dataset means all of it.
        kind: see ``fate.open_dataset``; for a path only.
        protocol: ``"gen1"``, ``"1mpx"``, ``"sim"``, ``"custom"`` or a protocol; the dataset's own unless given.
        score: what ranks boxes: ``"product"`` is objectness · class, ``"class"`` the class alone.
        max_overlap: IoU above which the weaker of two boxes of a class is dropped; unless given, 0.45 for YOLOX heads
            and none for DETR heads, as published. For a detector only.
        device: where the detector runs: ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU if there is one.
        streams: recordings that run side by side.
        workers: processes that load events.
        shard: (i, n): only every n-th recording, from the i-th on.
        predictions_to: folder for the predictions, one file for each rate (``--predictions``).
        images: the COCO file of the images, for predictions that are a plain list of COCO results.
        progress: called with the share that is done, 0 to 1.

    Example:
        >>> print(fate.evaluate("fate-s-nano", "dataset.yaml", (20, 200)).table())            # doctest: +SKIP
    """
    from fate.data.dataset import as_dataset
    from fate.evaluation.evaluate import evaluate as run
    from fate.evaluation.protocols import named_protocol
    from fate.inference.adapting import fit_dataset
    from fate.inference.loading import as_detector, choose_device, means_a_model

    opened = as_dataset(dataset, split, kind=kind, usual="test")
    rules = named_protocol(protocol, opened.sensor) if isinstance(protocol, str) else protocol
    given: Any
    given, note = fit_dataset(as_detector(what), opened.sensor, opened.name) if means_a_model(what) else (what, "")
    done = run(
        given, opened, hz, protocol=rules, window_us=window_us, images=images, shard=shard,
        predictions_to=predictions_to, progress=progress, device=choose_device(device), streams=streams,
        workers=workers, score=score, max_overlap=max_overlap,
    )  # fmt: skip
    return replace(done, notes=(note, *done.notes)) if note else done


def study(
    name: str,
    dataset: str | os.PathLike[str] | Dataset | None = None,
    out: str | os.PathLike[str] = "studies",
    *,
    scale: str | None = None,
    seeds: int = 1,
    only: Sequence[int] = (),
    rows: Sequence[str] = (),
    device: str = "auto",
    workers: int = 4,
    jobs: int = 1,
    settings: Sequence[str] = (),
    progress: Progress | None = None,
) -> StudyResult:
    """Run a study of several detectors and write its table, or continue one.

    Args:
        name: of the study; ``fate study --help`` lists them.
        dataset: a folder, a YAML file or an open dataset with the splits train, val and test; ``"sim"`` for 300
            simulated drives, which are made once. Only ``"smoke"`` needs none: it makes its own.
        out: folder of all runs and tables. Several studies may share one, and then share runs.
        scale: ``"paper"``, ``"sim"`` or ``"smoke"``; chosen by the dataset unless given.
        seeds: number of seeds, from 0 on.
        only: seeds to run now; all unless given.
        rows: names of the rows to run; all unless given.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        workers: processes of each run that load events.
        jobs: runs side by side, each in its own process. A script that asks for several needs
            ``if __name__ == "__main__"``.
        settings: changes to every run, as ``"key.sub=value"``.
        progress: called with a text about each step.
    """
    from fate.data.dataset import path_of
    from fate.errors import FateError
    from fate.training.loop import need_lightning
    from fate.workflows.studies.study import check_request, drives, run_study

    check_request(name, scale, seeds, only, rows, jobs)
    need_lightning()
    if dataset is None:
        if name != "smoke":
            raise FateError(
                f"the study {name} was asked for without a dataset; give a folder, or sim for simulated drives"
            )
        dataset = "smoke"
    place, split = path_of(dataset)
    if split is not None:
        raise FateError(f"{place}: only the split {split} was given; a study needs train, val and test")
    if str(place) in ("sim", "smoke") and not place.exists():
        import torch

        if progress is not None:
            progress(0, None, f"{place} drives: in {Path(out) / f'{place}-drives'}, simulated unless they are there")
        on_gpu = device != "cpu" and torch.cuda.is_available()
        place = drives(str(place), out, "cuda" if on_gpu else "cpu")
    return run_study(
        name, place, out, scale=scale, seeds=seeds, only=only, rows=rows, device=device, workers=workers, jobs=jobs,
        settings=settings, progress=progress,
    )  # fmt: skip


def view(
    recording: str | os.PathLike[str] | Recording,
    detections: str | os.PathLike[str] | Sequence[DetectionFrame] | None = None,
    *,
    acc_us: int = 50_000,
    start_us: int | None = None,
    end_us: int | None = None,
    threshold: float = 0.0,
    classes: Sequence[str] | None = None,
    save: str | os.PathLike[str] | None = None,
    sensor: Sequence[int] | None = None,
    format: str | None = None,
) -> Shown:
    """Open the rerun viewer on a recording, or write a file that it opens. Needs ``pip install rerun-sdk``.

    Args:
        recording: a file, or an open recording.
        detections: a JSON file of ``fate detect``, a label file (COCO, Prophesee, npz), or frames in order of time.
        acc_us: the picture shows the events of this time before it, in µs.
        start_us: first time to show, in µs; the start of the recording unless given.
        end_us: first time not to show; the end of the recording unless given.
        threshold: least score of a box to show.
        classes: names of the class ids; those of the file of detections unless given.
        save: the ``.rrd`` file to write instead of opening a window.
        sensor, format: see ``fate.open_recording``; for a file only.
    """
    from fate.boxes.detection_files import read_frames
    from fate.formats.opening import open_recording
    from fate.formats.recording import Recording
    from fate.view.rerun_view import show_recording

    if not isinstance(recording, Recording):
        with open_recording(recording, sensor=sensor, format=format) as opened:
            return view(
                opened, detections, acc_us=acc_us, start_us=start_us, end_us=end_us, threshold=threshold,
                classes=classes, save=save,
            )  # fmt: skip
    if isinstance(detections, str | os.PathLike):
        detections, named = read_frames(detections)
        classes = classes or named
    recording.refuse_empty()
    return show_recording(
        recording, detections, acc_us=acc_us, start_us=start_us, end_us=end_us, threshold=threshold, classes=classes,
        save=save,
    )  # fmt: skip


def bench_data(
    dataset: str | os.PathLike[str] | Dataset,
    folder: str | os.PathLike[str],
    hz: Sequence[float] = (20, 200),
    workers: Sequence[int] = (0, 1, 2),
    seconds: float = 5.0,
    progress: Callable[[str], None] | None = None,
) -> BenchResult:
    """Measure how fast windows of a dataset come off the disk, beside histograms as RVT stores them.

    Args:
        dataset: a folder, a YAML file, or an open dataset of events.
        folder: where the histograms may be written, about 1 MB for each second of Gen1.
        hz: rates of the windows, in Hz.
        workers: numbers of loading processes to try.
        seconds: length of each measurement.
        progress: called with a line about the next measurement.
    """
    from fate.bench.data_loading import bench_data as run
    from fate.data.dataset import as_dataset

    return run(as_dataset(dataset), Path(folder), hz, workers, seconds, progress)
