"""Evaluate a detector, or a file of predictions, on a dataset at several rates: the table and its JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.label_files import naming_errors
from fate.boxes.labels import Labels, label_rate_hz
from fate.boxes.predictions import Predictions, fit_predictions, merge_predictions, read_predictions
from fate.boxes.predictions import write_predictions as write_npz
from fate.data.class_maps import plain
from fate.data.clips import Grid
from fate.data.dataset import Dataset, sharded
from fate.data.labelled_recording import LabelledRecording
from fate.data.loading import holds_images
from fate.errors import FateError, list_names
from fate.evaluation.labelled_frames import times_at_window_ends
from fate.evaluation.protocols import Protocol, named_protocol
from fate.evaluation.scores import Scores, evaluate_boxes
from fate.evaluation.time_to_detection import DenseTruth, DetectionDelays, read_dense_truth, time_to_detection
from fate.events.window import window_us as hop_of
from fate.inference.running import Run, predict
from fate.json_files import finite_number, write_json
from fate.models.detector import Detector
from fate.progress import Progress, scale
from fate.rates import CANONICAL_HZ, CANONICAL_US, PAPER_RATES
from fate.text import format_markdown_table, or_dash
from fate.text import plural as counted

#: Kinds of datasets that are evaluated as Prophesee's toolbox does it.
PUBLIC = ("gen1", "1mpx", "rvt")
#: Objects that must come into view before a share of them, or a quantile of their delays, means anything.
FEWEST_OBJECTS = 10
#: Which score ranks predictions, in words.
RANKED = {"product": "objectness · class", "class": "class alone, as RVT's public evaluation"}


@dataclass(frozen=True)
class AtRate:
    """The results at one rate."""

    hz: float
    scores: Scores
    run: Run | None  #: None if predictions were given
    delays: DetectionDelays | None  #: None without dense ground truth
    groups: Mapping[str, Scores] = field(default_factory=dict)  #: of the recordings of each group

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        run = self.run
        return {
            "hz": self.hz,
            "scores": self.scores.to_dict(curves=True),
            "time_to_detection": None if self.delays is None else self.delays.to_dict(),
            "ms_per_window": run and run.ms_per_window(),
            "windows": run and run.windows,
            "ranked_by": run and run.score,
            "groups": {name: scores.to_dict() for name, scores in self.groups.items()},
            "caps": run and {name: getattr(run, name) for name in ("events", "events_dropped", "pillars_dropped")},
        }


@dataclass(frozen=True)
class Evaluation:
    """All rates of one detector on one dataset."""

    what: str  #: the detector or the file of predictions
    dataset: str
    protocol: Protocol  #: with the time rule for rates; ``rates[i].scores.protocol`` is that of one rate
    rates: tuple[AtRate, ...]
    notes: tuple[str, ...] = ()
    label_hz: Mapping[str, float] = field(default_factory=dict)  #: labelled times a second, by recording
    label_times: tuple[int, int] = (0, 0)  #: labelled times that every rate was evaluated at, and all of them

    def kept(self, at: AtRate, metric: str = "AP50:95") -> float | None:
        """A metric at a rate divided by the same metric at 20 Hz; None if one of them is missing."""
        first = next((rate.scores[metric] for rate in self.rates if rate.hz == CANONICAL_HZ), None)
        value = at.scores[metric]
        return None if not first or value is None else value / first

    def table(self) -> str:
        """Printed table in Markdown: the protocol, then a line for each rate."""
        dense = any(rate.delays is not None for rate in self.rates)
        head = ["Hz", "AP50:95 %", "AP50 %", "AP75 %", "of 20 Hz", "FP / min", *(["idle"] if dense else [])]
        head += ["load", "encode", "model", "post", "dropped"]
        head += ["delay p50", "delay p90", "missed"] if dense else []
        table = format_markdown_table(head, [self._cells(rate, dense) for rate in self.rates])
        lines = [*self._rules(), "", table, "", "FP / min: false positives a minute at score ≥ 0.5."]
        if any(rate.run for rate in self.rates):
            lines.append("load … post: ms a window, streams side by side. dropped: events the encoder's caps left out.")
        if dense:
            lines.append("idle: false positives a minute while nothing is to be seen.")
            lines.append("delay: ms from an object's being half visible to its first correct box; missed: never found.")
            few = [rate.delays for rate in self.rates if rate.delays is not None and len(rate.delays) < FEWEST_OBJECTS]
            if few:
                lines.append(
                    f"Delays and misses are not shown: {counted(len(few[0]), 'object')} came into view,"
                    f" and fewer than {FEWEST_OBJECTS} say nothing; the JSON file has the figures."
                )
        lines += [f"{rate.hz:g} Hz: {rate.scores.describe_counts()}" for rate in self.rates]
        if any(rate.groups for rate in self.rates):
            lines += ["", self.group_table(), ""]
        said = [f"{rate.hz:g} Hz: {note}" for rate in self.rates for note in rate.scores.notes]
        return "\n".join([*lines, *(f"note: {note}" for note in (*self.notes, *said))])

    def group_table(self) -> str:
        """Printed table in Markdown: AP50:95, AP50 and false positives a minute of each group at each rate."""
        head = ["group", "recordings"]
        for rate in self.rates:
            head += [f"{name} at {rate.hz:g} Hz" for name in ("AP50:95 %", "AP50 %", "FP / min")]
        rows = []
        for group in self.rates[0].groups:
            cells = [group, str(self.rates[0].groups[group].counts.recordings)]
            for rate in self.rates:
                scores = rate.groups[group]
                found = [None if (value := scores[name]) is None else 100 * value for name in ("AP50:95", "AP50")]
                cells += [or_dash(value, ".2f") for value in found]
                cells.append(or_dash(scores.false_positives.per_minute, ".1f"))
            rows.append(cells)
        return format_markdown_table(head, rows)

    def _rules(self) -> list[str]:
        """The protocol in words: as it was applied at the only rate, or what all rates have in common."""
        if len(self.rates) == 1:
            lines = self.rates[0].scores.protocol.lines()
        else:
            lines = replace(self.protocol, classes=self.rates[0].scores.classes).lines()
            if all(rate.run is not None for rate in self.rates):
                lengths = {rate.scores.protocol.window_us for rate in self.rates}
                length = (
                    f"{(lengths.pop() or 0) / 1000:g} ms long" if len(lengths) == 1 else "as long as their distance"
                )
                lines[-1] = f"  windows  {length}, one every 1 / rate, stamped at their end"
        lines.append(f"  labels   {self._label_rate()}")
        by = {rate.run.score for rate in self.rates if rate.run is not None and rate.run.score is not None}
        return lines + [f"  ranked   by {RANKED[score]}" for score in sorted(by)]

    def _label_rate(self) -> str:
        """How often the recordings are labelled, in words."""
        rates = sorted(self.label_hz.values())
        used, all_times = self.label_times
        if not rates:
            return f"{used} of {all_times} times are used; no recording has two labelled times, so the rate is unknown"
        spread = f", {rates[0]:.3g} to {rates[-1]:.3g} Hz" if f"{rates[0]:.3g}" != f"{rates[-1]:.3g}" else ""
        return (
            f"at {float(np.median(rates)):.3g} Hz (median of {counted(len(rates), 'recording')}{spread});"
            f" {used} of {all_times} times are used, the same at every rate: those at which windows end"
        )

    def _cells(self, rate: AtRate, dense: bool) -> list[str]:
        scores, run = rate.scores, rate.run
        wrong = scores.false_positives
        percent = [None if (value := scores[name]) is None else 100 * value for name in ("AP50:95", "AP50", "AP75")]
        cells = [f"{rate.hz:g}", *(or_dash(value, ".2f") for value in percent)]
        cells += [or_dash(self.kept(rate), ".1%"), or_dash(wrong.per_minute, ".1f")]
        cells += [or_dash(wrong.rest_per_minute, ".1f")] if dense else []
        spent: Mapping[str, float] = {} if run is None else run.ms_per_window()
        cells += [or_dash(spent.get(stage), ".2f") for stage in ("load", "encode", "model", "post")]
        seen = 0 if run is None else run.events  # a streaming step counts none
        cells.append(or_dash(run.events_dropped / seen if run is not None and seen else None, ".1%"))
        if dense:
            delays = rate.delays if rate.delays is not None and len(rate.delays) >= FEWEST_OBJECTS else None
            cells += [or_dash(None if delays is None else delays.quantile_ms(share), ".0f") for share in (0.5, 0.9)]
            cells.append(or_dash(None if delays is None else delays.missed / len(delays), ".1%"))
        return cells

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "what": self.what,
            "dataset": self.dataset,
            "protocol": self.protocol.to_dict(),
            "label_hz": dict(self.label_hz),
            "label_times": dict(zip(("used", "all"), self.label_times, strict=True)),
            "rates": [rate.to_dict() for rate in self.rates],
            "notes": list(self.notes),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all results as JSON; ``"-"`` is standard output. ``view.evaluation_pictures.draw_rates`` draws them."""
        write_json(path, self.to_dict())


