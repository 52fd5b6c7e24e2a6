"""Recording a video: its frames, one after the other, become events in time order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch

from fate.compiled import compiled
from fate.errors import FateError
from fate.events.events import Events
from fate.processes import allowed_processors
from fate.simulation.arrays import Float32, Int64
from fate.simulation.camera.camera_model import CameraModel
from fate.simulation.camera.pixels_cpu import (
    Circuit,
    PixelState,
    adapted_pixels,
    compare,
    event_key,
    low_pass,
    shared_circuit,
)
from fate.simulation.camera.recorder import TASKS_PER_THREAD, SensorOutput, unpack_keys
from fate.simulation.video.flow import TILE, Motion, MotionFinder, blend_tile, one_opencv_thread, start_tile
from fate.simulation.video.frames import Frame


class VideoPiece(NamedTuple):
    """The time from one frame to the next."""

    events: Events  #: the next events, in time order; those of the last moments come with the next piece
    end_us: int  #: time of the second frame
    cut: bool  #: whether the two frames show different scenes
    last: bool  #: whether the video ends with the second frame


def record_video(
    frames: Iterable[Frame], camera: CameraModel, seed: int = 0, threads: int | None = None
) -> Iterator[VideoPiece]:
    """Record frames, whose times increase from 0, with a camera; two frames are in memory at a time.

    ``threads`` share the work, all cores by default; the events do not depend on them. At a cut the pixels adapt to the
    new scene at once, so that it makes no events, as if the recording had started there.
    """
    remaining = iter(frames)
    before, after = next(remaining, None), next(remaining, None)
    if before is None or after is None:
        raise FateError(f"{0 if before is None else 1} frames were given; events need two frames or more")
    threads = threads or allowed_processors()
    tasks = threads * TASKS_PER_THREAD
    circuit, pixels = shared_circuit(camera), adapted_pixels(camera, seed, before.light)
    output = SensorOutput(camera, seed, duration_us=2**62)
    with one_opencv_thread(), ThreadPoolExecutor(threads) as pool:
        finder = MotionFinder()
        while after is not None:
            start_us, end_us = before.t_us, after.t_us
            length_us = float(end_us - start_us)
            keys = np.zeros(0, np.int64)
            motion = finder.find(before.light, after.light, length_us)
            if motion is None:
                pixels = adapted_pixels(camera, seed, after.light)
            else:
                rest = (length_us, before.light, after.light, motion, pixels, circuit)
                advancing = [pool.submit(advance_tiles, task, tasks, *rest) for task in range(tasks)]
                keys = np.sort(np.concatenate([part.result() for part in advancing]))
            upcoming = next(remaining, None)
            if upcoming is None:
                output.duration_us = end_us
            light = torch.from_numpy(after.light)
            events = output.finish(unpack_keys(torch.from_numpy(keys), start_us), light, start_us, end_us)
            yield VideoPiece(events.to_events(camera.sensor), end_us, motion is None, upcoming is None)
            before, after = after, upcoming


_ZERO, _ONE = np.float32(0), np.float32(1)


@compiled
def advance_tiles(begin: int, every: int, length_us: float, light0: Float32, light1: Float32, motion: Motion,
                  pixels: PixelState[Float32], circuit: Circuit) -> Int64:  # fmt: skip
    """Advance the pixels of the tiles ``begin``, ``begin + every``, … from one frame to the next, ``length_us`` later.

    The pixel is that of ``camera/pixels_cpu.py``; the light comes from ``flow.py``. Each tile has the number of time
    steps that its motion needs. Returns the events as keys (see ``pixels_cpu.event_key``), unsorted.
    """
    height, width = light0.shape
    columns = (width + TILE - 1) // TILE
    keys = np.empty(1 << 14, np.int64)
    found = 0
    found_flows, lights = np.empty((4, TILE, TILE), np.float32), np.empty((TILE, TILE), np.float32)
    times, signs = np.empty(circuit.most, np.float32), np.empty(circuit.most, np.uint8)
    cutoff, floor = np.float32(circuit.cutoff), np.float32(circuit.cutoff_floor)
    dark, leak = np.float32(circuit.dark_light), np.float32(circuit.leak)
    # names of their own: the loop over pixels is faster than with the fields of a tuple
    theta_on, theta_off, log_light, receptor, reference, releases = pixels
    for tile in range(begin, len(motion.steps), every):
        top, left = tile // columns * TILE, tile % columns * TILE
        bottom, right = min(top + TILE, height), min(left + TILE, width)
        steps = motion.steps[tile]
        step = length_us / steps
        part = (slice(top, bottom), slice(left, right))
        found_flow, light = found_flows[:, : bottom - top, : right - left], lights[: bottom - top, : right - left]
        moves = motion.moves[tile]
        if moves:
            start_tile(motion, top, left, found_flow)
        for number in range(steps):
            if len(keys) - found < TILE * TILE * circuit.most:
                larger = np.empty(2 * len(keys) + TILE * TILE * circuit.most, np.int64)
                larger[:found] = keys[:found]
                keys = larger
            share, now = np.float32((number + 1) / steps), number * step
            if number == steps - 1:
                light[:] = light1[part]
            elif moves:
                blend_tile(light0, light1, motion, top, left, share, found_flow, light)
            else:
                light[:] = (_ONE - share) * light0[part] + share * light1[part]
            for y in range(top, bottom):
                for x in range(left, right):
                    shown = light[y - top, x - left]
                    u = np.float32(math.log(shown + dark))
                    v0 = receptor[y, x]
                    v = low_pass(cutoff, floor, shown, np.float32(step), log_light[y, x], u, v0)
                    log_light[y, x], receptor[y, x] = u, v
                    release = releases[y, x]
                    if release > step:
                        releases[y, x] = release - np.float32(step)
                        continue
                    on, off = theta_on[y, x], theta_off[y, x]
                    leaked = leak * on * np.float32(step)
                    if release < _ZERO and -off < v - reference[y, x] + leaked < on:  # nearly always
                        reference[y, x] -= leaked
                        continue
                    level, release_us, count = compare(
                        0.0, step, float(v0), float(v), reference[y, x], release, on, off, circuit.leak,
                        circuit.refractory_us, times, signs,
                    )  # fmt: skip
                    reference[y, x] = level
                    releases[y, x] = release_us - step if release_us >= 0.0 else -1.0
                    for event in range(count):
                        keys[found] = event_key(now + times[event], y, x, signs[event])
                        found += 1
    return keys[:found]
