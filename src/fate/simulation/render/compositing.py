"""The light that reaches a pixel: surfaces filtered exactly and laid over each other, nearest first.

The lens blur and the pixel's own area are one box filter, ``BLUR_WIDTH`` pixels wide. On a surface it covers a box of
du × dv of the texture (the blur's standard deviation carried over by the map's derivatives), and a summed-area table
gives the mean over any box, so an edge that moves by a hundredth of a pixel changes the light by the right amount:
no aliasing, no false events.
"""

from __future__ import annotations

import math

import numpy as np

from fate.compiled import compiled, inlined
from fate.simulation.arrays import Float32, Int32, Int64
from fate.simulation.render.surfaces import BLUR_WIDTH, KNOT_US, Atlas, Surfaces
from fate.simulation.render.tiles import TILE, TileSchedule

#: Less light than this share, seen through surfaces on top of each other, is left out.
MIN_CLEAR = np.float32(0.001)
#: Texture values are stored in units of one 65535th.
UNIT = np.float32(1.0 / 65535.0)
HALF_BLUR = np.float32(0.5 * BLUR_WIDTH)
ZERO, QUARTER, HALF, ONE, TINY = np.float32(0.0), np.float32(0.25), np.float32(0.5), np.float32(1.0), np.float32(1e-9)


@compiled
def maps_at(surfaces: Surfaces, ids: Int32, t_us: float, maps: Float32) -> None:
    """The matrices of surfaces ``ids`` at ``t_us`` after the stretch's start, into ``maps`` [len(ids), 11].

    Column 9 is the light that falls on the surface or comes from it, column 10 the light of the haze before it.
    """
    position = t_us / KNOT_US
    knot = min(int(position), surfaces.maps.shape[0] - 2)
    share = np.float32(position - knot)
    for i in range(len(ids)):
        k = ids[i]
        for j in range(11):
            first = surfaces.maps[knot, k, j]
            maps[i, j] = first + share * (surfaces.maps[knot + 1, k, j] - first)
        glow, flicker, depth, phase = surfaces.lamps[k]
        if depth > 0:
            glow *= 1 + depth * math.cos(flicker * t_us + phase)
        maps[i, 9] += glow


@compiled
def keep_visible(top: int, left: int, rows: int, columns: int, maps: Float32, slots: Int64,
              kept: Float32, kept_slots: Int64) -> int:  # fmt: skip
    """Copy the surfaces that reach into a part of the picture, up to one that covers all of it; return their number.

    A surface whose u or v lies beyond the same border at all four corners of the part cannot be seen in it.
    """
    count = 0
    for i in range(len(maps)):
        below_u, above_u, below_v, above_v, inside, behind = 0, 0, 0, 0, 0, 0
        for corner in range(4):
            x = np.float32(left + (columns if corner & 1 else 0))
            y = np.float32(top + (rows if corner & 2 else 0))
            w = maps[i, 6] * x + maps[i, 7] * y + maps[i, 8]
            if w <= TINY:
                behind += 1
                continue
            inverse = ONE / w
            u = (maps[i, 0] * x + maps[i, 1] * y + maps[i, 2]) * inverse
            v = (maps[i, 3] * x + maps[i, 4] * y + maps[i, 5]) * inverse
            du = HALF_BLUR * (abs(maps[i, 0] - u * maps[i, 6]) + abs(maps[i, 1] - u * maps[i, 7])) * inverse
            dv = HALF_BLUR * (abs(maps[i, 3] - v * maps[i, 6]) + abs(maps[i, 4] - v * maps[i, 7])) * inverse
            below_u += u + du <= ZERO
            above_u += u - du >= ONE
            below_v += v + dv <= ZERO
            above_v += v - dv >= ONE
            inside += u - du >= ZERO and u + du <= ONE and v - dv >= ZERO and v + dv <= ONE
        if behind == 4 or (behind == 0 and max(below_u, above_u, below_v, above_v) == 4):
            continue
        for j in range(11):  # a loop compiles in a tenth of the time of kept[count] = maps[i]
            kept[count, j] = maps[i, j]
        for j in range(4):
            kept_slots[count, j] = slots[i, j]
        count += 1
        if inside == 4 and slots[i, 3]:
            break
    return count


@inlined
def row_sum(table: Int32, line: int, i0: int, i1: int, fu0: np.float32, fu1: np.float32) -> np.float32:
    """The sum along one line of a summed-area table between two fractional columns.

    Integers are subtracted before they become floats, so that nothing is lost.
    """
    low, high = table[line + i0], table[line + i1]
    whole = np.float32(high - low)
    return whole + np.float32(table[line + i1 + 1] - high) * fu1 - np.float32(table[line + i0 + 1] - low) * fu0


@inlined
def box_sum(table: Int32, first: int, stride: int, i0: int, i1: int, j0: int, j1: int,
            fu0: np.float32, fu1: np.float32, fv0: np.float32, fv1: np.float32) -> np.float32:  # fmt: skip
    """The sum over a box with fractional borders, in the summed-area table that starts at ``first``."""
    upper = first + stride * j0
    a = row_sum(table, upper, i0, i1, fu0, fu1)
    b = row_sum(table, upper + stride, i0, i1, fu0, fu1)
    total = (b - a) * (fv1 - fv0)
    if j0 != j1:
        lower = first + stride * j1
        c = row_sum(table, lower, i0, i1, fu0, fu1)
        d = row_sum(table, lower + stride, i0, i1, fu0, fu1)
        total = c + (d - c) * fv1 - a - (b - a) * fv0
    return total


