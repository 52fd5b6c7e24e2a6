"""The frame of the profile mixed: events and boxes go to the same place, and what leaves the frame is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from fate.events.events import COMMON_FRAME, Events, Sensor
from fate.events.merging import firing_sum
from fate.simulation.arrays import Float64, Int64
from fate.simulation.camera.framing import Framing
from fate.simulation.camera.lens import Lens
from fate.simulation.camera.random_sensor import SIZES, draw_sensor
from fate.simulation.camera.recorder import record_many
from fate.simulation.render.scene import Boxes, BoxesAt, RecordedPiece, Scene

SMALL = next(seed for seed in range(99) if draw_sensor(seed).size == (128, 128))
OTHER = next(seed for seed in range(99) if draw_sensor(seed).size == (180, 240))
SECONDS = 0.12


def framing(size: Sensor, distortion: float = -0.2, left: int = 0, top: int = 0) -> Framing:
    """A frame with a sensor of this size, whose readout is exact."""
    drawn = next(each for each in map(draw_sensor, range(99)) if each.size == size)
    lens = Lens(size, 60.0, distortion)
    sensor = replace(drawn, lens=lens, left=left, top=top, step_us=1, readout_mev=1e6)
    return Framing(Scene(SMALL, "mixed", seconds=SECONDS), sensor)


def boxes_at(*corners: Sequence[float]) -> BoxesAt:
    count = len(corners)
    boxes = np.array(corners, np.float32).reshape(-1, 4)
    found = Boxes(boxes, np.zeros(count, np.int32), np.arange(count), np.ones(count, np.float32))
    return BoxesAt(np.array([5_000]), np.array([count]), found)


def dot(centre: Float64, reach: int, repeats: int, sensor: Sensor) -> tuple[Events, BoxesAt]:
    """ON events of all pixels of a square around a point, and its box."""
    x, y = (int(each) for each in centre)
    rows, columns = (each.ravel() for each in np.indices((2 * reach, 2 * reach)))
    rows, columns = (np.tile(each, repeats) for each in (rows, columns))
    t_us = np.arange(len(rows))
    events = Events(t_us, x - reach + columns, y - reach + rows, np.ones(len(rows), np.uint8), sensor)
    return events, boxes_at([x - reach, y - reach, x + reach, y + reach])


@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("distortion", [-0.3, 0.0, 0.05])
def test_a_dot_and_its_box_come_out_where_the_lens_and_the_place_say(size: Sensor, distortion: float) -> None:
    frame = framing(size, distortion, left=-9, top=5)
    lens, divisor = frame.sensor.lens, frame.sensor.divisor
    for share_x, share_y in ((0.5, 0.5), (0.2, 0.3), (0.75, 0.6)):
        target = np.array([share_x * size.width, share_y * size.height])
        reach = 6 * divisor
        events, boxes = dot(lens.seen(target), reach, 2 * firing_sum(divisor), lens.simulated)
        found, (_, rows, framed) = frame.events(events, last=True), frame.boxes(boxes)
        expected = target / divisor + (-9, 5)
        assert rows.tolist() == [1]
        x1, y1, x2, y2 = framed.boxes[0]
        assert np.abs([(x1 + x2) / 2 - expected[0], (y1 + y2) / 2 - expected[1]]).max() < 1
        spread = np.array([found.x.min(), found.y.min(), found.x.max() + 1, found.y.max() + 1])
        assert np.abs(spread - framed.boxes[0]).max() <= 1.5
        frame = framing(size, distortion, left=-9, top=5)


def test_boxes_are_cut_at_the_frame_and_dropped_when_too_little_is_left() -> None:
    frame = framing(Sensor(260, 346), 0.0, left=-20, top=-10)
    inside, cut, gone, tiny = [100, 100, 150, 140], [10, 50, 50, 90], [0, 50, 28, 90], [60, 60, 68, 68]
    _, rows, found = frame.boxes(boxes_at(inside, cut, gone, tiny))
    assert rows.tolist() == [2]
    assert found.track_id.tolist() == [0, 1]
    np.testing.assert_allclose(found.boxes, [[80, 90, 130, 130], [0, 40, 30, 80]], atol=1e-3)
    np.testing.assert_allclose(found.visible, [1.0, 0.75], atol=1e-4)


def test_boxes_keep_their_times_when_some_are_dropped() -> None:
    frame, (_, _, one) = framing(Sensor(240, 304), 0.0), boxes_at([10, 10, 14, 14], [40, 40, 90, 90], [50, 50, 90, 99])
    t_us, rows, found = frame.boxes(BoxesAt(np.array([1, 2, 3]), np.array([1, 0, 2]), one))
    assert (t_us.tolist(), rows.tolist()) == ([1, 2, 3], [0, 0, 2])
    assert found.track_id.tolist() == [1, 2]
    none, empty = np.zeros(0, np.int64), np.zeros(0, np.float32)
    nothing = frame.boxes(BoxesAt(none, none, Boxes(empty.reshape(0, 4), none.astype(np.int32), none, empty)))
    assert len(nothing.rows) == len(nothing.boxes.boxes) == 0


def test_events_beyond_the_frame_are_dropped() -> None:
    frame = framing(Sensor(260, 346), 0.0, left=-20, top=-10)
    x, y = [0, 19, 20, 339, 340], [100] * 5
    found = frame.events(Events(np.arange(5), x, y, np.ones(5, np.uint8), Sensor(260, 346)), last=True)
    assert (found.x.tolist(), found.y.tolist(), found.sensor) == ([0, 319], [90, 90], COMMON_FRAME)


def times(scene: Scene) -> Int64:
    return np.arange(5_000, scene.duration_us + 1, 5_000)


@cache
def recorded(threads: int = 1) -> list[RecordedPiece]:
    makers = [partial(Scene, seed, "mixed", "train", SECONDS) for seed in (SMALL, OTHER)]
    return list(record_many(makers, times, threads=threads))


@pytest.mark.slow
def test_recordings_of_different_sensors_have_one_frame_and_events_and_boxes_inside_it() -> None:
    assert [(piece.recording, piece.last) for piece in recorded()] == [(0, False), (0, True), (1, False), (1, True)]
    for number in range(2):
        mine = [piece for piece in recorded() if piece.recording == number]
        events, drawn = Events.concatenate([piece.events for piece in mine]), mine[0].scene.random_sensor
        assert drawn is not None
        assert events.sensor == mine[0].scene.frame == COMMON_FRAME
        assert len(events) > 100
        assert events.t_us[-1] < SECONDS * 1e6
        assert drawn.left <= events.x.min() <= events.x.max() < drawn.left + drawn.size.width
        assert np.concatenate([piece.boxes.t_us for piece in mine]).tolist() == times(mine[0].scene).tolist()
        boxes = np.concatenate([piece.boxes.boxes.boxes for piece in mine])
        assert len(boxes) == sum(int(piece.boxes.rows.sum()) for piece in mine) > 0
        assert np.hypot(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]).min() >= 12
        assert boxes.min() >= 0
        assert boxes[:, 2].max() <= drawn.left + drawn.size.width
        assert boxes[:, 3].max() <= drawn.top + drawn.size.height


@pytest.mark.slow
def test_the_same_seed_gives_the_same_pieces_on_any_number_of_threads() -> None:
    for ours, theirs in zip(recorded(), recorded(threads=2), strict=True):
        assert ours.events == theirs.events
        np.testing.assert_array_equal(ours.boxes.boxes.boxes, theirs.boxes.boxes.boxes)
