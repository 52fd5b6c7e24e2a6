"""``fate live`` in a real browser: the picture moves, its numbers are those of the JSON lines, and it finds the next
run.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fate
from fate.workflows.live_page.page_process import LivePage
from tests.training.conftest import SENSOR, drive
from tests.view.browser import Browser, find_browser

PROGRAM = find_browser()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium on the path, or its program in FATE_TEST_BROWSER"),
    pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way there"),
]
PATIENCE_S = 240


class Run:
    """``fate live`` with a recording that is played again and again."""

    def __init__(self, folder: Path, port: int, lines: str) -> None:
        self.lines = folder / lines
        words = ["live", folder / "drive.npz", "--loop", "--hz", "20", "--threshold", "0.0001", "--no-browser"]
        words += ["--model", folder / "nano.safetensors", "--port", str(port), "--jsonl", self.lines]
        self.url = f"http://127.0.0.1:{port}/"
        said = self.lines.with_suffix(".txt")
        with said.open("w") as file:
            command = [sys.executable, "-m", "fate.cli", *map(str, words)]
            self.process = subprocess.Popen(command, cwd=folder, stderr=file)
        ends = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < ends:
            if f"page: {self.url}\n" in said.read_text():
                return
            time.sleep(0.05)
        pytest.fail("the page was never served")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0

    def read(self) -> list[dict[str, Any]]:
        """The whole JSON lines so far."""
        return [json.loads(line) for line in self.lines.read_text().split("\n")[:-1]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording of a second, and a detector with fresh weights."""
    made = tmp_path_factory.mktemp("live")
    fate.write_events(made / "drive.npz", drive(0)[0])
    torch.manual_seed(0)
    fate.save_model(fate.build_model("fate-s-nano", ("square",), SENSOR), made / "nano.safetensors")
    return made


@pytest.fixture(scope="module")
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def run(folder: Path, port: int, request: pytest.FixtureRequest) -> Iterator[Run]:
    started = Run(folder, port, f"{request.node.name}.jsonl")
    yield started
    started.process.kill()
    started.process.wait()


@pytest.fixture
def page(run: Run) -> Iterator[Browser]:
    """The page, which shows pictures of the run."""
    with Browser(PROGRAM or "") as browser:
        browser.open(run.url)
        browser.wait("shown !== null && kept.length > 3")
        yield browser


def hash_of_picture(page: Browser) -> str:
    return str(page.value("byId('events').toDataURL() + byId('boxes').toDataURL()"))


def test_the_picture_moves_and_its_numbers_are_those_of_the_json_lines(run: Run, page: Browser) -> None:
    before = hash_of_picture(page)
    page.wait("shown.line.t_us > 500000")
    assert hash_of_picture(page) != before
    page.press(" ")  # a pause, so that the picture stays
    page.wait("paused && byId('state').textContent === 'Paused'")
    page.value("new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame)).then(() => 1)")
    line = page.value("shown.line")
    counts = {name: int(page.value(f"byId('{name}').textContent.replace(/\\D/g, '')")) for name in ("windows", "total")}
    while not any(each.get("t_us") == line["t_us"] for each in run.read()):
        time.sleep(0.05)
    until = [each for each in run.read()[1:] if each.get("t_us", line["t_us"] + 1) <= line["t_us"]]
    assert until[-1] == line
    assert counts == {"windows": len(until), "total": sum(len(each["boxes"]) for each in until)}
    assert page.value("byId('list').rows.length") == len(line["boxes"]) > 0
    page.value("setThreshold(1)")  # hides boxes here, and nothing else
    page.wait("byId('list').rows.length === 0")
    assert int(page.value("byId('total').textContent.replace(/\\D/g, '')")) == counts["total"]
    assert page.complaints == []
    assert all(url.startswith((run.url, "data:")) for url in page.requests)


