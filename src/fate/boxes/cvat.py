"""XML of CVAT, version 1.1: "CVAT for video" (tracks) and "CVAT for images".

    <annotations>
      <meta><task><start_frame>0</start_frame><stop_frame>9</stop_frame>
        <labels><label><name>car</name></label></labels>
        <original_size><width>346</width><height>260</height></original_size></task></meta>
      <track id="0" label="car" source="manual">
        <box frame="0" keyframe="1" outside="0" xtl="41.00" ytl="122.00" xbr="73.00" ybr="210.00"/>
        <box frame="5" keyframe="1" outside="1" xtl="51.00" ytl="122.00" xbr="83.00" ybr="210.00"/>
      </track>
      <image id="0" name="000000.png" width="346" height="260">
        <box label="car" source="manual" xtl="41.00" ytl="122.00" xbr="73.00" ybr="210.00"/>
      </image>
    </annotations>

CVAT writes every frame of a track; other programs write keyframes alone, and boxes between them are interpolated
linearly. From a box with ``outside="1"`` on, the object is not visible. Frames count from 0.

:func:`encode_guess` writes detections for CVAT to import. Such a file says that it is a guess, and :func:`decode`
refuses it: it becomes ground truth when a person has corrected it and CVAT has exported it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

import numpy as np

from fate.boxes.labels import Labels
from fate.boxes.tool_export import MOST_FRAMES, Corners, Key, ToolBox, ToolExport, interpolate_track
from fate.boxes.xml_elements import Element, parse_xml
from fate.errors import FormatError
from fate.text import plural

EXPECTED = "an export of CVAT (CVAT for video 1.1 or CVAT for images 1.1)"
GUESS = "first_guess"
#: Elements that are no boxes; a tag is about a whole image.
_SHAPES = ("polygon", "polyline", "points", "mask", "ellipse", "cuboid", "skeleton")


def decode(data: bytes) -> ToolExport:
    """Return the boxes of an export; damaged XML is an error, wrong boxes are problems of the result."""
    root = parse_xml(data, EXPECTED)
    if root.tag != "annotations":
        raise FormatError(f"line {root.line}: begins with <{root.tag}>; expected {EXPECTED}")
    meta = [each for outer in root.all("meta") for each in outer.inner]
    if any(each.tag == GUESS for each in meta):
        raise FormatError(
            "holds detections that fate label-kit wrote as a first guess, which are no ground truth; import it into"
            " CVAT, correct the boxes, and give the export of CVAT"
        )
    tasks = [each for each in meta if each.tag in ("task", "job")]
    tasks += [task for each in meta if each.tag == "project" for tasks in each.all("tasks") for task in tasks.inner]
    if len(tasks) > 1:
        raise FormatError(
            f"line {tasks[1].line}: a second task begins; expected the task of one recording; export each task alone"
        )
    tracks, images = root.all("track"), root.all("image")
    if tracks and images:
        raise FormatError(
            f"line {images[0].line}: an <image> follows tracks; CVAT writes one of them; export the task again"
        )
    export = ToolExport("CVAT for images" if images else "CVAT for video")
    export.classes = _class_names(meta)
    if images:
        for image in images:
            with export.collecting():
                _add_image(image, export)
    else:
        with export.collecting():
            for size in (each for outer in (*root.all("meta"), *tasks) for each in outer.all("original_size")):
                sides = [int(size.one(side).number()) for side in ("height", "width")]
                export.add_size((sides[0], sides[1]), f"line {size.line}")
            _add_tracks(tracks, tasks[0] if tasks else None, export)
    automatic = sum(
        box.attributes.get("source", tracked.attributes.get("source")) == "auto"
        for tracked in (*tracks, *images)
        for box in tracked.all("box")
    )
    if automatic:
        export.notes.append(f"{plural(automatic, 'box', 'boxes')} of an automatic source that nobody changed in CVAT")
    tags = sum(len(image.all("tag")) for image in (root, *images))
    if tags:
        export.notes.append(f"{plural(tags, 'tag')} of whole images left out")
    return export


def encode_guess(labels: Labels, files: Mapping[int, str], detector: str) -> bytes:
    """Return detections as "CVAT for images 1.1", marked as a guess.

    Args:
        labels: the detections, with classes and sensor, at some of the times of ``files``.
        files: the name of the image by time in µs, in the order of the frames.
        detector: name of the detector.
    """
    height, width = labels.sensor or (0, 0)
    names = labels.classes or ()
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<annotations>", "  <version>1.1</version>", "  <meta>"]
    lines.append(f"    <{GUESS} detector={quoteattr(detector)}/>")
    lines.append("  </meta>")
    for index, (time, file) in enumerate(files.items()):
        lines.append(f'  <image id="{index}" name={quoteattr(file)} width="{width}" height="{height}">')
        rows = labels.between(time, time + 1)
        inside = np.clip(rows.boxes, 0, (width, height, width, height))
        for box, class_id in zip(inside.tolist(), rows.class_id.tolist(), strict=True):
            x1, y1, x2, y2 = box
            corners = f'xtl="{x1:.2f}" ytl="{y1:.2f}" xbr="{x2:.2f}" ybr="{y2:.2f}"'
            label = quoteattr(names[class_id])
            lines.append(f'    <box label={label} source="auto" occluded="0" {corners} z_order="0"/>')
        lines.append("  </image>")
    return "\n".join([*lines, "</annotations>", ""]).encode()


def _class_names(meta: list[Element]) -> tuple[str, ...] | None:
    """All class names in the order of the task; None if the file lists none."""
    names = [
        name.text.strip()
        for about in meta
        for labels in about.all("labels")
        for label in labels.all("label")
        for name in label.all("name")
    ]
    return tuple(dict.fromkeys(names)) or None


def _add_image(image: Element, export: ToolExport) -> None:
    name, where = image.attribute("name"), f"line {image.line}"
    export.add_frame(name, where)
    if "width" in image.attributes:
        sides = (image.attribute_index(side, 65_537) for side in ("height", "width"))
        export.add_size((next(sides), next(sides)), where)
    for shape in image.inner:
        with export.collecting():
            _refuse_shape(shape)
            if shape.tag == "box":
                box = ToolBox(f"line {shape.line}", name, shape.attribute("label"), _corners(shape))
                export.boxes.append(box)


def _add_tracks(tracks: list[Element], task: Element | None, export: ToolExport) -> None:
    if task is not None:
        export.frames = dict.fromkeys(_frames_of(task), f"line {task.line}")
    parsed: list[tuple[Element, str, list[Key]]] = []
    damaged: set[int] = set()  # lines of tracks that lack a key, between whose keys nothing is interpolated
    for track in tracks:
        before = len(export.problems)
        with export.collecting():
            parsed.append((track, track.attribute("label"), _keys(track, export)))
        if len(export.problems) > before:
            damaged.add(track.line)
    if task is None:  # nothing is known about frames without boxes
        for frame in sorted({key.frame for _, _, keys in parsed for key in keys}):
            export.frames[frame] = "line 1"
    frames = sorted(frame for frame in export.frames if isinstance(frame, int))
    for number, (track, label, keys) in enumerate(parsed):
        identity = number
        if "id" in track.attributes:
            with export.collecting():
                identity = track.attribute_index("id", 2**31)
        if keys:
            export.boxes += interpolate_track(keys, () if track.line in damaged else frames, label, identity)


def _keys(track: Element, export: ToolExport) -> list[Key]:
    keys: dict[int, Key] = {}
    for shape in track.inner:
        with export.collecting():
            _refuse_shape(shape)
            if shape.tag != "box":
                continue
            frame, where = shape.attribute_index("frame", MOST_FRAMES), f"line {shape.line}"
            if frame in keys:
                raise FormatError(
                    f"{where}: the track has a box in frame {frame} already, in {keys[frame].where}; remove one"
                )
            hidden = shape.attributes.get("outside", "0").strip().lower() in ("1", "true")
            keys[frame] = Key(where, frame, _corners(shape), hidden)
    return list(keys.values())


def _frames_of(task: Element) -> range:
    """The numbers of all frames of a task."""

    def whole(tag: str) -> int | None:
        found = task.all(tag)
        value = found[0].number() if found and found[0].text.strip() else None
        if value is None or (value % 1 == 0 and 0 <= value < MOST_FRAMES):
            return None if value is None else int(value)
        raise FormatError(
            f"line {found[0].line}: <{tag}> is {found[0].text.strip()[:40]!r}; expected a whole number from 0 to"
            f" {MOST_FRAMES - 1}; export the task again"
        )

    start, stop, size = whole("start_frame") or 0, whole("stop_frame"), whole("size")
    step = next((re.search(r"step\s*=\s*([1-9]\d{0,6})\s*$", each.text) for each in task.all("frame_filter")), None)
    every = int(step[1]) if step else 1
    if stop is None and size is None:
        raise FormatError(f"line {task.line}: <{task.tag}> has no <stop_frame> and no <size>; export the task again")
    return range(start, start + every * (size or 0) if stop is None else stop + 1, every)


def _refuse_shape(shape: Element) -> None:
    if shape.tag in _SHAPES:
        raise FormatError(
            f"line {shape.line}: is a <{shape.tag}>; FATE reads boxes; draw a rectangle in its place, or delete it"
        )


def _corners(box: Element) -> Corners:
    if "rotation" in box.attributes and box.attribute_number("rotation") % 360:
        raise FormatError(
            f"line {box.line}: the box is rotated by {box.attributes['rotation'][:20]}°; expected an upright box; draw"
            " one around the object"
        )
    x1, y1, x2, y2 = (box.attribute_number(name) for name in ("xtl", "ytl", "xbr", "ybr"))
    return x1, y1, x2, y2
