"""The study ``real``: detectors on clips of real cameras, as ``fate detect`` runs them without further options.

Each detector runs with the default windows, suppression and threshold of its weights. Hits, misses and false boxes are
counted at this threshold with an IoU of 0.5; AP50 uses weaker boxes too. Every labelled class counts, whether or not
the detector knows it. Real clips are only reported: they must not choose weights.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fate.boxes.labels import Labels
from fate.data.class_maps import plain
from fate.errors import FateError
from fate.evaluation.labelled_frames import times_at_window_ends
from fate.evaluation.protocols import Protocol
from fate.evaluation.scores import Scores, evaluate_boxes
from fate.events.window import window_us as hop_of
from fate.inference.loading import bundled_weights, find_weights, load_detector
from fate.inference.stream import StreamingDetector
from fate.json_files import write_json
from fate.progress import Progress
from fate.text import format_markdown_table, plural
from fate.version import __version__
from fate.whole_files import write_whole
from fate.workflows.detect import detect
from fate.workflows.studies.clips import GOALS, Clip, read_clips
from fate.workflows.studies.declared import REAL

RATES = (20.0, 100.0, 200.0)

_HEADER = (
    *("detector", "clip", "Hz", "window, ms", "windows", "boxes", "hits", "misses", "false boxes", "per window"),
    *("AP50", "goal"),
)


@dataclass(frozen=True)
class ClipScores:
    """One detector on one clip at one rate."""

    detector: str
    clip: Clip
    hz: float
    window_us: int
    scores: Scores

    def figures(self) -> dict[str, float | None]:
        """The figures of a row of the table; a figure is None if there is nothing to compute it from."""
        counted, precision = self.scores.false_positives, self.scores["AP50"]
        boxes, windows = counted.found + counted.missed, counted.num_frames
        return {
            "windows": windows,
            "boxes": boxes,
            "hits": counted.found,
            "misses": counted.missed,
            "found": 100 * counted.found / boxes if boxes else None,
            "false_boxes": counted.count,
            "false_per_window": counted.count / windows if windows else None,
            "AP50": None if precision is None else 100 * precision,
        }

    def goals(self) -> dict[str, bool]:
        """Whether each goal of the clip is reached."""
        figures = self.figures()
        values = {name: (figures[name], limit) for name, limit in self.clip.entry.goal.items()}
        return {
            name: value is not None and (value >= limit if GOALS[name] else value <= limit)
            for name, (value, limit) in values.items()
        }

    def cells(self) -> list[str]:
        """The row of the table."""
        figures = self.figures()
        counts = [f"{figures[name]:g}" for name in ("windows", "boxes", "hits", "misses", "false_boxes")]
        shares = [(figures["false_per_window"], 2), (figures["AP50"], 1)]
        limits = {name: f"{'≥' if GOALS[name] else '≤'} {limit:g}" for name, limit in self.clip.entry.goal.items()}
        goals = [
            f"{name.replace('_', ' ')} {limits[name]}: {'yes' if done else 'no'}" for name, done in self.goals().items()
        ]
        return [
            *(self.detector, self.clip.name, f"{self.hz:g}", f"{self.window_us / 1000:g}", *counts),
            *("–" if value is None else f"{value:.{digits}f}" for value, digits in shares),
            ", ".join(goals),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the row, its goals, and all scores."""
        named = {"detector": self.detector, "clip": self.clip.name, "hz": self.hz, "window_us": self.window_us}
        return {**named, **self.figures(), "goals": self.goals(), "scores": self.scores.to_dict()}


