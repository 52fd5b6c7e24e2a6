"""Many scenes recorded side by side on a GPU.

Processes of their own draw the scenes, pose the surfaces, plan the tiles and look for boxes; this process feeds the
GPU stretch by stretch, and finishes all recordings of a batch at once: jitter, bursts, background, order in time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from queue import Empty, Queue
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.processes import worker_context
from fate.simulation.art.plan import Plan, make_plan
from fate.simulation.art.surfaces import Atlas, Surfaces
from fate.simulation.camera import noise
from fate.simulation.camera.noise import EventColumns
from fate.simulation.camera.pixel import CameraModel
from fate.simulation.camera.recorder import Piece, circuit_of, first_pixels
from fate.simulation.render.march_gpu import RECORDING_SHIFT, TIME_OFFSET, TIME_SHIFT, Batch, GpuMarch, PixelBatch
from fate.simulation.render.scene import STRETCH_US, BoxesAt, Scene

#: Recordings side by side: enough to fill a large GPU, few enough that the first ones start soon.
RECORDINGS = 120
#: Pixels side by side; a 1280 × 720 sensor has as many as twelve of 304 × 240.
PIXELS = RECORDINGS * 304 * 240
#: Stretches a process may be ahead of the GPU.
AHEAD = 6


class Opening(NamedTuple):
    """What a process sends of a scene first: its pictures and pixels."""

    place: int
    atlas: Atlas
    pixels: tuple[NDArray[np.float32], ...]


class Packet(NamedTuple):
    """What a process sends of one stretch of one scene."""

    place: int
    surfaces: Surfaces
    textures: NDArray[np.int64]  #: [K, 4] first entry, columns, rows, opaque
    plan: Plan
    background: NDArray[np.int64]  #: [E, 4] t_us, x, y, p
    boxes: BoxesAt


#: A scene's place in its batch, the scene, and when its boxes are wanted.
Share = list[tuple[int, Scene, NDArray[np.int64]]]


def _prepare(shares: list[Share], pipe: Connection) -> None:
    """A process's work: its share of one batch of scenes after the other."""
    torch.set_num_threads(1)  # the processes share the cores among them
    try:
        for share in shares:
            _prepare_share(share, pipe)
    except BrokenPipeError:  # nobody listens any more
        pass
    except Exception as error:  # it is raised again in the main process
        pipe.send(error)


def _prepare_share(scenes: Share, pipe: Connection) -> None:
    """Openings of some scenes, then their stretches in turn."""
    for place, scene, _ in scenes:
        pixels = first_pixels(scene.camera, scene.seed, scene.light(0))
        pipe.send(Opening(place, scene.stage.atlas, tuple(pixels)))
    noises = {place: scene.camera.background(scene.seed) for place, scene, _ in scenes}
    for stretch in range(max((scene.num_stretches for _, scene, _ in scenes), default=0)):
        start_us = stretch * STRETCH_US
        for place, scene, times_us in scenes:
            end_us = min(start_us + STRETCH_US, scene.duration_us)
            surfaces, atlas = scene.surfaces(stretch), scene.stage.atlas
            which = surfaces.texture
            textures = np.stack(
                [atlas.offset[which], atlas.width[which], atlas.height[which], atlas.opaque[which]], axis=1
            )
            pipe.send(
                Packet(
                    place,
                    surfaces,
                    textures.astype(np.int64),
                    make_plan(surfaces, atlas, *scene.sensor),
                    torch.stack(list(noises[place].window(start_us, end_us)), 1).numpy(),
                    scene.boxes_at(scene.times_in(stretch, times_us)),
                )
            )


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started here leave the other cores to each other: their numerical libraries read this at start."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Workers:
    """Processes that prepare scenes, batch after batch: while the GPU is at one, they begin with the next.

    A thread for each process takes in what it sends, a few stretches ahead of the GPU.
    """

    def __init__(self, batches: list[Share], count: int) -> None:
        context = worker_context(preload=__name__)
        self._count = min(count, len(batches[0]))
        self._processes, self._received = [], []
        for worker in range(self._count):
            pipe, far_end = context.Pipe(duplex=False)
            shares = [batch[worker :: self._count] for batch in batches]
            process = context.Process(target=_prepare, args=(shares, far_end), daemon=True)
            with _one_thread_each():
                process.start()
            far_end.close()  # so that the pipe ends when the process does
            received: Queue[Any] = Queue(maxsize=AHEAD * len(shares[0]))
            Thread(target=_take_in, args=(pipe, received), daemon=True).start()
            self._processes.append(process)
            self._received.append(received)

    def next(self, place: int) -> Any:
        """What the process of a scene sends next; scenes of one process come in turn."""
        message = self._received[place % self._count].get()
        if isinstance(message, Exception):
            raise message
        return message

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for process in self._processes:
            process.terminate()
            process.join()
        for received in self._received:  # a thread may wait for room
            with suppress(Empty):
                while True:
                    received.get_nowait()


