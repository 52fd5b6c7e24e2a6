"""Names that are not UTF-8 do not keep a page or a report from being written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fate.view.page import write_page
from fate.view.rendering import VideoClock
from fate.view.report import write_report
from tests.view.recorded import frame

NAME = b"bad\xff.dat".decode("utf-8", "surrogateescape")
FRAMES = [frame(5_000, [[1, 2, 30, 40]])]


def test_a_page_shows_the_bytes_as_escapes(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "base.html", title=NAME, lead=f"From {NAME}.")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("bad\\xff.dat") == 3  # title twice, lead


def test_a_report_shows_the_bytes_as_escapes(tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", None, FRAMES, {"file": NAME}, title=NAME, classes=["car"])
    assert "bad\\xff.dat" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.skipif(os.name != "posix" or sys.platform == "darwin", reason="names of any bytes are there on Linux")
def test_a_report_finds_a_video_beside_it(tmp_path: Path) -> None:
    video = tmp_path / f"{NAME}.mp4"
    video.write_bytes(bytes(100))
    clock = VideoClock(first_us=5_000, step_us=40_000, fps=25, num_frames=1)
    write_report(tmp_path / "report.html", video, FRAMES, {}, title="x", classes=["car"], clock=clock, embed_limit=10)
    assert "bad%FF.dat.mp4" in (tmp_path / "report.html").read_text(encoding="utf-8")
