"""Flat textured rectangles (panels) gathered into bodies, and the canvas on which their textures are drawn.

Everything visible is a :class:`Panel`, a :class:`Texture` stretched over a parallelogram in space. A texture is
piecewise constant: each texel is a small square of one light and one coverage, so an edge along a texel border is
sharp at any zoom, and the mean over any rectangle is exact with the sums of :func:`summed_area`. A :class:`Body` is
a rigid group of panels in its own frame; limbs may swing (:class:`Swing`). A :class:`Canvas` fills shapes given in
metres, with antialiased edges, into the texels of a texture.

Frames: x right, y **down**, z forward, in metres. A body's origin lies on the ground under its centre, so the
ground is y = 0, up is negative y, and the body drives or walks along z. Light is linear: 1.0 is a white wall in full
sun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import ceil, floor
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.spatial import ConvexHull

from fate.simulation.arrays import Float32, Float64, Int32
from fate.simulation.art.skeleton import Skeleton

MAX_TEXELS = 128  # along either side: 128 · 128 · 65535 is the largest square whose sum still fits an int32
SUM_SCALE = 65535  # summed_area counts in units of 1/65535: 16 bits, finer than a pixel can resolve

Point: TypeAlias = tuple[float, float]
Light: TypeAlias = float | tuple[float, float]  # one light, or from the shape's first row to its last

_SCANLINES = 8  # per texel row; along a row the coverage is exact
_DISC_CORNERS = 36


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

    With ``turns`` the angle is ``gait phase + phase`` instead, so that the panel can go all the way round like a fan.
    A positive angle turns the panel's ``across`` towards its ``down``.
    """

    pivot: Float64  #: [3] metres, the point that does not move: a hip or a shoulder
    amplitude: float  #: radians
    phase: float = 0.0  #: radians, ahead of the body's gait phase
    turns: bool = False


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
    bone: int | None = None  #: index of the bone that carries it; its origin is then relative to the joint
    spread: tuple[float, float] = (1.0, 1.0)  #: width of what a bone carries, seen from the front and from the side

    def scaled(self, scale: Float64 | float, about: Float64) -> Panel:
        """The same panel in a frame whose origin is ``about`` [3], stretched by ``scale`` (one number, or [3])."""
        swing = self.swing and replace(self.swing, pivot=(self.swing.pivot - about) * scale)
        origin, across, down = (self.origin - about) * scale, self.across * scale, self.down * scale
        return replace(self, origin=origin, across=across, down=down, swing=swing)


@dataclass(frozen=True, eq=False)
class Body:
    """A thing in the street: panels that move together. Sizes are in metres, as drawn.

    In a ``facing`` body (a billboard) every panel lies in the plane z = 0 of the body's frame, and the renderer turns
    that plane about the vertical towards the camera. A billboard may have several views, drawn for directions that are
    spaced evenly: ``panels`` then holds as many panels for each of them, first those of a body that walks away from the
    viewer, then those of one whose heading is turned further to the right. Its bones, if any, move the panels.
    """

    name: str  #: the make or style, for instance ``"saloon"``
    #: the labelled class, such as ``"car"`` or ``"two-wheeler"``; ``"neutral"``: neither a class nor background;
    #: ``"scenery"`` is not labelled
    kind: str
    panels: tuple[Panel, ...]  #: back to front: where two overlap, the later one lies on top
    length: float  #: along z; of a billboard the same as its width, since it turns
    width: float  #: along x
    height: float  #: above the ground
    facing: bool = False
    views: int = 1
    skeleton: Skeleton | None = None


