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

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from fate.boxes.labels import Labels
from fate.errors import FormatError
from fate.text import suggest_name

_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_MAX_DEPTH = 32  # an annotation has four levels, and five with parts of objects


@dataclass
class _Element:
    """An element of XML."""

    tag: str
    line: int  #: where it begins, counted from 1
    text: str = ""
    inner: list[_Element] = field(default_factory=list)

    def all(self, tag: str) -> list[_Element]:
        """The elements of this tag directly inside."""
        return [each for each in self.inner if each.tag == tag]

    def one(self, tag: str) -> _Element:
        """The only element of this tag directly inside."""
        found = self.all(tag)
        if len(found) != 1:
            raise FormatError(f"line {self.line}: <{self.tag}> has {len(found)} <{tag}>; expected one; fix it")
        return found[0]

    def number(self) -> float:
        """The text as a number."""
        try:
            value = float(self.text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise FormatError(
                f"line {self.line}: <{self.tag}> is {self.text.strip()[:40]!r}; expected a number; fix it"
            )
        return value


def decode(data: bytes, t_us: int, classes: Sequence[str] | None = None) -> Labels:
    """Labels at the time ``t_us`` from the bytes of an annotation file.

    Class ids are indices into ``classes``, which must hold every name of the file; if it is None, into the sorted names
    of the file.
    """
    root = _parse(data)
    if root.tag != "annotation":
        raise FormatError(f"line {root.line}: begins with <{root.tag}>; Pascal VOC begins with <annotation>; give that")
    names, boxes = [], []
    for thing in root.all("object"):
        name = thing.one("name")
        names.append(name.text.strip())
        if not names[-1]:
            raise FormatError(f"line {name.line}: <name> is empty; expected the class of the object; add it")
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


def _corners(box: _Element) -> list[float]:
    x1, y1, x2, y2 = corners = [box.one(name).number() for name in _CORNERS]
    if x2 < x1 or y2 < y1:
        raise FormatError(
            f"line {box.line}: the box is {x1:g} {y1:g} {x2:g} {y2:g}; expected xmin ≤ xmax and ymin ≤ ymax; fix it"
        )
    return corners


def _sensor(root: _Element) -> tuple[int, int] | None:
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


def _parse(data: bytes) -> _Element:
    """The outermost element of an XML document."""
    parser = expat.ParserCreate()
    document = _Element("", 0)
    open_elements = [document]

    def start(tag: str, _attributes: dict[str, str]) -> None:
        if len(open_elements) > _MAX_DEPTH:
            raise FormatError(
                f"line {parser.CurrentLineNumber}: more than {_MAX_DEPTH} levels are nested; expected four"
            )
        element = _Element(tag, parser.CurrentLineNumber)
        open_elements[-1].inner.append(element)
        open_elements.append(element)

    def end(_tag: str) -> None:
        open_elements.pop()

    def add_text(text: str) -> None:
        open_elements[-1].text += text

    def refuse(*_: object) -> None:
        raise FormatError(
            f"line {parser.CurrentLineNumber}: declares a document type; annotations have none; remove <!DOCTYPE>"
        )

    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = add_text, refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        what = expat.ErrorString(error.code)
        raise FormatError(
            f"line {error.lineno}: is not valid XML ({what}); expected a Pascal VOC annotation"
        ) from error
    except FormatError:
        raise
    except (LookupError, ValueError) as error:
        raise FormatError(f"line 1: its encoding cannot be read ({error}); write it as UTF-8") from error
    return document.inner[0]
