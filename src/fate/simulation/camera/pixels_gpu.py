"""The computation of ``pixels_cpu.py`` on a GPU: one program per tile, many recordings at once.

The same steps in the same order, in Triton: a program keeps its tile's pixels in registers from the first step of the
stretch to the last, so memory is touched for textures and events alone. Events of all recordings go to one list, as
keys with the recording in front (:data:`RECORDING_SHIFT`); they are sorted afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fate.simulation.camera.pixels_cpu import PixelState
from fate.simulation.render.compositing import HALF_BLUR, MIN_CLEAR, TINY, UNIT
from fate.simulation.render.surfaces import KNOT_US
from fate.simulation.render.tiles import MIN_STEP_US, TILE

#: A key is recording << 48 | (time + TIME_OFFSET) << 29 | row << 15 | column << 1 | polarity.
RECORDING_SHIFT = 48
TIME_SHIFT = 29
#: Jitter may take an event a little before its stretch: times are stored this much later, µs.
TIME_OFFSET = 4096

_KNOT_US = tl.constexpr(float(KNOT_US))
_MIN_STEP_US = tl.constexpr(float(MIN_STEP_US))
_HALF_BLUR = tl.constexpr(float(HALF_BLUR))
_SEEN_THROUGH = tl.constexpr(float(MIN_CLEAR))
_TINY = tl.constexpr(float(TINY))
_UNIT = tl.constexpr(float(UNIT))
_OFFSET = tl.constexpr(TIME_OFFSET)


class StretchBatch(NamedTuple):
    """One stretch of B recordings on the GPU; K surfaces each (padded), R knots, N tiles."""

    maps: Tensor  #: [B, R, K, 11] float32: matrix, light on it, haze before it
    light: Tensor  #: [B, K, 4] float32: glow, flicker, depth, phase
    slots: Tensor  #: [B, K, 4] int64: first entry in the tables, columns, rows, opaque
    first: Tensor  #: [B, N + 1] int64, into ``ids``
    ids: Tensor  #: surfaces of all tiles of all recordings, int32
    step_us: Tensor  #: [B, N] float32
    sky: Tensor  #: [B, R, 3] float32
    focal: Tensor  #: [B] float32, pixels


@triton.jit
def _row_sum(table, line, i0, i1, fu0, fu1, hit):
    low = tl.load(table + line + i0, mask=hit, other=0)
    high = tl.load(table + line + i1, mask=hit, other=0)
    after_high = tl.load(table + line + i1 + 1, mask=hit, other=0)
    after_low = tl.load(table + line + i0 + 1, mask=hit, other=0)
    whole = (high - low).to(tl.float32)
    return whole + (after_high - high).to(tl.float32) * fu1 - (after_low - low).to(tl.float32) * fu0


@triton.jit
def _box_sum(table, stride, i0, i1, j0, j1, fu0, fu1, fv0, fv1,
             hit):  # fmt: skip
    a = _row_sum(table, stride * j0, i0, i1, fu0, fu1, hit)
    b = _row_sum(table, stride * (j0 + 1), i0, i1, fu0, fu1, hit)
    c = _row_sum(table, stride * j1, i0, i1, fu0, fu1, hit)
    d = _row_sum(table, stride * (j1 + 1), i0, i1, fu0, fu1, hit)
    return tl.where(j0 == j1, (b - a) * (fv1 - fv0), c + (d - c) * fv1 - a - (b - a) * fv0)


@triton.jit
def _shade(x, y, now, knot, share, recording, begin, end, maps, light,
           slots, ids, light_table, alpha_table, sky, surfaces, knots):  # fmt: skip
    """Linear light at image points (x, y): ``compositing.shade``."""
    total = tl.zeros_like(x)
    clear = tl.zeros_like(x) + 1.0
    for i in range(begin, end):
        k = tl.load(ids + i)
        base = maps + ((recording * knots + knot) * surfaces + k) * 11
        after = base + surfaces * 11
        m0 = tl.load(base) + share * (tl.load(after) - tl.load(base))
        m1 = tl.load(base + 1) + share * (tl.load(after + 1) - tl.load(base + 1))
        m2 = tl.load(base + 2) + share * (tl.load(after + 2) - tl.load(base + 2))
        m3 = tl.load(base + 3) + share * (tl.load(after + 3) - tl.load(base + 3))
        m4 = tl.load(base + 4) + share * (tl.load(after + 4) - tl.load(base + 4))
        m5 = tl.load(base + 5) + share * (tl.load(after + 5) - tl.load(base + 5))
        m6 = tl.load(base + 6) + share * (tl.load(after + 6) - tl.load(base + 6))
        m7 = tl.load(base + 7) + share * (tl.load(after + 7) - tl.load(base + 7))
        m8 = tl.load(base + 8) + share * (tl.load(after + 8) - tl.load(base + 8))
        w = m6 * x + m7 * y + m8
        ahead = w > _TINY
        inverse = 1.0 / tl.where(ahead, w, 1.0)
        u = (m0 * x + m1 * y + m2) * inverse
        v = (m3 * x + m4 * y + m5) * inverse
        ux, uy = (m0 - u * m6) * inverse, (m1 - u * m7) * inverse
        vx, vy = (m3 - v * m6) * inverse, (m4 - v * m7) * inverse
        half_u = _HALF_BLUR * tl.sqrt(ux * ux + uy * uy)
        half_v = _HALF_BLUR * tl.sqrt(vx * vx + vy * vy)
        hit = ahead & (clear >= _SEEN_THROUGH)
        hit = hit & (u + half_u > 0.0) & (u - half_u < 1.0) & (v + half_v > 0.0) & (v - half_v < 1.0)
        if tl.sum(hit.to(tl.int32), 0) > 0:
            texture = slots + (recording * surfaces + k) * 4
            first = tl.load(texture)
            width = tl.load(texture + 1).to(tl.int32)
            height = tl.load(texture + 2).to(tl.int32)
            opaque = tl.load(texture + 3)
            columns, rows = width.to(tl.float32), height.to(tl.float32)
            u0 = tl.where(hit, tl.maximum(u - half_u, 0.0), 0.0) * columns
            u1 = tl.where(hit, tl.minimum(u + half_u, 1.0), 0.5) * columns
            v0 = tl.where(hit, tl.maximum(v - half_v, 0.0), 0.0) * rows
            v1 = tl.where(hit, tl.minimum(v + half_v, 1.0), 0.5) * rows
            i0, i1 = tl.minimum(u0.to(tl.int32), width - 1), tl.minimum(u1.to(tl.int32), width - 1)
            j0, j1 = tl.minimum(v0.to(tl.int32), height - 1), tl.minimum(v1.to(tl.int32), height - 1)
            fu0, fu1 = u0 - i0.to(tl.float32), u1 - i1.to(tl.float32)
            fv0, fv1 = v0 - j0.to(tl.float32), v1 - j1.to(tl.float32)
            part = 0.25 / tl.where(hit, half_u * columns * half_v * rows, 1.0)
            colour = _box_sum(light_table + first, width + 1, i0, i1, j0, j1, fu0, fu1, fv0, fv1, hit) * (_UNIT * part)
            cover = (u1 - u0) * (v1 - v0) * part
            if opaque == 0:
                cover = _box_sum(alpha_table + first, width + 1, i0, i1, j0, j1, fu0, fu1, fv0, fv1, hit) * (
                    _UNIT * part
                )
            lamp = light + (recording * surfaces + k) * 4
            flicker = 1.0 + tl.load(lamp + 2) * tl.cos(tl.load(lamp + 1) * now + tl.load(lamp + 3))
            bright = tl.load(base + 9) + share * (tl.load(after + 9) - tl.load(base + 9)) + tl.load(lamp) * flicker
            haze = tl.load(base + 10) + share * (tl.load(after + 10) - tl.load(base + 10))
            cover = tl.minimum(tl.maximum(cover, 0.0), 1.0)
            total += tl.where(hit, clear * (tl.maximum(colour, 0.0) * bright + cover * haze), 0.0)
            clear *= tl.where(hit, 1.0 - cover, 1.0)
    return total + tl.where(clear >= _SEEN_THROUGH, clear, 0.0) * sky


@triton.jit
def _advance_kernel(maps, light, slots, first, ids, steps_us, sky, focals, light_table,
           alpha_table, theta_on, theta_off, log_light, receptor, reference, release,
           log_light_out, receptor_out, reference_out, release_out, circuits, keys,
           counter, capacity, length_us, height, width, tiles, columns,
           surfaces, knots, tile_size: tl.constexpr):  # fmt: skip
    """One tile of one recording through the stretch: ``pixels_cpu.advance_tile``."""
    program = tl.program_id(0)
    recording = (program // tiles).to(tl.int64)
    tile = program % tiles
    offset = tl.arange(0, tile_size * tile_size)
    row = (tile // columns) * tile_size + offset // tile_size
    column = (tile % columns) * tile_size + offset % tile_size
    inside = (row < height) & (column < width)
    x, y = column.to(tl.float32) + 0.5, row.to(tl.float32) + 0.5
    pixel = recording * height * width + row * width + column
    on = tl.load(theta_on + pixel, mask=inside, other=1.0)
    off = tl.load(theta_off + pixel, mask=inside, other=1.0)
    u0 = tl.load(log_light + pixel, mask=inside, other=0.0)
    v0 = tl.load(receptor + pixel, mask=inside, other=0.0)
    m = tl.load(reference + pixel, mask=inside, other=0.0)
    r = tl.load(release + pixel, mask=inside, other=-1.0)
    circuit = circuits + recording * 6
    dark, cutoff, floor = tl.load(circuit), tl.load(circuit + 1), tl.load(circuit + 2)
    refractory, leak, max_change = tl.load(circuit + 3), tl.load(circuit + 4), tl.load(circuit + 5)
    begin = tl.load(first + recording * (tiles + 1) + tile).to(tl.int32)
    end = tl.load(first + recording * (tiles + 1) + tile + 1).to(tl.int32)
    longest = tl.load(steps_us + recording * tiles + tile)
    focal = tl.load(focals + recording)
    drift = leak * on
    step = longest
    now = longest * 0.0
    while now < length_us:
        rest = length_us - now
        step = tl.where(rest <= 2 * _MIN_STEP_US, rest, tl.minimum(step, rest))
        then = now + step
        knot = tl.minimum((then / _KNOT_US).to(tl.int32), knots - 2)
        share = then / _KNOT_US - knot.to(tl.float32)
        at_knot = sky + (recording * knots + knot) * 3
        horizon = tl.load(at_knot) + share * (tl.load(at_knot + 3) - tl.load(at_knot))
        low = tl.load(at_knot + 1) + share * (tl.load(at_knot + 4) - tl.load(at_knot + 1))
        high = tl.load(at_knot + 2) + share * (tl.load(at_knot + 5) - tl.load(at_knot + 2))
        above = tl.minimum(tl.maximum((horizon - y) / focal, 0.0), 1.0)
        seen = _shade(x, y, then, knot, share, recording, begin, end, maps, light, slots, ids, light_table,
                      alpha_table, low + above * (high - low), surfaces, knots)  # fmt: skip
        u1 = tl.log(seen + dark)
        corner = tl.where(cutoff > 0.0, cutoff, 1.0) * tl.maximum(floor, tl.minimum(seen, 1.0))
        lag = (u1 - u0) / step / corner
        v1 = tl.where(cutoff > 0.0, u1 - lag + (v0 - u0 + lag) * tl.exp(-step * corner), u1)
        largest = tl.max(tl.where(inside, tl.abs(v1 - v0), 0.0), 0)
        if (largest > max_change) & (step > 2 * _MIN_STEP_US):
            step = tl.maximum(step * tl.maximum(0.9 * max_change / largest, 0.25), _MIN_STEP_US)
        else:
            slope = (v1 - v0) / step
            rate = slope + drift
            start = tl.maximum(r, now)
            resetting = (r >= 0.0).to(tl.int32)
            busy = ((r <= then) & inside).to(tl.int32)
            while tl.sum(busy, 0) > 0:
                level = v0 + slope * (start - now)
                m = tl.where((resetting > 0) & (busy > 0), level, m)
                at = level - m
                finish = at + rate * (then - start)
                up = (busy > 0) & (finish >= on) & (rate > 0.0)
                fires = up | ((busy > 0) & (finish <= -off) & (rate < 0.0))
                target = tl.where(up, on, -off)
                crossing = start + tl.maximum((target - at) / tl.where(fires, rate, 1.0), 0.0)
                crossing = tl.minimum(crossing, then)
                done = (busy > 0) & (fires == 0)
                m = tl.where(done, m - drift * (then - start), m)
                r = tl.where(done, -1.0, tl.where(fires, crossing + refractory, r))
                ones = fires.to(tl.int32)
                count = tl.sum(ones, 0)
                if count > 0:
                    slot = tl.atomic_add(counter, count.to(tl.int64)) + tl.cumsum(ones, 0) - 1
                    key = (tl.floor(crossing + 0.5).to(tl.int64) + _OFFSET) << 29
                    key = key | (row.to(tl.int64) << 15) | (column.to(tl.int64) << 1) | up.to(tl.int64)
                    tl.store(keys + slot, (recording << 48) | key, mask=fires & (slot < capacity))
                start = tl.where(fires, r, start)
                resetting = ones
                busy = (fires & (r <= then)).to(tl.int32)
            u0, v0 = u1, v1
            now = then
            grown = step * tl.minimum(0.9 * max_change / tl.maximum(largest, 1e-6), 2.0)
            step = tl.maximum(tl.minimum(longest, grown), _MIN_STEP_US)
    tl.store(log_light_out + pixel, u0, mask=inside)
    tl.store(receptor_out + pixel, v0, mask=inside)
    tl.store(reference_out + pixel, m, mask=inside)
    tl.store(release_out + pixel, tl.where(r > length_us, r - length_us, -1.0), mask=inside)


class GpuPixels:
    """The pixels of a batch of recordings, and the room for their events."""

    def __init__(
        self, pixels: PixelState[Tensor], circuits: Tensor, light_table: Tensor, alpha_table: Tensor, room: int
    ) -> None:
        """Args:
        pixels: their state at the start.
        circuits: [B, 6] float32: dark light, cutoff, its floor, refractory µs, leak, largest change; see ``Circuit``.
        light_table, alpha_table: of the atlases of all recordings, concatenated, int32.
        room: events of one stretch that fit at first; more is made when they do not.
        """
        self.state, self.circuits = pixels, circuits
        self._tables = light_table, alpha_table
        self._next = tuple(torch.empty_like(state) for state in pixels[2:])
        self._keys = torch.empty(room, dtype=torch.int64, device=pixels.receptor.device)

    def advance(self, batch: StretchBatch, length_us: float) -> Tensor:
        """All events of the stretch as keys, unsorted; the pixels move on to its end."""
        count, height, width = self.state.receptor.shape
        tiles, columns = batch.step_us.shape[1], -(-width // TILE)
        surfaces, knots = batch.maps.shape[2], batch.maps.shape[1]
        while True:
            counter = torch.zeros(1, dtype=torch.int64, device=self._keys.device)
            _advance_kernel[(count * tiles,)](
                *batch, *self._tables,
                *self.state, *self._next, self.circuits, self._keys, counter, len(self._keys), length_us,
                height, width, tiles, columns, surfaces, knots, TILE, num_warps=1,
            )  # fmt: skip
            found = int(counter)
            if found <= len(self._keys):
                break
            self._keys = torch.empty(found + found // 4, dtype=torch.int64, device=self._keys.device)
        before = self.state
        self.state = PixelState(before.theta_on, before.theta_off, *self._next)
        self._next = before[2:]
        return self._keys[:found]
