"""Report pages: whole, self-contained, and safe against what a dataset puts into them."""

from __future__ import annotations

import base64
import io
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jinja2 import UndefinedError
from PIL import Image

from fate import FateError
from fate.view.page import draw_plot, log_axis, new_figure, picture_address, render_page, write_figure, write_page

VOID = {"meta", "img", "br", "link"}


class Checker(HTMLParser):
    """Every tag is closed in order, and nothing is fetched from anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "iframe")
        for name, value in attrs:
            assert name not in ("href", "src") or str(value).startswith("data:")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def values() -> dict[str, Any]:
    """What an inspection page shows, with names that would break out of a page that does not escape them."""
    picture = picture_address(np.full((4, 6, 3), 200, np.uint8))

    def draw(axes: Any) -> None:
        axes.plot([1, 2, 3], [3, 40, 500])
        log_axis(axes.yaxis)

    found = SimpleNamespace(
        verdict="a <script>alert(1)</script> name",
        header=["what", "value"],
        classes=[SimpleNamespace(cells=["<car>"])],
        motion_source="",
        faults=[SimpleNamespace(kind="wide", worst="<one>")],
        file_summary="all is well",
        flags=["a flag"],
        remarks=["a remark"],
    )
    return {
        "title": "My <drives>",
        "lead": "what & where",
        "found": found,
        "sample_ms": 20,
        "samples": [(picture, 'a "frame"'), (picture, "second")],
        "rows": [["rate", ("0.6", "good")], ["ON", ("<0.9", "bad")]],
        "event_plots": [(draw_plot(draw), "rates")],
        "box_columns": ["class"],
        "real_boxes": [["car of Gen1"]],
        "box_plots": [],
        "faults": [["wide", ("1 of 2", ""), "too wide"]],
        "meanings": [["rate", "events per second"]],
        "recordings": [["drive"] * 8],
    }


def full_page() -> str:
    return render_page("inspection.html", **values())


def test_a_page_is_one_well_formed_file_that_needs_nothing_else() -> None:
    checker = Checker()
    checker.feed(full_page())
    assert not checker.open
    assert "@import" not in full_page()
    assert "url(" not in full_page()


def test_text_is_escaped_everywhere() -> None:
    checker = Checker()
    checker.feed(full_page())
    words = "".join(checker.words)
    for text in (
        "My <drives>",
        "what & where",
        "<script>alert(1)</script>",
        "<0.9",
        'a "frame"',
        "<car>",
        "wide: <one>",
    ):
        assert text in words


def test_a_value_that_a_template_needs_cannot_be_forgotten() -> None:
    with pytest.raises(UndefinedError, match="meanings"):
        render_page("inspection.html", **{name: value for name, value in values().items() if name != "meanings"})


def test_pictures_come_back_pixel_for_pixel() -> None:
    image = np.random.default_rng(0).integers(0, 256, (7, 9, 3)).astype(np.uint8)
    kind, _, data = picture_address(image).partition(",")
    assert kind == "data:image/png;base64"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), image)


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "base.html", title="x")
    assert (tmp_path / "page.html").read_text("utf-8") == render_page("base.html", title="x")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(FateError, match="does not exist; make it first"):
        write_page(tmp_path / "missing" / "page.html", "base.html", title="x")
    with pytest.raises(FateError, match="is a folder"):
        write_page(tmp_path, "base.html", title="x")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert not list(tmp_path.parent.glob(".*.part"))


def test_names_in_plots_that_are_not_utf8_are_drawn_with_escapes(tmp_path: Path) -> None:
    def draw(axes: Any) -> None:
        axes.plot([1, 2], [1, 2], label="bad\udcff")
        axes.set_title("bad\udcff")

    assert draw_plot(draw).startswith("data:image/png")
    figure = new_figure(4, 3)
    axes = figure.subplots()
    draw(axes)
    figure.suptitle("bad\udcff")
    axes.legend()
    write_figure(figure, tmp_path / "plot.png", 80)
    assert axes.get_title() == "bad\\xff"
    with Image.open(tmp_path / "plot.png") as image:
        assert image.width > 100
