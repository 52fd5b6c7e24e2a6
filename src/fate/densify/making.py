"""``fate.densify``: a detector and sparse labels in, a folder of labels at every rate out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch

from fate.boxes.dense_labels import (
    DenseLabels,
    begin_dense_labels,
    label_file,
    prediction_file,
    write_in_folder,
)
from fate.boxes.labels import Labels, LabelSource
from fate.data.class_maps import class_map
from fate.data.clips import Grid
from fate.data.dataset import Dataset, sharded
from fate.data.label_rules import LabelRules, label_rules
from fate.data.labelled_recording import LabelledRecording
from fate.densify.sweep import FLOOR, Streams, phases_in, streams_of, sweep
from fate.densify.tracklets import TrackletOptions, dense_labels
from fate.errors import FateError
from fate.models.detector import CANONICAL_US, Detector
from fate.processes import worker_context
from fate.progress import Progress
from fate.rates import PAPER_RATES
from fate.version import __version__

#: The rates of the paper beside the canonical one.
#: Processes that track and smooth at most; one keeps up with a GPU that shows it some thousand windows a second.
MOST_FINISHERS = 4


@dataclass
class Densified:
    """What was done."""

    labels: DenseLabels
    recordings: int  #: of this shard
    skipped: int = 0  #: that had all rates already
    windows: int = 0  #: that the detector has seen
    boxes: dict[float, dict[str, int]] = field(default_factory=dict)  #: rate → source → boxes, of what was written now

    def count(self, written: Mapping[float, Mapping[str, int]]) -> None:
        """Add what was written."""
        for hz, more in written.items():
            counts = self.boxes.setdefault(hz, dict.fromkeys(more, 0))
            for name, number in more.items():
                counts[name] += number


def densify(
    detector: Detector,
    dataset: Dataset,
    out: str | os.PathLike[str],
    hz: Sequence[float] = PAPER_RATES[1:],
    *,
    options: TrackletOptions | None = None,
    shard: tuple[int, int] = (1, 1),
    device: str = "cpu",
    lanes: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> Densified:
    """Make labels at every time of some rates; what is there already is not made again.

    Args:
        detector: trained on the classes and the sensor of the dataset.
        dataset: or one split of it. One without labels and class names takes the classes of the detector.
        out: a folder, new or begun with the same detector, dataset and options.
        hz: rates.
        options: how detections become labels.
        shard: (i, n): only every n-th recording, from the i-th on; shards may run at once.
        device: where the detector runs.
        lanes: windows side by side, about.
        workers: processes that load; some more then track and smooth what was seen.
        progress: is told the share that is done.
    """
    chosen = options or TrackletOptions()
    dataset = with_classes(dataset, detector.classes)
    rates = _checked(detector, dataset, hz)
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise FateError(f"device {device} was given; torch finds no GPU here; give cpu")
    recordings = sharded(dataset.recordings, shard)
    store = begin_dense_labels(out, _facts(detector, dataset, chosen), rates)
    done = Densified(store, len(recordings))
    plan = list(_plan(store, recordings, rates))
    busy = {recording.name for work in plan for recording in work.recordings}
    done.skipped = len(recordings) - len(busy)
    total = max(sum(work.windows() for work in plan), 1)

    def count(windows: int) -> None:
        done.windows += windows
        if progress is not None:
            progress(min(done.windows / total, 1.0))

    with _Finishing(_Finisher.of(store, dataset, chosen), done, workers) as finishing:
        for work in plan:
            if not work.missing.phases_us:
                for recording in work.recordings:
                    finishing.add(recording, work, None)
                continue
            found = sweep(
                detector, work.recordings, work.missing, device=device, lanes=lanes, workers=workers, progress=count
            )
            for number, predictions in found:
                finishing.add(work.recordings[number], work, predictions)
    return done


@dataclass(frozen=True)
class _Work:
    """Recordings that lack the same streams for rates that share a step."""

    rates: tuple[float, ...]
    missing: Streams
    recordings: tuple[LabelledRecording, ...]

    def windows(self) -> int:
        """That the detector will see."""
        steps = [-(-(each.end_us - each.start_us) // self.missing.step_us) for each in self.recordings]
        return sum(steps) * len(self.missing.phases_us)


def _plan(store: DenseLabels, recordings: Sequence[LabelledRecording], rates: Sequence[float]) -> Iterator[_Work]:
    """What is left to do. Rates whose streams have one step share what they see; see ``sweep.py``."""
    for step in sorted({streams_of(hz).step_us for hz in rates}):
        alike: dict[tuple[tuple[float, ...], tuple[int, ...]], list[LabelledRecording]] = {}
        for recording in recordings:
            lacking = [hz for hz in rates if streams_of(hz).step_us == step and not store.has(recording.name, hz)]
            if lacking:
                phases = tuple(sorted({phase for hz in lacking for phase in streams_of(hz).phases_us}))
                seen = store.predictions(recording.name, step)
                known = () if seen is None else phases_in(seen, recording.start_us, Streams(step, phases))
                missing = tuple(phase for phase in phases if phase not in known)
                alike.setdefault((tuple(lacking), missing), []).append(recording)
        for (lacking_rates, missing), group in alike.items():
            yield _Work(lacking_rates, Streams(step, missing), tuple(group))


class _Finishing:
    """Recordings are finished while the detector looks at others: by other processes, where there are some."""

    def __init__(self, finisher: _Finisher, done: Densified, workers: int) -> None:
        self._finisher, self._done = finisher, done
        context = worker_context()
        self._pool = ProcessPoolExecutor(min(workers, MOST_FINISHERS), context) if workers else None
        self._under_way: list[Future[dict[float, dict[str, int]]]] = []

    def add(self, recording: LabelledRecording, work: _Work, new: Labels | None) -> None:
        given = (recording, work.missing.step_us, work.rates, new)
        if self._pool is None:
            self._done.count(self._finisher.finish(*given))
            return
        self._under_way.append(self._pool.submit(self._finisher.finish, *given))
        while self._under_way and self._under_way[0].done():  # a fault ends it all soon
            self._done.count(self._under_way.pop(0).result())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                for future in self._under_way:
                    self._done.count(future.result())
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Finisher:
    """From a recording's predictions to its files."""

    store: DenseLabels
    options: TrackletOptions
    rules: LabelRules
    dataset: Dataset  #: without its recordings

    @staticmethod
    def of(store: DenseLabels, dataset: Dataset, options: TrackletOptions) -> _Finisher:
        return _Finisher(store, options, label_rules(dataset.protocol), replace(dataset, recordings=()))

    def finish(
        self, recording: LabelledRecording, step_us: int, rates: Sequence[float], new: Labels | None
    ) -> dict[float, dict[str, int]]:
        """Keep the predictions, then make and keep the labels of every rate; what there is of them, by source.

        Args:
            recording: of the dataset.
            step_us: of the streams that were looked at.
            rates: that labels are made for.
            new: what was seen now, beside what was kept before.
        """
        predictions = (
            self.store.predictions(recording.name, step_us)
            if new is None
            else self.store.add_predictions(recording.name, step_us, new)
        )
        if predictions is None:
            file = prediction_file(self.store.root, recording.name, step_us)
            raise FateError(f"{file}: is gone since this run began; run fate densify again")
        written = {}
        for hz in rates:
            labels = self._labels(recording, predictions, hz)
            write_in_folder(label_file(self.store.root, recording.name, hz), labels)
            by_source = {source.name.lower(): int(np.count_nonzero(labels.source == source)) for source in LabelSource}
            written[hz] = by_source | {"times": len(labels.labelled_us)}
        return written

    def _labels(self, recording: LabelledRecording, predictions: Labels, hz: float) -> Labels:
        truth = truth_of(recording, self.dataset)
        grid = Grid.of(recording, hz)
        made = dense_labels(predictions, truth, grid, times_in(grid, recording.end_us, predictions), hz, self.options)
        made = self.rules.apply(made, split=recording.split, downscale=recording.downscale)
        return Labels.concatenate([made, truth])