def evaluate(
    what: Detector | str | os.PathLike[str] | Mapping[float, Mapping[str, Labels]],
    dataset: Dataset,
    hz: Sequence[float] | None = None,
    *,
    protocol: Protocol | None = None,
    window_us: int | None = None,
    images: str | os.PathLike[str] | None = None,
    shard: tuple[int, int] = (1, 1),
    predictions_to: str | os.PathLike[str] | None = None,
    runs: Sequence[Run] | None = None,
    errors: bool = False,
    groups: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    **running: Any,
) -> Evaluation:
    """Evaluate a detector, or given predictions.

    Args:
        what: a detector, a file or folder of predictions (``fate.boxes.predictions`` lists the formats), or predictions
            by rate and recording.
        dataset: its labelled recordings are used.
        hz: rates; by default 20, 40, 80, 100 and 200, for histograms 20, and for predictions those of their files.
            Predictions without a rate need exactly one.
        protocol: by default that of the dataset; labels are always compared with the nearest prediction.
        window_us: length of windows of a detector if it is not 1 / hz; windows may overlap.
        images: for predictions as a plain list of COCO results, the COCO file that lists images and categories.
        shard: (i, n): only every n-th recording, from the i-th on; their predictions are merged later.
        predictions_to: a folder for one file of predictions per rate (and shard).
        runs: what the detector has predicted before, by :func:`predict_rates`; it is not run then.
        errors: whether confusion matrices and kinds of errors are computed too.
        groups: the group of each recording by its name; every group is evaluated by itself, too.
        progress: called with the share that is done.
        running: further arguments of ``predict`` (``device``, ``steps``, ``workers``, …), and ``max_overlap``, which
            suppresses duplicate boxes of DETR heads; they are kept by default, as published.
    """
    rules = named_protocol(dataset.protocol, dataset.sensor) if protocol is None else protocol
    dataset = dataset.checked()
    labelled = dataset.labelled
    if not labelled:
        raise FateError(f"{dataset.root}: no recording has labels; an evaluation needs some to compare with")
    recordings = sharded(labelled, shard)
    detector, max_overlap = what if isinstance(what, Detector) else None, running.get("max_overlap")
    _refuse_unfit(detector, dataset, window_us, max_overlap)
    given: Mapping[float, Mapping[str, Labels]] = {}
    if isinstance(what, Mapping):
        given = what
    elif not isinstance(what, Detector):
        given = _given(what, recordings, dataset, hz, images)
    rates = tuple(given) if detector is None else rates_of(dataset, hz)
    truth = {recording.name: recording.labels for recording in recordings}
    dense = {recording.name: _dense(recording) for recording in recordings if recording.truth_file is not None}
    compare = partial(
        evaluate_boxes,
        classes=dataset.classes,
        sensor=dataset.sensor,
        # Prophesee's toolbox skips the first half second of the clock, not of the events
        starts_us=None if dataset.kind in PUBLIC else {each.name: each.start_us for each in recordings},
        times_us=_shared_times(recordings, truth, rates, given if detector is None else None, rules),
        dense_truth={name: exact.labels for name, exact in dense.items()} or None,
    )
    truth_of = _truth_by_group(truth, groups)
    made_by: Mapping[str, Any] = {} if detector is None else detector.description
    shown = os.fspath(what) if isinstance(what, str | os.PathLike) else made_by.get("name", "predictions")
    notes: list[str] = []
    if max_overlap is not None:
        notes.append(f"of two boxes of a class whose IoU is above {max_overlap:g}, the weaker is dropped")
    if running.get("precision") is not None:
        notes.append(f"detected by the streaming step, window by window, in {running['precision']}")
    found: list[AtRate] = []
    made: Iterator[Run] = iter(runs or ())
    if detector is not None and runs is None:
        made = predict_rates(detector, dataset, rates, shard, window_us=window_us, progress=progress, **running)
    for rate in rates:
        run, applied = None, replace(rules.at(rate), window_us=None)
        if detector is not None:
            run, applied = next(made), rules.at(rate, window_us)
        predictions: Mapping[str, Labels] = given[rate] if run is None else run.predictions
        notes += predictions.notes if isinstance(predictions, Predictions) else ()
        if predictions_to is not None:
            _write(predictions_to, predictions, rate, shard, made_by or shown)
        delays = time_to_detection(dense, predictions, dataset.classes, protocol=applied) if dense else None
        scores = compare(truth, predictions, applied, errors=errors)
        by_group = {
            group: compare(part, {name: predictions[name] for name in part if name in predictions}, applied)
            for group, part in truth_of.items()
        }
        found.append(AtRate(rate, scores, run, delays, by_group))
    rules = replace(rules, time_rule="nearest", tolerance_us=None)
    label_hz = {name: rate for name, labels in truth.items() if (rate := label_rate_hz(labels))}
    label_times = (found[0].scores.counts.frames, found[0].scores.counts.labelled) if found else (0, 0)
    return Evaluation(shown, dataset.name, rules, tuple(found), tuple(dict.fromkeys(notes)), label_hz, label_times)


