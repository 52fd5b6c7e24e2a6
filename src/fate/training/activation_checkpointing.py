"""Activation checkpointing (Chen et al. 2016): a block keeps its inputs only, and runs again in the backward pass.

This trades time for memory and changes no result. Blocks with BatchNorm update their running statistics in the first
run only. Blocks with random numbers (stochastic depth in GET) are never chosen, because the second run would draw
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from fate.models.backbones.presnet import ResidualBlock
from fate.models.heads.rtdetr import DecoderLayer
from fate.models.layers.attention import TransformerBlock
from fate.models.layers.conv import SeparableBlock
from fate.models.necks.hybrid_encoder import AIFI, CSPRep
from fate.models.necks.pafpn import CSPLayer
from fate.training.config import Checkpointing

_HEAD = (DecoderLayer,)
BLOCKS: dict[Checkpointing, tuple[type[nn.Module], ...]] = {
    "none": (),
    "head": _HEAD,
    "all": (*_HEAD, ResidualBlock, TransformerBlock, SeparableBlock, AIFI, CSPRep, CSPLayer),
}


def checkpoint_activations(detector: nn.Module, choice: Checkpointing) -> None:
    """Let the chosen blocks of a detector run again in the backward pass, and all others keep their activations."""
    for module in detector.modules():
        if isinstance(module, BLOCKS["all"]):
            module.__dict__.pop("forward", None)
            if isinstance(module, BLOCKS[choice]):
                module.forward = partial(_run, module)


def _run(block: nn.Module, *inputs: Any) -> Any:
    """Run a block; if gradients are needed, without keeping its activations."""
    forward = partial(type(block).forward, block)
    if not torch.is_grad_enabled():
        return forward(*inputs)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), keep_statistics(block)

    # Random states cannot be read during the capture of a CUDA graph, and these blocks draw no random numbers.
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)


@contextmanager
def keep_statistics(block: nn.Module) -> Iterator[None]:
    """Leave the running statistics of BatchNorm layers as they are inside the block."""
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 0.0
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked = norm.num_batches_tracked.clone()
        yield
    finally:
        for norm, momentum, count in kept:
            norm.momentum, norm.num_batches_tracked = momentum, count
