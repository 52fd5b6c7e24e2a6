"""Affine maps of the frame: the same one for the pixels of events and for the corners of boxes.

A map is a [2, 3] float64 array for points (x, y, 1) of the plane. Pixel (x, y) covers ``[x, x + 1) × [y, y + 1)``, and
boxes are measured on the same axes. Events are *resampled* as a picture is, to the nearest pixel: each new pixel takes
the events of the pixel that its centre comes from. Enlarging repeats events, shrinking leaves pixels out, and the
number of events per pixel stays as it is. A camera sees nearly the same: a scene s times nearer shows edges s times as
long that move s times as fast, s² times the events on s² times the pixels (s^2.1 to s^2.5 in simulated scenes).

Pixels are computed in whole numbers with 32 binary places, so that every device finds the same ones: sums of floats may
be rounded once or twice, depending on the device, and an event on the edge of a pixel would fall to either side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.errors import FateError
from fate.events.events import Sensor

if TYPE_CHECKING:  # torch takes seconds to load; callers with tensors have loaded it
    from torch import Tensor

Map = NDArray[np.float64]

FRACTION_BITS = 32  # binary places of a factor; positions, in half pixels, have one more
LARGEST_FACTOR, LARGEST_SHIFT = 2.0**12, 2.0**28  # so that sums of products stay below 2^63


def flip(sensor: Sensor) -> Map:
    """Left and right exchanged."""
    return np.array([[-1.0, 0, sensor.width], [0, 1, 0]])


def shift(right: float, down: float) -> Map:
    """Moved by so many pixels."""
    return np.array([[1.0, 0, right], [0, 1, down]])


def rotation(sensor: Sensor, degrees: float) -> Map:
    """About the centre of the frame, clockwise as seen (y points down)."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return _about_centre(sensor, [[cosine, -sine], [sine, cosine]])


def scaling(sensor: Sensor, factor: float) -> Map:
    """About the centre of the frame; a factor above 1 enlarges."""
    return _about_centre(sensor, [[factor, 0], [0, factor]])


def shear(sensor: Sensor, degrees: float) -> Map:
    """Rows pushed along x by their distance from the middle row, uprights leaning by ``degrees``."""
    return _about_centre(sensor, [[1, -math.tan(math.radians(degrees))], [0, 1]])


def _about_centre(sensor: Sensor, linear: list[list[float]]) -> Map:
    factors = np.array(linear, np.float64)
    centre = np.array([sensor.width / 2, sensor.height / 2])
    return np.column_stack([factors, centre - factors @ centre])


def zoom_into(sensor: Sensor, part: tuple[float, float, float, float]) -> Map:
    """The ``part`` (x1, y1, x2, y2) of the frame fills the frame; the inverse shrinks the frame into the part."""
    x1, y1, x2, y2 = part
    right, down = sensor.width / (x2 - x1), sensor.height / (y2 - y1)
    return np.array([[right, 0, -right * x1], [0, down, -down * y1]])


def compose(*maps: Map) -> Map:
    """The composition of maps; the first one is applied first."""
    whole = np.eye(3)
    for each in maps:
        whole = np.vstack([each, [0, 0, 1]]) @ whole
    return whole[:2]


def inverse(affine: Map) -> Map:
    """The inverse map; raises FateError for a map that flattens the frame to a line."""
    determinant = affine[0, 0] * affine[1, 1] - affine[0, 1] * affine[1, 0]
    if not abs(determinant) >= 1e-9:  # NaN is refused too
        raise FateError(f"the map {affine.tolist()} flattens the frame and cannot be undone; scale by more than 0")
    return np.linalg.inv(np.vstack([affine, [0, 0, 1]]))[:2]


def hulls(affine: Map, boxes: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """[M, 4] upright boxes xyxy around the mapped corners of ``boxes`` [M, 4], wherever they fall."""
    corners = boxes[:, [[0, 1], [2, 1], [2, 3], [0, 3]]] @ affine[:, :2].T + affine[:, 2]  # [M, 4, 2]
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def resampled_pixels(
    affine: Map, sensor: Sensor, x: NDArray[np.uint16], y: NDArray[np.uint16]
) -> tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.int64]]:
    """Resample events at x, y [E]; an event may occur several times or not at all.

    It first makes a table of the whole frame (1 ms for 304×240), so call it for many events at a time.

    Returns:
        New x, y [K], and the index of the event at each [K], ascending.
    """
    starts, targets = _sources(_whole(inverse(affine)), sensor.height, sensor.width)
    repeated: tuple[Any, Any, Any] = _repeat(x, y, starts, targets, sensor.width)
    return repeated


def resampled_image(affine: Map, sensor: Sensor, image: NDArray[Any]) -> NDArray[Any]:
    """Resample images [..., H, W] of any type into new ones; pixels from outside the frame are 0."""
    height, width = sensor
    column, row = _new_pixels(_whole(inverse(affine)).tolist(), np.arange(width), np.arange(height)[:, None])
    inside = ((column >= 0) & (column < width) & (row >= 0) & (row < height)).ravel()
    source = np.where(inside, (row * width + column).ravel(), 0)
    made = image.reshape(*image.shape[:-2], height * width).take(source, axis=-1)
    made[..., ~inside] = 0
    return made.reshape(image.shape)


