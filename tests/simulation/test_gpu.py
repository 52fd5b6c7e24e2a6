"""Recording on a GPU: pixels agree with the CPU's, and finishing many recordings at once loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.simulation.art.actors import Actor, Straight
from fate.simulation.art.people import make_person
from fate.simulation.camera.camera_model import CameraModel, camera_preset
from fate.simulation.camera.noise import BackgroundNoise
from fate.simulation.camera.pixels_cpu import PixelState, adapted_pixels, advance_tiles, shared_circuit
from fate.simulation.camera.random_sensor import draw_sensor
from fate.simulation.camera.recorder import record, record_many
from fate.simulation.render.scene import STRETCH_US, Scene
from fate.simulation.render.surfaces import SurfaceBuilder
from fate.simulation.render.tiles import schedule_tiles
from tests.simulation.negative_scene import NegativeScene

pytest.importorskip("triton", reason="the GPU kernel is written in Triton, which is not installed here")

from fate.simulation.camera import recorder_gpu as gpu
from fate.simulation.camera.pixels_gpu import RECORDING_SHIFT, TIME_OFFSET, TIME_SHIFT, GpuPixels

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU on this machine")
CPU = torch.device("cpu")
SENSOR = Sensor(240, 304)
SMALL = Sensor(144, 144)  # a 128 × 128 sensor of the profile mixed, with its lens
DARK = torch.full((2, 240, 304), -3.0)


def keyed(recording: Any, t_us: Any, y: Any, x: Any, p: Any) -> torch.Tensor:
    """Keys as the kernel writes them, times from the start of the stretch."""
    parts = [torch.as_tensor(part, dtype=torch.int64) for part in (recording, t_us, y, x, p)]
    return (
        (parts[0] << RECORDING_SHIFT)
        | (parts[1] + TIME_OFFSET << TIME_SHIFT)
        | (parts[2] << 15)
        | (parts[3] << 1)
        | parts[4]
    )


def random_keys(seed: int, count: int, recordings: int, length_us: int) -> torch.Tensor:
    random = np.random.default_rng(seed)
    columns = [random.integers(0, high, count) for high in (recordings, length_us + 1, 240, 304, 2)]
    return keyed(*columns)


def cameras(jitter_us: float, **changes: Any) -> list[CameraModel]:
    return [camera_preset("gen1", jitter_us=jitter_us * factor, **changes) for factor in (1.0, 2.0)]


# --- without a GPU: keys, finishing and splitting are plain tensors ---


def test_split_gives_each_recording_its_own_events() -> None:
    keys = torch.sort(random_keys(0, 5000, 3, 90_000)).values
    parts = gpu.split_recordings(keys, 4, SENSOR, 300_000)
    assert [len(part) for part in parts] == [int((keys >> RECORDING_SHIFT == i).sum()) for i in range(4)]
    assert len(parts[3]) == 0
    for number, part in enumerate(parts):
        mine = keys[keys >> RECORDING_SHIFT == number]
        again = keyed(
            number, part.t_us - 300_000, part.y.astype(np.int64), part.x.astype(np.int64), part.p.astype(np.int64)
        )
        assert torch.equal(again, mine)
        assert (np.diff(part.t_us) >= 0).all()


def test_background_events_become_keys_of_their_recording() -> None:
    scene = Scene(1, seconds=0.25)
    background = BackgroundNoise(scene.camera, scene.seed)
    prepared = gpu.prepare_stretch(scene, 2, half_dozen_times(scene), background)
    keys = torch.from_numpy(np.concatenate([prepared.shot_noise, prepared.hot_pixels]))
    (part,) = gpu.split_recordings(torch.sort(keys).values, 1, SENSOR, 200_000)
    rows = sorted(zip(*(column.tolist() for column in background.window(200_000, 250_000)), strict=True))
    assert sorted(zip(*(getattr(part, name).tolist() for name in ("t_us", "x", "y", "p")), strict=True)) == rows


@pytest.mark.slow
def test_workers_prepare_all_scenes_of_all_batches_in_their_order() -> None:
    scenes = [Scene(seed, seconds=0.15) for seed in range(5)]
    batches = [[(scene, half_dozen_times(scene)) for scene in part] for part in (scenes[:3], scenes[3:])]
    prepared = gpu.prepare_in_workers(batches, 2, "cpu")
    for batch in batches:
        for (scene, _), (atlas, pixels) in zip(batch, next(prepared), strict=True):
            np.testing.assert_array_equal(atlas.light, scene.atlas.light)
            np.testing.assert_array_equal(
                pixels.reference, adapted_pixels(scene.camera, scene.seed, scene.light(0)).reference
            )
        for stretch in range(2):
            for (scene, times), packet in zip(batch, next(prepared), strict=True):
                noise = BackgroundNoise(scene.camera, scene.seed)
                expected = gpu.prepare_stretch(scene, stretch, times, noise)
                np.testing.assert_array_equal(packet.shot_noise, expected.shot_noise)
                np.testing.assert_array_equal(packet.hot_pixels, expected.hot_pixels)
                np.testing.assert_array_equal(packet.surfaces.maps, expected.surfaces.maps)
    assert next(prepared, None) is None


@pytest.mark.slow
def test_scenes_of_different_sizes_keep_their_numbers_noise_and_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuPixels, "advance", lambda *_: torch.zeros(0, dtype=torch.int64))  # no signal
    small = [seed for seed in range(60) if max(draw_sensor(seed).size) < 300][:4]
    makers = [partial(Scene, seed, "mixed", "train", 0.15) for seed in small]
    assert len({make().sensor for make in makers}) > 1
    pieces = list(gpu.record_on_gpu(makers, half_dozen_times, "cpu", threads=2))
    assert sorted(piece.recording for piece in pieces) == [0, 0, 1, 1, 2, 2, 3, 3]
    for piece in pieces:
        scene = makers[piece.recording]()
        assert piece.scene.seed == scene.seed
        assert piece.events.sensor == scene.sensor
    for number, make in enumerate(makers):
        scene, own = make(), [piece for piece in pieces if piece.recording == number]
        noise = BackgroundNoise(scene.camera, scene.seed)
        expected = [len(noise.window(start, end).t_us) for start, end in ((0, 100_000), (100_000, 150_000))]
        assert sum(len(piece.events) for piece in own) == sum(expected)
        for stretch, piece in enumerate(own):
            found = scene.boxes_in(stretch, half_dozen_times(scene))
            np.testing.assert_array_equal(piece.boxes.boxes.boxes, found.boxes.boxes)


@pytest.mark.parametrize("jitter_us", [0.0, 15.0, 400.0])
def test_finishing_loses_and_doubles_nothing_but_what_leaves_the_recording(jitter_us: float) -> None:
    finishing = gpu.GpuSensorOutput(cameras(jitter_us), [5, 6], CPU)
    ends: list[list[Events]] = []
    count, near_the_end = 0, 0
    for stretch, length in enumerate((100_000, 100_000, 50_000)):
        keys = random_keys(stretch, 4000, 2, length)
        background = random_keys(10 + stretch, 500, 2, length - 1)
        count += len(keys) + len(background)
        if stretch == 2:
            t_us = ((keys >> TIME_SHIFT) & 0x7FFFF) - TIME_OFFSET
            near_the_end = int((t_us >= length - 8 * jitter_us - 1).sum())
        done = finishing.finish(keys, DARK, background, background[:0], stretch * 100_000, length, stretch == 2)
        assert bool((done.diff() >= 0).all())
        ends.append(gpu.split_recordings(done, 2, SENSOR, stretch * 100_000))
    for recording in range(2):
        events = Events.concatenate([part[recording] for part in ends])  # refuses pieces out of order
        assert events.t_us[0] >= 0
        assert events.t_us[-1] < 250_000
    out = sum(len(events) for part in ends for events in part)
    assert 0 <= count - out <= near_the_end


def test_finishing_depends_on_the_events_and_not_on_their_order() -> None:
    keys, nothing = random_keys(1, 3000, 2, 100_000), torch.zeros(0, dtype=torch.int64)
    shuffled = keys[torch.randperm(len(keys), generator=torch.Generator().manual_seed(0))]
    made = [
        gpu.GpuSensorOutput(cameras(20.0), [5, 6], CPU).finish(part, DARK, nothing, nothing, 0, 100_000, True)
        for part in (keys, shuffled)
    ]
    assert torch.equal(made[0], made[1])


def test_each_recording_has_its_own_jitter() -> None:
    apart = torch.arange(5_000, 95_000, 1_000)
    keys = torch.cat([keyed(recording, apart, 7, 9, 1) for recording in range(2)])
    nothing = torch.zeros(0, dtype=torch.int64)
    done = gpu.GpuSensorOutput(cameras(15.0), [5, 6], CPU).finish(keys, DARK, nothing, nothing, 0, 100_000, True)
    for part, sigma in zip(gpu.split_recordings(done, 2, SENSOR, 0), (15.0, 30.0), strict=True):
        moved = part.t_us - apart.numpy()
        assert moved.std() == pytest.approx(sigma, rel=0.3)
        assert np.abs(moved).max() <= 4 * sigma + 1
        assert (part.y == 7).all()
        assert (part.x == 9).all()
        assert (part.p == 1).all()


def test_jitter_takes_no_event_before_the_recordings_start() -> None:
    keys = keyed(torch.zeros(400), torch.arange(400) % 20, 3, 4, 0)
    nothing = torch.zeros(0, dtype=torch.int64)
    finishing = gpu.GpuSensorOutput(cameras(30.0), [5, 6], CPU)
    part = gpu.split_recordings(finishing.finish(keys, DARK, nothing, nothing, 0, 100_000, True), 2, SENSOR, 0)[0]
    assert len(part) == 400
    assert part.t_us[0] == 0
    assert (np.diff(part.t_us) >= 0).all()


def test_bursts_fall_on_recordings_that_have_them_alone() -> None:
    two = [replace(camera, bursts=bursts) for camera, bursts in zip(cameras(0.0), (False, True), strict=True)]
    light = torch.full((2, 240, 304), 0.02)
    light[..., ::2] = 1.02
    keys, nothing = random_keys(3, 6000, 2, 90_000), torch.zeros(0, dtype=torch.int64)
    done = gpu.GpuSensorOutput(two, [5, 6], CPU).finish(keys, torch.log(light), nothing, nothing, 0, 100_000, True)
    quiet, bursting = gpu.split_recordings(done, 2, SENSOR, 0)
    given = [keys[keys >> RECORDING_SHIFT == i] for i in range(2)]
    assert len(quiet) == len(given[0])
    assert len(bursting) > 1.5 * len(given[1])
    bright = int((given[1] >> 1 & 1 == 0).sum())
    assert (bursting.x % 2 == 1).sum() == len(given[1]) - bright  # dark columns have none


def test_shot_noise_falls_with_light_in_the_recordings_that_say_so() -> None:
    two = [
        replace(camera, noise_light_exponent=exponent)
        for camera, exponent in zip(cameras(0.0), (0.0, 1.0), strict=True)
    ]
    light = torch.full((2, 240, 304), 0.02)  # with the light of the dark; no light falls here
    light[..., ::2] = 0.08  # four times as much
    noise, hot = random_keys(3, 20_000, 2, 90_000), random_keys(4, 1000, 2, 90_000)
    done = gpu.GpuSensorOutput(two, [5, 6], CPU).finish(hot[:0], torch.log(light), noise, hot, 0, 100_000, True)
    same, less = gpu.split_recordings(done, 2, SENSOR, 0)
    given = [torch.cat([part[part >> RECORDING_SHIFT == i] for part in (noise, hot)]) for i in range(2)]
    assert len(same) == len(given[0])
    odd = int((given[1] >> 1 & 1).sum())
    assert int((less.x % 2).sum()) == odd
    bright = [int(((part >> RECORDING_SHIFT == 1) & (part >> 1 & 1 == 0)).sum()) for part in (noise, hot)]
    assert abs(len(less) - odd - bright[1] - bright[0] / 4) < 5 * (bright[0] * 3 / 16) ** 0.5


def test_cameras_of_one_batch_share_what_bursts_depend_on() -> None:
    different = [camera_preset("gen1"), camera_preset("gen1", dark_light=0.05)]
    with pytest.raises(FateError, match="dark_light"):
        gpu.GpuSensorOutput(different, [5, 6], CPU)
    gpu.GpuSensorOutput([draw_sensor(seed).camera for seed in range(60)], list(range(60)), CPU)  # is not refused


def test_scenes_of_one_size_are_recorded_side_by_side_and_each_scene_once() -> None:
    scenes = [Scene(seed, "mixed", seconds=0.1) for seed in range(40)]
    batches = gpu.batch_numbers(scenes)
    assert sorted(number for batch in batches for number in batch) == list(range(40))
    assert all(len({scenes[number].sensor for number in batch}) == 1 for batch in batches)
    assert len(batches) == len({scene.sensor for scene in scenes}) < 20
    long = [Scene(seed, seconds=0.1 if seed else 0.2) for seed in range(130)]
    assert [len(batch) for batch in gpu.batch_numbers(long)] == [1, 120, 9]


def test_each_recording_of_a_batch_has_its_own_focal_length() -> None:
    scenes = [scene for scene in (Scene(seed, "mixed", seconds=0.1) for seed in range(40)) if scene.sensor == SMALL]
    packets = [
        gpu.prepare_stretch(scene, 0, half_dozen_times(scene), BackgroundNoise(scene.camera, scene.seed))
        for scene in scenes[:2]
    ]
    batch = gpu.batch_stretch(packets, np.zeros(2, np.int64), CPU)
    np.testing.assert_allclose(batch.focal.numpy(), [scene.builder.pinhole.focal for scene in scenes[:2]], rtol=1e-6)
    assert float(batch.focal[0]) != float(batch.focal[1])


# --- on a GPU ---


def turns(what: NDArray[Any], when: NDArray[Any]) -> dict[tuple[int, int], int]:
    """Times by pixel and polarity (one number) and the turn in which it fired."""
    order = np.lexsort((when, what))
    what, when = what[order], when[order]
    turn = np.arange(len(what)) - np.searchsorted(what, what)
    return dict(zip(zip(what.tolist(), turn.tolist(), strict=True), when.tolist(), strict=True))


def with_people(scene: Scene) -> Scene:
    """The same scene, and people who run across the picture close to the camera."""
    old, rng = scene.builder, np.random.default_rng(0)
    camera = old.ego.at(np.zeros(1))
    people = [make_person(rng, "train", "run") for _ in range(3)]
    paths = [Straight(float(camera.x[0]) - 1.0, float(camera.z[0]) + away, 1.5, 3.0, 2.0) for away in (3.0, 6.0, 9.0)]
    actors = [*old.actors, *map(Actor, people, paths)]
    builder = SurfaceBuilder(old.pinhole, old.ego, actors, old.lighting, old.height)
    scene.__dict__["_world"] = (builder, *scene._world[1:])
    return scene


@needs_gpu
@pytest.mark.parametrize(
    "make",
    [partial(Scene, 0, seconds=0.2), partial(Scene, 3, seconds=0.2), partial(NegativeScene, 3, "room", scale=1.0)],
)
@pytest.mark.parametrize("exposure", [(), ((0.0, 1.0), (0.03, 1.0), (0.07, 0.4))])
@pytest.mark.parametrize("room", [1 << 22, 100])
@pytest.mark.parametrize("people", [False, True])
def test_pixels_on_a_gpu_agree_with_the_cpu(
    make: Callable[[], Scene], exposure: tuple[tuple[float, float], ...], room: int, people: bool
) -> None:
    scene = with_people(make()) if people else make()
    scene.builder.lighting = replace(scene.builder.lighting, exposure=exposure)
    surfaces, atlas = scene.surfaces(0), scene.atlas
    schedule = schedule_tiles(surfaces, atlas, *scene.sensor)
    pixels = adapted_pixels(scene.camera, scene.seed, scene.light(0))
    textures = atlas.slots[surfaces.texture]
    boxes = scene.boxes_in(0, np.zeros(0, np.int64))
    no_noise = np.zeros(0, np.int64)
    packet = gpu.PreparedStretch(surfaces, textures, schedule, no_noise, no_noise, boxes)
    device = torch.device("cuda")
    start = (atlas, PixelState(*(part.copy() for part in pixels)))
    batch, bases = gpu.start_batch([start, start], [scene, scene], device)
    batch._keys = torch.empty(room, dtype=torch.int64, device=device)
    keys = batch.advance(gpu.batch_stretch([packet, packet], bases, device), float(STRETCH_US)).cpu().numpy()
    circuit = shared_circuit(scene.camera)
    ours = advance_tiles(0, 1, float(STRETCH_US), surfaces, atlas, schedule, pixels, circuit)
    expected = turns(ours & ((1 << 29) - 1), ours >> 29)
    states = [part.cpu().numpy() for part in batch.state]
    for recording in range(2):
        mine = keys[keys >> RECORDING_SHIFT == recording]
        found = turns(mine & ((1 << 29) - 1), ((mine >> TIME_SHIFT) & 0x7FFFF) - TIME_OFFSET)
        assert abs(len(found) - len(expected)) <= 0.002 * len(expected)
        partners = sum(key in found and abs(found[key] - t) <= 50 for key, t in expected.items())
        assert partners >= 0.98 * len(expected)
        for state, theirs in zip(states[2:4], pixels[2:4], strict=True):
            assert np.quantile(np.abs(state[recording] - theirs), 0.999) < 0.02


def half_dozen_times(scene: Scene) -> NDArray[np.int64]:
    return np.linspace(0, scene.duration_us, 6).astype(np.int64)


@needs_gpu
@pytest.mark.parametrize(("profile", "at_rest"), [("gen1", False), ("gen1", True), ("1mpx", False)])
def test_recordings_on_a_gpu_are_those_of_the_cpu_but_for_their_noise(profile: str, at_rest: bool) -> None:
    seconds = 0.3 if profile == "gen1" else 0.15
    makers: list[Callable[[], Scene]] = [
        partial(Scene, seed, profile, "train", seconds, at_rest=at_rest) for seed in (0, 3)
    ]
    pieces = list(gpu.record_on_gpu(makers, half_dozen_times, "cuda", threads=2))
    for number, make in enumerate(makers):
        scene = make()
        mine = [piece for piece in pieces if piece.recording == number]
        assert [piece.last for piece in mine] == [False] * (scene.num_stretches - 1) + [True]
        events = Events.concatenate([piece.events for piece in mine])
        assert (np.diff(events.t_us) >= 0).all()
        assert events.t_us[0] >= 0
        assert events.t_us[-1] < scene.duration_us
        reference = list(record(scene, half_dozen_times(scene)))
        # noise is drawn anew: of few events its spread counts
        count = sum(len(piece.events) for piece in reference)
        assert len(events) == pytest.approx(count, rel=0.03, abs=6 * count**0.5)
        assert np.concatenate([piece.boxes.t_us for piece in mine]).tolist() == half_dozen_times(scene).tolist()
        for ours, theirs in zip(mine, reference, strict=True):
            for name in ("t_us", "rows"):
                np.testing.assert_array_equal(getattr(ours.boxes, name), getattr(theirs.boxes, name))
            for one, other in zip(ours.boxes.boxes, theirs.boxes.boxes, strict=True):
                np.testing.assert_array_equal(one, other)


@needs_gpu
def test_recordings_of_different_sensors_on_a_gpu_are_those_of_the_cpu_but_for_their_noise() -> None:
    makers = [partial(Scene, seed, "mixed", "train", 0.15) for seed in range(6)]
    ours = list(record_many(makers, half_dozen_times, "cuda", threads=2))
    theirs = list(record_many(makers, half_dozen_times, "cpu"))
    for number in range(len(makers)):
        one, other = ([piece for piece in pieces if piece.recording == number] for pieces in (ours, theirs))
        events = Events.concatenate([piece.events for piece in one])
        count = sum(len(piece.events) for piece in other)
        assert len(events) == pytest.approx(count, rel=0.05, abs=8 * count**0.5)
        for mine, reference in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine.boxes.boxes.boxes, reference.boxes.boxes.boxes)


@needs_gpu
def test_a_gpu_gives_the_same_recording_again() -> None:
    maker = [partial(Scene, 2, "gen1", "train", 0.2)]
    first, second = (
        Events.concatenate([piece.events for piece in gpu.record_on_gpu(maker, half_dozen_times, "cuda", threads=1)])
        for _ in range(2)
    )
    assert first == second
