"""A scene without road users, of a chosen kind, seen by a small sensor, so that it is drawn fast."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property

import numpy as np

from fate.events.events import Sensor
from fate.simulation.arrays import Int32
from fate.simulation.art.catalogue import Split
from fate.simulation.art.negatives.kinds import make_negative
from fate.simulation.art.negatives.world import Negative
from fate.simulation.render.scene import Scene
from fate.simulation.render.surfaces import Pinhole, SurfaceBuilder
from fate.simulation.render.visible_boxes import Outlines


@cache
def world_of(seed: int, split: Split, seconds: float, kind: str) -> Negative:
    """A world that several scenes may share."""
    return make_negative(seed, split, seconds, kind)


class NegativeScene(Scene):
    """Draws its world with :func:`make_negative`; the sensor of gen1 has ``scale`` times its rows and columns."""

    def __init__(self, seed: int, kind: str, split: Split = "train", seconds: float = 1.0, scale: float = 0.25) -> None:
        super().__init__(seed, "gen1", split, seconds)
        self.kind, self.sensor = kind, Sensor(round(scale * 240), round(scale * 304))
        self.focal = 263.0 * scale
        self.camera = replace(self.camera, sensor=self.sensor, hot_pixels=1)

    @cached_property
    def _world(self) -> tuple[SurfaceBuilder, Outlines, Int32]:
        world = world_of(self.seed, self.split, self.seconds, self.kind)
        height, width = self.sensor
        pinhole = Pinhole(height, width, self.focal, width / 2, height * world.horizon)
        builder = SurfaceBuilder(pinhole, world.ego, world.street.actors, world.lighting, world.camera_height)
        return builder, Outlines.build([None] * len(builder.textures)), np.zeros(0, np.int32)
