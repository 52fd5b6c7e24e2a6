"""Rectangles seen through a pinhole: the matrices agree with ray-plane intersections done one by one in float64."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fate.simulation.art.panels import Texture
from fate.simulation.render.surfaces import NEAR, Atlas, Pinhole, matrices, projected_bounds

Floats = NDArray[np.float64]

PINHOLE = Pinhole(240, 304, 263.3, 152.0, 121.7)


def rectangles(seed: int, count: int, ahead: float = 8.0) -> tuple[Floats, Floats, Floats]:
    """Random corners, across and down [3, count, 3] that glide on without turning; nearly all are in front."""
    random = np.random.default_rng(seed)
    corner = random.normal((0, 0, ahead), 2, (count, 3))
    across, down = random.normal(0, 1.5, (2, count, 3))
    velocity = random.normal(0, 0.3, (count, 3))
    glide = np.arange(3)[:, None, None] * velocity
    return corner + glide, np.broadcast_to(across, glide.shape).copy(), np.broadcast_to(down, glide.shape).copy()


def met(corner: Floats, across: Floats, down: Floats, column: float, row: float) -> Floats:
    """Where the ray through a pixel meets a rectangle's plane: u, v and the depth z, by solving P + uA + vD = z ray."""
    ray = np.array([(column - PINHOLE.centre_x) / PINHOLE.focal, (row - PINHOLE.centre_y) / PINHOLE.focal, 1.0])
    return np.asarray(np.linalg.solve(np.stack([across, down, -ray], axis=1), -corner))


def pixel(point: Floats) -> Floats:
    """Column and row of points [..., 3]."""
    return np.asarray(PINHOLE.focal * point[..., :2] / point[..., 2:] + [PINHOLE.centre_x, PINHOLE.centre_y])


def test_matrices_agree_with_a_ray_plane_intersection() -> None:
    corner, across, down = rectangles(0, 60)
    maps, side = matrices(corner, across, down, PINHOLE)
    random = np.random.default_rng(1)
    compared = 0
    for knot in range(3):
        for k in range(60):
            matrix = maps[knot, k].astype(np.float64).reshape(3, 3)
            for place in random.uniform(-0.2, 1.2, (4, 2)):
                point = corner[knot, k] + place[0] * across[knot, k] + place[1] * down[knot, k]
                if point[2] < 0.5 or abs(side[knot, k]) < 0.05 or side[knot, k] * side[1, k] < 0:
                    continue
                column, row = pixel(point)
                u, v, depth = met(corner[knot, k], across[knot, k], down[knot, k], column, row)
                big_u, big_v, w = matrix @ [column, row, 1.0]
                assert w > 0
                assert (big_u / w, big_v / w) == pytest.approx((u, v), abs=2e-3)
                assert (u, v) == pytest.approx(tuple(place), abs=1e-6)
                # n has the same length at all knots here, so depth = |n·P| / W holds with unit normals
                assert abs(side[knot, k]) / w == pytest.approx(depth, rel=2e-3)
                compared += 1
    assert compared > 400


def test_w_is_positive_just_where_the_plane_lies_ahead() -> None:
    corner, across, down = rectangles(2, 80, ahead=0.0)
    maps, side = matrices(corner, across, down, PINHOLE)
    random = np.random.default_rng(3)
    checked = 0
    for k in np.flatnonzero(np.abs(side[1]) > 0.05):
        column, row = random.uniform(-100, 400, 2)
        depth = met(corner[1, k], across[1, k], down[1, k], column, row)[2]
        if abs(depth) < 100:
            w = maps[1, k].astype(np.float64).reshape(3, 3)[2] @ [column, row, 1.0]
            assert (w > 0) == (depth > 0)
            checked += 1
    assert checked > 50


def test_the_side_says_whether_the_texture_is_seen_as_it_is_written() -> None:
    corner, across, down = rectangles(4, 200)
    _, side = matrices(corner, across, down, PINHOLE)
    checked = 0
    for k in range(200):
        points = np.stack([corner[1, k], corner[1, k] + across[1, k], corner[1, k] + down[1, k]])
        if points[:, 2].min() < 0.3:
            continue
        first, right, below = pixel(points)
        (ax, ay), (bx, by) = right - first, below - first
        assert (ax * by - ay * bx > 0) == (side[1, k] > 0)  # x right and y down: clockwise is positive
        checked += 1
    assert checked > 100