def _truth_by_group(truth: Mapping[str, Labels], groups: Mapping[str, str] | None) -> dict[str, dict[str, Labels]]:
    """The labels of the recordings of each group, in the order of the groups' names."""
    if groups is None:
        return {}
    missing = [name for name in truth if name not in groups]
    if missing:
        raise FateError(f"{missing[0]}: has no group; give one for each of the {counted(len(truth), 'recording')}")
    names = sorted({groups[name] for name in truth})
    return {group: {name: truth[name] for name in truth if groups[name] == group} for group in names}


def predict_rates(
    detector: Detector,
    dataset: Dataset,
    rates: Sequence[float],
    shard: tuple[int, int] = (1, 1),
    *,
    progress: Progress | None = None,
    **running: Any,
) -> Iterator[Run]:
    """Run a detector on the labelled recordings of a dataset, or of one shard of it, at one rate after another.

    ``running`` are further arguments of ``predict``.
    """
    labelled = dataset.checked().labelled
    recordings = sharded(labelled, shard)
    truth = {recording.name: recording.labels for recording in recordings}
    dense = any(recording.truth_file is not None for recording in labelled)
    for number, rate in enumerate(rates):
        part = None if progress is None else scale(progress, number / len(rates), (number + 1) / len(rates))
        # where only sparse labels are known, predictions elsewhere are of no use and are not kept
        keep = None if dense else _labelled_windows(recordings, truth, rate)
        yield predict(detector, recordings, rate, keep=keep, progress=part, **running)


