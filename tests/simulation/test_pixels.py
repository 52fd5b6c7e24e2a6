"""The fast pixels agree with the readable pixel model, whatever the buffers, the steps and the stretches."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fate.events.events import Sensor
from fate.simulation.art.panels import Texture
from fate.simulation.camera import pixels_cpu
from fate.simulation.camera.camera_model import CameraModel, camera_preset
from fate.simulation.camera.event_camera import EventCamera
from fate.simulation.camera.pixels_cpu import (
    Circuit,
    PixelState,
    adapted_pixels,
    advance_tile,
    advance_tiles,
    compare,
    event_key,
    low_pass,
    shared_circuit,
)
from fate.simulation.render.compositing import maps_at, render
from fate.simulation.render.scene import STRETCH_US, Scene
from fate.simulation.render.surfaces import KNOT_US, Atlas, Surfaces
from fate.simulation.render.tiles import MIN_STEP_US, TILE, TileSchedule, schedule_tiles

Keys = NDArray[np.int64]

SEED = 5


@cache
def scenery() -> tuple[Scene, Surfaces, TileSchedule]:
    """A stretch of a fast drive."""
    scene = Scene(SEED, seconds=0.3)
    surfaces = scene.surfaces(0)
    return scene, surfaces, schedule_tiles(surfaces, scene.atlas, *scene.sensor)


def light_at(t_us: float) -> NDArray[np.float32]:
    scene, surfaces, schedule = scenery()
    image = np.empty(scene.sensor, np.float32)
    render(surfaces, scene.atlas, schedule, t_us, image)
    return image


def fresh(camera: CameraModel) -> PixelState:
    return adapted_pixels(camera, 3, light_at(0.0))


def evenly(schedule: TileSchedule, step_us: float) -> TileSchedule:
    """The schedule with one step for all tiles."""
    return schedule._replace(step_us=np.full_like(schedule.step_us, step_us))


def columns(keys: Keys) -> tuple[NDArray[Any], NDArray[Any]]:
    """What fired (pixel and polarity as one number) and when, in the order of both."""
    keys = np.sort(keys)
    what, when = keys & ((1 << 29) - 1), keys >> 29
    order = np.argsort(what, kind="stable")
    return what[order], when[order]


def agreement(ours: tuple[NDArray[Any], NDArray[Any]], theirs: tuple[NDArray[Any], NDArray[Any]], us: int) -> float:
    """Share of events (of the larger set) that have a partner: same pixel and polarity, same turn, ``us`` apart."""

    def by_turn(events: tuple[NDArray[Any], NDArray[Any]]) -> dict[tuple[int, int], int]:
        what, when = events
        first = np.searchsorted(what, what)
        turn = np.arange(len(what)) - first
        return dict(zip(zip(what.tolist(), turn.tolist(), strict=True), when.tolist(), strict=True))

    a, b = by_turn(ours), by_turn(theirs)
    partners = sum(key in b and abs(b[key] - t) <= us for key, t in a.items())
    return partners / max(len(a), len(b), 1)


@pytest.mark.parametrize(
    "camera",
    [
        camera_preset("gen1"),
        camera_preset("gen1", leak_hz=20.0, refractory_us=400, threshold_sigma=0.06),
        camera_preset("ideal"),
    ],
    ids=["gen1", "leaky", "ideal"],
)
def test_the_march_gives_the_events_of_the_readable_pixel(camera: CameraModel) -> None:
    scene, surfaces, schedule = scenery()
    step_us = 4_000
    circuit = shared_circuit(camera)._replace(max_change=math.inf)
    pixels = fresh(camera)
    keys = advance_tiles(0, 1, float(STRETCH_US), surfaces, scene.atlas, evenly(schedule, step_us), pixels, circuit)

    twin = EventCamera(camera, seeds=[3], dtype=torch.float64)
    twin.start(torch.from_numpy(light_at(0.0))[None], 0)
    steps = [
        twin.step(torch.from_numpy(light_at(float(t)))[None], t) for t in range(step_us, STRETCH_US + step_us, step_us)
    ]
    _, t_us, x, y, p = (torch.cat(column).numpy() for column in zip(*steps, strict=True))
    assert len(t_us) > 10_000
    assert abs(len(keys) - len(t_us)) <= 1e-3 * len(t_us)
    ours, theirs = columns(keys), columns((t_us << 29) | (y << 15) | (x << 1) | p)
    assert agreement(ours, theirs, us=2) > 0.985
    assert agreement(ours, theirs, us=200) > 0.999  # where light hardly changes, float32 moves the crossing further
    np.testing.assert_allclose(pixels.log_light, twin.log_light[0].numpy(), atol=1e-3)
    np.testing.assert_allclose(pixels.receptor, twin.receptor[0].numpy(), atol=2e-3)
    asleep, twins_asleep = pixels.release >= 0, twin.release_us[0].numpy() >= 0
    assert (asleep == twins_asleep).mean() > 0.999
    same = ~asleep & ~twins_asleep
    assert np.quantile(np.abs(pixels.reference - twin.reference[0].numpy())[same], 0.999) < 5e-3
    both = asleep & twins_asleep
    apart = np.abs(pixels.release - twin.release_us[0].numpy())[both]
    assert (apart > 2).mean() < 0.02 if camera.refractory_us else not both.any()


def test_the_photoreceptor_follows_its_differential_equation() -> None:
    """dv/dt = (u - v) / tau with u a straight line, in steps so small that nothing more is needed."""
    for cutoff, light, step, u0, u1, v0 in [
        (1.2e-3, 1.0, 2000.0, 0.0, 1.0, -0.5),
        (1.2e-3, 0.3, 500.0, 1.0, -1.0, 1.0),
        (1.2e-3, 0.01, 9000.0, 0.2, 0.2, 2.0),  # in the dark only the floor of the corner is left
        (6e-3, 7.0, 100.0, -1.0, 1.0, 0.0),  # light above 1 makes it no faster
    ]:
        tau = 1 / (cutoff * max(0.1, min(light, 1.0)))
        count = 20_000
        v, dt = v0, step / count
        for i in range(count):
            middle = u0 + (u1 - u0) * (i + 0.5) / count
            v += (middle - v) * dt / tau
        single = [np.float32(part) for part in (cutoff, 0.1, light, step, u0, u1, v0)]
        assert float(low_pass(*single)) == pytest.approx(v, abs=1e-3)
    assert float(low_pass(*[np.float32(part) for part in (0, 0.1, 1, 100, 0.0, 0.7, 0.3)])) == pytest.approx(0.7)


def compared(v0: float, v1: float, m: float = 0.0, r: float = -1.0, **changes: float) -> tuple[Any, ...]:
    """A comparator from 1000 to 2000 µs: (reference, release, times, signs)."""
    on, off, leak, refractory = ({"on": 0.3, "off": 0.2, "leak": 0.0, "refractory": 0.0} | changes).values()
    times, signs = np.zeros(64, np.float32), np.zeros(64, np.uint8)
    m, r, count = compare(1000.0, 2000.0, v0, v1, m, r, on, off, leak, refractory, times, signs)
    return m, r, times[:count].tolist(), signs[:count].tolist()


def test_a_ramp_crosses_thresholds_at_even_intervals() -> None:
    m, r, times, signs = compared(0.0, 1.0)
    assert times == pytest.approx([1300, 1600, 1900], abs=0.01)
    assert signs == [1, 1, 1]
    assert (m, r) == pytest.approx((0.9, -1.0))
    m, r, times, signs = compared(0.0, -0.5)
    assert times == pytest.approx([1400, 1800], abs=0.01)
    assert signs == [0, 0]
    assert (m, r) == pytest.approx((-0.4, -1.0))


def test_too_small_a_change_gives_nothing() -> None:
    assert compared(0.0, 0.29) == (0.0, -1.0, [], [])
    assert compared(0.0, -0.19) == (0.0, -1.0, [], [])


def test_after_an_event_the_pixel_sleeps_and_takes_the_level_at_release() -> None:
    m, r, times, _ = compared(0.0, 1.0, refractory=500.0)
    assert times == pytest.approx([1300], abs=0.01)  # awake at 1800 with m = 0.8, at the end 0.2 above it
    assert (m, r) == pytest.approx((0.8, -1.0))
    m, r, times, _ = compared(0.0, 1.0, refractory=5000.0)
    assert (r, times) == (pytest.approx(6300.0), pytest.approx([1300.0], abs=0.01))
    assert compared(0.0, 1.0, m=-7.0, r=2500.0) == (-7.0, 2500.0, [], [])  # asleep all the while
    m, r, times, _ = compared(0.0, 1.0, m=-7.0, r=1250.0)
    assert (m, times) == (pytest.approx(0.85), pytest.approx([1550, 1850], abs=0.01))


def test_a_leak_alone_gives_on_events_at_its_rate() -> None:
    m, _, times, signs = compared(0.5, 0.5, m=0.5, leak=2.5e-3)  # in thresholds per µs: one each 400 µs
    assert times == pytest.approx([1400, 1800], abs=0.01)
    assert signs == [1, 1]
    assert m == pytest.approx(0.5 - 0.3 * 2.5e-3 * 200)


def test_keys_sort_by_time_then_row_column_and_polarity() -> None:
    random = np.random.default_rng(0)
    rows = [tuple(row) for row in random.integers(0, [90_000, 720, 1280, 2], (500, 4)).tolist()]
    rows += [(100_000, 719, 1279, 1), (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0)]
    keyed = sorted(rows, key=lambda row: int(event_key(float(row[0]), row[1], row[2], row[3])))
    assert keyed == sorted(rows)
    assert int(event_key(41.5, 0, 0, 0)) >> 29 == 42
    assert int(event_key(41.49, 0, 0, 0)) >> 29 == 41


def copied(pixels: PixelState) -> PixelState:
    return PixelState(*(part.copy() for part in pixels))


def same_state(a: PixelState, b: PixelState) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(a, b, strict=True))


def test_a_full_buffer_loses_nothing() -> None:
    scene, surfaces, schedule = scenery()
    camera = camera_preset("gen1", threshold_on=0.1, threshold_off=0.1, refractory_us=100)
    circuit, start = shared_circuit(camera), fresh(camera)
    together, apart = copied(start), copied(start)
    keys = advance_tiles(0, 1, 1e5, surfaces, scene.atlas, schedule, together, circuit)
    assert len(keys) > 1 << 16  # far beyond the room there is at first
    room = np.empty(1 << 20, np.int64)
    parts = []
    for tile in range(len(schedule.step_us)):
        found = advance_tile(tile, 1e5, surfaces, scene.atlas, schedule, apart, circuit, room)
        parts.append(room[:found].copy())
    assert np.array_equal(np.concatenate(parts), keys)
    assert same_state(together, apart)


def test_a_tile_whose_events_do_not_fit_is_left_as_it_was() -> None:
    scene, surfaces, schedule = scenery()
    camera = camera_preset("gen1")
    circuit, pixels = shared_circuit(camera), fresh(camera)
    before = copied(pixels)
    counts = [0]
    for tile in range(len(schedule.step_us)):
        counts.append(advance_tile(tile, 1e5, surfaces, scene.atlas, schedule, pixels, circuit, np.empty(0, "i8")))
        if counts[-1] == 0:  # no events: that is no overflow
            before = copied(pixels)
        assert same_state(pixels, before)
    assert max(counts) > 100


def test_shares_of_the_tiles_are_together_the_whole() -> None:
    scene, surfaces, schedule = scenery()
    camera = camera_preset("gen1")
    circuit, start = shared_circuit(camera), fresh(camera)
    one, three = copied(start), copied(start)
    whole = advance_tiles(0, 1, 1e5, surfaces, scene.atlas, schedule, one, circuit)
    parts = [advance_tiles(task, 3, 1e5, surfaces, scene.atlas, schedule, three, circuit) for task in range(3)]
    assert np.array_equal(np.sort(whole), np.sort(np.concatenate(parts)))
    assert same_state(one, three)


@pytest.mark.parametrize("even", [True, False], ids=["even steps", "adaptive steps"])
def test_two_halves_of_a_stretch_give_the_events_of_the_whole(even: bool) -> None:
    scene, surfaces, schedule = scenery()
    atlas, half_us = scene.atlas, STRETCH_US // 2
    camera = camera_preset("gen1")
    circuit, start = shared_circuit(camera), fresh(camera)
    if even:
        circuit, schedule = circuit._replace(max_change=math.inf), evenly(schedule, 1_000.0)
    whole, pixels = copied(start), copied(start)
    keys = advance_tiles(0, 1, float(STRETCH_US), surfaces, atlas, schedule, whole, circuit)
    first = advance_tiles(0, 1, float(half_us), surfaces, atlas, schedule, pixels, circuit)
    knots = half_us // KNOT_US
    assert knots * KNOT_US == half_us
    lamps = surfaces.lamps.copy()
    lamps[:, 3] += lamps[:, 1] * half_us
    later = surfaces._replace(maps=surfaces.maps[knots:], sky=surfaces.sky[knots:], lamps=lamps)
    second = advance_tiles(0, 1, float(half_us), later, atlas, schedule, pixels, circuit)
    both = np.concatenate([first, second + (half_us << 29)])
    assert len(keys) > 10_000
    assert abs(len(both) - len(keys)) < (1e-3 if even else 5e-3) * len(keys)
    assert agreement(columns(both), columns(keys), us=2 if even else 500) > (0.998 if even else 0.97)


# --- the choice of steps: run in plain Python, where steps can be watched ---


def advance_in_python(tile: int, length_us: float, surfaces: Surfaces, atlas: Atlas, schedule: TileSchedule,
                pixels: PixelState,
                circuit: Circuit) -> int:  # fmt: skip
    found = advance_tile.py_func(  # type: ignore[attr-defined]
        tile, length_us, surfaces, atlas, schedule, pixels, circuit, np.empty(1 << 16, np.int64)
    )
    return int(found)


def test_no_photoreceptor_changes_by_more_than_a_threshold_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, surfaces, schedule = scenery()
    camera = camera_preset("gen1", cutoff_hz=1000.0)
    circuit, pixels = shared_circuit(camera), fresh(camera)
    room = np.empty(1 << 16, np.int64)
    counts = [
        advance_tile(tile, 1e5, surfaces, scene.atlas, schedule, copied(pixels), circuit, room)
        for tile in range(0, len(schedule.step_us), 7)
    ]
    changes: list[tuple[float, float]] = []

    def watched(t0: float, t1: float, v0: float, v1: float, *others: Any) -> tuple[float, float, int]:
        changes.append((t1 - t0, abs(float(v1) - float(v0))))
        return compare(t0, t1, v0, v1, *others)

    monkeypatch.setattr(pixels_cpu, "compare", watched)
    for busy in np.argsort(counts)[-3:]:
        advance_in_python(7 * int(busy), 30_000.0, surfaces, scene.atlas, schedule, copied(pixels), circuit)
    step, change = np.array(changes).T
    assert len(step) > 100
    free = step > 2 * MIN_STEP_US + 1e-6
    assert free.sum() > 50
    assert change[free].max() <= circuit.max_change * (1 + 1e-5)
    assert change.max() > 0.3 * circuit.max_change  # and steps are used up


def still_life() -> tuple[Surfaces, Atlas, TileSchedule]:
    """One tile before an even wall."""
    matrix = np.array([1 / 80, 0, 0.5, 0, 1 / 80, 0.5, 0, 0, 1, 1, 0], np.float32)
    surfaces = Surfaces(
        maps=np.tile(matrix, (2, 1, 1)),
        bounds=np.array([[-40, -40, 40, 40]], np.float32),
        texture=np.zeros(1, np.int32),
        lamps=np.zeros((1, 4), np.float32),
        owner=np.full(1, -1, np.int32),
        sky=np.zeros((2, 3), np.float32),
        focal=50.0,
    )
    atlas = Atlas.build([Texture(np.full((1, 1), 0.5, "f4"), np.ones((1, 1), "f4"))])
    return surfaces, atlas, schedule_tiles(surfaces, atlas, TILE, TILE)


@pytest.mark.parametrize("length_us", [30.0, 51.0, 60.0, 75.0, 100.0, 130.0, 200.0, 249.0, 1000.0])
def test_a_stretch_comes_to_its_end_however_the_light_jumps_shortly_before(
    length_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    surfaces, atlas, schedule = still_life()
    camera = camera_preset("ideal", sensor=Sensor(TILE, TILE))
    circuit = shared_circuit(camera)
    tries = 0

    def counted(*arguments: Any) -> None:
        nonlocal tries
        tries += 1
        if tries > 1000:
            raise RuntimeError(f"the march does not get to the end of {length_us} µs")
        maps_at(*arguments)

    monkeypatch.setattr(pixels_cpu, "maps_at", counted)
    for excess in (1.01, 1.1, 1.3, 1.45, 2.0, 5.0):
        tries = 0
        dim = np.full((TILE, TILE), 0.52 * math.exp(-excess * circuit.max_change) - 0.02, np.float32)
        pixels = adapted_pixels(camera, 0, dim)
        advance_in_python(0, length_us, surfaces, atlas, schedule, pixels, circuit)
        np.testing.assert_allclose(pixels.receptor, math.log(0.52), atol=1e-3)
