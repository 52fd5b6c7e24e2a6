"""How many seconds of recording the simulator makes per second; its pixel model is compared with eventcv's."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial

import numpy as np
import torch

from fate.bench.harness import BenchResult, Measurement, describe_device, time_call
from fate.events.events import Events
from fate.progress import Progress
from fate.simulation.camera.event_camera import EventCamera
from fate.simulation.camera.recorder import record, record_many
from fate.simulation.render.scene import Scene
from fate.simulation.writing.request import Request, check_machine
from fate.text import plural

FRAMES = 200  # that each pixel model gets


def bench_simulate(
    recordings: int = 4,
    seconds: float = 5.0,
    profile: str = "gen1",
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress | None = None,
) -> BenchResult:
    """Measure how fast recordings and their exact boxes at 200 Hz are simulated, without writing files.

    Args:
        recordings: number of recordings.
        seconds: length of each recording.
        profile: camera, "gen1", "1mpx", "park" or "mixed".
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
    wall_s, first_s, total_s = ended - began, first - began, recordings * seconds
    in_all, running = total_s / wall_s, total_s / max(ended - first, 1e-9)
    where, cores = describe_device(device), os.cpu_count() or 1
    about = (
        f"{where}, {plural(cores, 'core')}; {plural(recordings, 'recording')} of {seconds:g} s, {profile}\n"
        f"{in_all:.2f} × real time in all, {running:.2f} × after the first events"
        f" (they came after {first_s:.1f} s of {wall_s:.1f} s)\n"
        f"{events / 1e6:.1f} million events, {plural(boxes, 'box', 'boxes')} at 200 Hz"
    )
    facts = {
        "device": where,
        "cores": cores,
        "profile": profile,
        "recordings": recordings,
        "seconds": seconds,  # of each recording
        "wall_s": wall_s,  # from the first scene to the last event
        "first_piece_s": first_s,  # until the first events: processes start, first streets are drawn
        "real_time": in_all,  # seconds of recording per second of the whole run
        "real_time_running": running,  # seconds of recording per second after the first events
        "events": events,
        "boxes": boxes,
    }
    head, row = "pixel model, on frames in memory | frames/s", "{model} | {frames_per_s:.0f}"
    return BenchResult(about, facts, head, row, _pixel_models(makers[0](), device))


def drive_events(profile: str = "gen1", seconds: float = 1.6, seed: int = 2) -> Events:
    """Return the events of a simulated drive, for other benchmarks that need real statistics."""
    return Events.concatenate([piece.events for piece in record(Scene(seed, profile, seconds=seconds))])


def _pixel_models(scene: Scene, device: str) -> list[Measurement]:
    """Measure our readable pixel model, and eventcv's if it is installed, on equal frames."""
    times = np.arange(FRAMES) * min(1_000, scene.duration_us // FRAMES)
    frames = np.stack([scene.light(int(time_us)) for time_us in times])
    camera = EventCamera(scene.camera, device=device)
    spent_s = {"fate": time_call(lambda: camera.simulate(torch.from_numpy(frames), times.tolist()))}
    with suppress(ImportError):
        import eventcv  # noqa: PLC0415  (a peer, not a dependency)

        grey = np.clip(frames * 255, 0, 255).astype(np.uint8)
        fps = 1e6 / int(times[1] - times[0])
        spent_s["eventcv"] = time_call(lambda: eventcv.simulate(grey, fps=fps))
    return [Measurement(model=name, frames_per_s=FRAMES / seconds) for name, seconds in spent_s.items()]
