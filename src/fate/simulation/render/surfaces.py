"""Everything that can be seen in one stretch of time, as arrays: flat textured rectangles seen through a pinhole.

A rectangle is a corner P and two edge vectors A (across) and D (down), in camera coordinates (x right, y down,
z forward). The viewing ray through a pixel meets its plane at texture coordinates (u, v), both 0 to 1 inside:

    u = U / W,  v = V / W,  (U, V, W) = M (column, row, 1),        depth = |n·P| / W,  n = A × D

M is a 3 × 3 matrix per rectangle and time. While nothing turns it is linear in time; it is kept at *knots* a few
milliseconds apart and interpolated between them, and so is the light that falls on the rectangle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.simulation.arrays import Float32, Float64, Int32, Int64
from fate.simulation.art.panels import Texture, summed_area

#: Distance between knots, µs.
KNOT_US = 10_000
#: A rectangle is clipped at this depth, metres.
NEAR = 0.05
#: The lens blurs a point to about this standard deviation, in pixels.
BLUR_SIGMA = 0.7
#: The box filter with the same variance is this wide, in pixels.
BLUR_WIDTH = float(np.sqrt(12.0) * BLUR_SIGMA)


class Pinhole(NamedTuple):
    """A camera without distortion."""

    height: int  #: rows
    width: int  #: columns
    focal: float  #: pixels
    centre_x: float  #: pixels, 0 is the left edge of the first column
    centre_y: float  #: pixels, 0 is the upper edge of the first row


class Atlas(NamedTuple):
    """The summed-area tables of all textures, concatenated; a texture is a place in them."""

    light: Int32  #: light × alpha
    alpha: Int32
    offset: Int64  #: [textures] first entry of each
    height: Int32  #: [textures] texels
    width: Int32  #: [textures] texels
    opaque: NDArray[np.bool_]  #: [textures] alpha is 1 everywhere

    @staticmethod
    def build(textures: Iterable[Texture]) -> Atlas:
        """Tables of ``textures``, in their order."""
        listed = list(textures)
        light = [summed_area(texture.light * texture.alpha).ravel() for texture in listed]
        alpha = [summed_area(texture.alpha).ravel() for texture in listed]
        sizes = [part.size for part in light]
        return Atlas(
            light=np.concatenate([*light, np.zeros(1, np.int32)]),
            alpha=np.concatenate([*alpha, np.zeros(1, np.int32)]),
            offset=np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64) if sizes else np.zeros(0, np.int64),
            height=np.array([texture.light.shape[0] for texture in listed], np.int32),
            width=np.array([texture.light.shape[1] for texture in listed], np.int32),
            opaque=np.array([texture.opaque for texture in listed], np.bool_),
        )


class Surfaces(NamedTuple):
    """K rectangles over one stretch of time, nearest first; R knots, ``KNOT_US`` apart from the stretch's start."""

    maps: Float32  #: [R, K, 11] the matrix M by rows; light on it, 1 = full sun; light of the haze before it
    bounds: Float32  #: [K, 4] columns x1, rows y1, x2, y2 it stays within, blur included
    texture: Int32  #: [K] place in the atlas
    glow: Float32  #: [K] light it gives off itself, for texture light 1
    flicker: Float32  #: [K] of the glow, rad/µs
    depth: Float32  #: [K] of the flicker, 0 to 1
    phase: Float32  #: [K] of the flicker at the stretch's start, rad
    owner: Int32  #: [K] the object it belongs to; -1: none
    sky: Float32  #: [R, 3] row of the horizon, light there, light one focal length above it
    focal: float  #: pixels


def matrices(corner: Float64, across: Float64, down: Float64, pinhole: Pinhole) -> tuple[Float32, Float64]:
    """The matrices M of rectangles, and on which side of each the camera is.

    Args:
        corner, across, down: [R, K, 3] P, A and D in camera coordinates, metres.
        pinhole: turns pixels into rays.

    Returns:
        [R, K, 9] matrices, scaled alike at all knots; and [R, K] n·P in metres, positive where ``across`` is seen
        going right with ``down`` going down.
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