def rates_of(dataset: Dataset, hz: Sequence[float] | None) -> tuple[float, ...]:
    """The rates to run a detector at, given or usual; histograms have one rate, and others are refused before any work.

    The dataset has a labelled recording.
    """
    usual = (CANONICAL_HZ,) if dataset.holds == "histograms" else PAPER_RATES
    rates = tuple(dict.fromkeys(float(rate) for rate in hz)) if hz else usual
    for rate in rates:
        Grid.of(dataset.labelled[0], rate)
    return rates


def _refuse_unfit(
    detector: Detector | None, dataset: Dataset, window_us: int | None, max_overlap: float | None
) -> None:
    """Refuse a detector that shares no class with the dataset, and options of detectors for given predictions."""
    if detector is not None and not {*map(plain, detector.classes)} & {*map(plain, dataset.classes)}:
        raise FateError(
            f"{dataset.name}: has the classes {list_names(dataset.classes)}, and the detector knows"
            f" {list_names(detector.classes)}; give a detector that was trained on these classes (fate train)"
        )
    if detector is None and window_us is not None:
        raise FateError(f"windows of {window_us / 1000:g} ms were asked for with predictions; they are for a detector")
    if detector is None and max_overlap is not None:
        raise FateError(f"max_overlap={max_overlap} was given with predictions; it is for a detector")


