"""The detectors side by side: parameters, work per window, encoder, and what each is. ``fate models`` prints it.

**GFLOPs** are those of one window at batch 1, from the encoder's image to the raw boxes, on the padded frame. Counted
are matrix products, convolutions and attention, where nearly all of the work is; a multiplication and its addition
count as **two**. Not counted are norms, activations, the recurrence of S5, the sampling of deformable attention and
non-maximum suppression; nor the encoder, whose work follows the events and not the frame.

Nothing is computed for that: the model is built and run on torch's ``meta`` device, where tensors have shapes and no
numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

from fate.models.detector import Detector
from fate.models.table import Entry
from fate.models.zoo import MODELS, build_model
from fate.progress import Progress


def list_models(
    classes: Sequence[str] = ("car", "pedestrian"),
    sensor: Sequence[int] = (240, 304),
    progress: Progress | None = None,
) -> list[Entry]:
    """Every detector that ``build_model`` knows, for these classes and this sensor.

    Args:
        classes: names; the heads grow with them.
        sensor: (height, width) of the events, pixels.
        progress: called with how many models are done, and how many there are.
    """
    entries = []
    for number, (name, model) in enumerate(MODELS.items()):
        if progress is not None:
            progress(number, len(MODELS))
        with torch.device("meta"):
            shapes = build_model(name, classes, sensor)
        count = sum(parameter.numel() for parameter in shapes.parameters())
        entries.append(Entry(name, count, _flops(shapes), model.encoder, model.about))
    return entries


def flops_per_window(detector: Detector) -> int:
    """Operations of one window at batch 1, without the encoder; a multiplication and its addition are two."""
    return _flops(copy.deepcopy(detector).to("meta"))


def _flops(shapes: Detector) -> int:
    """Of a detector on the ``meta`` device."""
    stride = shapes.frame.encoder_stride
    rows, columns = (-(-side // stride) for side in shapes.sensor)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        shapes.eval()(torch.zeros(1, int(shapes.encoder.channels), rows, columns))  # type: ignore[arg-type]
    return int(counter.get_total_flops())
