"""The procedural art: textures within range, bodies as large as they say, wheels on the ground, fair splits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate.simulation.art import roadside
from fate.simulation.art.buildings import FACADES, make_boundary, make_facade
from fate.simulation.art.cars import CARS, make_car
from fate.simulation.art.catalogue import SPLITS, Catalogue
from fate.simulation.art.panels import MAX_TEXELS, SUM_SCALE, Body, Canvas, Panel, Swing, Texture, outline, summed_area
from fate.simulation.art.pedestrians import LEG_SWING, PEDESTRIANS, make_pedestrian
from fate.simulation.art.roadside import make_pole, make_shadow, make_tree
from fate.simulation.art.two_wheelers import TWO_WHEELERS, make_two_wheeler
from tests.simulation.panel_points import hits_before, panel_points

Maker = Callable[[np.random.Generator], Body]


def _makers() -> dict[str, Maker]:
    makers: dict[str, Maker] = {}
    for name in CARS.styles:
        makers[name] = lambda rng, name=name: make_car(rng, name)  # type: ignore[misc]
    for name in TWO_WHEELERS.styles:
        makers[name] = lambda rng, name=name: make_two_wheeler(rng, name, night=True)  # type: ignore[misc]
    for name in PEDESTRIANS.styles:
        makers[name] = lambda rng, name=name: make_pedestrian(rng, name)  # type: ignore[misc]
    for name in FACADES.styles:
        makers[f"facade {name}"] = lambda rng, name=name: make_facade(rng, 13.0, 9.0, name)  # type: ignore[misc]
    makers["boundary"] = make_boundary
    makers["tree"] = make_tree
    makers["pole"] = lambda rng: make_pole(rng, night=True)
    return makers


MAKERS = _makers()


def _solid_points(body: Body) -> npt.NDArray[np.float64]:
    """Corners of everything solid, [n, 3], limbs at rest."""
    return np.concatenate([panel_points(panel, outline(panel.texture)) for panel in body.panels])


def _bytes(body: Body) -> bytes:
    parts = [np.array([body.length, body.width, body.height]).tobytes()]
    for panel in body.panels:
        arrays = (panel.texture.light, panel.texture.alpha, panel.origin, panel.across, panel.down)
        parts += [array.tobytes() for array in arrays] + [repr((panel.emission, panel.flicker_hz)).encode()]
    return b"".join(parts)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("seed", range(4))
def test_a_body_is_as_large_as_it_says_and_stands_on_the_ground(name: str, seed: int) -> None:
    body = MAKERS[name](np.random.default_rng(seed))
    points = _solid_points(body)
    low, high = points.min(axis=0), points.max(axis=0)
    assert high[1] == pytest.approx(0.0, abs=0.03)
    assert -low[1] == pytest.approx(body.height, rel=0.03, abs=0.03)
    if name in ("pole", "tree"):  # lamp arms and crowns may reach to one side only
        assert max(-low[0], high[0]) == pytest.approx(body.width / 2, rel=0.05, abs=0.03)
    else:
        assert high[0] - low[0] == pytest.approx(body.width, rel=0.12 if body.facing else 0.03, abs=0.03)
    if body.facing:
        assert body.length == body.width
        np.testing.assert_array_equal(points[:, 2], 0.0)
    else:
        assert high[2] - low[2] == pytest.approx(body.length, rel=0.02, abs=0.03)


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_gives_the_same_body_again_and_another_seed_another(name: str) -> None:
    again, other = np.random.default_rng(7), np.random.default_rng(8)
    first = _bytes(MAKERS[name](np.random.default_rng(7)))
    assert first == _bytes(MAKERS[name](again))
    assert first != _bytes(MAKERS[name](other))


@pytest.mark.parametrize("name", MAKERS)
def test_every_panel_shows_something_and_is_no_sliver(name: str) -> None:
    body = MAKERS[name](np.random.default_rng(3))
    for panel in body.panels:
        area = float(np.linalg.norm(np.cross(panel.across, panel.down)))
        assert area > 1e-3
        assert len(outline(panel.texture)) >= 3
        across, down = np.linalg.norm(panel.across), np.linalg.norm(panel.down)
        assert area > 0.2 * across * down


def test_a_scaled_panel_lies_where_its_points_go_and_keeps_the_rest() -> None:
    texture = Texture(np.full((2, 3), 0.5, np.float32), np.ones((2, 3), np.float32))
    swing = Swing(np.array([0.0, -0.9, 0.4]), 0.3, 1.2)
    panel = Panel(
        texture, np.array([0.0, -1, 0.5]), np.array([0, 0, 1.0]), np.array([0, 1.0, 0]), faces="both", emission=0.7,
        flicker_hz=100, flicker_depth=0.5, swing=swing,
    )  # fmt: skip
    middle, places = np.array([0.0, 0.0, 0.8]), np.random.default_rng(0).random((9, 2))
    for scale in (1.5, np.array([1.1, 1.1, 1.1])):  # a swing keeps its shape where all axes are stretched alike
        moved = panel.scaled(scale, about=middle)
        for phase in (0.0, 1.0):
            np.testing.assert_allclose(
                panel_points(moved, places, phase), (panel_points(panel, places, phase) - middle) * scale
            )
        kept = ("texture", "faces", "emission", "flicker_hz", "flicker_depth")
        assert [getattr(moved, name) for name in kept] == [getattr(panel, name) for name in kept]
        assert moved.swing is not None
        assert (moved.swing.amplitude, moved.swing.phase) == (0.3, 1.2)
    rigid = Panel(texture, panel.origin, panel.across, panel.down)
    stretched = rigid.scaled(np.array([1.0, 2.0, 3.0]), about=np.zeros(3))
    np.testing.assert_allclose(panel_points(stretched, places), panel_points(rigid, places) * (1, 2, 3))
    assert stretched.swing is None


@pytest.mark.parametrize("name", CARS.styles)
def test_both_wheels_of_a_flank_touch_the_ground_and_the_road_shows_between_them(name: str) -> None:
    body = make_car(np.random.default_rng(0), name)
    flanks = [
        p
        for p in body.panels
        if p.across[2] and not p.across[0] and np.isclose((p.origin + p.down)[1], 0.0) and not p.down[0]
    ]
    assert len(flanks) == 2
    for panel in flanks:
        bottom = panel.texture.alpha[-1] >= 0.5
        runs = np.flatnonzero(np.diff(np.r_[0, bottom, 0]) == 1)
        assert len(runs) == 2
        assert panel.texture.alpha[-1, panel.texture.shape[1] // 2] == 0.0


@pytest.mark.parametrize("name", CARS.styles)
def test_nobody_looks_into_a_car_from_any_side(name: str) -> None:
    """The hull is closed and no panel is written inside out: the middle is hidden by what faces the viewer."""
    rng = np.random.default_rng(1)
    body = make_car(rng, name)
    for angle in np.linspace(0.0, 2 * np.pi, 24, endpoint=False):
        viewer = np.array([12 * np.sin(angle), -rng.uniform(1.0, 1.6), 12 * np.cos(angle)])
        across, along = rng.uniform(-0.3, 0.3, 2) * (body.width, body.length)
        assert hits_before(body, viewer, np.array([across, -rng.uniform(0.6, 0.75), along]))


def test_lamps_burn_at_night_and_street_lamps_flicker_with_the_mains() -> None:
    rng = np.random.default_rng(0)
    car = make_car(rng, "saloon", night=True)
    given_off = sorted(p.texture.light.max() * p.emission for p in car.panels if p.emission > 0)
    np.testing.assert_allclose(given_off, [0.3, 1.0], atol=0.05)
    for night in (True, False):
        poles = [pole for pole in (make_pole(rng, night) for _ in range(20)) if pole.name == "lamp"]
        assert poles
        lamps = [[(p.flicker_hz, p.flicker_depth) for p in pole.panels if p.emission > 0] for pole in poles]
        assert lamps == [[(100.0, 0.3)] if night else []] * len(poles)


def test_a_pedestrians_legs_swing_against_each_other_and_keep_to_their_plane() -> None:
    body = make_pedestrian(np.random.default_rng(0), "jacket")
    legs = [p for p in body.panels if p.swing is not None and p.swing.amplitude == LEG_SWING]
    assert len(legs) == 2
    feet = [[panel_points(leg, [[0.5, 1.0]], phase)[0] for leg in legs] for phase in np.linspace(0, 2 * np.pi, 9)]
    swings = np.array(feet)
    np.testing.assert_allclose(swings[..., 2], 0.0, atol=1e-12)
    offsets = swings[..., 0] - swings[0, :, 0]
    np.testing.assert_allclose(offsets[:, 0], -offsets[:, 1], atol=1e-9)
    assert np.abs(offsets).max() > 0.2 * body.height * 0.9
    assert swings[..., 1].max() < 0.02  # feet do not sink into the ground


def test_a_shadow_lies_on_the_ground_around_the_body_and_is_seen_from_above() -> None:
    body = make_car(np.random.default_rng(0), "estate")
    (panel,) = make_shadow(body).panels
    corners = panel_points(panel, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(corners[:, 1], 0.0)
    assert np.cross(panel.across, panel.down)[1] > 0
    assert (np.abs(corners[0]) >= [body.width / 2, 0, body.length / 2]).all()
    assert panel.texture.alpha.max() == pytest.approx(0.6)


@pytest.mark.parametrize("catalogue", [CARS, TWO_WHEELERS, PEDESTRIANS, FACADES])
def test_training_never_draws_a_held_out_style_and_test_draws_one_half_of_the_time(catalogue: Catalogue[Any]) -> None:
    assert catalogue.held_out
    assert not set(catalogue.held_out) & set(catalogue.common)
    for split in SPLITS:
        rng = np.random.default_rng(0)
        drawn = [catalogue.choose(rng, split) for _ in range(2000)]
        assert set(drawn) == set(catalogue.common if split == "train" else catalogue.styles)
        share = np.mean([name in catalogue.held_out for name in drawn])
        assert share == (0 if split == "train" else pytest.approx(0.5, abs=0.05))


def test_there_are_many_cars_of_which_two_are_held_out() -> None:
    assert len(CARS.styles) >= 8
    assert set(CARS.held_out) == {"pickup", "minivan"}


@pytest.mark.parametrize("style", FACADES.styles)
def test_a_facade_is_mostly_plain_wall(style: str) -> None:
    """Steps of more than a threshold's worth of log light are rare: the street must not be a field of edges."""
    shares = []
    for seed in range(6):
        for panel in make_facade(np.random.default_rng(seed), 14.0, 10.0, style).panels:
            log = np.log(panel.texture.light + 0.02)
            shares.append(float((np.abs(np.diff(log, axis=1)) > 0.2).mean()))
    assert np.mean(shares) < 0.12


