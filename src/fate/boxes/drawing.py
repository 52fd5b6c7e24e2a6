"""Events and boxes as pictures: uint8 arrays [H, W, 3] for a video, a page or a notebook.

A picture of events shows one window: every pixel with events has the colour of its *last* event, as in the viewers of
sensor makers. Boxes and text are drawn with Pillow, whose built-in font needs no font on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from fate.boxes.detections import DetectionFrame, class_name
from fate.boxes.labels import Labels
from fate.errors import FateError
from fate.events.events import Events

Colour = tuple[int, int, int]  # red, green, blue, 0 to 255
Picture = NDArray[np.uint8]  # [H, W, 3]
ColourBy = Literal["class", "track"]


@dataclass(frozen=True)
class Palette:
    """Colours of a picture of events."""

    background: Colour
    on: Colour
    off: Colour


#: ``dark`` and ``light`` resemble Metavision's; ``coolwarm`` has the ends of the colour map of that name; ``cvd`` is
#: yellow and blue, the pair with the greatest contrast for everyone. In each palette ON, OFF and background differ for
#: people with any kind of colour blindness too (a test measures it).
PALETTES: dict[str, Palette] = {
    "dark": Palette(background=(30, 37, 52), on=(216, 223, 236), off=(64, 126, 201)),
    "light": Palette(background=(255, 255, 255), on=(64, 126, 201), off=(30, 37, 52)),
    "gray": Palette(background=(128, 128, 128), on=(255, 255, 255), off=(0, 0, 0)),
    "coolwarm": Palette(background=(221, 221, 221), on=(180, 4, 38), off=(59, 76, 192)),
    "cvd": Palette(background=(18, 18, 22), on=(255, 200, 40), off=(30, 125, 225)),
    "red-blue": Palette(background=(255, 255, 255), on=(0, 70, 220), off=(215, 30, 30)),
}

BAND: Colour = (16, 20, 28)  # behind captions and the line below a video

#: One colour per class, readable on the dark and the light palette, also for red-green blindness.
CLASS_COLOURS: tuple[Colour, ...] = (
    (255, 176, 0),
    (255, 64, 129),
    (0, 200, 150),
    (170, 110, 255),
    (255, 112, 40),
    (60, 190, 255),
    (190, 200, 40),
    (230, 130, 200),
)


def class_colour(class_id: int) -> Colour:
    """Return the colour of a class; colours repeat after eight classes."""
    return CLASS_COLOURS[class_id % len(CLASS_COLOURS)]


def track_colour(track_id: int) -> Colour:
    """Return the colour of a track; the hues of neighbouring ids are a golden angle apart, so that they differ."""
    hue = (track_id * 0.618034) % 1.0
    red, green, blue = hls_to_rgb(hue, 0.62, 0.9)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_events(events: Events, palette: str | Palette = "dark", *, factor: int = 1) -> Picture:
    """Draw the events of one window.

    Args:
        events: events of the window, for example ``recording.read(start_us, end_us)``.
        palette: a name in ``PALETTES``, or a palette.
        factor: enlargement along each side.

    Returns:
        [H · factor, W · factor, 3] uint8; each pixel has the colour of its last event, or the background.
    """
    colours = palette_of(palette)
    state = np.zeros(events.sensor, np.uint8)
    state[events.y, events.x] = events.p + 1  # numpy keeps the last value of a pixel
    lookup = np.array([colours.background, colours.off, colours.on], np.uint8)
    return enlarge(lookup.take(state, axis=0), factor)


def draw_boxes(
    image: Picture,
    boxes: ArrayLike,
    *,
    labels: Sequence[str] | None = None,
    colours: Sequence[Colour] | Colour | None = None,
    class_ids: Sequence[int] | NDArray[np.integer] | None = None,
    thickness: int = 2,
    scale: float = 1.0,
    text_size: int | None = None,
) -> Picture:
    """Return a copy of ``image`` with boxes and their labels.

    Args:
        image: [H, W, 3] uint8.
        boxes: [N, 4] xyxy in pixels, of the image or, with ``scale``, of the sensor; they may reach outside.
        labels: N texts, such as ``"car 0.93"``; an empty text is not drawn.
        colours: one colour for all boxes, or N colours; the default are the colours of ``class_ids``.
        class_ids: N class ids, for :func:`class_colour`.
        thickness: width of the lines in pixels of the image; lines lie on and inside the edge of the box.
        scale: factor from ``boxes`` to pixels of the image, the factor by which the image was enlarged.
        text_size: height of the letters in pixels; the default depends on the size of the image.
    """
    picture = _checked(image)
    corners = np.asarray(boxes, np.float64).reshape(-1, 4) * scale
    count = len(corners)
    if colours is None:
        colours = CLASS_COLOURS[0] if class_ids is None else [class_colour(int(each)) for each in class_ids]
    table = np.asarray(colours, np.int64).reshape(-1, 3)
    table = table.repeat(count, axis=0) if len(table) == 1 else table
    for name, given in (("labels", labels), ("class_ids", class_ids), ("colours", table if count else None)):
        if given is not None and len(given) != count:
            raise FateError(f"{len(given)} {name} were given for {count} boxes; give one for each box")
    shades: list[Any] = [tuple(row) for row in table.tolist()][:count]
    canvas = Image.fromarray(picture)
    pen = ImageDraw.Draw(canvas)
    height, width = picture.shape[:2]
    size = text_size or max(11, round(height / 34))
    # coordinates far outside would overflow Pillow's integers
    limits = np.array([width, height, width, height], np.float64)
    edges = np.clip(np.nan_to_num(corners), -limits, 2 * limits)
    for row, shade in zip(edges, shades, strict=True):
        x1, y1, x2, y2 = (round(float(value)) for value in row)
        pen.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=shade, width=thickness)
    taken: list[tuple[int, ...]] = []
    for index, text in enumerate(labels or ()):  # after all lines, so that text stays readable where boxes overlap
        if text:
            _tag(canvas, text, edges[index], shades[index], size, taken)
    return np.asarray(canvas)


def draw_frame(
    picture: Picture,
    frame: DetectionFrame,
    factor: int = 1,
    *,
    threshold: float = 0.0,
    classes: Sequence[str] | None = None,
    colour_by: ColourBy = "class",
) -> Picture:
    """Return ``picture`` with the boxes of a frame, their classes and scores.

    Args:
        picture: [H · factor, W · factor, 3] uint8, a picture of the sensor that was enlarged by ``factor``.
        frame: its boxes are in pixels of the sensor.
        factor: the enlargement of the picture.
        threshold: boxes with a lower score are not drawn.
        classes: names of the class ids.
        colour_by: ``"class"``, or ``"track"`` to follow single objects.
    """
    scores = np.asarray(frame.scores)
    kept = np.flatnonzero(scores >= threshold)
    kept = kept[np.argsort(scores[kept], kind="stable")]  # the highest score is drawn last, on top
    if not len(kept):
        return picture
    colours = [class_colour(int(frame.class_ids[row])) for row in kept]
    if colour_by == "track" and frame.track_ids is not None:
        tracks = [int(frame.track_ids[row]) for row in kept]
        colours = [track_colour(track) if track >= 0 else c for track, c in zip(tracks, colours, strict=True)]
    boxes = np.asarray(frame.boxes).reshape(-1, 4)[kept]
    labels = label_boxes(frame, kept, classes)
    return draw_boxes(picture, boxes, labels=labels, colours=colours, thickness=max(2, factor), scale=factor)


def draw_labels(
    picture: Picture,
    labels: Labels,
    factor: int = 1,
    classes: Sequence[str] | None = None,
    *,
    thickness: int = 2,
    with_scores: bool = False,
) -> Picture:
    """Return ``picture``, enlarged by ``factor``, with all boxes of a table, their classes and, if asked for, scores.

    ``classes`` are names of the class ids, by default those of the table.
    """
    names = [class_name(each, classes or labels.classes) for each in labels.class_id.tolist()]
    if with_scores:
        names = [f"{name} {score:.2f}" for name, score in zip(names, labels.score, strict=True)]
    return draw_boxes(picture, labels.boxes, labels=names, class_ids=labels.class_id, thickness=thickness, scale=factor)


def enlarge(image: Picture, factor: int) -> Picture:
    """Draw each pixel as a square of ``factor`` × ``factor`` pixels."""
    if factor < 1:
        raise FateError(f"a picture cannot be enlarged by {factor}; expected a whole number of at least 1")
    picture = _checked(image)
    return picture if factor == 1 else picture.repeat(factor, axis=1).repeat(factor, axis=0)


def enlargement(sensor: tuple[int, int], target_width: int = 640) -> int:
    """Return the largest whole factor, at least 1, that keeps a sensor within ``target_width`` pixels.

    304 × 240 becomes 608 × 480; 1280 × 720 stays as it is.
    """
    return max(1, target_width // sensor[1])


def side_by_side(images: Sequence[Picture], captions: Sequence[str] | None = None, *, gap: int = 8) -> Picture:
    """Place pictures in a row with their top edges aligned, each under its caption, without scaling."""
    if not images:
        raise FateError("no pictures were given to put side by side; give at least one")
    if captions is not None and len(captions) != len(images):
        raise FateError(f"{len(captions)} captions were given for {len(images)} pictures; give one for each")
    tallest = max(_checked(image).shape[0] for image in images)
    size = max(12, round(tallest / 26))
    top = round(1.7 * size) if captions else 0
    width = sum(image.shape[1] for image in images) + gap * (len(images) - 1)
    sheet = np.array(Image.new("RGB", (width, top + tallest), BAND))
    lefts = np.cumsum([0, *(image.shape[1] + gap for image in images)]).tolist()
    if captions:
        texts = tuple((left + size // 3, text, "lm") for left, text in zip(lefts, captions, strict=False))
        sheet[:top] = draw_band((top, width), size, texts)
    for left, image in zip(lefts, images, strict=False):
        sheet[top : top + image.shape[0], left : left + image.shape[1]] = image
    return sheet


@lru_cache(maxsize=8)
def draw_band(
    shape: tuple[int, int], size: int, texts: tuple[tuple[int, str, str], ...], colour: Colour | None = None
) -> Picture:
    """Return a band with a line of text.

    Args:
        shape: its height and width in pixels.
        size: height of the letters in pixels.
        texts: the place from the left in pixels, the text and its anchor, such as ``"lm"`` for the left end.
        colour: of all texts but the first; None for that of the first.
    """
    height, width = shape
    canvas = Image.new("RGB", (width, height), BAND)
    pen, font = ImageDraw.Draw(canvas), font_of(size)
    for index, (left, text, anchor) in enumerate(texts):
        fill = readable_on(BAND) if colour is None or index == 0 else colour
        pen.text((left, height // 2), text, fill=fill, font=font, anchor=anchor)
    return np.asarray(canvas)


def palette_of(palette: str | Palette) -> Palette:
    """Return the palette of a name; a palette is returned as it is."""
    if isinstance(palette, Palette):
        return palette
    if palette not in PALETTES:
        raise FateError(f"palette {palette!r} was given; known are {', '.join(PALETTES)}")
    return PALETTES[palette]


def _checked(image: Picture) -> Picture:
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise FateError(f"a picture of shape {image.shape} and type {image.dtype} was given; expected [H, W, 3] uint8")
    return image


def _tag(
    canvas: Image.Image, text: str, box: NDArray[np.float64], colour: Colour, size: int, taken: list[tuple[int, ...]]
) -> None:
    """Draw a tag with the text above the box, below it if another tag is there, or inside if there is no room."""
    tag = _draw_tag(text, size, colour)
    width, height = tag.size
    lowest = canvas.height - height
    x = min(max(0, round(float(box[0]))), max(0, canvas.width - width))
    above, top, below = (round(float(value)) for value in (box[1] - height, box[1], box[3]))
    inside = min(max(0, top), max(0, lowest))
    tops = [y for y in (above, below, inside) if 0 <= y <= lowest] or [inside]
    if above < 0:  # inside before below: the tag stays at the top of its box
        tops.sort(key=lambda y: y != inside)

    def is_free(y: int) -> bool:
        return not any(x < x2 and x1 < x + width and y < y2 and y1 < y + height for x1, y1, x2, y2 in taken)

    y = next(filter(is_free, tops), tops[0])
    taken.append((x, y, x + width, y + height))
    canvas.paste(tag, (x, y))


@lru_cache(maxsize=512)
def _draw_tag(text: str, size: int, colour: Colour) -> Image.Image:
    """A tag with its text; videos repeat most of them."""
    font = font_of(size)
    width, height = round(font.getlength(text)) + size // 2, round(1.25 * size)
    tag = Image.new("RGB", (width, height), colour)
    ImageDraw.Draw(tag).text((size // 4, height // 2), text, fill=readable_on(colour), font=font, anchor="lm")
    return tag


def readable_on(colour: Colour) -> Colour:
    """Return black or white, whichever has more contrast."""
    red, green, blue = colour
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else (255, 255, 255)


@lru_cache(maxsize=32)
def font_of(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's built-in font at a height in pixels."""
    return ImageFont.load_default(size)


def label_boxes(frame: DetectionFrame, rows: NDArray[np.integer], classes: Sequence[str] | None) -> list[str]:
    """Return the label of each of these boxes of a frame: ``"#3 car 0.93"``, without a number if it has no track."""
    labels = []
    for row in rows:
        track = -1 if frame.track_ids is None else int(frame.track_ids[row])
        name = class_name(int(frame.class_ids[row]), classes)
        labels.append(f"{f'#{track} ' if track >= 0 else ''}{name} {frame.scores[row]:.2f}")
    return labels
