"""The files of ``fate detect``: written frame by frame while detection runs, and read back.

==========  ================================================================================================
JSON        one document; a draft until it is complete
JSON lines  grows in place: each line can be read as soon as its window is detected; or goes to a listener
CSV         a row for each box; like JSON lines
COCO        one document, as ``fate.write_labels`` writes it; a draft until it is complete
==========  ================================================================================================

A JSON document has ``format``, ``version``, ``recording``, ``sensor``, ``hz``, ``classes``, further facts, and
``frames``. JSON lines have the same without ``frames`` in the first line, then a line for each frame, and in the last
line the facts that are known at the end. Lines written before a crash stay readable.

:func:`read_detections` (and ``fate view``) reads JSON and JSON lines, ``fate evaluate`` reads COCO.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from fate.boxes import coco
from fate.boxes.detections import DetectionFrame, frames_from_labels, labels_from_frames
from fate.boxes.label_files import read_labels
from fate.boxes.labels import Labels
from fate.boxes.line_outputs import LineOutput, open_lines
from fate.errors import FateError, FormatError, warn
from fate.files import read_text
from fate.json_files import describe_invalid, object_of, parse_json, read_json
from fate.whole_files import Draft, disk_faults, find_target

#: Names and version of the two formats; the version grows when a reader has to change.
FORMAT, LINES_FORMAT, VERSION = "fate-detections", "fate-detections-lines", 1
EXPECTED = "a file of fate detect --json or --jsonl"
CSV_COLUMNS = ("t_us", "x1", "y1", "x2", "y2", "class", "score", "track")
MAX_PX = 1e30  # corners are stored as float32

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class DetectionLog:
    """The frames of one recording, and the settings they were detected with."""

    recording: str  #: name of the file
    sensor: tuple[int, int]  #: (height, width), pixels
    classes: tuple[str, ...]  #: names by id
    hz: float  #: windows a second
    frames: Sequence[DetectionFrame] = ()  #: in order of time; after a restart of a live source, time may go back
    facts: Mapping[str, Any] = field(default_factory=dict)  #: model, threshold, summary; values that JSON can hold

    def labels(self) -> Labels:
        """Return all boxes as one table; the time of every frame is labelled, including frames without boxes.

        Times must not go back, as they may after a restart of a live source.
        """
        return labels_from_frames(self.frames, self.classes, self.sensor)


def read_detections(path: PathLike) -> DetectionLog:
    """Read a file that ``fate detect --json`` or ``--jsonl`` wrote; JSON lines have a name that ends in ``.jsonl``."""
    source = Path(path)
    is_lines = source.suffix.lower() == ".jsonl"
    return _decode_log(source, _read_lines(source) if is_lines else read_json(source, EXPECTED))


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


class _Sensor(BaseModel, strict=True):
    height: int = Field(ge=1, le=65_536)
    width: int = Field(ge=1, le=65_536)


_Corner = Annotated[float, Field(ge=-MAX_PX, le=MAX_PX)]


class _Frame(BaseModel, strict=True):
    """A frame as JSON holds it; boxes are xyxy in pixels."""

    t_us: int = Field(ge=-(2**62), le=2**62)
    boxes: list[Annotated[list[_Corner], Field(min_length=4, max_length=4)]]
    scores: list[float]
    class_ids: list[Annotated[int, Field(ge=0, lt=2**31)]]
    track_ids: list[Annotated[int, Field(ge=-1, lt=2**63)]] | None = None
    restarted: str = ""

    def decode(self) -> DetectionFrame:
        counts = {len(part) for part in (self.boxes, self.scores, self.class_ids, self.track_ids) if part is not None}
        if len(counts) > 1:
            raise FormatError(f"the frame at {self.t_us} µs has {sorted(counts)} boxes, scores, classes or tracks")
        return DetectionFrame(
            self.t_us,
            np.array(self.boxes, np.float64).reshape(-1, 4).astype(np.float32),
            np.array(self.scores, np.float32),
            np.array(self.class_ids, np.int64),
            None if self.track_ids is None else np.array(self.track_ids, np.int64),
            restarted=self.restarted,
        )


class _Document(BaseModel, strict=True, extra="allow"):
    """A file of detections; the facts are its extra keys."""

    format: str
    version: int = Field(ge=0, le=VERSION)
    recording: str
    sensor: _Sensor
    hz: float = Field(gt=0)
    classes: list[str]
    frames: list[_Frame]


def _decode_log(source: Path, content: Any) -> DetectionLog:
    """Detections from the content of a file, every part of which is checked."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FormatError(f"{source}: holds no detections of FATE; expected {EXPECTED}")
    version = content.get("version")
    if isinstance(version, int) and version > VERSION:
        raise FormatError(f"{source}: written by a newer FATE (version {version}); update yours")
    try:
        found = _Document.model_validate(content)
        sensor, frames = (found.sensor.height, found.sensor.width), [each.decode() for each in found.frames]
        facts = found.model_extra or {}
        log = DetectionLog(found.recording, sensor, tuple(found.classes), found.hz, frames, facts)
        restarts = [index for index, each in enumerate(found.frames) if each.restarted]
        for first, last in pairwise([0, *restarts, len(frames)]):  # checks every row
            labels_from_frames(frames[first:last], log.classes, sensor)
    except (ValidationError, FateError) as error:
        reason = describe_invalid(error) if isinstance(error, ValidationError) else error
        raise FormatError(f"{source}: is damaged: {reason}; write it again with fate detect --json") from None
    return log