def resampling_table(maps: Map, sensor: Sensor, device: Any) -> tuple[Tensor, Tensor]:
    """The new pixels of each old pixel under M maps [M, 2, 3]: their starts in a list, by :func:`slots`, and the list.

    The list has new pixels in the order of their old pixels; those from outside the frame come last.
    """
    import torch  # noqa: PLC0415  (takes seconds to load)

    height, width = sensor
    pixel = torch.arange(height * width, device=device)
    whole = torch.from_numpy(np.stack([_whole(inverse(each)) for each in maps])).to(device)
    column, row = _new_pixels([part[:, None] for part in whole.unbind(1)], pixel % width, pixel // width)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    old = torch.where(inside, row * width + column, height * width)
    order = slots(torch.arange(len(maps), device=device)[:, None], old, sensor).flatten()
    source, position = order.sort(stable=True)
    starts = torch.searchsorted(source, torch.arange(len(maps) * (height * width + 1) + 1, device=device))
    return starts, position % (height * width)


def slots(which: Tensor, pixel: Tensor, sensor: Sensor) -> Tensor:
    """Indices into the starts of :func:`resampling_table` for pixels ``y · width + x`` under the maps ``which``."""
    return which * (sensor.height * sensor.width + 1) + pixel


def repeated(starts: Tensor, targets: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat events at E slots for each new pixel: the index of the event [K], ascending, and its new pixel [K]."""
    import torch  # noqa: PLC0415

    first = starts[slot]
    times = starts[slot + 1] - first
    event = torch.arange(len(slot), device=slot.device).repeat_interleave(times)
    copy = torch.arange(len(event), device=slot.device) - (times.cumsum(0) - times)[event]
    return event, targets[first[event] + copy]


def _whole(affine: Map) -> NDArray[np.int64]:
    """[6] the map by rows, for positions in half pixels; the sum of products is in units of 2^-33 pixels."""
    is_bounded = np.abs(affine[:, :2]).max() <= LARGEST_FACTOR and np.abs(affine[:, 2]).max() <= LARGEST_SHIFT
    if not is_bounded:  # NaN is not either
        raise FateError(
            f"the map {affine.tolist()} was given; factors reach {LARGEST_FACTOR:g} and shifts {LARGEST_SHIFT:g} pixels"
        )
    return np.rint(affine * 2.0 ** np.array([FRACTION_BITS, FRACTION_BITS, FRACTION_BITS + 1])).astype(np.int64).ravel()


def _new_pixels(whole: Sequence[Any], x: Any, y: Any) -> tuple[Any, Any]:
    """The pixels that the centres of pixels x, y (arrays or tensors of int64) fall into, in the frame or not.

    ``whole`` are the six numbers of :func:`_whole`; of M maps at once, columns [M, 1] of them.
    """
    xx, xy, right, yx, yy, down = whole
    x, y = 2 * x + 1, 2 * y + 1
    return (x * xx + y * xy + right) >> (FRACTION_BITS + 1), (x * yx + y * yy + down) >> (FRACTION_BITS + 1)


@compiled
def _sources(whole: Any, height: int, width: int) -> Any:
    """The start of the new pixels of each old pixel in a list, [H W + 1], and the list, ascending for each old pixel.

    A pixel of the list is ``row << 16 | column``, which saves a division for each event.
    """
    source = np.empty((height, width), np.int32)
    starts = np.zeros(height * width + 1, np.int32)
    for row in range(height):
        for column in range(width):
            x = ((2 * column + 1) * whole[0] + (2 * row + 1) * whole[1] + whole[2]) >> (FRACTION_BITS + 1)
            y = ((2 * column + 1) * whole[3] + (2 * row + 1) * whole[4] + whole[5]) >> (FRACTION_BITS + 1)
            inside = x >= 0 and x < width and y >= 0 and y < height
            source[row, column] = y * width + x if inside else -1
            if inside:
                starts[y * width + x + 1] += 1
    for old in range(height * width):
        starts[old + 1] += starts[old]
    free = starts[:-1].copy()
    targets = np.empty(starts[-1], np.uint32)
    for row in range(height):
        for column in range(width):
            old = source[row, column]
            if old >= 0:
                targets[free[old]] = row << 16 | column
                free[old] += 1
    return starts, targets


@compiled
def _repeat(x: Any, y: Any, starts: Any, targets: Any, width: int) -> Any:
    count = 0
    for i in range(len(x)):
        old = np.int64(y[i]) * width + np.int64(x[i])
        count += starts[old + 1] - starts[old]
    new_x, new_y, event = np.empty(count, np.uint16), np.empty(count, np.uint16), np.empty(count, np.int64)
    at = 0
    for i in range(len(x)):
        old = np.int64(y[i]) * width + np.int64(x[i])
        for k in range(starts[old], starts[old + 1]):
            new_x[at], new_y[at], event[at] = targets[k] & 0xFFFF, targets[k] >> 16, i
            at += 1
    return new_x, new_y, event
