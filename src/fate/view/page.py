"""Pages: jinja2 templates rendered into one HTML file that loads nothing else, and the plots on them.

The templates and their stylesheet are in ``templates/``. A page follows the reader's light or dark setting. Plots are
drawn by matplotlib as PNG on a transparent background, in colours that are readable on both.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fate.errors import FateError
from fate.text import encodable, or_dash
from fate.whole_files import write_whole

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure


def render_page(template: str, **values: Any) -> str:
    """Return a page as HTML. All text is escaped; bytes of a file name that are not UTF-8 are shown as escapes.

    Args:
        template: name of a file in ``templates/``.
        values: what the template shows; ``title`` is needed by all.

    Example:
        >>> "<h1>a &lt; b</h1>" in render_page("base.html", title="a < b")
        True
    """
    return _environment().get_template(template).render(lead=values.pop("lead", ""), **values)


def check_page_name(path: str | os.PathLike[str]) -> None:
    """Refuse a name of a page that browsers would not open as one."""
    if not os.fspath(path).lower().endswith((".html", ".htm")):
        raise FateError(f"{path}: a report is a page; give a name that ends in .html")


def write_page(path: str | os.PathLike[str], template: str, **values: Any) -> None:
    """Write a page, whole or not at all; ``"-"`` is standard output. See :func:`render_page` for the arguments."""
    write_whole(path, render_page(template, **values).encode("utf-8", "backslashreplace"), text=True)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  (only pages need it)

    environment = Environment(
        loader=PackageLoader("fate.view"),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name is an error, not an empty text
        finalize=lambda value: encodable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def picture_address(image: NDArray[np.uint8]) -> str:
    """Return a picture [H, W, 3] as an address for ``<img src>``; enlarge small sensors first, to keep pixels sharp."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", optimize=True)
    return _address_of(buffer.getvalue())


def _address_of(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


#: Colours of plots that are readable on white and on the dark ground of the page.
PLOT_INK = "#7d8796"
PLOT_COLOURS = ("#3f7fd0", "#e08a00", "#2ba784", "#d6457f", "#8d6be0", "#b0a020")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches. Needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (slow; only pages need it)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_plot(draw: Callable[..., None], *arguments: Any) -> str:
    """Let ``draw(axes, *arguments)`` draw a plot in the colours of the page, and return its address for ``<img src>``.

    The plot has a legend if anything in it has a name.
    """
    from matplotlib import rc_context  # noqa: PLC0415

    names = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color", "grid.color")
    style: Any = dict.fromkeys(names, PLOT_INK)
    style |= {"xtick.labelsize": 8, "ytick.labelsize": 8, "axes.labelsize": 9, "axes.titlesize": 9}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.facecolor": "none"}
    with rc_context(style):
        figure = new_figure(4.6, 2.9)
        axes = figure.add_subplot()
        axes.set_prop_cycle(color=PLOT_COLOURS)
        axes.grid(True, alpha=0.25, linewidth=0.5)
        draw(axes, *arguments)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=7, frameon=False, labelcolor=PLOT_INK)
        return _address_of(_png_of_plot(figure, transparent=True))


def write_figure(figure: Figure, path: str | os.PathLike[str], dpi: int) -> None:
    """Write a matplotlib figure as a PNG file; if that fails, an earlier file stays as it was."""
    write_whole(path, _png_of_plot(figure, dpi=dpi))


def percent(share: float | None) -> str:
    """A share in percent, as tables of pages have it; a dash if it is not known."""
    return or_dash(None if share is None else 100 * share, ".1f")


def rate_axis(axes: Any, rates: Sequence[float]) -> None:
    """Make the x axis logarithmic, with these rates in Hz as its only marks."""
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()


def log_axis(axis: Any, subs: tuple[int, ...] = (1, 2, 5)) -> None:
    """Make ``axes.xaxis`` or ``axes.yaxis`` logarithmic, with plain numbers at ``subs`` times powers of ten.

    By default matplotlib writes powers of ten, and none at all where the data span less than a decade.
    """
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _png_of_plot(figure: Figure, dpi: int = 160, transparent: bool = False) -> bytes:
    """Draw a figure; names in it that are not UTF-8, which matplotlib refuses, are shown with their bytes escaped."""
    from matplotlib.text import Text  # noqa: PLC0415

    for text in figure.findobj(Text):
        if isinstance(text, Text) and (shown := encodable(text.get_text())) != text.get_text():
            text.set_text(shown)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, transparent=transparent)
    return buffer.getvalue()
