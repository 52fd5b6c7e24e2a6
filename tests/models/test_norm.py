"""Layer normalisation of short rows: the kernel gives what torch gives, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fate.models.layers.norm import HAS_TRITON, LONGEST, LayerNorm

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on a GPU")


def both(rows: Tensor, channels: int) -> tuple[LayerNorm, nn.LayerNorm]:
    ours, theirs = LayerNorm(channels, for_product=True), nn.LayerNorm(channels)
    with torch.no_grad():
        for module in (ours, theirs):
            torch.manual_seed(1)
            module.weight.normal_()
            module.bias.normal_()
    return ours.to(rows.device), theirs.to(rows.device)


def test_on_a_cpu_it_is_torch_s_own() -> None:
    rows = torch.randn(5, 7, 24, requires_grad=True)
    ours, theirs = both(rows, 24)
    assert torch.equal(ours(rows), theirs(rows))


@on_gpu
@pytest.mark.parametrize("channels", [16, 24, 96, 224, LONGEST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_torch_s(channels: int, dtype: torch.dtype) -> None:
    if not HAS_TRITON:
        pytest.skip("Triton is not installed")
    torch.manual_seed(0)
    rows = torch.randn(3, 41, 17, channels, device="cuda", dtype=dtype) * 3 + 1
    pull = torch.randn_like(rows)
    ours, theirs = both(rows, channels)
    found = []
    for module, given in ((ours, rows.clone()), (theirs, rows.clone().float())):
        given.requires_grad_()
        result = module(given)
        result.backward(pull.to(result.dtype))
        found.append([result, given.grad, module.weight.grad, module.bias.grad])
    loose = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for mine, other in zip(*found, strict=True):
        scale = float(other.abs().max())
        assert torch.allclose(mine.float(), other, rtol=loose, atol=loose * scale)


@on_gpu
def test_under_autocast_it_gives_what_a_product_wants_and_keeps_32_bits_elsewhere() -> None:
    if not HAS_TRITON:
        pytest.skip("Triton is not installed")
    rows = torch.randn(64, 32, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        assert LayerNorm(32, for_product=True).cuda()(rows).dtype == torch.bfloat16
        assert LayerNorm(32).cuda()(rows).dtype == torch.float32
        with torch.no_grad():
            assert LayerNorm(32, for_product=True).cuda()(rows).dtype == torch.float32  # torch's own
