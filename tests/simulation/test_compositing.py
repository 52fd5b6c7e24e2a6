"""The light of a pixel, compared with a slow float64 reference that shares nothing with the fast one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from fate.simulation.art.panels import Texture
from fate.simulation.render.compositing import keep_visible, maps_at, render, shade, sky_rows
from fate.simulation.render.scene import Scene
from fate.simulation.render.surfaces import BLUR_WIDTH, KNOT_US, Atlas, Pinhole, Surfaces, matrices, projected_bounds
from fate.simulation.render.tiles import TILE, TileSchedule, schedule_tiles

Floats = NDArray[np.float64]
Image = NDArray[np.float32]

PINHOLE = Pinhole(48, 64, 60.0, 32.0, 24.0)


def made(
    corner: Floats,
    across: Floats,
    down: Floats,
    textures: Sequence[Texture],
    gain: Sequence[float] | None = None,
    haze: Sequence[float] | None = None,
) -> tuple[Surfaces, Atlas]:
    """Surfaces that stand still, nearest first, of rectangles [K, 3]."""
    count = len(textures)
    posed = [np.broadcast_to(np.asarray(part, np.float64), (2, count, 3)).copy() for part in (corner, across, down)]
    maps, _ = matrices(posed[0], posed[1], posed[2], PINHOLE)
    margin = 0.5 * BLUR_WIDTH + 0.5
    zeros = np.zeros(count, np.float32)
    light = np.stack([zeros + 1 if gain is None else gain, zeros if haze is None else haze], axis=1)
    surfaces = Surfaces(
        maps=np.concatenate([maps, np.tile(light, (2, 1, 1))], axis=2, dtype=np.float32),
        bounds=projected_bounds(posed[0], posed[1], posed[2], PINHOLE.focal, 32.0, 24.0, margin),
        texture=np.arange(count, dtype=np.int32),
        lamps=np.zeros((count, 4), np.float32),
        owner=np.full(count, -1, np.int32),
        sky=np.tile(np.array([24.0, 0.8, 1.3], np.float32), (2, 1)),
        focal=PINHOLE.focal,
    )
    return surfaces, Atlas.build(textures)


def rendered(surfaces: Surfaces, atlas: Atlas, t_us: float = 0.0) -> Image:
    image = np.empty((PINHOLE.height, PINHOLE.width), np.float32)
    render(surfaces, atlas, schedule_tiles(surfaces, atlas, *image.shape), t_us, image)
    return image


def overlaps(low: float, high: float, count: int) -> Floats:
    """How much of [low, high] lies in each of ``count`` even parts of [0, 1]."""
    edges = np.arange(count + 1) / count
    return np.asarray(np.clip(np.minimum(high, edges[1:]) - np.maximum(low, edges[:-1]), 0.0, None))


def reference(surfaces: Surfaces, textures: Sequence[Texture], x: float, y: float) -> float:
    """Light at one image point: derivatives by small differences, means texel by texel, front to back."""
    light, clear = 0.0, 1.0
    for k, texture in enumerate(textures):
        matrix, (gain, haze) = (
            surfaces.maps[0, k, :9].astype(np.float64).reshape(3, 3),
            surfaces.maps[0, k, 9:].tolist(),
        )

        def place(column: float, row: float, matrix: Floats = matrix) -> Floats:
            seen = matrix @ [column, row, 1.0]
            return np.asarray(seen[:2] / seen[2])

        if matrix[2] @ [x, y, 1.0] <= 1e-9:
            continue
        tiny = 1e-5
        along_x = (place(x + tiny, y) - place(x - tiny, y)) / (2 * tiny)
        along_y = (place(x, y + tiny) - place(x, y - tiny)) / (2 * tiny)
        (u, v), (half_u, half_v) = place(x, y), 0.5 * BLUR_WIDTH * np.hypot(along_x, along_y)
        height, width = texture.shape
        weights = np.outer(overlaps(v - half_v, v + half_v, height), overlaps(u - half_u, u + half_u, width))
        weights /= 4 * half_u * half_v
        cover = float((weights * texture.alpha).sum())
        light += clear * (float((weights * texture.alpha * texture.light).sum()) * gain + cover * haze)
        clear *= 1.0 - cover
    above = min(max((24.0 - y) / PINHOLE.focal, 0.0), 1.0)
    return light + clear * (0.8 + above * 0.5)


def random_texture(random: np.random.Generator) -> Texture:
    height, width = random.integers(1, 24, 2)
    alpha = np.ones((height, width)) if random.random() < 0.4 else random.choice([0.0, 0.3, 1.0], (height, width))
    return Texture(random.uniform(0, 1, (height, width)).astype("f4"), alpha.astype("f4"))


@pytest.mark.parametrize("seed", range(6))
def test_light_is_the_mean_over_the_blurred_pixel_composited_front_to_back(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 7
    depth = np.sort(random.uniform(2, 12, count))
    turn = random.uniform(-1.0, 1.0, count)
    size = random.uniform(0.2, 3.0, (2, count))
    across = size[0][:, None] * np.stack([np.cos(turn), 0.2 * np.sin(turn), np.sin(turn)], axis=1)
    down = size[1][:, None] * np.array([0.1, 1.0, 0.0])
    corner = np.stack([random.normal(0, 0.3, count) * depth, random.normal(0, 0.2, count) * depth, depth], axis=1)
    textures = [random_texture(random) for _ in range(count)]
    gain, haze = random.uniform(0.2, 1.5, count).tolist(), random.uniform(0.0, 0.6, count).tolist()
    surfaces, atlas = made(corner, across, down, textures, gain, haze)
    image = rendered(surfaces, atlas)
    for row, column in random.integers(0, [48, 64], (250, 2)):
        expected = reference(surfaces, textures, column + 0.5, row + 0.5)
        assert image[row, column] == pytest.approx(expected, abs=3e-3)


def test_an_edge_that_moves_a_hundredth_of_a_pixel_changes_the_light_by_the_right_amount() -> None:
    depth, metre = 10.0, 10.0 / PINHOLE.focal  # a pixel is this many metres wide at that depth
    half = Texture(np.array([[0.0, 1.0]], "f4"), np.ones((1, 2), "f4"))
    lights = []
    for step in range(60):  # the white half's edge wanders from column 30 to the left, towards the pixel at 30.5
        corner = np.array([[-40 - step * 0.01 * metre + 0.5 * metre, -20, depth]])
        surfaces, atlas = made(corner, np.array([[80.0, 0, 0]]), np.array([[0, 40.0, 0]]), [half])
        lights.append(float(rendered(surfaces, atlas)[20, 32]))
    changes = np.diff(lights)
    assert (changes > 0).all()
    np.testing.assert_allclose(changes, 0.01 / BLUR_WIDTH, rtol=0.1)


def test_a_fine_pattern_that_covers_the_pixel_gives_its_mean() -> None:
    random = np.random.default_rng(3)
    picture = random.choice([0.0, 1.0], (128, 128)).astype("f4")
    fine = Texture(picture, np.ones_like(picture))
    width = 0.99 * BLUR_WIDTH  # all of the picture within one pixel's blur
    metre = 10.0 / PINHOLE.focal
    corner = np.array([[0.5 * metre - width * metre / 2, 0.5 * metre - width * metre / 2, 10.0]])
    surfaces, atlas = made(corner, np.array([[width * metre, 0, 0]]), np.array([[0, width * metre, 0]]), [fine])
    covered = 0.99**2
    expected = covered * float(picture.mean()) + (1 - covered) * 0.8
    assert rendered(surfaces, atlas)[24, 32] == pytest.approx(expected, abs=2e-3)


def test_an_opaque_surface_hides_all_behind_it() -> None:
    random = np.random.default_rng(4)
    wall = Texture(np.full((1, 1), 0.37, "f4"), np.ones((1, 1), "f4"))
    corner = np.array([[-30.0, -30, 3], [-30, -30, 9]])
    textures = [wall, random_texture(random)]
    surfaces, atlas = made(corner, np.array([[60.0, 0, 0]] * 2), np.array([[0, 60.0, 0]] * 2), textures)
    np.testing.assert_allclose(rendered(surfaces, atlas), 0.37, atol=1e-3)


def test_a_lamp_flickers_with_its_frequency_depth_and_phase() -> None:
    wall = Texture(np.full((1, 1), 0.5, "f4"), np.ones((1, 1), "f4"))
    surfaces, atlas = made(
        np.array([[-30.0, -30, 3]]), np.array([[60.0, 0, 0]]), np.array([[0, 60.0, 0]]), [wall], [0.2]
    )
    omega = 2 * np.pi * 100e-6  # 100 Hz
    surfaces = surfaces._replace(lamps=np.array([[2, omega, 0.6, 0.7]], np.float32))
    for t_us in (0.0, 1234.0, 2500.0, 4999.0):
        expected = 0.5 * (0.2 + 2.0 * (1 + 0.6 * np.cos(omega * t_us + 0.7)))
        assert rendered(surfaces, atlas, t_us)[5, 5] == pytest.approx(expected, rel=2e-3)


def test_the_sky_is_even_below_the_horizon_and_changes_linearly_above() -> None:
    wall = Texture(np.zeros((1, 1), "f4"), np.ones((1, 1), "f4"))
    surfaces, _ = made(np.array([[0.0, 0, -9]]), np.array([[1.0, 0, 0]]), np.array([[0, 1.0, 0]]), [wall])
    sky = np.array([[20.0, 0.5, 1.1], [22.0, 0.5, 1.1]], np.float32)  # the horizon sinks by 2 rows in a knot
    rows = np.empty(30, np.float32)
    sky_rows(surfaces._replace(sky=sky), KNOT_US / 2, 3, rows)
    centres = 3 + np.arange(30) + 0.5
    np.testing.assert_allclose(rows, 0.5 + 0.6 * np.clip((21.0 - centres) / 60.0, 0, 1), atol=1e-6)


def test_maps_are_interpolated_between_knots_and_end_at_the_last_one() -> None:
    wall = Texture(np.zeros((1, 1), "f4"), np.ones((1, 1), "f4"))
    surfaces, _ = made(np.array([[0.0, 0, 9]]), np.array([[1.0, 0, 0]]), np.array([[0, 1.0, 0]]), [wall])
    knots = np.stack([surfaces.maps[0], 3 * surfaces.maps[0], 4 * surfaces.maps[0]])
    surfaces = surfaces._replace(maps=knots)
    found, ids = np.empty((1, 11), np.float32), np.zeros(1, np.int32)
    for t_us, times in ((0.0, 1.0), (0.25 * KNOT_US, 1.5), (KNOT_US, 3.0), (1.5 * KNOT_US, 3.5), (2.0 * KNOT_US, 4.0)):
        maps_at(surfaces, ids, t_us, found)
        np.testing.assert_allclose(found, times * knots[0], rtol=1e-5)


# --- real scenes ---


def all_in_every_tile(schedule: TileSchedule, count: int) -> TileSchedule:
    """A schedule in which every tile looks at every surface."""
    tiles = len(schedule.step_us)
    ids = np.tile(np.arange(count, dtype=np.int32), tiles)
    return TileSchedule(np.arange(tiles + 1, dtype=np.int64) * count, ids, schedule.step_us)


def as_marched(surfaces: Surfaces, atlas: Atlas, schedule: TileSchedule, t_us: float, shape: tuple[int, int]) -> Image:
    """The picture on the march's way: a tile's list is first cut down to what is seen at this moment."""
    image = np.empty(shape, np.float32)
    sky = np.empty(TILE, np.float32)
    for tile in range(len(schedule.step_us)):
        top, left = (TILE * part for part in divmod(tile, -(-shape[1] // TILE)))
        part = image[top : top + TILE, left : left + TILE]
        ids = schedule.ids[schedule.first[tile] : schedule.first[tile + 1]]
        maps, places = np.empty((len(ids), 11), np.float32), atlas.slots[surfaces.texture[ids]]
        kept, kept_places = np.empty_like(maps), np.empty_like(places)
        maps_at(surfaces, ids, t_us, maps)
        sky_rows(surfaces, t_us, top, sky)
        rows, columns = part.shape
        seen = keep_visible(top, left, rows, columns, maps, places, kept, kept_places)
        shade(top, left, kept[:seen], kept_places[:seen], atlas.light, atlas.alpha, sky, part)
    return image


@pytest.fixture(scope="module", params=[0, 2, 5])
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(request.param, seconds=0.3)


@pytest.mark.parametrize("t_us", [0.0, 33_333.0, 100_000.0])
def test_tiles_that_look_at_their_own_surfaces_see_what_they_would_see_of_all(scene: Scene, t_us: float) -> None:
    surfaces, atlas = scene.surfaces(1), scene.atlas
    schedule = schedule_tiles(surfaces, atlas, *scene.sensor)
    tiled, whole = np.empty(scene.sensor, np.float32), np.empty(scene.sensor, np.float32)
    render(surfaces, atlas, schedule, t_us, tiled)
    render(surfaces, atlas, all_in_every_tile(schedule, surfaces.maps.shape[1]), t_us, whole)
    change = np.abs(np.log(tiled + 0.02) - np.log(whole + 0.02))
    # a surface seen nearly edge-on is smeared along itself by more than the blur, a little beyond its bounds
    assert (change > 0.01).mean() < 2e-3
    assert change.max() < 0.25


@pytest.mark.parametrize("t_us", [0.0, 51_234.0, 100_000.0])
def test_nothing_that_is_seen_is_left_out_of_the_march(scene: Scene, t_us: float) -> None:
    surfaces, atlas = scene.surfaces(1), scene.atlas
    schedule = schedule_tiles(surfaces, atlas, *scene.sensor)
    image = np.empty(scene.sensor, np.float32)
    render(surfaces, atlas, schedule, t_us, image)
    marched = as_marched(surfaces, atlas, schedule, t_us, (scene.sensor.height, scene.sensor.width))
    np.testing.assert_allclose(np.log(marched + 0.02), np.log(image + 0.02), atol=2e-3)
