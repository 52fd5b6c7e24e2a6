"""How many seconds of recording the simulator makes per second; its pixel model is compared with eventcv's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fate.bench.harness import BenchResult, describe_device, time_call
from fate.events.events import Events
from fate.progress import Progress
from fate.simulation.camera.event_camera import EventCamera
from fate.simulation.camera.recorder import record, record_many
from fate.simulation.render.scene import Scene
from fate.simulation.writing.request import Request, check_machine
from fate.text import plural

FRAMES = 200  # that each pixel model gets


@dataclass(frozen=True)
class SimulationBench(BenchResult):
    """Speed of the simulator; every ratio is against real time."""

    COLUMNS = ("pixel model, on frames in memory", "frames/s")

    device: str
    cores: int
    profile: str
    recordings: int
    seconds: float  #: of each recording
    wall_s: float  #: from the first scene to the last event
    first_piece_s: float  #: until the first events: processes start, first streets are drawn
    real_time: float  #: seconds of recording per second of the whole run
    real_time_running: float  #: seconds of recording per second after the first events
    events: int
    boxes: int  #: at 200 Hz
    frames_per_s: dict[str, float]  #: of the readable pixel model and of the peer

    def describe(self) -> str:
        many = plural(self.recordings, "recording")
        overall = f"{self.real_time:.2f} × real time in all, {self.real_time_running:.2f} × after the first events"
        return "\n".join([
            f"{self.device}, {plural(self.cores, 'core')}; {many} of {self.seconds:g} s, {self.profile}",
            f"{overall} (they came after {self.first_piece_s:.1f} s of {self.wall_s:.1f} s)",
            f"{self.events / 1e6:.1f} million events, {plural(self.boxes, 'box', 'boxes')} at 200 Hz",
        ])  # fmt: skip

    def rows(self) -> Iterable[Sequence[str]]:
        return [(name, f"{speed:.0f}") for name, speed in self.frames_per_s.items()]


def bench_simulate(
    recordings: int = 4,
    seconds: float = 5.0,
    profile: str = "gen1",
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress | None = None,
) -> SimulationBench:
    """Measure how fast recordings and their exact boxes at 200 Hz are simulated, without writing files.

    Args:
        recordings: number of recordings.
        seconds: length of each recording.
        profile: camera, "gen1" or "1mpx".
        device: "cpu" or "cuda".
        threads: number of CPU threads or processes; None for all processors.
        progress: called with the simulated seconds and their total.
    """
    jobs = Request(profile, 0, seconds, recordings).jobs()
    check_machine(device, threads)
    makers = [partial(Scene, job.seed, profile, job.split, seconds) for job in jobs]
    began = time.perf_counter()
    first, events, boxes, done = 0.0, 0, 0, 0.0
    for piece in record_many(makers, lambda scene: np.arange(5_000, scene.duration_us + 1, 5_000), device, threads):
        first = first or time.perf_counter()
        events += len(piece.events)
        boxes += len(piece.boxes.boxes.class_id)
        done += len(piece.boxes.t_us) * 0.005
        if progress is not None:
            progress(done, seconds * recordings)
    ended = time.perf_counter()
    return SimulationBench(
        device=describe_device(device),
        cores=os.cpu_count() or 1,
        profile=profile,
        recordings=recordings,
        seconds=seconds,
        wall_s=ended - began,
        first_piece_s=first - began,
        real_time=recordings * seconds / (ended - began),
        real_time_running=recordings * seconds / max(ended - first, 1e-9),
        events=events,
        boxes=boxes,
        frames_per_s=_pixel_models(makers[0](), device),
    )


def drive_events(profile: str = "gen1", seconds: float = 1.6, seed: int = 2) -> Events:
    """Return the events of a simulated drive, for other benchmarks that need real statistics."""
    return Events.concatenate([piece.events for piece in record(Scene(seed, profile, seconds=seconds))])


def _pixel_models(scene: Scene, device: str) -> dict[str, float]:
    """Return frames per second of our readable pixel model, and of eventcv's if it is installed, on equal frames."""
    times = np.arange(FRAMES) * min(1_000, scene.duration_us // FRAMES)
    frames = np.stack([scene.light(int(time_us)) for time_us in times])
    camera = EventCamera(scene.camera, device=device)
    speeds = {"fate": FRAMES / time_call(lambda: camera.simulate(torch.from_numpy(frames), times.tolist()))}
    try:
        import eventcv  # noqa: PLC0415  (a peer, not a dependency)
    except ImportError:
        return speeds
    grey = np.clip(frames * 255, 0, 255).astype(np.uint8)
    fps = 1e6 / int(times[1] - times[0])
    speeds["eventcv"] = FRAMES / time_call(lambda: eventcv.simulate(grey, fps=fps))
    return speeds
