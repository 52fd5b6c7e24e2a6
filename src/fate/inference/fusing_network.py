"""Replaces backbone, neck and head of RVT and S5-ViT by those that take few kernels (``models/fused``).

With ``kernels`` and float16 it is the precision "float16" of a stream on a GPU. With ``reference`` and float32 it runs
anywhere, and outputs are equal to those of the detector up to rounding.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from fate.errors import FateError
from fate.models.backbones.maxvit import MaxViT
from fate.models.detector import Detector, Frame
from fate.models.fused import maxvit, pafpn, yolox
from fate.models.heads.yolox import YOLOXHead
from fate.models.necks.pafpn import PAFPN


class UnpaddedFrame(Frame):
    """A frame whose images are padded by the backbone."""

    def padded_image(self, image: Tensor) -> Tensor:
        """Return the image as it is."""
        return image


def fuse_network_(detector: Detector, operations: ModuleType, dtype: torch.dtype) -> None:
    """Change a detector that ``fusing.fused`` has returned; it then takes one window of each stream in a call.

    Args:
        detector: on its final device.
        operations: ``models.fused.reference`` or ``models.fused.kernels``.
        dtype: of weights, maps and inputs of matrix products; all else is float32.
    """
    reason = why_not_fused(detector)
    if reason is not None:
        name = detector.description.get("name", "this detector")
        raise FateError(f"precision='float16' was asked for with {name}, but {reason}; choose 'tf32' or 'bfloat16'")
    assert isinstance(detector.backbone, MaxViT)
    assert isinstance(detector.neck, PAFPN)
    assert isinstance(detector.head, YOLOXHead)
    frame = detector.frame
    detector.backbone = maxvit.FusedMaxViT(detector.backbone, frame, operations, dtype)
    detector.neck = pafpn.FusedPAFPN(detector.neck, operations, dtype)
    detector.head = yolox.FusedYOLOXHead(detector.head, operations, dtype)
    detector.frame = UnpaddedFrame(*frame)


def why_not_fused(detector: Detector) -> str | None:
    """Why the network of a detector cannot be fused; None if it can."""
    return (
        maxvit.why_not_fused(detector.backbone, detector.frame)
        or pafpn.why_not_fused(detector.neck)
        or yolox.why_not_fused(detector.head)
        or (None if detector.memory is None else "it has a memory behind its neck")
    )
