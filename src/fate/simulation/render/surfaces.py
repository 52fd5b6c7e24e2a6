"""Everything that can be seen in one stretch of time, as arrays: flat textured rectangles seen through a pinhole.

A rectangle is a corner P and two edge vectors A (across) and D (down), in camera coordinates (x right, y down,
z forward). The viewing ray through a pixel meets its plane at texture coordinates (u, v), both 0 to 1 inside:

    u = U / W,  v = V / W,  (U, V, W) = M (column, row, 1),        depth = |n·P| / W,  n = A × D

M is a 3 × 3 matrix per rectangle and time. While nothing turns it is linear in time; it is kept at *knots* a few
milliseconds apart and interpolated between them, and so is the light that falls on the rectangle.

:class:`SurfaceBuilder` makes the rectangles of a stretch from actors and the camera's path: it poses every actor in
reach at the knots, transforms its panels to camera coordinates, drops what cannot be seen, lights the rest and sorts it
nearest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.simulation.arrays import Float32, Float64, Int32, Int64
from fate.simulation.art.actors import REACH, Actor, CameraPose, Ego, Layer, Lighting, Pose, Straight
from fate.simulation.art.panels import Swing, Texture, summed_area
from fate.simulation.render.limbs import Bones, Views, pose_bones, turn_cards

#: Distance between knots, µs.
KNOT_US = 10_000
#: A rectangle is clipped at this depth, metres.
NEAR = 0.05
#: The lens blurs a point to about this standard deviation, in pixels.
BLUR_SIGMA = 0.7
#: The box filter with the same variance is this wide, in pixels.
BLUR_WIDTH = float(np.sqrt(12.0) * BLUR_SIGMA)
#: Haze begins at this distance, metres.
HAZE_FROM = 60.0


class Pinhole(NamedTuple):
    """A camera without distortion."""

    height: int  #: rows
    width: int  #: columns
    focal: float  #: pixels
    centre_x: float  #: pixels, 0 is the left edge of the first column
    centre_y: float  #: pixels, 0 is the upper edge of the first row


class Atlas(NamedTuple):
    """The summed-area tables of all textures, concatenated."""

    light: Int32  #: light × alpha
    alpha: Int32
    slots: Int64  #: [textures, 4] first entry in the tables, columns, rows, and 1 if the texture is opaque

    @staticmethod
    def build(textures: Iterable[Texture]) -> Atlas:
        """Build the tables of ``textures``, in their order."""
        light, alpha, slots, end = [], [], [], 0
        for texture in textures:
            light.append(summed_area(texture.light * texture.alpha).ravel())
            alpha.append(summed_area(texture.alpha).ravel())
            slots.append((end, *texture.shape[::-1], texture.opaque))
            end += light[-1].size
        last = np.zeros(1, np.int32)
        tables = np.concatenate([*light, last]), np.concatenate([*alpha, last])
        return Atlas(*tables, np.array(slots, np.int64).reshape(-1, 4))


class Surfaces(NamedTuple):
    """K rectangles over one stretch of time, nearest first; R knots, ``KNOT_US`` apart from the stretch's start."""

    maps: Float32  #: [R, K, 11] the matrix M by rows; light on it, 1 = full sun; light of the haze before it
    bounds: Float32  #: [K, 4] columns x1, rows y1, x2, y2 it stays within, blur included
    texture: Int32  #: [K] place in the atlas
    lamps: Float32  #: [K, 4] emitted light for texture light 1; of its flicker rad/µs, depth 0 to 1, phase at the start
    owner: Int32  #: [K] the object it belongs to; -1: none
    sky: Float32  #: [R, 3] row of the horizon, light there, light one focal length above it
    focal: float  #: pixels


