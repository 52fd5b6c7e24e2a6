"""Clips of recordings that are kept as images: RVT's preprocessed datasets, read in place.

Window k of such a recording is its image k (``clips.ImageGrid``). Behind the last image there is nothing, as there are
no events behind the end of a recording. Images stay the bytes they are stored as until they are on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.data.clips import Clip
from fate.data.transforms import Transform
from fate.errors import FateError

#: Channels of RVT's images, for a batch that has none to ask.
CHANNELS = 20

Images = NDArray[np.uint8]


@runtime_checkable
class ImageSource(Protocol):
    """A recording kept as images; ``rvt_layout.RvtSequence`` is."""

    def images(self, first: int, last: int) -> Images:
        """Images ``first`` to ``last`` (not included): [last − first, C, H, W] uint8."""

    def read_images(self, start_us: int, end_us: int) -> tuple[Images, NDArray[np.int64]]:
        """Those whose windows end in ``(start_us, end_us]``, and the times at which they end."""


def all_images(recordings: Sequence[Any]) -> bool:
    """Whether recordings are kept as images; some of them alone are refused."""
    kept = sum(isinstance(recording, ImageSource) for recording in recordings)
    if kept not in (0, len(recordings)):
        raise FateError(
            f"{kept} of {len(recordings)} recordings hold histograms, the others events; expected one kind in a batch"
        )
    return kept > 0


def clip_images(source: Any, clip: Clip, change: Transform | None) -> Images:
    """[t, C, H, W] uint8, the images of a clip; t is less than its steps where the recording ends before."""
    last = min(clip.first + clip.steps, source.num_images)
    images: Images = source.images(min(clip.first, last), last)
    return images if change is None else change.images(images, clip.first)


def stacked(parts: Sequence[Images | None], steps: int, sensor: Sequence[int]) -> Tensor:
    """Images of B lanes as one batch [steps · B, C, H, W], time-major; what a lane lacks is zero.

    Args:
        parts: of each lane [t, C, H, W] with t of at most ``steps``; None where it shows nothing.
        steps: T.
        sensor: (height, width) of the images.
    """
    shapes = {part.shape[1:] for part in parts if part is not None} or {(CHANNELS, *sensor)}
    if len(shapes) > 1:
        raise FateError(f"images of shapes {' and '.join(map(str, sorted(shapes)))} are in one batch; expected one")
    whole = np.zeros((steps, len(parts), *shapes.pop()), np.uint8)
    for lane, part in enumerate(parts):
        if part is not None:
            whole[: len(part), lane] = part
    return torch.from_numpy(whole).flatten(0, 1)
