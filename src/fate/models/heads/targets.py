"""The boxes of many windows together: checked on the CPU, then moved to the device of a loss in one copy.

Training on a GPU is quick while the CPU runs ahead of it, and each look at a value of the GPU (``.item()``, a boolean
index, a copy from ordinary memory) makes the CPU wait until the GPU has caught up. So targets are made and checked on
the CPU, where looking costs nothing, and sent from page-locked memory. What a loss does with them afterwards follows
from shapes alone, which the CPU knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fate.errors import FateError
from fate.models.outputs import Targets


class Joined(NamedTuple):
    """The M boxes of N windows on the CPU, one window after the other."""

    boxes: Tensor  #: [M, 4] xyxy, pixels
    class_ids: Tensor  #: [M] int64
    weights: Tensor  #: [M] w_v
    window: Tensor  #: [M] int64
    place: Tensor  #: [M] int64, among the boxes of its window
    counts: tuple[int, ...]  #: boxes of each window


def joined(targets: Sequence[Targets], classes: int) -> Joined:
    """Of one ``Targets`` a window, all values checked; those on a GPU are waited for.

    Args:
        targets: of N windows.
        classes: how many there are.
    """
    counts = tuple(of.boxes.shape[0] for of in targets)  # len() takes thrice the time
    window = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))  # torch would wake all its threads for this
    first = torch.tensor([0, *accumulate(counts)][:-1], dtype=torch.int64)
    if targets:
        boxes, class_ids, weights = (torch.cat(parts).cpu() for parts in zip(*targets, strict=True))
    else:
        boxes, class_ids, weights = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    check_class_ids(class_ids, classes)
    place = torch.arange(len(window)) - first[window]
    found = Joined(boxes.float(), class_ids, weights.float(), window, place, counts)
    _check_values(found)
    return found


def check_class_ids(class_ids: Tensor, classes: int, names: Sequence[str] = ()) -> None:
    """Refuse ids [M] for which there is no class."""
    if len(class_ids):
        least, greatest = torch.stack(class_ids.aminmax()).tolist()
        if least < 0 or greatest >= classes:
            known = f" ({', '.join(names)})" if names else f", since this head knows {classes}"
            raise FateError(
                f"targets of class ids {least} to {greatest} were given; expected 0 to {classes - 1}{known}"
            )


def mean_over_processes(count: Tensor) -> Tensor:
    """[] a count averaged over all processes that train together, their sum at least 1; all must call this, also
    with 0.

    Losses are divided by it: averaged gradients are then those of one process with the whole batch.
    """
    count = count.float()
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return count.clamp(min=1)
    count = count.clone()
    torch.distributed.all_reduce(count)
    return count.clamp(min=1) / torch.distributed.get_world_size()


def _check_values(found: Joined) -> None:
    """Boxes have corners in order, weights are no less than 0, and all of them are numbers."""
    boxes, weights = found.boxes, found.weights
    ordered = (boxes[:, 2:] >= boxes[:, :2]).all(dim=1)
    sound = ordered & boxes.isfinite().all(dim=1) & weights.isfinite() & (weights >= 0)
    if not bool(sound.all()):
        bad = int(sound.int().argmin())
        raise FateError(
            f"box {int(found.place[bad])} of labelled window {int(found.window[bad])} is {boxes[bad].tolist()} with"
            f" weight {float(weights[bad]):g}; expected finite x1, y1, x2, y2 with x2 ≥ x1 and y2 ≥ y1, and a finite"
            " weight of 0 or more"
        )


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A copy of a tensor of the CPU on a device, for which a GPU is not waited for."""
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
