"""The pixel model against what can be worked out by hand, against a microsecond simulation, and against eventcv."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.simulation.camera.camera_model import PRESETS, CameraModel, camera_preset
from fate.simulation.camera.event_camera import AWAKE, EventCamera, PixelEvents, pixel_maps
from fate.simulation.camera.noise import BackgroundNoise

DARK = 0.02


def ideal(pixels: int = 1, **changes: Any) -> CameraModel:
    return camera_preset("ideal", sensor=(1, pixels), **changes)


def light_of(level: NDArray[Any]) -> torch.Tensor:
    """Light whose logarithm, with the dark light, is ``level``."""
    return torch.from_numpy(np.exp(level) - DARK)


def watch(level: NDArray[Any], t_us: NDArray[Any], model: CameraModel, dtype: torch.dtype = torch.float64) -> Events:
    """Events of one row of pixels, whose ln(I + dark) is ``level`` [T] or [T, W]; signal only."""
    frames = light_of(np.asarray(level, float).reshape(len(t_us), 1, -1))
    return EventCamera(model, dtype=dtype).simulate(frames, t_us, background=False)[0]


def texture(seed: int, frames: int = 30, height: int = 12, width: int = 16, swing: float = 1.0) -> NDArray[np.float64]:
    """Levels [T, H, W] of a moving sum of waves."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    t = np.arange(frames)[:, None, None]
    waves = [random.uniform(0, 6), *random.uniform(-0.6, 0.6, 3)], [random.uniform(0, 6), *random.uniform(-0.6, 0.6, 3)]
    return -1.5 + 0.5 * swing * sum(np.sin(a + b * x + c * y + d * t) for a, b, c, d in waves)


# --- an ideal pixel, by hand ---


@pytest.mark.parametrize("steps", [1, 7, 400])
@pytest.mark.parametrize("change", [2.05, -2.05, 0.29, 0.31, -0.24, -0.26, 3.0, 0.0])
def test_an_ideal_ramp_gives_one_event_per_threshold_at_the_analytic_time(change: float, steps: int) -> None:
    length_us = 700_000
    t_us = np.round(np.linspace(0, length_us, steps + 1)).astype(int)
    events = watch(-1.5 - change / 2 + change * t_us / length_us, t_us, ideal())
    theta = 0.30 if change > 0 else 0.25
    # 3.0 is ten thresholds exactly, and whether the tenth is reached is a matter of rounding
    expected = math.floor(abs(change) / theta + 1e-9)
    assert len(events) in {expected, math.floor(abs(change) / theta - 1e-9)}
    analytic = np.arange(1, len(events) + 1) * theta / max(abs(change), 1e-9) * length_us
    assert np.abs(events.t_us - analytic).max(initial=0) <= 1
    assert (events.p == (change > 0)).all()


@pytest.mark.parametrize("change", [0.8, -0.8, 2.0, -1.9])
def test_a_step_gives_all_its_events_in_the_microsecond_of_the_step(change: float) -> None:
    level = -1.5 + np.array([0, 0, change, change])
    events = watch(level, np.array([0, 5000, 5001, 30_000]), ideal())
    assert len(events) == math.floor(abs(change) / (0.30 if change > 0 else 0.25))
    assert set(events.t_us.tolist()) <= {5000, 5001}


def sine_events(amplitude: float, hz: float, seconds: float, on: float, off: float) -> list[tuple[float, int]]:
    """(time in s, polarity) of an ideal pixel that sees amplitude · sin(2π hz t), from the inverse sine."""
    found, held = [], 0.0
    for half in range(round(2 * seconds * hz) + 1):  # between extremes the wave is monotone
        rising = half % 2 == 0
        top = amplitude if rising else -amplitude
        while (top - held >= on) if rising else (held - top >= off):
            held += on if rising else -off
            angle = math.asin(held / amplitude)
            phase = math.pi * half + (angle if rising else -angle)
            if phase > 2 * math.pi * hz * seconds:
                return found
            found.append((phase / (2 * math.pi * hz), int(rising)))
    return found


