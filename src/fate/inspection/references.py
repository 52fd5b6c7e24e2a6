"""Figures of the two public driving datasets, with which any other dataset is compared: ``references.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fate.yaml_files import load_yaml

RATE_RANGE_MEV_S = (0.2, 2.0)  # in which every single Gen1-like recording lies

UNKNOWN = "–"
MOST_DIGITS = 17  # after the point; a float holds no more that differ

Range = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One line of figures of a dataset beside the real ones.

    Args:
        keys: names of the figures, shown in this order with a slash between.
        title: what they are, short.
        meaning: what they are, in a sentence.
        gen1, mpx: the real figures as text.
        accept: a range for each key, in the figure's own unit (a share is 0 to 1), for Gen1-like data.
        digits: after the point.
        percent: the figures are shares and are shown in percent.
        own: the row is shown for a dataset with another sensor too.
    """

    keys: Sequence[str]
    title: str
    meaning: str
    gen1: str = UNKNOWN
    mpx: str = UNKNOWN
    accept: Sequence[Range] | None = None
    digits: int = 2
    percent: bool = False
    own: bool = False

    @property
    def scale(self) -> int:
        """The factor by which a figure is multiplied before it is shown."""
        return 100 if self.percent else 1

    def show(self, figures: dict[str, float], *, judged: bool = False) -> str:
        """The figures as text; a dash for those that are not known.

        Args:
            figures: by key.
            judged: whether a figure outside its range gets as many digits as are needed to see that.
        """
        texts = []
        for index, key in enumerate(self.keys):
            digits = self.digits
            if judged and key in self.judge(figures) and self.accept:
                digits = self._digits_outside(figures[key], self.accept[index])
            texts.append(UNKNOWN if key not in figures else f"{self.scale * figures[key]:.{digits}f}")
        if set(texts) == {UNKNOWN}:
            return UNKNOWN
        return " / ".join(texts) + (" %" if self.percent else "")

    def _digits_outside(self, value: float, accepted: Range) -> int:
        """Digits after the point that are needed to see that a figure lies outside its range."""
        low, high = (float(f"{self.scale * bound:g}") for bound in accepted)
        enough = (d for d in range(self.digits, MOST_DIGITS) if not low <= float(f"{self.scale * value:.{d}f}") <= high)
        return next(enough, MOST_DIGITS)

    def accepted_text(self) -> str:
        """The ranges as text; empty without any."""
        if self.accept is None:
            return ""
        ends = [tuple(f"{self.scale * bound:g}" for bound in accepted) for accepted in self.accept]
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