def with_classes(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """The dataset with the classes of a detector where it names none itself: recordings that nobody has labelled."""
    if dataset.classes or any(recording.labelled for recording in dataset.recordings):
        return dataset
    mapped = class_map(classes)
    recordings = tuple(replace(recording, class_map=mapped) for recording in dataset.recordings)
    return replace(dataset, classes=mapped.names, recordings=recordings)


def truth_of(recording: LabelledRecording, dataset: Dataset) -> Labels:
    """The sparse labels of a recording; none at no time where it has none."""
    if recording.labelled:
        return recording.labels
    return Labels.empty(classes=dataset.classes, sensor=(dataset.sensor.height, dataset.sensor.width))


def times_in(grid: Grid, end_us: int, predictions: Labels) -> int:
    """Windows of a grid up to the end of a recording; below 20 Hz the last may end behind the last prediction."""
    seen = [(last - grid.start_us) // grid.hop_us for last in predictions.labelled_us[-1:].tolist()]
    return min([grid.count(end_us), *seen]) if seen else 0


def _checked(detector: Detector, dataset: Dataset, hz: Sequence[float]) -> tuple[float, ...]:
    rates = tuple(sorted({float(rate) for rate in hz}))
    if not rates or not all(1 <= rate <= 1000 for rate in rates):
        raise FateError(
            f"rates of {', '.join(f'{rate:g}' for rate in rates) or 'no'} Hz were given; expected 1 to 1000"
        )
    if dataset.holds != "events":
        raise FateError(f"{dataset.root}: holds {dataset.holds}, made at fixed times; dense labels need the events")
    if tuple(detector.classes) != tuple(dataset.classes):
        raise FateError(
            f"the model knows {', '.join(detector.classes)}; {dataset.root} has {', '.join(dataset.classes)}; expected"
            " the same classes in the same order"
        )
    if tuple(detector.sensor) != tuple(dataset.sensor):
        raise FateError(
            f"the model is for a sensor of {detector.sensor}; {dataset.root} is of {dataset.sensor}; expected the same"
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
        "options": {**options.to_dict(), "floor": FLOOR, "window_us": CANONICAL_US},
        "fate": __version__,
    }


def weights_hash(detector: Detector) -> str:
    """SHA-256 of all weights, names and shapes: two detectors with one hash see the same."""
    digest = hashlib.sha256()
    for name, value in sorted(detector.state_dict().items()):
        array = value.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}\n".encode())
        digest.update(array.flatten().view(-1).numpy().tobytes())
    return digest.hexdigest()