def test_every_control_works_with_the_keyboard(run: Run, page: Browser) -> None:
    page.press(".", text=".")
    page.wait("paused")
    now = page.value("kept.indexOf(shown)")
    page.press(",", text=",")
    assert page.value("kept.indexOf(shown)") == now - 1
    page.press(".", text=".")
    assert page.value("kept.indexOf(shown)") == now
    palette = page.value("byId('palette').value")
    page.press("p", text="p")
    assert page.value("byId('palette').value") != palette
    lowest = page.value("+byId('threshold').value")
    page.press("+", text="+")
    assert page.value("+byId('threshold').value") > lowest
    page.value("window.saved = []; HTMLAnchorElement.prototype.click = function () { saved.push(this.download); }; 1")
    page.press("s", text="s")
    page.wait("saved.length === 1")
    assert page.value("saved[0]").startswith("drive.npz_")
    assert page.value("saved[0]").endswith("us.png")
    page.press("r", text="r")
    page.wait("run.recording.active && byId('record').getAttribute('aria-pressed') === 'true'")
    page.press("r", text="r")
    page.wait("!run.recording.active")
    page.press(" ")
    page.wait("!paused")
    recorded = list(run.lines.parent.glob("drive-*.raw"))
    assert fate.open_recording(recorded[0]).num_events > 0
    assert page.complaints == []


def test_the_page_says_why_a_run_ended_and_finds_the_next_one(run: Run, page: Browser, folder: Path, port: int) -> None:
    session = page.value("run.session")
    assert page.complaints == []
    run.stop()
    page.wait("byId('state').dataset.state === 'ended'")
    assert "SIGTERM" in page.value("byId('cover').textContent")
    summary = run.read()[-1]["summary"]
    assert page.value("[run.counts.windows, run.counts.boxes]") == [summary["windows"], sum(summary["boxes"].values())]
    assert page.value("run.counts.windows_dropped") == summary["dropped"]["windows_dropped"]
    last = next(line for line in reversed(run.read()) if "t_us" in line)
    page.wait(f"shown.line.t_us === {last['t_us']}")
    assert int(page.value("byId('windows').textContent.replace(/\\D/g, '')")) == summary["windows"]
    page.wait("retryAt > 0 && byId('cover').textContent.includes('Next attempt')")
    again = Run(folder, port, "again.jsonl")
    try:
        page.wait(f"run.session !== {session!r} && run.state === 'running' && kept.length > 3")
        assert page.value("byId('state').textContent") == "Live"
        again.process.kill()  # without a word
        again.process.wait()
        page.wait("byId('state').dataset.state === 'lost' || byId('state').dataset.state === 'ended'")
    finally:
        again.process.kill()
        again.process.wait()


def test_a_page_says_that_its_token_is_no_longer_valid_and_a_fixed_token_stays(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Browser(PROGRAM or "") as browser:
        with LivePage("drive.raw", host="0.0.0.0", port=port) as first:
            token = first.url.partition("token=")[2]
            browser.open(f"http://127.0.0.1:{port}/?token={token}")
            browser.wait("run !== null && run.state === 'starting'")
        with LivePage("drive.raw", host="0.0.0.0", port=port):
            browser.wait("/token .*no longer valid.*new address.*terminal/.test(byId('cover').textContent)")
            assert browser.value("byId('state').textContent") == "Not connected"
        monkeypatch.setenv("FATE_LIVE_TOKEN", token)
        with LivePage("drive.raw", host="0.0.0.0", port=port):
            browser.wait("run.state === 'starting' && byId('state').textContent === 'Starting'")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(run: Run, theme: str) -> None:
    with Browser(PROGRAM or "", width=390, height=844, phone=True) as phone:
        phone.open(run.url, theme)
        phone.wait("shown !== null")
        assert phone.value("document.documentElement.scrollWidth") <= 390
        assert phone.value("byId('view').getBoundingClientRect().width") > 300
        assert phone.value("byId('palette').value") == theme
        small = "[...document.querySelectorAll('button:not([hidden])')].filter((each) => each.offsetHeight < 40).length"
        assert phone.value(small) == 0
        assert phone.complaints == []
