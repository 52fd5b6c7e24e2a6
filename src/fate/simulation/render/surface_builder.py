"""From actors and a camera path to the surfaces that can be seen in one stretch of time.

An actor is a body with a path. For a stretch of time the builder poses every actor in reach at a few knots,
transforms its panels to camera coordinates, drops what cannot be seen, lights the rest and sorts it nearest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.simulation.arrays import Float64, Int32, Int64
from fate.simulation.art.actors import REACH, Actor, CameraPose, Ego, Layer, Lighting, Path, Straight
from fate.simulation.art.panels import Body, Texture
from fate.simulation.render.surfaces import (
    BLUR_WIDTH,
    KNOT_US,
    Atlas,
    Pinhole,
    Surfaces,
    cross,
    matrices,
    projected_bounds,
)

#: Haze begins at this distance, metres.
HAZE_FROM = 60.0


class _Panels(NamedTuple):
    """All panels of all bodies, concatenated (K panels)."""

    corner: Float64  # [K, 3]
    across: Float64  # [K, 3]
    down: Float64  # [K, 3]
    texture: Int32
    outward: NDArray[np.bool_]
    emission: Float64
    flicker: Float64  # rad/µs
    depth: Float64
    pivot: Float64  # [K, 3]
    amplitude: Float64
    phase: Float64


class SurfaceBuilder:
    """Builds the surfaces of one drive from its actors."""

    def __init__(self, pinhole: Pinhole, ego: Ego, actors: Sequence[Actor], lighting: Lighting, height: float) -> None:
        self.pinhole = pinhole
        self.ego = ego
        self.actors = tuple(actors)
        self.lighting = lighting
        self.height = height  #: of the camera above the ground, metres
        textures: dict[int, int] = {}
        listed: list[Texture] = []
        bodies: dict[int, int] = {}
        self._first: list[int] = []
        self._count: list[int] = []
        panels: list[_Panels] = []
        for actor in self.actors:
            if id(actor.body) in bodies:
                continue
            bodies[id(actor.body)] = len(self._first)
            self._first.append(sum(self._count))
            self._count.append(len(actor.body.panels))
            for panel in actor.body.panels:
                if id(panel.texture) not in textures:
                    textures[id(panel.texture)] = len(listed)
                    listed.append(panel.texture)
            panels.append(_compiled_panels(actor.body, textures))
        self.textures = tuple(listed)
        self.atlas = Atlas.build(listed)
        self._panels = _Panels(*(np.concatenate(parts) for parts in zip(*panels, strict=True)))
        self._body = np.array([bodies[id(actor.body)] for actor in self.actors], np.int64)
        self._facing = np.array([actor.body.facing for actor in self.actors])
        self._layer = np.array([actor.layer for actor in self.actors], np.int64)
        self._owner = np.array([actor.owner for actor in self.actors], np.int32)
        self._mirror = np.array([actor.mirror for actor in self.actors])
        self._reach = np.array([actor.reach for actor in self.actors])
        self._size = np.array([max(actor.body.length, actor.body.width) for actor in self.actors])
        fixed = [_fixed(actor.path) for actor in self.actors]
        self._moving = np.array([place is None for place in fixed])
        self._place = np.array([place or (0.0, 0.0, 0.0) for place in fixed], np.float64)

    def surfaces(self, start_us: int, knots: int) -> Surfaces:
        """What can be seen from ``start_us`` on at ``knots`` times ``KNOT_US`` apart, up to ``REACH`` ahead."""
        seconds = (start_us + KNOT_US * np.arange(knots, dtype=np.float64)) * 1e-6
        camera = self.ego.at(seconds)
        near = camera.z.min()
        chosen = self._in_reach(near, seconds)
        x, z, heading, gait = self._poses(chosen, seconds, camera)
        body = self._body[chosen]
        count = np.array(self._count)[body]
        which = np.repeat(np.arange(len(chosen)), count)
        ends = np.cumsum(count)
        panel = np.arange(ends[-1]) - np.repeat(ends - count - np.array(self._first)[body], count)
        corner, across, down = self._posed(panel, which, chosen, x, z, heading, gait, camera)
        maps, side = matrices(corner, across, down, self.pinhole)
        margin = 0.5 * BLUR_WIDTH + 0.5
        bounds = projected_bounds(
            corner, across, down, self.pinhole.focal, self.pinhole.centre_x, self.pinhole.centre_y, margin
        )
        middle = knots // 2
        data = self._panels
        seen = (
            (np.abs(side[middle]) > 1e-4)
            & (~data.outward[panel] | (side[middle] * self._mirror[chosen][which] > 0))
            & (bounds[:, 0] < self.pinhole.width)
            & (bounds[:, 1] < self.pinhole.height)
            & (bounds[:, 2] > 0)
            & (bounds[:, 3] > 0)
        )
        order = self._order(chosen, which, x, z, camera, middle)
        order = order[seen[order]]
        gain, haze = self._light(panel, which, chosen, across, down, corner, side, camera.yaw)
        glow = data.emission[panel] * self.lighting.lamps
        flicker = data.flicker[panel]
        maps = np.concatenate([maps, gain[..., None], haze[..., None]], axis=2, dtype=np.float32)
        horizon = self.pinhole.centre_y + self.pinhole.focal * np.tan(camera.pitch)
        sky = np.stack([horizon, np.full(knots, self.lighting.horizon), np.full(knots, self.lighting.zenith)], axis=1)
        return Surfaces(
            maps=np.ascontiguousarray(maps[:, order]),
            bounds=bounds[order],
            texture=data.texture[panel][order],
            glow=glow[order].astype(np.float32),
            flicker=flicker[order].astype(np.float32),
            depth=data.depth[panel][order].astype(np.float32),
            phase=np.mod(flicker[order] * start_us + chosen[which][order], 2 * np.pi).astype(np.float32),
            owner=self._owner[chosen][which][order],
            sky=sky.astype(np.float32),
            focal=float(self.pinhole.focal),
        )

    def _in_reach(self, near: float, seconds: Float64) -> Int64:
        """Actors that may be seen: not far behind the camera, not too far ahead."""
        z = self._place[:, 1].copy()
        span = np.maximum(self._size, self._reach)
        for index in np.flatnonzero(self._moving):
            z[index] = self.actors[index].path.at(seconds[:1]).z[0]
            span[index] += 3
        travelling = self._layer >= Layer.KERB
        return np.flatnonzero(travelling | ((z + span > near) & (z - span < near + REACH)))

    def _poses(self, chosen: Int64, seconds: Float64, camera: CameraPose) -> tuple[Float64, Float64, Float64, Float64]:
        """x, z, heading and gait [R, I] of the chosen actors; billboards face the camera."""
        shape = len(seconds), len(chosen)
        place = self._place[chosen]
        x, z = np.broadcast_to(place[:, 0], shape).copy(), np.broadcast_to(place[:, 1], shape).copy()
        heading, gait = np.broadcast_to(place[:, 2], shape).copy(), np.zeros(shape)
        for column in np.flatnonzero(self._moving[chosen]):
            pose = self.actors[chosen[column]].path.at(seconds)
            x[:, column], z[:, column], heading[:, column], gait[:, column] = pose
        layer = self._layer[chosen]
        z[:, layer >= Layer.KERB] = camera.z[:, None]
        x[:, layer == Layer.FAR] = camera.x[:, None]
        return x, z, heading, gait

    def _posed(
        self,
        panel: Int64,
        which: Int64,
        chosen: Int64,
        x: Float64,
        z: Float64,
        heading: Float64,
        gait: Float64,
        camera: CameraPose,
    ) -> tuple[Float64, Float64, Float64]:
        """Corner, across and down [R, K, 3] of panels in camera coordinates."""
        data = self._panels
        knots = len(x)
        facing = self._facing[chosen]
        bearing = np.arctan2(x - camera.x[:, None], z - camera.z[:, None])
        turned = np.where(facing, bearing, heading)
        vectors = [
            np.broadcast_to(part[panel], (knots, len(panel), 3)) for part in (data.corner, data.across, data.down)
        ]
        swinging = np.flatnonzero(data.amplitude[panel] > 0)
        if len(swinging):
            limbs, bodies = panel[swinging], which[swinging]
            # from the front a stride is foreshortened to a quarter
            sideways = np.where(facing, 0.25 + 0.75 * np.abs(np.sin(heading - bearing)), 1.0)[:, bodies]
            angle = data.amplitude[limbs] * sideways * np.sin(gait[:, bodies] + data.phase[limbs])
            vectors = [vector.copy() for vector in vectors]
            axis = cross(data.across[limbs], data.down[limbs])
            axis = axis / np.linalg.norm(axis, axis=-1, keepdims=True)
            for number, vector in enumerate(vectors):
                pivot = data.pivot[limbs] if number == 0 else np.zeros(3)
                vector[:, swinging] = _turned(vector[:, swinging] - pivot, axis, angle) + pivot
        cos, sin = np.cos(turned)[:, which], np.sin(turned)[:, which]
        mirror = self._mirror[chosen][which]
        yaw, pitch = camera.yaw[:, None], camera.pitch[:, None]
        results = []
        for number, vector in enumerate(vectors):
            right, below, ahead = vector[..., 0] * mirror, vector[..., 1], vector[..., 2]
            east, north = right * cos + ahead * sin, ahead * cos - right * sin
            if number == 0:
                east = east + (x - camera.x[:, None])[:, which]
                north = north + (z - camera.z[:, None])[:, which]
                below = below + self.height
            along_x, along_z = east * np.cos(yaw) - north * np.sin(yaw), east * np.sin(yaw) + north * np.cos(yaw)
            results.append(
                np.stack(
                    [
                        along_x,
                        below * np.cos(pitch) + along_z * np.sin(pitch),
                        along_z * np.cos(pitch) - below * np.sin(pitch),
                    ],
                    axis=-1,
                )
            )
        return results[0], results[1], results[2]

    def _order(self, chosen: Int64, which: Int64, x: Float64, z: Float64, camera: CameraPose, middle: int) -> Int64:
        """Panels nearest first: by layer, by actor, and within an actor as its body lists them, last on top."""
        yaw = camera.yaw[middle]
        ahead = (x[middle] - camera.x[middle]) * np.sin(yaw) + (z[middle] - camera.z[middle]) * np.cos(yaw)
        ahead = ahead + self._reach[chosen]
        rank = np.empty(len(chosen))
        rank[np.lexsort((chosen, ahead, self._layer[chosen]))] = np.arange(len(chosen))
        return np.lexsort((-np.arange(len(which)), rank[which]))  # a body's later panels lie over its earlier ones

    def _light(
        self,
        panel: Int64,
        which: Int64,
        chosen: Int64,
        across: Float64,
        down: Float64,
        corner: Float64,
        side: Float64,
        yaw: Float64,
    ) -> tuple[Float64, Float64]:
        """Light on each panel [R, K], and light of the haze before it [R, K], which also dims the panel."""
        light = self.lighting
        outward = -cross(across, down)
        outward *= (np.where(side < 0, -1.0, 1.0) / np.maximum(np.linalg.norm(outward, axis=-1), 1e-12))[..., None]
        sun = np.stack(
            [
                light.to_sun[0] * np.cos(yaw) - light.to_sun[2] * np.sin(yaw),
                np.full_like(yaw, light.to_sun[1]),
                light.to_sun[0] * np.sin(yaw) + light.to_sun[2] * np.cos(yaw),
            ],
            axis=-1,
        )
        slant = np.maximum(np.sum(outward * sun[:, None], axis=-1), 0.0)
        slant = np.where(self._facing[chosen][which], 0.6, slant)
        distance = np.linalg.norm(corner + 0.5 * (across + down), axis=-1)
        gain = light.ambient + light.sun * slant + light.headlamps / (1 + (distance / 12) ** 2)
        layer = self._layer[chosen][which]
        thick = np.where(layer >= Layer.KERB, 0.0, np.clip((distance - HAZE_FROM) / (REACH - HAZE_FROM), 0.0, 1.0))
        gain = np.where(layer == Layer.FAR, light.horizon, gain * (1 - thick))
        return gain, thick * light.horizon


def _fixed(path: Path) -> tuple[float, float, float] | None:
    """x, z and heading of what never moves."""
    if isinstance(path, Straight) and path.speed == 0:
        return path.x, path.z, path.heading
    return None


def _turned(vectors: Float64, axis: Float64, angle: Float64) -> Float64:
    """Vectors [R, K, 3] turned about unit axes [K, 3] by angles [R, K]."""
    cos, sin = np.cos(angle)[..., None], np.sin(angle)[..., None]
    along = np.sum(vectors * axis, axis=-1, keepdims=True) * axis
    return np.asarray(along + cos * (vectors - along) + sin * cross(axis, vectors))


def _compiled_panels(body: Body, textures: dict[int, int]) -> _Panels:
    listed = body.panels
    nowhere = np.zeros(3)
    return _Panels(
        corner=np.array([panel.origin for panel in listed], np.float64),
        across=np.array([panel.across for panel in listed], np.float64),
        down=np.array([panel.down for panel in listed], np.float64),
        texture=np.array([textures[id(panel.texture)] for panel in listed], np.int32),
        outward=np.array([panel.faces == "outward" for panel in listed]),
        emission=np.array([panel.emission for panel in listed], np.float64),
        flicker=np.array([2e-6 * np.pi * panel.flicker_hz for panel in listed], np.float64),
        depth=np.array([panel.flicker_depth for panel in listed], np.float64),
        pivot=np.array([panel.swing.pivot if panel.swing else nowhere for panel in listed], np.float64),
        amplitude=np.array([panel.swing.amplitude if panel.swing else 0.0 for panel in listed], np.float64),
        phase=np.array([panel.swing.phase if panel.swing else 0.0 for panel in listed], np.float64),
    )
