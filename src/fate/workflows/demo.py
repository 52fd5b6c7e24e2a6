"""``fate demo``: simulates a drive, detects objects at 20 and at 200 Hz, and writes a video of both and a report.

The drive is of the test split: half of its cars, people and houses are of models that no training drive contains.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fate.data.opening import open_dataset
from fate.formats.opening import open_recording
from fate.inference.loading import DEFAULT_DETECTOR, FASTEST_ON_A_CPU, Model, load_detector
from fate.progress import Progress, name_part
from fate.text import duration, plural, significant
from fate.view.look import Look
from fate.view.rendering import render_comparison
from fate.workflows.detect import Detected, detect, write_run_report
from fate.workflows.simulate import simulate

RATES = (20.0, 200.0)
SEED = 40  # in these 2 s, cars and people come close
THRESHOLD = 0.45  # of bundled weights; lower than their own, so that more objects are shown; 3 of 4 boxes are right
LOOK = Look(acc_us=25_000, slow=4.0)  # events of half a 20 Hz window: what moves fast stays sharp


@dataclass(frozen=True)
class Demo:
    """The files and results of a demo."""

    folder: Path
    recording: Path
    runs: dict[float, Detected]
    detector: str  #: its name
    device: str

    def lines(self) -> list[str]:
        """The results, the files to open, and commands to try next."""
        figures = []
        for hz, run in self.runs.items():
            summary = run.summary
            boxes = ", ".join(f"{count} {name}" for name, count in summary["boxes"].items())
            figures.append(
                f"{hz:>3g} Hz: {plural(summary['windows'], 'window')}, one every {summary['budget_ms']:g} ms, in"
                f" {duration(summary['took_s'])}, {duration(summary['latency_ms']['total'][0] / 1e3)} each (median),"
                f" {significant(summary['times_real_time'])} × real time; boxes: {boxes}"
            )
        if any(run.summary["times_real_time"] < 1 for run in self.runs.values()):
            figures.append(
                "Below 1 ×: too slow here for a live camera at that rate; in files every window is detected."
            )
        if self.detector == FASTEST_ON_A_CPU:
            figures.append(f'model="{DEFAULT_DETECTOR}" is slower and more accurate.')
        shown = {
            "comparison.mp4": f"{' beside '.join(f'{hz:g} Hz' for hz in self.runs)}, {LOOK.slow:g} times slower",
            "report.html": "the same video with the event rate, boxes over time, latency and tracks at 200 Hz",
        }
        return [
            *figures,
            "",
            "Look at:",
            *(f"  {self.folder / name!s:<{len(str(self.folder)) + 17}} {what}" for name, what in shown.items()),
            "",
            "Try next:",
            f"  fate detect {self.recording} --hz 100 --threshold 0.4 --track --save drive.mp4",
            "  fate detect YOUR_FILE --hz 200 --report report.html      (.raw, .dat, .aedat4, .h5, .bag, .npz, …)",
            "  fate simulate drives && fate train fate-s-nano-20hz data.path=drives",
        ]


def demo(
    folder: str | os.PathLike[str] = "fate-demo",
    *,
    seed: int = SEED,
    seconds: float = 2.0,
    model: Model | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Demo:
    """Simulate a drive, detect in it at two rates, and show both.

    Args:
        folder: folder for everything that is written.
        seed: seed of the drive.
        seconds: length of the drive.
        model: a bundled name, a .safetensors file, a file of ``export``, or a detector. None takes fate-s-nano on a CPU
            and fate-s-tiny on a GPU, and draws boxes with scores of at least 0.45.
        device: cpu or cuda.
        progress: called with the work done, all of it, a short line and the name of the part.
    """
    threshold = THRESHOLD if model is None else None
    if model is None:
        model = FASTEST_ON_A_CPU if device == "cpu" else DEFAULT_DETECTOR
    detector = load_detector(model, device)
    target = Path(folder)
    drives = target / f"drive-{seed}-{seconds:g}s"  # each seed has its own folder
    simulate(
        drives, recordings=1, seconds=seconds, seed=seed, preview=False, shares=(0, 0, 1),
        progress=name_part(progress, "simulating"),
    )  # fmt: skip
    recording = open_dataset(drives).recordings[0].events_file
    runs = {}
    for hz in RATES:
        boxes = target / f"detections-{hz:g}hz.json"
        runs[hz] = detect(recording, detector, hz, threshold=threshold, track=True, json=boxes, progress=progress)
    # with track ids of one run only, because the two runs number objects differently
    slow, fast = runs.values()
    shown = [(f"{RATES[0]:g} Hz", [replace(frame, track_ids=None) for frame in slow.frames])]
    shown += [(f"{RATES[1]:g} Hz", fast.frames)]
    with open_recording(recording) as opened:
        video = target / "comparison.mp4"
        clock = render_comparison(
            opened, video, shown, **asdict(LOOK), classes=detector.classes, progress=name_part(progress, "drawing")
        )
        title = f"A simulated drive at {RATES[0]:g} Hz beside {RATES[1]:g} Hz; all figures are of {RATES[1]:g} Hz"
        write_run_report(target / "report.html", fast, detector, opened, video, clock, title=title)
    return Demo(target, recording, runs, detector.name, str(detector.device))
