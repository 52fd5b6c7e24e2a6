"""What a simulated street is made of: flat textured rectangles (panels), gathered into bodies.

Everything visible is a :class:`Panel`, a :class:`Texture` stretched over a parallelogram in space. A texture is
piecewise constant: each texel is a small square of one light and one coverage, so an edge along a texel border is
sharp at any zoom, and the mean over any rectangle is exact with the sums of :func:`summed_area`. A :class:`Body` is
a rigid group of panels in its own frame; limbs may swing (:class:`Swing`).

Frames: x right, y **down**, z forward, in metres. A body's origin lies on the ground under its centre, so the
ground is y = 0, up is negative y, and the body drives or walks along z. Light is linear: 1.0 is a white wall in full
sun.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.spatial import ConvexHull

from fate.simulation.arrays import Float32, Float64, Int32

MAX_TEXELS = 128  # along either side: 128 · 128 · 65535 is the largest square whose sum still fits an int32
SUM_SCALE = 65535  # summed_area counts in units of 1/65535: 16 bits, finer than a pixel can resolve


def vector(x: float, y: float, z: float) -> Float64:
    """A point or a direction [3] in metres."""
    return np.array([x, y, z], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Texture:
    """A picture to be stretched over a panel, at most 128 texels a side. Row 0 is the top, column 0 the left."""

    light: Float32  #: [h, w], light reflected in full sun, 0 to 1 (not multiplied by ``alpha``)
    alpha: Float32  #: [h, w], coverage, 0 (empty) to 1 (hides what lies behind)

    @staticmethod
    def plain(light: npt.ArrayLike) -> Texture:
        """An opaque texture from the light [h, w] of its texels, or of one texel."""
        texels = np.atleast_2d(np.asarray(light, dtype=np.float32))
        return Texture(texels, np.ones_like(texels))

    @staticmethod
    def stain(light: float, alpha: npt.ArrayLike) -> Texture:
        """A texture of one light and the coverage ``alpha`` [h, w]."""
        coverage = np.asarray(alpha, dtype=np.float32)
        return Texture(np.full_like(coverage, light), coverage)

    @property
    def shape(self) -> tuple[int, int]:
        """(h, w) in texels."""
        return self.light.shape[0], self.light.shape[1]

    @property
    def opaque(self) -> bool:
        """Whether every texel has alpha 1."""
        return bool(self.alpha.min() == 1.0)

    def mirrored(self) -> Texture:
        """The same texture with left and right exchanged."""
        return Texture(self.light[:, ::-1], self.alpha[:, ::-1])


@dataclass(frozen=True, eq=False)
class Swing:
    """A panel that turns like a limb, in its own plane, by ``amplitude · sin(gait phase + phase)``.

    A positive angle turns the panel's ``across`` towards its ``down``.
    """

    pivot: Float64  #: [3] metres, the point that does not move: a hip or a shoulder
    amplitude: float  #: radians
    phase: float = 0.0  #: radians, ahead of the body's gait phase


@dataclass(frozen=True, eq=False)
class Panel:
    """A texture over a parallelogram in a body's frame.

    ``origin + u · across + v · down`` is the point at texture coordinates (u, v): u runs along the columns, v along
    the rows, both from 0 to 1.

    ``faces="outward"`` panels are drawn only for a viewer who sees the texture as it is written, ``across`` going
    right and ``down`` going down, not mirrored. With x right, y down and z forward that is the viewer whom
    ``across × down`` points **away** from: ``(across × down) · (origin - viewer) > 0``.
    """

    texture: Texture
    origin: Float64  #: [3] metres, the outer corner of texel (0, 0)
    across: Float64  #: [3] metres, the vector along a row, from the first column's edge to the last one's
    down: Float64  #: [3] metres, the vector along a column, from the first row's edge to the last one's
    faces: Literal["outward", "both"] = "outward"
    emission: float = 0.0  #: light the panel emits: ``texture.light · emission`` is added
    flicker_hz: float = 0.0  #: frequency of the emission's flicker; 0 for a steady lamp
    flicker_depth: float = 0.0  #: share of the emission that flickers, 0 to 1
    swing: Swing | None = None  #: how the panel moves with the gait

    def scaled(self, scale: Float64 | float, about: Float64) -> Panel:
        """The same panel in a frame whose origin is ``about`` [3], stretched by ``scale`` (one number, or [3])."""
        swing = self.swing and replace(self.swing, pivot=(self.swing.pivot - about) * scale)
        origin, across, down = (self.origin - about) * scale, self.across * scale, self.down * scale
        return replace(self, origin=origin, across=across, down=down, swing=swing)


@dataclass(frozen=True, eq=False)
class Body:
    """A thing in the street: panels that move together. Sizes are in metres, as drawn.

    In a ``facing`` body (a billboard) every panel lies in the plane z = 0 of the body's frame, and the renderer turns
    that plane about the vertical towards the camera.
    """

    name: str  #: the make or style, for instance ``"saloon"``
    kind: Literal["car", "pedestrian", "two-wheeler", "scenery"]  #: the labelled class; scenery is not labelled
    panels: tuple[Panel, ...]  #: back to front: where two overlap, the later one lies on top
    length: float  #: along z; of a billboard the same as its width, since it turns
    width: float  #: along x
    height: float  #: above the ground
    facing: bool = False


def summed_area(values: Float32) -> Int32:
    """The exact summed-area table [h + 1, w + 1] of values [h, w] within 0..1, in units of 1/65535.

    Values are rounded to 1/65535 once; from there every sum is an exact integer, so the sum over texels
    ``[y0, y1) × [x0, x1)`` is ``s[y1, x1] - s[y0, x1] - s[y1, x0] + s[y0, x0]`` with nothing lost.
    """
    counts = np.rint(values.astype(np.float64) * SUM_SCALE).astype(np.int64)
    return np.pad(counts.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0))).astype(np.int32)


def outline(texture: Texture) -> Float32:
    """Return the convex hull of all solid texels (alpha ≥ 0.5), (u, v) [n, 2] in order; [0, 2] if there is none."""
    solid = texture.alpha >= 0.5
    rows = np.flatnonzero(solid.any(axis=1))
    if rows.size == 0:
        return np.zeros((0, 2), dtype=np.float32)
    height, width = texture.shape
    first = solid[rows].argmax(axis=1)
    last = width - solid[rows, ::-1].argmax(axis=1)
    # The hull's corners are ends of rows: the upper and the lower corner of each row's solid span are enough.
    x, y = np.concatenate([first, first, last, last]), np.concatenate([rows, rows + 1, rows, rows + 1])
    points = np.stack([x, y], axis=1)
    return np.asarray(points[ConvexHull(points).vertices] / (width, height), dtype=np.float32)