def test_matrices_are_linear_in_time_while_nothing_turns() -> None:
    maps, _ = matrices(*rectangles(5, 50), PINHOLE)
    np.testing.assert_allclose(maps[1], (maps[0] + maps[2]) / 2, atol=2e-5 * float(np.abs(maps).max()))


def bounds_of(corner: Floats, across: Floats, down: Floats, margin: float = 0.0) -> NDArray[np.float32]:
    return projected_bounds(corner, across, down, PINHOLE.focal, PINHOLE.centre_x, PINHOLE.centre_y, margin)


@pytest.mark.parametrize("ahead", [8.0, 1.0, 0.0])
def test_bounds_contain_every_point_that_is_in_front_and_no_more(ahead: float) -> None:
    corner, across, down = rectangles(6, 120, ahead)
    bounds = bounds_of(corner, across, down)
    u, v = (part.ravel() for part in np.meshgrid(np.linspace(0, 1, 41), np.linspace(0, 1, 41)))
    clipped, tight = 0, 0
    for k in range(120):
        points = np.concatenate([corner[r, k] + u[:, None] * across[r, k] + v[:, None] * down[r, k] for r in range(3)])
        front = points[points[:, 2] >= NEAR]
        if not len(front):
            continue
        places = pixel(front)
        slack = 1e-3 + 1e-5 * np.abs(places).max()
        assert (places.min(0) >= bounds[k, :2] - slack).all()
        assert (places.max(0) <= bounds[k, 2:] + slack).all()
        if len(front) < len(points):
            clipped += 1
        elif points[:, 2].min() > 0.5:  # all of it well in front: the corners are on the grid, so the box is exact
            np.testing.assert_allclose(np.concatenate([places.min(0), places.max(0)]), bounds[k], atol=slack)
            tight += 1
    assert tight > 60 if ahead == 8.0 else clipped > 30


def test_the_margin_is_added_on_every_side() -> None:
    rectangle = rectangles(7, 20)
    grown = bounds_of(*rectangle, margin=1.7) - bounds_of(*rectangle)
    np.testing.assert_allclose(grown, np.broadcast_to([-1.7, -1.7, 1.7, 1.7], grown.shape), atol=1e-2)


def test_what_lies_behind_the_camera_has_no_bounds() -> None:
    corner, across, down = rectangles(8, 30)
    x1, y1, x2, y2 = bounds_of(corner - [0, 0, 40], across, down).T
    assert (x1 > x2).all()
    assert (y1 > y2).all()


def test_the_atlas_gives_back_every_texel_of_every_texture() -> None:
    random = np.random.default_rng(9)
    textures = []
    for height, width in ((1, 1), (3, 5), (17, 2), (128, 128)):
        alpha = np.ones((height, width)) if height == 3 else random.uniform(0, 1, (height, width))
        textures.append(Texture(random.uniform(0, 1, (height, width)).astype("f4"), alpha.astype("f4")))
    atlas = Atlas.build(textures)
    assert atlas.slots[:, 3].tolist() == [0, 1, 0, 0]
    for place, texture in enumerate(textures):
        height, width = texture.shape
        assert atlas.slots[place, 1:3].tolist() == [width, height]
        size = (height + 1) * (width + 1)
        for table, plane in ((atlas.light, texture.light * texture.alpha), (atlas.alpha, texture.alpha)):
            sums = table[atlas.slots[place, 0] : atlas.slots[place, 0] + size].reshape(height + 1, width + 1)
            texels = sums[1:, 1:] - sums[:-1, 1:] - sums[1:, :-1] + sums[:-1, :-1]
            np.testing.assert_allclose(texels / 65535, plane, atol=1e-5)


def test_an_atlas_of_nothing_is_empty() -> None:
    atlas = Atlas.build([])
    assert atlas.slots.shape == (0, 4)
