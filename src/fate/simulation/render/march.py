"""The pixels of a recording, marched through a stretch of time tile by tile: light, photoreceptor, comparator.

This is the fast CPU path; ``camera.py`` holds the readable twin of the pixel, to which tests compare it. Every tile
steps on its own (``plan.py``): no surface moves more than half a pixel in a step, and a step in which a photoreceptor
would change by more than a threshold is taken again at a fraction.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.simulation.art.plan import MIN_STEP_US, TILE, Plan
from fate.simulation.art.surfaces import Atlas, Surfaces
from fate.simulation.render.shading import ONE, ZERO, keep_seen, maps_at, places_of, shade, sky_rows


class Pixels(NamedTuple):
    """The state of H × W pixels. Times are µs after the start of the stretch to come."""

    theta_on: NDArray[np.float32]  #: [H, W] threshold for more light, in ln
    theta_off: NDArray[np.float32]  #: [H, W] threshold for less light, in ln
    log_light: NDArray[np.float32]  #: [H, W] ln of the light, u
    receptor: NDArray[np.float32]  #: [H, W] low-passed u, v
    reference: NDArray[np.float32]  #: [H, W] the level the comparator holds, m
    release: NDArray[np.float32]  #: [H, W] when the pixel comes out of reset; negative: it is awake


class Circuit(NamedTuple):
    """What all pixels share."""

    dark_light: float  #: added to the light before the logarithm
    cutoff: float  #: corner frequency at full light, rad/µs; 0: no low-pass
    cutoff_floor: float  #: the share of it that remains in the dark
    refractory_us: float
    leak: float  #: thresholds per µs
    max_change: float  #: the largest change of a photoreceptor in a step, in ln
    most: int  #: the most events a pixel can make in one step


@compiled
def event_key(t_us: float, y: int, x: int, p: int) -> np.int64:
    """An event as one integer that sorts by time, then row, column and polarity; the time is rounded to 1 µs."""
    return (np.int64(math.floor(t_us + 0.5)) << 29) | (np.int64(y) << 15) | (np.int64(x) << 1) | np.int64(p)


@compiled
def low_pass(cutoff: np.float32, floor: np.float32, light: np.float32, step: np.float32, u0: np.float32,
             u1: np.float32, v0: np.float32) -> np.float32:  # fmt: skip
    """The photoreceptor after a step in which its input went from u0 to u1 in a straight line."""
    if cutoff <= ZERO:
        return u1
    tau = ONE / (cutoff * max(floor, min(light, ONE)))
    lag = (u1 - u0) / step * tau
    return u1 - lag + (v0 - u0 + lag) * math.exp(-step / tau)


@compiled
def compare(t0: float, t1: float, v0: float, v1: float, m: float, r: float, on: float, off: float, leak: float,
            refractory: float, times: NDArray[np.float32], signs: NDArray[np.uint8],
            ) -> tuple[float, float, int]:  # fmt: skip
    """One comparator from t0 to t1 while its photoreceptor goes from v0 to v1 in a straight line.

    Event times go to ``times``, polarities to ``signs``, as far as they fit.

    Returns:
        The reference level, the release time, and how many events there were.
    """
    slope = (v1 - v0) / (t1 - t0)
    start = t0
    count = 0
    while True:
        if r >= 0.0:  # in reset: at release the reference takes the present level
            if r > t1:
                return m, r, count
            start = max(start, r)
            m = v0 + slope * (start - t0)
            r = -1.0
        rate = slope + leak * on
        at = v0 + slope * (start - t0) - m
        end = at + rate * (t1 - start)
        if end >= on and rate > 0.0:
            crossing = start + max((on - at) / rate, 0.0)
        elif end <= -off and rate < 0.0:
            crossing = start + max((-off - at) / rate, 0.0)
        else:
            return m - leak * on * (t1 - start), r, count
        crossing = min(crossing, t1)
        if count < len(times):
            times[count] = crossing
            signs[count] = 1 if rate > 0.0 else 0
        count += 1
        r = crossing + refractory


@compiled
def march_tile(tile: int, length_us: float, surfaces: Surfaces, atlas: Atlas, plan: Plan, pixels: Pixels,
               circuit: Circuit, keys: NDArray[np.int64]) -> tuple[int, int]:  # fmt: skip
    """March one tile through the stretch; its events go to ``keys`` (see :func:`event_key`) as far as they fit.

    The pixels' state is changed only if all events fitted.

    Returns:
        How many events there were, and how many pixel steps were taken.
    """
    height, width = pixels.receptor.shape
    columns = (width + TILE - 1) // TILE
    top, left = tile // columns * TILE, tile % columns * TILE
    rows, cols = min(TILE, height - top), min(TILE, width - left)
    ids = plan.ids[plan.first[tile] : plan.first[tile + 1]]
    maps = np.empty((len(ids), 11), np.float32)
    places = places_of(surfaces, atlas, ids)
    kept, kept_places = np.empty_like(maps), np.empty_like(places)
    u0, v0 = np.empty((rows, cols), np.float32), np.empty((rows, cols), np.float32)
    m, r = np.empty((rows, cols), np.float32), np.empty((rows, cols), np.float32)
    u1, v1 = np.empty((rows, cols), np.float32), np.empty((rows, cols), np.float32)
    u0[:] = pixels.log_light[top : top + rows, left : left + cols]
    v0[:] = pixels.receptor[top : top + rows, left : left + cols]
    m[:] = pixels.reference[top : top + rows, left : left + cols]
    r[:] = pixels.release[top : top + rows, left : left + cols]
    times, signs = np.empty(circuit.most, np.float32), np.empty(circuit.most, np.uint8)
    longest = plan.step_us[tile]
    cutoff, floor = np.float32(circuit.cutoff), np.float32(circuit.cutoff_floor)
    dark, leak = np.float32(circuit.dark_light), np.float32(circuit.leak)
    light, sky = np.empty((rows, cols), np.float32), np.empty(rows, np.float32)
    step, now, found, steps = longest, 0.0, 0, 0
    while now < length_us:
        rest = length_us - now
        step = rest if rest <= 2 * MIN_STEP_US else min(step, rest)
        maps_at(surfaces, ids, now + step, maps)
        sky_rows(surfaces, now + step, top, sky)
        seen = keep_seen(top, left, rows, cols, maps, places, kept, kept_places)
        shade(top, left, kept[:seen], kept_places[:seen], atlas.light, atlas.alpha, sky, light)
        largest = 0.0
        for i in range(rows):
            for j in range(cols):
                u = np.float32(math.log(light[i, j] + dark))
                u1[i, j] = u
                v = low_pass(cutoff, floor, light[i, j], np.float32(step), u0[i, j], u, v0[i, j])
                v1[i, j] = v
                largest = max(largest, float(abs(v - v0[i, j])))
        steps += rows * cols
        if largest > circuit.max_change and step > 2 * MIN_STEP_US:
            step = max(step * max(0.9 * circuit.max_change / largest, 0.25), MIN_STEP_US)
            continue
        for i in range(rows):
            for j in range(cols):
                on, off = pixels.theta_on[top + i, left + j], pixels.theta_off[top + i, left + j]
                leaked = leak * on * np.float32(step)
                change = v1[i, j] - m[i, j] + leaked
                if r[i, j] > now + step:
                    continue
                if r[i, j] < ZERO and -off < change < on:  # nearly always: nothing happens
                    m[i, j] -= leaked
                    continue
                m[i, j], r[i, j], count = compare(now, now + step, v0[i, j], v1[i, j], m[i, j], r[i, j], on, off,
                                                  circuit.leak, circuit.refractory_us, times, signs)  # fmt: skip
                for event in range(count):
                    if found < len(keys):
                        keys[found] = event_key(times[event], top + i, left + j, signs[event])
                    found += 1
        u0[:], v0[:] = u1, v1
        now += step
        step = max(min(longest, step * min(0.9 * circuit.max_change / max(largest, 1e-6), 2.0)), MIN_STEP_US)
    if found <= len(keys):
        pixels.log_light[top : top + rows, left : left + cols] = u0
        pixels.receptor[top : top + rows, left : left + cols] = v0
        pixels.reference[top : top + rows, left : left + cols] = m
        for i in range(rows):
            for j in range(cols):
                pixels.release[top + i, left + j] = r[i, j] - length_us if r[i, j] > length_us else -1.0
    return found, steps


@compiled
def march_tiles(begin: int, every: int, length_us: float, surfaces: Surfaces, atlas: Atlas, plan: Plan, pixels: Pixels,
                circuit: Circuit) -> tuple[NDArray[np.int64], int]:  # fmt: skip
    """March the tiles ``begin``, ``begin + every``, … through the stretch.

    Returns:
        The events as keys, unsorted, and how many pixel steps were taken.
    """
    keys = np.empty(1 << 14, np.int64)
    used, steps = 0, 0
    for tile in range(begin, len(plan.step_us), every):
        found, taken = march_tile(tile, length_us, surfaces, atlas, plan, pixels, circuit, keys[used:])
        if used + found > len(keys):  # it did not fit and nothing was changed: make room and march it again
            larger = np.empty(2 * (used + found), np.int64)
            larger[:used] = keys[:used]
            keys = larger
            found, taken = march_tile(tile, length_us, surfaces, atlas, plan, pixels, circuit, keys[used:])
        used += found
        steps += taken
    return keys[:used], steps
