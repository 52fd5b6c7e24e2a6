"""People with the bodies of a parametric body model, in clothes, who walk, run, stand, sit or crouch.

``data/people.npz`` holds pictures of body parts, each for eight directions of view (see ``scripts/bake_people.py``). A
person is a billboard whose panels are these parts, dressed and carried by the bones of :class:`Skeleton`. Sizes are
those of the body model, times a factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fate.errors import FateError
from fate.simulation.arrays import Float32, Float64
from fate.simulation.art import clothes
from fate.simulation.art.catalogue import Catalogue, Split
from fate.simulation.art.clothes import DIRECTIONS, Outfit
from fate.simulation.art.panels import Body, Canvas, Panel, Texture, vector
from fate.simulation.art.skeleton import BONES, MOTIONS, Motion, Skeleton, make_skeleton

_VIEWS = len(DIRECTIONS)
_STEPS = 63.0  # values of the pictures are stored in units of one 63rd
_FAR_SIDE = 0.82  # light on the limbs of the side away from the camera


@dataclass(frozen=True)
class Build:
    """The build of a person."""

    skirts: float = 0.0  #: share who wear one
    long_hair: float = 0.05  #: share who have it
    sizes: tuple[float, float] = (0.95, 1.06)  #: range of sizes, 1 is that of the body model


#: Names of bodies in ``data/people.npz``.
PEOPLE = Catalogue.load("people", Build)


class Picture(NamedTuple):
    """One part of a body, seen from one direction."""

    channels: Float32  #: [c, h, w] coverage, normal to the right and down within -1..1; of heads hair and skin too
    window: Float64  #: left, top, right, bottom in metres from the joint

    def mirrored(self) -> Picture:
        """The same part of the other side."""
        channels = self.channels[:, :, ::-1].copy()
        channels[1] = -channels[1]
        return Picture(channels, self.window[[2, 1, 0, 3]] * (-1, 1, -1, 1))


class Anatomy(NamedTuple):
    """A naked body at rest."""

    pictures: dict[tuple[str, str], tuple[Picture, ...]]  #: eight views by part and by side, "left" or "right"
    joints: dict[str, Float64]  #: by part, (right, down, forward) in metres from the ground under the hips
    soles: tuple[float, float]  #: forward position of heel and toes
    height: float

    def spread(self, part: str) -> tuple[float, float]:
        """The width of a part, from the front and from the side."""
        front, side = (self.pictures[part, "right"][view].window for view in (4, 2))
        return float(front[2] - front[0]), float(side[2] - side[0])


@cache
def _data() -> dict[str, npt.NDArray[Any]]:
    with np.load(Path(__file__).parents[1] / "data" / "people.npz") as file:
        return dict(file)


@cache
def load_anatomy(name: str) -> Anatomy:
    """A body of ``data/people.npz``."""
    data = _data()
    index, parts, pictures = list(data["shapes"]).index(name), [str(part) for part in data["parts"]], {}
    for part in parts:
        views = []
        for channels, window in zip(data[part][index], data[f"{part}_window"][index], strict=True):
            values = channels.astype(np.float32) / _STEPS
            values[1:3] = 2 * values[1:3] - 1
            views.append(Picture(values, window.astype(np.float64)))
        views += [views[_VIEWS - view].mirrored() for view in range(len(views), _VIEWS)]  # of symmetric parts
        pictures[part, "right"] = tuple(views)
        pictures[part, "left"] = tuple(views[-view].mirrored() for view in range(_VIEWS))
    joints = dict(zip(parts, data["joints"][index].astype(np.float64), strict=True))
    heel, toes = data["soles"][index].tolist()
    return Anatomy(pictures, joints, (heel, toes), float(data["heights"][index]))


class Figure(NamedTuple):
    """A person in clothes, without a pose."""

    name: str  #: of its body in ``PEOPLE``
    panels: tuple[Panel, ...]  #: of eight views
    joints: dict[str, Float64]  #: as in :class:`Anatomy`
    soles: tuple[float, float]  #: forward position of heel and toes
    arm: float  #: metres from the elbow to the fingers
    height: float

    def body(self, skeleton: Skeleton, kind: str = "pedestrian") -> Body:
        """The person with bones that carry it, a billboard."""
        width = 0.3 * self.height
        return Body(self.name, kind, self.panels, width, width, self.height, True, _VIEWS, skeleton)


def make_person(rng: np.random.Generator, split: Split, motion: Motion) -> Body:
    """A person in clothes, a billboard with eight views; a full turn of the gait phase is two steps."""
    if motion not in MOTIONS:
        raise FateError(f"there is no motion {motion!r}; give one of {', '.join(MOTIONS)}")
    figure = make_figure(rng, split, seated=motion in ("sit", "crouch"))
    return figure.body(make_skeleton(rng, motion, figure.joints, figure.soles, figure.height))


def make_figure(rng: np.random.Generator, split: Split, seated: bool, height: float | None = None) -> Figure:
    """Draw a body and clothes for it. ``height`` in metres replaces that of the body; knees of the seated are ahead."""
    name = PEOPLE.choose(rng, split)
    build, anatomy = PEOPLE.styles[name], load_anatomy(name)
    size = float(rng.uniform(*build.sizes))
    size = size if height is None else height / anatomy.height
    outfit = clothes.draw_outfit(rng, build.skirts, build.long_hair)
    shapes = {part: views[0].channels.shape for (part, _), views in anatomy.pictures.items()}
    folds = {part: clothes.draw_folds(rng, rows, columns, outfit.folds) for part, (_, rows, columns) in shapes.items()}
    dressed = _Dressed(anatomy, outfit, folds)
    panels = [panel for view in range(_VIEWS) for panel in dressed.panels(view, seated)]
    scaled = tuple(panel.scaled(size, about=np.zeros(3)) for panel in panels)
    joints = {part: joint * size for part, joint in anatomy.joints.items()}
    heel, toes = anatomy.soles
    arm = size * float(anatomy.pictures["forearm", "right"][_VIEWS // 2].window[3])
    return Figure(name, scaled, joints, (heel * size, toes * size), arm, size * anatomy.height)


class _Dressed(NamedTuple):
    """A body in its clothes."""

    anatomy: Anatomy
    outfit: Outfit
    folds: dict[str, Float32]

    def panels(self, view: int, seated: bool) -> list[Panel]:
        """The panels of one view, back to front."""
        far, near = ("left", "right") if 0 < view < 4 else ("right", "left")
        ahead, sideways = view in (3, 4, 5), view % 4 != 0
        leg = ("thigh", "shank", "foot") if seated and ahead else ("foot", "shank", "thigh")
        legs = [self.part(name, side, view, side == far and sideways) for side in (far, near) for name in leg]
        arms = {side: [self.part(name, side, view, side == far and sideways) for name in ("upper_arm", "forearm")]
                for side in (far, near)}  # fmt: skip
        hair, load = self.long_hair(view), self.load(view)
        legs += self.tails(view)
        middle = [self.part("trunk", "right", view), self.part("head", "right", view), *self.brim(view)]
        load_behind = view in ((2, 3, 4, 5, 6) if self.outfit.load == "backpack" else (5, 6, 7))
        behind = (hair if ahead else []) + (load if load_behind else [])
        before = ([] if load_behind else load) + ([] if ahead else hair)
        body = [*middle[:1], *legs, *middle[1:]] if seated and ahead else [*legs, *middle]
        hidden, shown = (arms[far], arms[near]) if sideways else ([], arms[far] + arms[near])
        return [*behind, *hidden, *body, *before, *shown]

    def part(self, name: str, side: str, view: int, far: bool = False) -> Panel:
        """A part of the body, dressed."""
        picture, outfit = self.anatomy.pictures[name, side][view], self.outfit
        left, top, right, bottom = picture.window
        alpha, across, down = picture.channels[:3]
        rows, columns = alpha.shape
        x = left + (np.arange(columns) + 0.5) / columns * (right - left)
        y = top + (np.arange(rows) + 0.5) / rows * (bottom - top)
        light = clothes.paint(outfit, name, view, x, y, self._length(name, bottom))
        if name == "head":
            hair, skin = picture.channels[3:]
            cover = outfit.second if outfit.hat else outfit.hair
            light = np.where(y[:, None] > -outfit.collar, light, hair * cover + (1 - hair) * skin * light)
        share = clothes.shade(outfit, across, down, view) * np.float32(_FAR_SIDE if far else 1.0)
        texture = clothes.wear(light, share, alpha, self.folds[name])
        loose = {"upper_arm": outfit.loose[0], "forearm": 1 + 0.5 * (outfit.loose[0] - 1), "shank": outfit.loose[1],
                 "thigh": 1 + 0.7 * (outfit.loose[1] - 1), "trunk": 1 + 0.3 * (outfit.loose[0] - 1),
                 "foot": 1.05}.get(name, 1.0)  # fmt: skip
        bare = (name == "shank" and outfit.trousers <= 1) or (name == "forearm" and outfit.sleeves <= 1)
        middle, half = (left + right) / 2, (right - left) / 2 * (1.0 if bare else loose)
        bone = name if name in ("trunk", "head") else f"{side} {name}"
        window = (middle - half, top, middle + half, bottom)
        return _card(texture, window, bone, self.anatomy.spread(name))

    def _length(self, part: str, bottom: float) -> float:
        """From a joint to the next one, or to the part's end."""
        below = {"upper_arm": "forearm", "thigh": "shank", "shank": "foot"}.get(part)
        return float(self.anatomy.joints[below][1] - self.anatomy.joints[part][1]) if below else bottom

    def tails(self, view: int) -> list[Panel]:
        """A skirt or the lower part of a coat: one half moves with each thigh."""
        if not self.outfit.tail:
            return []
        left, _, right, _ = self.anatomy.pictures["trunk", "right"][view].window
        leg = -float(self.anatomy.joints["thigh"][1])
        panels = []
        for side in ("right", "left"):
            canvas = clothes.draw_tail(self.outfit, 0.36 * (right - left), self.outfit.tail * leg)
            hip = self.anatomy.joints["thigh"][0] * (1 if side == "right" else -1) * np.cos(DIRECTIONS[view])
            panels.append(_hang(canvas, f"{side} tail", (-0.6 * hip, 0.0), self.anatomy.spread("trunk")))
        return panels

    def long_hair(self, view: int) -> list[Panel]:
        """Hair to the shoulders or below, on the back of the head."""
        if not self.outfit.long_hair:
            return []
        left, top, right, _ = self.anatomy.pictures["head", "right"][view].window
        back = -0.05 * np.sin(DIRECTIONS[view])
        half = 0.36 * (right - left) if view % 4 == 0 else 0.3 * (right - left)
        canvas = clothes.draw_hair(self.outfit, half, 0.8 * abs(top) + 0.1)
        return [_hang(canvas, "head", ((left + right) / 2 + back, 0.1))]

    def brim(self, view: int) -> list[Panel]:
        """The brim of a cap; from behind there is none to see."""
        if not self.outfit.hat:
            return []
        left, top, right, _ = self.anatomy.pictures["head", "right"][view].window
        canvas = clothes.draw_brim(self.outfit, view, 0.42 * (right - left))
        if view == 0:
            canvas = Canvas(canvas.window, 2, 2)
        return [_hang(canvas, "head", ((left + right) / 2, 0.68 * top))]

    def load(self, view: int) -> list[Panel]:
        """A backpack, or a bag at the right hip."""
        outfit, (wide, deep) = self.outfit, self.anatomy.spread("trunk")
        cos, sin = np.cos(DIRECTIONS[view]), np.sin(DIRECTIONS[view])
        top = self.anatomy.pictures["trunk", "right"][view].window[1]
        if outfit.load == "backpack":
            canvas = clothes.draw_load(outfit, 0.075 + 0.08 * abs(cos), 0.7 * abs(top))
            return [_hang(canvas, "trunk", (-0.55 * deep * sin, 0.55 * top))]
        if outfit.load == "bag":
            canvas = clothes.draw_load(outfit, 0.06 + 0.09 * abs(sin), 0.26)
            return [_hang(canvas, "trunk", (0.48 * wide * cos, 0.0))]
        return []


def _hang(canvas: Canvas, bone: str, at: tuple[float, float], spread: tuple[float, float] = (1.0, 1.0)) -> Panel:
    """What is drawn on a canvas, at a place of a bone's picture."""
    left, top, right, bottom = canvas.window
    return _card(canvas.texture(), (left + at[0], top + at[1], right + at[0], bottom + at[1]), bone, spread)


def _card(texture: Texture, window: tuple[float, float, float, float], bone: str, spread: tuple[float, float]) -> Panel:
    """A panel that a bone carries; ``window`` is left, top, right, bottom in metres from the joint."""
    left, top, right, bottom = window
    across, down = vector(right - left, 0, 0), vector(0, bottom - top, 0)
    return Panel(texture, vector(left, top, 0), across, down, faces="both", bone=BONES.index(bone), spread=spread)
