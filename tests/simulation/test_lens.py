"""The lens: sensor and pinhole picture map onto each other, every pixel sees one simulated pixel, and boxes follow."""

from __future__ import annotations

import numpy as np
import pytest

from fate.events.events import Events, Sensor
from fate.simulation.camera.lens import Lens

SENSOR = Sensor(120, 160)
DISTORTIONS = (-0.3, -0.1, 0.0, 0.05)


def events_at(x: list[int], y: list[int], sensor: Sensor) -> Events:
    return Events(np.arange(len(x)), x, y, np.ones(len(x), np.uint8), sensor)


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_every_pixel_sees_one_simulated_pixel_of_its_own(distortion: float) -> None:
    lens = Lens(SENSOR, 60.0, distortion)
    rows, columns = (each.ravel() for each in np.indices(lens.simulated))
    everywhere = Events(np.arange(len(rows)), columns, rows, np.ones(len(rows), np.uint8), lens.simulated)
    shown = lens.events(everywhere)
    assert shown.sensor == SENSOR
    pixels = shown.y.astype(np.int64) * SENSOR.width + shown.x
    assert sorted(pixels.tolist()) == list(range(SENSOR.height * SENSOR.width))


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_shown_is_the_inverse_of_seen(distortion: float) -> None:
    lens = Lens(SENSOR, 60.0, distortion)
    points = np.random.default_rng(0).uniform((0, 0), SENSOR[::-1], (500, 2))
    points[0] = SENSOR.width / 2, SENSOR.height / 2
    np.testing.assert_allclose(lens.shown(lens.seen(points)), points, atol=1e-6)
    np.testing.assert_allclose(lens.seen(points[:1])[0] * 2, lens.simulated[::-1])


@pytest.mark.parametrize("distortion", DISTORTIONS)
@pytest.mark.parametrize("sensor", [SENSOR, Sensor(720, 1280), Sensor(128, 128)])
def test_the_field_of_view_reaches_from_side_to_side(distortion: float, sensor: Sensor) -> None:
    lens = Lens(sensor, 80.0, distortion)
    edges = lens.seen(np.array([[0.0, sensor.height / 2], [sensor.width, sensor.height / 2]]))
    angles = np.degrees(np.arctan((edges[:, 0] - lens.simulated.width / 2) / lens.focal))
    np.testing.assert_allclose(angles, [-40.0, 40.0], atol=1e-6)


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_a_point_moves_by_one_plus_k_r_squared_near_the_middle(distortion: float) -> None:
    lens = Lens(SENSOR, 60.0, distortion)
    offset, r = np.array([24.0, -18.0]), 0.3  # 30 pixels, of 100 to the corner
    shown = lens.shown(np.array(lens.simulated[::-1]) / 2 + offset * lens.zoom) - np.array(SENSOR[::-1]) / 2
    np.testing.assert_allclose(shown, offset * (1 + distortion * r * r), rtol=4 * distortion**2 * r**4 + 1e-9)


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_a_box_of_a_dot_stays_around_the_events_of_the_dot(distortion: float) -> None:
    lens = Lens(SENSOR, 60.0, distortion)
    random, checked = np.random.default_rng(1), 0
    for _ in range(40):
        x, y = random.integers(4, lens.simulated.width - 10), random.integers(4, lens.simulated.height - 10)
        rows, columns = (each.ravel() for each in np.indices((6, 6)))
        shown = lens.events(events_at((x + columns).tolist(), (y + rows).tolist(), lens.simulated))
        (box,) = lens.boxes(np.array([[x, y, x + 6, y + 6]], np.float32))
        if box.min() > 0 and (box[2:] < SENSOR[::-1]).all():
            spread = np.array([shown.x.min(), shown.y.min(), shown.x.max() + 1, shown.y.max() + 1])
            assert np.abs(box - spread).max() <= 1.5
            checked += 1
    assert checked > 10


def test_without_distortion_nothing_changes() -> None:
    lens = Lens(SENSOR, 60.0, 0.0)
    events = events_at([0, 17, 159], [0, 99, 119], SENSOR)
    assert lens.simulated == SENSOR
    assert lens.events(events) == events
    boxes = np.array([[3.25, 4.5, 90.0, 77.75]], np.float32)
    np.testing.assert_allclose(lens.boxes(boxes), boxes, atol=1e-4)
    assert lens.boxes(boxes[:0]).shape == (0, 4)
    assert lens.pinhole(0.25)[1:] == (160, lens.focal, 80.0, 30.0)