@compiled
def shade(top: int, left: int, maps: Float32, slots: Int64, light_table: Int32,
          alpha_table: Int32, sky: Float32, image: Float32) -> None:  # fmt: skip
    """Linear light of a part of the picture, whose first row and column are (top, left), into ``image``.

    ``maps`` [n, 11] of its surfaces, nearest first, come from :func:`maps_at`, ``slots`` [n, 4] of their textures from
    the atlas; ``sky`` [rows] is the light where nothing covers it. Single precision throughout: the
    constants are float32 so that nothing is widened on the way. One call does many pixels, since a call costs as much
    as a pixel.
    """
    for row in range(image.shape[0]):
        y = np.float32(top + row) + HALF
        for column in range(image.shape[1]):
            x = np.float32(left + column) + HALF
            light = ZERO
            clear = ONE
            for i in range(len(maps)):
                w = maps[i, 6] * x + maps[i, 7] * y + maps[i, 8]
                if w <= TINY:
                    continue
                inverse = ONE / w
                u = (maps[i, 0] * x + maps[i, 1] * y + maps[i, 2]) * inverse
                ux = (maps[i, 0] - u * maps[i, 6]) * inverse
                uy = (maps[i, 1] - u * maps[i, 7]) * inverse
                reach = HALF_BLUR * (abs(ux) + abs(uy))
                if u + reach <= ZERO or u - reach >= ONE:
                    continue
                v = (maps[i, 3] * x + maps[i, 4] * y + maps[i, 5]) * inverse
                vx = (maps[i, 3] - v * maps[i, 6]) * inverse
                vy = (maps[i, 4] - v * maps[i, 7]) * inverse
                reach = HALF_BLUR * (abs(vx) + abs(vy))
                if v + reach <= ZERO or v - reach >= ONE:
                    continue
                half_u = HALF_BLUR * math.sqrt(ux * ux + uy * uy)
                half_v = HALF_BLUR * math.sqrt(vx * vx + vy * vy)
                first, width, height = slots[i, 0], slots[i, 1], slots[i, 2]
                columns, rows = np.float32(width), np.float32(height)
                u0, u1 = max(u - half_u, ZERO) * columns, min(u + half_u, ONE) * columns
                v0, v1 = max(v - half_v, ZERO) * rows, min(v + half_v, ONE) * rows
                if u1 <= u0 or v1 <= v0:
                    continue
                i0, i1 = min(int(u0), width - 1), min(int(u1), width - 1)
                j0, j1 = min(int(v0), height - 1), min(int(v1), height - 1)
                fu0, fu1 = u0 - np.float32(i0), u1 - np.float32(i1)
                fv0, fv1 = v0 - np.float32(j0), v1 - np.float32(j1)
                share = QUARTER / (half_u * columns * half_v * rows)
                colour = box_sum(light_table, first, width + 1, i0, i1, j0, j1, fu0, fu1, fv0, fv1) * (UNIT * share)
                if slots[i, 3]:
                    cover = (u1 - u0) * (v1 - v0) * share
                else:
                    cover = box_sum(alpha_table, first, width + 1, i0, i1, j0, j1, fu0, fu1, fv0, fv1) * (UNIT * share)
                cover = min(max(cover, ZERO), ONE)
                light += clear * (max(colour, ZERO) * maps[i, 9] + cover * maps[i, 10])
                clear *= ONE - cover
                if clear < MIN_CLEAR:
                    clear = ZERO
                    break
            image[row, column] = light + clear * sky[row]


@compiled
def sky_rows(surfaces: Surfaces, t_us: float, top: int, sky: Float32) -> None:
    """Light of the sky in the rows from ``top`` on: even at and below the horizon, changing linearly above it."""
    position = t_us / KNOT_US
    knot = min(int(position), surfaces.sky.shape[0] - 2)
    share = position - knot
    horizon = surfaces.sky[knot, 0] + share * (surfaces.sky[knot + 1, 0] - surfaces.sky[knot, 0])
    part = np.float32(share)
    low = surfaces.sky[knot, 1] + part * (surfaces.sky[knot + 1, 1] - surfaces.sky[knot, 1])
    high = surfaces.sky[knot, 2] + part * (surfaces.sky[knot + 1, 2] - surfaces.sky[knot, 2])
    for row in range(len(sky)):
        height = max((horizon - (top + row + 0.5)) / surfaces.focal, 0.0)
        sky[row] = low + min(height, 1.0) * (high - low)


@compiled
def render(surfaces: Surfaces, atlas: Atlas, schedule: TileSchedule, t_us: float, image: Float32) -> None:
    """The whole picture at ``t_us`` after the stretch's start, linear light [H, W], into ``image``."""
    columns = (image.shape[1] + TILE - 1) // TILE
    sky = np.empty(TILE, np.float32)
    for tile in range(len(schedule.step_us)):
        top, left = tile // columns * TILE, tile % columns * TILE
        part = np.empty((min(TILE, image.shape[0] - top), min(TILE, image.shape[1] - left)), np.float32)
        ids = schedule.ids[schedule.first[tile] : schedule.first[tile + 1]]
        maps = np.empty((len(ids), 11), np.float32)
        maps_at(surfaces, ids, t_us, maps)
        sky_rows(surfaces, t_us, top, sky)
        shade(top, left, maps, atlas.slots[surfaces.texture[ids]], atlas.light, atlas.alpha, sky, part)
        for row in range(part.shape[0]):
            for column in range(part.shape[1]):
                image[top + row, left + column] = part[row, column]
