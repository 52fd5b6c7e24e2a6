"""Figures of boxes with known motion, and every kind of fault planted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fate import Events, Labels, Recording, open_recording, write_events
from fate.inspection.label_statistics import FAULTS, LabelStatistics, frozen_runs, label_statistics, track_speeds

SENSOR = (60, 100)
TIMES = np.arange(1, 21) * 100_000  # 10 Hz for 2 s


def everywhere(rate: float = 20.0, empty: tuple[int, int, int, int] | None = None) -> Events:
    """Noise all over the sensor for 2.05 s, ``rate`` events a pixel and second, none in the rectangle ``empty``."""
    random = np.random.default_rng(0)
    n = int(rate * 2.05 * SENSOR[0] * SENSOR[1])
    t = np.sort(random.integers(0, 2_050_000, n))
    x, y, p = (random.integers(0, high, n) for high in (SENSOR[1], SENSOR[0], 2))
    if empty:
        x1, y1, x2, y2 = empty
        keep = ~((x >= x1) & (x < x2) & (y >= y1) & (y < y2))
        t, x, y, p = t[keep], x[keep], y[keep], p[keep]
    return Events(t, x, y, p, SENSOR)


def track(track_id: int, x: Any, y: float = 20, size: tuple[float, float] = (20, 10), class_id: int = 0) -> list[Any]:
    """One box at each time; ``x`` is a number, or one for each time."""
    left = np.broadcast_to(np.asarray(x, float), len(TIMES))
    return [
        (t, x1, y, x1 + size[0], y + size[1], class_id, track_id) for t, x1 in zip(TIMES.tolist(), left, strict=True)
    ]


def table(*tracks: list[Any]) -> Labels:
    rows = [row for rows in tracks for row in rows]
    names = ("t_us", "x1", "y1", "x2", "y2", "class_id", "track_id")
    columns = {name: np.array([row[index] for row in rows]) for index, name in enumerate(names)}
    for name in ("t_us", "class_id", "track_id"):
        columns[name] = columns[name].astype(np.int64)
    return Labels.from_unsorted(columns, labelled_us=TIMES)


def opened(events: Events, folder: Path) -> Recording:
    write_events(folder / "drive.npz", events)
    return open_recording(folder / "drive.npz")


def measured(labels: Labels, folder: Path, events: Events | None = None, **options: Any) -> LabelStatistics:
    return label_statistics(opened(everywhere() if events is None else events, folder), labels, **options)


def found(statistics: LabelStatistics) -> dict[str, int]:
    """Kinds of faults that occur."""
    return {kind: number for kind, number in statistics.counts.items() if number}


MOVING = 5 + 35 * TIMES / 1e6  # 35 px/s, from one side of the sensor to the other


def test_sizes_speeds_lives_and_rates_of_known_motion(tmp_path: Path) -> None:
    labels = table(track(1, MOVING), track(2, 70 - 20 * TIMES / 1e6, 40, (6, 15), class_id=1)[:6])
    got = measured(labels, tmp_path)
    assert (got.num_boxes, got.num_times, got.rate_hz) == (26, 20, 10)
    assert got.boxes_per_time.tolist() == [2] * 6 + [1] * 14
    assert np.allclose(got.speed[got.speed_class == 0], 35, rtol=1e-4)
    assert np.allclose(got.speed[got.speed_class == 1], 20, rtol=1e-4)
    assert (len(got.speed), sorted(got.life_s.tolist())) == (19 + 5, [0.5, pytest.approx(1.9)])
    assert np.allclose(got.size[got.class_id == 1], (6, 15))
    assert not found(got)


def test_speeds_skip_gaps_and_boxes_without_a_track() -> None:
    rows = track(1, MOVING)
    assert len(track_speeds(table(rows[:2] + rows[18:]))[0]) == 2  # not over the gap of 1.7 s
    assert len(track_speeds(table(track(-1, MOVING)))[0]) == 0


@pytest.mark.parametrize(
    ("fault", "rows"),
    [
        ("out of frame", [(100_000, -5, 10, 15, 20, 0, 9)]),
        ("out of frame", [(100_000, 90, 10, 103, 20, 0, 9)]),
        ("no area", [(100_000, 30, 30, 30, 40, 0, 9)]),
        ("twice", [(100_000, 30, 30, 40, 40, 0, 9), (100_000, 30, 30, 40, 40, 0, 8)]),
    ],
)
def test_a_planted_fault_is_found_and_nothing_else(tmp_path: Path, fault: str, rows: list[Any]) -> None:
    got = measured(table(track(1, MOVING), rows), tmp_path)
    found_here = found(got)
    found_here.pop("without events", None)  # a box without area holds none
    assert found_here == {fault: 1}
    (worst,) = [each for each in got.faults if each.kind == fault]
    assert worst.t_us == 100_000
    assert worst.track_id in (8, 9)


def test_an_edge_of_one_pixel_outside_is_still_fine(tmp_path: Path) -> None:
    assert not found(measured(table(track(1, MOVING), [(100_000, -1, -1, 101, 61, 0, 9)]), tmp_path))


def test_labels_outside_the_recording_are_found(tmp_path: Path) -> None:
    late = Labels([100_000, 2_090_000, 3_000_000], [5] * 3, [5] * 3, [30] * 3, [30] * 3, [0] * 3)
    assert found(measured(late, tmp_path)) == {"outside the recording": 1}


def test_boxes_without_events_are_told_apart_by_whether_the_scene_moves(tmp_path: Path) -> None:
    hole = (60, 30, 100, 60)
    labels = table(track(1, MOVING), [(1_000_000, 70, 40, 90, 50, 0, 9)])
    got = measured(labels, tmp_path, everywhere(empty=hole))
    assert found(got) == {"without events": 1}
    assert got.checked["without events"] == len(labels)
    quiet = everywhere(0.1, empty=hole)
    parked = table([(1_000_000, 70, 40, 90, 50, 0, 9)])
    assert found(measured(parked, tmp_path, quiet)) == {"without events, standing": 1}
    moving = table(track(3, 62 + 8 * np.sin(TIMES / 1e5), 35))  # a box that moves makes events, whatever the rest does
    assert found(measured(moving, tmp_path, quiet)).keys() == {"without events", "without events, standing"}


def test_frozen_tracks_are_told_apart_by_whether_something_moves_inside(tmp_path: Path) -> None:
    labels = table(track(1, MOVING), track(2, 50.2, 40))
    assert found(measured(labels, tmp_path)) == {"frozen": 1}
    quiet = measured(labels, tmp_path, everywhere(0.1))
    assert quiet.counts["frozen, standing"] == 1
    assert quiet.counts["frozen"] == 0


def test_a_track_is_frozen_from_one_second_on() -> None:
    still = track(1, 50)
    assert len(frozen_runs(table(still[:10]))[0]) == 0  # 0.9 s
    assert len(frozen_runs(table(still[:11]))[0]) == 1
    creeping = track(2, 50 + np.arange(len(TIMES)))
    assert frozen_runs(table(creeping)) == ([], 1)


def test_speeds_of_exact_boxes_do_not_follow_edges_that_jump(tmp_path: Path) -> None:
    times = np.arange(1, 401) * 5000
    left = 5 + 20 * times / 1e6 + np.arange(400) % 2  # a pixel to and fro: 200 px/s between two rows
    exact = Labels(times, left, [20] * 400, left + 20, [30] * 400, [0] * 400, [1] * 400)
    sparse = Labels(times[199::200], left[199::200], [20] * 2, left[199::200] + 20, [30] * 2, [0] * 2, [1] * 2)
    assert float(np.median(track_speeds(exact)[0])) > 150
    got = measured(sparse, tmp_path, truth=exact)
    assert (got.num_boxes, got.rate_hz, got.truth_hz) == (2, 1, 200)
    assert np.allclose(got.speed, 20, rtol=1e-3)
    assert len(got.speed) == 390
    assert got.life_s.tolist() == [pytest.approx(1.995)]
    assert got.checked["out of frame"] == 400


def test_an_edge_that_jumps_by_a_pixel_does_not_make_a_parked_car_move(tmp_path: Path) -> None:
    times = np.arange(1, 401) * 5000
    right = 90 + 1.1 * (times == 1_000_000)
    exact = Labels(times, [70] * 400, [40] * 400, right, [50] * 400, [0] * 400, [1] * 400)
    got = measured(exact, tmp_path, everywhere(0.1, empty=(60, 30, 100, 60)), truth=exact, frames=400)
    assert got.counts["without events"] == 0
    assert got.counts["without events, standing"] > 300


def test_labels_without_boxes_are_no_fault(tmp_path: Path) -> None:
    got = measured(Labels.empty(TIMES), tmp_path)
    assert (got.num_boxes, got.num_times, found(got)) == (0, 20, {})
    assert set(got.counts) == set(FAULTS)
    assert not found(measured(Labels.empty(), tmp_path))


def test_no_more_frames_are_looked_at_than_asked_for(tmp_path: Path) -> None:
    got = measured(table(track(1, MOVING)), tmp_path, frames=5)
    assert got.checked["without events"] == 5