@pytest.mark.parametrize(
    ("amplitude", "hz", "on", "off"), [(1.03, 10, 0.3, 0.25), (0.7, 25, 0.2, 0.2), (1.3, 4, 0.24, 0.27)]
)
def test_a_sinusoid_gives_the_events_of_the_inverse_sine(amplitude: float, hz: float, on: float, off: float) -> None:
    seconds = 2.9 / hz
    t_us = np.arange(0, round(seconds * 1e6) + 1, round(2000 / hz))
    level = -1.5 + amplitude * np.sin(2 * np.pi * hz * t_us / 1e6)
    events = watch(level, t_us, ideal(threshold_on=on, threshold_off=off))
    expected = sine_events(amplitude, hz, seconds, on, off)
    assert len(events) == len(expected)
    assert events.p.tolist() == [sign for _, sign in expected]
    assert np.abs(events.t_us - 1e6 * np.array([time for time, _ in expected])).max() <= 3


def test_unequal_thresholds_give_unequal_counts_up_and_down() -> None:
    t_us = np.array([0, 100_000, 200_000])
    events = watch(np.array([-2.0, -2.0 + 1.79, -2.05]), t_us, ideal(threshold_on=0.3, threshold_off=0.1))
    # up: 5 · 0.3 = 1.5, so the reference stands at 1.5; down to −0.05: 15 · 0.1
    assert (int(events.p.sum()), int((events.p == 0).sum())) == (5, 15)


def test_without_change_there_are_no_events() -> None:
    assert len(watch(np.full((50, 4), -1.0), np.arange(50) * 1000, ideal(4))) == 0


# --- photoreceptor ---


def run_receptor(light: NDArray[Any], t_us: list[int], **changes: Any) -> list[float]:
    camera = EventCamera(ideal(**changes), dtype=torch.float64)
    camera.start(torch.full((1, 1, 1), float(light[0])), t_us[0])
    values = [float(camera.receptor)]
    for value, time in zip(light[1:], t_us[1:], strict=True):
        camera.step(torch.full((1, 1, 1), float(value), dtype=torch.float64), time)
        values.append(float(camera.receptor))
    return values


@pytest.mark.parametrize(("after", "share"), [(2.0, 1.0), (1.0, 1.0), (0.5, 0.5), (0.12, 0.12), (0.01, 0.1)])
def test_the_receptor_answers_a_step_with_the_exponential_of_its_light(after: float, share: float) -> None:
    t_us = [0, 1, *range(101, 4102, 100)]
    v = np.array(run_receptor(np.array([0.3, *([after] * (len(t_us) - 1))]), t_us, cutoff_hz=200, cutoff_floor=0.1))
    u0, u1 = math.log(0.3 + DARK), math.log(after + DARK)
    tau_us = 1e6 / (2 * math.pi * 200 * share)
    expected = u1 + (u0 - u1) * np.exp(-(np.array(t_us[1:]) - 0.5) / tau_us)  # the jump takes 1 µs, centred at 0.5
    assert np.abs(v[1:] - expected).max() < 1e-6 * abs(u1 - u0)


@pytest.mark.parametrize("steps", [1, 5, 200])
def test_the_receptor_follows_a_ramp_exactly_however_it_is_cut(steps: int) -> None:
    length_us, tau_us = 20_000, 1e6 / (2 * math.pi * 200)
    t_us = np.round(np.linspace(0, length_us, steps + 1)).astype(int)
    level = math.log(1 + DARK) + 1.2 * t_us / length_us  # light of 1 and more: one corner frequency
    v = run_receptor(np.exp(level) - DARK, t_us.tolist(), cutoff_hz=200)
    slope = 1.2 / length_us
    expected = level[0] + slope * (length_us - tau_us * (1 - math.exp(-length_us / tau_us)))
    assert v[-1] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("none", [0, None])
def test_without_cutoff_the_receptor_is_the_logarithm(none: float | None) -> None:
    v = run_receptor(np.array([0.1, 0.9, 0.4]), [0, 10, 20], cutoff_hz=none)
    assert v == pytest.approx(np.log(np.array([0.1, 0.9, 0.4]) + DARK).tolist(), abs=1e-7)


# --- refractory period, leak, mismatch ---


