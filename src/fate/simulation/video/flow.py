"""The light between two frames, from dense optical flow.

Flow F01 leads from each pixel of frame 0 to frame 1, and F10 back (DIS optical flow of OpenCV). At a share t of the
time between the frames, the point x shows what is at p in frame 0 with p + t · F01(p) = x, and what is at q in frame 1
with q + (1 − t) · F10(q) = x. Both are found by iteration, p = x − t · F01(p). The light is the mean of both, with
weights (1 − t) and t, times how far each can be trusted: little where p does not settle, where the two flows
contradict each other, or outside the frame. So what one frame hides comes from the other one. At t = 0 and t = 1 the
light is exactly that of the frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled, inlined
from fate.simulation.arrays import Float32, Int64
from fate.simulation.render.tiles import MAX_MOTION, MAX_STEP_US
from fate.simulation.video.frames import opencv

#: Rows and columns of a tile; each tile has time steps of its own.
TILE = 16
#: Smallest frame side that optical flow can work on; smaller frames are padded.
SMALLEST = 32
#: Slower flow, in pixels between two frames, counts as none.
STILL = 0.02
#: Two frames are a cut if, after motion, their correlation is lower and their mean difference (of 255) larger. In nine
#: videos, consecutive frames had a correlation of 0.97 or more, and frames of two videos 0.82 or less.
CUT_CORRELATION, CUT_DIFFERENCE = 0.85, 8.0
#: Least weight of a frame, so that a point which neither frame can be trusted about shows the mean of both.
LEAST_TRUST = 1e-3
#: Iterations that find where a point comes from, before the first step; later steps need one each.
ITERATIONS = 4
_ZERO, _ONE = np.float32(0), np.float32(1)


class Motion(NamedTuple):
    """How pixels move between two frames."""

    forward: Float32  #: [H, W, 2] from frame 0 to frame 1: columns, rows
    backward: Float32  #: [H, W, 2] from frame 1 to frame 0
    trust0: Float32  #: [H, W] 1 if both flows agree at a pixel of frame 0, down to 0
    trust1: Float32  #: [H, W] the same for frame 1
    steps: Int64  #: [N] time steps of each tile, row by row
    moves: NDArray[np.bool_]  #: [N] whether anything moves in a tile


@contextmanager
def one_opencv_thread() -> Iterator[None]:
    """Keep OpenCV to one thread: its optical flow depends on their number, and bytes must not."""
    cv2 = opencv()
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


class MotionFinder:
    """Finds the motion between consecutive frames. Use it inside :func:`one_opencv_thread`."""

    def __init__(self) -> None:
        self._cv2 = opencv()
        preset = self._cv2.DISOPTICAL_FLOW_PRESET_MEDIUM
        self._engines = [self._cv2.DISOpticalFlow_create(preset) for _ in range(2)]

    def find(self, light0: Float32, light1: Float32, length_us: float) -> Motion | None:
        """Return the motion between two frames [H, W] that lie ``length_us`` apart, or None if there is a cut."""
        grey0, grey1 = _grey(light0), _grey(light1)
        height, width = light0.shape
        padding = (0, max(SMALLEST - height, 0), 0, max(SMALLEST - width, 0), self._cv2.BORDER_REPLICATE)
        if any(padding[:4]):
            grey0, grey1 = (self._cv2.copyMakeBorder(grey, *padding) for grey in (grey0, grey1))
        with ThreadPoolExecutor(2) as pool:
            flows = pool.map(
                lambda engine, a, b: engine.calc(a, b, None), self._engines, (grey0, grey1), (grey1, grey0)
            )
            forward, backward = (np.ascontiguousarray(flow[:height, :width]) for flow in flows)
        columns, rows = _targets(forward)
        warped = self._cv2.remap(grey1, columns, rows, self._cv2.INTER_LINEAR)
        inside = (columns >= 0) & (columns <= width - 1) & (rows >= 0) & (rows <= height - 1)
        if is_cut(grey0[:height, :width][inside], warped[inside]):
            return None
        trust0, trust1 = agreement(forward, backward), agreement(backward, forward)
        return Motion(forward, backward, trust0, trust1, *tile_steps(forward, backward, length_us))


def _grey(light: Float32) -> NDArray[np.uint8]:
    """Linear light as 8 bits with even steps for the eye, which optical flow expects."""
    return np.asarray(np.rint(np.sqrt(np.clip(light, 0, 1)) * 255), np.uint8)


def _targets(flow: Float32) -> tuple[Float32, Float32]:
    """Columns and rows that a flow leads to, as ``cv2.remap`` takes them."""
    height, width = flow.shape[:2]
    columns, rows = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]
    return flow[..., 0] + columns, flow[..., 1] + rows


def is_cut(grey0: NDArray[np.uint8], warped: NDArray[np.uint8]) -> bool:
    """Whether two frames show different scenes, given their pixels [N] after the motion was undone.

    Pixels that leave the frame are not given. A change of exposure keeps the correlation, and a noisy dark frame has a
    small difference; neither is a cut.
    """
    a, b = grey0.astype(np.float32), warped.astype(np.float32)
    if not len(a):
        return True
    if float(np.abs(a - b).mean()) <= CUT_DIFFERENCE:
        return False
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).mean()) < CUT_CORRELATION * math.sqrt(float((a * a).mean() * (b * b).mean()))


@inlined
def bilinear(flow: Float32, y: np.float32, x: np.float32) -> tuple[np.float32, np.float32]:
    """The flow at a point between pixels; outside the frame it is that of the border."""
    height, width = flow.shape[:2]
    y, x = min(max(y, _ZERO), np.float32(height - 1)), min(max(x, _ZERO), np.float32(width - 1))
    i, j = int(y), int(x)
    below, right = min(i + 1, height - 1), min(j + 1, width - 1)
    b, r = y - np.float32(i), x - np.float32(j)
    w00, w01, w10, w11 = (_ONE - b) * (_ONE - r), (_ONE - b) * r, b * (_ONE - r), b * r
    return (
        w00 * flow[i, j, 0] + w01 * flow[i, right, 0] + w10 * flow[below, j, 0] + w11 * flow[below, right, 0],
        w00 * flow[i, j, 1] + w01 * flow[i, right, 1] + w10 * flow[below, j, 1] + w11 * flow[below, right, 1],
    )


@inlined
def cubic(image: Float32, y: np.float32, x: np.float32) -> np.float32:
    """The light at a point between pixels, by Catmull–Rom splines, which keep fine texture; at least 0."""
    height, width = image.shape
    y, x = min(max(y, _ZERO), np.float32(height - 1)), min(max(x, _ZERO), np.float32(width - 1))
    i, j = int(y), int(x)
    b, r = y - np.float32(i), x - np.float32(j)
    half = np.float32(0.5)
    columns = (
        half * r * (r * (np.float32(2) - r) - _ONE),
        half * (r * r * (np.float32(3) * r - np.float32(5)) + np.float32(2)),
        half * r * (r * (np.float32(4) - np.float32(3) * r) + _ONE),
        half * r * r * (r - _ONE),
    )
    rows = (
        half * b * (b * (np.float32(2) - b) - _ONE),
        half * (b * b * (np.float32(3) * b - np.float32(5)) + np.float32(2)),
        half * b * (b * (np.float32(4) - np.float32(3) * b) + _ONE),
        half * b * b * (b - _ONE),
    )
    j0, j2, j3 = max(j - 1, 0), min(j + 1, width - 1), min(j + 2, width - 1)
    total = _ZERO
    for k in range(4):
        row = min(max(i + k - 1, 0), height - 1)
        across = columns[0] * image[row, j0] + columns[1] * image[row, j]
        across += columns[2] * image[row, j2] + columns[3] * image[row, j3]
        total += rows[k] * across
    return max(total, _ZERO)


@compiled
def agreement(there: Float32, back: Float32) -> Float32:
    """How well a flow [H, W, 2] and the flow back agree at each pixel: 1 if one undoes the other, down to 0."""
    height, width = there.shape[:2]
    trust = np.empty((height, width), np.float32)
    for i in range(height):
        for j in range(width):
            dx, dy = there[i, j, 0], there[i, j, 1]
            ex, ey = bilinear(back, np.float32(i) + dy, np.float32(j) + dx)
            allowed = np.float32(0.5) + np.float32(0.05) * (abs(dx) + abs(dy))
            error = ((dx + ex) ** 2 + (dy + ey) ** 2) / (allowed * allowed)
            trust[i, j] = _ONE / (_ONE + error)
    return trust


@compiled
def tile_steps(forward: Float32, backward: Float32, length_us: float) -> tuple[Int64, NDArray[np.bool_]]:
    """Time steps of each tile [N], row by row, and whether anything moves in it. The steps are so short
    that nothing moves by more than ``MAX_MOTION`` in a step.

    What moves by m pixels also concerns the tiles within m pixels of it.
    """
    height, width = forward.shape[:2]
    down, across = (height + TILE - 1) // TILE, (width + TILE - 1) // TILE
    fastest = np.zeros((down, across))
    for i in range(height):
        for j in range(width):
            a = math.hypot(forward[i, j, 0], forward[i, j, 1])
            b = math.hypot(backward[i, j, 0], backward[i, j, 1])
            fastest[i // TILE, j // TILE] = max(fastest[i // TILE, j // TILE], a, b)
    least = max(math.ceil(length_us / MAX_STEP_US), 1)
    steps, moves = np.full((down, across), least, np.int64), np.zeros((down, across), np.bool_)
    for i in range(down):
        for j in range(across):
            if fastest[i, j] < STILL:
                continue
            reach = math.ceil(fastest[i, j] / TILE)
            needed = math.ceil(fastest[i, j] / MAX_MOTION)
            for k in range(max(i - reach, 0), min(i + reach + 1, down)):
                for m in range(max(j - reach, 0), min(j + reach + 1, across)):
                    steps[k, m] = max(steps[k, m], needed)
                    moves[k, m] = True
    return steps.ravel(), moves.ravel()


@inlined
def find_source(flow: Float32, y: int, x: int, share: np.float32, fx: np.float32, fy: np.float32,
                ) -> tuple[np.float32, np.float32, np.float32, np.float32, np.float32]:  # fmt: skip
    """Where the point (y, x) comes from in a frame that lies ``share`` of its flow away, by one step of the iteration.

    ``fx`` and ``fy`` are the flow there as it was last found. Returns row, column, the flow there, and the trust: 1 if
    the flow was as expected.
    """
    height, width = flow.shape[:2]
    py, px = np.float32(y) - share * fy, np.float32(x) - share * fx
    gx, gy = bilinear(flow, py, px)
    error = share * share * ((gx - fx) ** 2 + (gy - fy) ** 2)
    trust = _ONE / (_ONE + np.float32(16) * error)
    if not (-_ONE < py < np.float32(height) and -_ONE < px < np.float32(width)):
        trust = _ZERO
    return py, px, gx, gy, trust


@compiled
def start_tile(motion: Motion, top: int, left: int, found: Float32) -> None:
    """Find the flow to each point of a tile [h, w] at the time of frame 0.

    ``found`` [4, h, w] receives the flow of frame 0 (columns, rows) and that of frame 1.
    """
    for i in range(found.shape[1]):
        for j in range(found.shape[2]):
            fx, fy = motion.forward[top + i, left + j]
            found[0, i, j], found[1, i, j] = fx, fy
            bx, by = -fx, -fy
            for _ in range(ITERATIONS):
                _, _, bx, by, _ = find_source(motion.backward, top + i, left + j, _ONE, bx, by)
            found[2, i, j], found[3, i, j] = bx, by


@compiled
def blend_tile(light0: Float32, light1: Float32, motion: Motion, top: int, left: int, share: np.float32, found: Float32,
               light: Float32) -> None:  # fmt: skip
    """The light [h, w] of a tile at ``share`` of the time between two frames.

    ``found`` is that of :func:`start_tile` or of the step before, and is replaced.
    """
    height, width = light0.shape
    least, half = np.float32(LEAST_TRUST), np.float32(0.5)
    forward, backward, agree0, agree1 = motion.forward, motion.backward, motion.trust0, motion.trust1
    for i in range(light.shape[0]):
        for j in range(light.shape[1]):
            y, x = top + i, left + j
            py, px, fx, fy, trust0 = find_source(forward, y, x, share, found[0, i, j], found[1, i, j])
            qy, qx, bx, by, trust1 = find_source(backward, y, x, _ONE - share, found[2, i, j], found[3, i, j])
            found[0, i, j], found[1, i, j], found[2, i, j], found[3, i, j] = fx, fy, bx, by
            trust0 *= agree0[min(max(int(py + half), 0), height - 1), min(max(int(px + half), 0), width - 1)]
            trust1 *= agree1[min(max(int(qy + half), 0), height - 1), min(max(int(qx + half), 0), width - 1)]
            weight0, weight1 = (_ONE - share) * (trust0 + least), share * (trust1 + least)
            part = weight1 / (weight0 + weight1)
            value = _ZERO
            if part < _ONE - least:
                value += (_ONE - part) * cubic(light0, py, px)
            if part > least:
                value += part * cubic(light1, qy, qx)
            light[i, j] = value