@dataclass
class ClipStudy:
    """The result of :func:`study_clips`."""

    clips: list[Clip]
    weights: dict[str, dict[str, Any]] = field(default_factory=dict)  #: facts of each detector, by its name
    rows: list[ClipScores] = field(default_factory=list)

    def table(self) -> str:
        """The Markdown table with a row for each detector, clip and rate, and what its columns mean."""
        thresholds = ", ".join(f"{name} {facts['threshold']:g}" for name, facts in self.weights.items())
        with_labels = [clip for clip in self.clips if not clip.entry.shows]
        tolerances = sorted({clip.entry.label_tolerance_us for clip in with_labels})
        near = ", ".join(
            f"{tolerance_us / 1000:g} ms"
            + (f" ({', '.join(clip.name for clip in with_labels if clip.entry.label_tolerance_us == tolerance_us)})")
            * (len(tolerances) > 1)
            for tolerance_us in tolerances
        )
        labelled = (
            f" A labelled time is compared with the nearest end of a window, at most {near} and half the time"
            " between two windows away; other labelled times and windows do not count."
        )
        notes = (
            "Hits have an IoU of 0.5 or more with a labelled box of their class. Hits, misses and false boxes are"
            f" counted at the default threshold of the weights ({thresholds}); AP50, in percent, uses weaker boxes too."
            f"{labelled if near else ''} In clips that show no road user, all windows count and all boxes are false."
        )
        return f"{format_markdown_table(_HEADER, (row.cells() for row in self.rows))}\n\n{notes}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        clips = {clip.name: clip.entry.model_dump(mode="json", exclude_defaults=True) for clip in self.clips}
        rows = [row.to_dict() for row in self.rows]
        return {"version": __version__, "weights": self.weights, "clips": clips, "rows": rows}

    def save(self, folder: Path) -> None:
        """Write ``real.md`` and ``real.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{REAL}.md", f"{self.table()}\n".encode())
        write_json(folder / f"{REAL}.json", self.to_dict())


def study_clips(
    clips: str | os.PathLike[str],
    weights: Sequence[str | os.PathLike[str]] = (),
    out: str | os.PathLike[str] = "studies",
    *,
    rates: Sequence[float] = RATES,
    device: str = "cpu",
    progress: Progress | None = None,
) -> ClipStudy:
    """Measure detectors on clips of real cameras; the table is written after each row.

    Args:
        clips: a YAML file that lists clips; see :mod:`fate.workflows.studies.clips`.
        weights: bundled names or .safetensors files; all bundled ones unless given.
        out: folder for ``real.md`` and ``real.json``.
        rates: windows per second.
        device: ``"cpu"`` or ``"cuda"``.
        progress: called with the rows done, the rows in all, and a text about the last one.
    """
    study = ClipStudy(read_clips(clips))
    files = {os.fspath(each): find_weights(each) for each in weights or bundled_weights()}
    for clip in study.clips:  # all labels are read first, so that a fault costs no time
        for events, labels in clip.files:
            with clip.naming_errors(), clip.open(events) as recording:
                clip.part(recording)
                if labels is not None:
                    clip.truth(recording, labels)
    total = len(files) * len(study.clips) * len(rates)
    for name, file in files.items():
        detector = load_detector(file, device)
        threshold = detector.calibration.threshold
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        study.weights[name] = {"file": str(file), "sha256": digest, "threshold": threshold}
        for clip in study.clips:
            for hz in rates:
                with clip.naming_errors():
                    study.rows.append(measure_clip(name, detector, clip, hz))
                if progress is not None:
                    figures = study.rows[-1].figures()
                    found = f"{figures['hits']} of {plural(int(figures['boxes'] or 0), 'box', 'boxes')} found"
                    text = f"{name}, {clip.name} at {hz:g} Hz: {found}, {figures['false_boxes']} false"
                    progress(len(study.rows), total, text)
                study.save(Path(out))
    return study


def measure_clip(name: str, detector: StreamingDetector, clip: Clip, hz: float) -> ClipScores:
    """Measure one detector, called ``name`` in the table, on one clip at one rate."""
    protocol = Protocol(
        name=REAL, skip_us=round(clip.entry.skip_s * 1e6), label_tolerance_us=clip.entry.label_tolerance_us
    )
    truth: dict[str, Labels] = {}
    predictions: dict[str, Labels] = {}
    starts_us: dict[str, int] = {}
    window_us = 0
    for events, labels in clip.files:
        key = str(events)
        with clip.open(events) as recording:
            start_us, end_us = clip.part(recording)
            labelled = None if labels is None else clip.truth(recording, labels)
            if labelled is not None:  # later windows do not count
                end_us = min(end_us, int(labelled.labelled_us[-1]) + clip.entry.label_tolerance_us)
            # weaker boxes suppress no stronger one: those above the default threshold are the same
            done = detect(recording, detector, hz, threshold=protocol.score_floor, start_us=start_us, end_us=end_us)
        if not done.frames:
            raise FateError(f"{events}: no window of the part has events; change start_s or end_s")
        found = replace(done.log.labels(), sensor=None)  # recordings of one clip may have several sensors
        predictions[key], starts_us[key] = found, start_us
        truth[key] = Labels.empty(found.labelled_us) if labelled is None else labelled
        window_us = done.log.facts["window_us"]  # frame.window is only the time since the last frame
    names = [*(each for table in truth.values() for each in table.classes or ()), *detector.classes]
    classes = {plain(each): each for each in names}
    rules = protocol.at(hz, window_us)
    tolerance_us = rules.time_tolerance_us()
    pairs = [(truth[key].labelled_us, predictions[key].labelled_us) for key in truth]
    if not any(len(times_at_window_ends(*pair, hop_of(hz), tolerance_us)[0]) for pair in pairs):
        raise FateError(
            f"at {hz:g} Hz, no labelled time lies within {tolerance_us / 1000:g} ms of the end of a window; give a"
            " larger label_tolerance_us"
        )
    scores = evaluate_boxes(
        truth, predictions, rules, tuple(classes.values()),
        threshold=detector.calibration.threshold, starts_us=starts_us,
    )  # fmt: skip
    return ClipScores(name, clip, hz, window_us, scores)
