"""Augmentation: one random map of the frame for a clip, applied to its events and its boxes together.

    transform = Augmentation.paper().draw(rng, events.sensor, labels)     # once a clip
    events, labels = transform.events(events), transform.labels(labels)   # the whole clip at a time
    seen = transform.erased(events.between(start_us, end_us), window)     # each window: its own erased rectangle

:class:`Augmentation` holds chances and ranges, :class:`Transform` what came out of one draw: a plain value that can be
compared, pickled and applied to Events, Labels or the columns of a batch on any device with the same result. Flip,
rotation, translation, scale, shear and zoom become one map, in this order. The code that the paper follows resamples
and crops pictures after each step, which cuts away what a later one would have brought back, and puts upright boxes
around upright boxes. Every draw takes the same amount of random numbers from the generator, whatever it decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fate.boxes.labels import Labels
from fate.data import affine
from fate.errors import FateError
from fate.events.events import MAX_SIDE, Events, Sensor

if TYPE_CHECKING:  # torch takes seconds to load; callers with tensors have loaded it
    from torch import Tensor

Row = tuple[float, float, float]
Matrix = tuple[Row, Row]
Rectangle = tuple[int, int, int, int]
Pixels = Literal["resample", "move"]
EraseEach = Literal["window", "clip"]

IDENTITY: Matrix = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
ERASE_ATTEMPTS = 10  # to draw a rectangle that is smaller than the frame both ways


@dataclass(frozen=True, slots=True)
class Erasing:
    """The erased rectangle of each window of one clip; it follows from the seed."""

    seed: int
    probability: float
    area: tuple[float, float]  #: smallest and largest share of the frame's area
    aspect: tuple[float, float]  #: smallest and largest height / width, drawn evenly in its logarithm
    each: EraseEach = "window"

    def rectangle(self, sensor: Sensor, window: int = 0) -> Rectangle | None:
        """``x1 <= x < x2, y1 <= y < y2`` to empty in the window of that number, counted from the clip's start."""
        rng = np.random.default_rng((self.seed, window if self.each == "window" else 0))
        if rng.random() >= self.probability:
            return None
        for _ in range(ERASE_ATTEMPTS):
            area = sensor.height * sensor.width * rng.uniform(*self.area)
            aspect = math.exp(rng.uniform(math.log(self.aspect[0]), math.log(self.aspect[1])))
            height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if height < sensor.height and width < sensor.width:
                x, y = (int(rng.integers(room + 1)) for room in (sensor.width - width, sensor.height - height))
                return x, y, x + width, y + height
        return None


