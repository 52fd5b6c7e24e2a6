"""Which events and pillars a cap keeps: a uniform choice that depends on nothing but a seed and the events themselves.

Every pillar and every event gets a 32-bit priority from a counter-based generator (MurmurHash3's finaliser over a key
and a counter); a cap keeps the lowest. The key is (seed, start of the window, pillar); an event's counter is the
number of earlier events in its pillar and its place in it (pixel, polarity). So the choice is the same in any batch,
in any order of events with equal times, and on any device. The three versions here do the same arithmetic: whole
numbers for reading, torch tensors, and compiled loops; ``kernels/cuda_binning.py`` holds the fourth. Exact
duplicates (same time, pixel and polarity) have one priority: they stay or go together.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fate.compiled import inlined

M32 = 0xFFFFFFFF
GOLDEN = 0x9E3779B9
MUL_1, MUL_2 = 0x85EBCA6B, 0xC2B2AE35


def mixed(value: int) -> int:
    """A bijection of 32-bit numbers that leaves no trace of their order."""
    value &= M32
    value = ((value ^ value >> 16) * MUL_1) & M32
    value = ((value ^ value >> 13) * MUL_2) & M32
    return value ^ value >> 16


def window_key(seed: int, start_us: int) -> int:
    """The key of a window."""
    key = mixed(mixed(seed ^ GOLDEN) ^ (seed >> 32 & M32))
    return mixed(mixed(key ^ (start_us & M32)) ^ (start_us >> 32 & M32))


def pillar_priority(key: int, cell: int) -> int:
    """Of the pillar at ``cell`` (row by row); no two pillars of a window have the same."""
    return mixed(cell ^ key)


def event_priority(pillar: int, earlier: int, place: int) -> int:
    """Of an event, given its pillar's priority, how many events came before its time, and its place in the pillar."""
    return mixed(mixed(pillar + GOLDEN * (earlier + 1)) ^ place)


def mixed_tensor(value: Tensor) -> Tensor:
    """``mixed`` of int64 tensors."""
    value = value & M32
    value = ((value ^ value >> 16) * MUL_1) & M32
    value = ((value ^ value >> 13) * MUL_2) & M32
    return value ^ value >> 16


def pillar_priorities(seed: int, start_us: Tensor, window: Tensor, cell: Tensor) -> Tensor:
    """[J] ``pillar_priority`` of pillars at ``cell`` of windows ``window`` that start at ``start_us`` [B]."""
    first = mixed(mixed(seed ^ GOLDEN) ^ (seed >> 32 & M32))
    key = mixed_tensor(mixed_tensor(first ^ (start_us & M32)) ^ (start_us >> 32 & M32))
    return mixed_tensor(cell ^ key[window])


def event_priorities(pillar: Tensor, earlier: Tensor, place: Tensor) -> Tensor:
    """[E] ``event_priority``."""
    return mixed_tensor(mixed_tensor(pillar + GOLDEN * (earlier + 1)) ^ place)


def ranks(priority: Tensor, group: Tensor) -> Tensor:
    """[E] how many of an entry's group have a lower priority, or the same and stand before it; groups are sorted."""
    by_priority = torch.argsort(priority, stable=True)
    order = by_priority[torch.argsort(group[by_priority], stable=True)]
    first = torch.searchsorted(group, group)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return rank - first


@inlined
def mixed_u32(value: np.uint32) -> np.uint32:
    """``mixed`` in compiled loops, where the product of two 32-bit numbers has 64."""
    value = np.uint32((value ^ (value >> np.uint32(16))) * np.uint32(MUL_1))
    value = np.uint32((value ^ (value >> np.uint32(13))) * np.uint32(MUL_2))
    return np.uint32(value ^ (value >> np.uint32(16)))


@inlined
def event_priority_u32(pillar: np.uint32, earlier: int, place: int) -> np.uint32:
    """``event_priority`` in compiled loops."""
    inner = mixed_u32(np.uint32(pillar + np.uint32(GOLDEN) * np.uint32(earlier + 1)))
    return mixed_u32(np.uint32(inner ^ np.uint32(place)))
