"""A report page in one HTML file: text, tables, pictures and plots, all inside; no script, nothing from the net.

The page follows the reader's light or dark setting. Plots are drawn by matplotlib as PNG on a transparent ground in
colours that are readable on both.
"""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fate.errors import FateError
from fate.text import encodable
from fate.whole_files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; --ink: #1b2330; --soft: #5a6575; --ground: #ffffff; --band: #f2f4f8; --line: #d9dee6;
        --good: #12744a; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ef; --soft: #9aa5b5; --ground: #12161e; --band: #1b212c; --line: #323b49;
          --good: #5ad19a; --bad: #ff8a80; } }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 68rem; background: var(--ground); color: var(--ink);
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
p { max-width: 46rem; } p.lead { color: var(--soft); margin-top: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, .words th, .words td { text-align: left; }
td:first-child { white-space: pre; } .words td { white-space: normal; }
thead th { background: var(--band); font-weight: 600; }
td.good { color: var(--good); } td.bad { color: var(--bad); font-weight: 600; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; }
figure.picture img { border-radius: 4px; }
figcaption { color: var(--soft); font-size: .92em; }
.row { display: grid; gap: .6rem 1.4rem; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); }
.row figure { margin: .4rem 0; } .row figure img { width: 100%; }
"""

Mark = Literal["good", "bad"]


@dataclass(frozen=True)
class Cell:
    """A cell of a table with a mark: ``good`` and ``bad`` get a colour (the text should say it too)."""

    text: str
    mark: Mark | None = None


class Page:
    """Add parts from top to bottom, then :meth:`save`. All text is escaped.

    Example:
        >>> page = Page("Report", "What was found.")
        >>> page.table(["what", "value"], [["events", "1 204"]])
        >>> "1 204" in page.html()
        True
    """

    def __init__(self, title: str, lead: str = "") -> None:
        self.title = title
        self._parts = [f"<h1>{_text(title)}</h1>"]
        if lead:
            self._parts.append(f'<p class="lead">{_text(lead)}</p>')

    def heading(self, text: str) -> None:
        """The title of a section."""
        self._parts.append(f"<h2>{_text(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """One paragraph of plain text."""
        self._parts.append(f"<p>{_text(text)}</p>")

    def bullets(self, lines: Sequence[str]) -> None:
        """A list of plain texts."""
        self._parts.append("<ul>" + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, words: bool = False) -> None:
        """A table; the first column is text, the others are numbers, set to the right (with ``words``, text too)."""
        kind = ' class="words"' if words else ""
        head = "".join(f"<th>{_text(name)}</th>" for name in header)
        body = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
        self._parts.append(
            f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def picture(self, image: NDArray[np.uint8], caption: str = "") -> None:
        """A picture [H, W, 3] uint8; enlarge small sensors first, so that pixels stay sharp."""
        self._parts.append(_figure(_png_of_array(image), caption, "picture"))

    def pictures(self, images: Sequence[NDArray[np.uint8]], captions: Sequence[str]) -> None:
        """Several in a row that wraps."""
        if len(images) != len(captions):
            raise FateError(f"{len(captions)} captions were given for {len(images)} pictures; give one for each")
        inside = "".join(
            _figure(_png_of_array(image), caption, "picture") for image, caption in zip(images, captions, strict=True)
        )
        self._parts.append(f'<div class="row">{inside}</div>')

    def plots(self, figures: Sequence[Figure], captions: Sequence[str]) -> None:
        """Matplotlib figures in a row that wraps."""
        if len(figures) != len(captions):
            raise FateError(f"{len(captions)} captions were given for {len(figures)} plots; give one for each")
        inside = "".join(
            _figure(_png_of_plot(figure, transparent=True), caption, "plot")
            for figure, caption in zip(figures, captions, strict=True)
        )
        self._parts.append(f'<div class="row">{inside}</div>')

    def html(self) -> str:
        """The whole page."""
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{_text(self.title)}</title><style>{STYLE}</style></head>\n<body>\n"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page, whole or not at all; ``"-"`` is standard output.

        A file name in the text that is not valid Unicode is shown with its bytes escaped.
        """
        write_whole(path, self.html().encode("utf-8", "backslashreplace"), text=True)


#: Colours of plots that are readable on white and on the dark ground of the page.
PLOT_INK = "#7d8796"
PLOT_COLOURS = ("#3f7fd0", "#e08a00", "#2ba784", "#d6457f", "#8d6be0", "#b0a020")


def plot(width: float = 4.6, height: float = 2.9) -> tuple[Figure, Any]:
    """An empty figure and its axes, in inches, in the colours of the page. Needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (slow; only pages need it)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    axes.set_prop_cycle(color=PLOT_COLOURS)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(PLOT_INK)
    axes.tick_params(which="both", colors=PLOT_INK, labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
        label.set_color(PLOT_INK)
        label.set_fontsize(9)
    axes.grid(True, color=PLOT_INK, alpha=0.25, linewidth=0.5)
    axes.set_axisbelow(True)
    return figure, axes


def write_figure(figure: Figure, path: str | os.PathLike[str], dpi: int) -> None:
    """Write a matplotlib figure as a PNG file, at once or not at all."""
    write_whole(path, _png_of_plot(figure, dpi=dpi))


def log_axis(axis: Any, subs: tuple[int, ...] = (1, 2, 5)) -> None:
    """Make ``axes.xaxis`` or ``axes.yaxis`` logarithmic, with plain numbers at ``subs`` times powers of ten.

    By default matplotlib writes powers of ten, and none at all where the data span less than a decade.
    """
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _text(text: str) -> str:
    return html.escape(encodable(text))


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return f"<td>{_text(cell)}</td>"
    return f'<td class="{cell.mark or ""}">{_text(cell.text)}</td>'


def _figure(png: bytes, caption: str, kind: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    below = f"<figcaption>{_text(caption)}</figcaption>" if caption else ""
    return f'<figure class="{kind}"><img alt="{_text(caption)}" src="data:image/png;base64,{data}">{below}</figure>'


def _png_of_array(image: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _png_of_plot(figure: Figure, dpi: int = 160, transparent: bool = False) -> bytes:
    """Draw a figure; names in it that are not UTF-8, which matplotlib refuses, are shown with their bytes escaped."""
    from matplotlib.text import Text  # noqa: PLC0415

    for text in figure.findobj(Text):
        if isinstance(text, Text) and (shown := encodable(text.get_text())) != text.get_text():
            text.set_text(shown)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, transparent=transparent)
    return buffer.getvalue()