def test_on_a_ramp_the_interval_is_the_refractory_period_plus_one_threshold() -> None:
    t_us = np.arange(0, 100_001, 1000)
    events = watch(-3 + 2.9 * t_us / 1e5, t_us, ideal(refractory_us=1500))
    to_threshold = 0.3 / (2.9 / 1e5)
    expected = to_threshold + np.arange(len(events)) * (to_threshold + 1500)
    assert len(events) == math.floor((1e5 - to_threshold) / (to_threshold + 1500)) + 1
    assert np.abs(events.t_us - expected).max() <= 1


@pytest.mark.parametrize("refractory", [1, 300, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_pixel_fires_twice_within_the_refractory_period(refractory: int, dtype: torch.dtype) -> None:
    random = np.random.default_rng(3)
    t_us = np.cumsum(random.integers(20, 3000, 300))
    level = random.uniform(-3.5, 0, (300, 20))
    events = watch(level, t_us, ideal(20, refractory_us=refractory, leak_hz=1.0, threshold_sigma=0.03), dtype)
    assert len(events) > 2000
    for x in range(20):
        assert np.diff(events.t_us[events.x == x]).min() >= refractory - (dtype == torch.float32)


@pytest.mark.parametrize("refractory", [0, 1500])
def test_in_constant_light_the_leak_gives_on_events_at_its_rate(refractory: int) -> None:
    model = ideal(40, leak_hz=4.0, refractory_us=refractory, threshold_sigma=0.03)
    t_us = np.arange(0, 10_000_001, 10_000)
    events = watch(np.full((len(t_us), 40), -1.0), t_us, model)
    theta_on, _, phase = pixel_maps(model, 0)
    assert events.p.all()
    for x in range(40):
        mine = events.t_us[events.x == x]
        used_up = float(phase[0, x] / theta_on[0, x])
        assert abs(mine[0] - (1 - used_up) * 250_000) <= 1
        assert np.abs(np.diff(mine) - (250_000 + refractory)).max() <= 1


def test_the_leak_of_the_default_sensor_keeps_its_rate_in_single_precision() -> None:
    model = camera_preset("gen1", sensor=(60, 80), noise_hz=0, hot_pixels=0)
    camera = EventCamera(model)
    light = torch.full((1, 60, 80), 0.4)
    camera.start(light, 0)
    count = sum(len(camera.step(light, 1000 * (k + 1)).t_us) for k in range(1000))
    # phases are uniform over (−theta_off, theta_on), of which the leak passes 1 s · 0.05 Hz · theta_on
    expected = 4800 * 0.05 * 0.30 / (0.30 + 0.25)
    assert abs(count - expected) < 4.5 * math.sqrt(expected)


def test_thresholds_have_the_mean_and_the_spread_asked_for() -> None:
    model = camera_preset("gen1", sensor=(240, 304))
    theta_on, theta_off, phase = pixel_maps(model, 11)
    n = 240 * 304
    for theta, mean in ((theta_on, 0.30), (theta_off, 0.25)):
        assert abs(float(theta.mean()) - mean) < 5 * 0.03 / math.sqrt(n)
        assert abs(float(theta.std()) - 0.03) < 5 * 0.03 / math.sqrt(2 * n)
    correlation = np.corrcoef(theta_on.flatten(), theta_off.flatten())[0, 1]
    assert abs(correlation) < 5 / math.sqrt(n)
    share = (phase / 0.999 + theta_off) / (theta_on + theta_off)
    assert 0 <= float(share.min()) <= float(share.max()) <= 1
    assert abs(float(share.mean()) - 0.5) < 5 / math.sqrt(12 * n)


def test_mismatch_never_takes_a_threshold_below_a_fifth() -> None:
    theta_on, theta_off, _ = pixel_maps(camera_preset("gen1", sensor=(100, 100), threshold_sigma=0.5), 0)
    assert float(theta_on.min()) == pytest.approx(0.06)
    assert float(theta_off.min()) == pytest.approx(0.05)


def test_the_ideal_sensor_has_one_threshold_and_no_phase() -> None:
    theta_on, theta_off, phase = pixel_maps(PRESETS["ideal"], 5)
    assert bool((theta_on == 0.30).all() and (theta_off == 0.25).all() and (phase == 0).all())


# --- the whole pixel ---


def microsecond_events(level: NDArray[Any], t_us: NDArray[Any], model: CameraModel) -> list[tuple[int, int, int]]:
    """The pixel without closed forms: photoreceptor, leak, reset and comparator advanced by 1 µs at a time."""
    on, off, phase = (each[0].numpy() for each in pixel_maps(model, 0))
    receptor = level[0].copy()
    reference = receptor - phase
    release = np.full(level.shape[1], -1.0)
    found = []
    for k in range(1, len(t_us)):
        light = np.exp(level[k]) - DARK
        start, span = int(t_us[k - 1]), int(t_us[k] - t_us[k - 1])
        tau = 1e6 / (2 * np.pi * float(model.cutoff_hz or 0) * np.clip(light, model.cutoff_floor, 1))
        path = [receptor]
        for j in range(span):
            middle = level[k - 1] + (level[k] - level[k - 1]) * (j + 0.5) / span
            path.append(path[-1] + (middle - path[-1]) * (1 - np.exp(-1 / tau)))
        for j in range(1, span + 1):
            value = path[0] + (path[-1] - path[0]) * j / span  # the model takes v as linear inside a step
            now = start + j
            asleep = now < release
            reference = np.where(~asleep & (release >= 0), value, reference - model.leak_hz * on / 1e6 * ~asleep)
            release[~asleep] = -1
            up, down = ~asleep & (value - reference >= on), ~asleep & (value - reference <= -off)
            found += [(now, int(x), 1) for x in np.flatnonzero(up)] + [(now, int(x), 0) for x in np.flatnonzero(down)]
            release[up | down] = now + model.refractory_us
        receptor = path[-1]
    return found


def test_the_whole_pixel_agrees_with_a_simulation_by_the_microsecond() -> None:
    model = camera_preset("gen1", sensor=(1, 8), leak_hz=20.0, hot_pixels=0, noise_hz=0, jitter_us=0)
    random = np.random.default_rng(1)
    t_us = np.cumsum(random.integers(100, 900, 40))
    level = np.cumsum(random.normal(0, 0.35, (40, 8)), 0).clip(-2.5, 0.8) - 0.8
    events = watch(level, t_us, model)
    expected = microsecond_events(level, t_us, model)
    assert len(expected) > 25
    for x in range(8):
        mine = [(int(t), int(p)) for t, column, p in zip(events.t_us, events.x, events.p, strict=True) if column == x]
        theirs = [(t, p) for t, column, p in expected if column == x]
        assert [p for _, p in mine] == [p for _, p in theirs]
        assert np.abs(np.array([t for t, _ in mine]) - [t for t, _ in theirs]).max(initial=0) <= 4  # it rounds up


@pytest.mark.parametrize("name", ["gen1", "ideal"])
def test_a_step_cut_into_pieces_gives_the_same_events(name: str) -> None:
    model = camera_preset(name, sensor=(12, 16), cutoff_hz=0, jitter_us=0, hot_pixels=0)
    coarse = texture(seed=2)
    t_us = np.arange(30) * 4000
    fine_t = np.arange(0, 29 * 4000 + 1, 500)
    fine = np.stack([np.interp(fine_t, t_us, c) for c in coarse.reshape(30, -1).T], 1).reshape(-1, 12, 16)
    whole, pieces = (
        EventCamera(model, dtype=torch.float64).simulate(light_of(levels), times, background=False)[0]
        for levels, times in ((coarse, t_us), (fine, fine_t))
    )
    assert len(whole) == len(pieces) > 1000
    first, second = (np.lexsort((e.t_us, e.x, e.y)) for e in (whole, pieces))
    assert np.abs(whole.t_us[first] - pieces.t_us[second]).max() <= 1
    for column in ("x", "y", "p"):
        assert np.array_equal(getattr(whole, column)[first], getattr(pieces, column)[second])


def steps_of(camera: EventCamera, frames: torch.Tensor, times: list[Any]) -> list[PixelEvents]:
    camera.start(frames[:, 0], times[0])
    return [camera.step(frames[:, i], times[i]) for i in range(1, len(times))]


def test_after_every_step_the_change_seen_lies_between_the_thresholds() -> None:
    random = np.random.default_rng(8)
    model = camera_preset("gen1", sensor=(20, 30), leak_hz=30.0, refractory_us=200)
    for changes in ({}, {"refractory_us": 0}, {"cutoff_hz": 0}):
        camera = EventCamera(dataclasses.replace(model, **changes), batch=2)
        camera.start(torch.rand(2, 20, 30), 0)
        now = 0
        for _ in range(60):
            now += int(random.integers(1, 3000))
            camera.step(torch.from_numpy(random.uniform(0, 1.2, (2, 20, 30)) ** 2), now)
            change = camera.receptor - camera.reference
            awake = camera.release_us == AWAKE
            assert bool(((change < camera.theta_on) & (change > -camera.theta_off) | ~awake).all())
            assert bool((camera.release_us[~awake] > 0).all())
            assert changes != {"refractory_us": 0} or bool(awake.all())


def test_a_batch_gives_what_its_recordings_give_alone() -> None:
    model = camera_preset("gen1", sensor=(12, 16), bursts=True)
    frames = torch.stack([light_of(texture(seed)) for seed in (0, 1, 2)])
    t_us = list(range(0, 30_000, 1000))
    together = EventCamera(model, batch=3, seeds=[5, 6, 7]).simulate(frames, t_us)
    for i, seed in enumerate((5, 6, 7)):
        assert together[i] == EventCamera(model, seeds=[seed]).simulate(frames[i], t_us)[0]
        assert len(together[i]) > 500


def test_recordings_of_a_batch_may_stand_at_different_times() -> None:
    model = camera_preset("gen1", sensor=(12, 16))
    frames = torch.stack([light_of(texture(0)), light_of(texture(1))])
    times = [torch.tensor([1000 * k, 7 + 500 * k]) for k in range(30)]
    both = steps_of(EventCamera(model, batch=2, seeds=[3, 4]), frames, times)
    for i in range(2):
        alone = steps_of(EventCamera(model, seeds=[3 + i]), frames[i : i + 1], [int(time[i]) for time in times])
        for pair, single in zip(both, alone, strict=True):
            mine = pair.recording == i
            assert all(torch.equal(a[mine], b) for a, b in zip(pair[1:], single[1:], strict=True))


def test_the_same_seed_gives_the_same_events_and_another_seed_others() -> None:
    model = camera_preset("gen1", sensor=(12, 16))
    frames, t_us = light_of(texture(0)), list(range(0, 30_000, 1000))
    first, again, other = (EventCamera(model, seeds=[seed]).simulate(frames, t_us)[0] for seed in (9, 9, 10))
    assert first == again
    assert first != other


@pytest.mark.parametrize("offset", [10**9, 2**50, -(10**12)])
def test_events_do_not_depend_on_when_a_recording_starts(offset: int) -> None:
    model = camera_preset("gen1", sensor=(12, 16), jitter_us=0)
    frames, t_us = light_of(texture(0)), np.arange(0, 30_000, 1000)
    here, there = (EventCamera(model).simulate(frames, t, background=False)[0] for t in (t_us, t_us + offset))
    assert here.shifted(offset) == there


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_a_gpu_gives_the_events_of_the_cpu() -> None:
    model = camera_preset("gen1", sensor=(12, 16), jitter_us=0)
    frames, t_us = light_of(texture(0)), np.arange(0, 30_000, 1000)
    here, there = (
        EventCamera(model, device=device, dtype=torch.float64).simulate(frames, t_us, background=False)[0]
        for device in ("cpu", "cuda")
    )
    assert here == there


def test_events_of_a_step_are_in_time_order_and_inside_it() -> None:
    camera = EventCamera(camera_preset("ideal", sensor=(12, 16)), batch=2)
    frames = torch.stack([light_of(texture(0)), light_of(texture(1))])
    for k, events in enumerate(steps_of(camera, frames, list(range(0, 60_000, 2000)))):
        assert bool(((events.t_us >= 2000 * k) & (events.t_us <= 2000 * (k + 1))).all())
        assert bool((events.recording.diff() >= 0).all())
        for i in range(2):
            assert bool((events.t_us[events.recording == i].diff() >= 0).all())


def test_a_clip_holds_background_jitter_and_bursts_where_the_model_has_them() -> None:
    sensor = Sensor(40, 50)
    frames, t_us = light_of(texture(3, 41, *sensor, swing=1.4)), np.arange(41) * 2500
    quiet = camera_preset("gen1", sensor=sensor, jitter_us=0)
    signal = EventCamera(quiet).simulate(frames, t_us, background=False)[0]
    loud = EventCamera(quiet).simulate(frames, t_us)[0]
    expected = 0.1 * (2000 * quiet.noise_hz + float(BackgroundNoise(quiet, 0).hot_rates_hz.sum()))
    assert abs(len(loud) - len(signal) - expected) < 5 * math.sqrt(expected)
    moved = EventCamera(dataclasses.replace(quiet, jitter_us=20)).simulate(frames, t_us, background=False)[0]
    assert len(moved) == len(signal)
    assert 0 < np.abs(moved.t_us - signal.t_us).max() <= 80
    burst = EventCamera(dataclasses.replace(quiet, bursts=True, burst_light=0.0, burst_contrast=0.0)).simulate(
        frames, t_us, background=False
    )[0]
    assert len(burst) > 1.05 * len(signal)
    for events in (loud, moved, burst):
        Events(events.t_us, events.x, events.y, events.p, sensor)  # checks order and bounds
        assert events.t_us[0] >= 0
        assert events.t_us[-1] <= 100_000


# --- outside oracle ---


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("on", "off"), [(0.2, 0.2), (0.30, 0.25), (0.15, 0.22)])
def test_counts_agree_with_eventcv_without_noise(seed: int, on: float, off: float) -> None:
    """eventcv runs the v2e model: 8-bit sRGB frames are made linear and mapped lin-log, which above 20 of 255 is the
    plain logarithm. Hence grey levels of 90 and more (26 of 255 in linear light), and next to no dark light here."""
    eventcv = pytest.importorskip("eventcv")
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:32, :48]
    waves = [random.uniform(0, 6.28, 6), *random.uniform(0.05, 0.5, (2, 6)), random.uniform(0.1, 0.6, 6)]
    frames = [sum(np.sin(a + b * x + c * y + d * t) for a, b, c, d in zip(*waves, strict=True)) for t in range(25)]
    grey = np.round(np.clip(175 + 22 * np.array(frames), 90, 255)).astype(np.uint8)
    light = ((grey / 255 + 0.055) / 1.055) ** 2.4  # sRGB; all levels lie above its linear foot
    theirs = eventcv.simulate(
        grey,
        fps=100,
        pos_thres=on,
        neg_thres=off,
        sigma_thres=0.0,
        refractory_us=0,
        cutoff_hz=0.0,
        leak_rate_hz=0.0,
        shot_noise_rate_hz=0.0,
    ).numpy()
    model = camera_preset("ideal", sensor=(32, 48), threshold_on=on, threshold_off=off, dark_light=1e-12)
    ours = EventCamera(model, dtype=torch.float64).simulate(light, np.arange(25) * 10_000)[0]
    assert len(theirs) > 5000
    assert len(ours) == pytest.approx(len(theirs), rel=0.01)
    for polarity in (0, 1):
        assert np.sum(ours.p == polarity) == pytest.approx(np.sum(theirs[:, 3] == polarity), rel=0.01)


