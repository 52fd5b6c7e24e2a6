"""Sensors of the profile mixed: drawn from the seed, inside their ranges, all kinds of them."""

from __future__ import annotations

from functools import cache

import numpy as np

from fate.events.events import COMMON_FRAME, Sensor
from fate.events.merging import divisor_for
from fate.simulation.camera.random_sensor import (
    NOISE_LIGHT_EXPONENT,
    RANGES,
    SIZES,
    STEPS_US,
    RandomSensor,
    draw_sensor,
)


@cache
def drawn() -> list[RandomSensor]:
    return [draw_sensor(seed) for seed in range(300)]


def test_a_seed_gives_one_sensor_and_different_seeds_different_ones() -> None:
    again = draw_sensor(7)
    assert (again.camera, again.values()) == (drawn()[7].camera, drawn()[7].values())
    assert len({each.camera.threshold_on for each in drawn()}) > 250
    assert len({each.field_of_view for each in drawn()}) == 300


def test_every_size_and_every_time_stamp_occurs_about_as_often_as_the_table_says() -> None:
    assert sum(SIZES.values()) == 1
    for size, share in SIZES.items():
        assert abs(np.mean([each.size == size for each in drawn()]) - share) < 0.08
    assert {each.step_us for each in drawn()} == set(STEPS_US)
    assert 0.15 < np.mean([each.camera.bursts for each in drawn()]) < 0.35


def test_values_lie_in_the_ranges_and_reach_near_their_ends() -> None:
    values = {
        "field_of_view": [each.field_of_view for each in drawn()],
        "distortion": [each.distortion * 100 / each.field_of_view for each in drawn()],
        "cutoff_hz": [each.camera.cutoff_hz or 0.0 for each in drawn()],
        "refractory_us": [float(each.camera.refractory_us) for each in drawn()],
        "leak_hz": [each.camera.leak_hz for each in drawn()],
        "noise_hz": [each.camera.noise_hz for each in drawn()],
        "jitter_us": [each.camera.jitter_us for each in drawn()],
        "readout_mev": [each.readout_mev for each in drawn()],
        "threshold": [each.camera.threshold_off for each in drawn()],
    }
    for name, found in values.items():
        low, high, log = RANGES[name]
        scale = np.log if log else np.asarray
        shares = (scale(found) - scale(low)) / (scale(high) - scale(low))
        assert -0.01 <= shares.min() < 0.1, name
        assert 0.9 < shares.max() <= 1.01, name
    ratios = [each.camera.threshold_on / each.camera.threshold_off for each in drawn()]
    assert 1 / 1.61 < min(ratios) < 0.7
    assert 1.4 < max(ratios) < 1.61
    exponents = np.array([each.camera.noise_light_exponent for each in drawn()])
    assert 0.4 < np.mean(exponents == 0) < 0.6
    assert 1.1 < exponents.max() <= NOISE_LIGHT_EXPONENT
    assert max(each.camera.hot_pixels / np.prod(each.camera.sensor) for each in drawn()) <= 0.00101


def test_sensors_are_divided_as_inference_divides_them_and_lie_in_the_frame_or_cover_it() -> None:
    places = set()
    for each in drawn():
        assert each.divisor == divisor_for(each.size, COMMON_FRAME)
        places.add((each.left, each.top))
        for start, side, length in zip((each.top, each.left), COMMON_FRAME, each.size, strict=True):
            end = start + -(-length // each.divisor)
            assert (0 <= start <= end <= side) or (start <= 0 and side <= end)
    assert {each.size: each.divisor for each in drawn()}[Sensor(720, 1280)] == 4
    assert len(places) > 100


def test_simulated_pictures_have_few_sizes_so_that_a_gpu_can_simulate_them_together() -> None:
    sizes = {each.camera.sensor for each in drawn()}
    assert len(sizes) <= 4 * len(SIZES)
    assert all(each.camera.sensor == each.lens.simulated for each in drawn())
