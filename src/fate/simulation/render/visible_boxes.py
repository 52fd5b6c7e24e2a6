"""Exact boxes: what of each object is seen at one moment, and how much of it is hidden.

A pixel belongs to the nearest surface that is solid at its centre (coverage of at least one half). The box of an object
is the extent of its visible pixels. Where its outline is not hidden, the box ends at the outline, to a fraction of a
pixel. The visible share is the number of visible pixels over the number without other objects; parts outside the
picture count as hidden, unless the object fills much of the picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fate.compiled import compiled, inlined
from fate.simulation.arrays import Float32, Float64, Int32, Int64
from fate.simulation.art.panels import Texture, outline
from fate.simulation.render.compositing import ONE, TINY, ZERO, maps_at
from fate.simulation.render.surfaces import Atlas, Surfaces

#: Half of full coverage, in the units of the summed-area tables.
HALF = 32768
#: The visible share of a large object is counted on a grid of about this many points along a side.
SAMPLES = 16


class Outlines(NamedTuple):
    """The convex outline of each texture's solid part, concatenated."""

    first: Int64  #: [textures + 1]
    points: Float64  #: [points, 2] texture coordinates (u, v)

    @staticmethod
    def build(textures: Sequence[Texture | None]) -> Outlines:
        """Outlines of ``textures``, in their order; None where no outline is needed."""
        nothing = np.zeros((0, 2))
        points = [nothing if texture is None else outline(texture).astype(np.float64) for texture in textures]
        first = np.concatenate([[0], np.cumsum([len(part) for part in points])]).astype(np.int64)
        return Outlines(first, np.concatenate([*points, np.zeros((0, 2))]))


@inlined
def solid(maps: Float32, slots: Int64, table: Int32, i: int,
          x: np.float32, y: np.float32) -> bool:  # fmt: skip
    """Whether surface i hides what is behind it at the image point (x, y); ``table`` is the atlas's alpha."""
    hides = False
    w = maps[i, 6] * x + maps[i, 7] * y + maps[i, 8]
    u = maps[i, 0] * x + maps[i, 1] * y + maps[i, 2]
    v = maps[i, 3] * x + maps[i, 4] * y + maps[i, 5]
    if w > TINY and u >= ZERO and u < w and v >= ZERO and v < w:
        stride = slots[i, 1] + 1
        column = min(int(u / w * np.float32(slots[i, 1])), slots[i, 1] - 1)
        row = min(int(v / w * np.float32(slots[i, 2])), slots[i, 2] - 1)
        cell = slots[i, 0] + row * stride + column
        hides = table[cell + stride + 1] - table[cell + stride] - table[cell + 1] + table[cell] >= HALF
    return hides


@compiled
def extent(maps: Float32, i: int, points: Float64, box: Float64) -> bool:
    """Grow ``box`` (x1, y1, x2, y2) by outline points of surface i; False if some lie behind the camera."""
    a, b, c = float(maps[i, 0]), float(maps[i, 1]), float(maps[i, 2])
    d, e, f = float(maps[i, 3]), float(maps[i, 4]), float(maps[i, 5])
    g, h, k = float(maps[i, 6]), float(maps[i, 7]), float(maps[i, 8])
    ca, cd, cg = e * k - f * h, f * g - d * k, d * h - e * g
    determinant = a * ca + b * cd + c * cg
    if determinant == 0.0:
        return True
    for n in range(len(points)):
        u, v = points[n, 0], points[n, 1]
        x = (ca * u + (c * h - b * k) * v + (b * f - c * e)) / determinant
        y = (cd * u + (a * k - c * g) * v + (c * d - a * f)) / determinant
        s = (cg * u + (b * g - a * h) * v + (a * e - b * d)) / determinant
        if s <= 1e-9:
            return False
        box[0], box[1] = min(box[0], x / s), min(box[1], y / s)
        box[2], box[3] = max(box[2], x / s), max(box[3], y / s)
    return True


@compiled
def count_visible(maps: Float32, slots: Int64, table: Int32, own: Int32,
            before: Int32, x1: int, y1: int, x2: int, y2: int, stride: int) -> tuple[int, int]:  # fmt: skip
    """Of every ``stride``-th pixel in columns [x1, x2) and rows [y1, y2), how many an object would cover, and does.

    ``own`` are its surfaces, ``before`` those in front of it.
    """
    alone, seen = 0, 0
    for row in range(y1, y2, stride):
        for column in range(x1, x2, stride):
            x, y = np.float32(column + 0.5), np.float32(row + 0.5)
            for i in range(len(own)):
                if solid(maps, slots, table, own[i], x, y):
                    alone += 1
                    hidden = False
                    for j in range(len(before)):
                        if solid(maps, slots, table, before[j], x, y):
                            hidden = True
                            break
                    seen += not hidden
                    break
    return alone, seen