# --- parameters ---


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"threshold_on": -0.1}, "threshold_on"),
        ({"threshold_off": 0.0}, "threshold_off"),
        ({"threshold_sigma": -1}, "threshold_sigma"),
        ({"threshold_on": math.nan}, "nan"),
        ({"threshold_on": "0.3"}, "threshold_on"),
        ({"threshold_on": None}, "threshold_on"),
        ({"threshold_on": True}, "threshold_on"),
        ({"sensor": (0, 304)}, "sensor"),
        ({"sensor": (240,)}, "sensor"),
        ({"cutoff_hz": -5}, "cutoff_hz"),
        ({"cutoff_hz": math.inf}, "cutoff_hz"),
        ({"cutoff_floor": 0}, "cutoff_floor"),
        ({"dark_light": 0}, "dark_light"),
        ({"refractory_us": -1}, "refractory_us"),
        ({"refractory_us": 1.5}, "whole"),
        ({"noise_on_share": 1.5}, "noise_on_share"),
        ({"hot_pixels": 20, "sensor": (2, 2)}, "hot pixels"),
        ({"hot_hz_min": 500, "hot_hz_max": 50}, "hot_hz_min"),
        ({"hot_hz_max": 800}, "refractory_us"),
        ({"burst_gap_zero": 0.9, "burst_gap_one": 0.2}, "burst_gap_zero"),
        ({"bursts": True, "burst_length": 2.0}, "burst"),
        ({"bursts": True, "burst_length": 300.0}, "burst"),
        ({"treshold_on": 0.3}, "treshold_on"),
        ({"bursts": "no"}, "bursts is 'no'; give True or False"),
        ({"bursts": None}, "bursts is None"),
        ({"bursts": 1}, "bursts is 1"),
        ({"sensor": "gen1"}, "sensor"),
    ],
)
def test_impossible_parameters_are_refused_in_one_sentence(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(FateError, match=word) as caught:
        camera_preset("gen1", **changes)
    assert "\n" not in str(caught.value)


def test_presets_are_known_by_name_and_can_be_changed() -> None:
    assert camera_preset("gen1").sensor == (240, 304)
    assert camera_preset("1mpx").sensor == (720, 1280)
    changed = camera_preset("gen1", refractory_us=np.int64(900), sensor=[10, 20], cutoff_hz=None)
    assert (changed.refractory_us, changed.sensor, changed.threshold_on) == (900, Sensor(10, 20), 0.30)
    for name in ("gen2", None, ["gen1"]):
        with pytest.raises(FateError, match="gen1, 1mpx, park, ideal"):
            camera_preset(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device": "foo"}, "device='foo' cannot be used"),
        ({"device": "cuda:99"}, "device='cuda:99' cannot be used"),
        ({"device": "meta"}, "device='meta' cannot be used"),
        ({"device": None}, "device='None' cannot be used"),
        ({"device": 1.5}, "device='1.5' cannot be used"),
        ({"batch": 0}, "the batch is 0; give a whole number from 1 up"),
        ({"batch": 1.5}, "the batch is 1.5"),
        ({"batch": "2"}, "the batch is '2'"),
        ({"batch": True}, "the batch is True"),
        ({"batch": None}, "the batch is None"),
        ({"seeds": 5}, "the seeds 5 were given"),
        ({"seeds": [0.5]}, "the seeds"),
        ({"seeds": ["one"]}, "the seeds"),
        ({"dtype": "float32"}, "float32 or float64"),
        ({"model": "gen1"}, "the model 'gen1' was given; expected a CameraModel"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused_in_one_sentence(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(FateError, match=words) as caught:
        EventCamera(**({"model": ideal()} | arguments))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")
def test_cuda_is_refused_where_there_is_none() -> None:
    with pytest.raises(FateError, match="device='cuda' cannot be used .*give 'cpu'") as caught:
        EventCamera(ideal(), device="cuda")
    assert "\n" not in str(caught.value)


def test_every_number_of_a_camera_has_a_range() -> None:
    for field in dataclasses.fields(CameraModel):
        if field.name not in {"sensor", "bursts"}:
            with pytest.raises(FateError, match=field.name):
                camera_preset("gen1", **{field.name: math.nan})


def test_a_camera_refuses_light_and_times_that_are_none() -> None:
    camera = EventCamera(ideal(4))
    good = torch.ones(1, 1, 4)
    with pytest.raises(FateError, match="start"):
        camera.step(good, 5)
    for light, word in ((-good, "light from -1"), (good * math.nan, "nan"), (good / 0, "inf"), (good[0], "shape")):
        with pytest.raises(FateError, match=word):
            camera.start(light, 0)
    camera.start(good, 100)
    for time in (100, 50):
        with pytest.raises(FateError, match="time must go on"):
            camera.step(good, time)
    with pytest.raises(FateError, match="seeds"):
        EventCamera(ideal(), batch=2, seeds=[1])
    with pytest.raises(FateError, match="times"):
        camera.simulate(torch.ones(3, 1, 4), [0, 1])
