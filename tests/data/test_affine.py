"""Properties of maps: events and boxes go together, in whole pixels, as pictures do, the same everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn.functional import grid_sample, interpolate

from fate.data import affine
from fate.data.transforms import Augmentation, Transform
from fate.events.events import Events, Sensor
from tests.conftest import event_lists, make_events

SENSOR = Sensor(48, 64)
SENSORS = st.tuples(st.integers(1, 90), st.integers(1, 120))
EVERYTHING = Augmentation(
    flip=0.5, rotate=0.8, translate=0.8, scale=0.8, shear=0.8, zoom=0.5, min_visible=0, min_side=0
)
PIXELS = st.sampled_from(["move", "resample"])


def made(steps: list[affine.Map] | affine.Map, sensor: Sensor = SENSOR, **settings: Any) -> Transform:
    whole = affine.compose(*steps) if isinstance(steps, list) else steps
    return Transform(whole.tolist(), sensor, **settings)


def drawn(seed: int, sensor: tuple[int, int], pixels: str) -> Transform:
    augmentation = replace(EVERYTHING, pixels=pixels, max_shift=0.2)  # type: ignore[arg-type]
    return augmentation.draw(np.random.default_rng(seed), sensor)


def counts(events: Events) -> NDArray[np.int64]:
    """[H, W] events per pixel."""
    picture = np.zeros(events.sensor, np.int64)
    np.add.at(picture, (events.y, events.x), 1)
    return picture


def columns(events: Events) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(events.x.astype(np.int32)), torch.from_numpy(events.y.astype(np.int32))


# --- events and boxes together ---------------------------------------------------------------------------------------


@given(event_lists(SENSORS), st.integers(0, 10**6), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_a_box_keeps_its_events_when_they_move(events: Events, seed: int, where: list[float]) -> None:
    height, width = events.sensor
    box = np.array([*sorted(np.array(where[:2]) * width), *sorted(np.array(where[2:]) * height)])[[0, 2, 1, 3]]
    transform = drawn(seed, events.sensor, "move")
    moved_x, moved_y, event = transform.columns(*columns(events))
    (x1, y1, x2, y2), _ = (values[0] for values in transform.boxes([box]))
    x, y = events.x + 0.5, events.y + 0.5
    mine = ((x > box[0]) & (x < box[2]) & (y > box[1]) & (y < box[3]))[event.numpy()]
    new_x, new_y = moved_x.numpy()[mine], moved_y.numpy()[mine]
    assert np.all((new_x + 1 >= x1 - 1e-4) & (new_x <= x2 + 1e-4))
    assert np.all((new_y + 1 >= y1 - 1e-4) & (new_y <= y2 + 1e-4))


@given(event_lists(SENSORS), st.integers(0, 10**6), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_a_box_around_whole_pixels_keeps_their_resampled_events(events: Events, seed: int, where: list[float]) -> None:
    height, width = events.sensor
    box = np.array([*sorted(np.array(where[:2]) * width), *sorted(np.array(where[2:]) * height)])[[0, 2, 1, 3]]
    transform = drawn(seed, events.sensor, "resample")
    new_x, new_y, event = transform.columns(*columns(events))
    (x1, y1, x2, y2), _ = (values[0] for values in transform.boxes([box]))
    whole = (events.x >= box[0]) & (events.x + 1 <= box[2]) & (events.y >= box[1]) & (events.y + 1 <= box[3])
    mine = whole[event.numpy()]
    x, y = new_x.numpy()[mine] + 0.5, new_y.numpy()[mine] + 0.5
    assert np.all((x >= x1 - 1e-4) & (x <= x2 + 1e-4) & (y >= y1 - 1e-4) & (y <= y2 + 1e-4))


@given(event_lists(SENSORS), st.integers(0, 10**6), PIXELS)
def test_arrays_and_tensors_give_exactly_the_same(events: Events, seed: int, pixels: str) -> None:
    transform = drawn(seed, events.sensor, pixels)
    x, y, event = transform.columns(*columns(events))
    assert x.dtype == torch.int32
    rows = event.numpy()
    same = Events(events.t_us[rows], x.numpy(), y.numpy(), events.p[rows], events.sensor)
    assert same == transform.events(events)


@given(event_lists(SENSORS), st.integers(0, 10**6), PIXELS)
def test_events_stay_in_order_and_in_the_frame(events: Events, seed: int, pixels: str) -> None:
    after = drawn(seed, events.sensor, pixels).events(events)
    assert Events(after.t_us, after.x, after.y, after.p, events.sensor) == after  # checks times and pixels


@given(event_lists(SENSORS), st.integers(0, 10**6))
def test_moving_drops_exactly_the_events_whose_centres_leave_the_frame(events: Events, seed: int) -> None:
    transform = drawn(seed, events.sensor, "move")
    matrix = np.array(transform.matrix)
    where = np.stack([events.x + 0.5, events.y + 0.5, np.ones(len(events))], axis=1) @ matrix.T
    _, _, event = transform.columns(*columns(events))
    kept = np.isin(np.arange(len(events)), event.numpy())
    size = np.array([events.sensor.width, events.sensor.height])
    clear = (np.abs(where - np.clip(where, 0, size)) > 1e-4) | ((where > 1e-4) & (where < size - 1e-4))
    inside = ((where >= 0) & (where < size)).all(axis=1)
    assert np.array_equal(kept[clear.all(axis=1)], inside[clear.all(axis=1)])


# --- what a map does to pixels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pixels", ["move", "resample"])
def test_a_flip_mirrors_columns_and_two_flips_are_nothing(pixels: Any) -> None:
    events = make_events(sensor=SENSOR)
    flip = made(affine.flip(SENSOR), pixels=pixels)
    flipped = flip.events(events)
    assert np.array_equal(flipped.x, 63 - events.x)
    assert np.array_equal(flipped.y, events.y)
    assert np.array_equal(flipped.t_us, events.t_us)
    assert np.array_equal(flipped.p, events.p)
    assert flip.events(flipped) == events
    assert made([affine.flip(SENSOR)] * 2).is_identity


@pytest.mark.parametrize("pixels", ["move", "resample"])
def test_a_shift_by_whole_pixels_moves_each_event_and_drops_the_rest(pixels: Any) -> None:
    events = make_events(sensor=SENSOR)
    moved = made(affine.shift(-7, 5), pixels=pixels).events(events)
    stay = events.inside(7, 0, 64, 43)
    assert np.array_equal(moved.t_us, stay.t_us)
    assert np.array_equal(moved.x, stay.x - 7)
    assert np.array_equal(moved.y, stay.y + 5)


@pytest.mark.parametrize("pixels", ["move", "resample"])
def test_a_quarter_turn_of_a_square_frame_turns_the_picture(pixels: Any) -> None:
    square = Sensor(40, 40)
    events = make_events(sensor=square)
    turned = made(affine.rotation(square, 90), square, pixels=pixels).events(events)
    assert np.array_equal(counts(turned), np.rot90(counts(events), -1))  # clockwise


def test_enlarging_by_two_repeats_each_event_four_times_or_leaves_gaps() -> None:
    events = make_events(sensor=SENSOR)
    double = affine.zoom_into(SENSOR, (16, 12, 48, 36))
    middle = events.inside(16, 12, 48, 36)
    repeated = made(double).events(events)
    assert np.array_equal(counts(repeated), np.kron(counts(middle)[12:36, 16:48], np.ones((2, 2), int)))
    assert np.array_equal(repeated.t_us, np.repeat(middle.t_us, 4))
    moved = made(double, pixels="move").events(events)
    assert np.array_equal(counts(moved)[1::2, 1::2], counts(middle)[12:36, 16:48])
    assert len(moved) == len(middle)


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
    transform = drawn(seed, SENSOR, "resample")
    back = np.array(transform.inverse().matrix)
    y, x = np.mgrid[:48, :64] + 0.5
    source = np.stack([x, y, np.ones_like(x)], axis=-1) @ back.T
    grid = torch.from_numpy(source / [64, 48] * 2 - 1)[None]
    before = torch.from_numpy(counts(events)).double()[None, None]
    expected = grid_sample(before, grid, mode="nearest", align_corners=False)[0, 0].numpy()
    clear = (np.abs(source - np.rint(source)) > 1e-4).all(axis=-1)
    assert np.array_equal(counts(transform.events(events))[clear], expected[clear])


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_one_map_after_the_other_is_their_composition_within_a_pixel(first: int, second: int) -> None:
    one, two = (np.array(drawn(seed, SENSOR, "move").matrix) for seed in (first, second))
    both = affine.compose(one, two)
    points = np.random.default_rng(0).uniform(0, 64, (50, 3))
    points[:, 2] = 1
    between = np.concatenate([points @ one.T, points[:, 2:]], axis=1)
    assert np.allclose(points @ both.T, between @ two.T)
    # pixels are rounded in between: half a pixel each way, times what the second map does to it
    events = make_events(500, sensor=SENSOR)
    tensors = columns(events)
    x1, y1, event1 = made(one, pixels="move").columns(*tensors)
    x2, y2, event2 = made(two, pixels="move").columns(x1, y1)
    x, y, event = made(both, pixels="move").columns(*tensors)
    direct = {int(e): (int(a), int(b)) for e, a, b in zip(event, x, y, strict=True)}
    reach = np.abs(two[:, :2]).sum(axis=1) / 2 + 1 + 1e-6
    for e, a, b in zip(event1[event2], x2, y2, strict=True):
        if int(e) in direct:
            assert abs(int(a) - direct[int(e)][0]) <= reach[0]
            assert abs(int(b) - direct[int(e)][1]) <= reach[1]


def test_the_largest_sensor_and_map_do_not_overflow() -> None:
    sensor = Sensor(65_536, 65_536)
    events = Events([0, 1, 2], [0, 65_535, 65_535], [0, 0, 65_535], [0, 1, 1], sensor)
    shrunk = made(np.array([[0, 0.5, 0], [0.5, 0, 0]]), sensor, pixels="move").events(events)
    assert shrunk.x.tolist() == [0, 0, 32_767]
    assert shrunk.y.tolist() == [0, 32_767, 32_767]
    huge = made(np.array([[4096.0, 4096, 2.0**28], [4096, 4096, -(2.0**28)]]), sensor, pixels="move")
    assert len(huge.events(events)) == 0
