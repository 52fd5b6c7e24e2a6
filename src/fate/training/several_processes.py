"""Several processes that train as one: each takes its share of the batch, and the result is that of one process.

Lightning averages gradients. Losses are divided by counts over *all* processes where they are computed
(``models.outputs``). Here, batch normalisation uses the statistics of all windows of all processes: on GPUs with
torch's own layer, on CPUs, where torch has none, with the one below. The others wait for what the first does alone.
"""

from __future__ import annotations

import os
from typing import cast

import torch
from torch import Tensor, distributed, nn

from fate.errors import FateError


def processes() -> int:
    """The number of processes that train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def check_processes(devices: int, nodes: int) -> None:
    """Refuse settings that differ from the started processes: each would train by itself, or wait for ever."""
    started = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", ""))
    none_started = nodes > 1 and not started.isdigit()
    if none_started or ("WORLD_SIZE" in os.environ and started.isdigit() and int(started) != devices * nodes):
        raise FateError(
            f"{'no' if none_started else started} processes were started, and run.devices · run.nodes = {devices} ·"
            f" {nodes}; start as many with torchrun or srun: run.devices on each of run.nodes machines"
        )


class CpuSyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """``nn.SyncBatchNorm``, which exists for GPUs only, for CPUs; a process may have no windows at all."""

    #: Pillar Encoding, which normalises its own way, asks for this.
    spans_processes = True

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        """Normalise [N, C, …] by the statistics of all processes in training, by the running ones otherwise."""
        if not self.training or processes() == 1:
            return super().forward(input)
        from torch.distributed.nn.functional import all_reduce  # noqa: PLC0415  (not every torch has it)

        axes = [0, *range(2, input.ndim)]
        values = input.to(torch.promote_types(input.dtype, torch.float32))
        count = values.new_tensor([values.numel() / max(values.shape[1], 1)])
        own = torch.cat([values.sum(axes), values.square().sum(axes), count])
        sums: Tensor = all_reduce(own)  # type: ignore[no-untyped-call]  # its gradient is summed too
        total, squares, seen = sums[: self.num_features], sums[self.num_features : -1], sums[-1].clamp(min=1)
        mean = total / seen
        variance = (squares / seen - mean.square()).clamp(min=0)
        with torch.no_grad():
            momentum = 0.0 if self.momentum is None else self.momentum
            for kept, now in ((self.running_mean, mean), (self.running_var, variance * seen / (seen - 1).clamp(min=1))):
                if kept is not None:
                    kept.lerp_(now.to(kept.dtype), momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        shape = [1, -1, *[1] * (input.ndim - 2)]
        weight, bias = cast(Tensor, self.weight), cast(Tensor, self.bias)
        scale = (weight * torch.rsqrt(variance + self.eps)).view(shape)
        return ((values - mean.view(shape)) * scale + bias.view(shape)).to(input.dtype)


def synchronise_norms(module: nn.Module, device: str = "cpu") -> nn.Module:
    """Let every batch normalisation of a module span all processes; weights and names stay."""
    if device == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        return converted
    for child in module.modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            child.__class__ = CpuSyncBatchNorm  # both have the same state
    return module
