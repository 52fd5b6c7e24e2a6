"""Properties of maps: events and boxes go together, in whole pixels, as pictures do, the same everywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn.functional import grid_sample, interpolate

from fate.data import affine
from fate.data.transforms import Augmentation, Transform
from fate.errors import FateError
from fate.events.events import Events, Sensor
from tests.conftest import event_lists, make_events

SENSOR = Sensor(48, 64)
SENSORS = st.tuples(st.integers(1, 90), st.integers(1, 120))
EVERYTHING = Augmentation(flip=0.5, rotate=0.8, translate=0.8, scale=0.8, shear=0.8, zoom=0.5)


def made(steps: list[affine.Map] | affine.Map, sensor: Sensor = SENSOR) -> Transform:
    top, bottom = (affine.compose(*steps) if isinstance(steps, list) else steps).tolist()
    return Transform((tuple(top), tuple(bottom)), sensor)


def drawn(seed: int, sensor: tuple[int, int]) -> Transform:
    return replace(EVERYTHING, max_shift=0.2).draw(np.random.default_rng(seed), sensor)


def counts(events: Events) -> NDArray[np.int64]:
    """[H, W] events per pixel."""
    picture = np.zeros(events.sensor, np.int64)
    np.add.at(picture, (events.y, events.x), 1)
    return picture


# --- events and boxes together ---------------------------------------------------------------------------------------


@given(event_lists(SENSORS), st.integers(0, 10**6), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_a_box_around_whole_pixels_keeps_their_resampled_events(events: Events, seed: int, where: list[float]) -> None:
    height, width = events.sensor
    box = np.array([*sorted(np.array(where[:2]) * width), *sorted(np.array(where[2:]) * height)])[[0, 2, 1, 3]]
    transform = drawn(seed, events.sensor)
    new_x, new_y, event = affine.resampled_pixels(np.array(transform.matrix), events.sensor, events.x, events.y)
    (x1, y1, x2, y2), _ = (values[0] for values in transform.boxes([box]))
    whole = (events.x >= box[0]) & (events.x + 1 <= box[2]) & (events.y >= box[1]) & (events.y + 1 <= box[3])
    mine = whole[event]
    x, y = new_x[mine] + 0.5, new_y[mine] + 0.5
    assert np.all((x >= x1 - 1e-4) & (x <= x2 + 1e-4) & (y >= y1 - 1e-4) & (y <= y2 + 1e-4))


@given(event_lists(SENSORS), st.integers(0, 10**6))
def test_arrays_and_tensors_give_exactly_the_same(events: Events, seed: int) -> None:
    matrix, sensor = np.array(drawn(seed, events.sensor).matrix), events.sensor
    old = torch.from_numpy(events.y.astype(np.int64) * sensor.width + events.x)
    starts, targets = affine.resampling_table(matrix[None], sensor, "cpu")
    event, new = affine.repeated(starts, targets, affine.slots(torch.zeros_like(old), old, sensor))
    x, y, index = affine.resampled_pixels(matrix, sensor, events.x, events.y)
    assert np.array_equal(event.numpy(), index)
    assert np.array_equal(new.numpy(), y.astype(np.int64) * sensor.width + x)


@given(event_lists(SENSORS), st.integers(0, 10**6))
def test_events_stay_in_order_and_in_the_frame(events: Events, seed: int) -> None:
    after = drawn(seed, events.sensor).events(events)
    assert Events(after.t_us, after.x, after.y, after.p, events.sensor) == after  # checks times and pixels


# --- what a map does to pixels ---------------------------------------------------------------------------------------


def test_a_flip_mirrors_columns_and_two_flips_are_nothing() -> None:
    events = make_events(sensor=SENSOR)
    flip = made(affine.flip(SENSOR))
    flipped = flip.events(events)
    assert np.array_equal(flipped.x, 63 - events.x)
    assert np.array_equal(flipped.y, events.y)
    assert np.array_equal(flipped.t_us, events.t_us)
    assert np.array_equal(flipped.p, events.p)
    assert flip.events(flipped) == events
    assert made([affine.flip(SENSOR)] * 2).is_identity


def test_a_shift_by_whole_pixels_moves_each_event_and_drops_the_rest() -> None:
    events = make_events(sensor=SENSOR)
    moved = made(affine.shift(-7, 5)).events(events)
    stay = events.inside(7, 0, 64, 43)
    assert np.array_equal(moved.t_us, stay.t_us)
    assert np.array_equal(moved.x, stay.x - 7)
    assert np.array_equal(moved.y, stay.y + 5)


def test_a_quarter_turn_of_a_square_frame_turns_the_picture() -> None:
    square = Sensor(40, 40)
    events = make_events(sensor=square)
    turned = made(affine.rotation(square, 90), square).events(events)
    assert np.array_equal(counts(turned), np.rot90(counts(events), -1))  # clockwise


def test_enlarging_by_two_repeats_each_event_four_times() -> None:
    events = make_events(sensor=SENSOR)
    double = affine.zoom_into(SENSOR, (16, 12, 48, 36))
    middle = events.inside(16, 12, 48, 36)
    repeated = made(double).events(events)
    assert np.array_equal(counts(repeated), np.kron(counts(middle)[12:36, 16:48], np.ones((2, 2), int)))
    assert np.array_equal(repeated.t_us, np.repeat(middle.t_us, 4))


@given(st.integers(1, 64), st.integers(1, 48), st.data())
def test_resampling_a_zoom_is_nearest_exact_resampling_of_pictures(
    width: int, height: int, data: st.DataObject
) -> None:
    """RVT zooms pictures with torch's nearest-exact; events repeat and vanish just as the pixels there do."""
    left, top = data.draw(st.integers(0, 64 - width)), data.draw(st.integers(0, 48 - height))
    events = make_events(800, sensor=SENSOR)
    zoom = affine.zoom_into(SENSOR, (left, top, left + width, top + height))
    before = torch.from_numpy(counts(events)).double()[None, None]
    # only where torch's single-precision factor is not within rounding of a pixel's edge
    clear = np.ix_(no_edge(np.arange(48) + 0.5, height / 48), no_edge(np.arange(64) + 0.5, width / 64))
    part = before[:, :, top : top + height, left : left + width]
    larger = interpolate(part, size=(48, 64), mode="nearest-exact")[0, 0].numpy()
    assert np.array_equal(counts(made(zoom).events(events))[clear], larger[clear])

    smaller = np.zeros((48, 64))
    inner = interpolate(before, size=(height, width), mode="nearest-exact")[0, 0].numpy()
    smaller[top : top + height, left : left + width] = inner
    after = counts(made(affine.inverse(zoom)).events(events))
    rows, across = no_edge(np.arange(height) + 0.5, 48 / height), no_edge(np.arange(width) + 0.5, 64 / width)
    inside = np.ix_(top + np.flatnonzero(rows), left + np.flatnonzero(across))
    assert np.array_equal(after[inside], smaller[inside])
    after[top : top + height, left : left + width] = 0
    assert not after.any()


