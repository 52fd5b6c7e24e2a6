"""The list of detectors (``models.yaml``), known without building one and without loading torch.

``fate models`` prints it at once, and commands refuse an unknown name before they load torch, which takes seconds.

**GFLOPs** are those of one window at batch 1, from the encoder's image to the raw boxes, on the padded frame. Counted
are matrix products, convolutions and attention, where nearly all of the work is; a multiplication and its addition
count as **two**. Not counted are norms, activations, the recurrence of S5, the sampling of deformable attention and
non-maximum suppression; nor the encoder, whose work follows the events and not the frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

#: Names of the functions in ``zoo`` that build all of a detector but its encoder.
Family = Literal["maxvit_yolox", "get_yolox", "evrt_detr"]


@dataclass(frozen=True)
class Entry:
    """One detector."""

    name: str
    about: str  #: one line
    family: Family
    encoder: str
    parameters: int  #: that are learned; those of the encoder are included
    flops: int  #: operations per window without the encoder, see above
    options: Mapping[str, Any] = field(default_factory=dict)  #: of the family
    encoder_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gflops(self) -> float:
        """10⁹ operations per window."""
        return self.flops / 1e9

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        shown = ("name", "parameters", "gflops", "encoder", "about")
        return {name: getattr(self, name) for name in shown}


#: (height, width) and class names that the numbers of ``MODELS`` are for.
SENSOR = (240, 304)
CLASSES = ("car", "pedestrian")
_FILE = Path(__file__).with_name("models.yaml")
#: Every detector by its name.
MODELS = {name: Entry(name, **entry) for name, entry in yaml.safe_load(_FILE.read_text(encoding="utf-8")).items()}
NAMES = tuple(MODELS)
