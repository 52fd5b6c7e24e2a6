"""Layer normalisation over the last axis: torch's own, and in training on a GPU a kernel for few channels."""

from __future__ import annotations

from importlib.util import find_spec

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
        # For inference, compilers and graphs are faster than the kernel.
        trains = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        fits = input.is_cuda and input.shape[-1] <= LONGEST and input.dtype in (torch.float32, torch.bfloat16)
        if not (HAS_TRITON and trains and fits and input.numel()):
            return super().forward(input)
        from fate.models.layers.norm_gpu import Normalised  # noqa: PLC0415  (needs triton)

        autocast = torch.is_autocast_enabled("cuda")
        kind = torch.float32 if autocast else input.dtype
        if autocast and self.for_product:
            kind = torch.get_autocast_dtype("cuda")
        rows: Tensor = Normalised.apply(  # type: ignore[no-untyped-call]
            input.reshape(-1, input.shape[-1]), self.weight, self.bias, self.eps, kind
        )
        return rows.view(input.shape)
