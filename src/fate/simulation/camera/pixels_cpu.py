"""The pixels of a recording, advanced tile by tile through a stretch of time on the CPU: light to events.

This is the fast version of the pixel in ``event_camera.py``; tests compare the two. Every tile has its own time steps
(``tiles.py``): no surface moves more than half a pixel in a step, and a step in which a photoreceptor would change by
more than a threshold is repeated with a shorter time.
"""

from __future__ import annotations

import math
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.simulation.arrays import Float32, Int64
from fate.simulation.camera.camera_model import CameraModel
from fate.simulation.camera.event_camera import pixel_maps
from fate.simulation.render.compositing import ONE, ZERO, keep_visible, maps_at, shade, sky_rows
from fate.simulation.render.surfaces import Atlas, Surfaces
from fate.simulation.render.tiles import MAX_STEP_US, MIN_STEP_US, TILE, TileSchedule

Array = TypeVar("Array")


class PixelState(NamedTuple, Generic[Array]):
    """The state of H × W pixels, float32: numpy arrays [H, W], or on a GPU tensors [B, H, W] of B recordings.

    Times are µs after the start of the stretch to come.
    """

    theta_on: Array  #: threshold for more light, in ln
    theta_off: Array  #: threshold for less light, in ln
    log_light: Array  #: ln of the light, u
    receptor: Array  #: low-passed u, v
    reference: Array  #: the level the comparator holds, m
    release: Array  #: when the pixel comes out of reset; negative: it is awake


class Circuit(NamedTuple):
    """What all pixels share."""

    dark_light: float  #: added to the light before the logarithm
    cutoff: float  #: corner frequency at full light, rad/µs; 0: no low-pass
    cutoff_floor: float  #: the share of it that remains in the dark
    refractory_us: float
    leak: float  #: thresholds per µs
    max_change: float  #: the largest change of a photoreceptor in a step, in ln
    most: int  #: the most events a pixel can make in one step


def shared_circuit(camera: CameraModel) -> Circuit:
    """The numbers of a camera that all its pixels share, in rad, µs and ln(light)."""
    smallest = min(camera.threshold_on, camera.threshold_off)
    return Circuit(
        dark_light=camera.dark_light,
        cutoff=2e-6 * math.pi * (camera.cutoff_hz or 0.0),
        cutoff_floor=camera.cutoff_floor,
        refractory_us=float(camera.refractory_us),
        leak=camera.leak_hz * 1e-6,
        max_change=smallest,
        most=int((16.0 + camera.leak_hz * camera.threshold_on * 2e-6 * MAX_STEP_US) / (0.2 * smallest)) + 2,
    )


def adapted_pixels(camera: CameraModel, seed: int, light: Float32) -> PixelState[Float32]:
    """The state of pixels that have adapted to ``light`` [H, W]."""
    on, off, phase = (part.numpy().astype(np.float32) for part in pixel_maps(camera, seed))
    level = np.log(light + np.float32(camera.dark_light))
    return PixelState(on, off, level, level.copy(), level - phase, np.full_like(level, -1.0))


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
            refractory: float, times: Float32, signs: NDArray[np.uint8],
            ) -> tuple[float, float, int]:  # fmt: skip
    """One comparator from t0 to t1 while its photoreceptor goes from v0 to v1 in a straight line.

    Event times go to ``times``, polarities to ``signs``, as far as they fit. Returns the reference level, the release
    time, and how many events there were.
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
def advance_tile(tile: int, length_us: float, surfaces: Surfaces, atlas: Atlas, schedule: TileSchedule,
                 pixels: PixelState[Float32], circuit: Circuit, keys: Int64) -> int:  # fmt: skip
    """Advance one tile through the stretch; its events go to ``keys`` (see :func:`event_key`) as far as they fit.

    The pixels' state is changed only if all events fitted. Returns how many events there were.
    """
    height, width = pixels.receptor.shape
    columns = (width + TILE - 1) // TILE
    top, left = tile // columns * TILE, tile % columns * TILE
    rows, cols = min(TILE, height - top), min(TILE, width - left)
    ids = schedule.ids[schedule.first[tile] : schedule.first[tile + 1]]
    maps = np.empty((len(ids), 11), np.float32)
    slots = atlas.slots[surfaces.texture[ids]]
    kept, kept_slots = np.empty_like(maps), np.empty_like(slots)
    part = (slice(top, top + rows), slice(left, left + cols))
    u0, v0 = pixels.log_light[part].copy(), pixels.receptor[part].copy()
    m, r = pixels.reference[part].copy(), pixels.release[part].copy()
    u1, v1, light = np.empty_like(u0), np.empty_like(u0), np.empty_like(u0)
    times, signs = np.empty(circuit.most, np.float32), np.empty(circuit.most, np.uint8)
    longest = schedule.step_us[tile]
    cutoff, floor = np.float32(circuit.cutoff), np.float32(circuit.cutoff_floor)
    dark, leak = np.float32(circuit.dark_light), np.float32(circuit.leak)
    sky = np.empty(rows, np.float32)
    step, now, found = longest, 0.0, 0
    while now < length_us:
        rest = length_us - now
        step = rest if rest <= 2 * MIN_STEP_US else min(step, rest)
        maps_at(surfaces, ids, now + step, maps)
        sky_rows(surfaces, now + step, top, sky)
        seen = keep_visible(top, left, rows, cols, maps, slots, kept, kept_slots)
        shade(top, left, kept[:seen], kept_slots[:seen], atlas.light, atlas.alpha, sky, light)
        largest = 0.0
        for i in range(rows):
            for j in range(cols):
                u = np.float32(math.log(light[i, j] + dark))
                u1[i, j] = u
                v = low_pass(cutoff, floor, light[i, j], np.float32(step), u0[i, j], u, v0[i, j])
                v1[i, j] = v
                largest = max(largest, float(abs(v - v0[i, j])))
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
        u0, u1 = u1, u0
        v0, v1 = v1, v0
        now += step
        step = max(min(longest, step * min(0.9 * circuit.max_change / max(largest, 1e-6), 2.0)), MIN_STEP_US)
    if found <= len(keys):
        for i in range(rows):
            for j in range(cols):
                pixels.log_light[top + i, left + j], pixels.receptor[top + i, left + j] = u0[i, j], v0[i, j]
                pixels.reference[top + i, left + j] = m[i, j]
                pixels.release[top + i, left + j] = r[i, j] - length_us if r[i, j] > length_us else -1.0
    return found


@compiled
def advance_tiles(begin: int, every: int, length_us: float, surfaces: Surfaces, atlas: Atlas, schedule: TileSchedule,
                  pixels: PixelState[Float32], circuit: Circuit) -> Int64:  # fmt: skip
    """Advance the tiles ``begin``, ``begin + every``, … through the stretch; returns the events as keys, unsorted."""
    keys = np.empty(1 << 14, np.int64)
    used = 0
    for tile in range(begin, len(schedule.step_us), every):
        while True:
            found = advance_tile(tile, length_us, surfaces, atlas, schedule, pixels, circuit, keys[used:])
            if used + found <= len(keys):
                break
            larger = np.empty(2 * (used + found), np.int64)  # nothing was changed: make room and repeat the tile
            for event in range(used):
                larger[event] = keys[event]
            keys = larger
        used += found
    return keys[:used]