@dataclass(frozen=True, slots=True)
class Transform:
    """One map for all events and boxes of a clip; see :mod:`fate.data.affine` for what happens to pixels.

    What the map puts out of the frame is dropped; the frame stays as large as it is.

    Args:
        matrix: [2, 3], new (x, y) = matrix · (x, y, 1), in pixels.
        sensor: (height, width) of the frame.
        pixels: ``"resample"`` keeps events per pixel as they are, ``"move"`` their number.
        min_visible: share of its area that a box must keep in the frame; below it the label goes, since a sliver shows
            nothing to find.
        min_side: of a box in pixels.
        erasing: empty rectangles, or None.
    """

    matrix: Matrix
    sensor: Sensor
    pixels: Pixels = "resample"
    min_visible: float = 0.1
    min_side: float = 1.0
    erasing: Erasing | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _rows(affine.checked(self.matrix)))
        object.__setattr__(self, "sensor", Sensor.of(self.sensor))
        _check_filters(self.pixels, self.min_visible, self.min_side)

    @classmethod
    def identity(cls, sensor: Sequence[int]) -> Transform:
        """The transform that changes nothing."""
        return cls(IDENTITY, Sensor.of(sensor))

    @property
    def is_identity(self) -> bool:
        """Whether the map changes no point; rectangles may still be erased."""
        return self.matrix == IDENTITY

    def inverse(self) -> Transform:
        """The inverse map without erasing, for example to show predictions on the original recording."""
        return replace(self, matrix=_rows(affine.inverse(self._map())), erasing=None)

    def events(self, events: Events) -> Events:
        """The events of a clip in the new frame, in their order; the same object for the identity."""
        self._check_sensor("events", events.sensor)
        if self.is_identity:
            return events
        apply = affine.resampled_pixels if self.pixels == "resample" else affine.moved_pixels
        x, y, event = apply(self._map(), self.sensor, events.x, events.y)
        return Events.trusted(events.t_us[event], x, y, events.p[event], self.sensor)

    def columns(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Transform pixels x, y [E], tensors of whole numbers on one device, all in the frame.

        Returns:
            The new x, y [K], and the index of the event at each: [K] int64, ascending; ``t_us[event]`` are their times.
        """
        if x.ndim != 1 or x.shape != y.shape or x.is_floating_point() or y.is_floating_point():
            given = f"x {tuple(x.shape)} {x.dtype}, y {tuple(y.shape)} {y.dtype}"
            raise FateError(f"{given} were given; expected two columns of whole numbers of one length")
        apply = affine.resampled_columns if self.pixels == "resample" and not self.is_identity else affine.moved_columns
        return apply(self._map(), self.sensor, x, y)

    def images(self, images: NDArray[Any], first: int = 0) -> NDArray[Any]:
        """Images [T, C, H, W] of windows, such as histograms, as if they were made of the transformed events.

        Args:
            images: of the windows of a clip, in order; they are not changed.
            first: the number of the first window, as for :meth:`erased`.
        """
        self._check_sensor("images", images.shape[-2:])
        if not self.is_identity:
            if self.pixels != "resample":
                raise FateError('pixels="move" was given; images can only be resampled: choose pixels="resample"')
            images = affine.resampled_image(self._map(), self.sensor, images)
        holes = (
            [] if self.erasing is None else [self.erasing.rectangle(self.sensor, first + t) for t in range(len(images))]
        )
        whole = images.copy() if any(holes) and self.is_identity else images
        for image, hole in zip(whole, holes, strict=False):
            if hole is not None:
                x1, y1, x2, y2 = hole
                image[:, y1:y2, x1:x2] = 0
        return whole

    def erased(self, events: Events, window: int = 0) -> Events:
        """Transformed events of one window of the clip without those in its erased rectangle."""
        self._check_sensor("events", events.sensor)
        keep = self.not_erased(events.x, events.y, window)
        if keep is None:
            return events
        left = np.flatnonzero(keep)  # the mask is evaluated once instead of four times
        return Events.trusted(events.t_us[left], events.x[left], events.y[left], events.p[left], self.sensor)

    def not_erased(self, x: Any, y: Any, window: int = 0) -> Any:
        """[E] bool, which of the transformed pixels x, y (arrays or tensors) stay in a window; None for all of them."""
        rectangle = None if self.erasing is None else self.erasing.rectangle(self.sensor, window)
        if rectangle is None:
            return None
        x1, y1, x2, y2 = rectangle
        return (x < x1) | (x >= x2) | (y < y1) | (y >= y2)

    def boxes(self, boxes: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Upright boxes around the mapped ones, cut at the frame.

        Only what the frame showed of a box is mapped: shrinking brings no events from beyond the old edge.

        Args:
            boxes: [M, 4] xyxy in pixels.

        Returns:
            [M, 4] float32 xyxy inside the frame, and [M] bool, which of them show enough to be kept.
        """
        limits = np.array([self.sensor.width, self.sensor.height] * 2, np.float64)
        whole = affine.hulls(self._map(), np.clip(affine.box_rows(boxes), 0, limits))
        seen = np.clip(whole, 0, limits)
        sides, all_sides = seen[:, 2:] - seen[:, :2], whole[:, 2:] - whole[:, :2]
        keep = (sides >= self.min_side).all(axis=1) & (sides.prod(axis=1) >= self.min_visible * all_sides.prod(axis=1))
        return seen.astype(np.float32), keep

    def labels(self, labels: Labels) -> Labels:
        """The labels that stay in the frame, with all else about them; every labelled time stays labelled."""
        if labels.sensor is not None:
            self._check_sensor("labels", labels.sensor)
        if self.is_identity:
            return labels
        boxes, keep = self.boxes(labels.boxes)
        x1, y1, x2, y2 = boxes.T
        return replace(labels, x1=x1, y1=y1, x2=x2, y2=y2).select(keep)

    def _map(self) -> affine.Map:
        return np.array(self.matrix)

    def _check_sensor(self, what: str, sensor: Sequence[int]) -> None:
        if tuple(sensor) != tuple(self.sensor):
            raise FateError(f"{what} of a {Sensor.of(sensor)} sensor were given; this transform is for {self.sensor}")


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
    zoom_in_share: float = 0.8  #: of the zooms: into a part of the frame that shows one of the last boxes
    zoom_in_range: tuple[float, float] = (1.0, 1.5)
    zoom_out_range: tuple[float, float] = (1.0, 1.2)  #: the frame becomes smaller by this, and is put anywhere
    erase: float = 0.0  #: chance of an empty rectangle
    erase_area: tuple[float, float] = (0.02, 0.33)  #: share of the frame
    erase_aspect: tuple[float, float] = (0.3, 3.3)  #: height / width
    erase_each: EraseEach = "window"  #: as EvRT-DETR does; ``"clip"`` empties the same rectangle in all windows
    pixels: Pixels = "resample"
    min_visible: float = 0.1
    min_side: float = 1.0

    def __post_init__(self) -> None:
        for name in ("flip", "rotate", "translate", "scale", "shear", "zoom", "zoom_in_share", "erase", "max_shift"):
            _check_number(name, getattr(self, name), 0, 1)
        _check_number("max_degrees", self.max_degrees, 0, 180)
        _check_number("max_shear_degrees", self.max_shear_degrees, 0, 80)
        _check_range("scale_range", self.scale_range, 0.05, 20)
        _check_range("zoom_in_range", self.zoom_in_range, 1, 20)
        _check_range("zoom_out_range", self.zoom_out_range, 1, 20)
        _check_range("erase_area", self.erase_area, 0, 1)
        _check_range("erase_aspect", self.erase_aspect, 0.01, 100)
        _check_choice("erase_each", self.erase_each, EraseEach)
        _check_filters(self.pixels, self.min_visible, self.min_side)

    @classmethod
    def none(cls) -> Augmentation:
        """Draws the identity."""
        return cls()

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
        steps = []
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
        if zoom and not zoom_in:
            part = _part(
                size, _within(self.zoom_out_range, zoom_change), (0, 0, size.width, size.height), across, along
            )
            steps.append(affine.inverse(affine.zoom_into(size, part)))
        transform = self._transform(size, steps, seed)
        box = _last_box(transform, labels, choice) if zoom and zoom_in else None
        if box is None:
            return transform
        part = _part(size, _within(self.zoom_in_range, zoom_change), box, across, along)
        return self._transform(size, [*steps, affine.zoom_into(size, part)], seed)

    def _transform(self, sensor: Sensor, steps: list[affine.Map], seed: int) -> Transform:
        erasing = Erasing(seed, self.erase, self.erase_area, self.erase_aspect, self.erase_each) if self.erase else None
        matrix = _rows(affine.compose(*steps))
        return Transform(matrix, sensor, self.pixels, self.min_visible, self.min_side, erasing)


def _rows(given: affine.Map) -> Matrix:
    """As plain numbers, which compare, hash and pickle."""
    top, bottom = (tuple(row) for row in given.tolist())
    return top, bottom


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
    width, height = sensor.width / factor, sensor.height / factor
    x = _start(box[0], box[2], width, sensor.width, across)
    y = _start(box[1], box[3], height, sensor.height, along)
    return x, y, x + width, y + height


def _start(low: float, high: float, length: float, side: float, share: float) -> float:
    """Where a stretch of ``length`` within [0, side] begins that holds [low, high], or is held by it."""
    first, last = sorted((high - length, low))
    return _within((max(first, 0.0), min(last, side - length)), share)


def _check_filters(pixels: str, min_visible: float, min_side: float) -> None:
    _check_choice("pixels", pixels, Pixels)
    _check_number("min_visible", min_visible, 0, 1)
    _check_number("min_side", min_side, 0, MAX_SIDE)


def _check_number(name: str, given: float, lowest: float, highest: float) -> None:
    if not isinstance(given, int | float) or not lowest <= given <= highest:
        raise FateError(f"{name}={given!r} was given; expected a number from {lowest:g} to {highest:g}")


def _check_range(name: str, given: tuple[float, float], lowest: float, highest: float) -> None:
    try:
        low, high = given
    except (TypeError, ValueError):
        raise FateError(f"{name}={given!r} was given; expected its lower and its upper end, two numbers") from None
    _check_number(f"the lower end of {name}", low, lowest, highest)
    _check_number(f"the upper end of {name}", high, low, highest)


def _check_choice(name: str, given: object, choices: Any) -> None:
    if given not in get_args(choices):
        raise FateError(f"{name}={given!r} was given; expected {' or '.join(map(repr, get_args(choices)))}")
