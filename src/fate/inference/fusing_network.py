"""Replaces history, backbone, neck, memory and head of a detector by those that take few kernels (``models/fused``).

RVT, S5-ViT and EvRT-DETR can be fused. With ``kernels`` and float16 it is the precision "float16" of a stream on a GPU.
With ``reference`` and float32 it runs anywhere, and outputs are equal to those of the detector up to rounding.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from fate.errors import FateError
from fate.models.backbones.maxvit import MaxViT
from fate.models.backbones.presnet import PResNet
from fate.models.detector import Detector, Frame
from fate.models.fused import history, hybrid_encoder, latent_memory, maxvit, pafpn, presnet, rtdetr, yolox
from fate.models.heads.rtdetr import RtDetrHead
from fate.models.heads.yolox import YOLOXHead
from fate.models.layers.image_history import ImageHistory
from fate.models.necks.hybrid_encoder import HybridEncoder
from fate.models.necks.latent_memory import LatentMemory
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
    if isinstance(detector.history, ImageHistory):
        detector.history = history.FusedImageHistory(detector.history, operations)
    frame = detector.frame
    detector.frame = UnpaddedFrame(*frame)
    if isinstance(detector.backbone, PResNet):
        _fuse_detr_(detector, frame, operations, dtype)
        return
    assert isinstance(detector.backbone, MaxViT)
    assert isinstance(detector.neck, PAFPN)
    assert isinstance(detector.head, YOLOXHead)
    detector.backbone = maxvit.FusedMaxViT(detector.backbone, frame, operations, dtype)
    detector.neck = pafpn.FusedPAFPN(detector.neck, operations, dtype)
    detector.head = yolox.FusedYOLOXHead(detector.head, operations, dtype)


def _fuse_detr_(detector: Detector, frame: Frame, operations: ModuleType, dtype: torch.dtype) -> None:
    memory = detector.memory
    assert isinstance(detector.backbone, PResNet)
    assert isinstance(detector.neck, HybridEncoder)
    assert isinstance(memory, LatentMemory | None)
    assert isinstance(detector.head, RtDetrHead)
    detector.backbone = presnet.FusedPResNet(detector.backbone, frame, operations, dtype)
    detector.neck = hybrid_encoder.FusedHybridEncoder(detector.neck, operations, dtype)
    detector.head = rtdetr.FusedRtDetrHead(detector.head, memory, operations, dtype)
    if memory is not None:
        detector.memory = latent_memory.FusedLatentMemory(memory, operations, dtype)


def why_not_fused(detector: Detector) -> str | None:
    """Why the network of a detector cannot be fused; None if it can."""
    if isinstance(detector.backbone, PResNet):
        return (
            presnet.why_not_fused(detector.backbone, detector.frame)
            or hybrid_encoder.why_not_fused(detector.neck)
            or latent_memory.why_not_fused(detector.memory)
            or rtdetr.why_not_fused(detector.head)
        )
    return (
        maxvit.why_not_fused(detector.backbone, detector.frame)
        or pafpn.why_not_fused(detector.neck)
        or yolox.why_not_fused(detector.head)
        or (None if detector.memory is None else "it has a memory behind its neck")
    )