def _read_lines(source: Path) -> dict[str, Any]:
    """Read a ``.jsonl`` file as one document; an incomplete last line is dropped with a warning."""
    first, *lines = read_text(source, EXPECTED).split("\n")
    head = parse_json(first, f"{source}, line 1", EXPECTED)
    if not isinstance(head, dict) or head.get("format") != LINES_FORMAT:
        raise FormatError(f"{source}: holds no detections of FATE; expected {EXPECTED}")
    parts = [
        object_of(parse_json(line, f"{source}, line {number}", EXPECTED), f"{source}, line {number}")
        for number, line in enumerate(lines[:-1], start=2)
    ]
    if lines and lines[-1]:
        warn(f"{source}: ends within a line, as after a crash; the {len(parts)} whole lines before it are read")
    end: dict[str, Any] = {}
    for part in parts:
        end |= {} if "t_us" in part else part
    return {**head, **end, "format": FORMAT, "frames": [part for part in parts if "t_us" in part]}


def _header(log: DetectionLog, format: str) -> dict[str, Any]:
    """Return the part of a document before its frames, without the facts that are known at the end."""
    return {
        "format": format,
        "version": VERSION,
        "recording": log.recording,
        "sensor": {"width": log.sensor[1], "height": log.sensor[0]},
        "hz": log.hz,
        "classes": list(log.classes),
        **{name: fact for name, fact in log.facts.items() if name != "summary"},
    }


def _encode_frame(frame: DetectionFrame) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "t_us": int(frame.t_us),
        "boxes": [[round(value, 2) for value in box] for box in frame.boxes.tolist()],
        "scores": [round(value, 4) for value in frame.scores.tolist()],
        "class_ids": [int(value) for value in frame.class_ids.tolist()],
    }
    if frame.track_ids is not None:
        plain["track_ids"] = [int(value) for value in frame.track_ids.tolist()]
    if frame.restarted:
        plain["restarted"] = frame.restarted
    return plain


def _encode_timing(frame: Any) -> dict[str, Any]:
    """Return the optional attributes of a frame of a stream: events, milliseconds, age and lateness."""
    plain: dict[str, Any] = {"events": int(frame.num_events)} if hasattr(frame, "num_events") else {}
    for key, name in (("ms", "total_ms"), ("age_ms", "age_ms")):
        if getattr(frame, name, None) is not None:
            plain[key] = round(float(getattr(frame, name)), 3)
    return {**plain, "late": True} if getattr(frame, "late", False) else plain


def encode_line(frame: DetectionFrame) -> dict[str, Any]:
    """Return a frame as the JSON lines have it: boxes in pixels, scores, class ids, track ids, and its times."""
    return {**_encode_frame(frame), **_encode_timing(frame)}


