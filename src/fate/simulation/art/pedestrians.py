"""Pedestrians: flat figures that always turn towards the camera and walk with swinging legs and arms.

A figure has few parts, so that it stays a figure at 40 pixels: two legs that swing at the hips against each other,
two arms that swing at the shoulders against the legs, and one piece of trunk, clothes and head. It is drawn so that
it reads as seen from the front as well as from the side. Each style has fixed outlines, stretched to the person's
size; drawings are for a person 1 m tall, heights from the ground up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fate.simulation.art.catalogue import Catalogue
from fate.simulation.art.panels import Body, Canvas, Panel, Point, Swing, Texture, oval, vector

LEG_SWING = 0.45  # rad to either side of upright
ARM_SWING = 0.38
_HIP = 0.50  # of the height
_SHOULDER = 0.80
_HALF = 0.15  # half the width of the trunk's picture, of the height
_LEG_AT = 0.024  # hips, off the middle
_ARM_AT = 0.095  # shoulders, off the middle


@dataclass(frozen=True)
class Style:
    """What a style wears."""

    heights: tuple[float, float] = (1.55, 1.90)  #: range of a person's size, m
    girth: tuple[float, float] = (0.92, 1.15)  #: range of how much wider than slim
    upper: tuple[float, float] = (0.05, 0.65)  #: range of reflectance of the jacket, coat or shirt
    lower: tuple[float, float] = (0.03, 0.12)  #: range of reflectance of the trousers or legs
    hem: float | None = None  #: lower end of the coat or skirt, of the height; None for trousers only
    hair: Literal["short", "long", "hood"] = "short"
    load: Literal["none", "bag", "pack"] = "none"  #: a bag at the hip, or a pack on the back
    bare_arms: bool = False  #: whether the arms show skin


PEDESTRIANS = Catalogue.load("pedestrians", Style)


@dataclass(frozen=True)
class Look:
    """How much light each part of one person reflects."""

    upper: float
    lower: float
    skin: float
    hair: float
    load: float
    shoes: float


def make_pedestrian(rng: np.random.Generator, style: str) -> Body:
    """A walking person (a name in ``PEDESTRIANS``), a billboard; a full turn of the gait phase is two steps."""
    wears = PEDESTRIANS.styles[style]
    low, high = wears.upper
    middle = 0.5 * (low + high)  # half of the people are dark and half are bright, so that a crowd has contrast
    upper = float(rng.uniform(low, middle) if rng.random() < 0.5 else rng.uniform(middle, high))
    look = Look(
        upper=upper,
        lower=float(rng.uniform(*wears.lower)),
        skin=float(rng.uniform(0.14, 0.40)),
        hair=float(rng.choice([0.02, 0.04, 0.10, 0.25, 0.45])),
        load=float(rng.uniform(0.04, 0.12) if upper > 0.25 else rng.uniform(0.25, 0.6)),
        shoes=float(0.5 if rng.random() < 0.25 else 0.03),
    )
    height, girth = float(rng.uniform(*wears.heights)), float(rng.uniform(*wears.girth))
    head = 0.13 if style == "child" else 0.105
    arms = look.skin if wears.bare_arms else 0.8 * look.upper
    parts = [
        _arm_panel(arms, look.skin, _ARM_AT, 0.0),
        _leg_panel(0.7 * look.lower, look.shoes, _LEG_AT, np.pi),
        _leg_panel(look.lower, look.shoes, -_LEG_AT, 0.0),
        _trunk_panel(wears, look, head),
        _arm_panel(arms, look.skin, -_ARM_AT, np.pi),
    ]
    scale = vector(height * girth, height, height * girth)
    panels = tuple(part.scaled(scale, about=vector(0, 0, 0)) for part in parts)
    width = 2 * _HALF * height * girth
    return Body(style, "pedestrian", panels, width, width, height, facing=True)


def _trunk_panel(wears: Style, look: Look, head: float) -> Panel:
    """Clothes from the shoulders down to the hem, head and load, 48 × 96."""
    bottom = _HIP - 0.04 if wears.hem is None else wears.hem
    canvas = Canvas((-_HALF, 1.0, _HALF, bottom), 48, 96)
    if wears.load == "pack":
        canvas.fill(_rounded(0.045, 0.56, 0.15, 0.84), look.load)
    shoulder = _SHOULDER + 0.025
    hem = 0.075 if wears.hem is None else 0.115
    right = [(0.035, shoulder + 0.025), (0.115, shoulder - 0.005), (0.105, 0.66), (0.088, 0.57), (0.095, _HIP)]
    right.append((hem, bottom))
    canvas.fill((*right, *((-x, y) for x, y in right[::-1])), (look.upper, 0.8 * look.upper))
    if wears.hem is None:
        canvas.rect(-0.10, _HIP + 0.02, 0.10, bottom, look.lower)
    else:
        canvas.rect(-0.09, 0.585, 0.09, 0.565, 0.5 * look.upper)
    canvas.rect(-0.006, shoulder, 0.006, 0.60, 0.6 * look.upper)
    if wears.load == "bag":
        canvas.line(((-0.07, shoulder), (0.10, 0.55)), 0.016, look.load)
        canvas.fill(_rounded(0.055, 0.43, 0.145, 0.55), look.load)
    if wears.load == "pack":
        for x in (-0.06, 0.06):
            canvas.line(((x, shoulder), (x, 0.64)), 0.018, look.load)
    _draw_head(canvas, wears, look, head)
    return canvas.upright()


def _draw_head(canvas: Canvas, wears: Style, look: Look, size: float) -> None:
    """A neck and an oval head whose crown is at height 1."""
    half = 0.40 * size
    centre = 1.0 - 0.62 * size
    canvas.rect(-0.026, centre, 0.026, _SHOULDER + 0.02, 0.8 * look.skin)
    if wears.hair == "hood":
        canvas.fill(oval(0.0, 1.0 - 0.66 * size, 1.45 * half, 0.66 * size), look.upper)
        canvas.fill(oval(0.01, centre - 0.01, 0.8 * half, 0.42 * size), look.skin)
        return
    low = centre - (0.95 if wears.hair == "long" else 0.30) * size
    canvas.fill(_rounded(-1.15 * half, max(low, 0.74), 1.15 * half, 1.0), look.hair)
    canvas.fill(oval(0.008, centre - 0.02 * size, half, 0.52 * size), look.skin)
    canvas.fill(_rounded(-1.1 * half, 1.0 - 0.30 * size, 1.1 * half, 1.0), look.hair)


def _leg_panel(trousers: float, shoes: float, x: float, phase: float) -> Panel:
    """A leg and its shoe, 24 × 64, toes a little to the right."""
    canvas = Canvas((-0.5, 1.0, 0.5, 0.0), 24, 64)
    canvas.fill(((-0.42, 1.0), (0.42, 1.0), (0.36, 0.55), (0.26, 0.06), (-0.26, 0.06), (-0.32, 0.55)), trousers)
    canvas.fill(((-0.32, 0.09), (0.28, 0.09), (0.5, 0.03), (0.5, 0.0), (-0.34, 0.0)), shoes)
    return _limb_panel(canvas.texture(), x, _HIP, _HIP, 0.12, LEG_SWING, phase)


def _arm_panel(sleeve: float, skin: float, x: float, phase: float) -> Panel:
    """An arm with its hand, 16 × 48."""
    canvas = Canvas((-0.5, 1.0, 0.5, 0.0), 16, 48)
    canvas.fill(((-0.5, 0.94), (-0.2, 1.0), (0.2, 1.0), (0.5, 0.94), (0.34, 0.12), (-0.34, 0.12)), sleeve)
    canvas.fill(oval(0.0, 0.09, 0.34, 0.09), skin)
    return _limb_panel(canvas.texture(), x, _SHOULDER, 0.36, 0.075, ARM_SWING, phase)


def _limb_panel(
    texture: Texture, x: float, top: float, length: float, width: float, amplitude: float, phase: float
) -> Panel:
    """A panel hanging from (x, top); the pivot lies a little below its upper end, inside the body."""
    swing = Swing(vector(x, -(top - 0.02), 0), amplitude, phase)
    corner, across = vector(x - width / 2, -top, 0), vector(width, 0, 0)
    return Panel(texture, corner, across, vector(0, length, 0), faces="both", swing=swing)


def _rounded(x0: float, y0: float, x1: float, y1: float) -> tuple[Point, ...]:
    """A box with its corners taken off."""
    cut = 0.28 * min(abs(x1 - x0), abs(y1 - y0))
    return (
        (x0 + cut, y0), (x1 - cut, y0), (x1, y0 + cut), (x1, y1 - cut),
        (x1 - cut, y1), (x0 + cut, y1), (x0, y1 - cut), (x0, y0 + cut),
    )  # fmt: skip
