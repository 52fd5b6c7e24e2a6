"""The list of detectors (``models.yaml``), readable without building one and without importing torch.

``fate models`` prints it at once, and commands refuse an unknown name before they import torch, which takes seconds.

**GFLOPs** are operations per window at batch 1, from the encoder's image to the raw boxes, on the padded frame. They
include matrix products, convolutions and attention, which are nearly all of the work; a multiplication and its addition
count as **two** operations. They exclude norms, activations, the recurrence of S5, the sampling of deformable
attention, NMS, and the encoder, whose work depends on the number of events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

#: Functions of ``zoo`` that build a detector without its encoder.
Family = Literal["maxvit_yolox", "get_yolox", "evrt_detr"]


@dataclass(frozen=True)
class Entry:
    """One detector."""

    name: str
    about: str  #: one line
    family: Family
    encoder: str
    parameters: int  #: number of learned parameters, including the encoder's
    flops: int  #: operations per window, see above
    options: Mapping[str, Any] = field(default_factory=dict)  #: arguments of the family's function
    encoder_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gflops(self) -> float:
        """10⁹ operations per window."""
        return self.flops / 1e9

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        shown = ("name", "parameters", "gflops", "encoder", "about")
        return {name: getattr(self, name) for name in shown}


#: (height, width) and class names for which ``MODELS`` lists parameters and operations.
SENSOR = (240, 304)
CLASSES = ("car", "pedestrian")
_FILE = Path(__file__).with_name("models.yaml")
#: Every detector by its name.
MODELS = {name: Entry(name, **entry) for name, entry in yaml.safe_load(_FILE.read_text(encoding="utf-8")).items()}
NAMES = tuple(MODELS)