def _take_in(pipe: Connection, received: Queue[Any]) -> None:
    """Messages from a pipe to a queue, until the pipe ends."""
    try:
        while True:
            received.put(pipe.recv())
    except (EOFError, OSError):
        received.put(
            FateError(
                "a process that prepares scenes has ended before its work was done; there may be too little memory:"
                " give fewer threads=N"
            )
        )


class _Finishing:
    """What comes after the pixel, for all recordings of a batch at once: ``recorder.Finisher`` on sorted keys."""

    def __init__(self, cameras: Sequence[CameraModel], seeds: Sequence[int], device: torch.device) -> None:
        self.camera, self.device = cameras[0], device
        self._jitter_us = torch.tensor([camera.jitter_us for camera in cameras], device=device)
        self._bursting = torch.tensor([camera.bursts for camera in cameras], device=device)
        self._seed = int(np.random.SeedSequence(list(seeds)).generate_state(1, np.uint32)[0])
        held_back = torch.ceil(noise.JITTER_LIMIT * self._jitter_us).long() + 1
        self._held_back_us = held_back
        self._held = torch.zeros(0, dtype=torch.int64, device=device)

    def finish(
        self, keys: Tensor, log_light: Tensor, background: Tensor, start_us: int, length_us: int, last: bool
    ) -> Tensor:
        """Keys of all recordings' next events, sorted by recording and time.

        Args:
            keys: of the signal, in any order.
            log_light: [B, H, W] at the end of the stretch.
            background: keys of shot noise and hot pixels.
            start_us, length_us: the stretch.
            last: nothing comes after it.
        """
        keys = torch.sort(keys).values  # in a fixed order, so that the same event gets the same jitter every time
        random = noise.generator(self._seed, noise.JITTER, start_us, self.device)
        normal = torch.randn(keys.shape, generator=random, device=self.device)
        normal = normal.clamp_(-noise.JITTER_LIMIT, noise.JITTER_LIMIT) * self._jitter_us[keys >> RECORDING_SHIFT]
        keys = keys + (torch.round(normal).long() << TIME_SHIFT)
        if bool(self._bursting.any()):
            keys = self._with_bursts(keys, log_light, start_us)
        keys = torch.sort(torch.cat([self._held, keys, background])).values
        recording, t_us = keys >> RECORDING_SHIFT, ((keys >> TIME_SHIFT) & 0x7FFFF) - TIME_OFFSET
        if start_us == 0:  # jitter cannot take an event before the recording's start
            early = t_us < 0
            keys = torch.where(early, keys - (t_us << TIME_SHIFT), keys)
            keys = torch.sort(keys).values if bool(early.any()) else keys
            t_us = t_us.clamp_(min=0)
        free = t_us < (length_us if last else length_us - self._held_back_us[recording])
        self._held = keys[~free] - (length_us << TIME_SHIFT)
        return keys[free]

    def _with_bursts(self, keys: Tensor, log_light: Tensor, start_us: int) -> Tensor:
        """Some events of the recordings with bursts, repeated."""
        mine = self._bursting[keys >> RECORDING_SHIFT]
        chosen = keys[mine]
        recording, y, x = chosen >> RECORDING_SHIFT, (chosen >> 15) & 0x3FFF, (chosen >> 1) & 0x3FFF
        light = (torch.exp(log_light) - self.camera.dark_light).clamp_(min=0.0)
        chance = self.camera.burst_probability(light)[recording, y, x]
        columns = EventColumns(chosen >> TIME_SHIFT, chosen & ((1 << TIME_SHIFT) - 1), y, y)
        random = noise.generator(self._seed, noise.BURSTS, start_us, self.device)
        repeated = self.camera.with_bursts(columns, chance, random)
        return torch.cat([keys[~mine], (repeated.t_us << TIME_SHIFT) | repeated.x])


