"""Measure the time from the end of a window to its JSON line while the page of ``fate live`` has viewers.

    python scripts/live_latency.py drive.raw --hz 50 --seconds 20 --device cpu

Each case plays the recording again and again for this time: without a viewer, with one, with ten, and with one that
reads a picture every two seconds and confirms none. Viewers are processes of their own, as browsers are.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

#: Viewers of each case: how many, and whether they are slow.
CASES = {"no viewer": (0, False), "one viewer": (1, False), "ten viewers": (10, False), "one slow viewer": (1, True)}
#: Windows at the start that do not count, seconds.
WARM_UP_S = 2.0


def view(url: str, is_slow: bool) -> None:
    """Be a viewer: read pictures and confirm them, or be slow."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    pictures = 0
    try:
        with connect(url.replace("http:", "ws:") + "pictures", proxy=None) as page:
            for _ in page:
                pictures += 1
                if is_slow:
                    time.sleep(2)
                else:
                    page.send('{"shown": 1}')
    except ConnectionClosed:
        pass
    print(pictures)


def measure(file: str, model: str, hz: float, seconds: float, device: str, viewers: int, is_slow: bool) -> str:
    """Run one case and return its row of the table."""
    import fate
    from fate.workflows.live_page.page_process import LivePage
    from fate.workflows.live_page.running import show_live

    class TimedPage(LivePage):
        """Notes the age of every window after its line was written."""

        def begin(self, stream: Any) -> None:
            super().begin(stream)
            self.source, self.ages_ms = stream.source, list[float]()
            threading.Timer(seconds + WARM_UP_S, stream.stop, ["the time is over"]).start()

        def add(self, frame: Any) -> None:
            self.ages_ms.append(1000 * self.source.age_s(frame.t_us))
            super().add(frame)

    detector = fate.load_detector(model, device)
    with tempfile.TemporaryDirectory() as folder, fate.open_recording(file) as recording:
        with TimedPage("measurement", port=0) as page:
            command = [sys.executable, __file__, page.url, "--view", *(["--slow"] if is_slow else [])]
            opened = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(viewers)]
            while page.viewers < viewers:
                time.sleep(0.05)
            lines = Path(folder) / "boxes.jsonl"
            done = show_live(page, recording, detector, hz, name="measurement", loop=True, jsonl=lines)
        pictures = [int(process.communicate()[0]) for process in opened]
    ages = np.array(page.ages_ms[round(WARM_UP_S * hz) :])
    p50, p99, most = (float(np.quantile(ages, share)) for share in (0.5, 0.99, 1.0))
    each = f"{np.mean(pictures) / (seconds + WARM_UP_S):.1f}" if pictures else "–"
    return (
        f"| {len(ages)} | {done.summary['dropped']['windows_dropped']} | {p50:.2f} | {p99:.2f} | {most:.2f} | {each} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--model", default="fate-s-nano")
    parser.add_argument("--hz", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--view", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--slow", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.view:
        view(given.file, given.slow)
        return
    print("| viewers | windows | dropped | p50 ms | p99 ms | most ms | pictures per second and viewer |")
    print("|---|---|---|---|---|---|---|")
    for name, (viewers, is_slow) in CASES.items():
        row = measure(given.file, given.model, given.hz, given.seconds, given.device, viewers, is_slow)
        print(f"| {name} {row}", flush=True)


if __name__ == "__main__":
    main()