class Canvas:
    """A texture of rows × columns texels that is being drawn.

    ``window`` is (left, top, right, bottom) of the picture in the coordinates of the drawing. With top > bottom the
    drawing counts heights upwards, with left > right the picture is mirrored. ``light`` is the opaque ground at the
    start; without it the canvas is empty (alpha 0).
    """

    def __init__(
        self, window: tuple[float, float, float, float], columns: int, rows: int, light: float | None = None
    ) -> None:
        self.window, self.columns, self.rows = window, columns, rows
        # Light is kept multiplied with alpha while drawing: that is what laying one over another adds up.
        self._alpha = np.full((rows, columns), 0.0 if light is None else 1.0, dtype=np.float32)
        self._light = np.full((rows, columns), light or 0.0, dtype=np.float32)

    def fill(self, polygon: Sequence[Point], light: Light, opacity: float = 1.0) -> None:
        """Lay a simple polygon over what is there."""
        region, coverage = self._cover(polygon)
        if coverage.size == 0:
            return
        shade = self._shade(light, coverage.shape[0])
        coverage = coverage * np.float32(opacity)
        self._light[region] += coverage * (shade - self._light[region])
        self._alpha[region] += coverage * (1.0 - self._alpha[region])

    def keep(self, polygon: Sequence[Point]) -> None:
        """Take everything outside a polygon away."""
        region, coverage = self._cover(polygon)
        mask = np.zeros_like(self._alpha)
        mask[region] = coverage
        self._light, self._alpha = self._light * mask, self._alpha * mask

    def rect(self, x0: float, y0: float, x1: float, y1: float, light: Light, opacity: float = 1.0) -> None:
        """Lay a rectangle between two corners."""
        self.fill(((x0, y0), (x1, y0), (x1, y1), (x0, y1)), light, opacity)

    def pair(self, x0: float, y0: float, x1: float, y1: float, light: Light) -> None:
        """Lay a rectangle, and its mirror image on the other side of x = 0."""
        for side in (-1.0, 1.0):
            self.rect(side * x0, y0, side * x1, y1, light)

    def block(self, x0: float, y0: float, x1: float, y1: float, light: Light) -> None:
        """Lay a rectangle rounded to whole texels (at least one each way): its edges stay sharp at any zoom."""
        left, top, right, bottom = self.window
        across, down = self.columns / (right - left), self.rows / (bottom - top)
        c0, c1 = sorted((round((x0 - left) * across), round((x1 - left) * across)))
        r0, r1 = sorted((round((y0 - top) * down), round((y1 - top) * down)))
        region = (slice(max(r0, 0), max(r0 + 1, r1, 0)), slice(max(c0, 0), max(c0 + 1, c1, 0)))
        rows = self._light[region].shape[0]
        if rows:
            self._light[region] = self._shade(light, rows)
            self._alpha[region] = 1.0

    def disc(self, x: float, y: float, radius: float, light: Light, opacity: float = 1.0) -> None:
        """Lay a circle, as a polygon of its area."""
        step = 2 * np.pi / _DISC_CORNERS
        reach = radius * float(np.sqrt(step / np.sin(step)))
        self.fill(oval(x, y, reach, reach, _DISC_CORNERS), light, opacity)

    def line(self, points: Sequence[Point], thickness: float, light: Light) -> None:
        """Lay a broken line with square ends, as thick as said."""
        for (xa, ya), (xb, yb) in pairwise(points):
            length = float(np.hypot(xb - xa, yb - ya))
            sx, sy = (xb - xa) / length * thickness / 2, (yb - ya) / length * thickness / 2
            x0, y0, x1, y1 = xa - sx / 2, ya - sy / 2, xb + sx / 2, yb + sy / 2  # so that joints close
            self.fill(((x0 + sy, y0 - sx), (x1 + sy, y1 - sx), (x1 - sy, y1 + sx), (x0 - sy, y0 + sx)), light)

    def tint(self, factor: npt.ArrayLike) -> None:
        """Multiply the light by a number or by [rows, columns] of them."""
        self._light *= np.asarray(factor, dtype=np.float32)

    def texture(self) -> Texture:
        """What was drawn."""
        alpha = np.clip(self._alpha, 0.0, 1.0)
        light = np.divide(self._light, alpha, out=np.zeros_like(alpha), where=alpha > 1e-3)
        return Texture(np.clip(light, 0.0, 1.0), alpha)

    def upright(self, z: float = 0.0, emission: float = 0.0) -> Panel:
        """What was drawn in (x, height), as a panel across the way that is seen from both sides."""
        left, top, right, bottom = self.window
        origin, across, down = vector(left, -top, z), vector(right - left, 0, 0), vector(0, top - bottom, 0)
        return Panel(self.texture(), origin, across, down, faces="both", emission=emission)

    def _shade(self, light: Light, rows: int) -> Float32 | np.float32:
        if isinstance(light, tuple):
            return np.linspace(light[0], light[1], rows, dtype=np.float32)[:, None]
        return np.float32(light)

    def _cover(self, polygon: Sequence[Point]) -> tuple[tuple[slice, slice], Float32]:
        left, top, right, bottom = self.window
        across, down = self.columns / (right - left), self.rows / (bottom - top)
        texels = tuple((round((x - left) * across, 4), round((y - top) * down, 4)) for x, y in polygon)
        return _coverage(texels, self.rows, self.columns)


