"""Several processes that train as one: what one process would do with the whole batch, they do with their shares.

Averaging gradients is the engine's work. Losses are divided by counts over *all* processes where they are computed
(``models.heads.targets``). Here, batch normalisation looks at all windows of all processes: on GPUs with torch's own
layer, on CPUs, where torch has none, with the one below. And what the first process does alone, the others wait for.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import FunctionCtx

from fate.errors import FateError

#: How long the others wait for what the first process does alone: it may validate for hours on 1Mpx.
PATIENCE = timedelta(hours=12)


def processes() -> int:
    """How many train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def check_processes(devices: int, nodes: int) -> None:
    """Refuse settings that speak of other numbers than were started: each would train by itself, or wait for ever."""
    started = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", ""))
    if nodes > 1 and not started.isdigit():
        raise FateError(
            f"run.nodes = {nodes} was given, and nothing has started processes on other machines; start it on each of"
            " them with torchrun, or with srun"
        )
    if "WORLD_SIZE" in os.environ and started.isdigit() and int(started) != devices * nodes:
        raise FateError(
            f"{started} processes were started, and run.devices · run.nodes = {devices} · {nodes}; give the number of"
            " processes on a machine as run.devices, and that of machines as run.nodes"
        )


def check_together(batches: int, device: torch.device) -> None:
    """Refuse processes that do not stand at the same batch: some have found the run's checkpoint, others not."""
    if processes() > 1:
        own = torch.tensor([batches], dtype=torch.int64, device=device)
        all_of_them = [torch.zeros_like(own) for _ in range(processes())]
        distributed.all_gather(all_of_them, own)
        stands = sorted({int(each) for each in all_of_them})
        if len(stands) > 1:
            raise FateError(
                f"processes stand at batches {' and '.join(map(str, stands))}; expected a run's folder on a disk that"
                " all machines share"
            )


def patient_group() -> distributed.ProcessGroup | None:
    """A group of all processes whose barrier waits up to ``PATIENCE``; None if there is one process.

    Every process must call this.

    Steps keep the engine's own, shorter patience (half an hour), so that a process that hangs is not waited for as
    long as one that validates.
    """
    return distributed.new_group(timeout=PATIENCE) if processes() > 1 else None


def mean_of_processes(values: Tensor) -> Tensor:
    """[M] numbers averaged over all processes, which must all ask."""
    if processes() == 1:
        return values
    together = values.clone()
    distributed.all_reduce(together)
    return together / processes()


class _Summed(torch.autograd.Function):
    """The sum over processes, whose gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor) -> Tensor:
        together = value.clone()
        distributed.all_reduce(together)
        return together

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> Tensor:
        together = gradients[0].contiguous().clone()
        distributed.all_reduce(together)
        return together


class TogetherBatchNorm(nn.modules.batchnorm._BatchNorm):
    """What ``nn.SyncBatchNorm`` is on GPUs, for CPUs; a process may come with no windows at all."""

    #: Pillar Encoding, which normalises its own way, asks for this.
    spans_processes = True

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        """Normalise [N, C, …] by the statistics of all processes in training, by the running ones otherwise."""
        if not self.training or processes() == 1:
            return super().forward(input)
        axes = [0, *range(2, input.ndim)]
        values = input.to(torch.promote_types(input.dtype, torch.float32))
        count = values.new_tensor([values.numel() / max(values.shape[1], 1)])
        sums: Tensor = _Summed.apply(torch.cat([values.sum(axes), values.square().sum(axes), count]))  # type: ignore[no-untyped-call]
        total, squares, seen = sums[: self.num_features], sums[self.num_features : -1], sums[-1].clamp(min=1)
        mean = total / seen
        variance = (squares / seen - mean.square()).clamp(min=0)
        self._remember(mean.detach(), variance.detach() * seen.detach() / (seen.detach() - 1).clamp(min=1))
        shape = [1, -1, *[1] * (input.ndim - 2)]
        weight, bias = cast(Tensor, self.weight), cast(Tensor, self.bias)
        scale = (weight * torch.rsqrt(variance + self.eps)).view(shape)
        return ((values - mean.view(shape)) * scale + bias.view(shape)).to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        momentum = 0.0 if self.momentum is None else self.momentum
        for kept, seen in ((self.running_mean, mean), (self.running_var, variance)):
            if kept is not None:
                kept.lerp_(seen.to(kept.dtype), momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


def join_norms(module: nn.Module, device: str = "cpu") -> nn.Module:
    """The same module with every batch normalisation over all processes; weights and names stay."""
    if device == "cuda":
        joined_all: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        return joined_all
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm) and not isinstance(child, nn.SyncBatchNorm):
            options: dict[str, Any] = {"eps": child.eps, "momentum": child.momentum, "affine": child.affine}
            joined = TogetherBatchNorm(child.num_features, **options)
            joined.load_state_dict(child.state_dict())
            joined.train(child.training)
            for kept, given in zip(joined.parameters(), child.parameters(), strict=True):
                kept.requires_grad_(given.requires_grad)
            setattr(module, name, joined)
        else:
            join_norms(child)
    return module
