"""The tiles of the picture: which surfaces reach each of them, and how long its time steps may be.

The picture is cut into tiles. Pixels are independent, so every tile has its own time steps: a tile of quiet sky
takes a few steps in a tenth of a second, one with a lamp post rushing by takes hundreds. A tile's step is chosen so
that nothing in it moves by more than half a pixel; ``pixels_cpu.py`` shortens it further where a pixel would change
by more than a threshold.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fate.compiled import compiled
from fate.simulation.arrays import Float32, Int32, Int64
from fate.simulation.render.surfaces import KNOT_US, Atlas, Surfaces

#: Rows and columns of a tile.
TILE = 8
#: Nothing moves further than this in a step, pixels.
MAX_MOTION = 0.5
#: The longest step, µs: light-dependent filters and leaks are taken as even over a step.
MAX_STEP_US = 10_000.0
#: The longest step where a lamp flickers, µs.
FLICKER_STEP_US = 500.0
#: The shortest step, µs.
MIN_STEP_US = 25.0


class TileSchedule(NamedTuple):
    """What each of N tiles (row by row) has to draw in one stretch of time."""

    first: Int64  #: [N + 1] where a tile's surfaces begin in ``ids``
    ids: Int32  #: surfaces, nearest first
    step_us: Float32  #: [N] longest time step


@compiled
def tile_motion(maps: Float32, k: int, x1: float, y1: float, x2: float, y2: float, flat_u: bool,
                flat_v: bool) -> float:  # fmt: skip
    """The fastest motion of surface k within a rectangle of the picture, pixels per µs.

    It is looked for at the corners and in the middle, after three of the knots. The speed at a point is that of lines
    of equal u and of equal v, at right angles to them. Along a direction in which the texture does not change
    (``flat_u``, ``flat_v``) motion cannot be seen.
    """
    fastest = 0.0
    last = maps.shape[0] - 1
    for knot in (0, last // 2, last - 1):
        for corner in range(5):
            x = 0.5 * (x1 + x2) if corner == 4 else (x2 if corner & 1 else x1)
            y = 0.5 * (y1 + y2) if corner == 4 else (y2 if corner & 2 else y1)
            w = maps[knot, k, 6] * x + maps[knot, k, 7] * y + maps[knot, k, 8]
            if w <= 1e-9:
                continue
            u = (maps[knot, k, 0] * x + maps[knot, k, 1] * y + maps[knot, k, 2]) / w
            v = (maps[knot, k, 3] * x + maps[knot, k, 4] * y + maps[knot, k, 5]) / w
            next_w = maps[knot + 1, k, 6] * x + maps[knot + 1, k, 7] * y + maps[knot + 1, k, 8]
            next_u = maps[knot + 1, k, 0] * x + maps[knot + 1, k, 1] * y + maps[knot + 1, k, 2]
            next_v = maps[knot + 1, k, 3] * x + maps[knot + 1, k, 4] * y + maps[knot + 1, k, 5]
            # times w throughout: it cancels
            ux, uy = maps[knot, k, 0] - u * maps[knot, k, 6], maps[knot, k, 1] - u * maps[knot, k, 7]
            vx, vy = maps[knot, k, 3] - v * maps[knot, k, 6], maps[knot, k, 4] - v * maps[knot, k, 7]
            steep_u, steep_v = max(math.sqrt(ux * ux + uy * uy), 1e-12), max(math.sqrt(vx * vx + vy * vy), 1e-12)
            # a flat surface is still seen to move by its own borders, where they are less than a tile away
            if not flat_u or min(u, 1.0 - u) * w < TILE * steep_u:
                fastest = max(fastest, abs(next_u - u * next_w) / steep_u)
            if not flat_v or min(v, 1.0 - v) * w < TILE * steep_v:
                fastest = max(fastest, abs(next_v - v * next_w) / steep_v)
    return fastest / KNOT_US


@compiled
def tiles_of(bounds: Float32, height: int, width: int) -> tuple[int, int, int, int]:
    """First and past-last row and column of tiles that a rectangle of the picture reaches."""
    rows, columns = (height + TILE - 1) // TILE, (width + TILE - 1) // TILE
    if bounds[0] >= width or bounds[1] >= height or bounds[2] <= 0 or bounds[3] <= 0:
        return 0, 0, 0, 0
    top, left = int(max(bounds[1], 0.0)) // TILE, int(max(bounds[0], 0.0)) // TILE
    bottom, right = int(min(bounds[3], height - 1.0)) // TILE, int(min(bounds[2], width - 1.0)) // TILE
    return top, min(bottom + 1, rows), left, min(right + 1, columns)


@compiled
def schedule_tiles(surfaces: Surfaces, atlas: Atlas, height: int, width: int) -> TileSchedule:
    """Lists the surfaces that reach each tile during the stretch, and the step each tile can take."""
    rows, columns = (height + TILE - 1) // TILE, (width + TILE - 1) // TILE
    count = surfaces.maps.shape[1]
    first = np.zeros(rows * columns + 1, np.int64)
    for k in range(count):
        top, bottom, left, right = tiles_of(surfaces.bounds[k], height, width)
        for row in range(top, bottom):
            for column in range(left, right):
                first[row * columns + column + 1] += 1
    first = np.cumsum(first)
    ids = np.empty(first[-1], np.int32)
    used = first[:-1].copy()
    fastest = np.zeros(rows * columns)
    longest = np.full(rows * columns, MAX_STEP_US)
    for k in range(count):
        top, bottom, left, right = tiles_of(surfaces.bounds[k], height, width)
        _, columns_across, rows_down, opaque = atlas.slots[surfaces.texture[k]]
        flat_u, flat_v = columns_across == 1 and opaque == 1, rows_down == 1 and opaque == 1
        flickers = surfaces.lamps[k, 2] > 0 and surfaces.lamps[k, 0] > 0
        x1, y1, x2, y2 = surfaces.bounds[k]
        for row in range(top, bottom):
            for column in range(left, right):
                tile = row * columns + column
                ids[used[tile]] = k
                used[tile] += 1
                near_x, far_x = max(x1, column * TILE), min(x2, (column + 1) * TILE)
                near_y, far_y = max(y1, row * TILE), min(y2, (row + 1) * TILE)
                speed = tile_motion(surfaces.maps, k, near_x, near_y, far_x, far_y, flat_u, flat_v)
                fastest[tile] = max(fastest[tile], speed)
                if flickers:
                    longest[tile] = FLICKER_STEP_US
    step = np.empty(rows * columns, np.float32)
    for tile in range(rows * columns):
        step[tile] = max(min(longest[tile], MAX_MOTION / max(fastest[tile], 1e-9)), MIN_STEP_US)
    return TileSchedule(first, ids, step)