def oval(x: float, y: float, half_width: float, half_height: float, corners: int = 20) -> tuple[Point, ...]:
    """A polygon whose corners lie on an ellipse."""
    angles = np.arange(corners) * (2 * np.pi / corners)
    return tuple((x + half_width * float(np.cos(a)), y + half_height * float(np.sin(a))) for a in angles)


def smooth_noise(rng: np.random.Generator, rows: int, columns: int, cells: tuple[int, int]) -> Float32:
    """Blotches: random numbers within 0..1 at ``cells`` (down, across) knots, blended in between. [rows, columns]"""
    knots = rng.random((cells[0] + 1, cells[1] + 1))
    y, x = np.linspace(0, cells[0], rows), np.linspace(0, cells[1], columns)
    i, j = np.minimum(y.astype(np.int64), cells[0] - 1), np.minimum(x.astype(np.int64), cells[1] - 1)
    v, u = (y - i)[:, None], (x - j)[None, :]
    v, u = v * v * (3 - 2 * v), u * u * (3 - 2 * u)
    upper = knots[i][:, j] * (1 - u) + knots[i][:, j + 1] * u
    lower = knots[i + 1][:, j] * (1 - u) + knots[i + 1][:, j + 1] * u
    return np.asarray(upper * (1 - v) + lower * v, dtype=np.float32)


@lru_cache(maxsize=4096)
def _coverage(polygon: tuple[Point, ...], rows: int, columns: int) -> tuple[tuple[slice, slice], Float32]:
    """Share of each texel inside a polygon given in texels, and the rows and columns it spans.

    Along a scanline the covered length right of an edge is exact; an edge going down counts against one going up,
    so no crossings need sorting. The result is shared: nobody writes into it.
    """
    across, down = [x for x, _ in polygon], [y for _, y in polygon]
    row0, row1 = max(0, floor(min(down))), min(rows, ceil(max(down)))
    col0, col1 = max(0, floor(min(across))), min(columns, ceil(max(across)))
    region = (slice(row0, max(row0, row1)), slice(col0, max(col0, col1)))
    if row1 <= row0 or col1 <= col0:
        return region, np.zeros((max(row1 - row0, 0), max(col1 - col0, 0)), dtype=np.float32)
    y = row0 + (np.arange((row1 - row0) * _SCANLINES) + 0.5) / _SCANLINES
    column = np.arange(col0, col1, dtype=np.float64)
    covered = np.zeros((y.size, column.size))
    # Which scanlines lie between the lower and the upper end of each edge: they follow one another.
    begins = np.searchsorted(y, down).tolist()
    ends = [*zip(polygon, begins, strict=True), (polygon[0], begins[0])]
    for ((xa, ya), i), ((xb, yb), j) in pairwise(ends):
        if i != j:
            crossed = slice(min(i, j), max(i, j))
            if xa == xb:  # upright: the same for all of its scanlines
                share = np.minimum(np.maximum(xa - column, 0.0), 1.0)
            else:
                x = xa + (y[crossed] - ya) * ((xb - xa) / (yb - ya))
                share = np.minimum(np.maximum(x[:, None] - column, 0.0), 1.0)
            covered[crossed] += share if yb > ya else -share
    coverage = np.abs(covered).reshape(row1 - row0, _SCANLINES, column.size).mean(axis=1).astype(np.float32)
    np.clip(coverage, 0.0, 1.0, out=coverage)
    coverage.flags.writeable = False
    return region, coverage


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
