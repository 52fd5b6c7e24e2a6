"""What a simulated street is made of: flat textured rectangles (panels), gathered into bodies.

Everything visible is a :class:`Panel`, a :class:`Texture` stretched over a parallelogram in space. A texture is
piecewise constant: each texel is a little square of one light and one coverage, so an edge along a texel border is
sharp at any zoom, and the mean over any rectangle is exact with the sums of :func:`summed_area`. A :class:`Body` is
a rigid group of panels in a frame of its own; limbs may swing (:class:`Swing`).

Frames: x right, y **down**, z forward, in metres. A body's origin lies on the ground under its centre, so the
ground is y = 0, up is negative y, and z is the way the body drives or walks. Light is linear: 1.0 is a white wall
in full sun.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fate.compiled import compiled
from fate.errors import FateError

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

MAX_TEXELS = 128  # along either side: 128 · 128 · 65535 is the largest square whose sum still fits an int32
SUM_SCALE = 65535  # summed_area counts in units of 1/65535: 16 bits, far below what a pixel can tell apart

Facing = Literal["outward", "both"]
Kind = Literal["car", "pedestrian", "two-wheeler", "scenery"]


@dataclass(frozen=True, eq=False)
class Texture:
    """A picture to be stretched over a panel. Row 0 is the top, column 0 the left; both arrays become read-only.

    Attributes:
        light: float32 [h, w], light given back under full sun, 0 to 1 (not multiplied with ``alpha``).
        alpha: float32 [h, w], coverage, 0 (nothing there) to 1 (hides what lies behind).
    """

    light: Float32
    alpha: Float32

    def __post_init__(self) -> None:
        light = _unit_values(self.light, "light")
        alpha = _unit_values(self.alpha, "alpha")
        if light.shape != alpha.shape:
            raise FateError(
                f"A texture's light {light.shape} and alpha {alpha.shape} differ in shape; give both the same [h, w]."
            )
        object.__setattr__(self, "light", light)
        object.__setattr__(self, "alpha", alpha)

    @property
    def shape(self) -> tuple[int, int]:
        """(h, w) in texels."""
        return self.light.shape[0], self.light.shape[1]

    @property
    def opaque(self) -> bool:
        """Whether it hides everything behind it: every texel has alpha 1."""
        return bool(self.alpha.min() == 1.0)

    def mirrored(self) -> Texture:
        """The same with left and right exchanged."""
        return Texture(self.light[:, ::-1], self.alpha[:, ::-1])


@dataclass(frozen=True, eq=False)
class Swing:
    """A panel that turns like a limb, in its own plane, by ``amplitude · sin(gait phase + phase)``.

    A positive angle turns the panel's ``across`` towards its ``down``.

    Attributes:
        pivot: float64 [3], metres, the point that stays: a hip, a shoulder.
        amplitude: radians.
        phase: radians, ahead of the body's gait phase.
    """

    pivot: Float64
    amplitude: float
    phase: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "pivot", _vector(self.pivot, "swing's pivot"))
        _require_finite(amplitude=self.amplitude, phase=self.phase)


@dataclass(frozen=True, eq=False)
class Panel:
    """A texture over a parallelogram in a body's frame.

    ``origin + u · across + v · down`` is the point at texture coordinates (u, v): u runs along the columns, v along
    the rows, both from 0 to 1.

    ``faces="outward"`` panels are drawn only for a viewer who sees the texture as it is written, ``across`` going
    right and ``down`` going down, not mirrored. With x right, y down and z forward that is the viewer whom
    ``across × down`` points **away** from: ``(across × down) · (origin - viewer) > 0``.

    Attributes:
        texture: what is drawn.
        origin: float64 [3], metres, the outer corner of texel (0, 0).
        across: float64 [3], metres, the vector along a row, from the first column's edge to the last one's.
        down: float64 [3], metres, the vector along a column, from the first row's edge to the last one's.
        faces: seen from one side or from both.
        emission: light given off whatever the sun does: ``texture.light · emission`` is added.
        flicker_hz: frequency of the emission's flicker; 0 for a steady lamp.
        flicker_depth: share of the emission that flickers, 0 to 1.
        swing: how the panel moves with the gait, if it does.
    """

    texture: Texture
    origin: Float64
    across: Float64
    down: Float64
    faces: Facing = "outward"
    emission: float = 0.0
    flicker_hz: float = 0.0
    flicker_depth: float = 0.0
    swing: Swing | None = None

    def __post_init__(self) -> None:
        for name in ("origin", "across", "down"):
            object.__setattr__(self, name, _vector(getattr(self, name), f"panel's {name}"))
        if not self.area > 0.0:
            raise FateError(
                f"A panel along {self.across.tolist()} and {self.down.tolist()} m has no area; "
                "give two vectors that are not parallel."
            )
        if self.faces not in ("outward", "both"):
            raise FateError(f"A panel faces 'outward' or 'both', not {self.faces!r}.")
        _require_finite(emission=self.emission, flicker_hz=self.flicker_hz, flicker_depth=self.flicker_depth)
        if self.emission < 0.0 or self.flicker_hz < 0.0 or not 0.0 <= self.flicker_depth <= 1.0:
            raise FateError(
                f"A panel with emission {self.emission}, flicker_hz {self.flicker_hz} and flicker_depth "
                f"{self.flicker_depth} cannot be; give emission ≥ 0, frequency ≥ 0 and depth within 0..1."
            )

    @property
    def area(self) -> float:
        """m² of the whole parallelogram, whatever the alpha."""
        (ax, ay, az), (bx, by, bz) = self.across.tolist(), self.down.tolist()
        return math.hypot(ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx)

    def scaled(self, scale: Float64 | float, about: npt.ArrayLike = (0.0, 0.0, 0.0)) -> Panel:
        """The same panel in a frame whose origin is ``about`` [3] of this one, stretched by ``scale`` (or one for each
        axis, [3]); all else stays, and a swing turns about its moved pivot."""
        corner = np.asarray(about, dtype=np.float64)
        swing = self.swing and replace(self.swing, pivot=(self.swing.pivot - corner) * scale)
        return replace(
            self,
            origin=(self.origin - corner) * scale,
            across=self.across * scale,
            down=self.down * scale,
            swing=swing,
        )

    def at_gait(self, phase: float) -> tuple[Float64, Float64, Float64]:
        """(origin, across, down) at a gait phase in radians; the resting ones where nothing swings."""
        if self.swing is None:
            return self.origin, self.across, self.down
        angle = self.swing.amplitude * np.sin(phase + self.swing.phase)
        axis = np.cross(self.across, self.down)
        axis = axis / np.linalg.norm(axis)
        pivot = self.swing.pivot
        return (
            pivot + _turned(self.origin - pivot, axis, angle),
            _turned(self.across, axis, angle),
            _turned(self.down, axis, angle),
        )

    def points(self, coordinates: npt.ArrayLike, phase: float = 0.0) -> Float64:
        """Where texture coordinates [n, 2] lie in the body's frame: float64 [n, 3], metres.

        Without a swing the phase does not matter; with one, ``phase=0`` is the gait's start, not the resting pose.
        """
        places = np.asarray(coordinates, dtype=np.float64).reshape(-1, 2)
        origin, across, down = self.at_gait(phase)
        return np.asarray(origin + places[:, :1] * across + places[:, 1:] * down, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Body:
    """A thing in the street: panels that move together.

    Attributes:
        name: which make it is, for instance ``"saloon"``.
        kind: the class it is labelled as; scenery is not labelled.
        panels: back to front: where two that face the viewer overlap, the later one lies on top.
        length: metres along z, as drawn; of a billboard the same as its width, since it turns.
        width: metres along x, as drawn.
        height: metres above the ground, as drawn.
        facing: a billboard: every panel lies in the plane z = 0 of the body's frame, and the renderer turns that
            plane about the vertical towards the camera.
    """

    name: str
    kind: Kind
    panels: tuple[Panel, ...]
    length: float
    width: float
    height: float
    facing: bool = False

    def __post_init__(self) -> None:
        if not self.panels:
            raise FateError(f"The body {self.name!r} has no panels; give at least one.")
        _require_finite(length=self.length, width=self.width, height=self.height)
        if min(self.length, self.width, self.height) < 0.0:
            raise FateError(
                f"The body {self.name!r} measures {self.length} × {self.width} × {self.height} m; give sizes ≥ 0."
            )


def summed_area(values: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """The summed-area table of a texture plane, exact.

    Values are rounded to 1/65535 once; from there every sum is an exact integer, so the sum over texels
    ``[y0, y1) × [x0, x1)`` is ``s[y1, x1] - s[y0, x1] - s[y1, x0] + s[y0, x0]`` with nothing lost.

    Args:
        values: [h, w] within 0..1, at most 128 × 128.

    Returns:
        int32 [h + 1, w + 1] in units of 1/65535; the first row and column are 0.
    """
    plane = _unit_values(values, "values")
    counts = np.rint(plane.astype(np.float64) * SUM_SCALE).astype(np.int64)
    table = np.zeros((plane.shape[0] + 1, plane.shape[1] + 1), dtype=np.int32)
    table[1:, 1:] = counts.cumsum(axis=0).cumsum(axis=1)
    return table


def outline(shape: Texture | Panel) -> Float32:
    """The convex hull of what is solid (alpha ≥ 0.5): the corners a projected box has to enclose.

    Returns:
        float32 [n, 2] of (u, v) texture coordinates within 0..1, in turning order without repeats; [0, 2] where
        nothing is solid.
    """
    texture = shape.texture if isinstance(shape, Panel) else shape
    solid = texture.alpha >= 0.5
    rows = np.flatnonzero(solid.any(axis=1))
    if rows.size == 0:
        return np.zeros((0, 2), dtype=np.float32)
    height, width = texture.shape
    first = solid[rows].argmax(axis=1)
    last = width - solid[rows, ::-1].argmax(axis=1)
    # The hull's corners are ends of rows: the upper and the lower corner of each row's solid span are enough.
    x, y = np.concatenate([first, first, last, last]), np.concatenate([rows, rows + 1, rows, rows + 1])
    order = np.lexsort((y, x))
    points = np.stack([x[order], y[order]], axis=1).astype(np.int64)
    return np.asarray(_convex_hull(points) / (width, height), dtype=np.float32)


@compiled
def _convex_hull(points: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Monotone chain over points [n, 2] sorted by (x, y); collinear points are left out."""
    count = len(points)
    hull = np.empty((2 * count + 2, 2), np.int64)
    used = 0
    for chain in range(2):  # along the lower side, and back along the upper one
        begin = used
        for step in range(count):
            point = points[step] if chain == 0 else points[count - 1 - step]
            while used - begin >= 2:
                a, b = hull[used - 2], hull[used - 1]
                if (b[0] - a[0]) * (point[1] - a[1]) - (b[1] - a[1]) * (point[0] - a[0]) > 0:
                    break
                used -= 1
            hull[used] = point
            used += 1
        used -= 1  # the last point of a chain is the first of the next
    return hull[:used].astype(np.float64)


