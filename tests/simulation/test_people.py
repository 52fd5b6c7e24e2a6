"""People: bones keep their lengths, feet stand on the ground, views change rarely, boxes fit what is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import fate.simulation
from fate.errors import FateError
from fate.simulation.art.actors import Actor, Ego, Layer, Lighting, Pose, Straight, Swaying
from fate.simulation.art.catalogue import SPLITS
from fate.simulation.art.crowd import FURTHEST, NEAREST, add_people, stride_of
from fate.simulation.art.panels import MAX_TEXELS, Body, Panel, Texture, vector
from fate.simulation.art.people import PEOPLE, load_anatomy, make_person
from fate.simulation.art.skeleton import BONES, FEET, MOTIONS, PARENT_INDEX, Motion, fourier
from fate.simulation.art.street import make_street
from fate.simulation.render.compositing import render
from fate.simulation.render.limbs import CHOICE_US, Bones, Views, pose_bones, turn_cards
from fate.simulation.render.surfaces import Pinhole, SurfaceBuilder
from fate.simulation.render.tiles import schedule_tiles
from fate.simulation.render.visible_boxes import Outlines, find_boxes

Floats = NDArray[np.float64]
PINHOLE = Pinhole(240, 304, 263.3, 152.0, 120.0)
EVEN = Lighting(1.0, 0.0, (0.0, -1.0, 0.0), 0.0, 0.0, 0.0, 0.0)  # before a black sky
PHASES = np.linspace(0, 2 * np.pi, 41)[:, None]


def standing_camera(seconds: float = 10.0) -> Ego:
    still = np.zeros(int(seconds / 0.005) + 2)
    return Ego(still, still, still, still, still)


def white(body: Body) -> Body:
    """The same person, all white: what is drawn is what is covered."""
    panels = [
        replace(panel, texture=Texture(np.ones_like(panel.texture.light), panel.texture.alpha)) for panel in body.panels
    ]
    return replace(body, panels=tuple(panels))


def builder_of(body: Body, path: Straight | Swaying) -> SurfaceBuilder:
    land = Panel(Texture.plain(0.0), vector(-500, 0, 700), vector(1000, 0, 0), vector(0, 0, -699.5))
    ground = Actor(Body("ground", "scenery", (land,), 700.0, 1000.0, 0.0), Straight(0, 0), Layer.LAND)
    return SurfaceBuilder(PINHOLE, standing_camera(), [Actor(body, path, owner=0), ground], EVEN, 1.2)


def picture(builder: SurfaceBuilder, t_us: int) -> NDArray[np.float32]:
    surfaces = builder.surfaces(t_us // 100_000 * 100_000, 11)
    image = np.empty((240, 304), np.float32)
    render(surfaces, builder.atlas, schedule_tiles(surfaces, builder.atlas, 240, 304), float(t_us % 100_000), image)
    return image


def box_of(builder: SurfaceBuilder, t_us: int, min_share: float = 0.0, large: float = np.inf) -> Floats:
    surfaces = builder.surfaces(t_us // 100_000 * 100_000, 11)
    boxes, shares = np.zeros((1, 1, 4)), np.zeros((1, 1))
    times, owners = np.array([float(t_us % 100_000)]), np.zeros(1, np.int32)
    outlines = Outlines.build(builder.textures)
    find_boxes(surfaces, builder.atlas, outlines, times, 240, 304, min_share, 0.0, large, owners, boxes, shares)
    return boxes[0, 0]


def bones_of(motion: Motion, seed: int = 0) -> Bones:
    skeleton = make_person(np.random.default_rng(seed), "train", motion).skeleton
    assert skeleton is not None
    return Bones.stack([skeleton])


def test_the_data_file_is_small_and_names_its_source() -> None:
    folder = Path(fate.simulation.__file__).parent / "data"
    assert (folder / "people.npz").stat().st_size < 2_000_000
    assert "Apache-2.0" in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PEOPLE.styles)
def test_every_body_stands_on_the_ground_with_its_crown_at_its_height(name: str) -> None:
    anatomy = load_anatomy(name)
    for view in range(8):
        for side in ("left", "right"):
            foot = anatomy.joints["foot"][1] + anatomy.pictures["foot", side][view].window[3]
            assert foot == pytest.approx(0.0, abs=0.02)
        crown = anatomy.joints["head"][1] + anatomy.pictures["head", "right"][view].window[1]
        assert -crown == pytest.approx(anatomy.height, abs=0.02)
    assert 0.9 < anatomy.height < 2.0


@pytest.mark.parametrize("name", PEOPLE.styles)
def test_a_person_that_heads_right_has_its_nose_and_toes_on_the_right(name: str) -> None:
    anatomy = load_anatomy(name)
    for view, sign in ((2, 1.0), (6, -1.0)):
        alpha, _, _, hair, _ = anatomy.pictures["head", "right"][view].channels
        columns = np.arange(alpha.shape[1])
        middles = [np.average(columns, weights=(alpha * part).sum(axis=0)) for part in (hair, 1 - hair)]
        assert sign * (middles[1] - middles[0]) > 2
        left, _, right, _ = anatomy.pictures["foot", "left"][view].window
        assert sign * (left + right) > 0.05


def test_held_out_bodies_are_not_used_in_training() -> None:
    rng = np.random.default_rng(0)
    drawn = {split: {PEOPLE.choose(rng, split) for _ in range(300)} for split in SPLITS}
    assert drawn["train"] == set(PEOPLE.common)
    assert drawn["val"] == drawn["test"] == set(PEOPLE.styles)


@pytest.mark.parametrize("motion", MOTIONS)
def test_a_person_has_eight_views_of_equal_number_and_textures_within_limits(motion: Motion) -> None:
    for seed in range(4):
        body = make_person(np.random.default_rng(seed), "train", motion)
        assert body.views == 8
        assert len(body.panels) % 8 == 0
        count = len(body.panels) // 8
        for view in range(8):
            bones = sorted(
                panel.bone for panel in body.panels[view * count : (view + 1) * count] if panel.bone is not None
            )
            assert bones == sorted(panel.bone for panel in body.panels[:count] if panel.bone is not None)
            assert set(range(len(BONES))) - set(bones) <= {BONES.index("left tail"), BONES.index("right tail")}
        for panel in body.panels:
            assert max(panel.texture.shape) <= MAX_TEXELS
            assert 0 <= panel.texture.light.min() <= panel.texture.light.max() <= 1
            assert 0 <= panel.texture.alpha.min() <= panel.texture.alpha.max() <= 1


def test_the_limbs_of_the_near_side_lie_on_top() -> None:
    body = make_person(np.random.default_rng(0), "train", "walk")
    count = len(body.panels) // 8
    for view, side in ((2, "right"), (6, "left")):
        order = [panel.bone for panel in body.panels[view * count : (view + 1) * count]]
        far = "left" if side == "right" else "right"
        for limb in ("forearm", "upper_arm", "thigh", "shank", "foot"):
            assert order.index(BONES.index(f"{side} {limb}")) > order.index(BONES.index(f"{far} {limb}"))
        assert order.index(BONES.index("trunk")) < order.index(BONES.index(f"{side} forearm"))


def test_an_unknown_motion_is_refused_with_the_known_ones() -> None:
    with pytest.raises(FateError, match="fly.*walk"):
        make_person(np.random.default_rng(0), "train", "fly")  # type: ignore[arg-type]


def test_a_fourier_series_passes_through_a_smooth_cycle() -> None:
    phase = 2 * np.pi * np.arange(60) / 60
    mean, c1, c2, c3, s1, s2, s3 = fourier((5 + 3 * np.cos(phase) - 2 * np.sin(2 * phase)).tolist())
    np.testing.assert_allclose([mean, c1, c2, c3, s1, s2, s3], [5, 3, 0, 0, 0, -2, 0], atol=1e-9)


@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("seen", [0.0, 1.0, 2.5])
def test_bones_keep_their_lengths(motion: Motion, seen: float) -> None:
    bones = bones_of(motion)
    posed = pose_bones(bones, PHASES, np.full_like(PHASES, seen))
    for bone, parent in enumerate(PARENT_INDEX):
        if parent >= 0:
            length = np.linalg.norm(posed.joints[:, 0, bone] - posed.joints[:, 0, parent], axis=-1)
            at_rest = np.linalg.norm(bones.joints[0, bone] - bones.joints[0, parent])
            np.testing.assert_allclose(length, at_rest, rtol=0.03)  # but for the sway over the feet


@pytest.mark.parametrize("motion", MOTIONS)
def test_the_lower_foot_touches_the_ground_unless_a_runner_flies(motion: Motion) -> None:
    bones = bones_of(motion)
    posed = pose_bones(bones, PHASES, np.full_like(PHASES, np.pi / 2))  # from the side: right is forward
    ends = []
    for foot in FEET:
        for sole in bones.soles[0]:
            down, forward = -bones.joints[0, foot, 1], sole - bones.joints[0, foot, 2]
            angle = posed.angle[:, 0, foot]
            ends.append(posed.joints[:, 0, foot, 1] + down * np.cos(angle) - forward * np.sin(angle))
    lowest = np.max(ends, axis=0)
    assert lowest.max() < 1e-9
    if motion == "run":
        assert lowest.min() < -0.02
    else:
        assert lowest.min() > -1e-9


def test_left_and_right_do_the_same_half_a_cycle_apart() -> None:
    bones = bones_of("walk")
    now, later = (pose_bones(bones, PHASES + shift, np.zeros_like(PHASES)) for shift in (0.0, np.pi))
    for limb in ("upper_arm", "forearm", "thigh", "shank", "foot", "tail"):
        right, left = BONES.index(f"right {limb}"), BONES.index(f"left {limb}")
        np.testing.assert_allclose(now.angle[:, 0, right], later.angle[:, 0, left], atol=1e-9)
        np.testing.assert_allclose(now.joints[:, 0, right] * (-1, 1, 1), later.joints[:, 0, left], atol=1e-9)


def test_the_body_sways_over_the_foot_that_carries_it_and_the_feet_do_not() -> None:
    bones = bones_of("walk")
    posed = pose_bones(bones, PHASES, np.zeros_like(PHASES))  # from behind: right is right
    trunk = posed.joints[:, 0, BONES.index("trunk")]
    carried = posed.joints[:, 0, FEET[0], 1] - posed.joints[:, 0, FEET[1], 1]  # positive: the right foot is lower
    assert np.corrcoef(trunk[:, 0], carried)[0, 1] > 0.5
    assert np.ptp(trunk[:, 0]) == pytest.approx(2 * bones.sway[0], rel=0.01)
    assert np.ptp(posed.joints[:, 0, FEET[0], 0]) < 0.2 * np.ptp(trunk[:, 0])


def test_a_walker_puts_its_feet_forward_by_half_a_stride() -> None:
    body = make_person(np.random.default_rng(3), "train", "walk")
    assert body.skeleton is not None
    posed = pose_bones(Bones.stack([body.skeleton]), PHASES, np.full_like(PHASES, np.pi / 2))
    apart = np.abs(np.diff(posed.joints[:, 0, list(FEET), 0], axis=1)).max()
    assert apart == pytest.approx(stride_of(body, 1.4, "walk") / 2, rel=0.25)


def test_a_card_keeps_its_side_and_its_area_however_it_is_turned() -> None:
    angle, seen = (each.ravel() for each in np.meshgrid(np.linspace(-2.4, 2.4, 41), np.linspace(0, 2 * np.pi, 41)))
    unit = np.array([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]]).repeat(len(angle), axis=1)
    across, down = turn_cards(unit, angle[None], seen[None], seen, np.ones((len(angle), 2)))
    area = across[..., 0] * down[..., 1] - across[..., 1] * down[..., 0]
    assert area.min() > 0.3 - 1e-9
    assert area.max() < 1.0 + 1e-9


def test_a_card_seen_from_the_side_turns_as_a_whole() -> None:
    unit = np.array([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]])
    across, down = turn_cards(
        unit, np.full((1, 1), 0.5), np.full((1, 1), np.pi / 2), np.array([np.pi / 2]), np.ones((1, 2))
    )
    np.testing.assert_allclose(across[0, 0], [np.cos(0.5), -np.sin(0.5), 0], atol=1e-9)
    np.testing.assert_allclose(down[0, 0], [np.sin(0.5), np.cos(0.5), 0], atol=1e-9)


class Turning(Straight):
    """Someone who turns on the spot as a function of time."""

    def at(self, seconds: Floats) -> Pose:
        pose = super().at(seconds)
        return pose._replace(heading=np.pi / 8 + 0.1 * np.sin(20 * seconds))


def test_a_view_does_not_change_back_and_forth_and_does_not_depend_on_the_order_of_calls() -> None:
    body = make_person(np.random.default_rng(0), "train", "walk")
    trembling = Actor(body, Turning(0.0, 10.0))
    views = Views([trembling], standing_camera())
    assert len({views.at(0, step * CHOICE_US) for step in range(60)}) == 1
    passing = Actor(body, Straight(-6.0, 5.0, np.pi / 2, 2.0, 1.4))
    forward, backward = (Views([passing], standing_camera()) for _ in range(2))
    ahead = [forward.at(0, step * CHOICE_US) for step in range(60)]
    assert ahead == [backward.at(0, step * CHOICE_US) for step in range(59, -1, -1)][::-1]
    assert (ahead[0], ahead[-1]) == (3, 1)  # it comes nearer, passes and goes away
    assert np.count_nonzero(np.diff(ahead)) == 2


@pytest.mark.parametrize("motion", MOTIONS)
def test_the_box_fits_what_is_drawn(motion: Motion) -> None:
    speed = {"walk": 1.4, "run": 3.0}.get(motion, 0.0)
    for seed, turn in enumerate((0.0, 1.0, np.pi / 2, 3.0)):
        body = white(make_person(np.random.default_rng(seed), "train", motion))
        path: Straight | Swaying = Swaying(0.3, 4.0, 0.7, 0.0, turn)
        if speed:
            path = Straight(-0.2 * speed, 4.0, turn, speed, stride_of(body, speed, motion))
        builder = builder_of(body, path)
        for t_us in (30_000, 260_000):
            covered = picture(builder, t_us) >= 0.2  # fingers are thinner than a pixel
            rows, columns = np.flatnonzero(covered.any(axis=1)), np.flatnonzero(covered.any(axis=0))
            drawn = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
            np.testing.assert_allclose(box_of(builder, t_us), drawn, atol=2.5)


def test_a_person_that_fills_the_picture_has_a_box_though_most_of_it_lies_outside() -> None:
    body = white(make_person(np.random.default_rng(0), "train", "stand"))
    near = SurfaceBuilder(
        PINHOLE._replace(focal=1200.0), standing_camera(), builder_of(body, Straight(0, 1.5)).actors, EVEN, 1.2
    )
    assert not box_of(near, 0, min_share=0.3).any()
    x1, y1, x2, y2 = box_of(near, 0, min_share=0.3, large=0.15)
    assert (y1, y2) == (0, 240)
    assert x2 - x1 > 150


def test_a_change_of_view_hardly_changes_the_box() -> None:
    for seed in range(3):
        body = white(make_person(np.random.default_rng(seed), "train", "stand"))
        builder = builder_of(body, Straight(-2.0, 4.5, np.pi / 2 + 0.4, 1.0, 0.0))
        views = [builder._views.at(0, step * CHOICE_US) for step in range(40)]
        changes = np.flatnonzero(np.diff(views)) + 1
        assert len(changes) == 1
        for step in changes:
            before, after = box_of(builder, step * CHOICE_US - 1), box_of(builder, step * CHOICE_US)
            assert 100 < before[3] - before[1] < 230
            assert np.abs(after - before).max() < 0.08 * (before[3] - before[1])


def test_a_crowd_has_people_of_all_sizes_in_the_sight_of_the_camera() -> None:
    distances, motions = [], set()
    for seed in range(2):
        ego, builder, _ = make_street(seed, "train", 3.0, two_wheelers=False, at_rest=True)
        known = len(builder.actors)
        add_people(builder, 12.0)
        for actor in builder.actors[known:]:
            if actor.owner >= 0:
                assert builder.objects[actor.owner] is actor.body
                pose, camera = actor.path.at(np.linspace(0, 3, 60)), ego.at(np.linspace(0, 3, 60))
                distances.append(float(np.hypot(pose.x - camera.x, pose.z - camera.z).min()))
                motions.add(type(actor.path))
    assert min(distances) < 5.0
    assert NEAREST < max(distances) < FURTHEST + 3
    assert max(distances) > 12.0
    assert motions == {Straight, Swaying}


def test_the_same_generator_gives_the_same_person() -> None:
    one, other = (make_person(np.random.default_rng(5), "val", "run") for _ in range(2))
    for a, b in zip(one.panels, other.panels, strict=True):
        np.testing.assert_array_equal(a.texture.light, b.texture.light)
        np.testing.assert_array_equal(a.origin, b.origin)
    assert one.skeleton is not None
    assert other.skeleton is not None
    np.testing.assert_array_equal(one.skeleton.angles, other.skeleton.angles)