def no_edge(position: NDArray[np.float64], factor: float) -> NDArray[np.bool_]:
    scaled = position * factor
    return np.abs(scaled - np.rint(scaled)) > 1e-4


@given(st.integers(0, 10**6))
def test_resampling_any_map_is_nearest_resampling_of_pictures(seed: int) -> None:
    events = make_events(800, sensor=SENSOR, seed=seed % 5)
    transform = drawn(seed, SENSOR)
    back = affine.inverse(np.array(transform.matrix))
    y, x = np.mgrid[:48, :64] + 0.5
    source = np.stack([x, y, np.ones_like(x)], axis=-1) @ back.T
    grid = torch.from_numpy(source / [64, 48] * 2 - 1)[None]
    before = torch.from_numpy(counts(events)).double()[None, None]
    expected = grid_sample(before, grid, mode="nearest", align_corners=False)[0, 0].numpy()
    clear = (np.abs(source - np.rint(source)) > 1e-4).all(axis=-1)
    assert np.array_equal(counts(transform.events(events))[clear], expected[clear])


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_one_map_after_the_other_is_their_composition(first: int, second: int) -> None:
    one, two = (np.array(drawn(seed, SENSOR).matrix) for seed in (first, second))
    both = affine.compose(one, two)
    points = np.random.default_rng(0).uniform(0, 64, (50, 3))
    points[:, 2] = 1
    between = np.concatenate([points @ one.T, points[:, 2:]], axis=1)
    assert np.allclose(points @ both.T, between @ two.T)


def test_a_map_beyond_the_arithmetic_is_refused() -> None:
    for factor in (5000.0, float("nan"), float("inf")):
        with pytest.raises(FateError, match=r"(factors reach 4096|cannot be undone)"):
            made(np.array([[1 / factor, 0, 0], [0, 1, 0]])).events(make_events(sensor=SENSOR))
    with pytest.raises(FateError, match="cannot be undone"):
        affine.inverse(np.array([[1.0, 1, 0], [1, 1, 0]]))