def test_markings_are_textures() -> None:
    assert roadside.DASHES.shape == (40, 1)
    assert roadside.DASHES.alpha.sum() == 16
    assert roadside.CROSSWALK.alpha.sum() == 7
    rng = np.random.default_rng(0)
    assert all(roadside.make_patch(rng).panels[0].texture.alpha.max() <= 0.3 for _ in range(20))
    assert roadside.make_skyline(rng).shape[1] == 128


def test_the_ground_keeps_its_mean_light_however_coarse_its_texels() -> None:
    fine = roadside.ground_profile(np.random.default_rng(0), -3.0, 3.0, -4.0, 4.0)
    coarse = roadside.ground_profile(np.random.default_rng(0), -3.0, 3.0, -64.0, 64.0)
    middle = coarse.light[0, 60:68]
    assert middle.mean() == pytest.approx(float(fine.light.mean()), rel=0.02)
    assert fine.opaque
    assert fine.light.max() == pytest.approx(roadside.KERB, abs=1e-6)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_summed_areas_equal_direct_sums_of_the_rounded_values(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.random((rows, columns)).astype(np.float32)
    table = summed_area(values)
    counts = np.rint(values.astype(np.float64) * SUM_SCALE).astype(np.int64)
    y0, y1 = sorted(rng.integers(0, rows + 1, 2))
    x0, x1 = sorted(rng.integers(0, columns + 1, 2))
    assert table[y1, x1] - table[y0, x1] - table[y1, x0] + table[y0, x0] == counts[y0:y1, x0:x1].sum()


def test_the_largest_texture_sums_without_overflow() -> None:
    table = summed_area(np.ones((MAX_TEXELS, MAX_TEXELS), np.float32))
    assert table.dtype == np.int32
    assert int(table[-1, -1]) == MAX_TEXELS**2 * SUM_SCALE


@given(st.integers(2, 30), st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_an_outline_is_the_convex_hull_of_the_solid_texels(rows: int, columns: int, seed: int) -> None:
    scipy_spatial = pytest.importorskip("scipy.spatial")
    rng = np.random.default_rng(seed)
    alpha = (rng.random((rows, columns)) < rng.uniform(0.02, 0.6)).astype(np.float32)
    hull = outline(Texture(np.zeros_like(alpha), alpha))
    if not alpha.any():
        assert hull.shape == (0, 2)
        return
    y, x = np.nonzero(alpha)
    corners = np.concatenate([np.stack([x + i, y + j], axis=1) for i in (0, 1) for j in (0, 1)]).astype(float)
    expected = scipy_spatial.ConvexHull(corners)
    assert {tuple(p) for p in corners[expected.vertices]} == {tuple(p) for p in np.rint(hull * [columns, rows])}


@given(st.integers(0, 2**32 - 1))
def test_a_drawn_triangle_covers_its_area(seed: int) -> None:
    rng = np.random.default_rng(seed)
    corners = rng.uniform(1.0, 19.0, (3, 2))
    canvas = Canvas((0.0, 20.0, 20.0, 0.0), 20, 20)
    canvas.fill([(float(x), float(y)) for x, y in corners], 0.5)
    (ax, ay), (bx, by) = corners[1] - corners[0], corners[2] - corners[0]
    covered = float(canvas.texture().alpha.sum())
    assert covered == pytest.approx(abs(ax * by - ay * bx) / 2, abs=0.6)


def test_mirroring_the_window_mirrors_the_drawing() -> None:
    pictures = []
    for window in ((0.0, 1.0, 2.0, 0.0), (2.0, 1.0, 0.0, 0.0)):
        canvas = Canvas(window, 16, 8)
        canvas.fill(((0.2, 0.1), (1.1, 0.2), (0.6, 0.9)), 0.7)
        canvas.block(1.5, 0.5, 1.75, 0.25, 0.3)
        pictures.append(canvas.texture().light)
    np.testing.assert_allclose(pictures[0], pictures[1][:, ::-1], atol=1e-6)