def matrices(corner: Float64, across: Float64, down: Float64, pinhole: Pinhole) -> tuple[Float32, Float64]:
    """Return the matrices M [R, K, 9] of rectangles, scaled alike at all knots, and n·P [R, K] in metres.

    ``corner``, ``across`` and ``down`` [R, K, 3] are P, A and D in camera coordinates, metres. n·P is positive where
    ``across`` is seen going right with ``down`` going down.
    """
    normal = cross(across, down)
    side = np.sum(normal * corner, axis=-1)
    middle = len(side) // 2
    sign = np.where(side[middle] < 0, -1.0, 1.0)
    scale = sign / np.maximum(np.linalg.norm(normal[middle], axis=-1), 1e-12)
    rows = np.stack([cross(down, corner), cross(corner, across), normal], axis=2) * scale[None, :, None, None]
    maps = np.empty_like(rows)  # of pixels instead of rays: x = (column - centre_x) / focal
    maps[..., :2] = rows[..., :2] / pinhole.focal
    maps[..., 2] = rows[..., 2] - maps[..., 0] * pinhole.centre_x - maps[..., 1] * pinhole.centre_y
    length = np.maximum(np.linalg.norm(normal, axis=-1), 1e-12)
    return maps.reshape(*side.shape, 9).astype(np.float32), side / length


def cross(a: Float64, b: Float64) -> Float64:
    """Cross products of vectors [..., 3]; several times as fast as numpy's for short arrays."""
    result = np.empty(np.broadcast_shapes(a.shape, b.shape))
    result[..., 0] = a[..., 1] * b[..., 2] - a[..., 2] * b[..., 1]
    result[..., 1] = a[..., 2] * b[..., 0] - a[..., 0] * b[..., 2]
    result[..., 2] = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    return result


@compiled
def projected_bounds(
    corner: Float64, across: Float64, down: Float64, focal: float, centre_x: float, centre_y: float, margin: float
) -> Float32:
    """Columns and rows [K, 4] (x1, y1, x2, y2) that rectangles [R, K, 3] reach, clipped at ``NEAR``; none: x1 > x2."""
    knots, count = corner.shape[0], corner.shape[1]
    bounds = np.empty((count, 4), np.float32)
    points = np.empty((4, 3))
    for k in range(count):
        x1 = y1 = 1e9
        x2 = y2 = -1e9
        for r in range(knots):
            for i in range(3):
                points[0, i] = corner[r, k, i]
                points[1, i] = corner[r, k, i] + across[r, k, i]
                points[2, i] = corner[r, k, i] + across[r, k, i] + down[r, k, i]
                points[3, i] = corner[r, k, i] + down[r, k, i]
            for a in range(4):
                b = (a + 1) % 4
                za, zb = points[a, 2], points[b, 2]
                for end in range(2):  # the corner itself, and where the edge to the next one meets the near plane
                    if end == 0:
                        if za < NEAR:
                            continue
                        x, y, z = points[a, 0], points[a, 1], za
                    else:
                        if (za < NEAR) == (zb < NEAR):
                            continue
                        share = (NEAR - za) / (zb - za)
                        x = points[a, 0] + share * (points[b, 0] - points[a, 0])
                        y = points[a, 1] + share * (points[b, 1] - points[a, 1])
                        z = NEAR
                    column = centre_x + focal * x / z
                    row = centre_y + focal * y / z
                    x1, x2 = min(x1, column), max(x2, column)
                    y1, y2 = min(y1, row), max(y2, row)
        bounds[k, 0], bounds[k, 1], bounds[k, 2], bounds[k, 3] = x1 - margin, y1 - margin, x2 + margin, y2 + margin
    return bounds


class _Panels(NamedTuple):
    """The fields of :class:`Panel` and :class:`Swing` for all panels of all bodies, concatenated (K panels)."""

    origin: Float64  # [K, 3]
    across: Float64  # [K, 3]
    down: Float64  # [K, 3]
    emission: Float64
    flicker_hz: Float64
    flicker_depth: Float64
    pivot: Float64  # [K, 3]
    amplitude: Float64
    phase: Float64
    turns: NDArray[np.bool_]
    texture: Int32  # index into the atlas
    outward: NDArray[np.bool_]
    bone: Int64  # of the body's skeleton; -1: none
    spread: Float64  # [K, 2]
    drawn: Float64  # the direction it was drawn for, rad


class _Posed(NamedTuple):
    """The actors in reach at R knots (I actors with K panels together)."""

    chosen: Int64  # [I] which of all actors
    which: Int64  # [K] which of those a panel belongs to
    panel: Int64  # [K] which of all panels it is
    pose: Pose  # of the actors, [R, I] each
    camera: CameraPose


