"""Layer normalisation over the last axis: torch's own, and in training on a GPU a kernel for few channels."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

HAS_TRITON = find_spec("triton") is not None
#: Most channels for which the kernel is used; above, torch is as fast.
LONGEST = 512


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last axis.

    ``for_product``: a matrix product follows, which autocast computes in 16 bits. On a GPU the output then has that
    type, while torch's output has 32 bits and is rounded later.
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
        """The kernel if it can be used: in training on a GPU. For inference compilers and graphs are faster."""
        trains = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        fits = input.is_cuda and input.shape[-1] <= LONGEST and input.dtype in (torch.float32, torch.bfloat16)
        if not (HAS_TRITON and trains and fits and input.numel()):
            return None
        from fate.models.layers import norm_gpu  # noqa: PLC0415  (needs triton)

        return norm_gpu


class _Normalised(torch.autograd.Function):
    """The kernel in autograd."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, eps: float, kind: torch.dtype, kernel: ModuleType
    ) -> Tensor:
        rows = rows.contiguous()
        out, moments = kernel.normalised(rows, weight, bias, eps, kind)
        ctx.save_for_backward(rows, moments, weight)
        ctx.kernel = kernel
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, moments, weight = ctx.saved_tensors
        to_rows, to_weight, to_bias = ctx.kernel.gradients(rows, moments, weight, grad[0].contiguous())
        return to_rows, to_weight.to(weight.dtype), to_bias.to(weight.dtype), None, None, None
