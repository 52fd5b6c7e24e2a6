"""The metrics of one evaluation, with its protocol and the number of boxes it dropped: :class:`Scores`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import NEUTRAL, Labels
from fate.data.class_maps import plain
from fate.errors import FateError, list_names
from fate.evaluation.average_precision import AveragePrecision, average_precision
from fate.evaluation.calibration import Matches
from fate.evaluation.error_kinds import ErrorKinds, find_error_kinds
from fate.evaluation.false_positives import FalsePositives, RestCounter, false_positives, matches
from fate.evaluation.labelled_frames import REASONS, BoxesLike, FrameCounts, Frames, box_table
from fate.evaluation.protocols import Protocol
from fate.events.events import Sensor
from fate.text import or_dash, plural


@dataclass(frozen=True)
class Scores:
    """The result of an evaluation. ``scores["AP50:95"]`` is one metric, None without ground truth for it."""

    protocol: Protocol
    classes: tuple[str, ...]
    sensor: Sensor | None  #: (height, width) that the boxes are measured in
    average_precision: AveragePrecision
    false_positives: FalsePositives
    counts: FrameCounts
    matches: Matches  #: confidence of each prediction in a frame, and whether it is right
    notes: tuple[str, ...]  #: what a reader of the figures must know beside the protocol
    errors: ErrorKinds | None = None  #: confusion matrix and kinds of errors, if they were asked for

    def __getitem__(self, metric: str) -> float | None:
        if metric not in self.average_precision.overall:
            names = ", ".join(self.average_precision.overall)
            raise FateError(f"metric {metric!r} was asked for; metrics are {names}")
        return self.average_precision.overall[metric]

    @property
    def by_class(self) -> dict[str, dict[str, float | None]]:
        """The figures of each class, by name."""
        return self.average_precision.by_class

    def to_dict(self, curves: bool = False) -> dict[str, Any]:
        """Plain values, as JSON holds them; with ``curves`` precision over recall of each class too."""
        values: dict[str, Any] = {
            "protocol": self.protocol.to_dict(),
            "classes": list(self.classes),
            "sensor": None if self.sensor is None else list(self.sensor),
            "metrics": dict(self.average_precision.overall),
            "by_class": {name: dict(figures) for name, figures in self.by_class.items()},
            "false_positives": asdict(self.false_positives),
            "counts": asdict(self.counts),
            "reliability": self.matches.reliability(),
            "notes": list(self.notes),
        }
        if self.errors is not None:
            values["errors"] = self.errors.to_dict()
        if curves:
            values["curves"] = {
                name: {key: array.tolist() for key, array in vars(curve).items()}
                for name, curve in self.average_precision.curves.items()
            }
        return values

    def to_json(self, curves: bool = False) -> str:
        """The values of :meth:`to_dict` as JSON text."""
        return json.dumps(self.to_dict(curves), indent=1, allow_nan=False, ensure_ascii=False)

    def lines(self) -> list[str]:
        """Human-readable summary: protocol, metrics, counts and notes."""
        overall, counts = self.average_precision.overall, self.counts
        widest = max(map(len, ("all classes", *self.classes)))
        columns = ("AP50:95", "AP50", "AP75", *(name for name in overall if name.startswith("AP50:95 ")))
        head = f"{'':{widest}}  " + "  ".join(f"{name:>14}" for name in columns) + "         truth   predictions"
        rows = {"all classes": (overall, counts.truth, counts.predictions)}
        for name in self.classes:
            rows[name] = (self.by_class[name], counts.truth_by_class[name], counts.predictions_by_class[name])
        table = [head]
        for name, (figures, num_truth, num_predictions) in rows.items():
            cells = "  ".join(f"{or_dash(figures[column], '.6f'):>14}" for column in columns)
            table.append(f"{name:{widest}}  {cells}  {num_truth:>12}  {num_predictions:>12}")
        recalls = "  ".join(f"{name} {or_dash(overall[name], '.6f')}" for name in overall if name.startswith("AR"))
        return [
            *self.protocol.lines(),
            "",
            *table,
            recalls,
            self._false_positive_line(),
            self.describe_counts(),
            *(f"note: {note}" for note in self.notes),
        ]

    def describe_counts(self) -> str:
        """How many frames were evaluated, and how many boxes the filters dropped."""
        counts = self.counts
        used = f" ({counts.labelled} labelled times)" if counts.labelled != counts.frames else ""
        return (
            f"{plural(counts.frames, 'frame')}{used} of {plural(counts.recordings, 'recording')}; "
            f"truth: {_dropped(counts.given_truth, counts.truth_dropped)}; "
            f"predictions: {_dropped(counts.given_predictions, counts.predictions_dropped)}"
        )

    def _false_positive_line(self) -> str:
        wrong = self.false_positives
        share = f"{wrong.frames_with / wrong.num_frames:.1%} of the frames hold one" if wrong.num_frames else "no frame"
        rate = "no rate is known" if wrong.per_minute is None else f"{wrong.per_minute:.1f} per minute"
        rest = "no time without objects is labelled and looked at"
        if wrong.rest_per_minute is not None:
            rest = f"{wrong.rest_per_minute:.1f} per minute, in {wrong.rest_seconds:.1f} s"
        return f"false positives at score ≥ {wrong.threshold:g}: {rate} ({share}); while nothing is to be seen: {rest}"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def evaluate_boxes(
    truth: Mapping[str, BoxesLike],
    predictions: Mapping[str, BoxesLike],
    protocol: Protocol,
    classes: Sequence[str] | None = None,
    sensor: tuple[int, int] | None = None,
    *,
    threshold: float = 0.5,
    starts_us: Mapping[str, int] | None = None,
    times_us: Mapping[str, NDArray[np.int64]] | None = None,
    dense_truth: Mapping[str, BoxesLike] | None = None,
    errors: bool = False,
) -> Scores:
    """Compare predictions of any detector with the ground truth.

    Args:
        truth: boxes by name of the recording: :class:`Labels`, or arrays as in a ``_bbox.npy``.
        predictions: the same, with scores. A missing recording counts as one without predictions.
        protocol: the rules; ``named_protocol("gen1")``, say. For a stream at a rate: ``protocol.at(hz)``.
        classes: names of class ids 0, 1, …; labels with class names are matched by name. By default those of the
            ground truth, or of the protocol if the ground truth has none.
        sensor: (height, width) of the boxes in pixels.
        threshold: smallest score of a false positive, and of the confusion matrix; AP uses all scores.
        starts_us: start of each recording, if it is not 0.
        times_us: the labelled times to evaluate at, by recording; by default all at which a window ends.
        dense_truth: ground truth at many more times, if there is one, to find the time without any object.
        errors: whether the confusion matrix and the kinds of errors are computed too, which takes about as long as AP.
    """
    if not isinstance(protocol, Protocol):
        raise FateError(f"protocol {protocol!r} was given; expected a Protocol; use named_protocol({protocol!r})")
    if not 0 <= threshold <= 1:
        raise FateError(f"threshold {threshold!r} was given; scores lie in 0 to 1")
    names = _class_names(classes, protocol, truth)
    _check_names(truth, predictions, starts_us)
    frames, rest = Frames(protocol), RestCounter(protocol, threshold)
    size = None if sensor is None else Sensor.of(sensor)
    for name, boxes in truth.items():  # each recording is read once, because a mapping may read it from disk
        given = predictions[name] if name in predictions else Labels.empty()
        size = _shared_sensor(_shared_sensor(size, boxes, f"truth of {name}"), given, f"predictions of {name}")
        known = box_table(boxes, names, f"truth of {name}")
        predicted = box_table(given, names, f"predictions of {name}")
        start_us = 0 if starts_us is None else starts_us[name]
        frames.add(known, predicted, start_us, None if times_us is None else times_us[name])
        dense = dense_truth[name] if dense_truth is not None and name in dense_truth else None
        rest.add(known if dense is None else box_table(dense, names, f"dense truth of {name}"), predicted, start_us)
    frames.check_times()
    missing = {
        "without predictions, counted as nothing found": [name for name in truth if name not in predictions],
        "without truth, left out": [name for name in predictions if name not in truth],
    }
    by_class = [
        dict(zip(names, np.bincount(rows.class_id, minlength=len(names)).tolist(), strict=True))
        for rows in (frames.truth, frames.predictions)
    ]
    counts = replace(
        frames.counts, recordings=len(truth), truth=len(frames.truth), predictions=len(frames.predictions),
        truth_by_class=by_class[0], predictions_by_class=by_class[1],
    )  # fmt: skip
    return Scores(
        protocol=replace(protocol, classes=names),  # printed and stored: those that were evaluated
        classes=names,
        sensor=size,
        average_precision=average_precision(frames, names, protocol.max_detections),
        false_positives=false_positives(frames, rest, len(names)),
        counts=counts,
        matches=matches(frames, len(names)),
        notes=_notes(frames, protocol, size, missing),
        errors=find_error_kinds(frames, names, threshold, protocol.max_detections) if errors else None,
    )


def _class_names(classes: Sequence[str] | None, protocol: Protocol, truth: Mapping[str, BoxesLike]) -> tuple[str, ...]:
    if classes is not None:
        checked = Labels.empty(classes=classes).classes or ()  # with the checks of names that labels have
        return tuple(name for name in checked if plain(name) != NEUTRAL)
    named = next((labels.classes for labels in truth.values() if isinstance(labels, Labels) and labels.classes), None)
    names = named or protocol.classes
    if not names:
        raise FateError("no class names are known from the truth or the protocol; give classes, such as ('car',)")
    return tuple(name for name in names if plain(name) != NEUTRAL)


def _check_names(
    truth: Mapping[str, BoxesLike], predictions: Mapping[str, BoxesLike], starts_us: Mapping[str, int] | None
) -> None:
    if starts_us is not None and (missing := [name for name in truth if name not in starts_us]):
        raise FateError(f"starts_us has no start for recording {missing[0]!r}; give one for each recording with truth")
    if len(truth) and len(predictions) and not any(name in predictions for name in truth):
        raise FateError(
            f"predictions are for {len(predictions)} recordings, such as {next(iter(predictions))!r}, and none of "
            f"them is among the {len(truth)} with truth, such as {next(iter(truth))!r}; give both the same names"
        )


def _shared_sensor(known: Sensor | None, boxes: BoxesLike, whose: str) -> Sensor | None:
    """The sensor that all boxes share: boxes of two resolutions cannot be compared."""
    own = boxes.sensor if isinstance(boxes, Labels) else None
    if own is not None and known not in (None, own):
        raise FateError(
            f"{whose}: boxes of {Sensor.of(own)} pixels were given, and of {known} before; scale them to one resolution"
        )
    return known if own is None else Sensor.of(own)


def _notes(
    frames: Frames, protocol: Protocol, sensor: Sensor | None, missing: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    notes = []
    if protocol.sensor is not None and sensor is not None and protocol.sensor != sensor:
        notes.append(f"limits of size are meant for boxes of {protocol.sensor} pixels; these are of {sensor}")
    if not frames.counts.labelled:
        notes.append(f"no label is later than {protocol.skip_us / 1e6:g} s after the start; nothing was evaluated")
    if frames.num_several:
        notes.append(
            f"{frames.num_several} of {frames.counts.frames} frames hold predictions of several times, which count as "
            "doubles of each other; protocol.at(hz) takes the nearest alone"
        )
    if frames.num_unanswered:
        notes.append(
            f"{frames.num_unanswered} of {frames.counts.frames} frames have no prediction near them: nothing found"
        )
    if frames.num_neutral:
        on_neutral = plural(frames.num_neutral, "prediction")
        notes.append(f"{on_neutral} on neutral boxes of the ground truth left out: neither right nor wrong")
    for meaning, names in missing.items():
        if names:
            notes.append(f"{plural(len(names), 'recording')} {meaning}: {list_names(names, 3)}")
    return tuple(notes)


def _dropped(given: int, dropped: Mapping[str, int]) -> str:
    reasons = [f"{count} {REASONS[reason]}" for reason, count in dropped.items() if count]
    return f"{given} {'box' if given == 1 else 'boxes'} given, dropped " + (", ".join(reasons) if reasons else "none")
