"""One simulated drive: light on the sensor and exact boxes at any microsecond, from a seed.

    scene = Scene(seed=7, profile="gen1", seconds=10)
    scene.light(1_234_567)      # what the sensor sees, [H, W] linear light
    scene.boxes(1_234_567)      # what there is to detect at that moment

Time is cut into stretches of ``STRETCH_US``. Within a stretch the surfaces, their order and their knots are fixed;
light, boxes and events all come from the same surfaces, so they agree with each other to the microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from fate.boxes.labels import NEUTRAL
from fate.errors import FateError
from fate.events.events import COMMON_FRAME, Events, Sensor
from fate.simulation.arrays import Float32, Int32, Int64
from fate.simulation.art.actors import Actor
from fate.simulation.art.catalogue import SPLITS, Split
from fate.simulation.art.mixture import make_world, scene_of
from fate.simulation.art.panels import Body
from fate.simulation.art.street import make_street
from fate.simulation.camera.camera_model import CameraModel, camera_preset
from fate.simulation.camera.random_sensor import draw_sensor
from fate.simulation.render.compositing import render
from fate.simulation.render.surfaces import KNOT_US, Atlas, Pinhole, SurfaceBuilder
from fate.simulation.render.tiles import schedule_tiles
from fate.simulation.render.visible_boxes import Outlines, find_boxes
from fate.simulation.writing.request import Request, check_switch

#: Surfaces are posed and sorted again after this many µs.
STRETCH_US = 100_000
#: An object of which less than this share can be seen has no box.
MIN_VISIBLE = 0.30
#: An object whose box fills this share of the picture is seen, however much of it lies outside.
LARGE = 0.15


@dataclass(frozen=True)
class Profile:
    """A kind of recording: sensor, lens and labels of one of the public datasets, or sensors of all kinds."""

    name: str
    field_of_view: float  #: degrees, across the picture; 0: every recording has its own sensor and lens
    classes: tuple[str, ...]  #: names of the class ids; with ``neutral`` behind them, neutral objects have boxes
    min_diagonal: float  #: pixels of the files; smaller objects have no box, as the dataset's evaluation ignores them
    label_hz: tuple[int, ...]  #: rates at which the public dataset is labelled; one is drawn for each recording


PROFILES = {
    "gen1": Profile("gen1", 60.0, ("car", "pedestrian"), 30.0, (1, 2, 4)),
    "1mpx": Profile("1mpx", 60.0, ("pedestrian", "two wheeler", "car"), 60.0, (60,)),
    "park": Profile("park", 60.0, ("van", "cyclist", "dog"), 16.0, (2,)),
    "mixed": Profile("mixed", 0.0, ("car", "pedestrian", "two wheeler", NEUTRAL), 12.0, (20,)),
}


class Boxes(NamedTuple):
    """The objects seen at one moment; N rows."""

    boxes: Float32  #: [N, 4] x1, y1, x2, y2 in pixels: the visible extent
    class_id: Int32  #: [N] into the profile's classes
    track_id: Int64  #: [N] constant for an object throughout a recording
    visible: Float32  #: [N] share of the object that is seen


class BoxesAt(NamedTuple):
    """The objects seen at T times, concatenated."""

    t_us: Int64  #: [T]
    rows: Int64  #: [T] how many objects there are at each time
    boxes: Boxes


class RecordedPiece(NamedTuple):
    """One stretch of one recording."""

    recording: int  #: index of its scene among those that are recorded
    scene: Scene
    events: Events  #: its next events, in time order; events of the stretch's last moments come with the next piece
    boxes: BoxesAt  #: at the requested times that lie in the stretch
    last: bool  #: the recording is complete


class Scene:
    """A drive through a street that its seed draws; the same seed and arguments give the same scene.

    With ``at_rest`` the camera stands behind a kerb, as high as a lamp post may be, and others pass. A scene of the
    profile ``mixed`` draws its camera and its sensor: light and boxes are then those of a pinhole camera that sees a
    little more than the sensor (``sensor``), and ``camera/framing.py`` makes of them what is written (``frame``).
    """

    def __init__(
        self, seed: int, profile: str = "gen1", split: Split = "train", seconds: float = 10.0, at_rest: bool = False
    ) -> None:
        check_switch("at_rest", at_rest)
        checked = Request(profile, seed, seconds, at_rest=float(at_rest))
        if split not in SPLITS:
            raise FateError(f"there is no split {split!r}; give one of {', '.join(SPLITS)}")
        self.seed, self.profile, self.split = checked.seed, PROFILES[profile], split
        self.classes, self.seconds = self.profile.classes, checked.seconds
        self.duration_us, self.at_rest = checked.duration_us, bool(at_rest)
        rng = np.random.default_rng([self.seed, 0xCA3E5A])
        self.random_sensor = None if self.profile.field_of_view else draw_sensor(self.seed)
        self.camera = self.random_sensor.camera if self.random_sensor else draw_camera(rng, profile)
        self.sensor: Sensor = self.camera.sensor
        self.frame: Sensor = COMMON_FRAME if self.random_sensor else self.sensor  #: size of the files
        self.label_hz = int(rng.choice(self.profile.label_hz))
        self._horizon, self._height = rng.uniform(0.46, 0.56), rng.uniform(1.2, 1.4)
        if at_rest:
            self._height = rng.uniform(1.3, 5.0)
        knots = STRETCH_US // KNOT_US + 1
        self.surfaces = lru_cache(maxsize=4)(lambda stretch: self.builder.surfaces(stretch * STRETCH_US, knots))

    def __reduce__(self) -> tuple[type[Scene], tuple[int, str, Split, float, bool]]:
        """Another process draws the same scene from the same arguments."""
        return Scene, (self.seed, self.profile.name, self.split, self.seconds, self.at_rest)

    @cached_property
    def _world(self) -> tuple[SurfaceBuilder, Outlines, Int32]:
        """The street, made when it is first needed: its surfaces, the outlines of its textures, each object's class."""
        if self.random_sensor is not None:
            ego, street, lighting, above_ground, horizon = make_world(self.seed, self.split, self.seconds)
            pinhole = self.random_sensor.lens.pinhole(horizon)
        else:
            park = self.profile.name == "park"
            two_wheelers = park or "two wheeler" in self.classes
            ego, street, lighting = make_street(
                self.seed, self.split, self.seconds, two_wheelers, self.at_rest, park=park
            )
            (height, width), above_ground = self.sensor, self._height
            focal = 0.5 * width / np.tan(np.deg2rad(self.profile.field_of_view / 2))
            pinhole = Pinhole(height, width, float(focal), width / 2, height * self._horizon)
        actors, objects = list(street.actors), list(street.objects)
        if NEUTRAL in self.classes:
            actors, neutral = number_neutral(actors, len(objects))
            objects += neutral
        builder = SurfaceBuilder(pinhole, ego, actors, lighting, above_ground)
        names = [body.kind.replace("-", " ") for body in objects]
        class_of = np.array([self.classes.index(name) for name in names], np.int32)
        labelled = {id(panel.texture) for actor in actors if actor.owner >= 0 for panel in actor.body.panels}
        outlines = Outlines.build([texture if id(texture) in labelled else None for texture in builder.textures])
        return builder, outlines, class_of

    @property
    def shows(self) -> str:
        """The kind of scene in a few words, for example ``"street, car"`` for a camera on a car."""
        return scene_of(self.seed) if self.random_sensor is not None else self.profile.name

    @property
    def builder(self) -> SurfaceBuilder:
        """The actors, the camera's path and the light."""
        return self._world[0]

    @property
    def atlas(self) -> Atlas:
        """The textures of all actors."""
        return self.builder.atlas

    @property
    def num_stretches(self) -> int:
        """How many stretches of ``STRETCH_US`` the drive takes; the last one may be shorter."""
        return -(-self.duration_us // STRETCH_US)

    def _at(self, t_us: int) -> tuple[int, float]:
        """The stretch of a time, and µs since its start."""
        if not 0 <= t_us <= self.duration_us:
            raise FateError(f"the scene was asked for {t_us} µs; it lasts from 0 to {self.duration_us} µs")
        stretch = min(int(t_us) // STRETCH_US, self.num_stretches - 1)
        return stretch, float(t_us - stretch * STRETCH_US)

    def light(self, t_us: int) -> Float32:
        """Linear light on the sensor at a time, [H, W]; 1 is a white wall in full sun."""
        stretch, since = self._at(t_us)
        surfaces, image = self.surfaces(stretch), np.empty(self.sensor, np.float32)
        render(surfaces, self.atlas, schedule_tiles(surfaces, self.atlas, *self.sensor), since, image)
        return image

    def boxes(self, t_us: int) -> Boxes:
        """Return what can be detected at a time: objects of which 30 % or more are visible, and not too small."""
        return self.boxes_in(self._at(t_us)[0], np.array([t_us])).boxes

    def boxes_in(self, stretch: int, times_us: Int64) -> BoxesAt:
        """Return the boxes at the times that lie in a stretch; the last stretch includes the end of the drive."""
        surfaces, start_us = self.surfaces(stretch), stretch * STRETCH_US
        last = stretch == self.num_stretches - 1
        times_us = times_us[(times_us >= start_us) & ((times_us < start_us + STRETCH_US) | last)]
        owners = np.unique(surfaces.owner[surfaces.owner >= 0])
        boxes, visible = np.zeros((len(times_us), len(owners), 4)), np.zeros((len(times_us), len(owners)))
        since, smallest = (times_us - start_us).astype(np.float64), self.profile.min_diagonal
        if self.random_sensor is not None:
            smallest *= self.random_sensor.divisor
        limits = (*self.sensor, MIN_VISIBLE, smallest)
        large = np.inf if self.profile.name in ("gen1", "1mpx") else LARGE  # boxes of these two stay as they are
        find_boxes(surfaces, self.atlas, self._world[1], since, *limits, large, owners, boxes, visible)
        diagonal = np.hypot(boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1])
        keep = (visible >= MIN_VISIBLE) & (diagonal >= smallest)
        seen = owners[np.nonzero(keep)[1]]
        corners, shares = boxes[keep].astype(np.float32), visible[keep].astype(np.float32)
        found = Boxes(corners, self._world[2][seen], seen.astype(np.int64), shares)
        return BoxesAt(times_us, keep.sum(1), found)


def number_neutral(actors: Sequence[Actor], first: int) -> tuple[list[Actor], list[Body]]:
    """The actors, of which the neutral ones own the objects from ``first`` on; and these objects."""
    numbered, objects = list(actors), list[Body]()
    for index, actor in enumerate(actors):
        if actor.owner < 0 and actor.body.kind == NEUTRAL:
            numbered[index] = actor._replace(owner=first + len(objects))
            objects.append(actor.body)
    return numbered, objects


def draw_camera(rng: np.random.Generator, profile: str) -> CameraModel:
    """A sensor of the profile, as it is tuned in one recording: thresholds, jitter, and bursts in every fifth."""
    preset = camera_preset(profile)
    return replace(
        preset,
        threshold_on=preset.threshold_on * rng.uniform(0.85, 1.15),
        threshold_off=preset.threshold_off * rng.uniform(0.88, 1.0),
        jitter_us=preset.jitter_us * rng.uniform(0.5, 1.5),
        bursts=profile == "gen1" and bool(rng.random() < 0.2),
    )