class SurfaceBuilder:
    """Builds the surfaces of one drive from its actors."""

    def __init__(self, pinhole: Pinhole, ego: Ego, actors: Sequence[Actor], lighting: Lighting, height: float) -> None:
        self.pinhole, self.ego, self.actors, self.lighting = pinhole, ego, tuple(actors), lighting
        self.height = height  #: of the camera above the ground, metres
        bodies = {id(actor.body): actor.body for actor in self.actors}
        number = {key: index for index, key in enumerate(bodies)}
        panels = [panel for body in bodies.values() for panel in body.panels]
        textures = {id(panel.texture): panel.texture for panel in panels}
        position = {key: index for index, key in enumerate(textures)}
        swings = [panel.swing or Swing(np.zeros(3), 0.0) for panel in panels]
        self.textures = tuple(textures.values())
        self.atlas = Atlas.build(self.textures)
        columns = [np.array([getattr(panel, name) for panel in panels]) for name in _Panels._fields[:6]]
        columns += [np.array([getattr(swing, name) for swing in swings]) for name in _Panels._fields[6:10]]
        columns.append(np.array([position[id(panel.texture)] for panel in panels], np.int32))
        columns.append(np.array([panel.faces == "outward" for panel in panels]))
        columns.append(np.array([-1 if panel.bone is None else panel.bone for panel in panels]))
        columns.append(np.array([panel.spread for panel in panels]))
        turns = [
            np.repeat(np.arange(body.views) / body.views, len(body.panels) // body.views) for body in bodies.values()
        ]
        columns.append(2 * np.pi * np.concatenate(turns))
        self._panels = _Panels(*columns)
        sizes = np.array([len(body.panels) for body in bodies.values()])
        self._count, self._first = sizes // [body.views for body in bodies.values()], np.cumsum(sizes) - sizes
        skeletons = {number[key]: body.skeleton for key, body in bodies.items() if body.skeleton}
        self._bones, self._person = Bones.stack(tuple(skeletons.values())), np.full(len(bodies), -1)
        self._person[list(skeletons)] = np.arange(len(skeletons))
        self._views = Views(self.actors, ego)
        self._body = np.array([number[id(actor.body)] for actor in self.actors])
        self._facing = np.array([actor.body.facing for actor in self.actors])
        self._layer = np.array([actor.layer for actor in self.actors], np.int64)
        self._owner = np.array([actor.owner for actor in self.actors], np.int32)
        self._mirror = np.array([1.0 if actor.body.skeleton else actor.mirror for actor in self.actors])
        self._reach = np.array([actor.reach for actor in self.actors])
        self._size = np.array([max(actor.body.length, actor.body.width) for actor in self.actors])
        paths = [actor.path for actor in self.actors]
        fixed = [path if isinstance(path, Straight) and path.speed == 0 else None for path in paths]
        self._moving = np.array([path is None for path in fixed])
        self._position = np.array([(path.x, path.z, path.heading) if path else (0.0, 0.0, 0.0) for path in fixed])
        to_the_side = np.arctan(max(pinhole.centre_x, pinhole.width - pinhole.centre_x) / pinhole.focal)
        turned = float(np.abs(ego.yaw).max() + to_the_side) > np.pi / 2
        self._behind = REACH if turned else 0.0  # metres behind the camera that it may see

    def surfaces(self, start_us: int, knots: int) -> Surfaces:
        """What can be seen from ``start_us`` on at ``knots`` times ``KNOT_US`` apart, up to ``REACH`` ahead."""
        seconds = (start_us + KNOT_US * np.arange(knots, dtype=np.float64)) * 1e-6
        camera = self.ego.at(seconds)
        chosen = self._in_reach(camera.z, seconds)
        body = self._body[chosen]
        count = self._count[body]
        which = np.repeat(np.arange(len(chosen)), count)
        first = self._first[body]
        for index in np.flatnonzero(self._person[body] >= 0):
            first[index] += count[index] * self._views.at(int(chosen[index]), start_us)
        ends = np.cumsum(count)
        panel = np.arange(ends[-1]) - np.repeat(ends - count - first, count)
        posed = _Posed(chosen, which, panel, self._poses(chosen, seconds, camera), camera)
        corner, across, down = self._in_camera(posed)
        maps, side = matrices(corner, across, down, self.pinhole)
        margin = 0.5 * BLUR_WIDTH + 0.5
        bounds = projected_bounds(corner, across, down, *self.pinhole[2:], margin)
        middle, data = knots // 2, self._panels
        seen = (
            (np.abs(side[middle]) > 1e-4)
            & (~data.outward[panel] | (side[middle] * self._mirror[chosen][which] > 0))
            & np.all(bounds[:, :2] < (self.pinhole.width, self.pinhole.height), axis=1)
            & np.all(bounds[:, 2:] > 0, axis=1)
        )
        order = self._order(posed, middle)
        order = order[seen[order]]
        gain, haze = self._light(posed, corner, across, down, side)
        glow = data.emission[panel] * self.lighting.lamps
        flicker = 2e-6 * np.pi * data.flicker_hz[panel]  # rad/µs
        phase = np.mod(flicker * start_us + chosen[which], 2 * np.pi)
        lamps = np.stack([glow, flicker, data.flicker_depth[panel], phase], axis=1)
        horizon = self.pinhole.centre_y + self.pinhole.focal * np.tan(camera.pitch)
        sky = np.stack([horizon, np.full(knots, self.lighting.horizon), np.full(knots, self.lighting.zenith)], axis=1)
        if self.lighting.exposure:
            factor = np.interp(seconds, *np.transpose(self.lighting.exposure))[:, None]
            flickering = data.flicker_depth[panel] > 0
            gain, haze = (gain + np.where(flickering, 0.0, glow)) * factor, haze * factor
            lamps[:, 0] = np.where(flickering, glow * factor.mean(), 0.0)  # it is even within a stretch
            sky[:, 1:] *= factor
        maps = np.concatenate([maps, gain[..., None], haze[..., None]], axis=2, dtype=np.float32)
        return Surfaces(
            maps=np.ascontiguousarray(maps[:, order]),
            bounds=bounds[order],
            texture=data.texture[panel][order],
            lamps=lamps[order].astype(np.float32),
            owner=self._owner[chosen][which][order],
            sky=sky.astype(np.float32),
            focal=float(self.pinhole.focal),
        )

    def _in_reach(self, camera_z: Float64, seconds: Float64) -> Int64:
        """Actors that may be seen: not far behind the camera (unless it looks there), not too far ahead."""
        near = camera_z.min()
        z = self._position[:, 1].copy()
        span = np.maximum(self._size, self._reach)
        for index in np.flatnonzero(self._moving):
            z[index] = self.actors[index].path.at(seconds[:1]).z[0]
            span[index] += 3
        travelling = (self._layer >= Layer.KERB) | (self._layer == Layer.LENS)
        return np.flatnonzero(travelling | ((z + span > near - self._behind) & (z - span < near + REACH)))

    def _poses(self, chosen: Int64, seconds: Float64, camera: CameraPose) -> Pose:
        """Return the poses [R, I] of the chosen actors."""
        values = np.zeros((5, len(seconds), len(chosen)))
        values[:3] = self._position[chosen].T[:, None]
        for column in np.flatnonzero(self._moving[chosen]):
            for part, value in zip(values, self.actors[chosen[column]].path.at(seconds), strict=True):
                part[:, column] = value
        pose, layer = Pose(*values), self._layer[chosen]
        pose.z[:, layer >= Layer.KERB] = camera.z[:, None]
        pose.x[:, layer == Layer.FAR] = camera.x[:, None]
        return pose

    def _in_camera(self, posed: _Posed) -> tuple[Float64, Float64, Float64]:
        """Corner, across and down [R, K, 3] of panels in camera coordinates."""
        chosen, which, panel, (x, z, heading, gait, y), camera = posed
        data, facing = self._panels, self._facing[chosen]
        bearing = np.arctan2(x - camera.x[:, None], z - camera.z[:, None])
        turned = np.where(facing, bearing, heading)
        shape = len(x), len(panel), 3
        vectors = [np.broadcast_to(part[panel], shape) for part in (data.origin, data.across, data.down)]
        swinging = np.flatnonzero((data.amplitude[panel] > 0) | data.turns[panel])
        if len(swinging):
            limbs, bodies = panel[swinging], which[swinging]
            # from the front a stride is foreshortened to a quarter
            sideways = np.where(facing, 0.25 + 0.75 * np.abs(np.sin(heading - bearing)), 1.0)[:, bodies]
            angle = gait[:, bodies] + data.phase[limbs]
            angle = np.where(data.turns[limbs], angle, data.amplitude[limbs] * sideways * np.sin(angle))
            vectors = [vector.copy() for vector in vectors]
            axis = cross(data.across[limbs], data.down[limbs])
            axis = axis / np.linalg.norm(axis, axis=-1, keepdims=True)
            for number, vector in enumerate(vectors):
                pivot = data.pivot[limbs] if number == 0 else np.zeros(3)
                vector[:, swinging] = _turned(vector[:, swinging] - pivot, axis, angle) + pivot
        carried = np.flatnonzero(data.bone[panel] >= 0)
        if len(carried):
            vectors = [vector.copy() for vector in vectors]
            moved = self._carry(panel[carried], which[carried], chosen, gait, heading - bearing)
            for vector, part in zip(vectors, moved, strict=True):
                vector[:, carried] = part
        cos, sin = np.cos(turned)[:, which], np.sin(turned)[:, which]
        mirror = self._mirror[chosen][which]
        yaw, height = camera.yaw[:, None], self.height if camera.height is None else camera.height[:, None]
        before = np.flatnonzero(self._layer[chosen][which] == Layer.LENS)
        results = []
        for number, vector in enumerate(vectors):
            right, below, ahead = vector[..., 0] * mirror, vector[..., 1], vector[..., 2]
            east, north = right * cos + ahead * sin, ahead * cos - right * sin
            if number == 0:
                east = east + (x - camera.x[:, None])[:, which]
                north = north + (z - camera.z[:, None])[:, which]
                below = below + (height + y)[:, which]
            along_x, along_z = east * np.cos(yaw) - north * np.sin(yaw), east * np.sin(yaw) + north * np.cos(yaw)
            results.append(np.stack(_tilted(along_x, below, along_z, camera), axis=-1))
            if len(before):
                results[-1][:, before] = vector[:, before]
        if len(before):
            results[0][:, before, 0] += x[:, which[before]]
            results[0][:, before, 1] += z[:, which[before]]
        return results[0], results[1], results[2]

    def _carry(
        self, panel: Int64, which: Int64, chosen: Int64, gait: Float64, seen: Float64
    ) -> tuple[Float64, Float64, Float64]:
        """Corner, across and down [R, K, 3] of panels that bones carry, in the frame of their bodies.

        Each belongs to the actor ``which`` [K] of the ``chosen`` ones, whose gait and direction are [R, I].
        """
        people, person = np.unique(which, return_inverse=True)
        persons = self._person[self._body[chosen[people]]]
        bones = Bones(*(field[persons] for field in self._bones))
        posed = pose_bones(bones, gait[:, people], seen[:, people])
        data, bone = self._panels, self._panels.bone[panel]
        cards = np.stack([part[panel] for part in (data.origin, data.across, data.down)])
        angle, drawn, spread = posed.angle[:, person, bone], data.drawn[panel], data.spread[panel]
        corner, across, down = turn_cards(cards, angle, seen[:, which], drawn, spread)
        return corner + posed.joints[:, person, bone], across, down

    def _order(self, posed: _Posed, middle: int) -> Int64:
        """Panels nearest first: by layer, by actor, and within an actor as its body lists them, last on top."""
        chosen, which = posed.chosen, posed.which
        camera_x, camera_z, yaw = (values[middle] for values in posed.camera[:3])
        ahead = (posed.pose.x[middle] - camera_x) * np.sin(yaw) + (posed.pose.z[middle] - camera_z) * np.cos(yaw)
        ahead = ahead + self._reach[chosen] * (abs(np.cos(yaw)) if self._behind else 1.0)  # walls run along the street
        rank = np.empty(len(chosen))
        rank[np.lexsort((chosen, ahead, self._layer[chosen]))] = np.arange(len(chosen))
        return np.lexsort((-np.arange(len(which)), rank[which]))  # a body's later panels lie over its earlier ones

    def _light(
        self, posed: _Posed, corner: Float64, across: Float64, down: Float64, side: Float64
    ) -> tuple[Float64, Float64]:
        """Light on each panel [R, K], and light of the haze before it [R, K], which also dims the panel."""
        light, camera = self.lighting, posed.camera
        yaw = camera.yaw
        actor = posed.chosen[posed.which]
        outward = -cross(across, down)
        outward *= (np.where(side < 0, -1.0, 1.0) / np.maximum(np.linalg.norm(outward, axis=-1), 1e-12))[..., None]
        east, below, north = light.to_sun
        right, ahead = east * np.cos(yaw) - north * np.sin(yaw), east * np.sin(yaw) + north * np.cos(yaw)
        sun = np.stack([right, np.full_like(yaw, below), ahead], axis=-1)
        if camera.height is not None:
            sun = np.concatenate(_tilted(sun[:, :1], sun[:, 1:2], sun[:, 2:], camera), axis=-1)
        slant = np.maximum(np.sum(outward * sun[:, None], axis=-1), 0.0)
        slant = np.where(self._facing[actor], 0.6, slant)
        distance = np.linalg.norm(corner + 0.5 * (across + down), axis=-1)
        layer = self._layer[actor]
        if light.shade:
            slant = np.where(layer == Layer.STANDING, slant * (1 - self._shaded(posed)), slant)
        headlamps = light.headlamps / (1 + (distance / 12) ** 2)
        if camera.height is not None:  # lit panel by panel, the ground would show its panels' borders
            headlamps = np.where(layer >= Layer.PAVING, 0.0, headlamps)
        gain = light.ambient + light.sun * slant + headlamps
        gain = np.where(layer == Layer.LENS, light.ambient + 0.5 * light.sun, gain)
        thick = np.where(layer >= Layer.KERB, 0.0, np.clip((distance - HAZE_FROM) / (REACH - HAZE_FROM), 0.0, 1.0))
        gain = np.where(layer == Layer.FAR, light.horizon, gain * (1 - thick))
        return gain, thick * light.horizon

    def _shaded(self, posed: _Posed) -> Float64:
        """The share of the sun [R, K] that trees keep from panels, at the panels' middles."""
        data, pose, which = self._panels, posed.pose, posed.which
        middle = (data.origin + 0.5 * (data.across + data.down))[posed.panel]
        mirror = self._mirror[posed.chosen][which]
        turned = middle[:, 2] * np.cos(pose.heading[:, which]) - mirror * middle[:, 0] * np.sin(pose.heading[:, which])
        offset = np.where(self._facing[posed.chosen][which], 0.0, turned)
        return np.asarray(np.interp(pose.z[:, which] + offset, *np.transpose(self.lighting.shade)))


def _tilted(right: Float64, below: Float64, ahead: Float64, camera: CameraPose) -> tuple[Float64, Float64, Float64]:
    """Vectors (right, below, ahead) [R, K] of a level camera, as the camera sees them with its pitch and roll."""
    pitch = camera.pitch[:, None]
    below, ahead = below * np.cos(pitch) + ahead * np.sin(pitch), ahead * np.cos(pitch) - below * np.sin(pitch)
    if camera.roll is not None:
        roll = camera.roll[:, None]
        right, below = right * np.cos(roll) + below * np.sin(roll), below * np.cos(roll) - right * np.sin(roll)
    return right, below, ahead


def _turned(vectors: Float64, axis: Float64, angle: Float64) -> Float64:
    """Vectors [R, K, 3] turned about unit axes [K, 3] by angles [R, K]."""
    cos, sin = np.cos(angle)[..., None], np.sin(angle)[..., None]
    along = np.sum(vectors * axis, axis=-1, keepdims=True) * axis
    return np.asarray(along + cos * (vectors - along) + sin * cross(axis, vectors))
