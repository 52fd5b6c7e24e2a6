"""Scenes and their truth: boxes are the extent of what is seen, and hold the events of what they label."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.errors import FateError
from fate.events.events import Events
from fate.simulation.art.actors import Actor, Ego, Layer
from fate.simulation.camera.recorder import record
from fate.simulation.render.compositing import maps_at
from fate.simulation.render.scene import MIN_VISIBLE, STRETCH_US, Boxes, Scene, draw_camera
from fate.simulation.render.surfaces import KNOT_US, Atlas, SurfaceBuilder, Surfaces
from fate.simulation.render.visible_boxes import Outlines, solid

SECONDS = 2.0
TIMES = np.random.default_rng(5).integers(0, int(SECONDS * 1e6), 4).tolist()
SEEDS = [0, 3, 15, 18, 26]


@cache
def scene(seed: int, profile: str = "gen1") -> Scene:
    return Scene(seed, profile, seconds=SECONDS)


def extent(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    rows, columns = np.nonzero(mask)
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])


def alone(of: Scene, t_us: int, owner: int, pad: int, every: int = 1) -> NDArray[np.bool_]:
    """Where an object would be seen if it were alone, in a picture that goes on for ``pad`` pixels on every side.

    Only every ``every``-th row and column is looked at.
    """
    stretch = min(t_us // STRETCH_US, of.num_stretches - 1)
    surfaces = of.surfaces(stretch)
    place = (t_us - stretch * STRETCH_US) / KNOT_US
    knot = min(int(place), len(surfaces.maps) - 2)
    height, width = of.sensor
    rows, columns = np.mgrid[-pad : height + pad : every, -pad : width + pad : every] + 0.5
    covered = np.zeros(rows.shape, np.bool_)
    for k in np.flatnonzero(surfaces.owner == owner):
        first, second = surfaces.maps[knot : knot + 2, k].astype(np.float64)
        m = first + (place - knot) * (second - first)
        u, v, w = (m[3 * i] * columns + m[3 * i + 1] * rows + m[3 * i + 2] for i in range(3))
        hit = (w > 1e-9) & (u >= 0) & (u < w) & (v >= 0) & (v < w)
        alpha = of.builder.textures[surfaces.texture[k]].alpha
        texel = [
            np.clip((part[hit] / w[hit] * size).astype(np.int64), 0, size - 1)
            for part, size in zip((v, u), alpha.shape, strict=True)
        ]
        covered[hit] |= alpha[texel[0], texel[1]] >= 0.5
    return covered


@compiled
def fill_owners(surfaces: Surfaces, atlas: Atlas, t_us: float, image: Any) -> None:
    count = surfaces.maps.shape[1]
    ids = np.arange(count).astype(np.int32)
    maps = np.empty((count, 11), np.float32)
    maps_at(surfaces, ids, t_us, maps)
    slots = atlas.slots[surfaces.texture[ids]]
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            for k in range(count):
                if solid(maps, slots, atlas.alpha, k, np.float32(column + 0.5), np.float32(row + 0.5)):
                    image[row, column] = surfaces.owner[k]
                    break


def owners_of(of: Scene, t_us: int) -> NDArray[np.int32]:
    """The track id of the object each pixel shows, [H, W]; -1 where it shows none."""
    stretch = min(t_us // STRETCH_US, of.num_stretches - 1)
    image = np.full(of.sensor, -1, np.int32)
    fill_owners(of.surfaces(stretch), of.atlas, float(t_us - stretch * STRETCH_US), image)
    return image


@pytest.mark.parametrize("seed", SEEDS)
def test_every_edge_of_a_box_lies_within_a_pixel_of_what_is_seen(seed: int) -> None:
    for t_us in TIMES:
        owners, found = owners_of(scene(seed), t_us), scene(seed).boxes(t_us)
        for box, track in zip(found.boxes, found.track_id, strict=True):
            mask = owners == track
            assert mask.any()
            np.testing.assert_allclose(box, extent(mask), atol=1.001)


@pytest.mark.parametrize("seed", SEEDS)
def test_objects_that_are_seen_well_have_a_box_and_others_have_none(seed: int) -> None:
    """The visible share, counted pixel by pixel; near the limits the box's own coarser count decides."""
    least = scene(seed).profile.min_diagonal
    for t_us in TIMES[:2]:
        owners, found = owners_of(scene(seed), t_us), scene(seed).boxes(t_us)
        for track in np.unique(owners[owners >= 0]):
            mask = owners == track
            x1, y1, x2, y2 = extent(mask)
            whole = alone(scene(seed), t_us, int(track), 420, every=3)
            share = mask[::3, ::3].sum() / max(whole.sum(), 1)
            cut = bool(whole.sum() > whole[140:-140, 140:-140].sum())  # some of it lies outside the picture
            listed = track in found.track_id
            if np.hypot(x2 - x1, y2 - y1) < least - 3 or share < MIN_VISIBLE - (0.25 if cut else 0.1):
                assert not listed, (t_us, int(track), float(share))
            if np.hypot(x2 - x1, y2 - y1) > least + 3 and share > MIN_VISIBLE + (0.35 if cut else 0.1):
                assert listed, (t_us, int(track), float(share))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_visible_share_is_pixels_seen_over_pixels_alone(seed: int) -> None:
    apart = []
    for t_us in TIMES:
        owners, found = owners_of(scene(seed), t_us), scene(seed).boxes(t_us)
        assert (found.visible >= MIN_VISIBLE).all()
        assert (found.visible <= 1 + 1e-6).all()
        for track, visible in zip(found.track_id, found.visible, strict=True):
            whole = alone(scene(seed), t_us, int(track), 60)
            if whole[60:-60, 60:-60].sum() == whole.sum():
                apart.append(float((owners == track).sum() / whole.sum() - visible))
    assert len(apart) > 3
    assert np.abs(apart).max() < 0.15  # large objects are counted on a coarser grid
    assert np.abs(apart).mean() < 0.03


