"""The peers' representations by name: what they turn a window's events into, behind the interface of an encoder.

========================  ===========================================  =================================  ========
name                      channels                                     of a cell without events           stride
========================  ===========================================  =================================  ========
``histogram``             2 polarities × 10 bins, OFF first (RVT)      0                                  1
``evrt-histogram``        2 polarities × 10 bins, ON first (EvRT-DETR) 0                                  1
``voxel``                 5 bins, signed                               0                                  1
``time-surface``          OFF, ON                                      0                                  1
``tore``                  2 polarities × 3 events, ON first            the largest value (``nothing``)    1
``group-tokens``          24 groups × 2 × 16 (GET)                     0                                  4
========================  ===========================================  =================================  ========

They are ``nn.Module`` objects without parameters, from an ``EventBatch`` to [B, ``channels``, H', W'] float32. Any
number of windows, of any durations; the same batch gives the same image, on every device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fate.encoding.grid_encoder import GridEncoder
from fate.encoding.histograms import EvrtHistogram, StackedHistogram
from fate.encoding.surfaces import TimeSurface, ToreVolume
from fate.encoding.tokens import GroupTokens
from fate.encoding.voxels import VoxelGrid
from fate.errors import FateError

__all__ = [
    "GRIDS",
    "EvrtHistogram",
    "GridEncoder",
    "GroupTokens",
    "StackedHistogram",
    "TimeSurface",
    "ToreVolume",
    "VoxelGrid",
    "build_grid",
]

#: Builders by name; each takes the sensor first.
GRIDS: dict[str, Callable[..., GridEncoder]] = {
    "histogram": StackedHistogram,
    "evrt-histogram": EvrtHistogram,
    "voxel": VoxelGrid,
    "time-surface": TimeSurface,
    "tore": ToreVolume,
    "group-tokens": GroupTokens,
}


def build_grid(name: str, sensor: Sequence[int], **arguments: Any) -> GridEncoder:
    """A representation by its name.

    Args:
        name: a key of ``GRIDS``.
        sensor: (height, width) of the events, pixels.
        arguments: of the representation, as its class names them.

    >>> build_grid("voxel", (240, 304), bins=9).channels
    9
    """
    if name not in GRIDS:
        raise FateError(f"representation {name!r} was asked for; there are {', '.join(GRIDS)}")
    known = list(inspect.signature(GRIDS[name]).parameters)[1:]
    for argument, value in arguments.items():
        if argument not in known:
            raise FateError(f"{argument}={value!r} was given; {name} takes {', '.join(known)}")
    return GRIDS[name](sensor, **arguments)
