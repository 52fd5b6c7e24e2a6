"""Many scenes recorded side by side on a GPU.

Processes of their own draw the scenes, pose the surfaces, plan the tiles and look for boxes; this process feeds the
GPU stretch by stretch, and finishes all recordings of a batch at once: jitter, bursts, background, order in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.processes import allowed_processors, worker_context
from fate.simulation.arrays import Float32, Int64
from fate.simulation.camera import noise
from fate.simulation.camera.camera_model import CameraModel
from fate.simulation.camera.noise import EventColumns
from fate.simulation.camera.pixels_cpu import PixelState, adapted_pixels, shared_circuit
from fate.simulation.camera.pixels_gpu import RECORDING_SHIFT, TIME_OFFSET, TIME_SHIFT, GpuPixels, StretchBatch
from fate.simulation.render.scene import STRETCH_US, BoxesAt, RecordedPiece, Scene
from fate.simulation.render.surfaces import Atlas, Surfaces
from fate.simulation.render.tiles import TileSchedule, schedule_tiles

#: Recordings side by side: enough to fill a large GPU, few enough that the first ones start soon.
RECORDINGS = 120
#: Pixels side by side; a 1280 × 720 sensor has as many as twelve of 304 × 240.
PIXELS = RECORDINGS * 304 * 240
#: Stretches a process may be ahead of the GPU.
AHEAD = 6


class PreparedStretch(NamedTuple):
    """A message with one stretch of one scene."""

    surfaces: Surfaces
    textures: Int64  #: [K, 4] first entry, columns, rows, opaque
    schedule: TileSchedule
    shot_noise: Int64  #: [E] keys of the shot noise in the dark, without their recording
    hot_pixels: Int64  #: [E] keys of the events of hot pixels
    boxes: BoxesAt


#: The first message about a scene: its textures, and its pixels at the start.
PreparedScene = tuple[Atlas, PixelState[Float32]]
#: Scenes, and the times of their boxes.
SceneShare = list[tuple[Scene, Int64]]


class PreparedScenes(IterableDataset[PreparedScene | PreparedStretch | None]):
    """What the GPU needs of each batch of scenes: first the start of every scene, then every scene stretch by stretch.

    Worker ``w`` of W prepares the scenes w, w + W, … of a batch. It yields None where the last round has no scene for
    it, so that the loader, which takes from the workers in turn, gives every round in the order of the scenes.
    """

    def __init__(self, batches: list[SceneShare]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[PreparedScene | PreparedStretch | None]:
        worker, workers = (info.id, info.num_workers) if (info := get_worker_info()) else (0, 1)
        for scenes in self.batches:
            own = scenes[worker::workers]
            missing = [None] * (-(-len(scenes) // workers) - len(own))
            for scene, _ in own:
                yield scene.atlas, adapted_pixels(scene.camera, scene.seed, scene.light(0))
            yield from missing
            noises = [noise.BackgroundNoise(scene.camera, scene.seed) for scene, _ in own]
            for stretch in range(scenes[0][0].num_stretches):
                for (scene, times_us), background in zip(own, noises, strict=True):
                    yield prepare_stretch(scene, stretch, times_us, background)
                yield from missing


def prepare_stretch(scene: Scene, stretch: int, times_us: Int64, background: noise.BackgroundNoise) -> PreparedStretch:
    """Pose the surfaces of one stretch, plan its tiles, draw its noise and look for its boxes."""
    start_us, surfaces, atlas = stretch * STRETCH_US, scene.surfaces(stretch), scene.atlas
    end_us = min(start_us + STRETCH_US, scene.duration_us)
    shot_noise, hot_pixels = (
        (((t_us - start_us + TIME_OFFSET) << TIME_SHIFT) | (y << 15) | (x << 1) | p).numpy()
        for t_us, x, y, p in (background.shot_noise(start_us, end_us), background.hot_pixel_events(start_us, end_us))
    )
    schedule = schedule_tiles(surfaces, atlas, *scene.sensor)
    textures, boxes = atlas.slots[surfaces.texture], scene.boxes_in(stretch, times_us)
    return PreparedStretch(surfaces, textures, schedule, shot_noise, hot_pixels, boxes)


def prepare_in_workers(batches: list[SceneShare], workers: int, device: str) -> Iterator[list[Any]]:
    """Yield what :class:`PreparedScenes` prepares, one list [scenes of the batch] at a time.

    Worker processes work ahead of the GPU by a few stretches: while it is at one batch, they begin with the next.
    """
    largest = max(map(len, batches))
    workers = min(workers, largest)
    loader = DataLoader(
        PreparedScenes(batches),
        batch_size=None,
        num_workers=workers,
        collate_fn=_unchanged,
        prefetch_factor=AHEAD * -(-largest // workers),
        multiprocessing_context=worker_context(preload=__name__),
    )
    messages = iter(loader)
    torch.zeros(1, device=device)  # the GPU starts up while the processes do
    for scenes in batches:
        for _ in range(1 + scenes[0][0].num_stretches):
            try:
                received = [next(messages) for _ in range(-(-len(scenes) // workers) * workers)]
            except RuntimeError as error:
                if "exited unexpectedly" not in str(error) and "killed" not in str(error):
                    raise
                raise FateError(
                    f"a process that prepares scenes has ended before its work was done ({error}); there may be too"
                    " little memory: give fewer threads=N"
                ) from error
            yield received[: len(scenes)]


def _unchanged(message: Any) -> Any:
    """Keep the loader from converting numpy arrays."""
    return message


class GpuSensorOutput:
    """What comes after the pixel, for all recordings of a batch at once: ``recorder.SensorOutput`` on sorted keys."""

    def __init__(self, cameras: Sequence[CameraModel], seeds: Sequence[int], device: torch.device) -> None:
        if len({_burst_values(camera) for camera in cameras}) > 1:
            raise FateError("cameras with different dark_light or burst values were given; a batch needs the same ones")
        self.camera, self.device = cameras[0], device  # the camera of all, as far as bursts are concerned
        self._jitter_us = torch.tensor([camera.jitter_us for camera in cameras], device=device)
        self._bursting = torch.tensor([camera.bursts for camera in cameras], device=device)
        self._noise_exponent = torch.tensor([camera.noise_light_exponent for camera in cameras], device=device)
        self._seed = int(np.random.SeedSequence(list(seeds)).generate_state(1, np.uint32)[0])
        self._held_back_us = torch.ceil(noise.JITTER_LIMIT * self._jitter_us).long() + 1
        self._held = torch.zeros(0, dtype=torch.int64, device=device)

    def finish(
        self,
        keys: Tensor,
        log_light: Tensor,
        shot_noise: Tensor,
        hot_pixels: Tensor,
        start_us: int,
        length_us: int,
        last: bool,
    ) -> Tensor:
        """Return the keys of the next events of all recordings, sorted by recording and time.

        ``keys`` [E] is the signal in any order, ``shot_noise`` [E] that in the dark, ``log_light`` [B, H, W] the light
        at the end of the stretch; ``last`` says that no stretch comes after it.
        """
        keys = torch.sort(keys).values  # in a fixed order, so that the same event gets the same jitter every time
        random = noise.generator(self._seed, noise.JITTER, start_us, self.device)
        normal = torch.randn(keys.shape, generator=random, device=self.device)
        normal = normal.clamp_(-noise.JITTER_LIMIT, noise.JITTER_LIMIT) * self._jitter_us[keys >> RECORDING_SHIFT]
        keys = keys + (torch.round(normal).long() << TIME_SHIFT)
        if bool(self._bursting.any()):
            keys = self._with_bursts(keys, log_light, start_us)
        if bool(self._noise_exponent.any()):
            shot_noise = self._noise_in_light(shot_noise, log_light, start_us)
        keys = torch.sort(torch.cat([self._held, keys, shot_noise, hot_pixels])).values
        recording, t_us = keys >> RECORDING_SHIFT, ((keys >> TIME_SHIFT) & 0x7FFFF) - TIME_OFFSET
        if start_us == 0:  # jitter cannot take an event before the recording's start
            early = t_us < 0
            keys = torch.where(early, keys - (t_us << TIME_SHIFT), keys)
            keys = torch.sort(keys).values if bool(early.any()) else keys
            t_us = t_us.clamp_(min=0)
        free = t_us < (length_us if last else length_us - self._held_back_us[recording])
        self._held = keys[~free] - (length_us << TIME_SHIFT)
        return keys[free]

    def _noise_in_light(self, keys: Tensor, log_light: Tensor, start_us: int) -> Tensor:
        """The shot noise that is left in this light."""
        recording, y, x = keys >> RECORDING_SHIFT, (keys >> 15) & 0x3FFF, (keys >> 1) & 0x3FFF
        dark_light = self.camera.dark_light
        light = torch.exp(log_light[recording, y, x]) - dark_light
        random = noise.generator(self._seed, noise.NOISE_IN_LIGHT, start_us, self.device)
        chance = torch.rand(keys.shape, generator=random, device=self.device)
        return keys[chance < noise.noise_in_light(light, dark_light, self._noise_exponent[recording])]

    def _with_bursts(self, keys: Tensor, log_light: Tensor, start_us: int) -> Tensor:
        """Some events of the recordings with bursts, repeated."""
        bursting = self._bursting[keys >> RECORDING_SHIFT]
        chosen = keys[bursting]
        recording, y, x = chosen >> RECORDING_SHIFT, (chosen >> 15) & 0x3FFF, (chosen >> 1) & 0x3FFF
        light = (torch.exp(log_light) - self.camera.dark_light).clamp_(min=0.0)
        chance = noise.burst_probability(self.camera, light)[recording, y, x]
        columns = EventColumns(chosen >> TIME_SHIFT, chosen & ((1 << TIME_SHIFT) - 1), y, y)
        random = noise.generator(self._seed, noise.BURSTS, start_us, self.device)
        repeated = noise.bursts(self.camera, columns, chance, random)
        return torch.cat([keys[~bursting], (repeated.t_us << TIME_SHIFT) | repeated.x])


def _burst_values(camera: CameraModel) -> tuple[Any, ...]:
    """What bursts depend on in a recording that has them."""
    return camera.dark_light, *(getattr(camera, name) for name in vars(camera) if name.startswith("burst_"))


def record_on_gpu(
    scenes: Sequence[Callable[[], Scene]],
    times_us: Callable[[Scene], Int64],
    device: str = "cuda",
    threads: int | None = None,
) -> Iterator[RecordedPiece]:
    """Record scenes on a GPU, those of one sensor size and length side by side; see ``recorder.record_many``."""
    made = [make() for make in scenes]  # the processes draw the streets, when they need them
    if not made:
        return
    numbers = batch_numbers(made)
    batches: list[SceneShare] = [[(made[number], times_us(made[number])) for number in batch] for batch in numbers]
    prepared = prepare_in_workers(batches, threads or max(allowed_processors() - 1, 1), device)
    for batch, share in zip(numbers, batches, strict=True):
        yield from _record_batch(batch, [scene for scene, _ in share], prepared, torch.device(device))


def batch_numbers(scenes: Sequence[Scene]) -> list[list[int]]:
    """Which scenes go side by side: those of one sensor size and length, as many as fit."""
    groups: dict[tuple[Sensor, int], list[int]] = {}
    for number, scene in enumerate(scenes):
        groups.setdefault((scene.sensor, scene.duration_us), []).append(number)
    batches = []
    for (sensor, _), group in groups.items():
        size = max(PIXELS // (sensor.height * sensor.width), 1)
        batches += [group[first : first + size] for first in range(0, len(group), size)]
    return batches


def _record_batch(
    numbers: Sequence[int], scenes: list[Scene], prepared: Iterator[list[Any]], device: torch.device
) -> Iterator[RecordedPiece]:
    pixels, bases = start_batch(next(prepared), scenes, device)
    finishing = GpuSensorOutput([scene.camera for scene in scenes], [scene.seed for scene in scenes], device)
    stretches = scenes[0].num_stretches

    def on_device(noises: list[Int64]) -> Tensor:
        keys = [(index << RECORDING_SHIFT) | part for index, part in enumerate(noises)]
        return torch.from_numpy(np.concatenate(keys)).to(device)

    def next_stretch() -> tuple[list[PreparedStretch], StretchBatch, Tensor, Tensor]:
        packets: list[PreparedStretch] = next(prepared)
        shot_noise = on_device([packet.shot_noise for packet in packets])
        hot_pixels = on_device([packet.hot_pixels for packet in packets])
        return packets, batch_stretch(packets, bases, device), shot_noise, hot_pixels

    with ThreadPoolExecutor(1) as ahead:  # puts the next stretch together while the GPU is at this one
        upcoming = ahead.submit(next_stretch)
        for stretch in range(stretches):
            start_us, last = stretch * STRETCH_US, stretch == stretches - 1
            length_us = min(STRETCH_US, scenes[0].duration_us - start_us)
            packets, batch, shot_noise, hot_pixels = upcoming.result()
            if not last:
                upcoming = ahead.submit(next_stretch)
            keys = pixels.advance(batch, float(length_us))
            done = finishing.finish(keys, pixels.state.log_light, shot_noise, hot_pixels, start_us, length_us, last)
            events = split_recordings(done, len(scenes), scenes[0].sensor, start_us)
            for number, scene, packet, piece in zip(numbers, scenes, packets, events, strict=True):
                yield RecordedPiece(number, scene, piece, packet.boxes, last)


def start_batch(
    prepared_scenes: list[PreparedScene], scenes: list[Scene], device: torch.device
) -> tuple[GpuPixels, Int64]:
    """The pixels of a batch, and where each recording's textures begin in its tables."""
    atlases, states = zip(*prepared_scenes, strict=True)
    bases = np.cumsum([0, *(len(atlas.light) for atlas in atlases[:-1])])
    light, alpha = (torch.from_numpy(np.concatenate([atlas[part] for atlas in atlases])).to(device) for part in (0, 1))
    pixels = PixelState(*(torch.from_numpy(np.stack(part)).to(device) for part in zip(*states, strict=True)))
    circuits = [shared_circuit(scene.camera) for scene in scenes]
    shared = torch.tensor([list(circuit[:6]) for circuit in circuits], dtype=torch.float32, device=device)
    return GpuPixels(pixels, shared, light, alpha, room=pixels.receptor.numel() * 2), bases


