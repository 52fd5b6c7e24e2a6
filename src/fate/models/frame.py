"""From an encoder's image to the input of a backbone: padding, the stride of the stem, and the attention windows.

Backbones halve an image five times, so frames are padded at the right and at the bottom to multiples of 32 pixels. If
an encoder's image is coarser than the sensor, the stride of the stem is divided by the encoder's stride. Features then
still have strides 8, 16 and 32, and the number of parameters does not change.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import Tensor
from torch.nn import functional

from fate.errors import FateError
from fate.events.events import Sensor

#: "native" divides the stem's stride by the encoder's; "upsample" repeats each cell over its pixels instead.
Stem = Literal["native", "upsample"]
COARSEST = 32
#: Most tokens of an attention window: enough for RVT's (8, 10) on 256×320, not for all of 384×640 at stride 32.
MOST_TOKENS = 100


class Frame(NamedTuple):
    """The geometry of a detector's input."""

    sensor: Sensor
    padded: Sensor  #: size of the padded frame in pixels
    partition: tuple[int, int]  #: rows and columns of an attention window, in every stage
    encoder_stride: int  #: pixels along a side of one cell of the encoder's image
    repeat: int  #: repetitions of a cell of the encoder's image in each direction
    stem_stride: int  #: stride of the backbone's first convolution
    empty_value: float = 0.0  #: value of the encoder's cells without events, used for padding

    def padded_image(self, image: Tensor) -> Tensor:
        """Pad the encoder's image [N, C, H', W'] and repeat its cells, for the backbone."""
        rows, columns = (size // self.encoder_stride for size in self.padded)
        right, bottom = columns - image.shape[-1], rows - image.shape[-2]
        if right or bottom:
            image = functional.pad(image, (0, right, 0, bottom), value=self.empty_value)
        if self.repeat > 1:
            image = functional.interpolate(image, scale_factor=float(self.repeat), mode="nearest")
        return image


def frame_of(
    sensor: Sequence[int], encoder_stride: int, full_stride: int, stem: Stem = "native", empty_value: float = 0.0
) -> Frame:
    """The frame for a sensor (height, width); other arguments as in ``Frame``.

    ``full_stride`` is the stride of the backbone's first convolution for an image of the sensor's resolution.
    """
    if stem not in ("native", "upsample"):
        raise FateError(f"stem={stem!r} was given; expected 'native' or 'upsample'")
    if encoder_stride not in (1, 2, 4, 8, 16, 32):
        raise FateError(
            f"an encoder with cells of {encoder_stride} pixels was given; a detector takes 1, 2, 4, 8, 16 or 32"
        )
    size = Sensor.of(sensor)
    for split in itertools.count(1):
        step = COARSEST * split
        rows, columns = (-(-side // step) for side in size)
        if rows * columns <= MOST_TOKENS:
            break
    padded = Sensor(rows * step, columns * step)
    if stem == "upsample":
        repeat, stride = encoder_stride, full_stride
    else:
        repeat, stride = max(encoder_stride // full_stride, 1), max(full_stride // encoder_stride, 1)
    return Frame(size, padded, (rows, columns), encoder_stride, repeat, stride, empty_value)