def test_what_passes_beside_the_camera_is_not_seen_whole() -> None:
    """An object partly behind the camera reaches far out of the picture: the strip that is left of it is no object."""
    checked = 0
    for seed in SEEDS:
        for t_us in range(0, int(SECONDS * 1e6), 150_000):
            found = scene(seed).boxes(t_us)
            at_edge = (found.boxes[:, 0] <= 0) | (found.boxes[:, 2] >= scene(seed).sensor.width)
            for track in found.track_id[at_edge]:
                whole = alone(scene(seed), t_us, int(track), 600, every=5)
                share = whole[120:-120, 120:-120].sum() / whole.sum()
                assert share > 0.12, (seed, t_us, int(track))
                checked += 1
    assert checked > 10


def same(a: Boxes, b: Boxes) -> bool:
    return all(np.array_equal(getattr(a, field), getattr(b, field)) for field in Boxes._fields)


def test_nothing_depends_on_what_was_asked_before() -> None:
    one, other = Scene(3, seconds=SECONDS), Scene(3, seconds=SECONDS)
    forth = {t: (one.light(t), one.boxes(t), owners_of(one, t)) for t in TIMES}
    for t in reversed(TIMES):
        owners, boxes, light = owners_of(other, t), other.boxes(t), other.light(t)
        assert np.array_equal(light, forth[t][0])
        assert same(boxes, forth[t][1])
        assert np.array_equal(owners, forth[t][2])


@pytest.mark.parametrize("profile", ["1mpx", "park", "mixed"])
def test_a_pickled_scene_is_the_same_scene(profile: str) -> None:
    before = Scene(7, profile, "val", 0.2)
    after = pickle.loads(pickle.dumps(before))
    assert (after.seed, after.profile, after.split, after.duration_us) == (7, before.profile, "val", 200_000)
    assert (after.camera, after.sensor, after.frame) == (before.camera, before.sensor, before.frame)
    assert np.array_equal(after.light(123_456), before.light(123_456))
    assert same(after.boxes(200_000), before.boxes(200_000))


