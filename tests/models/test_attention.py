"""Attention of more groups than kernels take in one call."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fate.models.layers import attention

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def test_groups_in_parts_give_the_values_and_gradients_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MAX_GROUPS", 3)
    inputs = [torch.randn(8, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.randn(1, 2, 5, 5, dtype=torch.float64)
    whole = functional.scaled_dot_product_attention(*inputs, attn_mask=mask, scale=1.0)
    parts = attention.attend(*inputs, attn_mask=mask, scale=1.0)
    torch.testing.assert_close(parts, whole)
    weights = torch.randn_like(whole)
    for found, expected in zip(
        *(torch.autograd.grad((each * weights).sum(), inputs) for each in (parts, whole)), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_of_1mpx_has_more_groups_than_kernels_take(device: str) -> None:
    inputs = torch.randn(3, 70_000, 1, 4, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    attended = attention.attend(*inputs)
    (gradient,) = torch.autograd.grad(attended.float().square().sum(), inputs)
    assert attended.shape == inputs.shape[1:]
    assert gradient.isfinite().all()
    assert gradient[:, -1].count_nonzero() > 0
