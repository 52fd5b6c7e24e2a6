"""Cars of the profile mixed: no two are alike, and all are still cars."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from fate.simulation.art.cars import CARS, CarShape, make_car
from fate.simulation.art.cast import make_cast
from fate.simulation.art.individual_cars import make_individual_car, reflections, reshape_car
from fate.simulation.art.panels import MAX_TEXELS, Body, Texture, outline
from fate.simulation.art.variety import draw_variety
from tests.simulation.panel_points import hits_before, panel_points

SEEDS = range(15)


def _numbers(value: object) -> Iterator[float]:
    """All numbers in a shape."""
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _numbers(each)
    elif hasattr(value, "__dict__"):
        yield from _numbers(tuple(vars(value).values()))


def _check(shape: CarShape) -> None:
    assert np.isfinite(list(_numbers(shape))).all()
    first, last = shape.cabins[0], shape.cabins[-1]
    assert 0 <= shape.tail[1] <= first.rear[0] < last.front[0] <= shape.length - shape.nose[1] <= shape.length
    for one, other in pairwise(shape.cabins):
        assert one.front[0] <= other.rear[0]
    for cabin in shape.cabins:
        assert cabin.bottom + 0.3 < cabin.top
        assert 0 <= cabin.inset[0] <= cabin.inset[1] < 0.4 * shape.width
        if cabin.glazing != "none":
            assert cabin.rear[0] < cabin.rear[1] < cabin.front[1] - 0.5 < cabin.front[0] - 0.5
        ends = (cabin.rear[0], *cabin.pillars, cabin.front[0])
        assert all(one + 0.2 < other for one, other in pairwise(ends))
    reach = 1.16 * shape.wheel  # of the hollow around a wheel
    assert reach < shape.axles[0] < shape.axles[1] - 2 * reach < shape.length - 3 * reach
    assert shape.sill > 0.1
    for low, high, wide in (shape.tail_lamp, shape.head_lamp):
        assert shape.sill < low < high - 0.02
        assert 0.05 < wide < shape.width / 2
    assert shape.tail_lamp[1] < shape.tail[0] <= shape.shoulder
    assert shape.head_lamp[1] < shape.nose[0] <= shape.shoulder
    assert reach + shape.wheel < shape.shoulder


@pytest.mark.parametrize("name", CARS.styles)
def test_another_shape_of_a_make_is_a_car(name: str) -> None:
    for seed in SEEDS:
        _check(reshape_car(np.random.default_rng(seed), CARS.styles[name]))


@pytest.mark.parametrize("name", CARS.styles)
def test_every_panel_of_an_individual_car_shows_something_within_its_size(name: str) -> None:
    for seed in SEEDS:
        body = make_individual_car(np.random.default_rng(seed), name)
        assert 2.8 < body.length < 7.5
        assert 1.2 < body.height < 3.5
        assert 1.4 < body.width < 2.6
        points = []
        for panel in body.panels:
            texture = panel.texture
            assert max(texture.shape) <= MAX_TEXELS
            assert texture.light.dtype == texture.alpha.dtype == np.float32
            assert 0 <= texture.light.min() <= texture.light.max() <= 1
            assert 0 <= texture.alpha.min() <= texture.alpha.max() <= 1
            solid = outline(texture)
            assert len(solid) >= 3
            points.append(panel_points(panel, solid))
        corners = np.concatenate(points)
        low, high = corners.min(axis=0), corners.max(axis=0)
        assert high[1] == pytest.approx(0.0, abs=0.03)
        assert high - low == pytest.approx([body.width, body.height, body.length], rel=0.03, abs=0.03)


@pytest.mark.parametrize("name", CARS.styles)
def test_the_hollows_of_the_wheels_lie_below_the_bonnet_and_the_boot(name: str) -> None:
    angles = np.linspace(0, np.pi, 21)
    for seed in SEEDS:
        shape = reshape_car(np.random.default_rng(seed), CARS.styles[name])
        first, last = shape.cabins[0], shape.cabins[-1]
        z = [shape.tail[1], first.rear[0], last.front[0], shape.length - shape.nose[1]]
        heights = [shape.tail[0], first.bottom, last.bottom, shape.nose[0]]
        for axle in shape.axles:
            around = axle + 1.16 * shape.wheel * np.cos(angles)
            assert (shape.wheel * (1 + 1.16 * np.sin(angles)) < np.interp(around, z, heights)).all()
        assert shape.wheel > 0.8 * CARS.styles[name].wheel


@pytest.mark.parametrize("name", CARS.styles)
def test_nobody_looks_into_an_individual_car(name: str) -> None:
    """But for a half covered texel at a corner where two faces meet."""
    open_rays = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        body = make_individual_car(rng, name)
        for angle in np.linspace(0.0, 2 * np.pi, 12, endpoint=False):
            viewer = np.array([12 * np.sin(angle), -rng.uniform(1.0, 1.6), 12 * np.cos(angle)])
            across, along = rng.uniform(-0.3, 0.3, 2) * (body.width, body.length)
            open_rays += not hits_before(body, viewer, np.array([across, -rng.uniform(0.55, 0.68), along]))
    assert open_rays <= 1  # of 72


@pytest.mark.parametrize("name", CARS.styles)
def test_two_individual_cars_of_a_make_differ_in_shape_and_in_texture(name: str) -> None:
    shapes = [reshape_car(np.random.default_rng(seed), CARS.styles[name]) for seed in (1, 2)]
    proportions = [np.array([each.width, each.tail[0], each.nose[0]]) / each.length for each in shapes]
    assert np.abs(proportions[0] / proportions[1] - 1).max() > 0.02
    one, other = (make_individual_car(np.random.default_rng(seed), name) for seed in (1, 2))
    flanks = [next(p for p in body.panels if p.across[2] > 0).texture for body in (one, other)]
    assert np.abs(flanks[0].alpha - flanks[1].alpha).max() > 0.5 or name == "box-truck"
    assert np.abs(flanks[0].light - flanks[1].light).mean() > 0.02


def _variation(body: Body, level: bool) -> float:
    """Changes of the log light along both axes, added up over the solid part of the level panels, or the others."""
    total = 0.0
    for panel in body.panels:
        if (abs(panel.down[1]) < 0.25) == level:
            log, (rows, columns) = np.log(panel.texture.light + 0.02), panel.texture.shape
            log[panel.texture.alpha < 1] = np.nan
            wide, tall = np.linalg.norm(panel.across), np.linalg.norm(panel.down)
            total += float(np.nansum(np.abs(np.diff(log, axis=1))) * tall / rows)
            total += float(np.nansum(np.abs(np.diff(log, axis=0))) * wide / columns)
    return total


@pytest.mark.parametrize(("level", "times"), [(True, 2.5), (False, 1.04)])
def test_individual_cars_have_more_edges_inside_than_plain_ones(level: bool, times: float) -> None:
    makers = (make_car, make_individual_car)
    plain, individual = (
        np.mean(
            [_variation(make(np.random.default_rng(seed), name), level) for seed in range(10) for name in CARS.styles]
        )
        for make in makers
    )
    assert individual > times * plain


def test_a_seed_gives_the_same_individual_car_again() -> None:
    one, same = (make_individual_car(np.random.default_rng(3), "suv", night=True) for _ in range(2))
    for panel, again in zip(one.panels, same.panels, strict=True):
        np.testing.assert_array_equal(panel.texture.light, again.texture.light)
        np.testing.assert_array_equal(panel.origin, again.origin)


@pytest.mark.parametrize("rows_columns", [(48, 128), (32, 64), (64, 48)])
@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_reflections_change_the_light_and_keep_the_coverage(rows_columns: tuple[int, int], strength: float) -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        light, alpha = (rng.random(rows_columns, np.float32) for _ in range(2))
        mirrored = reflections(rng, Texture(light, alpha), strength)
        np.testing.assert_array_equal(mirrored.alpha, alpha)
        assert 0 <= mirrored.light.min() <= mirrored.light.max() <= 0.95
        assert np.abs(mirrored.light - light).max() > 0.02


def test_small_textures_get_finer_ones_with_the_same_picture_of_coverage() -> None:
    alpha = np.random.default_rng(0).random((8, 16), np.float32)
    mirrored = reflections(np.random.default_rng(0), Texture(np.full_like(alpha, 0.5), alpha))
    assert min(mirrored.shape) >= 32
    rows, columns = mirrored.shape[0] // 8, mirrored.shape[1] // 16
    np.testing.assert_array_equal(mirrored.alpha[::rows, ::columns], alpha)


def test_rubber_mirrors_nothing() -> None:
    for seed in SEEDS:
        mirrored = reflections(np.random.default_rng(seed), Texture.plain(np.full((48, 128), 0.03)), matt=0.03)
        assert mirrored.light.max() < 0.06


def test_only_streets_of_the_mixture_have_individual_cars() -> None:
    def make_digest(cars: list[Body]) -> list[str]:
        return [hashlib.sha256(b"".join(p.texture.light.tobytes() for p in car.panels)).hexdigest() for car in cars]

    rng = np.random.default_rng(5)
    plain = [make_car(rng, CARS.choose(rng, "train")) for _ in range(10)]
    assert make_digest(make_cast(np.random.default_rng(5), "train", False).cars) == make_digest(plain)
    variety = draw_variety(np.random.default_rng(0))
    rng = np.random.default_rng(5)
    own = make_digest([make_individual_car(rng, CARS.choose(rng, "train")) for _ in range(10)])
    assert make_digest(make_cast(np.random.default_rng(5), "train", False, variety).cars[:10]) == own
    assert make_digest(make_cast(np.random.default_rng(5), "train", False, None, False).cars) == own
