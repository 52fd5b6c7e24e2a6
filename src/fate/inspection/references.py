"""Figures of the two public driving datasets, with which any other dataset is compared: ``references.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fate.yaml_files import load_yaml

RATE_RANGE_MEV_S = (0.2, 2.0)  # in which every single Gen1-like recording lies

UNKNOWN = "–"

Range = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One line of figures of a dataset beside the real ones."""

    keys: Sequence[str]  #: names of the figures, shown in this order with a slash between
    title: str  #: what they are, short
    meaning: str  #: what they are, in a sentence
    gen1: str = UNKNOWN  #: the real figures as text
    mpx: str = UNKNOWN  #: the real figures as text
    #: a range for each key, in the figure's own unit (a share is 0 to 1), for Gen1-like data
    accept: Sequence[Range] | None = None
    digits: int = 2  #: after the point
    percent: bool = False  #: the figures are shares and are shown in percent
    own: bool = False  #: the row is shown for a dataset with another sensor too

    def show(self, figures: dict[str, float]) -> str:
        """The figures as text; a dash for those that are not known."""
        scale = 100 if self.percent else 1
        texts = [f"{scale * figures[key]:.{self.digits}f}" if key in figures else UNKNOWN for key in self.keys]
        if set(texts) == {UNKNOWN}:
            return UNKNOWN
        return " / ".join(texts) + (" %" if self.percent else "")

    def accepted_text(self) -> str:
        """The ranges as text; empty without any."""
        if self.accept is None:
            return ""
        scale = 100 if self.percent else 1
        ends = [tuple(f"{scale * bound:g}" for bound in accepted) for accepted in self.accept]
        shown = " / ".join(low if low == high else f"{low}–{high}" for low, high in ends)
        return shown + (" %" if self.percent else "")

    def judge(self, figures: dict[str, float]) -> list[str]:
        """The keys whose figure lies outside its range."""
        ranges = zip(self.keys, self.accept or (), strict=False)
        return [key for key, (low, high) in ranges if key in figures and not low <= figures[key] <= high]


_DOCUMENT = load_yaml(Path(__file__).with_suffix(".yaml"))

ROWS = tuple(Row(**each) for each in _DOCUMENT["rows"])
#: Heads of the table of boxes by class, and the boxes of the real datasets in these columns.
BOX_COLUMNS: list[str] = _DOCUMENT["box_columns"]
REAL_BOXES: list[list[str]] = _DOCUMENT["real_boxes"]
