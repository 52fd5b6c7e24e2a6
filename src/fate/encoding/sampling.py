"""Which events and pillars a cap keeps: a uniform sample that depends only on a seed and the events.

Every pillar and every event gets a 32-bit priority from a counter-based generator (MurmurHash3's finaliser of a key and
a counter), and a cap keeps the lowest priorities. The key is (seed, start of the window, pillar). The counter of an
event is the number of earlier events in its pillar and its pixel code (pixel in the pillar, polarity). So the sample is
the same in any batch, in any order of events with equal times, and on any device. Exact duplicates (same time, pixel
and polarity) have the same priority.

The functions take Python integers or int64 tensors. The two ``_u32`` functions compute the same in compiled loops, and
``kernels/triton_loops.py`` on a GPU.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fate.compiled import inlined

M32 = 0xFFFFFFFF
GOLDEN = 0x9E3779B9
MUL_1, MUL_2 = 0x85EBCA6B, 0xC2B2AE35

Number = TypeVar("Number", int, Tensor)


def hash32(value: Number) -> Number:
    """Hash 32-bit numbers; the map is a bijection."""
    value = value & M32
    value = ((value ^ value >> 16) * MUL_1) & M32
    value = ((value ^ value >> 13) * MUL_2) & M32
    return value ^ value >> 16


def seed_key(seed: int) -> int:
    """The part of a window's key that depends on the seed alone."""
    return hash32(hash32(seed ^ GOLDEN) ^ (seed >> 32 & M32))


def window_key(seed: int, start_us: Number) -> Number:
    """The key of a window that starts at ``start_us``."""
    return hash32(hash32((start_us & M32) ^ seed_key(seed)) ^ (start_us >> 32 & M32))


def pillar_priority(key: Number, cell: Number) -> Number:
    """The priority of the pillar at ``cell`` (row by row), different for all pillars of a window."""
    return hash32(cell ^ key)


def event_priority(pillar: Number, earlier: Number, pixel: Number) -> Number:
    """The priority of an event.

    Args:
        pillar: priority of its pillar.
        earlier: number of events of the pillar with an earlier time.
        pixel: (row in pillar × side + column in pillar) × 2 + polarity.
    """
    return hash32(hash32(pillar + (earlier + 1) * GOLDEN) ^ pixel)


def ranks(priority: Tensor, group: Tensor) -> Tensor:
    """[E] rank of each entry by priority in its group; ties are ranked by index. ``group`` [E] must be sorted."""
    by_priority = torch.argsort(priority, stable=True)
    order = by_priority[torch.argsort(group[by_priority], stable=True)]
    first = torch.searchsorted(group, group)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return rank - first


@inlined
def hash_u32(value: np.uint32) -> np.uint32:
    """``hash32`` in compiled loops."""
    value = np.uint32((value ^ (value >> np.uint32(16))) * np.uint32(MUL_1))
    value = np.uint32((value ^ (value >> np.uint32(13))) * np.uint32(MUL_2))
    return np.uint32(value ^ (value >> np.uint32(16)))


@inlined
def event_priority_u32(pillar: np.uint32, earlier: int, pixel: int) -> np.uint32:
    """``event_priority`` in compiled loops."""
    inner = hash_u32(np.uint32(pillar + np.uint32(GOLDEN) * np.uint32(earlier + 1)))
    return hash_u32(np.uint32(inner ^ np.uint32(pixel)))
