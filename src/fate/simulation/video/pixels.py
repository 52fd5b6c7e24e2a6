"""The pixels of an event camera between two frames of a video, tile by tile.

The pixel is that of ``camera/pixels_cpu.py``; the light comes from ``flow.py``. Each tile has the number of time steps
that its motion needs.
"""

from __future__ import annotations

import math

import numpy as np

from fate.compiled import compiled
from fate.simulation.arrays import Float32, Int64
from fate.simulation.camera.pixels_cpu import Circuit, PixelState, compare, event_key, low_pass
from fate.simulation.video.flow import TILE, Motion, blend_tile, start_tile

_ZERO, _ONE = np.float32(0), np.float32(1)


@compiled
def advance_tiles(begin: int, every: int, length_us: float, light0: Float32, light1: Float32, motion: Motion,
                  pixels: PixelState[Float32], circuit: Circuit) -> Int64:  # fmt: skip
    """Advance the tiles ``begin``, ``begin + every``, … from one frame to the next, ``length_us`` later.

    Returns the events as keys (see ``pixels_cpu.event_key``), unsorted.
    """
    height, width = light0.shape
    columns = (width + TILE - 1) // TILE
    keys = np.empty(1 << 14, np.int64)
    found = 0
    found_flows, lights = np.empty((4, TILE, TILE), np.float32), np.empty((TILE, TILE), np.float32)
    times, signs = np.empty(circuit.most, np.float32), np.empty(circuit.most, np.uint8)
    cutoff, floor = np.float32(circuit.cutoff), np.float32(circuit.cutoff_floor)
    dark, leak = np.float32(circuit.dark_light), np.float32(circuit.leak)
    # names of their own: the loop over pixels is faster than with the fields of a tuple
    theta_on, theta_off, log_light, receptor, reference, releases = pixels
    for tile in range(begin, len(motion.steps), every):
        top, left = tile // columns * TILE, tile % columns * TILE
        bottom, right = min(top + TILE, height), min(left + TILE, width)
        steps = motion.steps[tile]
        step = length_us / steps
        part = (slice(top, bottom), slice(left, right))
        found_flow, light = found_flows[:, : bottom - top, : right - left], lights[: bottom - top, : right - left]
        moves = motion.moves[tile]
        if moves:
            start_tile(motion, top, left, found_flow)
        for number in range(steps):
            if len(keys) - found < TILE * TILE * circuit.most:
                larger = np.empty(2 * len(keys) + TILE * TILE * circuit.most, np.int64)
                larger[:found] = keys[:found]
                keys = larger
            share, now = np.float32((number + 1) / steps), number * step
            if number == steps - 1:
                light[:] = light1[part]
            elif moves:
                blend_tile(light0, light1, motion, top, left, share, found_flow, light)
            else:
                light[:] = (_ONE - share) * light0[part] + share * light1[part]
            for y in range(top, bottom):
                for x in range(left, right):
                    shown = light[y - top, x - left]
                    u = np.float32(math.log(shown + dark))
                    v0 = receptor[y, x]
                    v = low_pass(cutoff, floor, shown, np.float32(step), log_light[y, x], u, v0)
                    log_light[y, x], receptor[y, x] = u, v
                    release = releases[y, x]
                    if release > step:
                        releases[y, x] = release - np.float32(step)
                        continue
                    on, off = theta_on[y, x], theta_off[y, x]
                    leaked = leak * on * np.float32(step)
                    if release < _ZERO and -off < v - reference[y, x] + leaked < on:  # nearly always
                        reference[y, x] -= leaked
                        continue
                    level, release_us, count = compare(
                        0.0, step, float(v0), float(v), reference[y, x], release, on, off, circuit.leak,
                        circuit.refractory_us, times, signs,
                    )  # fmt: skip
                    reference[y, x] = level
                    releases[y, x] = release_us - step if release_us >= 0.0 else -1.0
                    for event in range(count):
                        keys[found] = event_key(now + times[event], y, x, signs[event])
                        found += 1
    return keys[:found]
