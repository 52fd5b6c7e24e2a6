"""Recording a video: its frames, one after the other, become events in time order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch

from fate.errors import FateError
from fate.events.events import Events
from fate.processes import allowed_processors
from fate.simulation.camera.camera_model import CameraModel
from fate.simulation.camera.pixels_cpu import adapted_pixels, shared_circuit
from fate.simulation.camera.recorder import TASKS_PER_THREAD, SensorOutput, unpack_keys
from fate.simulation.video.flow import MotionFinder, one_opencv_thread
from fate.simulation.video.frames import Frame
from fate.simulation.video.pixels import advance_tiles


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
