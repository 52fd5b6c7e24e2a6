"""What a scene without road users is made of: its actors, the camera, the light, and pictures cut into panels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fate.simulation.arrays import Float32, Float64
from fate.simulation.art.actors import Actor, Ego, Layer, Lighting, Path, Straight
from fate.simulation.art.panels import MAX_TEXELS, Body, Panel, Swing, Texture, vector

#: Neighbouring panels of one picture overlap by this many texels, so that nothing shows between them.
_OVERLAP = 4


class Contents:
    """The actors of a scene; those added with :meth:`add` have no boxes."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.objects: list[Body] = []

    def add(
        self, name: str, panels: Iterable[Panel], path: Path | tuple[float, float] = (0.0, 0.0),
        layer: Layer = Layer.STANDING, *, facing: bool = False, reach: float = 0.0,
    ) -> None:  # fmt: skip
        """Add a body of panels on a path, or at rest at (x, z)."""
        parts = tuple(panels)
        ends = [part.origin + u * part.across + v * part.down for part in parts for u in (0, 1) for v in (0, 1)]
        size = 2 * float(np.abs(ends).max())
        body = Body(name, "scenery", parts, size, size, size, facing)
        self.actors.append(Actor(body, Straight(*path) if isinstance(path, tuple) else path, layer, reach=reach))

    def add_labelled(self, body: Body, path: Path) -> None:
        """Add someone who has a box."""
        self.actors.append(Actor(body, path, owner=len(self.objects)))
        self.objects.append(body)


class Negative(NamedTuple):
    """A scene that is not a street; without people in it, it has no road users."""

    ego: Ego
    street: Contents
    lighting: Lighting
    camera_height: float  #: metres above the ground or the table
    horizon: float  #: row of the optical axis over the height of the picture


def plane(
    light: npt.ArrayLike, origin: Float64, across: Float64, down: Float64, alpha: Float32 | None = None, **options: Any
) -> list[Panel]:
    """A picture [h, w] of any size over a parallelogram, as panels of at most 128 texels a side; seen from both sides.

    ``options`` are further fields of every :class:`Panel`.
    """
    texels = np.clip(np.atleast_2d(np.asarray(light, np.float32)), 0.0, 1.0)
    cover = np.ones_like(texels) if alpha is None else np.clip(alpha, 0.0, 1.0).astype(np.float32)
    options = {"faces": "both", **options}
    panels = []
    for top, bottom in _cuts(texels.shape[0]):
        for left, right in _cuts(texels.shape[1]):
            part = slice(top, bottom), slice(left, right)
            u0, u1, v0, v1 = left / texels.shape[1], right / texels.shape[1], top / len(texels), bottom / len(texels)
            corner = origin + u0 * across + v0 * down
            texture = Texture(texels[part], cover[part])
            panels.append(Panel(texture, corner, (u1 - u0) * across, (v1 - v0) * down, **options))
    return panels


def _cuts(texels: int) -> list[tuple[int, int]]:
    starts = range(0, max(texels - _OVERLAP, 1), MAX_TEXELS - _OVERLAP)
    return [(start, min(start + MAX_TEXELS, texels)) for start in starts]


def upright(
    light: npt.ArrayLike, width: float, height: float, x: float = 0.0, y: float = 0.0, z: float = 0.0,
    alpha: Float32 | None = None, **options: Any,
) -> list[Panel]:  # fmt: skip
    """A picture [h, w] that stands across the view, its centre at (x, y, z)."""
    corner = vector(x - width / 2, y - height / 2, z)
    return plane(light, corner, vector(width, 0, 0), vector(0, height, 0), alpha, **options)


def lying(
    light: npt.ArrayLike, width: float, length: float, x: float = 0.0, z: float = 0.0, alpha: Float32 | None = None,
    y: float = 0.0, **options: Any,
) -> list[Panel]:  # fmt: skip
    """A picture [h, w] that lies flat, its first row at the far end, its centre at (x, y, z)."""
    corner = vector(x - width / 2, y, z + length / 2)
    return plane(light, corner, vector(width, 0, 0), vector(0, 0, -length), alpha, **options)


def box(light: npt.ArrayLike, width: float, height: float, depth: float) -> list[Panel]:
    """A box that stands on the ground, with the same picture on its front and its sides and a plain top."""
    picture = np.atleast_2d(np.asarray(light, np.float32))
    w, d, tall = width / 2, depth / 2, vector(0, height, 0)
    walls = [
        (vector(-w, -height, -d), vector(width, 0, 0)),
        (vector(w, -height, -d), vector(0, 0, depth)),
        (vector(-w, -height, d), vector(0, 0, -depth)),
        (vector(w, -height, d), vector(-width, 0, 0)),
    ]
    panels = [part for corner, across in walls for part in plane(picture, corner, across, tall, faces="outward")]
    top = vector(-w, -height, d), vector(width, 0, 0), vector(0, 0, -depth)
    return [*panels, *plane(picture.mean() * 1.1, *top, faces="outward")]


def turning(panels: list[Panel], phase: float = 0.0) -> list[Panel]:
    """Let panels turn about the origin of their body by the gait of its path, ``phase`` rad ahead of it."""
    return [replace(panel, swing=Swing(vector(0, 0, 0), 0.0, phase, turns=True)) for panel in panels]


def indoor_light(rng: np.random.Generator, least: float = 0.15) -> Lighting:
    """Even light of a room, from dim to bright, with a window or a lamp to one side."""
    level = float(np.exp(rng.uniform(np.log(least), np.log(1.1))))
    side, above = rng.uniform(-0.9, 0.9), rng.uniform(0.2, 0.8)
    to_lamp = np.array([side, -above, -0.6]) / np.linalg.norm([side, above, 0.6])
    share = rng.uniform(0.1, 0.6)
    towards = float(to_lamp[0]), float(to_lamp[1]), float(to_lamp[2])
    return Lighting(level * (1 - share), 1.5 * level * share, towards, 0.5 * level, 0.6 * level, 0.0, 1.0)