def batch_stretch(packets: list[PreparedStretch], bases: Int64, device: torch.device) -> StretchBatch:
    """The packets of one stretch as padded arrays on the GPU."""
    knots = len(packets[0].surfaces.maps)
    most = max(1, *(packet.surfaces.maps.shape[1] for packet in packets))
    maps = np.zeros((len(packets), knots, most, 11), np.float32)
    light = np.zeros((len(packets), most, 4), np.float32)
    slots = np.ones((len(packets), most, 4), np.int64)
    firsts, used = [], 0
    for index, packet in enumerate(packets):
        part = packet.surfaces
        count = part.maps.shape[1]
        maps[index, :, :count] = part.maps
        light[index, :count] = part.lamps
        slots[index, :count] = packet.textures
        slots[index, :, 0] += bases[index]
        firsts.append(packet.schedule.first + used)
        used += len(packet.schedule.ids)

    def moved(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    return StretchBatch(
        maps=moved(maps),
        light=moved(light),
        slots=moved(slots),
        first=moved(np.stack(firsts)),
        ids=moved(np.concatenate([packet.schedule.ids for packet in packets])),
        step_us=moved(np.stack([packet.schedule.step_us for packet in packets])),
        sky=moved(np.stack([packet.surfaces.sky for packet in packets])),
        focal=moved(np.array([packet.surfaces.focal for packet in packets], np.float32)),
    )


def split_recordings(keys: Tensor, count: int, sensor: Sensor, start_us: int) -> list[Events]:
    """Sorted keys as the events of each recording."""
    borders = torch.arange(count + 1, device=keys.device) << RECORDING_SHIFT
    ends = torch.searchsorted(keys, borders).tolist()
    t_us = (((keys >> TIME_SHIFT) & 0x7FFFF) - TIME_OFFSET + start_us).cpu().numpy()
    x, y = (((keys >> shift) & 0x3FFF).to(torch.int16).cpu().numpy().view(np.uint16) for shift in (1, 15))
    p = (keys & 1).to(torch.uint8).cpu().numpy()
    return [Events.trusted(t_us[a:b], x[a:b], y[a:b], p[a:b], sensor) for a, b in pairwise(ends)]