def _turned(vector: Float64, axis: Float64, angle: float) -> Float64:
    """A vector turned about a unit axis (Rodrigues)."""
    along = axis * np.dot(axis, vector)
    return np.asarray(
        along + np.cos(angle) * (vector - along) + np.sin(angle) * np.cross(axis, vector), dtype=np.float64
    )


def _unit_values(values: npt.ArrayLike, name: str) -> Float32:
    """A read-only float32 [h, w] copy, checked to be finite, within 0..1 and of a size the sums can hold."""
    plane = np.array(values, dtype=np.float32, order="C")
    if plane.ndim != 2 or not all(1 <= side <= MAX_TEXELS for side in plane.shape):
        raise FateError(
            f"A texture's {name} has the shape {plane.shape}; give [h, w] with 1 to {MAX_TEXELS} texels each."
        )
    low, high = float(plane.min()), float(plane.max())
    if not (low >= 0.0 and high <= 1.0):  # also catches NaN
        raise FateError(f"A texture's {name} runs from {low} to {high}; give numbers within 0..1.")
    plane.flags.writeable = False
    return plane


def _vector(values: npt.ArrayLike, name: str) -> Float64:
    vector = np.array(values, dtype=np.float64)
    if vector.shape != (3,) or not np.isfinite(vector).all():
        raise FateError(f"A {name} is {np.asarray(values).tolist()}; give three finite numbers in metres.")
    vector.flags.writeable = False
    return vector


def _require_finite(**numbers: float) -> None:
    for name, number in numbers.items():
        if not np.isfinite(number):
            raise FateError(f"The {name} is {number}; give a finite number.")
