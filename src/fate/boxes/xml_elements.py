"""XML files of labelling programs as elements that know their line.

A document type is refused: labels need none, and its entities can expand without limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from xml.parsers import expat

from fate.errors import FormatError
from fate.quantities import parse_number

MAX_DEPTH = 32  # label files have up to eight levels


@dataclass
class Element:
    """An element of XML."""

    tag: str
    line: int  #: where it begins, counted from 1
    attributes: dict[str, str] = field(default_factory=dict)
    text: str = ""
    inner: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        """The elements of this tag directly inside."""
        return [each for each in self.inner if each.tag == tag]

    def one(self, tag: str) -> Element:
        """The only element of this tag directly inside."""
        found = self.all(tag)
        if len(found) != 1:
            raise FormatError(f"line {self.line}: <{self.tag}> has {len(found)} <{tag}>; expected one; fix it")
        return found[0]

    def number(self) -> float:
        """The text as a number."""
        return _number(self.text, f"line {self.line}: <{self.tag}>")

    def attribute(self, name: str) -> str:
        """An attribute that must exist and hold text."""
        value = self.attributes.get(name, "").strip()
        if not value:
            raise FormatError(f'line {self.line}: <{self.tag}> has no {name}; expected {name}="…"; add it')
        return value

    def attribute_number(self, name: str) -> float:
        """An attribute as a number."""
        return _number(self.attribute(name), f"line {self.line}: {name} of <{self.tag}>")

    def attribute_index(self, name: str, limit: int) -> int:
        """An attribute as a whole number from 0 to below ``limit``."""
        value = self.attribute_number(name)
        if value % 1 or not 0 <= value < limit:
            raise FormatError(
                f"line {self.line}: {name} of <{self.tag}> is {self.attribute(name)[:40]!r}; expected a whole number"
                f" from 0 to {limit - 1}; fix it"
            )
        return int(value)


def parse_xml(data: bytes, expected: str) -> Element:
    """Return the outermost element of an XML document; an error ends with what was ``expected``."""
    parser = expat.ParserCreate()
    document = Element("", 0)
    open_elements = [document]

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(open_elements) > MAX_DEPTH:
            raise FormatError(
                f"line {parser.CurrentLineNumber}: more than {MAX_DEPTH} levels are nested; expected {expected}"
            )
        element = Element(tag, parser.CurrentLineNumber, attributes)
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
        raise FormatError(f"line {error.lineno}: is not valid XML ({what}); expected {expected}") from error
    except FormatError:
        raise
    except (LookupError, ValueError) as error:
        raise FormatError(f"line 1: its encoding cannot be read ({error}); write it as UTF-8") from error
    return document.inner[0]


def _number(text: str, name: str) -> float:
    value = parse_number(text)
    if value is None or not math.isfinite(value):
        raise FormatError(f"{name} is {text.strip()[:40]!r}; expected a number; fix it")
    return value
