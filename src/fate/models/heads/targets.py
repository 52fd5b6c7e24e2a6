"""The boxes of many windows together: checked on the CPU, then moved to the device of a loss in one copy.

Training on a GPU is fast while the CPU runs ahead of it. Reading a value of the GPU (``.item()``, a boolean index, a
copy from pageable memory) makes the CPU wait. So targets are made and checked on the CPU and copied from pinned memory;
losses then depend on their shapes alone, which the CPU knows.
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


class ConcatenatedTargets(NamedTuple):
    """The M boxes of N windows on the CPU."""

    boxes: Tensor  #: [M, 4] xyxy, pixels
    class_ids: Tensor  #: [M] int64
    weights: Tensor  #: [M] w_v
    window: Tensor  #: [M] int64
    box_index: Tensor  #: [M] int64, among the boxes of its window
    counts: tuple[int, ...]  #: boxes of each window


def concatenate_targets(targets: Sequence[Targets], classes: int) -> ConcatenatedTargets:
    """Concatenate the targets of N windows and check all values; tensors on a GPU are copied to the CPU first."""
    counts = tuple(of.boxes.shape[0] for of in targets)  # len() takes thrice the time
    window = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))  # torch would wake all its threads for this
    first = torch.tensor([0, *accumulate(counts)][:-1], dtype=torch.int64)
    if targets:
        boxes, class_ids, weights = (torch.cat(parts).cpu() for parts in zip(*targets, strict=True))
    else:
        boxes, class_ids, weights = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    check_class_ids(class_ids, classes)
    index = torch.arange(len(window)) - first[window]
    result = ConcatenatedTargets(boxes.float(), class_ids, weights.float(), window, index, counts)
    _check_values(result)
    return result


def check_class_ids(class_ids: Tensor, classes: int, names: Sequence[str] = ()) -> None:
    """Refuse class ids [M] outside 0 to ``classes`` - 1."""
    if len(class_ids):
        least, greatest = torch.stack(class_ids.aminmax()).tolist()
        if least < 0 or greatest >= classes:
            known = f" ({', '.join(names)})" if names else f", since this head knows {classes}"
            raise FateError(
                f"targets of class ids {least} to {greatest} were given; expected 0 to {classes - 1}{known}"
            )


def mean_over_processes(count: Tensor) -> Tensor:
    """[] the mean of a count over all processes that train together, where the sum is at least 1.

    All processes must call this, even with 0. Losses are divided by the result, so that averaged gradients are those
    of one process with the whole batch.
    """
    count = count.float()
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return count.clamp(min=1)
    count = count.clone()
    torch.distributed.all_reduce(count)
    return count.clamp(min=1) / torch.distributed.get_world_size()


def _check_values(targets: ConcatenatedTargets) -> None:
    """Check that box corners are in order, weights are at least 0, and all values are finite."""
    boxes, weights = targets.boxes, targets.weights
    ordered = (boxes[:, 2:] >= boxes[:, :2]).all(dim=1)
    sound = ordered & boxes.isfinite().all(dim=1) & weights.isfinite() & (weights >= 0)
    if not bool(sound.all()):
        bad = int(sound.int().argmin())
        raise FateError(
            f"box {int(targets.box_index[bad])} of labelled window {int(targets.window[bad])} is"
            f" {boxes[bad].tolist()} with weight {float(weights[bad]):g}; expected finite x1, y1, x2, y2 with x2 ≥ x1"
            " and y2 ≥ y1, and a finite weight of 0 or more"
        )


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device without waiting for a GPU."""
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
