"""The files of ``fate detect``, written frame by frame while detection runs, in bounded memory.

========  ==================================================================================================
JSON      one document; a draft until it is complete
COCO      one document, as ``fate.write_labels`` writes it; a draft until it is complete
CSV       a row for each box; grows in place, and each row is there as soon as its window is detected
JSON      a header line, a line for each window, a last line with the summary; grows in place like CSV. What
lines     was written before a crash stays readable.
========  ==================================================================================================
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np

from fate.boxes import coco
from fate.boxes.frames import DetectionFrame
from fate.boxes.labels import Labels
from fate.whole_files import Draft, disk_faults, find_target, open_growing

#: Names and version of the two JSON formats; the version grows when a reader has to change.
FORMAT, LINES_FORMAT, VERSION = "fate-detections", "fate-detections-lines", 1
CSV_COLUMNS = ("t_us", "x1", "y1", "x2", "y2", "class", "score", "track")

Path = str | os.PathLike[str]


def plain_frame(frame: DetectionFrame) -> dict[str, Any]:
    """A frame as JSON holds it: ``t_us``, ``boxes`` (xyxy, pixels), ``scores``, ``class_ids`` and ``track_ids``."""
    plain: dict[str, Any] = {
        "t_us": int(frame.t_us),
        "boxes": [[round(value, 2) for value in box] for box in frame.boxes.tolist()],
        "scores": [round(value, 4) for value in frame.scores.tolist()],
        "class_ids": [int(value) for value in frame.class_ids.tolist()],
    }
    if frame.track_ids is not None:
        plain["track_ids"] = [int(value) for value in frame.track_ids.tolist()]
    return plain


class _Writer(ABC):
    """One file, open until :meth:`end` or :meth:`give_up`."""

    def __init__(self, path: Path, grows: bool) -> None:
        """Args:
        path: where to.
        grows: write in place and at once, for readers that do not wait; else a draft gets its name at the end.
        """
        self.grows, self.draft = grows, None
        if grows:
            self.target, self.file = open_growing(path)
            return
        self.target = find_target(path, text=True)
        self.draft = Draft(self.target)
        try:
            with disk_faults(self.target):
                self.file = self.draft.open()
        except BaseException:
            self.draft.discard()
            raise

    def say(self, text: str) -> None:
        """Write text; a file that grows has all of it when this returns."""
        with disk_faults(self.target):
            self.file.write(_encoded(text))
            if self.grows:
                self.file.flush()

    @abstractmethod
    def add(self, frame: DetectionFrame) -> None:
        """Write the next frame."""

    def end(self, facts: Mapping[str, Any]) -> None:
        """Write what comes last, and complete the file."""
        with disk_faults(self.target):
            self.file.close()
        if self.draft is not None:
            self.draft.commit()

    def give_up(self) -> None:
        """Close the file after an error; a draft is discarded, a file that grows in place stays as it is."""
        with suppress(OSError):
            self.file.close()
        if self.draft is not None:
            self.draft.discard()


class _Lines(_Writer):
    def __init__(self, path: Path, head: Mapping[str, Any], grows: bool) -> None:
        super().__init__(path, grows)
        self.say(_line({**head, "format": LINES_FORMAT}))

    def add(self, frame: DetectionFrame) -> None:
        self.say(_line({**plain_frame(frame), **_timing(frame)}))

    def end(self, facts: Mapping[str, Any]) -> None:
        self.say(_line(facts) if facts else "")
        super().end(facts)


class _Rows(_Writer):
    def __init__(self, path: Path, classes: Sequence[str], grows: bool) -> None:
        super().__init__(path, grows)
        self.classes = classes
        self.say(_rows([CSV_COLUMNS]))

    def add(self, frame: DetectionFrame) -> None:
        tracks = [""] * len(frame.boxes) if frame.track_ids is None else frame.track_ids.tolist()
        found = zip(frame.boxes.tolist(), frame.scores, frame.class_ids, tracks, strict=True)
        rows = [
            [frame.t_us, *(f"{value:.2f}" for value in box), self.classes[int(kind)], f"{float(score):.4f}", track]
            for box, score, kind, track in found
        ]
        if rows:
            self.say(_rows(rows))


class _Document(_Writer):
    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        super().__init__(path, grows=False)
        self.num_frames = 0
        self.say(f'{_opened(head)},\n "frames": [')

    def add(self, frame: DetectionFrame) -> None:
        self.say(f"{',' if self.num_frames else ''}\n  {json.dumps(plain_frame(frame), allow_nan=False)}")
        self.num_frames += 1

    def end(self, facts: Mapping[str, Any]) -> None:
        closed = "\n ]" if self.num_frames else "]"
        behind = f",{_opened(facts)[1:]}" if facts else ""
        self.say(f"{closed}{behind}\n}}\n")
        super().end(facts)


class _Coco(_Writer):
    """Images go into the file, annotations into a nameless one beside it, until all images are written."""

    def __init__(self, path: Path, empty: Labels) -> None:
        super().__init__(path, grows=False)
        self.empty, self.num_images, self.num_boxes = empty, 0, 0
        folder = self.target.path.parent if self.target.kind == "file" else None
        try:
            with disk_faults(self.target):
                self.spool = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (closed at the end)
            self.say(f'{_opened(coco.header(empty))},\n "images": [')
        except BaseException:
            super().give_up()
            raise

    def add(self, frame: DetectionFrame) -> None:
        labels = labels_of([frame], self.empty)
        (image,) = coco.image_entries(labels, self.num_images + 1)
        found = coco.annotation_entries(labels, self.num_boxes + 1, self.num_images + 1)
        self.say(f"{',' if self.num_images else ''}\n  {json.dumps(image)}")
        lines = [f"{',' if self.num_boxes + row else ''}\n  {json.dumps(each)}" for row, each in enumerate(found)]
        with disk_faults(self.target):
            self.spool.write(_encoded("".join(lines)))
        self.num_images, self.num_boxes = self.num_images + 1, self.num_boxes + len(found)

    def end(self, facts: Mapping[str, Any]) -> None:
        self.say('],\n "annotations": [')
        with disk_faults(self.target):
            self.spool.seek(0)
            shutil.copyfileobj(self.spool, self.file)
        self.say("]\n}\n")
        self.spool.close()
        super().end(facts)

    def give_up(self) -> None:
        super().give_up()
        self.spool.close()


class DetectionFiles:
    """The files of one run: :meth:`add` every frame, then :meth:`finish`. Use it in a ``with`` block.

    Args:
        recording: name of the file or the source.
        sensor: (height, width), pixels.
        classes: names by id.
        hz: windows a second.
        facts: what is known at the beginning, as JSON can hold it: model, threshold.
        json, jsonl, csv, coco: where each file goes, None for none; ``"-"`` is standard output.
        grows: whether CSV and JSON lines are written in place, so that each frame can be read at once; else they get
            their names when they are complete, as JSON and COCO always do.
    """

    def __init__(
        self,
        recording: str,
        sensor: tuple[int, int],
        classes: Sequence[str],
        hz: float,
        facts: Mapping[str, Any],
        *,
        json: Path | None = None,
        jsonl: Path | None = None,
        csv: Path | None = None,
        coco: Path | None = None,
        grows: bool = True,
    ) -> None:
        head = {
            "format": FORMAT,
            "version": VERSION,
            "recording": recording,
            "sensor": {"width": sensor[1], "height": sensor[0]},
            "hz": hz,
            "classes": list(classes),
            **facts,
        }
        self._open: list[_Writer] = []
        try:
            if json is not None:
                self._open.append(_Document(json, head))
            if coco is not None:
                self._open.append(_Coco(coco, Labels.empty(classes=tuple(classes), sensor=sensor)))
            if csv is not None:
                self._open.append(_Rows(csv, classes, grows))
            if jsonl is not None:
                self._open.append(_Lines(jsonl, head, grows))
        except BaseException:
            self.close()
            raise

    def add(self, frame: DetectionFrame) -> None:
        """Write the next frame into every file."""
        for writer in self._open:
            writer.add(frame)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Complete every file, also where one of them fails.

        Args:
            facts: what is known at the end: the summary.
        """
        failed: Exception | None = None
        while self._open:
            writer = self._open.pop(0)
            try:
                writer.end(facts)
            except Exception as error:
                writer.give_up()
                failed = failed or error
            except BaseException:
                writer.give_up()
                raise
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Give up what was not finished: drafts are discarded, files that grow in place keep what they hold."""
        while self._open:
            self._open.pop().give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def labels_of(frames: Sequence[DetectionFrame], like: Labels) -> Labels:
    """All boxes of some frames as one table; every frame's time is labelled, also where nothing was found.

    Args:
        frames: in order of time.
        like: labels with the classes and the sensor.
    """
    times = np.array([frame.t_us for frame in frames], np.int64)
    full = [frame for frame in frames if len(frame.boxes)]
    if not full:
        return Labels.empty(times, classes=like.classes, sensor=like.sensor)
    counts = [len(frame.boxes) for frame in full]
    tracks = [np.full(len(each.boxes), -1) if each.track_ids is None else each.track_ids for each in full]
    x1, y1, x2, y2 = np.concatenate([frame.boxes for frame in full]).T
    return Labels(
        np.repeat(np.array([frame.t_us for frame in full], np.int64), counts),
        x1,
        y1,
        x2,
        y2,
        np.concatenate([frame.class_ids for frame in full]),
        np.concatenate(tracks),
        np.concatenate([frame.scores for frame in full]).clip(0, 1),
        labelled_us=times,
        classes=like.classes,
        sensor=like.sensor,
    )


def _timing(frame: DetectionFrame) -> dict[str, Any]:
    """What a frame of a stream knows beyond its boxes."""
    told: dict[str, Any] = {}
    if hasattr(frame, "num_events"):
        told["events"] = int(frame.num_events)
    if hasattr(frame, "total_ms"):
        told["ms"] = round(float(frame.total_ms), 3)
    if getattr(frame, "age_ms", None) is not None:
        told["age_ms"] = round(float(frame.age_ms), 3)  # type: ignore[attr-defined]
    if getattr(frame, "late", False):
        told["late"] = True
    return told


def _line(content: Mapping[str, Any]) -> str:
    return f"{json.dumps(content, ensure_ascii=False, allow_nan=False)}\n"


def _opened(content: Mapping[str, Any]) -> str:
    """An object as indented JSON, without the brace that closes it."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)[:-2]


def _rows(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _encoded(text: str) -> bytes:
    """UTF-8; of a file name that is not UTF-8, the bytes are escaped as JSON does it."""
    return text.encode("utf-8", "backslashreplace")