@compiled
def mask_extent(maps: Float32, slots: Int64, table: Int32,
                own: Int32, before: Int32, x1: int, y1: int, x2: int, y2: int,
                ) -> tuple[int, int, int, int]:  # fmt: skip
    """Columns [x1, x2) and rows [y1, y2) in which an object is seen: each border moves in until it meets a pixel."""
    every = int(ONE)  # for a literal 1, numba would compile count_visible a second time
    while x1 < x2 and count_visible(maps, slots, table, own, before, x1, y1, x1 + 1, y2, every)[1] == 0:
        x1 += 1
    while x1 < x2 and count_visible(maps, slots, table, own, before, x2 - 1, y1, x2, y2, every)[1] == 0:
        x2 -= 1
    while y1 < y2 and count_visible(maps, slots, table, own, before, x1, y1, x2, y1 + 1, every)[1] == 0:
        y1 += 1
    while y1 < y2 and count_visible(maps, slots, table, own, before, x1, y2 - 1, x2, y2, every)[1] == 0:
        y2 -= 1
    return x1, y1, x2, y2


@compiled
def find_boxes(surfaces: Surfaces, atlas: Atlas, outlines: Outlines, times_us: Float64, height: int, width: int,
               min_share: float, min_diagonal: float, large: float, owners: Int32, boxes: Float64,
               shares: Float64) -> None:  # fmt: skip
    """The visible box [T, N, 4] and the visible share [T, N] of each owner, at T times after the stretch's start.

    Owners seen to less than ``min_share``, or smaller than ``min_diagonal`` pixels, keep an empty box. What lies
    outside the picture does not count as hidden if the box fills the share ``large`` of the picture or more.
    """
    count = surfaces.maps.shape[1]
    ids = np.arange(count).astype(np.int32)
    maps = np.empty((count, 11), np.float32)
    slots, table = atlas.slots[surfaces.texture], atlas.alpha
    own_ids, before_ids = np.empty(count, np.int32), np.empty(count, np.int32)
    whole = np.empty(4)
    for time in range(len(times_us)):
        maps_at(surfaces, ids, times_us[time], maps)
        for n in range(len(owners)):
            owned, free = 0, True
            whole[0], whole[1], whole[2], whole[3] = 1e9, 1e9, -1e9, -1e9
            for k in range(count):
                if surfaces.owner[k] == owners[n]:
                    own_ids[owned] = k
                    owned += 1
                    texture = surfaces.texture[k]
                    points = outlines.points[outlines.first[texture] : outlines.first[texture + 1]]
                    free &= extent(maps, k, points, whole)
            if not free:  # part of it is beside or behind the camera: next to nothing of it is in the picture
                continue
            if math.hypot(whole[2] - whole[0], whole[3] - whole[1]) < min_diagonal:
                continue
            left, top = max(int(np.floor(whole[0])), 0), max(int(np.floor(whole[1])), 0)
            right, bottom = min(int(np.ceil(whole[2])), width), min(int(np.ceil(whole[3])), height)
            hiding = 0
            for k in range(own_ids[0]):
                beside = surfaces.bounds[k, 0] < right and surfaces.bounds[k, 2] > left
                if beside and surfaces.bounds[k, 1] < bottom and surfaces.bounds[k, 3] > top:
                    before_ids[hiding] = k
                    hiding += 1
            own, before = own_ids[:owned], before_ids[:hiding]
            stride = max(1, int(math.sqrt(max(right - left, 0) * max(bottom - top, 0))) // SAMPLES)
            alone, seen = count_visible(maps, slots, table, own, before, left, top, right, bottom, stride)
            if not seen:
                continue
            area = max((whole[2] - whole[0]) * (whole[3] - whole[1]), 1e-9)
            inside = (min(whole[2], width) - max(whole[0], 0.0)) * (min(whole[3], height) - max(whole[1], 0.0)) / area
            if inside * area >= large * width * height:
                inside = 1.0
            shares[time, n] = seen / alone * inside
            if shares[time, n] < min_share:
                continue
            x1, y1, x2, y2 = mask_extent(maps, slots, table, own, before, left, top, right, bottom)
            box = boxes[time, n]
            box[0] = max(whole[0], 0.0) if abs(max(whole[0], 0.0) - x1) <= 1 else x1
            box[1] = max(whole[1], 0.0) if abs(max(whole[1], 0.0) - y1) <= 1 else y1
            box[2] = min(whole[2], width) if abs(min(whole[2], width) - x2) <= 1 else x2
            box[3] = min(whole[3], height) if abs(min(whole[3], height) - y2) <= 1 else y2
