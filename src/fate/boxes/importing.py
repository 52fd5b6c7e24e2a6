"""Read the export of a labelling program as :class:`Labels` of one recording.

The export is ground truth because a person made it. Files of detections are refused.

=============  ===============================================  ===============================
program        file                                             module
=============  ===============================================  ===============================
CVAT           ``annotations.xml`` (for video, for images)      :mod:`fate.boxes.cvat`
CVAT, others   COCO ``*.json``, images by name                  :mod:`fate.boxes.coco`
CVAT, others   MOT ``gt.txt``, with ``labels.txt`` beside it    :mod:`fate.boxes.mot`
CVAT, others   a folder of Pascal VOC ``*.xml``                 :mod:`fate.boxes.voc`
Label Studio   ``*.json`` (pictures and videos)                 :mod:`fate.boxes.label_studio`
=============  ===============================================  ===============================
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fate.boxes import coco, cvat, label_studio, mot, voc
from fate.boxes.frame_times import ConstantRate, FrameTimes, picture_prefix, read_frame_times
from fate.boxes.label_files import naming_errors, recognise
from fate.boxes.labels import COLUMNS, Labels
from fate.boxes.tool_export import Corners, Frame, ToolBox, ToolExport
from fate.errors import FateError, FormatError, list_names
from fate.files import read_bytes, read_text
from fate.json_files import parse_json
from fate.text import plural, suggest_name

#: Programs write rounded numbers: a box may reach this far over the edge, px; it is cut without a question.
ROUNDING = 0.02
#: Problems that the message of an error has.
SHOWN_PROBLEMS = 5
MAX_BYTES = 1 << 30
EXPECTED = "an export of CVAT, Label Studio, COCO, MOT text or a folder of Pascal VOC"


class ExportError(FormatError):
    """An export with problems; ``problems`` has all of them, the message the first ones."""

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        shown, rest = problems[:SHOWN_PROBLEMS], len(problems) - SHOWN_PROBLEMS
        more = f"; and {rest} more" if rest > 0 else ""
        count = f"has {len(problems)} problems: " if len(problems) > 1 else ""
        super().__init__(f"{path}: {count}{'; '.join(shown)}{more}; nothing was read")


@dataclass(frozen=True)
class ImportedLabels:
    """The labels of an export."""

    labels: Labels
    tool: str  #: the program and format, such as "CVAT for video"
    notes: tuple[str, ...]  #: sentences with counts: what was cut or left out, and what nobody changed


def read_export(
    path: str | os.PathLike[str],
    *,
    frames: str | os.PathLike[str] | None = None,
    fps: float | None = None,
    start_us: int = 0,
    span_us: tuple[int, int] | None = None,
    recording: str | os.PathLike[str] | None = None,
    sensor: tuple[int, int] | None = None,
    classes: Sequence[str] | None = None,
    clip: bool = False,
    skip_empty: bool = False,
) -> ImportedLabels:
    """Read the export of a labelling program; an error lists every problem, and then nothing is read.

    Args:
        path: the file, or a folder of Pascal VOC files.
        frames: the ``frames.csv`` of ``fate label-kit`` with the time of each frame; give this or ``fps``.
        fps: frames per second, constant.
        start_us: time of frame 0 with ``fps``, µs.
        span_us: first and last time of the recording; a frame outside is a problem. None if it is not known.
        recording: file of the recording; a time table with pictures of another one is refused. None to accept any.
        sensor: (height, width) of the recording in pixels, for files that have no size; refused if images differ.
        classes: all class names in the order of their ids. Unless given: as the file lists them, else sorted.
        clip: cut boxes at the edge of the frame; otherwise a box that reaches over it is a problem.
        skip_empty: frames without boxes are not labelled; otherwise they are labelled, and have no objects.

    Example:
        >>> fate.read_export("annotations.xml", frames="kit/frames.csv").labels              # doctest: +SKIP
    """
    if (frames is None) == (fps is None):
        raise FateError(f"frames={frames!r} and fps={fps!r} were given; frame numbers become times by one of them")
    Labels.empty(classes=classes, sensor=sensor)  # a wrong argument is not an error of the file
    times = ConstantRate(fps, start_us) if fps is not None else read_frame_times(frames or "")
    if recording is not None and times.recording not in (None, picture_prefix(recording)):
        raise FateError(
            f"{frames}: has pictures of the recording {times.recording}, and {os.fspath(recording)} was given; give the"
            " time table of this recording"
        )
    source = Path(path)
    with naming_errors(source, EXPECTED, FormatError):
        export = _decode(source, sensor, classes)
        size = sensor or export.sensor
        if size is None:
            raise FormatError(
                f"{export.tool} has no size of the frames; boxes are checked against it; give the recording, or"
                " sensor=(height, width)"
            )
    known = classes or export.classes or sorted({box.class_name for box in export.boxes})
    problems = [*export.problems, *_size_problems(export, size), *_class_problems(export, known)]
    used = {box.frame for box in export.boxes}
    found = {**{box.frame: box.where for box in export.boxes}, **export.frames}
    empty = len(found) - len(used)
    if skip_empty:
        found = {frame: where for frame, where in found.items() if frame in used}
    labelled = _find_times(found, times, span_us, problems)
    rows, cut = _check_boxes(export.boxes, size, clip, problems)
    if problems:
        raise ExportError(source, problems)
    notes = [*export.notes, *([f"{plural(cut, 'box', 'boxes')} cut at the edge of the frame"] if cut else [])]
    if empty and skip_empty:
        notes.append(f"{plural(empty, 'frame')} without boxes not labelled")
    elif empty:
        notes.append(
            f"{plural(empty, 'frame')} without boxes labelled as frames without objects; if nobody looked at them,"
            " leave them out with skip_empty=True"
        )
    ids = {name: index for index, name in enumerate(known)}
    values = [(labelled[box.frame], *corners, ids[box.class_name], box.track) for box, corners in rows]
    columns = {
        name: np.array([row[index] for row in values], np.float64 if 1 <= index <= 4 else np.int64)
        for index, name in enumerate(list(COLUMNS)[:7])
    }
    labels = Labels.from_unsorted(
        columns, labelled_us=sorted(labelled.values()), classes=list(known) or None, sensor=size
    )
    return ImportedLabels(labels, export.tool, tuple(notes))


def _decode(path: Path, sensor: tuple[int, int] | None, classes: Sequence[str] | None) -> ToolExport:
    if path.is_dir():
        files = sorted(path.glob("*.xml")) or sorted((path / "Annotations").glob("*.xml"))
        if not files:
            raise FormatError(
                "has no *.xml files; expected a folder of Pascal VOC annotations; give the file inside it"
            )
        export = ToolExport("Pascal VOC")
        for file in files:
            data = read_bytes(file, "Pascal VOC", MAX_BYTES)
            if re.search(rb"<annotations[\s>]", data[:4096]):
                raise FormatError(f"is a folder, and {file.name} in it is an export of CVAT; give the file {file}")
            with export.collecting(file.name):
                voc.add_to_export(data, file.name, export)
        return export
    data = read_bytes(path, EXPECTED, MAX_BYTES)
    kind = recognise(data)
    if kind == "voc":
        if re.search(rb"<annotation[\s>]", data[:4096]):
            raise FormatError("is one Pascal VOC annotation; expected the folder with all of them; give the folder")
        return cvat.decode(data)
    if kind == "coco":
        document = parse_json(data, str(path), EXPECTED)
        if label_studio.holds_tasks(document):
            return label_studio.decode(document, sensor)
        if isinstance(document, list):
            raise FormatError(
                "is a list without tasks of Label Studio; a list of COCO results holds detections, which are no ground"
                f" truth; expected {EXPECTED}"
            )
        return coco.decode_frames(document)
    if kind is not None:
        packed = "unpack it" if kind == "npz" else "it has times of its own; use it as it is"
        raise FormatError(f"is no text; expected {EXPECTED}; {packed}")
    if path.suffix.lower() == ".txt":
        names = path.with_name("labels.txt")
        if names.is_file():
            classes = [line.strip() for line in read_text(names).splitlines() if line.strip()]
        return mot.decode(data, classes)
    raise FormatError(f"starts with {data[:8]!r}; expected {EXPECTED}")


def _size_problems(export: ToolExport, sensor: tuple[int, int]) -> list[str]:
    if export.sensor in (None, sensor):
        return []
    height, width = export.sensor or (0, 0)
    return [
        f"the images have {width}×{height} pixels, and the recording {sensor[1]}×{sensor[0]}; label pictures of the"
        " size of the sensor"
    ]


def _class_problems(export: ToolExport, known: Sequence[str]) -> list[str]:
    """One problem for each unknown class, at its first box."""
    unknown: dict[str, list[str]] = {}
    for box in export.boxes:
        if box.class_name not in known:
            unknown.setdefault(box.class_name, []).append(box.where)
    return [
        f"{locations[0]}: the class {name[:40]!r} of {plural(len(locations), 'box', 'boxes')} is not among"
        f" {', '.join(known)}{suggest_name(name, known)}; rename it, or add it to the classes"
        for name, locations in unknown.items()
    ]


def _find_times(
    frames: Mapping[Frame, str], times: FrameTimes, span_us: tuple[int, int] | None, problems: list[str]
) -> dict[Frame, int]:
    """The time of each frame in µs; frames without times of their own are one problem for each place in the file."""
    found: dict[Frame, int] = {}
    taken: dict[int, Frame] = {}
    without: dict[str, list[Frame]] = {}
    outside: dict[str, list[Frame]] = {}
    for frame, where in frames.items():
        time = times.time_of(frame)
        if time is None:
            without.setdefault(where, []).append(frame)
        elif span_us is not None and not span_us[0] <= time <= span_us[1]:
            outside.setdefault(where, []).append(frame)
        elif taken.setdefault(time, frame) != frame:
            problems.append(f"{where}: the frames {taken[time]!r} and {frame!r} are both at {time} µs; remove one")
        else:
            found[frame] = time
    for where, named in without.items():
        problems.append(
            f"{where}: {_listed(named)} without a time; {times.expected()}; give the time table of these frames"
        )
    for where, named in outside.items():
        first, last = span_us or (0, 0)
        problems.append(
            f"{where}: {_listed(named)} outside the recording, at {times.time_of(named[0])} µs; the recording goes from"
            f" {first} to {last} µs; give the time table of this recording"
        )
    return found


def _listed(frames: Sequence[Frame]) -> str:
    """``"2 frames (7, 8)"``."""
    return f"{plural(len(frames), 'frame')} ({list_names(frames)})"


def _check_boxes(
    boxes: Sequence[ToolBox], sensor: tuple[int, int], clip: bool, problems: list[str]
) -> tuple[list[tuple[ToolBox, Corners]], int]:
    """All boxes with their corners inside the frame, and how many were cut; a box that is wrong is a problem."""
    rows: list[tuple[ToolBox, Corners]] = []
    seen: dict[tuple[object, ...], str] = {}
    num_cut, size = 0, f"{sensor[1]}×{sensor[0]} pixels"
    for box in boxes:
        corners = _cut(box.corners, sensor)
        keys: list[tuple[object, ...]] = [(box.frame, box.class_name, box.corners)]
        keys += [(box.frame, box.track)] if box.track >= 0 else []
        other = next((seen[key] for key in keys if key in seen), None)
        seen |= dict.fromkeys(keys, box.where)
        shown = f"{box.where}: the box {' '.join(f'{value:g}' for value in box.corners)} in frame {box.frame!r}"
        is_cut = max(abs(new - old) for new, old in zip(corners, box.corners, strict=True)) > ROUNDING
        if other is not None:
            problems.append(f"{shown} is a duplicate of the one at {other}; remove one of them")
        elif not _has_area(box.corners):
            problems.append(f"{shown} has no area; expected x2 > x1 and y2 > y1; draw it again")
        elif not _has_area(corners):
            problems.append(f"{shown} lies outside {size}; delete it")
        elif is_cut and not clip:
            problems.append(f"{shown} reaches over the edge of {size}; correct it, or cut it with clip=True")
        else:
            num_cut += is_cut
            rows.append((box, corners))
    return rows, num_cut


def _has_area(corners: Corners) -> bool:
    return corners[2] > corners[0] and corners[3] > corners[1]


def _cut(corners: Corners, sensor: tuple[int, int]) -> Corners:
    height, width = sensor
    x1, y1, x2, y2 = corners
    return min(max(x1, 0), width), min(max(y1, 0), height), min(max(x2, 0), width), min(max(y2, 0), height)