def _dense(recording: LabelledRecording) -> DenseTruth:
    """Dense ground truth in the classes of the dataset and in the pixels of the model input."""
    whole = read_dense_truth(recording.truth_file or "")
    class_ids, _ = recording.class_map.ids_of(whole.labels)
    keep, classes = class_ids >= 0, recording.class_map.label_classes(whole.labels)
    labels = replace(whole.labels.select(keep), class_id=class_ids[keep], classes=classes)
    if recording.downscale > 1:
        small = labels.with_boxes(labels.boxes / recording.downscale)
        labels = replace(small, sensor=(recording.sensor.height, recording.sensor.width))
    return DenseTruth(labels, whole.visible[keep])


def _shared_times(
    recordings: Sequence[LabelledRecording],
    truth: Mapping[str, Labels],
    rates: Sequence[float],
    given: Mapping[float, Mapping[str, Labels]] | None,
    rules: Protocol,
) -> dict[str, NDArray[np.int64]]:
    """The labelled times of each recording at which a window ends at every rate, so that all rates are compared fairly.

    Windows end where those of a detector do, or at the times of ``given`` predictions. Rates whose hop divides 50 ms
    use the labels at the ends of 20 Hz windows, also without 20 Hz among them, so that separate evaluations agree.
    """
    is_canonical = not holds_images(recordings) and all(CANONICAL_US % hop_of(hz) == 0 for hz in rates)
    shared = {}
    for recording in recordings:
        name, times, ends = recording.name, truth[recording.name].labelled_us, {}
        if given is not None:  # a recording without predictions is evaluated like one of a detector
            ends = {
                hz: given[hz][name].labelled_us
                for hz in rates
                if name in given[hz] and len(given[hz][name].labelled_us)
            }
        grids = {hz: Grid.of(recording, hz) for hz in (*rates, CANONICAL_HZ)} if is_canonical or not ends else {}
        if is_canonical and all(_are_ends_of(grids[hz], ends_us) for hz, ends_us in ends.items()):
            times = _times_at(grids[CANONICAL_HZ], recording.end_us, times, rules.at(CANONICAL_HZ).time_tolerance_us())
        for hz in sorted(rates):  # the slowest rate has the fewest ends
            tolerance_us = rules.at(hz).time_tolerance_us()
            if hz in ends:
                times, _ = times_at_window_ends(times, ends[hz], hop_of(hz), tolerance_us)
            elif not ends:
                times = _times_at(grids[hz], recording.end_us, times, tolerance_us)
        shared[name] = times
    if (
        len(rates) > 1
        and any(len(labels.labelled_us) for labels in truth.values())
        and not any(map(len, shared.values()))
    ):
        listed = " ".join(f"{hz:g}" for hz in sorted(rates))
        raise FateError(
            f"at no label do windows of all rates ({listed} Hz) end within {rules.label_tolerance_us / 1000:g} ms;"
            " evaluate rates one by one, or allow more with label_tolerance_us=5000"
        )
    return shared