@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_camera_at_rest_nothing_changes_but_what_moves_and_all_that_moves_is_labelled(seed: int) -> None:
    of = Scene(seed, seconds=SECONDS, at_rest=True)
    builder, ends = of.builder, np.array([0.0, SECONDS])

    def moves(actor: Actor) -> bool:
        pose = actor.path.at(ends)
        return bool(np.hypot(np.ptp(pose.x), np.ptp(pose.z)) > 0.5)

    movers = {actor.owner for actor in builder.actors if moves(actor) and actor.layer != Layer.SHADOW}
    assert movers == {actor.owner for actor in builder.actors if actor.owner >= 0} == set(range(len(of._world[2])))
    still = Scene(seed, seconds=SECONDS, at_rest=True)
    left = [actor for actor in builder.actors if not moves(actor)]
    scenery = SurfaceBuilder(builder.pinhole, builder.ego, left, builder.lighting, builder.height)
    still.__dict__["_world"] = (scenery, Outlines.build([None] * len(scenery.textures)), of._world[2])
    times = (300_000, 800_000, 1_700_000)  # lamps flicker at 100 Hz: at these all shine alike
    first, *later = (still.light(t) for t in times)
    assert all(np.allclose(light, first, rtol=1e-4, atol=1e-6) for light in later)
    assert sum(len(of.boxes(t).boxes) for t in times) > 0
    assert not np.allclose(of.light(times[0]), of.light(times[2]), rtol=1e-2)


def test_a_scene_at_rest_is_another_one_and_pickles_as_such() -> None:
    at_rest, driving = Scene(3, seconds=0.2, at_rest=True), Scene(3, seconds=0.2)
    assert np.array_equal(pickle.loads(pickle.dumps(at_rest)).light(100_000), at_rest.light(100_000))
    assert not np.array_equal(driving.light(100_000), at_rest.light(100_000))
    assert at_rest.camera == driving.camera


def test_light_shows_an_object_where_its_owner_map_says() -> None:
    """Take the actor away: the picture changes on its own pixels and on next to no others."""
    with_it = scene(0)
    t_us = TIMES[1]
    found = with_it.boxes(t_us)
    largest = int(np.argmax((found.boxes[:, 2:] - found.boxes[:, :2]).prod(axis=1)))
    track = int(found.track_id[largest])
    without = without_actor(with_it, track)
    changed = np.abs(np.log(with_it.light(t_us) + 0.02) - np.log(without.light(t_us) + 0.02)) > 0.02
    mask = owners_of(with_it, t_us) == track
    assert not (owners_of(without, t_us) == track).any()
    assert (changed & mask).sum() > 0.8 * mask.sum()
    x1, y1, x2, y2 = found.boxes[largest]
    rows, columns = np.nonzero(changed)
    beside = (columns < x1 - 4) | (columns > x2 + 3) | (rows < y1 - 4) | (rows > y2 + 3)
    assert beside.mean() < 0.01


def without_actor(of: Scene, track: int, camera: Any = None) -> Scene:
    """The scene with one object (not its shadow) removed."""
    copy = Scene(of.seed, of.profile.name, of.split, of.seconds)
    builder = of.builder
    left = [actor for actor in builder.actors if actor.owner != track]
    fewer = SurfaceBuilder(builder.pinhole, builder.ego, left, builder.lighting, builder.height)
    nothing = [None] * len(fewer.textures)
    copy.__dict__["_world"] = (fewer, Outlines.build(nothing), of._world[2])
    copy.camera = camera or of.camera
    return copy


def recorded(of: Scene) -> Events:
    return Events.concatenate([piece.events for piece in record(of, threads=2)])


