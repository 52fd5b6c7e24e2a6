"""Flat patterns: textures that move, boards for calibration, pages of text, plain shapes and bars."""

from __future__ import annotations

import numpy as np

from fate.simulation.art.catalogue import Catalogue, Split
from fate.simulation.art.negatives import textures
from fate.simulation.art.negatives.backdrop import add_backdrop
from fate.simulation.art.negatives.hands import make_hand
from fate.simulation.art.negatives.paths import hold, numbers, sway
from fate.simulation.art.negatives.world import Contents, Negative, indoor_light, turning, upright
from fate.simulation.art.panels import Canvas, vector

BOARDS: Catalogue[textures.Draw] = Catalogue(
    {"chequers": textures.chequers, "star": textures.star, "shapes": textures.shapes},
    {"dots": textures.dots, "stripes": textures.stripes},
)


def moving_texture(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """A texture that fills the view and moves, or a camera that moves before it."""
    contents, size = Contents(), rng.uniform(5, 9)
    light = textures.draw_texture(rng, split, 360, 420)
    panels = turning(upright(light, size * 7 / 6, size))
    reach = numbers(
        rng.uniform(0, 0.4), rng.uniform(0, 0.3), rng.uniform(0, 0.3), rng.uniform(0, 0.8), rng.uniform(0, 0.3)
    )
    drift = numbers(gait=rng.normal(0, 0.5))
    path = sway(rng, numbers(z=2.0), rng.choice([0.2, 1.0]) * reach, float(rng.uniform(0.3, 1.5)), drift)
    contents.add("texture", panels, path)
    return Negative(hold(rng, seconds, rng.choice([0.0, 0.03])), contents, indoor_light(rng), 0.0, 0.5)


def moving_bars(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """A few bars, edges and cards that cross the view before a wall."""
    contents = Contents()
    for _ in range(int(rng.integers(1, 5))):
        wide, tall = np.exp(rng.uniform(np.log(0.02), np.log(1.0), 2))
        light = textures.draw_texture(rng, split, 128, 128) if rng.random() < 0.3 else rng.uniform(0.02, 0.9)
        spin = rng.choice([0.0, rng.normal(0, 3)])
        reach = numbers(rng.uniform(0.1, 0.7), 0.1, rng.uniform(0, 0.5), rng.uniform(0, 0.5), rng.uniform(0, 0.4))
        middle = numbers(rng.normal(0, 0.3), rng.uniform(0.6, 1.8), y=rng.normal(0, 0.2))
        path = sway(rng, middle, reach, rng.uniform(0.2, 0.8), numbers(gait=spin))
        contents.add("bar", turning(upright(light, wide, tall)), path)
    add_backdrop(rng, split, contents, 2.5, 0.0)
    return Negative(hold(rng, seconds), contents, indoor_light(rng), 0.0, 0.5)


def calibration_board(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """A board with a pattern, held by a hand and turned before the camera."""
    contents = Contents()
    light = BOARDS.styles[BOARDS.choose(rng, split)](rng, 112, int(rng.integers(112, 170)))
    width = rng.uniform(0.3, 0.7)
    height = width * light.shape[0] / light.shape[1]
    panels = upright(light, width, height)
    if rng.random() < 0.6:  # the thumb lies on the board
        hand = make_hand(rng, fingers=0.0)
        panels += [panel.scaled(1.0, vector(-width / 2, -height / 3, 0)) for panel in hand]
    middle = numbers(rng.normal(0, 0.08), rng.uniform(0.45, 1.1), y=rng.normal(0, 0.05))
    reach = numbers(rng.uniform(0.05, 0.3), rng.uniform(0, 0.15), rng.uniform(0, 0.8), rng.uniform(0, 0.4), 0.15)
    contents.add("board", turning(panels), sway(rng, middle, reach, rng.uniform(0.3, 1.2)))
    add_backdrop(rng, split, contents, rng.uniform(1.8, 3.5), 0.0)
    return Negative(hold(rng, seconds, rng.choice([0.0, 0.02])), contents, indoor_light(rng), 0.0, 0.5)


def text_page(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Pages of text: a camera that passes over them, or a page that is moved."""
    contents, still = Contents(), rng.random() < 0.5
    pages = int(rng.integers(1, 4))
    for number in range(pages):
        page = turning(upright(textures.text(rng, 300, 220), 0.42, 0.6))
        middle = numbers(
            (number - (pages - 1) / 2) * 0.5 * rng.uniform(0.7, 1.1), 0.4 + 0.01 * number, gait=rng.normal(0, 0.2)
        )
        reach = numbers(0.1, 0.02, 0.1, 0.1, 0.1) * float(still)
        contents.add("page", page, sway(rng, middle, reach, rng.uniform(0.3, 1.5)))
    add_backdrop(rng, split, contents, 0.5, 0.0)
    shake = 0.0 if still else rng.uniform(0.05, 0.2)
    return Negative(hold(rng, seconds, shake, room=0.2), contents, indoor_light(rng), 0.0, 0.5)


def swinging(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Cards with a hole, rulers and cables that dangle before the camera."""
    contents = Contents()
    for _ in range(int(rng.integers(1, 4))):
        canvas = Canvas((-0.3, -0.3, 0.3, 0.3), 120, 120)
        light = float(rng.uniform(0.03, 0.8))
        style = rng.integers(3)
        if style == 0:
            turns = np.cumsum(rng.normal(0, 0.5, 16))
            points = np.cumsum(np.stack([0.045 * np.cos(turns), 0.045 * np.sin(turns)], 1), axis=0)
            canvas.line([(float(x), float(y)) for x, y in points - points.mean(axis=0)], 0.014, light)
        elif style == 1:
            canvas.rect(-0.25, -0.02, 0.25, 0.02, light)
            for tick in np.arange(-0.24, 0.25, 0.02):
                canvas.rect(tick, -0.02, tick + 0.004, 0.0, 0.8 - light)
        else:
            canvas.disc(0, 0, 0.2, light)
            canvas.disc(0, 0, 0.15, (0.9, 0.3))
            canvas.disc(0.0, 0.0, 0.05, 0.03)
        drawn = canvas.texture()
        middle = numbers(rng.normal(0, 0.25), rng.uniform(0.5, 1.2), y=rng.normal(0, 0.15))
        path = sway(rng, middle, numbers(0.2, 0.1, 0.5, 0.8, 0.15), rng.uniform(0.3, 1.0))
        contents.add("card", turning(upright(drawn.light, 0.6, 0.6, alpha=drawn.alpha)), path)
    add_backdrop(rng, split, contents, 2.5, 0.0)
    return Negative(hold(rng, seconds), contents, indoor_light(rng), 0.0, 0.5)
