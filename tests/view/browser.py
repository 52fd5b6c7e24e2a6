"""A headless Chromium for tests of pages, driven over its debugging pipe; needs nothing but the browser itself.

The pipe is two file descriptors, 3 to the browser and 4 from it, with JSON messages that end in a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_S = 60  # a machine busy with other work may be slow; a browser that hangs must not hang the tests


def find_browser() -> str | None:
    """The browser's program: ``FATE_TEST_BROWSER``, or a Chromium on the path."""
    return os.environ.get("FATE_TEST_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a headless Chromium. Use it in a ``with`` block."""

    def __init__(self, program: str, *, width: int = 1280, height: int = 900, phone: bool = False) -> None:
        self.complaints: list[str] = []  # errors and warnings of the console, exceptions, requests that failed
        self.requests: list[str] = []  # addresses that the page asked for
        self._folder = tempfile.TemporaryDirectory(prefix="fate-browser-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, from_write = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio",
                 "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe",
                 f"--user-data-dir={self._folder.name}", "about:blank"]  # fmt: skip
        # the browser wants the descriptors at 3 and 4; a shell puts them there
        script = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *flags],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], PATIENCE_S)[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        method, given = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(given["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(given["args"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.complaints.append(given["entry"]["text"])
        elif method == "Network.loadingFailed" and not given.get("canceled"):
            self.complaints.append(given["errorText"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])

    def open(self, page: Path | str, theme: str = "light") -> None:
        """Load a page, a file or an address, and wait until its parts are there."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, script: str) -> Any:
        """What a JavaScript expression gives, as plain data; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.value(script):
            if time.monotonic() > end:
                raise TimeoutError(f"never came true: {script}")
            time.sleep(0.02)

    def press(self, key: str, code: str = "", text: str = "") -> None:
        """A key, as a person would press it."""
        given = {"key": key, "code": code or key, **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", type="keyDown", **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=code or key)

    def click(self, x: float, y: float, *, drag_to: tuple[float, float] | None = None) -> None:
        """A click at a place of the window; with ``drag_to``, the button is let go there."""
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", buttons=1, clickCount=1)
        if drag_to is not None:
            x, y = drag_to
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """The page as a PNG, also the part below the window."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
