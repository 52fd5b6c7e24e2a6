"""Report pages: whole, self-contained, and safe against what a dataset puts into them."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fate import FateError
from fate.view.page import Cell, Page, log_axis, plot, write_figure

VOID = {"meta", "img", "br"}


class Checker(HTMLParser):
    """Every tag is closed in order, and nothing is fetched from anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe")
        for name, value in attrs:
            assert name not in ("href", "src") or str(value).startswith("data:")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def full_page() -> Page:
    page = Page("My <drives>", "what & where")
    page.heading("Events")
    page.paragraph("a <script>alert(1)</script> name")
    page.bullets(["one", "two"])
    page.table(["what", "value"], [["rate", Cell("0.6", "good")], ["ON", Cell("<0.9", "bad")]])
    page.picture(np.full((4, 6, 3), 200, np.uint8), 'a "frame"')
    page.pictures([np.zeros((4, 6, 3), np.uint8)] * 2, ["first", "second"])
    figure, axes = plot()
    axes.plot([1, 2, 3], [3, 40, 500])
    log_axis(axes.yaxis)
    page.plots([figure], ["rates"])
    return page


def test_a_page_is_one_well_formed_file_that_needs_nothing_else() -> None:
    checker = Checker()
    checker.feed(full_page().html())
    assert not checker.open
    assert "@import" not in full_page().html()
    assert "url(" not in full_page().html()


def test_text_is_escaped_everywhere() -> None:
    checker = Checker()
    checker.feed(full_page().html())
    words = "".join(checker.words)
    for text in ("My <drives>", "what & where", "<script>alert(1)</script>", "<0.9", 'a "frame"'):
        assert text in words


def test_pictures_come_back_pixel_for_pixel() -> None:
    image = np.random.default_rng(0).integers(0, 256, (7, 9, 3)).astype(np.uint8)
    page = Page("picture")
    page.picture(image)
    data = re.search(r"data:image/png;base64,([^\"]+)", page.html())
    assert data is not None
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data[1])))), image)


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    full_page().save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == full_page().html()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(FateError, match="does not exist; make it first"):
        full_page().save(tmp_path / "missing" / "page.html")
    with pytest.raises(FateError, match="is a folder"):
        full_page().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert not list(tmp_path.parent.glob(".*.part"))


def test_captions_must_match() -> None:
    with pytest.raises(FateError, match="1 captions were given for 0 pictures"):
        Page("x").pictures([], ["a"])


def test_names_in_plots_that_are_not_utf8_are_drawn_with_escapes(tmp_path: Path) -> None:
    figure, axes = plot()
    axes.plot([1, 2], [1, 2], label="bad\udcff")
    axes.set_title("bad\udcff")
    figure.suptitle("bad\udcff")
    axes.legend()
    page = Page("plots")
    page.plots([figure], ["bad\udcff"])
    assert axes.get_title() == "bad\\xff"
    write_figure(figure, tmp_path / "plot.png", 80)
    with Image.open(tmp_path / "plot.png") as image:
        assert image.width > 100