def at_rest(seed: int) -> Scene:
    """A scene whose camera stands, without noise: then every event is due to something that moves."""
    of = Scene(seed, seconds=0.3)
    builder, outlines, classes = of._world
    still = np.zeros(4)
    ego = Ego(still + builder.ego.x[0], still + builder.ego.z[0], still, still + builder.ego.yaw[0], still)
    of.__dict__["_world"] = (
        SurfaceBuilder(builder.pinhole, ego, builder.actors, builder.lighting, builder.height),
        outlines,
        classes,
    )
    of.camera = replace(of.camera, noise_hz=0.0, hot_pixels=0, jitter_us=0.0, bursts=False, leak_hz=0.0)
    return of


@pytest.mark.slow
def test_boxes_hold_the_events_of_the_objects_they_label() -> None:
    """Of the events of an object that alone moves, nine of ten lie in its box, grown by 2 pixels.

    Events that are there without it too (flickering lamps) are not its own. At night their times depend on what passed
    in front of them, so that the two cannot be told apart: night scenes are left out.
    """
    objects, inside, total = 0, 0, 0
    for seed in range(20):
        of = at_rest(seed)
        if of.builder.lighting.lamps > 0.5:
            continue
        moving = {actor.owner for actor in of.builder.actors if getattr(actor.path, "speed", 0) > 0}
        for track in [int(track) for track in of.boxes(150_000).track_id if int(track) in moving][:2]:
            alone = only_mover(of, track)
            events = recorded(alone)
            kept = belonging(events, recorded(without_actor(alone, track, alone.camera)))
            hits, count = contained(alone, track, events, kept)
            if count >= 200:
                assert hits >= 0.9 * count, (seed, track, hits / count)
                objects, inside, total = objects + 1, inside + hits, total + count
        if objects >= 5:
            break
    assert objects >= 5
    assert inside >= 0.98 * total


def only_mover(of: Scene, track: int) -> Scene:
    """The scene with nothing on the builder that moves but one object."""
    builder, classes = of.builder, of._world[2]
    left = [actor for actor in builder.actors if actor.owner == track or not getattr(actor.path, "speed", 0) > 0]
    alone = Scene(of.seed, of.profile.name, of.split, of.seconds)
    fewer = SurfaceBuilder(builder.pinhole, builder.ego, left, builder.lighting, builder.height)
    labelled = {id(panel.texture) for actor in left if actor.owner == track for panel in actor.body.panels}
    shapes = [texture if id(texture) in labelled else None for texture in fewer.textures]
    alone.__dict__["_world"] = fewer, Outlines.build(shapes), classes
    alone.camera = of.camera
    return alone


def belonging(events: Events, others: Events) -> NDArray[np.bool_]:
    """Which events have no partner among the others: same pixel and polarity within 100 µs."""

    def sortable(of: Events) -> NDArray[np.int64]:
        pixel = (of.y.astype(np.int64) * 2048 + of.x) * 2 + of.p
        return np.asarray((pixel << 24) + of.t_us)

    theirs = np.append(np.sort(sortable(others)), np.iinfo(np.int64).max)
    ours = sortable(events)
    place = np.searchsorted(theirs, ours)
    before = np.abs(ours - theirs[np.maximum(place - 1, 0)])
    after = np.abs(ours - theirs[place])
    return np.asarray(np.minimum(before, after) > 100)


def contained(of: Scene, track: int, events: Events, kept: NDArray[np.bool_]) -> tuple[int, int]:
    """How many of the kept events lie in the object's box of their time, of those at whose time it has one."""
    hits, count = 0, 0
    for start in range(0, of.duration_us, 5_000):
        found = of.boxes(start + 2_500)
        row = np.flatnonzero(found.track_id == track)
        if len(row):
            x1, y1, x2, y2 = found.boxes[row[0]]
            mine = kept & (events.t_us >= start) & (events.t_us < start + 5_000)
            x, y = events.x[mine] + 0.5, events.y[mine] + 0.5
            hits += int(((x > x1 - 2) & (x < x2 + 2) & (y > y1 - 2) & (y < y2 + 2)).sum())
            count += int(mine.sum())
    return hits, count


