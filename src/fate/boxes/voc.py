"""Pascal VOC annotations: one XML file is one image, so one labelled time, which the caller gives.

    <annotation>
      <size><width>346</width><height>260</height></size>
      <object>
        <name>person</name>
        <bndbox><xmin>41</xmin><ymin>122</ymin><xmax>73</xmax><ymax>210</ymax></bndbox>
      </object>
    </annotation>

Corners are taken as they are written. (The original dataset counts pixels from 1 and includes the last one; labelling
programs do not, and the difference is one pixel.) A file without objects is a labelled time without boxes. Parts of
objects and all other elements are ignored. Files that declare a document type are refused: annotations need none, and
its entities can expand without limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fate.boxes.labels import Labels
from fate.boxes.tool_export import ToolBox, ToolExport
from fate.boxes.xml_elements import Element, parse_xml
from fate.errors import FormatError
from fate.text import suggest_name

_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def decode(data: bytes, t_us: int, classes: Sequence[str] | None = None) -> Labels:
    """Labels at the time ``t_us`` from the bytes of an annotation file.

    Class ids are indices into ``classes``, which must hold every name of the file; if it is None, into the sorted names
    of the file.
    """
    root = _read_root(data)
    names, boxes = [], []
    for thing in root.all("object"):
        name = thing.one("name")
        names.append(_class_of(name))
        if classes is not None and names[-1] not in classes:
            raise FormatError(
                f"line {name.line}: the class {names[-1][:40]!r} is not among {', '.join(classes)}"
                f"{suggest_name(names[-1], classes)}; add it to classes"
            )
        boxes.append(_corners(thing.one("bndbox")))
    known = list(classes) if classes is not None else sorted(set(names))
    columns: dict[str, Any] = {corner: [box[i] for box in boxes] for i, corner in enumerate(("x1", "y1", "x2", "y2"))}
    columns |= {"t_us": [t_us] * len(boxes), "class_id": [known.index(name) for name in names]}
    return Labels(**columns, labelled_us=[t_us], classes=known or None, sensor=_sensor(root))


def add_to_export(data: bytes, file: str, export: ToolExport) -> None:
    """Add the boxes of an annotation file of this name to an export; its frame is the image that the file names."""
    root = _read_root(data)
    named = root.all("filename")
    frame = (named[0].text.strip() if named else "") or file
    export.add_frame(frame, file)
    export.add_size(_sensor(root), file)
    for thing in root.all("object"):
        with export.collecting(file):
            x1, y1, x2, y2 = _corners(thing.one("bndbox"))
            where = f"{file}: line {thing.line}"
            export.boxes.append(ToolBox(where, frame, _class_of(thing.one("name")), (x1, y1, x2, y2)))


def _read_root(data: bytes) -> Element:
    root = parse_xml(data, "a Pascal VOC annotation")
    if root.tag != "annotation":
        raise FormatError(f"line {root.line}: begins with <{root.tag}>; Pascal VOC begins with <annotation>; give that")
    return root


def _class_of(name: Element) -> str:
    text = name.text.strip()
    if not text:
        raise FormatError(f"line {name.line}: <name> is empty; expected the class of the object; add it")
    return text


def _corners(box: Element) -> list[float]:
    x1, y1, x2, y2 = corners = [box.one(name).number() for name in _CORNERS]
    if x2 < x1 or y2 < y1:
        raise FormatError(
            f"line {box.line}: the box is {x1:g} {y1:g} {x2:g} {y2:g}; expected xmin ≤ xmax and ymin ≤ ymax; fix it"
        )
    return corners


def _sensor(root: Element) -> tuple[int, int] | None:
    """(height, width), or None if the file has none; some programs write a size of 0."""
    if not root.all("size"):
        return None
    size = root.one("size")
    height, width = (size.one(side).number() for side in ("height", "width"))
    if height == 0 or width == 0:
        return None
    if min(height, width) < 0 or height % 1 or width % 1:
        raise FormatError(
            f"line {size.line}: the size is {width:g}×{height:g}; expected whole numbers of pixels; fix it"
        )
    return int(height), int(width)