def _times_at(grid: Grid, end_us: int, times_us: NDArray[np.int64], tolerance_us: int) -> NDArray[np.int64]:
    """The times at which a window ends, of a recording up to ``end_us``."""
    found = grid.labelled(times_us, tolerance_us)
    return np.array(sorted(time for index, time in found.items() if index < grid.count(end_us)), np.int64)


def _are_ends_of(grid: Grid, ends_us: NDArray[np.int64]) -> bool:
    """Whether nearly all predictions are at ends of windows of the grid; others come from another program."""
    return bool(np.mean((ends_us - grid.start_us) % grid.hop_us == 0) > 0.9)


def _labelled_windows(
    recordings: Sequence[LabelledRecording], truth: Mapping[str, Labels], hz: float
) -> Callable[[str, NDArray[np.int64]], NDArray[np.bool_]]:
    """Selects the windows that represent a labelled time, by the recording's name and their ends [W].

    These are more than one command may evaluate: its other rates do not matter for predictions that are written.
    """
    grids = {recording.name: Grid.of(recording, hz) for recording in recordings}
    ends = {
        name: [grid.end_us(number) for number in grid.labelled(truth[name].labelled_us)] for name, grid in grids.items()
    }
    return lambda name, ends_us: np.isin(ends_us, ends[name])


def _given(
    what: str | os.PathLike[str],
    recordings: Sequence[LabelledRecording],
    dataset: Dataset,
    hz: Sequence[float] | None,
    images: str | os.PathLike[str] | None,
) -> dict[float, Predictions]:
    """Predictions by rate; a file without a rate is taken for the only requested one."""
    source = Path(what)
    files = sorted(source.glob("*.npz")) if source.is_dir() else []
    parts = [read_predictions(file, classes=dataset.classes) for file in files] if files else []
    if not parts or not all("hz" in part.facts for part in parts):
        parts = [read_predictions(source, images=images, classes=dataset.classes)]
    by_rate: dict[float, list[Predictions]] = {}
    for part in parts:
        if "hz" not in part.facts and (hz is None or len(hz) != 1):
            raise FateError(f"{what}: does not say at which rate it was made; give that one rate, such as hz=(20,)")
        with naming_errors(source, "predictions"):
            rate = finite_number(part.facts.get("hz", (hz or (0,))[0]), "hz")
            if not 0 < rate <= 1e6:
                raise FateError(f"hz is {rate:g}; expected more than 0; write the predictions again")
        by_rate.setdefault(rate, []).append(part)
    rates = tuple(dict.fromkeys(float(rate) for rate in hz)) if hz else tuple(sorted(by_rate))
    missing = [rate for rate in rates if rate not in by_rate]
    if missing:
        known = [f"{rate:g}" for rate in sorted(by_rate)]
        raise FateError(
            f"{what}: has predictions at {' '.join(known)} Hz; {missing[0]:g} Hz was asked for; give"
            f" hz=({', '.join(known)},)"
        )
    spans = {recording.name: (recording.start_us, recording.end_us) for recording in recordings}
    return {rate: fit_predictions(merge_predictions(by_rate[rate]), spans) for rate in rates}


def _write(
    folder: str | os.PathLike[str], predictions: Mapping[str, Labels], hz: float, shard: tuple[int, int], model: Any
) -> None:
    part = "" if shard == (1, 1) else f"_{shard[0]}of{shard[1]}"
    facts = {"hz": hz, "shard": f"{shard[0]}/{shard[1]}", "model": model}
    with naming_errors(Path(folder), "a folder for predictions"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    write_npz(Path(folder) / f"{hz:g}hz{part}.npz", predictions, facts)
