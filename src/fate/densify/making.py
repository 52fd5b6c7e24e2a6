"""``fate.densify``: makes a folder of labels at every rate from a detector and sparse labels."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fate.boxes.dense_labels import DenseLabels, begin_dense_labels, label_file, prediction_file, write_in_folder
from fate.boxes.labels import Labels, LabelSource
from fate.data.class_maps import class_map, plain
from fate.data.clips import Grid
from fate.data.dataset import Dataset, sharded
from fate.data.label_rules import label_rules
from fate.data.labelled_recording import LabelledRecording
from fate.densify.sweep import FLOOR, Streams, streams_of, sweep
from fate.densify.tracklets import TrackletOptions, dense_labels
from fate.errors import FateError, list_names, warn
from fate.events.window import WindowGrid
from fate.inference.backends.graph_detector import GraphDetector
from fate.models.detector import Detector
from fate.processes import worker_context
from fate.progress import Progress
from fate.rates import CANONICAL_US, PAPER_RATES
from fate.version import __version__

#: Most processes that make labels; one keeps up with a GPU that processes some thousand windows per second.
MAX_LABEL_MAKERS = 4

Counts = dict[float, Counter[str]]  # rate → source → number of new boxes


@dataclass
class Densified:
    """The result of a run of ``densify``."""

    labels: DenseLabels
    recordings: int  #: recordings of this shard
    skipped: int = 0  #: recordings that had labels at all rates already
    windows: int = 0  #: windows that the detector has processed
    boxes: Counts = field(default_factory=dict)  #: new boxes

    def count(self, written: Counts) -> None:
        """Add the boxes of a recording."""
        for hz, more in written.items():
            self.boxes.setdefault(hz, Counter()).update(more)


def densify(
    detector: Detector,
    dataset: Dataset,
    out: str | os.PathLike[str],
    hz: Sequence[float] = PAPER_RATES[1:],
    *,
    options: TrackletOptions | None = None,
    shard: tuple[int, int] = (1, 1),
    device: str = "cpu",
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> Densified:
    """Make labels at every time of several rates; labels that exist already are not made again.

    Args:
        detector: trained on the sensor of the dataset, and on its classes among others.
        dataset: or one split of it. One without labels and class names takes the classes of the detector.
        out: a folder, new or begun with the same detector, dataset and options.
        hz: rates.
        options: how detections become labels.
        shard: (i, n): only every n-th recording, from the i-th on; shards may run at the same time.
        device: where the detector runs.
        batch_size: about how many windows run side by side.
        workers: processes that load events; up to four more then make labels.
        progress: called with the share that is done, 0 to 1.
    """
    chosen = options or TrackletOptions()
    dataset = with_classes(dataset, detector.classes)
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise FateError(f"device {device} was given; torch finds no GPU here; give cpu")
    recordings = sharded(dataset.recordings, shard)
    folder, rates = begin_labels(detector, dataset, out, hz, chosen)
    needed = {plain(name) for name in dataset.classes}
    unused = [name for name in detector.classes if plain(name) not in needed]
    if unused and shard[0] == 1:  # said once
        warn(f"{dataset.root} has no class {list_names(unused)}; boxes of the model with such classes are left out")
    plan = list(_plan(folder, recordings, rates))
    busy = {recording.name for work in plan for recording in work.recordings}
    done = Densified(folder, len(recordings), skipped=len(recordings) - len(busy))
    total = max(sum(work.windows() for work in plan), 1)
    make = partial(_write_labels, folder, chosen, replace(dataset, recordings=()))

    def count(windows: int) -> None:
        done.windows += windows
        if progress is not None:
            progress(min(done.windows / total, 1.0))

    # labels are made in other processes while the detector runs, or in this one without workers
    pool = ProcessPoolExecutor(min(workers, MAX_LABEL_MAKERS), worker_context()) if workers else None
    try:
        futures: deque[Future[Counts]] = deque()
        for work in plan:
            running: dict[str, Any] = {"device": device, "batch_size": batch_size, "workers": workers}
            running |= {"classes": dataset.classes, "progress": count}
            for index, predictions in sweep(detector, work.recordings, work.missing, **running):
                given = (work.recordings[index], work.missing.step_us, work.rates, predictions)
                if pool is None:
                    done.count(make(*given))
                    continue
                futures.append(pool.submit(make, *given))
                while futures and futures[0].done():  # an error ends the run soon
                    done.count(futures.popleft().result())
        for future in futures:
            done.count(future.result())
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    return done


def begin_labels(
    detector: Detector,
    dataset: Dataset,
    out: str | os.PathLike[str],
    hz: Sequence[float],
    options: TrackletOptions | None = None,
) -> tuple[DenseLabels, tuple[float, ...]]:
    """Refuse what :func:`densify` cannot do, and return the folder to write to and the rates in increasing order."""
    rates = _checked(detector, dataset, hz)
    return begin_dense_labels(out, _facts(detector, dataset, options or TrackletOptions()), rates), rates


@dataclass(frozen=True)
class _Work:
    """Recordings that lack the same streams for rates that share a step."""

    rates: tuple[float, ...]
    missing: Streams
    recordings: tuple[LabelledRecording, ...]

    def windows(self) -> int:
        """Number of windows that the detector has to process."""
        step = self.missing.step_us
        steps = sum(WindowGrid(each.grid_start_us, step, step).count(each.end_us) for each in self.recordings)
        return steps * len(self.missing.phases_us)


def _plan(folder: DenseLabels, recordings: Sequence[LabelledRecording], rates: Sequence[float]) -> Iterator[_Work]:
    """The work that is left. Rates whose streams have the same step share their predictions; see ``sweep.py``."""
    for step in sorted({streams_of(hz).step_us for hz in rates}):
        groups: dict[tuple[tuple[float, ...], tuple[int, ...]], list[LabelledRecording]] = {}
        for recording in recordings:
            lacking = [hz for hz in rates if streams_of(hz).step_us == step and not folder.has(recording.name, hz)]
            if lacking:
                phases = sorted({phase for hz in lacking for phase in streams_of(hz).phases_us})
                stored = folder.predictions(recording.name, step)
                missing = tuple(
                    phase
                    for phase in phases
                    if stored is None or not stored.is_labelled(recording.grid_start_us + phase)
                )
                groups.setdefault((tuple(lacking), missing), []).append(recording)
        for (lacking_rates, missing), group in groups.items():
            yield _Work(lacking_rates, Streams(step, missing), tuple(group))


def _write_labels(
    folder: DenseLabels,
    options: TrackletOptions,
    dataset: Dataset,
    recording: LabelledRecording,
    step_us: int,
    rates: Sequence[float],
    new: Labels | None,
) -> Counts:
    """Store new predictions, if any, of streams with that step; then make and write the labels of every rate."""
    predictions = (
        folder.predictions(recording.name, step_us)
        if new is None
        else folder.add_predictions(recording.name, step_us, new)
    )
    if predictions is None:
        file = prediction_file(folder.root, recording.name, step_us)
        raise FateError(f"{file}: is gone since this run began; run fate densify again")
    truth, rules = truth_of(recording, dataset), label_rules(dataset.protocol)
    written = {}
    for hz in rates:
        grid = Grid.of(recording, hz)
        # below 20 Hz the last window may end after the last prediction
        predicted = [(last - grid.start_us) // grid.hop_us for last in predictions.labelled_us[-1:].tolist()]
        count = min([grid.count(recording.end_us), *predicted]) if predicted else 0
        made = dense_labels(predictions, truth, grid, count, hz, options)
        made = rules.apply(made, split=recording.split, downscale=recording.downscale)
        labels = Labels.concatenate([made, truth])
        write_in_folder(label_file(folder.root, recording.name, hz), labels)
        by_source = {source.name.lower(): int(np.count_nonzero(labels.source == source)) for source in LabelSource}
        written[hz] = Counter(by_source | {"times": len(labels.labelled_us)})
    return written


def with_classes(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """The dataset with the classes of a detector, if it has neither labels nor class names."""
    if dataset.classes or any(recording.labelled for recording in dataset.recordings):
        return dataset
    mapped = class_map(classes)
    recordings = tuple(replace(recording, class_map=mapped) for recording in dataset.recordings)
    return replace(dataset, classes=mapped.names, recordings=recordings)


def truth_of(recording: LabelledRecording, dataset: Dataset) -> Labels:
    """The sparse labels of a recording, without neutral boxes; an empty table if it has none."""
    if recording.labelled:
        return recording.labels.objects
    return Labels.empty(classes=dataset.classes, sensor=(dataset.sensor.height, dataset.sensor.width))


def _checked(detector: Detector, dataset: Dataset, hz: Sequence[float]) -> tuple[float, ...]:
    rates = tuple(sorted({float(rate) for rate in hz}))
    if not rates or not all(1 <= rate <= 1000 for rate in rates):
        raise FateError(
            f"rates of {', '.join(f'{rate:g}' for rate in rates) or 'no'} Hz were given; expected 1 to 1000"
        )
    if dataset.holds != "events":
        raise FateError(f"{dataset.root}: holds {dataset.holds}, made at fixed times; dense labels need the events")
    dataset.refuse_without_classes()
    known, needed = ({plain(name) for name in each.classes} for each in (detector, dataset))
    if detector.sensor != dataset.sensor or needed - known:
        raise FateError(
            f"the model knows {', '.join(detector.classes)} on a {detector.sensor} sensor; {dataset.root} has"
            f" {', '.join(dataset.classes)} on a {dataset.sensor} one; expected the same sensor, and a model that knows"
            " all classes of the dataset"
        )
    return rates


def _facts(detector: Detector, dataset: Dataset, options: TrackletOptions) -> dict[str, Any]:
    return {
        "model": {**detector.description, "weights": weights_hash(detector)},
        "dataset": {
            "name": dataset.name,
            "kind": dataset.kind,
            "classes": list(dataset.classes),
            "sensor": list(dataset.sensor),
            "downscale": dataset.downscale,
        },
        "options": {**asdict(options), "floor": FLOOR, "window_us": CANONICAL_US},
        "fate": __version__,
    }


def weights_hash(detector: Detector) -> str:
    """SHA-256 of all weights, names and shapes."""
    if isinstance(detector, GraphDetector):
        raise FateError("an exported detector was given to make labels; give the .safetensors file it was made from")
    digest = hashlib.sha256()
    for name, value in sorted(detector.state_dict().items()):
        array = value.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}\n".encode())
        digest.update(array.flatten().view(-1).numpy().tobytes())
    return digest.hexdigest()