@pytest.mark.parametrize("profile", ["gen1", "1mpx", "mixed"])
def test_boxes_are_inside_the_picture_of_known_classes_and_large_enough(profile: str) -> None:
    of = Scene(2, profile, seconds=0.3)
    height, width = of.sensor
    found = of.boxes(200_000)
    assert len(found.boxes) > 0
    x1, y1, x2, y2 = found.boxes.T
    assert (x1 >= 0).all()
    assert (y1 >= 0).all()
    assert (x2 <= width).all()
    assert (y2 <= height).all()
    assert np.hypot(x2 - x1, y2 - y1).min() >= of.profile.min_diagonal - 1e-3
    assert set(found.class_id.tolist()) <= set(range(len(of.classes)))
    assert len(set(found.track_id.tolist())) == len(found.track_id)


def test_a_track_keeps_its_class() -> None:
    of = scene(0)
    last: dict[int, tuple[int, NDArray[np.float32]]] = {}
    for t_us in range(0, 400_000, 5_000):
        found = of.boxes(t_us)
        now = {}
        for box, kind, track in zip(found.boxes, found.class_id, found.track_id, strict=True):
            now[int(track)] = (int(kind), box)
            if int(track) in last:
                assert last[int(track)][0] == kind
        last.update(now)
    assert last


def test_times_of_a_stretch_are_shared_out_once() -> None:
    of = Scene(0, seconds=0.25)
    times = np.array([0, 99_999, 100_000, 199_999, 200_000, 249_999, 250_000], np.int64)
    parts = [of.boxes_in(stretch, times).t_us.tolist() for stretch in range(of.num_stretches)]
    assert parts == [[0, 99_999], [100_000, 199_999], [200_000, 249_999, 250_000]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"profile": "gen2"}, "profile"),
        ({"split": "all"}, "split"),
        ({"seconds": 0.0}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"seconds": 4000.0}, "seconds"),
        ({"seed": -1}, "seed"),
        ({"at_rest": 0.5}, "at_rest"),
        ({"at_rest": True, "profile": "mixed"}, "at rest is 1; the profile mixed"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(FateError, match=says) as refusal:
        Scene(**({"seed": 0} | arguments))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("t_us", [-1, 300_001, 10**9])
def test_a_time_outside_the_drive_is_refused(t_us: int) -> None:
    of = Scene(0, seconds=0.3)
    for ask in (of.light, of.boxes):
        with pytest.raises(FateError, match="lasts from 0 to 300000"):
            ask(t_us)


def test_cameras_differ_from_scene_to_scene_around_their_preset() -> None:
    cameras = [draw_camera(np.random.default_rng(seed), "gen1") for seed in range(200)]
    on = np.array([camera.threshold_on for camera in cameras])
    assert 0.25 < on.min() < on.max() < 0.35
    assert np.std(on) > 0.01
    assert 0.1 < np.mean([camera.bursts for camera in cameras]) < 0.3
    assert not any(draw_camera(np.random.default_rng(seed), "1mpx").bursts for seed in range(50))


def test_vans_cyclists_and_dogs_of_a_park_have_boxes_of_their_size_and_cars_and_people_have_none() -> None:
    sizes: dict[str, list[float]] = {"van": [], "cyclist": [], "dog": []}
    unlabelled: set[str] = set()
    for seed in range(6):
        street = Scene(seed, "park", seconds=1.0)
        actors = street.builder.actors
        labelled = {actor.body.name for actor in actors if actor.owner >= 0}
        assert labelled <= {"van", "bicycle", "dog"}
        unlabelled |= {actor.body.name for actor in actors} - labelled
        seen = street.boxes(500_000)
        for box, class_id in zip(seen.boxes, seen.class_id, strict=True):
            if box[0] > 2 and box[2] < 238 and box[3] < 178:  # a cut box says nothing about the shape
                sizes[street.classes[class_id]].append(float((box[2] - box[0]) / (box[3] - box[1])))
    assert {"saloon", "suv", "hatchback", "estate", "city-car"} <= unlabelled
    assert all(sizes.values())
    assert np.median(sizes["cyclist"]) < 0.8 < np.median(sizes["van"])
