"""Recording scenes: events stretch by stretch, in time order. The CPU version is here, the GPU one in ``recorder_gpu``.

``pixels_cpu.py`` computes the signal; :class:`SensorOutput` adds jitter, bursts and background noise and sorts by
time. Jitter moves an event by a bounded time, so the last moments of a stretch are held back until the next one is
complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from fate.processes import allowed_processors
from fate.simulation.arrays import Int64
from fate.simulation.camera import noise
from fate.simulation.camera.camera_model import CameraModel
from fate.simulation.camera.framing import framed
from fate.simulation.camera.noise import EventColumns
from fate.simulation.camera.pixels_cpu import adapted_pixels, advance_tiles, shared_circuit
from fate.simulation.render.scene import STRETCH_US, RecordedPiece, Scene
from fate.simulation.render.tiles import schedule_tiles

#: Tiles are shared out to this many tasks a thread, so that a busy corner of the picture does not hold up the rest.
TASKS_PER_THREAD = 4


def unpack_keys(keys: Tensor, start_us: int) -> EventColumns:
    """Columns of events from their keys (see ``pixels_cpu.event_key``)."""
    return EventColumns((keys >> 29) + start_us, (keys >> 1) & 0x3FFF, (keys >> 15) & 0x3FFF, keys & 1)


class SensorOutput:
    """Adds to one recording's signal what comes after the pixel, and lets events go in time order."""

    def __init__(self, camera: CameraModel, seed: int, duration_us: int) -> None:
        self.camera, self.seed, self.duration_us = camera, seed, duration_us
        self.background = noise.BackgroundNoise(camera, seed)
        self._held = EventColumns.empty("cpu")
        self._held_back_us = math.ceil(noise.JITTER_LIMIT * camera.jitter_us) + 1

    def finish(self, signal: EventColumns, light: Tensor, start_us: int, end_us: int) -> EventColumns:
        """The recording's next events, given the signal of the stretch [start_us, end_us] in a fixed order.

        ``light`` [H, W] is linear light at its end; bursts sit where it is bright and textured, noise where it is dark.
        """
        chance = noise.burst_probability(self.camera, light)[signal.y, signal.x] if self.camera.bursts else 0.0
        signal = noise.jittered(self.camera, signal, chance, self.seed, start_us, (0, None))
        background = self.background.window(start_us, end_us, lambda events: light[events.y, events.x])
        events = noise.in_time_order(self._held, signal, background)
        last = end_us >= self.duration_us
        free = int(torch.searchsorted(events.t_us, self.duration_us if last else end_us - self._held_back_us))
        self._held = events.select(slice(free, None))
        return events.select(slice(free))


def record(
    scene: Scene, times_us: Int64 | None = None, threads: int | None = None, number: int = 0
) -> Iterator[RecordedPiece]:
    """Record one scene with its camera on the CPU, one piece for each stretch.

    The boxes are those at ``times_us``, sorted; none by default. ``threads`` share the work, all cores by default; the
    events do not depend on them. The pieces hold ``number`` as their ``recording``; pixels
    are those of ``scene.sensor``.
    """
    threads = threads or allowed_processors()
    times_us = np.zeros(0, np.int64) if times_us is None else times_us
    camera, sensor, circuit = scene.camera, scene.sensor, shared_circuit(scene.camera)
    pixels = adapted_pixels(camera, scene.seed, scene.light(0))
    output = SensorOutput(camera, scene.seed, scene.duration_us)
    tasks = threads * TASKS_PER_THREAD
    with ThreadPoolExecutor(threads) as pool:
        for stretch in range(scene.num_stretches):
            start_us = stretch * STRETCH_US
            end_us = min(start_us + STRETCH_US, scene.duration_us)
            surfaces = scene.surfaces(stretch)
            schedule = schedule_tiles(surfaces, scene.atlas, sensor.height, sensor.width)
            rest = (float(end_us - start_us), surfaces, scene.atlas, schedule, pixels, circuit)
            advancing = [pool.submit(advance_tiles, task, tasks, *rest) for task in range(tasks)]
            looking = pool.submit(scene.boxes_in, stretch, times_us)
            keys = np.sort(np.concatenate([part.result() for part in advancing]))
            light = torch.from_numpy(np.exp(pixels.log_light) - np.float32(camera.dark_light)).clamp_(min=0)
            done = output.finish(unpack_keys(torch.from_numpy(keys), start_us), light, start_us, end_us)
            yield RecordedPiece(number, scene, done.to_events(sensor), looking.result(), end_us == scene.duration_us)


def record_many(
    scenes: Sequence[Callable[[], Scene]],
    times_us: Callable[[Scene], Int64],
    device: str = "cpu",
    threads: int | None = None,
) -> Iterator[RecordedPiece]:
    """Record scenes: one after the other on the CPU, side by side on a GPU (their pieces then alternate).

    ``scenes`` are functions that make the scenes, and ``RecordedPiece.recording`` is an index into them. ``times_us``
    returns the sorted times of a scene's boxes. ``threads`` share the work, all cores by default. The pieces are in the
    frame of their recording (``framing.py``).
    """
    if device != "cpu":
        from fate.simulation.camera.recorder_gpu import record_on_gpu  # noqa: PLC0415  (needs triton, which needs a GPU)

        yield from framed(record_on_gpu(scenes, times_us, device, threads))
        return
    for number, make in enumerate(scenes):
        scene = make()
        yield from framed(record(scene, times_us(scene), threads, number))
