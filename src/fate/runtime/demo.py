"""``fate demo``: a drive from a seed, seen at 20 and at 200 Hz, on a video side by side and on a page."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fate.data.dataset import open_dataset
from fate.formats.opening import open_recording
from fate.runtime.detecting import Detected, Look, detect
from fate.runtime.loading import load_detector
from fate.runtime.stream import StreamingDetector
from fate.simulation.dataset import simulate
from fate.view.rendering import render_comparison

RATES = (20.0, 200.0)
LOOK = Look(slow=4.0)


@dataclass(frozen=True)
class Demo:
    """What was made."""

    folder: Path
    recording: Path
    runs: dict[float, Detected]

    def lines(self) -> list[str]:
        """What to look at, and what to try next."""
        figures = []
        for hz, run in self.runs.items():
            told = run.summary
            figures.append(
                f"{hz:g} Hz: {told['windows']} windows, {sum(told['boxes'].values())} boxes,"
                f" {told['latency_ms']['total'][0]:.1f} ms a window (p50), {told['times_real_time']:.2f} × real time"
            )
        return [
            *figures,
            "",
            "Look at:",
            f"  {self.folder / 'comparison.mp4'}   20 Hz beside 200 Hz, four times slower",
            f"  {self.folder / 'report.html'}      the 200 Hz run: video, event rate, boxes over time, latency, tracks",
            "",
            "Try next:",
            f"  fate detect {self.recording} --hz 100 --track --save drive.mp4 --palette light",
            "  fate detect YOUR_FILE --hz 200 --report report.html      (.raw, .dat, .aedat4, .h5, .bag, .npz, …)",
            "  fate simulate drives && fate train configs/sim/fate-s-nano-20hz.yaml data.path=drives",
        ]


def demo(
    folder: str | os.PathLike[str] = "fate-demo",
    *,
    seed: int = 7,
    seconds: float = 4.0,
    model: str | os.PathLike[str] | StreamingDetector = "fate-s-nano",
    device: str = "cpu",
    show: Callable[[str, float, float, str], None] | None = None,
) -> Demo:
    """Simulate a drive, detect in it at two rates, and show both.

    Args:
        folder: everything is written here.
        seed: another one gives another drive.
        seconds: of the drive.
        model: as of ``fate.detect``.
        device: cpu or cuda.
        show: is told (what is done, how much, of how much, a short line).
    """
    detector = model if isinstance(model, StreamingDetector) else load_detector(model, device)
    target = Path(folder)
    drives = target / "drive"
    told: Any = None if show is None else lambda done, total: show("simulating", done, total, "")
    simulate(drives, recordings=1, seconds=seconds, seed=seed, preview=False, progress=told)
    recording = open_dataset(drives).recordings[0].events_file
    runs = {}
    for hz in RATES:
        page = target / "report.html" if hz == RATES[-1] else None
        runs[hz] = detect(recording, detector, hz, track=True, report=page, look=LOOK, show=show)
        runs[hz].log.write_json(target / f"detections-{hz:g}hz.json")
    drawn: Any = None if show is None else lambda done, total: show("drawing", done, total, "")
    with open_recording(recording) as opened:
        render_comparison(
            opened, target / "comparison.mp4", [(f"{hz:g} Hz", run.frames) for hz, run in runs.items()],
            acc_us=LOOK.acc_us, fps=LOOK.fps, slow=LOOK.slow, palette=LOOK.palette, classes=detector.classes,
            progress=drawn,
        )  # fmt: skip
    return Demo(target, recording, runs)
