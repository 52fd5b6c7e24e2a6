"""Procedural textures: light [rows, columns] within 0 to 1, drawn from a generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.spatial import cKDTree

from fate.simulation.arrays import Float32
from fate.simulation.art.catalogue import Catalogue, Split
from fate.simulation.art.panels import Canvas, oval, smooth_noise

Draw: TypeAlias = Callable[[np.random.Generator, int, int], Float32]


def _grid(rows: int, columns: int) -> tuple[Float32, Float32]:
    """v [rows, columns] and u, the centres of square texels; the shorter side runs from -1 to 1."""
    v, u = np.mgrid[:rows, :columns].astype(np.float32) + np.float32(0.5)
    return (2 * v - rows) / min(rows, columns), (2 * u - columns) / min(rows, columns)


def two_lights(rng: np.random.Generator) -> tuple[float, float]:
    """A darker and a brighter reflectance with a contrast that can be seen."""
    dark = float(rng.uniform(0.02, 0.3))
    return dark, min(dark * float(rng.uniform(2.0, 10.0)) + 0.05, 0.95)


def noise(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """Blotches of several sizes."""
    total = np.zeros((rows, columns), np.float32)
    finest, fall = rng.uniform(4, 6.5), rng.uniform(0.6, 1.1)
    for octave in np.arange(1.0, finest):
        cells = (
            max(int(2**octave * rows / max(rows, columns)), 1),
            max(int(2**octave * columns / max(rows, columns)), 1),
        )
        total += fall**octave * (smooth_noise(rng, rows, columns, cells) - 0.5)
    dark, bright = two_lights(rng)
    return np.asarray(dark + (bright - dark) * np.clip(0.5 + 0.35 * total / total.std(), 0, 1), np.float32)


def cells(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """Stones or tiles of irregular shape, each with a light of its own, between dark joints."""
    count = int(rng.integers(30, 400))
    v, u = np.mgrid[:rows, :columns]
    sites = rng.uniform(0, 1, (count, 2)) * (rows, columns)
    distance, nearest = cKDTree(sites).query(np.stack([v, u], -1).reshape(-1, 2), k=2)
    dark, bright = two_lights(rng)
    light = rng.uniform(dark, bright, count)[nearest[:, 0]]
    joint = distance[:, 1] - distance[:, 0] < rng.uniform(0.05, 0.15) * np.sqrt(rows * columns / count)
    return np.where(joint, 0.5 * dark, light).reshape(rows, columns).astype(np.float32)


def wood(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """Planks with grain along the columns' direction."""
    base = float(rng.uniform(0.1, 0.5))
    grain = smooth_noise(rng, rows, columns, (max(rows // 3, 1), 4)) + smooth_noise(
        rng, rows, columns, (rows // 9 + 1, 2)
    )
    light = base * (0.7 + 0.3 * grain)
    plank = int(rng.integers(12, 50))
    light *= np.repeat(rng.uniform(0.8, 1.15, rows // plank + 1), plank)[:rows, None]
    light[::plank] *= 0.5
    return np.asarray(light, np.float32)


def bricks(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """Bricks or tiles in courses, shifted against each other or not."""
    high, wide = int(rng.integers(7, 24)), int(rng.integers(10, 40))
    course = np.arange(rows) // high
    shifted = np.arange(columns)[None, :] + (course * int(rng.choice([0, wide // 2])))[:, None]
    dark, bright = two_lights(rng)
    number = (course[:, None] * 31 + shifted // wide) % 97
    light = rng.uniform(0.7, 1.0, 97)[number] * bright
    light[(np.arange(rows) % high == 0)[:, None] | (shifted % wide == 0)] = dark
    return np.asarray(light, np.float32)


def stripes(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """Bars at any angle, sharp or soft."""
    v, u = _grid(rows, columns)
    angle, count = rng.uniform(0, np.pi), rng.uniform(2, 25)
    wave = np.sin(np.pi * count * (u * np.cos(angle) + v * np.sin(angle)))
    dark, bright = two_lights(rng)
    return np.asarray(dark + (bright - dark) * np.clip(0.5 + rng.choice([0.5, 1.5, 20.0]) * wave, 0, 1), np.float32)


def chequers(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """A chequerboard with a white border, of whole texels."""
    across = int(rng.integers(5, 13))
    size = max(columns // (across + 2), 2)
    v, u = np.mgrid[:rows, :columns] // size - 1
    inside = (v >= 0) & (v < rows // size - 2) & (u >= 0) & (u < columns // size - 2)
    return np.where(inside & ((u + v) % 2 == 0), 0.04, 0.85).astype(np.float32)


def dots(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """A grid of discs, dark on bright or the other way round; every second row may be shifted."""
    v, u = _grid(rows, columns)
    count, shift = int(rng.integers(5, 12)), float(rng.choice([0.0, 0.5]))
    line = np.floor(v * count / 2)
    x = np.mod(u * count / 2 + shift * np.mod(line, 2), 1) - 0.5
    y = v * count / 2 - line - 0.5
    disc = np.clip((rng.uniform(0.2, 0.42) - np.hypot(x, y)) * min(rows, columns) / count + 0.5, 0, 1)
    light = 0.85 - 0.81 * disc
    return np.asarray(light if rng.random() < 0.6 else 0.89 - light, np.float32)


def star(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """A star of wedges around the middle."""
    v, u = _grid(rows, columns)
    wave = np.sin(int(rng.integers(3, 18)) * np.arctan2(v, u)) * np.hypot(u, v)
    return np.asarray(0.45 + 0.4 * np.clip(wave * 20, -1, 1), np.float32)


def rings(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """Circles around the middle, or a spiral."""
    v, u = _grid(rows, columns)
    arms = int(rng.integers(-2, 3))
    wave = np.sin(np.pi * rng.uniform(4, 14) * np.hypot(u, v) + arms * np.arctan2(v, u))
    return np.asarray(0.45 + 0.4 * np.clip(wave * 4, -1, 1), np.float32)


def shapes(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """Plain shapes on a board: discs, triangles, boxes and crosses."""
    wide = columns / rows
    dark, bright = two_lights(rng)
    if rng.random() < 0.5:
        dark, bright = bright, dark
    canvas = Canvas((0, 0, wide, 1), columns, rows, light=bright)
    for _ in range(int(rng.integers(4, 16))):
        x, y, size, corners = rng.uniform(0, wide), rng.uniform(0, 1), rng.uniform(0.03, 0.14), int(rng.integers(3, 7))
        corners = 24 if corners == 6 else corners
        angle, light = rng.uniform(0, 6.3), float(rng.uniform(0.7, 1.0) * dark)
        points = np.array(oval(0, 0, size, size * rng.uniform(0.5, 1), corners))
        cos, sin = np.cos(angle), np.sin(angle)
        canvas.fill([(x + cos * a - sin * b, y + sin * a + cos * b) for a, b in points.tolist()], light)
    return canvas.texture().light


def text(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """Lines of words in made-up letters, with headings, on paper."""
    page = np.full((rows, columns), rng.uniform(0.7, 0.9), np.float32)
    ink, margin, height = rng.uniform(0.03, 0.15), columns // 12, int(rng.integers(6, 10))
    letters = rng.random((26, height - 1, height - 3)) < 0.25
    for strokes in letters:
        strokes[:, rng.integers(0, 2) * -1] |= True
        strokes[rng.integers(0, height - 1)] |= True
    line = height
    while line + 2 * height < rows:
        scale = 2 if rng.random() < 0.08 else 1
        column, end = margin, columns - margin - (rng.random() < 0.2) * rng.uniform(0.1, 0.6) * columns
        while column < end - scale * height:
            if rng.random() < 0.82:
                letter = np.kron(letters[rng.integers(26)], np.ones((scale, scale), np.bool_))
                part = page[line : line + letter.shape[0], column : column + letter.shape[1]]
                part[letter[: part.shape[0], : part.shape[1]]] = ink
            column += scale * (height - 2)
        line += int(scale * height * 1.5) + (height if rng.random() < 0.1 else 0)
    return page


def books(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """A shelf full of books: spines with titles, some gaps, boards between the rows."""
    board, shelf = float(rng.uniform(0.08, 0.6)), int(rng.integers(28, 48))
    light = np.full((rows, columns), 0.03, np.float32)
    for bottom in range(shelf, rows + shelf, shelf):
        column = 0
        while column < columns:
            wide, tall = int(rng.integers(3, 9)), int(rng.uniform(0.55, 0.9) * shelf)
            if rng.random() < 0.9:
                spine = light[max(bottom - tall, 0) : bottom, column : column + wide]
                spine[:] = rng.choice([0.04, 0.1, 0.2, 0.35, 0.6, 0.8]) * rng.uniform(0.7, 1.2)
                spine[3 : 3 + int(rng.integers(2, 6)), 1:-1] = rng.uniform(0.05, 0.8)
                spine[:, -1] *= 0.5
            column += wide
        light[bottom - 3 : bottom] = board
    light[:2], light[:, :3], light[:, -3:] = board, board, board
    return light


def keyboard(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    """Five rows of keys."""
    keys, gap = rng.choice([0.04, 0.7]), rng.choice([0.02, 0.3])
    light = np.full((rows, columns), gap, np.float32)
    high, wide = rows // 5, columns // 15
    for row in range(5):
        for left in range((row * wide) // 4, columns - wide, wide):
            light[row * high + 1 : (row + 1) * high - 1, left + 1 : left + wide - 1] = keys
            light[row * high + high // 2, left + wide // 2] = 0.75 - keys
    light[4 * high + 1 : 5 * high - 1, 4 * wide : 10 * wide] = keys
    return light


#: Textures for walls, boards and discs.
TEXTURES: Catalogue[Draw] = Catalogue(
    {
        "noise": noise, "wood": wood, "bricks": bricks, "stripes": stripes, "chequers": chequers, "star": star,
        "shapes": shapes, "text": text, "books": books,
    },
    {"cells": cells, "dots": dots, "rings": rings},
)  # fmt: skip


def draw_texture(rng: np.random.Generator, split: Split, rows: int, columns: int) -> Float32:
    """Draw any of the textures that a split may use."""
    return TEXTURES.styles[TEXTURES.choose(rng, split)](rng, rows, columns)
