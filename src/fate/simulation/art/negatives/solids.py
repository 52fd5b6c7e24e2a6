"""Round things: balls, limbs and heads, drawn as shaded pictures of solids.

A solid is a capsule, the space within a distance of a line between two points; the distance may differ at its ends.
Balls, fingers, arms, noses and skulls are all capsules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fate.simulation.arrays import Float32
from fate.simulation.art.panels import Texture


class Solid(NamedTuple):
    """A capsule; x right, y down, metres. Of overlapping ones the nearest is seen."""

    x0: float
    y0: float
    r0: float  #: radius at the first end
    x1: float
    y1: float
    r1: float  #: radius at the second end
    light: float  #: reflectance
    near: float = 0.0  #: metres its middle line is nearer to the viewer
    gloss: float = 0.0  #: reflectance of its highlight


def shade_solids(
    solids: Sequence[Solid], window: tuple[float, float, float, float], columns: int, rows: int, lamp: Sequence[float]
) -> Texture:
    """Draw solids, lit from the direction ``lamp`` (x right, y down, z towards the viewer).

    ``window`` is (left, top, right, bottom) in metres.
    """
    left, top, right, bottom = window
    texel = (right - left) / columns
    y, x = np.meshgrid(top + (np.arange(rows) + 0.5) * (bottom - top) / rows, left + (np.arange(columns) + 0.5) * texel,
                       indexing="ij")  # fmt: skip
    towards = np.asarray(lamp) / np.linalg.norm(lamp)
    depth, light, alpha = np.full(x.shape, -np.inf), np.zeros(x.shape), np.zeros(x.shape)
    for each in solids:
        dx, dy = each.x1 - each.x0, each.y1 - each.y0
        along = ((x - each.x0) * dx + (y - each.y0) * dy) / max(dx * dx + dy * dy, 1e-12)
        along = np.clip(along, 0, 1)
        radius = each.r0 + (each.r1 - each.r0) * along
        across, below = (x - each.x0 - along * dx) / radius, (y - each.y0 - along * dy) / radius
        away = np.hypot(across, below)
        rise = np.sqrt(np.clip(1 - away * away, 0, 1))
        height = np.where(away < 1 + 0.5 * texel / radius, each.near + radius * rise, -np.inf)
        slant = np.clip(across * towards[0] + below * towards[1] + rise * towards[2], 0, 1)
        shade = each.light * (0.22 + 0.78 * slant) + each.gloss * slant**40
        light = np.where(height > depth, shade, light)
        alpha = np.maximum(alpha, np.clip((1 - away) * radius / texel + 0.5, 0, 1))
        depth = np.maximum(depth, height)
    return Texture(np.clip(light, 0, 1).astype(np.float32), alpha.astype(np.float32))


def ball(rng: np.random.Generator, style: str, texels: int = 96) -> Texture:
    """A sphere that fills its picture: ``matte``, ``steel`` (it reflects a room), ``striped`` or ``spotted``."""
    lamp = rng.uniform(-0.7, 0.7), -rng.uniform(0.2, 1.0), 0.7
    reflectance = float(rng.uniform(0.08, 0.9))
    sphere = shade_solids(
        [Solid(0, 0, 1, 0, 0, 1, reflectance, gloss=float(rng.uniform(0, 0.6)))], (-1, -1, 1, 1), texels, texels, lamp
    )
    y, x = np.mgrid[:texels, :texels] * (2 / texels) + 1 / texels - 1
    rise = np.sqrt(np.clip(1 - x * x - y * y, 0, 1))
    light: Float32 = sphere.light
    if style == "steel":
        bent = np.arctan2(y, rise + 0.3) + 0.2 * x * rng.uniform(-1, 1)
        bands = 0.35 - 0.3 * np.tanh(6 * (bent + 0.2)) + 0.35 * (bent > 0.6)
        windows = 0.9 * ((np.abs(x + rng.uniform(-0.5, 0.5)) < 0.15) & (np.abs(y + 0.45) < 0.15))
        light = np.clip(np.maximum(0.05 + bands * (0.3 + 0.7 * rise), windows), 0, 1).astype(np.float32)
    elif style in ("striped", "spotted"):
        v, u = np.arcsin(np.clip(y, -1, 1)), np.arctan2(x, rise + 1e-6)
        count = int(rng.integers(2, 5))
        pattern = np.sin(count * u) if style == "striped" else np.sin(2 * count * u) * np.sin(2 * count * v) - 0.2
        light = np.where(pattern > 0, light, light * rng.uniform(0.1, 0.4)).astype(np.float32)
    return Texture(light, sphere.alpha)
