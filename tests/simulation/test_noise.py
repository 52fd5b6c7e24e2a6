"""Every process that is added to the signal has the rate and the shape it is asked for (seeded, at 4 to 5 sigma)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fate.simulation.camera import noise
from fate.simulation.camera.camera_model import camera_preset
from fate.simulation.camera.event_camera import EventCamera
from fate.simulation.camera.noise import BackgroundNoise, EventColumns


def same(a: EventColumns, b: EventColumns) -> bool:
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gen1(seed: int, **changes: Any) -> BackgroundNoise:
    return BackgroundNoise(camera_preset("gen1", **changes), seed)


def with_rates(rates_hz: torch.Tensor, seed: int, **changes: Any) -> BackgroundNoise:
    """Shot noise of these rates [H, W]."""
    background = gen1(seed, sensor=tuple(rates_hz.shape), hot_pixels=0, **changes)
    background.rates_hz = rates_hz.double()
    return background


# --- shot noise ---


@pytest.mark.parametrize("sigma", [0.0, 1.0, 2.0])
def test_the_rate_map_is_log_normal_with_exactly_the_mean_asked_for(sigma: float) -> None:
    rates = gen1(4, noise_sigma=sigma).rates_hz
    assert float(rates.mean()) == pytest.approx(0.10, rel=1e-12)
    logs = torch.log(rates)
    n = rates.numel()
    assert abs(float(logs.std()) - sigma) < 5 * sigma / math.sqrt(2 * n) + 1e-9
    if sigma:
        skew = float((((logs - logs.mean()) / logs.std()) ** 3).mean())
        assert abs(skew) < 5 * math.sqrt(6 / n)
    assert not torch.equal(rates, gen1(5, noise_sigma=sigma).rates_hz) or sigma == 0


@pytest.mark.parametrize("window_us", [1_000, 50_000, 2_000_000])
def test_shot_noise_has_its_rate_in_windows_of_any_length(window_us: int) -> None:
    background = gen1(1)
    windows = min(200, 2_000_000 // window_us)
    counts = [len(background.shot_noise(k * window_us, (k + 1) * window_us).t_us) for k in range(windows)]
    expected = 0.10 * 240 * 304 * windows * window_us / 1e6
    assert abs(sum(counts) - expected) < 4.5 * math.sqrt(expected)
    if windows == 200:  # a Poisson count: its variance is its mean
        mean = expected / windows
        assert abs(np.var(counts) - mean) < 5 * mean * math.sqrt(2 / windows + 1 / (windows * mean))


def test_shot_noise_falls_on_pixels_by_their_rates() -> None:
    rates = torch.tensor([[0.0, 10.0, 40.0], [0.0, 0.0, 150.0]], dtype=torch.float64)
    events = with_rates(rates, 2).shot_noise(0, 100_000_000)
    counts = torch.zeros(2, 3, dtype=torch.float64).index_put_(
        (events.y, events.x), torch.ones(len(events.x), dtype=torch.float64), accumulate=True
    )
    assert bool(((counts - 100 * rates).abs() <= 4.5 * torch.sqrt(100 * rates)).all())


def test_shot_noise_is_even_in_time_inside_the_window_and_sorted() -> None:
    rates = torch.full((10, 10), 50.0)
    events = with_rates(rates, 0).shot_noise(-3_000_000, 2_000_000)
    assert int(events.t_us.min()) >= -3_000_000
    assert int(events.t_us.max()) < 2_000_000
    assert bool((events.t_us.diff() >= 0).all())
    parts = np.histogram(events.t_us.numpy(), 10, (-3_000_000, 2_000_000))[0]
    assert ((parts - 2500) ** 2 / 2500).sum() < 9 + 5 * math.sqrt(18)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_noise_has_the_on_share_asked_for(share: float) -> None:
    events = with_rates(torch.full((10, 10), 50.0), 3, noise_on_share=share).shot_noise(0, 4_000_000)
    n = len(events.p)
    assert abs(float(events.p.double().mean()) - share) <= 4.5 * math.sqrt(share * (1 - share) / n)


def test_a_window_gives_the_same_noise_again_and_another_window_other_noise() -> None:
    background = gen1(7)
    first = background.window(0, 50_000)
    background.window(50_000, 100_000)
    assert same(first, background.window(0, 50_000))
    assert same(first, gen1(7).window(0, 50_000))
    later = background.window(50_000, 100_000)
    assert not torch.equal(first.x[:100], later.x[:100])
    assert not torch.equal(first.x[:100], gen1(8).window(0, 50_000).x[:100])


def test_no_rate_gives_no_events() -> None:
    events = BackgroundNoise(camera_preset("ideal"), 0).window(0, 10_000_000)
    assert [len(column) for column in events] == [0, 0, 0, 0]
    assert all(column.dtype == torch.int64 for column in events)


def test_background_lies_on_the_sensor_with_polarities_0_and_1() -> None:
    events = gen1(0).window(10**9, 10**9 + 3_000_000)
    assert bool(((events.x >= 0) & (events.x < 304) & (events.y >= 0) & (events.y < 240)).all())
    assert set(events.p.tolist()) == {0, 1}
    assert bool((events.t_us.diff() >= 0).all())
    assert all(column.dtype == torch.int64 for column in events)


def test_noise_falls_with_the_light_of_its_pixel_but_hot_pixels_do_not() -> None:
    changes = {"noise_hz": 60.0, "noise_sigma": 0.0, "noise_light_exponent": 0.7, "hot_pixels": 9, "hot_hz_min": 100.0}
    model = camera_preset("gen1", sensor=(40, 60), **changes)
    light = torch.zeros(40, 60)
    light[:, 20:40], light[:, 40:] = model.dark_light, 0.5  # twice and 26 times the photocurrent in the dark
    background = BackgroundNoise(model, 4)
    hot = background.hot_pixel_events(0, 2_000_000)
    events = background.window(0, 2_000_000, lambda found: light[found.y, found.x])
    for third, share in enumerate((1.0, 0.5**0.7, (1 / 26) ** 0.7)):
        count = int((events.x // 20 == third).sum()) - int((hot.x // 20 == third).sum())
        expected = share * 60.0 * 2 * 800
        assert abs(count - expected) < 5 * math.sqrt(expected)
    dark = background.window(0, 2_000_000, lambda found: torch.zeros(len(found.x)))
    assert same(background.window(0, 2_000_000), dark)


def test_the_readable_camera_takes_the_light_at_the_time_of_the_noise() -> None:
    changes = {"noise_hz": 100.0, "noise_light_exponent": 2.0, "threshold_on": 9.0, "threshold_off": 9.0}
    model = camera_preset("ideal", sensor=(30, 30), **changes)
    frames = torch.zeros(3, 30, 30)
    frames[1] = 1.0  # the light until this frame's time; then it is dark
    (events,) = EventCamera(model, seeds=[1]).simulate(frames, [0, 500_000, 1_000_000])
    early = int((events.t_us <= 500_000).sum())
    assert early < 0.01 * len(events)
    assert abs(len(events) - early - 45_000) < 5 * math.sqrt(45_000)


# --- hot pixels ---


def test_hot_pixels_are_different_places_with_log_uniform_rates() -> None:
    background = gen1(0, hot_pixels=4000)
    places, rates = background.hot_positions, background.hot_rates_hz
    assert len(set(places.tolist())) == 4000
    assert 0 <= int(places.min()) <= int(places.max()) < 240 * 304
    decade = torch.log10(rates / 50)
    assert 0 <= float(decade.min()) <= float(decade.max()) <= 1
    parts = np.histogram(decade.numpy(), 10, (0, 1))[0]
    assert ((parts - 400) ** 2 / 400).sum() < 9 + 5 * math.sqrt(18)


@pytest.mark.parametrize("dead_us", [0, 1500])
@pytest.mark.parametrize("window_us", [200, 5_000, 1_000_000])
def test_hot_pixels_have_their_rate_in_windows_of_any_length(window_us: int, dead_us: int) -> None:
    background = gen1(5, sensor=(30, 40), hot_pixels=1200, refractory_us=dead_us)
    background.hot_rates_hz = torch.tensor([50.0, 160.0, 500.0], dtype=torch.float64).repeat(400)
    background.hot_positions = torch.arange(1200)
    windows = 40 if window_us < 1_000_000 else 2
    counts = torch.zeros(1200)
    for k in range(windows):
        events = background.hot_pixel_events(k * window_us, (k + 1) * window_us)
        counts += torch.bincount(events.y * 40 + events.x, minlength=1200)
        assert bool(((events.t_us >= k * window_us) & (events.t_us < (k + 1) * window_us)).all())
    for i, hz in enumerate((50, 160, 500)):
        expected = 400 * hz * windows * window_us / 1e6
        # with dead time the counts scatter less than those of a Poisson process, so this bound is on the safe side
        assert abs(float(counts[i::3].sum()) - expected) < 4.5 * math.sqrt(expected)


def test_a_hot_pixel_keeps_its_dead_time_and_waits_exponentially_beyond() -> None:
    background = gen1(1, sensor=(2, 10), hot_pixels=1, hot_hz_min=400.0, hot_hz_max=400.0)
    events = background.hot_pixel_events(0, 30_000_000)
    assert set((10 * events.y + events.x).tolist()) == set(background.hot_positions.tolist())
    waits = events.t_us.diff().double() - 1500
    assert float(waits.min()) >= 0
    n = len(waits)
    assert abs(float(waits.mean()) - 1000) < 4.5 * 1000 / math.sqrt(n)
    assert abs(float(waits.std()) - 1000) < 4.5 * 1000 * math.sqrt(2 / n)


# --- jitter ---


def jittered(t_us: torch.Tensor, jitter_us: float) -> torch.Tensor:
    events = EventColumns(t_us, t_us, t_us, t_us)
    return noise.jittered(camera_preset("gen1", jitter_us=jitter_us), events, 0.0, 0, 0, (0, None)).t_us


@pytest.mark.parametrize("sigma", [1.0, 20.0, 300.0])
def test_jitter_is_gaussian_of_its_sigma_and_bounded(sigma: float) -> None:
    n = 100_000
    moved = jittered(torch.full((n,), 10**12), sigma) - 10**12
    spread = math.sqrt(sigma**2 + 1 / 12)  # whole microseconds
    assert moved.dtype == torch.int64
    assert abs(float(moved.double().mean())) < 4.5 * spread / math.sqrt(n)
    assert abs(float(moved.double().std()) - spread) < 4.5 * spread / math.sqrt(2 * n) + 1e-3 * spread
    assert 3 * sigma < int(moved.abs().max()) <= 4 * sigma
    within = float((moved.abs() <= sigma).double().mean())
    if sigma > 1:
        assert within == pytest.approx(0.683, abs=0.02)


def test_no_jitter_moves_nothing() -> None:
    times = torch.arange(100)
    assert torch.equal(jittered(times, 0.0), times)


# --- bursts ---

BURSTING = camera_preset("gen1", bursts=True)


def spread_events(n: int) -> EventColumns:
    """Events 1 s apart, so that their bursts do not meet."""
    index = torch.arange(n)
    return EventColumns(index * 1_000_000, index % 304, index % 240, index % 2)


def test_bursts_repeat_events_in_place_and_keep_the_original() -> None:
    before = spread_events(20_000)
    after = noise.bursts(BURSTING, before, 0.5, random())
    which = torch.div(after.t_us, 1_000_000, rounding_mode="floor")
    for column in ("x", "y", "p"):
        assert torch.equal(getattr(after, column), getattr(before, column)[which])
    assert set(before.t_us.tolist()) <= set(after.t_us.tolist())
    assert bool((after.t_us.diff() >= 0).all())


def test_bursts_have_the_share_the_lengths_and_the_gaps_asked_for() -> None:
    n = 200_000
    after = noise.bursts(BURSTING, spread_events(n), 0.5, random(2))
    lengths = np.bincount(torch.div(after.t_us, 1_000_000, rounding_mode="floor").numpy(), minlength=n)
    repeated = lengths[lengths > 1]
    assert abs(len(repeated) / n - 0.5) < 4.5 * 0.5 / math.sqrt(n)
    assert abs(repeated.mean() - 3) < 5 * repeated.std() / math.sqrt(len(repeated))
    assert 150 < repeated.max() <= 592  # a heavy tail, cut off
    assert (repeated == 2).mean() > 0.5
    gaps = after.t_us.diff().numpy()
    gaps = gaps[gaps < 900_000]  # the others lie between bursts
    for value, share in ((0, 0.42), (1, 0.18)):
        assert abs((gaps == value).mean() - share) < 5 * math.sqrt(share * (1 - share) / len(gaps))
    rest = gaps[gaps > 1]
    mean = 2 + 1 / math.expm1(1 / 10)  # whole microseconds of an exponential wait of 10 µs
    assert abs(rest.mean() - mean) < 5 * rest.std() / math.sqrt(len(rest))


@pytest.mark.parametrize("mean", [2.2, 3.0, 8.0])
def test_burst_lengths_have_any_mean_asked_for(mean: float) -> None:
    n = 60_000
    after = noise.bursts(
        camera_preset("gen1", bursts=True, burst_length=mean, burst_longest=200), spread_events(n), 1.0, random(1)
    )
    lengths = np.bincount(torch.div(after.t_us, 1_000_000, rounding_mode="floor").numpy())
    assert lengths.min() >= 2
    assert lengths.max() <= 200
    assert abs(lengths.mean() - mean) < 5 * lengths.std() / math.sqrt(n)


def test_the_probability_of_a_burst_is_each_events_own() -> None:
    before = spread_events(4000)
    chance = (torch.arange(4000) < 1000).double()
    after = noise.bursts(BURSTING, before, chance, random())
    lengths = np.bincount(torch.div(after.t_us, 1_000_000, rounding_mode="floor").numpy())
    assert (lengths[:1000] > 1).all()
    assert (lengths[1000:] == 1).all()
    assert same(noise.bursts(BURSTING, before, 0.0, random()), before)
    nothing = spread_events(0)
    assert same(noise.bursts(BURSTING, nothing, 0.5, random()), nothing)


def test_bursts_come_where_the_picture_is_bright_and_textured() -> None:
    light = torch.full((20, 20), 0.9)
    light[:, 10:] = 0.05  # an edge between columns 9 and 10
    model = camera_preset("gen1", burst_share=0.6, burst_light=0.3, burst_full_light=1.0)
    chance = noise.burst_probability(model, light)
    assert chance.shape == (20, 20)
    assert torch.allclose(chance[:, 9], torch.tensor(0.6 * 0.6 / 0.7))
    assert float(chance[:, :9].max()) == 0  # bright, but flat
    assert float(chance[:, 10:].max()) == 0  # dark
    assert torch.equal(noise.burst_probability(model, torch.stack([light, light.T]))[1], chance.T)


def test_events_of_one_time_keep_their_order() -> None:
    one = EventColumns(*torch.tensor([[5, 1], [0, 1], [0, 0], [1, 1]]))
    two = EventColumns(*torch.tensor([[1, 5], [2, 3], [0, 0], [0, 0]]))
    assert noise.in_time_order(one, two).x.tolist() == [1, 2, 0, 3]