def _open_object(content: Mapping[str, Any]) -> str:
    """Write an object as indented JSON, without the closing brace."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)[:-2]


Given = DetectionFrame | Mapping[str, Any]
#: Writes one file: each frame that is sent to it, and at last the facts that are known at the end.
Steps = Generator[None, Given, None]
Write = Callable[[str], None]


def _write_lines(log: DetectionLog, write: Write, _folder: Path | None) -> Steps:
    write(_line(_header(log, LINES_FORMAT)))
    while not isinstance(given := (yield), Mapping):
        write(_line(encode_line(given)))
    if given:
        write(_line(given))


def _write_csv(log: DetectionLog, write: Write, _folder: Path | None) -> Steps:
    write(_rows([CSV_COLUMNS]))
    while not isinstance(given := (yield), Mapping):
        tracks = [""] * len(given.boxes) if given.track_ids is None else given.track_ids.tolist()
        columns = zip(given.boxes.tolist(), given.scores, given.class_ids, tracks, strict=True)
        rows = [
            [given.t_us, *(f"{value:.2f}" for value in box), log.classes[int(class_id)], f"{float(score):.4f}", track]
            for box, score, class_id, track in columns
        ]
        write(_rows(rows))


def _write_json(log: DetectionLog, write: Write, _folder: Path | None) -> Steps:
    write(f'{_open_object(_header(log, FORMAT))},\n "frames": [')
    before = ""
    while not isinstance(given := (yield), Mapping):
        write(f"{before}\n  {json.dumps(_encode_frame(given), allow_nan=False)}")
        before = ","
    write("\n ]" if before else "]")
    write(f",{_open_object(given)[1:]}\n}}\n" if given else "\n}\n")


def _write_coco(log: DetectionLog, write: Write, folder: Path | None) -> Steps:
    """Images go to the file at once, annotations to an unnamed file in ``folder`` until all images are written."""
    num_images = num_boxes = 0
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder) as annotations:
        head = coco.header(Labels.empty(classes=log.classes, sensor=log.sensor))
        write(f'{_open_object(head)},\n "images": [')
        while not isinstance(given := (yield), Mapping):
            labels = labels_from_frames([given], log.classes, log.sensor)
            num_images += 1
            for entry in coco.annotation_entries(labels, num_boxes + 1, num_images):
                annotations.write(f"{',' if num_boxes else ''}\n  {json.dumps(entry)}")
                num_boxes += 1
            (image,) = coco.image_entries(labels, num_images)
            write(f"{',' if num_images > 1 else ''}\n  {json.dumps(image)}")
        write('],\n "annotations": [')
        annotations.seek(0)
        for line in annotations:
            write(line)
        write("]\n}\n")


_FORMATS = {"json": _write_json, "jsonl": _write_lines, "csv": _write_csv, "coco": _write_coco}
_GROWING = ("jsonl", "csv")  # each frame can be read at once


def _line(content: Mapping[str, Any]) -> str:
    return f"{json.dumps(content, ensure_ascii=False, allow_nan=False)}\n"


def _rows(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _write_growing(output: LineOutput, format: str, log: DetectionLog) -> Steps:
    """Write lines that can be read at once; if this generator is closed early, they stay."""
    with output:
        yield from _FORMATS[format](log, output.write, None)
        output.settle()


def _write_draft(path: PathLike, format: str, log: DetectionLog) -> Steps:
    """Write a draft that gets its name at the end; if this generator is closed early, it is discarded."""
    target = find_target(path, text=True)
    with Draft(target) as draft, disk_faults(target), draft.open() as file:

        def write(text: str) -> None:
            # bytes of a file name that are not UTF-8 are escaped as in JSON
            file.write(text.encode("utf-8", "backslashreplace"))

        yield from _FORMATS[format](log, write, target.path.parent if target.kind == "file" else None)


class DetectionFiles:
    """The files of one run: :meth:`add` every frame, then :meth:`finish`. Use it in a ``with`` block.

    Args:
        log: the run, without its frames, and with the facts that are known at the beginning.
        rotate_bytes: size of CSV and JSON lines after which a further file begins; None for one file of any size.
        files: the path of each file (json, jsonl, csv, coco), None for none; ``"-"`` is standard output. CSV and JSON
            lines are written in place, so that each frame can be read at once; JSON and COCO get their names when they
            are complete. CSV and JSON lines also go to a listener, ``"tcp:HOST:PORT"``, which a live run never waits
            for: lines that it does not take are dropped and counted.
    """

    def __init__(self, log: DetectionLog, *, rotate_bytes: int | None = None, **files: PathLike | None) -> None:
        self._open: list[Steps] = []
        self._outputs: list[LineOutput] = []
        try:
            for format, path in files.items():
                if path is None:
                    continue
                if format in _GROWING:
                    output = open_lines(path, rotate_bytes=rotate_bytes, waits=not log.facts.get("live"))
                    self._outputs.append(output)
                    self._open.append(_write_growing(output, format, log))
                else:
                    self._open.append(_write_draft(path, format, log))
                next(self._open[-1])
        except BaseException:
            self.close()
            raise

    def add(self, frame: DetectionFrame) -> None:
        """Write the next frame into every file."""
        for file in self._open:
            file.send(frame)

    def count_dropped_lines(self) -> dict[str, int]:
        """Wait a short time for listeners, and return the number of lines that each of them did not take, by name."""
        for output in self._outputs:
            output.settle()
        return {output.name: output.dropped_lines for output in self._outputs if output.dropped_lines}

    def series(self) -> dict[str, tuple[str, ...]]:
        """The files of each series (``rotate_bytes``), by the name that was given."""
        return {output.name: output.files for output in self._outputs if output.files}

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Complete every file, even if one of them fails; ``facts`` are known at the end, such as the summary."""
        failed: Exception | None = None
        while self._open:
            try:
                self._open.pop(0).send(facts)
            except StopIteration:
                pass
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Give up unfinished files: drafts are discarded, growing files keep their content."""
        while self._open:
            self._open.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
