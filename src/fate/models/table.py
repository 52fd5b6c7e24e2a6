"""The names of all detectors and what each is, known without building one and without loading torch.

``fate models`` prints this table at once, and commands refuse an unknown name before they load torch, which takes
seconds. A test compares every number with the detectors that ``build_model`` builds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One detector."""

    name: str
    parameters: int  #: that are learned; those of the encoder are included
    flops: int  #: operations per window without the encoder, see ``catalogue``
    encoder: str
    about: str  #: one line

    @property
    def gflops(self) -> float:
        """10⁹ operations per window."""
        return self.flops / 1e9

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "parameters": self.parameters,
            "gflops": self.gflops,
            "encoder": self.encoder,
            "about": self.about,
        }


#: (height, width) and class names that ``TABLE`` is for.
SENSOR = (240, 304)
CLASSES = ("car", "pedestrian")
TABLE = (
    Entry("fate-s", 18_331_029, 11_762_790_400, "pillars", "S5-ViT-B with Pillar Encoding (FATE-S)"),
    Entry("fate-e", 57_161_322, 47_762_411_520, "pillars", "EvRT-DETR-B with Pillar Encoding (FATE-E)"),
    Entry("s5-vit-b", 18_192_149, 10_349_834_240, "histogram", "S5-ViT-B (Zubić et al. 2024), histograms"),
    Entry("s5-vit-s", 9_677_205, 5_780_567_040, "histogram", "S5-ViT-S, histograms"),
    Entry("rvt-b", 18_536_469, 9_846_517_760, "histogram", "RVT-B (Gehrig & Scaramuzza 2023)"),
    Entry("rvt-s", 9_870_165, 5_497_451_520, "histogram", "RVT-S"),
    Entry(
        "evrt-detr-b", 57_147_754, 47_243_366_400, "evrt-histogram", "EvRT-DETR-B (Torbunov et al. 2025), PResNet-50"
    ),
    Entry("evrt-detr-s", 34_447_736, 30_048_808_960, "evrt-histogram", "EvRT-DETR-S, PResNet-18"),
    Entry(
        "get-b",
        21_916_429,
        19_609_341_952,
        "group-tokens",
        "GET (Peng et al. 2023), its detector inferred from the paper",
    ),
    Entry("fate-s-tiny", 4_306_773, 2_616_755_200, "pillars", "FATE-S for laptops"),
    Entry("s5-vit-tiny", 4_328_469, 2_843_509_760, "histogram", "fate-s-tiny with histograms instead of pillars"),
    Entry("fate-e-tiny", 3_157_720, 2_268_083_200, "pillars", "FATE-E for laptops"),
    Entry(
        "evrt-detr-tiny", 3_155_976, 2_214_999_040, "evrt-histogram", "fate-e-tiny with histograms instead of pillars"
    ),
    Entry("fate-s-nano", 865_973, 271_918_080, "pillars", "FATE-S, the smallest, for live use on a CPU"),
    Entry("s5-vit-nano", 879_125, 408_888_320, "histogram", "fate-s-nano with histograms instead of pillars"),
)
NAMES = tuple(entry.name for entry in TABLE)
