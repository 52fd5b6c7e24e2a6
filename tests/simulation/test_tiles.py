"""Tiles look at all they can see, and step so shortly that nothing in them moves by more than half a pixel."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fate.simulation.art.panels import Texture
from fate.simulation.render.scene import STRETCH_US, Scene
from fate.simulation.render.surfaces import BLUR_WIDTH, KNOT_US, Atlas, Surfaces
from fate.simulation.render.tiles import (
    FLICKER_STEP_US,
    MAX_MOTION,
    MAX_STEP_US,
    MIN_STEP_US,
    TILE,
    TileSchedule,
    schedule_tiles,
)

Floats = NDArray[np.float64]

SEEDS = [0, 5, 6, 8]


@cache
def planned(seed: int, profile: str = "gen1") -> tuple[Scene, Surfaces, TileSchedule]:
    scene = Scene(seed, profile, seconds=0.3)
    surfaces = scene.surfaces(1)
    return scene, surfaces, schedule_tiles(surfaces, scene.atlas, *scene.sensor)


def maps_of(surfaces: Surfaces, which: NDArray[Any], t_us: Floats) -> Floats:
    """Matrices [n, 3, 3] of surfaces ``which`` [n] at their times [n]."""
    place = t_us / KNOT_US
    knot = np.minimum(place.astype(np.int64), len(surfaces.maps) - 2)
    maps = surfaces.maps[..., :9].astype(np.float64)
    share = (place - knot)[:, None]
    both = maps[knot, which] * (1 - share) + maps[knot + 1, which] * share
    return np.asarray(both.reshape(-1, 3, 3))


def samples(
    surfaces: Surfaces, schedule: TileSchedule, width: int, count: int
) -> tuple[NDArray[Any], Floats, Floats, Floats]:
    """Random surfaces of random tiles: ids, image points [n, 3] and times [n] within the stretch, steps [n]."""
    random = np.random.default_rng(7)
    entry = random.integers(0, len(schedule.ids), count)
    tile = np.searchsorted(schedule.first, entry, side="right") - 1
    columns = -(-width // TILE)
    corner = np.stack([tile % columns, tile // columns], axis=1) * TILE
    points = np.concatenate([corner + random.uniform(0, TILE, (count, 2)), np.ones((count, 1))], axis=1)
    step = schedule.step_us[tile].astype(np.float64)
    return schedule.ids[entry], points, random.uniform(0, STRETCH_US - step), step


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_moves_more_than_half_a_pixel_in_a_step(seed: int) -> None:
    scene, surfaces, schedule = planned(seed)
    which, points, t_us, step = samples(surfaces, schedule, scene.sensor.width, 200_000)
    before = maps_of(surfaces, which, t_us)
    after = maps_of(surfaces, which, t_us + step)
    atlas, texture = scene.atlas, surfaces.texture[which]
    size = atlas.slots[texture, 1:3]
    first, second = np.einsum("nij,nj->ni", before, points), np.einsum("nij,nj->ni", after, points)
    w = np.where(first[:, 2] > 1e-6, first[:, 2], np.nan)
    place = first[:, :2] / w[:, None]
    steep = np.linalg.norm(before[:, :2, :2] - place[:, :, None] * before[:, 2:, :2], axis=2) / w[:, None]
    moved = np.abs(second[:, :2] / second[:, 2:] - place) / steep  # [n, 2] pixels, across lines of equal u and v
    seen = ((place > 0) & (place < 1)).all(axis=1) & (step > MIN_STEP_US)
    # motion along an even surface shows at its borders alone
    near_border = np.minimum(place, 1 - place) < 0.5 * BLUR_WIDTH * steep
    shows = seen[:, None] & ((size > 1) | (atlas.slots[texture, 3:] == 0) | near_border)
    assert shows.sum() > 10_000
    assert np.nanmax(moved[shows]) < 1.1 * MAX_MOTION
    assert np.nanmax(moved[shows]) > 0.9 * MAX_MOTION  # and steps are no shorter than they need be


@pytest.mark.parametrize("profile", ["gen1", "1mpx"])
def test_every_surface_that_covers_a_pixel_is_in_its_tiles_list(profile: str) -> None:
    scene, surfaces, schedule = planned(3, profile)
    height, width = scene.sensor
    columns = -(-width // TILE)
    tile = np.repeat(np.arange(len(schedule.step_us)), np.diff(schedule.first))
    listed = np.zeros((surfaces.maps.shape[1], len(schedule.step_us)), np.bool_)
    listed[schedule.ids, tile] = True
    rows, column = np.mgrid[: height : TILE // 2, : width : TILE // 2]
    points = np.stack([column.ravel() + 0.5, rows.ravel() + 0.5, np.ones(rows.size)])
    of_tile = rows.ravel() // TILE * columns + column.ravel() // TILE
    covering = 0
    for k in range(surfaces.maps.shape[1]):
        for t_us in (0.0, 47_321.0, 100_000.0):
            u, v, w = maps_of(surfaces, np.array([k]), np.array([t_us]))[0] @ points
            covers = (w > 1e-6) & (u >= 0) & (u <= w) & (v >= 0) & (v <= w)
            covering += int(covers.sum())
            assert listed[k, of_tile[covers]].all()
    assert covering > 5_000


def test_lists_are_nearest_first_and_name_a_surface_once() -> None:
    _, _, schedule = planned(0)
    assert schedule.first[0] == 0
    assert schedule.first[-1] == len(schedule.ids)
    for first, last in zip(schedule.first[:-1], schedule.first[1:], strict=True):
        assert (np.diff(schedule.ids[first:last]) > 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_keep_within_their_limits(seed: int) -> None:
    _, _, schedule = planned(seed)
    assert schedule.step_us.min() >= MIN_STEP_US
    assert schedule.step_us.max() <= MAX_STEP_US


def one_surface(**changes: Any) -> tuple[Surfaces, Atlas]:
    """A patterned surface over columns 10 to 30 and rows 10 to 20, at rest."""
    matrix = np.array([1 / 20, 0, -0.5, 0, 1 / 10, -1, 0, 0, 1, 0, 0], np.float32)
    surfaces = Surfaces(
        maps=np.tile(matrix, (3, 1, 1)),
        bounds=np.array([[10, 10, 30, 20]], np.float32),
        texture=np.zeros(1, np.int32),
        lamps=np.zeros((1, 4), np.float32),
        owner=np.full(1, -1, np.int32),
        sky=np.zeros((3, 3), np.float32),
        focal=50.0,
    )
    picture = np.linspace(0, 1, 16, dtype="f4").reshape(4, 4)
    return surfaces._replace(**changes), Atlas.build([Texture(picture, np.ones_like(picture))])


def test_a_picture_at_rest_takes_the_longest_steps() -> None:
    surfaces, atlas = one_surface()
    assert (schedule_tiles(surfaces, atlas, 40, 48).step_us == MAX_STEP_US).all()


def test_a_lamp_that_flickers_shortens_the_steps_of_its_tiles_alone() -> None:
    schedule = schedule_tiles(*one_surface(lamps=np.array([[1, 0, 1, 0]], np.float32)), 40, 48)
    short = (schedule.step_us == FLICKER_STEP_US).reshape(5, 6)
    expected = np.zeros((5, 6), np.bool_)
    expected[1:3, 1:4] = True
    assert (short == expected).all()
    unlit, atlas = one_surface(lamps=np.array([[0, 0, 1, 0]], np.float32))
    assert (schedule_tiles(unlit, atlas, 40, 48).step_us == MAX_STEP_US).all()


@pytest.mark.parametrize("pixels_a_knot", [4.0, -9.0])
def test_the_step_is_the_time_in_which_a_surface_moves_half_a_pixel(pixels_a_knot: float) -> None:
    surfaces, atlas = one_surface()
    maps = surfaces.maps.copy()
    maps[:, 0, 2] -= np.arange(3) * pixels_a_knot / 20  # it glides along the rows
    step = schedule_tiles(surfaces._replace(maps=maps), atlas, 40, 48).step_us.reshape(5, 6)
    assert step[1, 2] == pytest.approx(MAX_MOTION * KNOT_US / abs(pixels_a_knot), rel=1e-3)
    assert step[4, 5] == MAX_STEP_US
