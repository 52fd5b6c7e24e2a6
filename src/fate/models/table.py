"""The one list of detectors, known without building one and without loading torch.

``fate models`` prints it at once, and commands refuse an unknown name before they load torch, which takes seconds.
``zoo.build_model`` builds the detectors from it. A test compares every number with the detectors that it builds.

**GFLOPs** are those of one window at batch 1, from the encoder's image to the raw boxes, on the padded frame. Counted
are matrix products, convolutions and attention, where nearly all of the work is; a multiplication and its addition
count as **two**. Not counted are norms, activations, the recurrence of S5, the sampling of deformable attention and
non-maximum suppression; nor the encoder, whose work follows the events and not the frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: Names of the functions in ``zoo`` that build all of a detector but its encoder.
Family = Literal["maxvit_yolox", "get_yolox", "evrt_detr"]


@dataclass(frozen=True)
class Entry:
    """One detector."""

    name: str
    parameters: int  #: that are learned; those of the encoder are included
    flops: int  #: operations per window without the encoder, see above
    encoder: str
    about: str  #: one line
    family: Family
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


_SMALL = {"dims": (48, 96, 192, 384), "bottlenecks": 1}
_LSTM = {"memory": "lstm"}
_TINY = {
    "dims": (32, 64, 128, 256),
    "kinds": ("convolution", "attention", "attention", "attention"),
    "head_dim": 32,
    "depthwise": True,
    "head_width": 96,
    "full_head": True,
}
_NANO = {
    "dims": (16, 32, 64, 224),
    "kinds": ("plain", "convolution", "global", "global"),
    "mlp_ratio": 0,
    "depthwise": True,
    "head_dim": 32,
    "head_width": 48,
}
_EVRT_SMALL = {"depth": 18, "expansion": 0.5, "layers": 3}
_EVRT_TINY = {
    "depth": 10,
    "widths": (24, 64, 128, 320),  # parameters where pixels are few
    "hidden": 64,
    "feedforward": 256,
    "expansion": 0.5,
    "layers": 3,
    "queries": 100,
}

#: (height, width) and class names that the numbers of ``MODELS`` are for.
SENSOR = (240, 304)
CLASSES = ("car", "pedestrian")
# fmt: off
_ENTRIES = (
    Entry("fate-s", 18_331_029, 11_762_790_400, "pillars",
          "S5-ViT-B with Pillar Encoding (FATE-S)", "maxvit_yolox"),
    Entry("fate-e", 57_161_322, 47_762_411_520, "pillars",
          "EvRT-DETR-B with Pillar Encoding (FATE-E)", "evrt_detr"),
    Entry("s5-vit-b", 18_192_149, 10_349_834_240, "histogram",
          "S5-ViT-B (Zubić et al. 2024), histograms", "maxvit_yolox"),
    Entry("s5-vit-s", 9_677_205, 5_780_567_040, "histogram",
          "S5-ViT-S, histograms", "maxvit_yolox", _SMALL),
    Entry("rvt-b", 18_536_469, 9_846_517_760, "histogram",
          "RVT-B (Gehrig & Scaramuzza 2023)", "maxvit_yolox", _LSTM),
    Entry("rvt-s", 9_870_165, 5_497_451_520, "histogram",
          "RVT-S", "maxvit_yolox", {**_LSTM, **_SMALL}),
    Entry("evrt-detr-b", 57_147_754, 47_243_366_400, "evrt-histogram",
          "EvRT-DETR-B (Torbunov et al. 2025), PResNet-50", "evrt_detr"),
    Entry("evrt-detr-s", 34_447_736, 30_048_808_960, "evrt-histogram",
          "EvRT-DETR-S, PResNet-18", "evrt_detr", _EVRT_SMALL),
    Entry("get-b", 21_916_429, 19_609_341_952, "group-tokens",
          "GET (Peng et al. 2023), its detector inferred from the paper", "get_yolox"),
    Entry("fate-s-tiny", 4_306_773, 2_616_755_200, "pillars",
          "FATE-S for laptops", "maxvit_yolox", _TINY, {"channels": 32}),
    Entry("s5-vit-tiny", 4_328_469, 2_843_509_760, "histogram",
          "fate-s-tiny with histograms instead of pillars", "maxvit_yolox", _TINY),
    Entry("fate-e-tiny", 3_157_720, 2_268_083_200, "pillars",
          "FATE-E for laptops", "evrt_detr", _EVRT_TINY, {"channels": 32}),
    Entry("evrt-detr-tiny", 3_155_976, 2_214_999_040, "evrt-histogram",
          "fate-e-tiny with histograms instead of pillars", "evrt_detr", _EVRT_TINY),
    Entry("fate-s-nano", 865_973, 271_918_080, "pillars",
          "FATE-S, the smallest, for live use on a CPU", "maxvit_yolox", _NANO, {"channels": 16}),
    Entry("s5-vit-nano", 879_125, 408_888_320, "histogram",
          "fate-s-nano with histograms instead of pillars", "maxvit_yolox", _NANO),
)
# fmt: on
#: Every detector by its name.
MODELS = {entry.name: entry for entry in _ENTRIES}
NAMES = tuple(MODELS)
