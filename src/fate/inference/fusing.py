"""Makes a trained detector faster: BatchNorm is folded into convolutions, and convolutions of one input are merged."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fate.inference.backends.graph_detector import GraphDetector
from fate.models.detector import Detector
from fate.models.heads.yolox import YOLOXHead
from fate.models.layers.conv import ConvNormAct
from fate.models.necks.hybrid_encoder import HybridEncoder
from fate.models.necks.latent_memory import LatentMemory
from fate.models.necks.pafpn import CSPLayer


def fused(detector: Detector) -> Detector:
    """A copy in evaluation mode with fewer operations and the same outputs; it cannot be trained."""
    if isinstance(detector, GraphDetector):  # it was fused when it was exported, and has no state of its own
        return detector
    result = copy.deepcopy(detector).eval().requires_grad_(False)
    for module in list(result.modules()):
        if isinstance(module, HybridEncoder | LatentMemory):
            module.fuse_()
    fold_norms_(result)
    for module in list(result.modules()):
        if isinstance(module, CSPLayer | YOLOXHead):
            module.fuse_()
    result.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return result


def fold_norms_(model: nn.Module) -> None:
    """Fold BatchNorm into the convolution before it."""
    for module in list(model.modules()):
        if isinstance(module, ConvNormAct) and isinstance(module.norm, nn.BatchNorm2d):
            module.conv = fuse_conv_bn_eval(module.conv, module.norm)
            module.norm = nn.Identity()  # type: ignore[assignment]


def lay_out_for_cpu_(detector: Detector) -> None:
    """Store the weights of linear layers transposed in memory; their values stay the same.

    A matrix product of some hundred rows spends much of its time on this transposition in every call: on an ARM core a
    small detector takes a sixth less time without it. The encoder needs its weights in the usual order.
    """
    for name, part in detector.named_children():
        for module in part.modules():
            if name != "encoder" and isinstance(module, nn.Linear):
                module.weight = nn.Parameter(module.weight.t().contiguous().t(), requires_grad=False)
