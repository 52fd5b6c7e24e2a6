"""Layer normalisation of channels that lie last: torch's own, and on a GPU a kernel for short rows (``norm_gpu``)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

#: The longest row that the kernel takes; torch is as quick from there on.
LONGEST = 512


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last axis.

    Args:
        channels: C.
        for_product: whether a matrix product follows, which autocast computes in 16 bits: on a GPU the result then
            comes in that type, where torch would give 32 bits and round them afterwards.
    """

    def __init__(self, channels: int, for_product: bool = False) -> None:
        super().__init__(channels)
        self.for_product = for_product

    def forward(self, input: Tensor) -> Tensor:
        """[..., C] → [..., C]."""
        kernel = self._kernel(input)
        if kernel is None:
            return super().forward(input)
        autocast = torch.is_autocast_enabled("cuda")
        kind = torch.float32 if autocast else input.dtype
        if autocast and self.for_product:
            kind = torch.get_autocast_dtype("cuda")
        rows: Tensor = _Normalised.apply(  # type: ignore[no-untyped-call]
            input.reshape(-1, input.shape[-1]), self.weight, self.bias, self.eps, kind, kernel
        )
        return rows.view(input.shape)

    def _kernel(self, input: Tensor) -> ModuleType | None:
        """Where it can be used: training on a GPU; compilers and graphs for inference do better with torch's own."""
        trains = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        fits = input.is_cuda and input.shape[-1] <= LONGEST and input.dtype in (torch.float32, torch.bfloat16)
        if not (trains and fits and input.numel() and self.elementwise_affine):
            return None
        return norm_kernel()


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, eps: float, kind: torch.dtype, kernel: ModuleType
    ) -> Tensor:
        rows = rows.contiguous()
        out, moments = kernel.normalised(rows, weight, bias, eps, kind)
        ctx.save_for_backward(rows, moments, weight)
        ctx.kernel = kernel
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, moments, weight = ctx.saved_tensors
        to_rows, to_weight, to_bias = ctx.kernel.gradients(rows, moments, weight, grad[0].contiguous())
        return to_rows, to_weight.to(weight.dtype), to_bias.to(weight.dtype), None, None, None


def norm_kernel() -> ModuleType | None:
    """``norm_gpu``, where Triton is there."""
    try:
        from fate.models.layers import norm_gpu  # noqa: PLC0415  (needs triton)
    except ImportError:
        return None
    return norm_gpu
