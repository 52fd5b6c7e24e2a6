"""A scene recorded: events stretch by stretch, in time order, on the CPU.

The march gives the signal (``march.py``); here it gets its jitter, its bursts and the background noise, and is put in
time order. Jitter moves an event by a bounded time, so the last moments of a stretch are held back until the next one
is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.events.events import Events, Sensor
from fate.processes import allowed_processors
from fate.simulation.art.plan import MAX_STEP_US, Plan, make_plan
from fate.simulation.art.surfaces import Atlas, Surfaces
from fate.simulation.camera import noise
from fate.simulation.camera.noise import EventColumns
from fate.simulation.camera.pixel import CameraModel, pixel_maps
from fate.simulation.render.march import Circuit, Pixels, march_tiles
from fate.simulation.render.scene import STRETCH_US, Boxes, Scene

#: Tiles are shared out to this many tasks a thread, so that a busy corner of the picture does not hold up the rest.
TASKS_PER_THREAD = 4


def circuit_of(camera: CameraModel) -> Circuit:
    """The numbers of a camera that all its pixels share, in the march's units."""
    smallest = min(camera.threshold_on, camera.threshold_off)
    return Circuit(
        dark_light=camera.dark_light,
        cutoff=2e-6 * math.pi * (camera.cutoff_hz or 0.0),
        cutoff_floor=camera.cutoff_floor,
        refractory_us=float(camera.refractory_us),
        leak=camera.leak_hz * 1e-6,
        max_change=smallest,
        most=int((16.0 + camera.leak_hz * camera.threshold_on * 2e-6 * MAX_STEP_US) / (0.2 * smallest)) + 2,
    )


def first_pixels(camera: CameraModel, seed: int, light: NDArray[np.float32]) -> Pixels:
    """Pixels that have been looking at ``light`` [H, W] for a long time."""
    maps = pixel_maps(camera, seed)
    on, off, phase = (part.numpy().astype(np.float32) for part in maps)
    level = np.log(light + np.float32(camera.dark_light))
    return Pixels(on, off, level, level.copy(), level - phase, np.full_like(level, -1.0))


def unpacked(keys: Tensor, start_us: int) -> EventColumns:
    """Columns of events from their keys (see ``march.event_key``)."""
    return EventColumns((keys >> 29) + start_us, (keys >> 1) & 0x3FFF, (keys >> 15) & 0x3FFF, keys & 1)


class Finisher:
    """Adds to one recording's signal what comes after the pixel, and lets events go in time order."""

    def __init__(self, camera: CameraModel, seed: int, duration_us: int, device: str | torch.device = "cpu") -> None:
        self.camera, self.seed, self.duration_us, self.device = camera, seed, duration_us, device
        self.background = camera.background(seed, device)
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        self._held = EventColumns(nothing, nothing, nothing, nothing)
        self._held_back_us = math.ceil(noise.JITTER_LIMIT * camera.jitter_us) + 1

    def finish(self, signal: EventColumns, light: Tensor, start_us: int, end_us: int) -> EventColumns:
        """The recording's next events, given the signal of [start_us, end_us] in a fixed order.

        Args:
            signal: events of the stretch.
            light: [H, W] linear light at its end; bursts sit where it is bright and textured.
            start_us, end_us: the stretch.
        """
        camera = self.camera
        last = end_us >= self.duration_us
        random = noise.generator(self.seed, noise.JITTER, start_us, self.device)
        signal = signal._replace(t_us=noise.jitter(signal.t_us, camera.jitter_us, random).clamp_(min=0))
        if camera.bursts:
            random = noise.generator(self.seed, noise.BURSTS, start_us, self.device)
            chance = camera.burst_probability(light)[signal.y, signal.x]
            signal = camera.with_bursts(signal, chance, random)
        events = noise.in_time_order(self._held, signal, self.background.window(start_us, end_us))
        free = int(torch.searchsorted(events.t_us, self.duration_us if last else end_us - self._held_back_us))
        self._held = EventColumns(*(column[free:] for column in events))
        return EventColumns(*(column[:free] for column in events))


class Piece(NamedTuple):
    """One stretch of one recording."""

    recording: int  #: which of the scenes
    events: Events  #: its next events, in time order; those of the stretch's last moments come with the next piece
    boxes: list[tuple[int, Boxes]]  #: of the times asked for that lie in the stretch
    last: bool  #: the recording is complete


def record(
    scene: Scene, times_us: NDArray[np.int64] | None = None, threads: int | None = None, number: int = 0
) -> Iterator[Piece]:
    """Record one scene on the CPU, one piece a stretch.

    Args:
        scene: what is recorded, with its camera.
        times_us: when boxes are wanted, sorted; none by default.
        threads: that share the work; all cores by default. The events do not depend on it.
        number: that the pieces carry.
    """
    threads = threads or allowed_processors()
    times_us = np.zeros(0, np.int64) if times_us is None else times_us
    camera, sensor = scene.camera, scene.sensor
    circuit = circuit_of(camera)
    pixels = first_pixels(camera, scene.seed, scene.light(0))
    finisher = Finisher(camera, scene.seed, scene.duration_us)
    tasks = threads * TASKS_PER_THREAD
    with ThreadPoolExecutor(threads) as pool:
        for stretch in range(scene.num_stretches):
            start_us = stretch * STRETCH_US
            end_us = min(start_us + STRETCH_US, scene.duration_us)
            last = stretch == scene.num_stretches - 1
            surfaces = scene.surfaces(stretch)
            plan = make_plan(surfaces, scene.stage.atlas, sensor.height, sensor.width)
            march = partial(
                _march_part, tasks, float(end_us - start_us), surfaces, scene.stage.atlas, plan, pixels, circuit
            )
            marching = [pool.submit(march, task) for task in range(tasks)]
            looking = pool.submit(scene.boxes_at, scene.times_in(stretch, times_us))
            keys = np.sort(np.concatenate([part.result() for part in marching]))
            light = torch.from_numpy(np.exp(pixels.log_light) - np.float32(camera.dark_light)).clamp_(min=0)
            done = finisher.finish(unpacked(torch.from_numpy(keys), start_us), light, start_us, end_us)
            yield Piece(number, as_events(done, sensor), looking.result().by_moment(), last)


def _march_part(tasks: int, length_us: float, surfaces: Surfaces, atlas: Atlas, plan: Plan, pixels: Pixels,
                circuit: Circuit, task: int) -> NDArray[np.int64]:  # fmt: skip
    return march_tiles(task, tasks, length_us, surfaces, atlas, plan, pixels, circuit)[0]


def as_events(columns: EventColumns, sensor: Sensor) -> Events:
    """Columns as events in memory."""
    t_us, x, y, p = (column.cpu().numpy() for column in columns)
    return Events.trusted(t_us, x.astype(np.uint16), y.astype(np.uint16), p.astype(np.uint8), sensor)
