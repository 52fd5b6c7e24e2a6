"""Augmentation: one random map of the frame for a clip, applied to its events and its boxes together.

    transform = Augmentation.paper().draw(rng, events.sensor, labels)     # once a clip
    events, labels = transform.events(events), transform.labels(labels)   # the whole clip at a time
    seen = transform.erased(events.between(start_us, end_us), window)     # each window: its own erased rectangle

:class:`Augmentation` holds chances and ranges. :class:`Transform` is the result of one draw: a plain value that can be
compared, pickled and applied to Events, Labels or images. Flip, rotation, translation, scale, shear and zoom become one
map, in this order. (The code that the paper follows resamples and crops pictures after each step, which cuts away parts
that a later step would have brought back.) Every draw takes equally many random numbers from the generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fate.boxes.labels import Labels
from fate.data import affine
from fate.errors import FateError
from fate.events.events import Events, Sensor

Row = tuple[float, float, float]
Matrix = tuple[Row, Row]
Rectangle = tuple[int, int, int, int]

IDENTITY: Matrix = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
MIN_VISIBLE = 0.1  # share of its area that a box keeps in the frame; a smaller part shows nothing to find
MIN_SIDE = 1.0  # of a box, pixels
ERASE_ATTEMPTS = 10  # to draw a rectangle that is smaller than the frame both ways


@dataclass(frozen=True, slots=True)
class Transform:
    """One map for all events and boxes of a clip; see :mod:`fate.data.affine` for what happens to pixels.

    What the map puts out of the frame is dropped; the frame stays as large as it is.
    """

    matrix: Matrix  #: [2, 3], new (x, y) = matrix · (x, y, 1), in pixels
    sensor: Sensor  #: (height, width) of the frame
    augmentation: Augmentation | None = None  #: gives the chance and the size of erased rectangles; None for none
    seed: int = 0  #: determines the erased rectangle of each window

    @property
    def is_identity(self) -> bool:
        """Whether the map changes no point; rectangles may still be erased."""
        return self.matrix == IDENTITY

    def events(self, events: Events) -> Events:
        """The events of a clip in the new frame, in their order; the same object for the identity."""
        self._check_sensor("events", events.sensor)
        if self.is_identity:
            return events
        x, y, event = affine.resampled_pixels(np.array(self.matrix), self.sensor, events.x, events.y)
        return Events.trusted(events.t_us[event], x, y, events.p[event], self.sensor)

    def images(self, images: NDArray[Any], first: int = 0) -> NDArray[Any]:
        """Images [T, C, H, W] of windows, such as histograms, as if they were made of the transformed events.

        ``first`` is the number of the first window, as for :meth:`erased`. The given images are not changed.
        """
        self._check_sensor("images", images.shape[-2:])
        made = images.copy() if self.is_identity else affine.resampled_image(np.array(self.matrix), self.sensor, images)
        for window, image in enumerate(made, first):
            if hole := self.hole(window):
                x1, y1, x2, y2 = hole
                image[:, y1:y2, x1:x2] = 0
        return made

    def erased(self, events: Events, window: int = 0) -> Events:
        """Transformed events of one window of the clip without those in its erased rectangle."""
        self._check_sensor("events", events.sensor)
        if not (hole := self.hole(window)):
            return events
        x1, y1, x2, y2 = hole
        keep = np.flatnonzero((events.x < x1) | (events.x >= x2) | (events.y < y1) | (events.y >= y2))
        return Events.trusted(events.t_us[keep], events.x[keep], events.y[keep], events.p[keep], self.sensor)

    def hole(self, window: int) -> Rectangle | None:
        """The erased pixels ``x1 <= x < x2, y1 <= y < y2`` of a window, whose index counts from the clip's start."""
        drawn, (height, width) = self.augmentation, self.sensor
        if drawn is None or not drawn.erase:
            return None
        rng = np.random.default_rng((self.seed, window))
        if rng.random() >= drawn.erase:
            return None
        for _ in range(ERASE_ATTEMPTS):
            area = height * width * rng.uniform(*drawn.erase_area)
            flattest, tallest = map(math.log, drawn.erase_aspect)
            aspect = math.exp(rng.uniform(flattest, tallest))
            rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if rows < height and columns < width:
                x, y = (int(rng.integers(room + 1)) for room in (width - columns, height - rows))
                return x, y, x + columns, y + rows
        return None

    def boxes(self, boxes: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Upright boxes around the mapped ones, cut at the frame.

        Only what the frame showed of a box is mapped: shrinking brings no events from beyond the old edge.

        Args:
            boxes: [M, 4] xyxy in pixels.

        Returns:
            [M, 4] float32 xyxy inside the frame, and [M] bool, which of them show enough to be kept.
        """
        limits = np.array([self.sensor.width, self.sensor.height] * 2, np.float64)
        whole = affine.hulls(np.array(self.matrix), np.clip(boxes, 0, limits))
        seen = np.clip(whole, 0, limits)
        sides, all_sides = seen[:, 2:] - seen[:, :2], whole[:, 2:] - whole[:, :2]
        keep = (sides >= MIN_SIDE).all(axis=1) & (sides.prod(axis=1) >= MIN_VISIBLE * all_sides.prod(axis=1))
        return seen.astype(np.float32), keep

    def labels(self, labels: Labels) -> Labels:
        """The labels that stay in the frame, with all else about them; every labelled time stays labelled."""
        if labels.sensor is not None:
            self._check_sensor("labels", labels.sensor)
        if self.is_identity:
            return labels
        boxes, keep = self.boxes(labels.boxes)
        return labels.with_boxes(boxes).select(keep)

    def _check_sensor(self, what: str, sensor: Sequence[int]) -> None:
        if tuple(sensor) != tuple(self.sensor):
            raise FateError(f"{what} of a {Sensor.of(sensor)} sensor were given; this transform is for {self.sensor}")


#: Limits of the settings of an augmentation; all others lie in 0 to 1.
LIMITS: dict[str, tuple[float, float]] = {
    "max_degrees": (0, 180),
    "max_shear_degrees": (0, 80),
    "scale_range": (0.05, 20),
    **dict.fromkeys(("zoom_in_range", "zoom_out_range"), (1, 20)),
    "erase_aspect": (0.01, 100),
}


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Chances (0 to 1) and ranges from which a :class:`Transform` is drawn. Presets: ``paper``, ``rvt_random`` …

    The paper's centre crop is to the frame's own size, which every transform does: it is no setting.
    """

    flip: float = 0.0  #: chance to exchange left and right
    rotate: float = 0.0  #: chance to rotate about the centre
    max_degrees: float = 30.0  #: either way
    translate: float = 0.0  #: chance to move by whole pixels, which loses nothing to rounding
    max_shift: float = 0.5  #: share of the frame's width and height, either way
    scale: float = 0.0  #: chance to scale about the centre
    scale_range: tuple[float, float] = (0.5, 1.5)
    shear: float = 0.0  #: chance to shear along x
    max_shear_degrees: float = 30.0  #: either way
    zoom: float = 0.0  #: chance of RVT's zoom, in or out
    zoom_in_share: float = 0.8  #: share of zooms that go into a part of the frame with one of the last boxes
    zoom_in_range: tuple[float, float] = (1.0, 1.5)
    zoom_out_range: tuple[float, float] = (1.0, 1.2)  #: the frame becomes smaller by this, and is put anywhere
    erase: float = 0.0  #: chance of an empty rectangle in a window, as EvRT-DETR has it
    erase_area: tuple[float, float] = (0.02, 0.33)  #: share of the frame
    erase_aspect: tuple[float, float] = (0.3, 3.3)  #: height / width, drawn evenly in its logarithm

    def __post_init__(self) -> None:
        for field in fields(self):
            given, is_range = getattr(self, field.name), isinstance(field.default, tuple)
            lowest, highest = LIMITS.get(field.name, (0, 1))
            numbers = given if is_range and isinstance(given, Sequence) else (given,)
            fits = all(isinstance(number, int | float) and lowest <= number <= highest for number in numbers)
            if len(numbers) != 1 + is_range or not fits or numbers[0] > numbers[-1]:
                expected = "its lower and its upper end, numbers" if is_range else "a number"
                raise FateError(f"{field.name}={given!r} was given; expected {expected} from {lowest:g} to {highest:g}")

    @classmethod
    def paper(cls) -> Augmentation:
        """The paper's list, with the chances of EvRT-DETR's code."""
        return cls(flip=0.5, rotate=0.6, translate=0.6, scale=0.6, shear=0.6, erase=0.4)

    @classmethod
    def rvt_random(cls) -> Augmentation:
        """RVT and S5-ViT on random clips: flip and zoom."""
        return cls(flip=0.5, zoom=0.8)

    @classmethod
    def rvt_stream(cls) -> Augmentation:
        """RVT and S5-ViT on recordings in order, one draw for each: zooming in would lose objects still to come."""
        return cls(flip=0.5, zoom=0.5, zoom_in_share=0.0)

    def draw(self, rng: np.random.Generator, sensor: Sequence[int], labels: Labels | None = None) -> Transform:
        """One transform for a clip.

        Args:
            rng: its state decides everything.
            sensor: (height, width) of the frame.
            labels: of the clip; zooming in keeps a random box of the last time that has any in view, and does nothing
                if there is none. (RVT never picks the last box of its list; here each is as likely.)
        """
        size = Sensor.of(sensor)
        chances = (self.flip, self.rotate, self.translate, self.scale, self.shear, self.zoom, self.zoom_in_share)
        flip, rotate, translate, scale, shear, zoom, zoom_in = rng.random(7) < chances
        angle, right, down, size_change, lean, zoom_change, choice, across, along = rng.random(9).tolist()
        seed = int(rng.integers(2**63))
        steps: list[affine.Map] = []
        if flip:
            steps.append(affine.flip(size))
        if rotate:
            steps.append(affine.rotation(size, (2 * angle - 1) * self.max_degrees))
        if translate:
            reach = self.max_shift * size.width, self.max_shift * size.height
            steps.append(affine.shift(round((2 * right - 1) * reach[0]), round((2 * down - 1) * reach[1])))
        if scale:
            steps.append(affine.scaling(size, _within(self.scale_range, size_change)))
        if shear:
            steps.append(affine.shear(size, (2 * lean - 1) * self.max_shear_degrees))
        if zoom and zoom_in:
            if box := _last_box(self._transform(size, steps, seed), labels, choice):
                part = _part(size, _within(self.zoom_in_range, zoom_change), box, across, along)
                steps.append(affine.zoom_into(size, part))
        elif zoom:
            frame = (0, 0, size.width, size.height)
            part = _part(size, _within(self.zoom_out_range, zoom_change), frame, across, along)
            steps.append(affine.inverse(affine.zoom_into(size, part)))
        return self._transform(size, steps, seed)

    def _transform(self, sensor: Sensor, steps: list[affine.Map], seed: int) -> Transform:
        top, bottom = (tuple(row) for row in affine.compose(*steps).tolist())
        return Transform((top, bottom), sensor, self, seed)


def _within(span: tuple[float, float], share: float) -> float:
    return span[0] + share * (span[1] - span[0])


def _last_box(transform: Transform, labels: Labels | None, choice: float) -> tuple[float, float, float, float] | None:
    """One of the transformed boxes of the last time that has boxes; None if none of them is in the frame."""
    if labels is None or not len(labels):
        return None
    boxes, keep = transform.boxes(labels.at(int(labels.t_us[-1])).boxes)
    seen = boxes[keep].tolist()
    return tuple(seen[int(choice * len(seen))]) if seen else None


def _part(
    sensor: Sensor, factor: float, box: tuple[float, float, float, float], across: float, along: float
) -> tuple[float, float, float, float]:
    """A part of the frame, ``factor`` times smaller, that holds the box or, if that is larger, lies within it."""
    corners = []
    for low, high, side, share in ((box[0], box[2], sensor.width, across), (box[1], box[3], sensor.height, along)):
        length = side / factor
        first, last = sorted((high - length, low))
        corners.append(_within((max(first, 0.0), min(last, side - length)), share))
    x, y = corners
    return x, y, x + sensor.width / factor, y + sensor.height / factor
