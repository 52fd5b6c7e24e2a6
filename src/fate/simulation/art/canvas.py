"""A small canvas: shapes in metres, filled with antialiased edges into the texels of a texture.

Bodies are drawn from the same outlines thousands of times in other paints, so the coverage of a shape is computed
once and remembered; laying a light over it is then a few array operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fate.simulation.arrays import Float32
from fate.simulation.art.panels import Panel, Texture, vector

Point: TypeAlias = tuple[float, float]
Light: TypeAlias = float | tuple[float, float]  # one light, or from the shape's first row to its last

_SCANLINES = 8  # per texel row; along a row the coverage is exact
_DISC_CORNERS = 36


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
    points = np.array(polygon, dtype=np.float64)
    row0, row1 = max(0, int(np.floor(points[:, 1].min()))), min(rows, int(np.ceil(points[:, 1].max())))
    col0, col1 = max(0, int(np.floor(points[:, 0].min()))), min(columns, int(np.ceil(points[:, 0].max())))
    region = (slice(row0, max(row0, row1)), slice(col0, max(col0, col1)))
    if row1 <= row0 or col1 <= col0:
        return region, np.zeros((max(row1 - row0, 0), max(col1 - col0, 0)), dtype=np.float32)
    y = row0 + (np.arange((row1 - row0) * _SCANLINES) + 0.5) / _SCANLINES
    column = np.arange(col0, col1)
    covered = np.zeros((y.size, column.size))
    for (xa, ya), (xb, yb) in zip(points, np.roll(points, -1, axis=0), strict=True):
        crossed = np.flatnonzero((y >= min(ya, yb)) & (y < max(ya, yb)))
        if crossed.size:
            x = xa + (y[crossed] - ya) * ((xb - xa) / (yb - ya))
            covered[crossed] += np.sign(yb - ya) * np.clip(x[:, None] - column, 0.0, 1.0)
    coverage = np.abs(covered).reshape(row1 - row0, _SCANLINES, column.size).mean(axis=1).astype(np.float32)
    np.clip(coverage, 0.0, 1.0, out=coverage)
    coverage.flags.writeable = False
    return region, coverage
