"""Who has to look at what, and how often: surfaces per tile, and each tile's time step.

The picture is cut into tiles. Pixels do not know of each other, so every tile keeps its own time: a tile of quiet sky
takes a few steps in a tenth of a second, one with a lamp post rushing by takes hundreds. A tile's step is chosen so
that nothing in it moves by more than half a pixel; the march (see ``march.py``) shortens it further where a pixel would
change by more than a threshold.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.simulation.surfaces import KNOT_US, Atlas, Surfaces

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


class Plan(NamedTuple):
    """What each of N tiles (row by row) has to draw in one stretch of time."""

    first: NDArray[np.int64]  #: [N + 1] where a tile's surfaces begin in ``ids``
    ids: NDArray[np.int32]  #: surfaces, nearest first
    step_us: NDArray[np.float32]  #: [N] longest time step


@compiled
def motion(
    before: NDArray[np.float32], after: NDArray[np.float32], x: float, y: float, flat_u: bool, flat_v: bool
) -> float:
    """How fast a surface moves at the image point (x, y), pixels per knot, from its matrices at two knots.

    Along a direction in which the texture does not change (``flat_u``, ``flat_v``) motion cannot be seen.
    """
    w = before[6] * x + before[7] * y + before[8]
    if w <= 1e-9:
        return 0.0
    inverse = 1.0 / w
    u = (before[0] * x + before[1] * y + before[2]) * inverse
    v = (before[3] * x + before[4] * y + before[5]) * inverse
    rate_w = (after[6] - before[6]) * x + (after[7] - before[7]) * y + after[8] - before[8]
    rate_u = ((after[0] - before[0]) * x + (after[1] - before[1]) * y + after[2] - before[2] - u * rate_w) * inverse
    rate_v = ((after[3] - before[3]) * x + (after[4] - before[4]) * y + after[5] - before[5] - v * rate_w) * inverse
    ux, uy = (before[0] - u * before[6]) * inverse, (before[1] - u * before[7]) * inverse
    vx, vy = (before[3] - v * before[6]) * inverse, (before[4] - v * before[7]) * inverse
    along_u = 0.0 if flat_u else abs(rate_u) / max(math.sqrt(ux * ux + uy * uy), 1e-12)
    along_v = 0.0 if flat_v else abs(rate_v) / max(math.sqrt(vx * vx + vy * vy), 1e-12)
    return max(along_u, along_v)


@compiled
def tile_motion(
    surfaces: Surfaces, k: int, x1: float, y1: float, x2: float, y2: float, flat_u: bool, flat_v: bool
) -> float:
    """The fastest motion of surface k within a rectangle of the picture, pixels per µs."""
    fastest = 0.0
    last = surfaces.maps.shape[0] - 1
    for knot in (0, last // 2, last - 1):
        before, after = surfaces.maps[knot, k], surfaces.maps[knot + 1, k]
        for x in (x1, x2):
            for y in (y1, y2):
                fastest = max(fastest, motion(before, after, x, y, flat_u, flat_v))
        middle = motion(before, after, 0.5 * (x1 + x2), 0.5 * (y1 + y2), flat_u, flat_v)
        fastest = max(fastest, middle)
    return fastest / KNOT_US


@compiled
def make_plan(surfaces: Surfaces, atlas: Atlas, height: int, width: int) -> Plan:
    """Lists the surfaces that reach each tile during the stretch, and the step each tile can take."""
    rows, columns = (height + TILE - 1) // TILE, (width + TILE - 1) // TILE
    count = surfaces.maps.shape[1]
    first = np.zeros(rows * columns + 1, np.int64)
    ids = np.empty(rows * columns * max(count, 1), np.int32)
    step = np.empty(rows * columns, np.float32)
    used = 0
    for row in range(rows):
        top, bottom = row * TILE + 0.5, min((row + 1) * TILE, height) - 0.5
        for column in range(columns):
            left, right = column * TILE + 0.5, min((column + 1) * TILE, width) - 0.5
            tile = row * columns + column
            fastest = 0.0
            longest = MAX_STEP_US
            for k in range(count):
                x1, y1 = max(surfaces.bounds[k, 0], left), max(surfaces.bounds[k, 1], top)
                x2, y2 = min(surfaces.bounds[k, 2], right), min(surfaces.bounds[k, 3], bottom)
                if x1 > x2 or y1 > y2:
                    continue
                ids[used] = k
                used += 1
                texture = surfaces.texture[k]
                flat_u = atlas.width[texture] == 1 and atlas.opaque[texture]
                flat_v = atlas.height[texture] == 1 and atlas.opaque[texture]
                fastest = max(fastest, tile_motion(surfaces, k, x1, y1, x2, y2, flat_u, flat_v))
                if surfaces.depth[k] > 0 and surfaces.glow[k] > 0:
                    longest = FLICKER_STEP_US
            first[tile + 1] = used
            step[tile] = max(min(longest, MAX_MOTION / max(fastest, 1e-9)), MIN_STEP_US)
    return Plan(first, ids[:used].copy(), step)
