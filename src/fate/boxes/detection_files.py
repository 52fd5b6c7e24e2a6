"""The files of ``fate detect``: written frame by frame while detection runs, and read back.

==========  ================================================================================================
JSON        one document (:mod:`fate.boxes.json_lines`); a draft until it is complete
JSON lines  grows in place: each line can be read as soon as its window is detected
CSV         a row for each box; grows in place like JSON lines
COCO        one document, as ``fate.write_labels`` writes it; a draft until it is complete
==========  ================================================================================================

:func:`read_detections` (and ``fate view``) reads JSON and JSON lines, ``fate evaluate`` reads COCO.
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
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fate.boxes import coco, json_lines
from fate.boxes.detections import DetectionFrame, frames_from_labels, labels_from_frames
from fate.boxes.json_lines import EXPECTED, FORMAT, VERSION, encode_frame, encode_line, encode_open
from fate.boxes.label_files import read_labels
from fate.boxes.labels import Labels
from fate.errors import FateError, FormatError
from fate.json_files import finite_number, list_of, names_of, object_of, read_json, whole_number
from fate.whole_files import Draft, disk_faults, find_target, open_growing

CSV_COLUMNS = ("t_us", "x1", "y1", "x2", "y2", "class", "score", "track")
_KEYS = ("format", "version", "recording", "sensor", "hz", "classes", "frames")

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class DetectionLog:
    """The frames of one recording, and the settings they were detected with.

    Attributes:
        recording: name of the file.
        sensor: (height, width), pixels.
        classes: names by id.
        hz: rate of the windows.
        frames: in order of time.
        facts: model, threshold, summary; values that JSON can hold.
    """

    recording: str
    sensor: tuple[int, int]
    classes: tuple[str, ...]
    hz: float
    frames: Sequence[DetectionFrame]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def labels(self) -> Labels:
        """All boxes as one table; the time of every frame is labelled, including frames without boxes."""
        return labels_from_frames(self.frames, self.classes, self.sensor)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        head = json_lines.header(self.recording, self.sensor, self.classes, self.hz, self.facts)
        return {**head, "frames": [encode_frame(frame) for frame in self.frames]}

    def write_json(self, path: PathLike) -> None:
        """Write one JSON document, a line for each frame; ``"-"`` is standard output, here and below."""
        self._write(json=path)

    def write_jsonl(self, path: PathLike) -> None:
        """Write JSON lines: a header, a line for each frame, and a last line with the summary."""
        self._write(jsonl=path)

    def write_csv(self, path: PathLike) -> None:
        """Write a row for each box; frames without boxes have no row."""
        self._write(csv=path)

    def write_coco(self, path: PathLike) -> None:
        """Write COCO's JSON: an image with its time for each frame, annotations with scores and tracks."""
        self._write(coco=path)

    def _write(self, **files: Any) -> None:
        facts = {name: fact for name, fact in self.facts.items() if name != "summary"}
        end = {name: fact for name, fact in self.facts.items() if name == "summary"}
        about = (self.recording, self.sensor, self.classes, self.hz, facts)
        with DetectionFiles(*about, **files, grows=False) as written:
            for frame in self.frames:
                written.add(frame)
            written.finish(end)


def read_detections(path: PathLike) -> DetectionLog:
    """Read a file that ``fate detect --json`` or ``--jsonl`` wrote; JSON lines have a name that ends in ``.jsonl``."""
    source = Path(path)
    is_lines = source.suffix.lower() == ".jsonl"
    return _decode_log(source, json_lines.read_lines(source) if is_lines else read_json(source, EXPECTED))


def read_frames(path: PathLike) -> tuple[Sequence[DetectionFrame], tuple[str, ...] | None]:
    """Frames and classes of a file of ``fate detect --json`` or ``--jsonl``, or of labels in any format."""
    source = Path(path)
    suffix = source.suffix.lower()
    content = read_json(source, EXPECTED) if suffix == ".json" else None
    is_coco = isinstance(content, dict) and "images" in content and "format" not in content
    if suffix not in (".json", ".jsonl") or is_coco:
        labels = read_labels(source)
        return frames_from_labels(labels), labels.classes
    log = _decode_log(source, content) if suffix == ".json" else read_detections(source)
    return log.frames, log.classes


