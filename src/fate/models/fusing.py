"""A trained detector as it runs fastest: what BatchNorm has learned is folded into the convolution before it."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fate.models.detector import Detector
from fate.models.layers.conv import ConvNormAct
from fate.models.necks.hybrid_encoder import HybridEncoder
from fate.models.necks.latent_memory import LatentMemory


def fused(detector: Detector) -> Detector:
    """A copy in evaluation mode with as few operations as possible; it computes the same and cannot be trained."""
    result = copy.deepcopy(detector).eval().requires_grad_(False)
    for module in list(result.modules()):
        if isinstance(module, HybridEncoder | LatentMemory):
            module.fuse_()
    for module in list(result.modules()):
        if isinstance(module, ConvNormAct) and isinstance(module.norm, nn.BatchNorm2d):
            module.conv = fuse_conv_bn_eval(module.conv, module.norm)
            module.norm = nn.Identity()  # type: ignore[assignment]
    result.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return result