def record_on_gpu(
    scenes: Sequence[Callable[[], Scene]],
    times_us: Callable[[Scene], NDArray[np.int64]],
    device: str = "cuda",
    threads: int | None = None,
) -> Iterator[Piece]:
    """Record scenes of one profile and length on a GPU, many side by side; see ``recorder.record_many``."""
    made = [make() for make in scenes]  # streets are drawn when they are first looked at, in the processes
    if not made:
        return
    kinds = {(scene.sensor, scene.duration_us) for scene in made}
    if len(kinds) > 1:
        raise FateError(f"scenes of {len(kinds)} sensors and lengths were given; on a GPU all must be of one")
    size = min(max(PIXELS // (made[0].sensor.height * made[0].sensor.width), 1), len(made))
    numbers = [range(first, min(first + size, len(made))) for first in range(0, len(made), size)]
    batches: list[Share] = [
        [(place, made[number], times_us(made[number])) for place, number in enumerate(batch)] for batch in numbers
    ]
    workers = _Workers(batches, threads or max((os.cpu_count() or 2) - 1, 1))
    try:
        torch.zeros(1, device=device)  # the GPU wakes up while the processes do
        for batch, share in zip(numbers, batches, strict=True):
            yield from _record_batch(batch, [scene for _, scene, _ in share], workers, torch.device(device))
    finally:
        workers.close()


def _record_batch(
    numbers: Sequence[int], scenes: list[Scene], workers: _Workers, device: torch.device
) -> Iterator[Piece]:
    openings: list[Opening] = [workers.next(place) for place in range(len(scenes))]
    march, bases = _opened(openings, scenes, device)
    del openings
    finishing = _Finishing([scene.camera for scene in scenes], [scene.seed for scene in scenes], device)
    stretches = scenes[0].num_stretches

    def prepared(stretch: int) -> tuple[list[Packet], Batch, Tensor]:
        packets: list[Packet] = [workers.next(place) for place in range(len(scenes))]
        return packets, _batched(packets, bases, device), _background_keys(packets, stretch * STRETCH_US).to(device)

    with ThreadPoolExecutor(1) as ahead:  # puts the next stretch together while the GPU is at this one
        upcoming = ahead.submit(prepared, 0)
        for stretch in range(stretches):
            start_us, last = stretch * STRETCH_US, stretch == stretches - 1
            length_us = min(STRETCH_US, scenes[0].duration_us - start_us)
            packets, batch, background = upcoming.result()
            if not last:
                upcoming = ahead.submit(prepared, stretch + 1)
            keys = march.march(batch, float(length_us))
            done = finishing.finish(keys, march.pixels.log_light, background, start_us, length_us, last)
            events = _split(done, len(scenes), scenes[0].sensor, start_us)
            for number, packet, piece in zip(numbers, packets, events, strict=True):
                yield Piece(number, piece, packet.boxes.by_moment(), last)


def _opened(openings: list[Opening], scenes: list[Scene], device: torch.device) -> tuple[GpuMarch, NDArray[np.int64]]:
    """The march of a batch, and where each recording's textures begin in its tables."""
    sizes = [len(opening.atlas.light) for opening in openings]
    bases = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    light, alpha = (
        torch.from_numpy(np.concatenate([opening.atlas[part] for opening in openings])).to(device) for part in (0, 1)
    )
    pixels = PixelBatch(
        *(torch.from_numpy(np.stack([opening.pixels[part] for opening in openings])).to(device) for part in range(6))
    )
    circuits = [circuit_of(scene.camera) for scene in scenes]
    shared = torch.tensor([list(circuit[:6]) for circuit in circuits], dtype=torch.float32, device=device)
    return GpuMarch(pixels, shared, light, alpha, room=pixels.receptor.numel() * 2), bases


def _batched(packets: list[Packet], bases: NDArray[np.int64], device: torch.device) -> Batch:
    """The packets of one stretch as padded arrays on the GPU."""
    knots = len(packets[0].surfaces.maps)
    most = max(1, *(packet.surfaces.maps.shape[1] for packet in packets))
    maps = np.zeros((len(packets), knots, most, 11), np.float32)
    light = np.zeros((len(packets), most, 4), np.float32)
    places = np.ones((len(packets), most, 4), np.int64)
    firsts = []
    used = 0
    for place, packet in enumerate(packets):
        part = packet.surfaces
        count = part.maps.shape[1]
        maps[place, :, :count] = part.maps
        light[place, :count] = np.stack([part.glow, part.flicker, part.depth, part.phase], axis=1)
        places[place, :count] = packet.textures
        places[place, :, 0] += bases[place]
        firsts.append(packet.plan.first + used)
        used += len(packet.plan.ids)

    def moved(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    return Batch(
        maps=moved(maps),
        light=moved(light),
        places=moved(places),
        first=moved(np.stack(firsts)),
        ids=moved(np.concatenate([packet.plan.ids for packet in packets])),
        step_us=moved(np.stack([packet.plan.step_us for packet in packets])),
        sky=moved(np.stack([packet.surfaces.sky for packet in packets])),
        focal=packets[0].surfaces.focal,
    )


def _background_keys(packets: list[Packet], start_us: int) -> Tensor:
    """Noise of all recordings as keys."""
    parts = []
    for place, packet in enumerate(packets):
        t_us, x, y, p = packet.background.T
        key = ((t_us - start_us + TIME_OFFSET) << TIME_SHIFT) | (y << 15) | (x << 1) | p
        parts.append((place << RECORDING_SHIFT) | key)
    return torch.from_numpy(np.concatenate(parts))


def _split(keys: Tensor, count: int, sensor: Sensor, start_us: int) -> list[Events]:
    """Sorted keys as the events of each recording."""
    borders = torch.arange(count + 1, device=keys.device) << RECORDING_SHIFT
    ends = torch.searchsorted(keys, borders).tolist()
    t_us = (((keys >> TIME_SHIFT) & 0x7FFFF) - TIME_OFFSET + start_us).cpu().numpy()
    x, y = (((keys >> shift) & 0x3FFF).to(torch.int16).cpu().numpy().view(np.uint16) for shift in (1, 15))
    p = (keys & 1).to(torch.uint8).cpu().numpy()
    return [Events.trusted(t_us[a:b], x[a:b], y[a:b], p[a:b], sensor) for a, b in pairwise(ends)]