def _decode_log(source: Path, content: Any) -> DetectionLog:
    """Detections from the content of a file, every part of which is checked."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FormatError(f"{source}: holds no detections of FATE; expected {EXPECTED}")
    version = content.get("version")
    if isinstance(version, int) and version > VERSION:
        raise FormatError(f"{source}: written by a newer FATE (version {version}); update yours")
    try:
        whole_number(version, "version", 0, VERSION)
        sensor = object_of(content.get("sensor"), "sensor")
        height, width = (whole_number(sensor.get(side), side, 1, 65_536) for side in ("height", "width"))
        hz = finite_number(content.get("hz"), "hz")
        if hz <= 0:
            raise FormatError(f"hz is {hz}; expected a rate above 0")
        recording = content.get("recording")
        if not isinstance(recording, str):
            raise FormatError(f"recording is {recording!r:.40}; expected text")
        frames = enumerate(list_of(content.get("frames"), "frames"))
        log = DetectionLog(
            recording,
            (height, width),
            names_of(content.get("classes"), "classes"),
            hz,
            [json_lines.decode_frame(each, f"frame {index}") for index, each in frames],
            {key: value for key, value in content.items() if key not in _KEYS},
        )
        log.labels()  # checks every row
    except FateError as error:
        raise FormatError(f"{source}: is damaged: {error}; write it again with fate detect --json") from None
    return log


class _Writer(ABC):
    """One file, open until :meth:`end` or :meth:`give_up`.

    Args:
        path: the file.
        grows: write in place and at once, for readers that do not wait; else a draft gets its name at the end.
    """

    def __init__(self, path: PathLike, grows: bool) -> None:
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

    def write(self, text: str) -> None:
        """Write text; a growing file holds all of it when this returns."""
        with disk_faults(self.target):
            self.file.write(_encode_text(text))
            if self.grows:
                self.file.flush()

    @abstractmethod
    def add(self, frame: DetectionFrame) -> None:
        """Write the next frame."""

    def end(self, facts: Mapping[str, Any]) -> None:
        """Write the last part, and complete the file."""
        with disk_faults(self.target):
            self.file.close()
        if self.draft is not None:
            self.draft.commit()

    def give_up(self) -> None:
        """Close the file after an error; a draft is discarded, a growing file stays as it is."""
        with suppress(OSError):
            self.file.close()
        if self.draft is not None:
            self.draft.discard()


class _LinesWriter(_Writer):
    def __init__(self, path: PathLike, head: Mapping[str, Any], grows: bool) -> None:
        super().__init__(path, grows)
        self.write(encode_line({**head, "format": json_lines.LINES_FORMAT}))

    def add(self, frame: DetectionFrame) -> None:
        self.write(encode_line({**encode_frame(frame), **json_lines.encode_timing(frame)}))

    def end(self, facts: Mapping[str, Any]) -> None:
        self.write(encode_line(facts) if facts else "")
        super().end(facts)


class _CsvWriter(_Writer):
    def __init__(self, path: PathLike, classes: Sequence[str], grows: bool) -> None:
        super().__init__(path, grows)
        self.classes = classes
        self._write_rows([CSV_COLUMNS])

    def add(self, frame: DetectionFrame) -> None:
        tracks = [""] * len(frame.boxes) if frame.track_ids is None else frame.track_ids.tolist()
        columns = zip(frame.boxes.tolist(), frame.scores, frame.class_ids, tracks, strict=True)
        rows = [
            [frame.t_us, *(f"{value:.2f}" for value in box), self.classes[int(class_id)], f"{float(score):.4f}", track]
            for box, score, class_id, track in columns
        ]
        if rows:
            self._write_rows(rows)

    def _write_rows(self, rows: Sequence[Sequence[object]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.write(text.getvalue())


class _JsonWriter(_Writer):
    def __init__(self, path: PathLike, head: Mapping[str, Any]) -> None:
        super().__init__(path, grows=False)
        self.num_frames = 0
        self.write(f'{encode_open(head)},\n "frames": [')

    def add(self, frame: DetectionFrame) -> None:
        self.write(f"{',' if self.num_frames else ''}\n  {json.dumps(encode_frame(frame), allow_nan=False)}")
        self.num_frames += 1

    def end(self, facts: Mapping[str, Any]) -> None:
        closed = "\n ]" if self.num_frames else "]"
        rest = f",{encode_open(facts)[1:]}" if facts else ""
        self.write(f"{closed}{rest}\n}}\n")
        super().end(facts)


class _CocoWriter(_Writer):
    """Images are written to the file, annotations to an unnamed file beside it until all images are written."""

    def __init__(self, path: PathLike, classes: Sequence[str], sensor: tuple[int, int]) -> None:
        super().__init__(path, grows=False)
        self.classes, self.sensor = tuple(classes), sensor
        self.num_images = self.num_boxes = 0
        folder = self.target.path.parent if self.target.kind == "file" else None
        try:
            with disk_faults(self.target):
                self.annotations = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (closed at the end)
            head = coco.header(Labels.empty(classes=self.classes, sensor=sensor))
            self.write(f'{encode_open(head)},\n "images": [')
        except BaseException:
            super().give_up()
            raise

    def add(self, frame: DetectionFrame) -> None:
        labels = labels_from_frames([frame], self.classes, self.sensor)
        (image,) = coco.image_entries(labels, self.num_images + 1)
        entries = coco.annotation_entries(labels, self.num_boxes + 1, self.num_images + 1)
        self.write(f"{',' if self.num_images else ''}\n  {json.dumps(image)}")
        lines = [f"{',' if self.num_boxes + row else ''}\n  {json.dumps(each)}" for row, each in enumerate(entries)]
        with disk_faults(self.target):
            self.annotations.write(_encode_text("".join(lines)))
        self.num_images, self.num_boxes = self.num_images + 1, self.num_boxes + len(entries)

    def end(self, facts: Mapping[str, Any]) -> None:
        self.write('],\n "annotations": [')
        with disk_faults(self.target):
            self.annotations.seek(0)
            shutil.copyfileobj(self.annotations, self.file)
        self.write("]\n}\n")
        self.annotations.close()
        super().end(facts)

    def give_up(self) -> None:
        super().give_up()
        self.annotations.close()


class DetectionFiles:
    """The files of one run: :meth:`add` every frame, then :meth:`finish`. Use it in a ``with`` block.

    Args:
        recording: name of the file or the source.
        sensor: (height, width), pixels.
        classes: names by id.
        hz: windows a second.
        facts: values that are known at the beginning, as JSON can hold them: model, threshold.
        json, jsonl, csv, coco: the path of each file, None for none; ``"-"`` is standard output.
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
        json: PathLike | None = None,
        jsonl: PathLike | None = None,
        csv: PathLike | None = None,
        coco: PathLike | None = None,
        grows: bool = True,
    ) -> None:
        head = json_lines.header(recording, sensor, classes, hz, facts)
        self._open: list[_Writer] = []
        try:
            if json is not None:
                self._open.append(_JsonWriter(json, head))
            if coco is not None:
                self._open.append(_CocoWriter(coco, classes, sensor))
            if csv is not None:
                self._open.append(_CsvWriter(csv, classes, grows))
            if jsonl is not None:
                self._open.append(_LinesWriter(jsonl, head, grows))
        except BaseException:
            self.close()
            raise

    def add(self, frame: DetectionFrame) -> None:
        """Write the next frame into every file."""
        for writer in self._open:
            writer.add(frame)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Complete every file, even if one of them fails.

        Args:
            facts: values that are known at the end: the summary.
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
        """Give up unfinished files: drafts are discarded, growing files keep their content."""
        while self._open:
            self._open.pop().give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _encode_text(text: str) -> bytes:
    """UTF-8; bytes of a file name that are not UTF-8 are escaped as in JSON."""
    return text.encode("utf-8", "backslashreplace")
