"""JSON of Label Studio: a list of tasks, each with the annotations of one picture or one video.

Boxes are in percent of the picture. Pictures have results of type ``rectanglelabels``. Videos have results of type
``videorectangle`` with a sequence of keyframes: frames count from 1, and after a keyframe with ``enabled`` false the
object is not visible until the next one. Predictions in the file are left out: they are no ground truth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fate.boxes.tool_export import MOST_FRAMES, Corners, Frame, Key, ToolBox, ToolExport, interpolate_track
from fate.errors import FormatError
from fate.json_files import finite_number, list_of, object_of, whole_number
from fate.text import plural

VIDEOS = (".mp4", ".webm", ".mov", ".avi", ".mkv")
EXPECTED = "the JSON export of Label Studio, a list of tasks with annotations"


def holds_tasks(document: Any) -> bool:
    """Whether a JSON document is an export of Label Studio."""
    first = document[0] if isinstance(document, list) and document else None
    return isinstance(first, dict) and "data" in first


def decode(document: list[Any], sensor: tuple[int, int] | None) -> ToolExport:
    """Return the boxes of an export.

    Args:
        document: the parsed JSON.
        sensor: (height, width) in pixels, for videos, whose results have no size; None if it is not known.
    """
    export = ToolExport("Label Studio")
    unlabelled = guesses = videos = 0
    for index, task in enumerate(document):
        where = f"task {task['id'] if isinstance(task, dict) and isinstance(task.get('id'), int) else index}"
        with export.collecting():
            content = object_of(task, where)
            guesses += bool(content.get("predictions"))
            annotations = [
                each
                for each in list_of(content.get("annotations"), f"annotations of {where}", dict)
                if not each.get("was_cancelled")
            ]
            if len(annotations) > 1:
                raise FormatError(f"{where}: has {len(annotations)} annotations; expected one; delete the others")
            if not annotations:
                unlabelled += 1
                continue
            results = list_of(annotations[0].get("result"), f"result of {where}", dict)
            if any(result.get("type") == "videorectangle" for result in results):
                videos += 1
                _add_video(results, where, sensor, export)
            else:
                _add_picture(content, results, where, export)
    if videos and (videos > 1 or len(document) > 1):
        export.problems.append(f"has {len(document)} tasks with videos; expected one recording; export its task alone")
    if unlabelled:
        export.notes.append(f"{plural(unlabelled, 'task')} without annotations not labelled")
    if guesses:
        export.notes.append(f"the predictions of {plural(guesses, 'task')} left out, which are no ground truth")
    return export


def _add_picture(task: dict[str, Any], results: list[dict[str, Any]], where: str, export: ToolExport) -> None:
    data = object_of(task.get("data"), f"data of {where}")
    names = [value for value in (task.get("file_upload"), data.get("image"), *data.values()) if isinstance(value, str)]
    if not names:
        raise FormatError(f'{where}: its data name no picture; expected "image"; export the tasks again')
    frame: Frame = _file_name(names[0])
    if not results and (data.get("video") or Path(str(frame)).suffix.lower() in VIDEOS):
        raise FormatError(
            f"{where}: is a video without boxes, whose number of frames is not in the file; label an object in it, or"
            " leave it out"
        )
    export.add_frame(frame, where)
    for number, result in enumerate(results):
        location = f"{where} result {number}"
        with export.collecting():
            _check_type(result, "rectanglelabels", location)
            size = tuple(
                whole_number(result.get(f"original_{side}"), f"{location}: original_{side}", 1, 65_536)
                for side in ("height", "width")
            )
            export.add_size((size[0], size[1]), location)
            value = object_of(result.get("value"), f"{location}: value")
            corners = _corners(value, location, (size[0], size[1]))
            export.boxes.append(ToolBox(location, frame, _label(value, "rectanglelabels", location), corners))


def _add_video(results: list[dict[str, Any]], where: str, sensor: tuple[int, int] | None, export: ToolExport) -> None:
    if sensor is None:
        raise FormatError(
            f"{where}: videos have boxes in percent without a size; give the recording, or sensor=(height, width)"
        )
    tracks: list[tuple[list[Key], str]] = []
    for number, result in enumerate(results):
        location = f"{where} result {number}"
        with export.collecting():
            _check_type(result, "videorectangle", location)
            value = object_of(result.get("value"), f"{location}: value")
            count = whole_number(value.get("framesCount"), f"{location}: framesCount", 1, MOST_FRAMES)
            export.frames |= dict.fromkeys(range(len(export.frames), count), where)
            keys = {}
            for entry in list_of(value.get("sequence"), f"{location}: sequence", dict):
                frame = whole_number(entry.get("frame"), f"{location}: frame", 1, count) - 1
                hidden = entry.get("enabled") is False
                if frame in keys:
                    raise FormatError(f"{location}: has two keyframes at frame {frame + 1}; remove one")
                keys[frame] = (Key(location, frame, _corners(entry, location, sensor), False), hidden)
            tracks.append((_with_ends(keys, count), _label(value, "labels", location)))
    frames = sorted(frame for frame in export.frames if isinstance(frame, int))
    for number, (ordered, label) in enumerate(tracks):
        export.boxes += interpolate_track(ordered, frames, label, number)


def _with_ends(keys: dict[int, tuple[Key, bool]], count: int) -> list[Key]:
    """All keyframes, and a hidden key after each one that disables the object: its own box is still visible.

    If the last keyframe does not disable the object, it stays where it is up to the last of the ``count`` frames.
    """
    made = []
    for frame, (key, ends) in keys.items():
        made.append(key)
        if ends and frame + 1 not in keys:
            made.append(Key(key.where, frame + 1, key.corners, True))
        elif not ends and frame == max(keys) and frame < count - 1:
            made.append(Key(key.where, count - 1, key.corners, False))
    return made


def _check_type(result: dict[str, Any], expected: str, where: str) -> None:
    if result.get("type") != expected:
        raise FormatError(f"{where}: has the type {result.get('type')!r:.40}; FATE reads {expected}; delete it")


def _file_name(address: str) -> str:
    """The file of a picture: in local storage, its address names it as ``?d=FOLDER/FILE``."""
    parts = urlsplit(address)
    return unquote(parse_qs(parts.query).get("d", [parts.path])[0])


def _label(value: dict[str, Any], key: str, where: str) -> str:
    labels = list_of(value.get(key), f"{where}: {key}", str)
    if len(labels) != 1:
        raise FormatError(f"{where}: has {len(labels)} classes ({', '.join(labels)[:60]}); expected one; choose it")
    return str(labels[0])


def _corners(value: dict[str, Any], where: str, sensor: tuple[int, int]) -> Corners:
    x, y, w, h = (finite_number(value.get(key), f"{where}: {key}") for key in ("x", "y", "width", "height"))
    if finite_number(value.get("rotation", 0), f"{where}: rotation") % 360:
        raise FormatError(f"{where}: the box is rotated by {value['rotation']:g}°; expected an upright box; draw one")
    height, width = sensor
    return x * width / 100, y * height / 100, (x + w) * width / 100, (y + h) * height / 100
