"""Recordings: sorted, complete, the same on any number of threads, with boxes just when they were asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from fate.events.events import Events
from fate.simulation.camera import noise
from fate.simulation.camera.camera_model import CameraModel, camera_preset
from fate.simulation.camera.noise import EventColumns
from fate.simulation.camera.pixels_cpu import event_key
from fate.simulation.camera.recorder import (
    RecordedPiece,
    SensorOutput,
    adapted_pixels,
    record,
    record_many,
    shared_circuit,
    unpack_keys,
)
from fate.simulation.render.scene import STRETCH_US, Scene

SECONDS = 0.25
TIMES = np.array([0, 5_000, 99_999, 100_000, 180_001, 250_000], np.int64)
QUIET: dict[str, Any] = {"noise_hz": 0.0, "hot_pixels": 0, "jitter_us": 0.0, "bursts": False}


def scene(seed: int, **camera: Any) -> Scene:
    made = Scene(seed, seconds=SECONDS)
    made.camera = replace(made.camera, **camera)
    return made


@cache
def pieces(seed: int, threads: int = 2, bursts: bool = True) -> tuple[RecordedPiece, ...]:
    return tuple(record(scene(seed, bursts=bursts), TIMES, threads))


def whole(parts: tuple[RecordedPiece, ...] | list[RecordedPiece]) -> Events:
    return Events.concatenate([piece.events for piece in parts])


@pytest.mark.parametrize("seed", [1, 4])
def test_events_are_sorted_inside_the_sensor_and_inside_the_recording(seed: int) -> None:
    events = whole(pieces(seed))
    assert len(events) > 1000
    assert (np.diff(events.t_us) >= 0).all()
    assert events.t_us[0] >= 0
    assert events.t_us[-1] < SECONDS * 1e6
    height, width = events.sensor
    assert events.y.max() < height
    assert events.x.max() < width
    assert set(np.unique(events.p).tolist()) == {0, 1}
    checked = Events(events.t_us, events.x, events.y, events.p, events.sensor)  # refuses what is not so
    assert checked == events


def test_each_piece_goes_on_where_the_last_one_ended() -> None:
    parts = pieces(1)
    assert [piece.last for piece in parts] == [False, False, True]
    held_back = np.ceil(noise.JITTER_LIMIT * scene(1).camera.jitter_us) + 1
    for number, piece in enumerate(parts):
        start, end = number * STRETCH_US, (number + 1) * STRETCH_US
        assert len(piece.events) > 100
        assert piece.events.t_us[0] >= start - (held_back if number else 0)
        assert piece.events.t_us[-1] < (SECONDS * 1e6 if piece.last else end - held_back)


def test_a_seed_gives_the_same_events_again_and_on_any_number_of_threads() -> None:
    assert whole(pieces(1)) == whole(list(record(scene(1, bursts=True), threads=2)))
    assert whole(pieces(1)) == whole(pieces(1, threads=1))
    assert whole(pieces(1)) == whole(list(record(scene(1, bursts=True), threads=3)))
    assert whole(pieces(1)) != whole(pieces(4))


def test_boxes_come_at_the_times_asked_for_and_with_their_stretch() -> None:
    parts, of = pieces(1), scene(1)
    assert [piece.boxes.t_us.tolist() for piece in parts] == [[0, 5_000, 99_999], [100_000, 180_001], [250_000]]
    for piece in parts:
        ends = np.cumsum(piece.boxes.rows)
        for time, end, count in zip(piece.boxes.t_us, ends, piece.boxes.rows, strict=True):
            for ours, theirs in zip(piece.boxes.boxes, of.boxes(time), strict=True):
                np.testing.assert_array_equal(ours[end - count : end], theirs)
    assert all(len(piece.boxes.t_us) == len(piece.boxes.boxes.class_id) == 0 for piece in record(scene(1)))


def test_without_noise_only_the_signal_is_left() -> None:
    """Switching off what is superposed takes nothing from the signal: jitter and background are added to it."""
    signal = whole(list(record(scene(1, **QUIET), threads=2)))
    noisy = whole(list(record(scene(1, bursts=False), threads=2)))
    background = noise.BackgroundNoise(scene(1).camera, 1)
    added = sum(
        len(background.window(start, min(start + STRETCH_US, 250_000)).t_us) for start in range(0, 250_000, STRETCH_US)
    )
    assert added > 100
    lost = len(signal) + added - len(noisy)
    assert abs(lost) <= 0.002 * len(signal)  # those that jitter takes over the end, either way
    hot = scene(1, noise_hz=0.0, jitter_us=0.0, bursts=False)
    assert len(whole(list(record(hot, threads=2)))) > len(signal)


def test_leaving_noise_out_leaves_the_signals_pixels_alone() -> None:
    signal = whole(list(record(scene(4, **QUIET), threads=2)))
    moved = whole(list(record(scene(4, **(QUIET | {"jitter_us": 20.0})), threads=2)))
    assert abs(len(signal) - len(moved)) <= 0.002 * len(signal)

    def counts(events: Events) -> Any:
        pixel = (events.y.astype(np.int64) * 304 + events.x) * 2 + events.p
        return np.bincount(pixel, minlength=2 * 240 * 304)

    assert np.abs(counts(signal) - counts(moved)).sum() <= 0.002 * len(signal)


def test_scenes_are_recorded_one_after_the_other_with_their_numbers() -> None:
    makers = [partial(scene, 1, bursts=True), partial(scene, 4, bursts=True)]
    parts = list(record_many(makers, lambda of: TIMES[of.duration_us // 2 > TIMES], threads=2))
    assert [(piece.recording, piece.last) for piece in parts] == [
        (0, False), (0, False), (0, True), (1, False), (1, False), (1, True),
    ]  # fmt: skip
    assert whole([piece for piece in parts if piece.recording == 1]) == whole(pieces(4))
    assert np.concatenate([piece.boxes.t_us for piece in parts[:3]]).tolist() == [0, 5_000, 99_999, 100_000]


# --- the parts ---


def signal_of(random: np.random.Generator, count: int, start: int, end: int) -> EventColumns:
    t_us, x, y, p = (
        torch.from_numpy(random.integers(low, high, count)) for low, high in ((start, end), (0, 304), (0, 240), (0, 2))
    )
    return EventColumns(t_us, x, y, p)


@pytest.mark.parametrize("jitter_us", [0.0, 0.4, 20.0, 900.0])
def test_the_finisher_loses_and_doubles_nothing_but_what_leaves_the_recording(jitter_us: float) -> None:
    camera = camera_preset("gen1", jitter_us=jitter_us, noise_hz=2.0)
    duration, random = 350_000, np.random.default_rng(0)
    finisher = SensorOutput(camera, 11, duration)
    light = torch.full((240, 304), 0.5)
    background = noise.BackgroundNoise(camera, 11)
    given, background_given, done = [], 0, []
    for start in range(0, duration, 100_000):
        end = min(start + 100_000, duration)
        given.append(signal_of(random, 3000, start, end + 1))  # an event may be rounded up to the very end
        background_given += len(background.window(start, end).t_us)
        done.append(finisher.finish(given[-1], light, start, end))
    out = EventColumns(*(torch.cat(columns) for columns in zip(*done, strict=True)))
    assert bool((out.t_us.diff() >= 0).all())
    assert int(out.t_us[0]) >= 0
    assert int(out.t_us[-1]) < duration
    t_in = torch.cat([part.t_us for part in given])
    near_the_end = int((t_in >= duration - 4 * jitter_us - 1).sum())
    lost = len(t_in) + background_given - len(out.t_us)
    assert 0 <= lost <= near_the_end
    if jitter_us == 0:
        assert lost == int((t_in >= duration).sum())


def test_jitter_moves_events_by_its_spread() -> None:
    camera = camera_preset("gen1", jitter_us=20.0, noise_hz=0.0, hot_pixels=0)
    finisher = SensorOutput(camera, 3, 10**6)
    apart = torch.arange(0, 90_000, 500)  # so far apart that jitter leaves their order
    still = torch.zeros_like(apart)
    done = finisher.finish(EventColumns(apart, still, still, still), torch.full((240, 304), 0.5), 0, 100_000)
    moved = (done.t_us - apart).double()
    assert float(moved.std()) == pytest.approx(20.0, rel=0.25)
    assert float(moved.abs().max()) <= 80


def test_bursts_repeat_events_where_it_is_bright_and_textured() -> None:
    camera = camera_preset("gen1", jitter_us=0.0, noise_hz=0.0, hot_pixels=0, bursts=True)
    light = torch.zeros(240, 304)
    light[:, ::2] = 1.0  # bright columns on dark ones
    light[120:] = 0.5  # even
    signal = signal_of(np.random.default_rng(1), 8000, 0, 200_000)
    done = SensorOutput(camera, 3, 200_000).finish(signal, light, 0, 200_000)

    def count(of: EventColumns, top: bool, bright: bool) -> int:
        half = of.y < 118 if top else of.y > 122
        return int((half & ((of.x % 2 == 0) == bright)).sum())

    assert count(done, True, True) > 2 * count(signal, True, True)
    for top, bright in ((True, False), (False, True), (False, False)):
        assert count(done, top, bright) == count(signal, top, bright)


def test_keys_are_unpacked_to_what_was_packed() -> None:
    rows = [(0, 0, 0, 0), (99_999, 239, 303, 1), (100_000, 719, 1279, 0), (5, 1, 2, 1)]
    keys = torch.tensor([int(event_key(float(t), y, x, p)) for t, y, x, p in rows])
    t_us, x, y, p = (column.tolist() for column in unpack_keys(keys, 700_000))
    assert list(zip(t_us, y, x, p, strict=True)) == [(t + 700_000, y, x, p) for t, y, x, p in rows]


@pytest.mark.parametrize("camera", [camera_preset("gen1"), camera_preset("1mpx"), camera_preset("ideal")])
def test_the_circuit_is_the_cameras_in_microseconds(camera: CameraModel) -> None:
    circuit = shared_circuit(camera)
    assert circuit.cutoff == pytest.approx(2 * np.pi * (camera.cutoff_hz or 0) / 1e6)
    assert circuit.leak == pytest.approx(camera.leak_hz / 1e6)
    assert circuit.max_change == min(camera.threshold_on, camera.threshold_off)
    assert circuit.most * 0.2 * circuit.max_change > 15  # ln of the brightest over the darkest light, and more


def test_pixels_start_adapted_to_the_light() -> None:
    camera = camera_preset("gen1")
    light = np.random.default_rng(0).uniform(0, 1, (240, 304)).astype(np.float32)
    pixels = adapted_pixels(camera, 5, light)
    np.testing.assert_allclose(pixels.log_light, np.log(light + 0.02), atol=1e-5)
    np.testing.assert_array_equal(pixels.receptor, pixels.log_light)
    change = pixels.receptor - pixels.reference
    assert (change < pixels.theta_on).all()
    assert (change > -pixels.theta_off).all()
    assert change.std() > 0.1
    assert (pixels.release < 0).all()
    assert pixels.receptor is not pixels.log_light
