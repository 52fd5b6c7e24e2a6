"""How fast the simulator is, in seconds of recording per second, and beside an independent one in the same run."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from fate.events.events import Events
from fate.simulation.camera.event_camera import EventCamera
from fate.simulation.camera.recorder import record, record_many
from fate.simulation.render.scene import Scene
from fate.simulation.writing.request import Request, check_machine

#: Frames given to the readable pixel model and to the peer.
FRAMES = 200


@dataclass(frozen=True)
class SimulationBench:
    """What was measured; every ratio is against real time."""

    device: str
    cores: int
    profile: str
    recordings: int
    seconds: float  #: of each recording
    wall_s: float  #: from the first scene drawn to the last event
    first_piece_s: float  #: until the first events came: processes started, first streets drawn
    real_time: float  #: seconds of recording per second, everything counted
    real_time_running: float  #: the same from the first events on
    events: int
    boxes: int  #: at 200 Hz
    frames_per_s: dict[str, float]  #: of pixel models on frames in memory: our readable one, and the peer's

    def to_dict(self) -> dict[str, Any]:
        """All numbers."""
        return asdict(self)


def bench_simulate(
    recordings: int = 4,
    seconds: float = 5.0,
    profile: str = "gen1",
    device: str = "cpu",
    threads: int | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> SimulationBench:
    """Simulate recordings without writing them, exact boxes at 200 Hz included, and time it.

    Args:
        recordings, seconds, profile, device, threads: as for :func:`fate.simulation.writing.dataset.simulate`.
        progress: called with seconds done and seconds in all.
    """
    jobs = Request(profile, 0, seconds, recordings).jobs()
    check_machine(device, threads)
    makers = [partial(Scene, job.seed, profile, job.split, seconds) for job in jobs]
    began = time.perf_counter()
    first, events, boxes, done = 0.0, 0, 0, 0.0
    for piece in record_many(makers, lambda scene: np.arange(5_000, scene.duration_us + 1, 5_000), device, threads):
        first = first or time.perf_counter()
        events += len(piece.events)
        boxes += sum(len(seen.boxes) for _, seen in piece.boxes)
        if piece.boxes:
            done += len(piece.boxes) * 0.005
        if progress is not None:
            progress(done, seconds * recordings)
    ended = time.perf_counter()
    return SimulationBench(
        device=torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
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
    """The events of a simulated drive, for other benchmarks that need real statistics; on the CPU."""
    return Events.concatenate([piece.events for piece in record(Scene(seed, profile, seconds=seconds))])


def _pixel_models(scene: Scene, device: str) -> dict[str, float]:
    """Frames a second of the readable pixel model, and of eventcv's where it is installed, on the same frames."""
    times = np.arange(FRAMES) * min(1_000, scene.duration_us // FRAMES)
    frames = np.stack([scene.light(int(time_us)) for time_us in times])
    camera = EventCamera(scene.camera, device=device)
    began = time.perf_counter()
    camera.simulate(torch.from_numpy(frames), times.tolist())
    speeds = {"fate": FRAMES / (time.perf_counter() - began)}
    try:
        import eventcv  # noqa: PLC0415  (a peer, not a part)
    except ImportError:
        return speeds
    grey = np.clip(frames * 255, 0, 255).astype(np.uint8)
    began = time.perf_counter()
    eventcv.simulate(grey, fps=1e6 / int(times[1] - times[0]))
    speeds["eventcv"] = FRAMES / (time.perf_counter() - began)
    return speeds
