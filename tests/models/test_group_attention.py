"""GET's attentions and aggregation: against the formulas of the paper, written out pair by pair."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError
from fate.models.backbones.get import (
    CosineAttention,
    GroupAggregation,
    PositionBias,
    halve_by_max_pooling,
)


def window_attention(channels: int, window: int, heads: int) -> CosineAttention:
    """Between positions, as GET has it."""
    return CosineAttention(channels, heads, (window, window), learned_scale=True, dropout=0.0)


def group_attention(channels: int, window: int, groups: int) -> CosineAttention:
    """Between channels, as GET has it."""
    return CosineAttention(window * window, window, (channels // groups, groups), learned_scale=False, dropout=0.0)


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module with all parameters drawn at sizes that make every one of them matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 4
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(fan_in))
    return module.eval()


def bias_of(offset: tuple[int, int], lattice: tuple[int, int], bias: PositionBias) -> Tensor:
    """16 · sigmoid(network(logarithmic offset)) of one pair: [heads]."""
    shares = [8 * step / max(side - 1, 1) for step, side in zip(offset, lattice, strict=True)]
    logarithms = torch.tensor([math.copysign(math.log2(abs(share) + 1), share) / math.log2(8) for share in shares])
    return 16 * torch.sigmoid(bias.heads(torch.relu(bias.hidden(logarithms))))


def attention_by_pairs(tokens: Tensor, module: CosineAttention, lattice: tuple[int, int]) -> Tensor:
    """[L, F] → [L, F], one head, one query and one key after the other."""
    length, features = tokens.shape
    width = features // module.heads
    q, k, v = (tokens @ part.t() for part in module.qkv.weight.chunk(3))
    q, v = q + module.q_bias, v + module.v_bias
    mixed = torch.zeros_like(tokens)
    for head in range(module.heads):
        part = slice(head * width, (head + 1) * width)
        scale = 1.0 if module.log_scale is None else min(float(module.log_scale[head].exp()), 100.0)
        for query in range(length):
            logits = torch.zeros(length)
            for key in range(length):
                a, b = q[query, part], k[key, part]
                rows = query // lattice[1] - key // lattice[1]
                columns = query % lattice[1] - key % lattice[1]
                cosine = a @ b / ((a.norm() + 5e-5) * (b.norm() + 5e-5))
                logits[key] = scale * cosine + bias_of((rows, columns), lattice, module.position_bias)[head]
            mixed[query, part] = logits.softmax(0) @ v[:, part]
    return module.projection(mixed)


def test_window_attention_is_cosine_attention_with_a_bias_for_each_offset() -> None:
    module = drawn(window_attention(channels=12, window=3, heads=2))
    assert isinstance(module, CosineAttention)
    assert module.log_scale is not None
    nn.init.constant_(module.log_scale[0], math.log(7.0))
    tokens = torch.randn(2, 9, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = torch.stack([attention_by_pairs(window, module, (3, 3)) for window in tokens])
        torch.testing.assert_close(module(tokens), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_group_attention_is_the_same_between_channels(groups: int) -> None:
    module = drawn(group_attention(channels=8, window=2, groups=groups))
    assert isinstance(module, CosineAttention)
    tokens = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = torch.stack([attention_by_pairs(window.t(), module, (8 // groups, groups)) for window in tokens])
        torch.testing.assert_close(module(tokens.mT), expected, rtol=0, atol=2e-6)


def test_scale_stays_at_100_however_large_its_parameter() -> None:
    module = drawn(window_attention(channels=8, window=2, heads=1))
    assert isinstance(module, CosineAttention)
    assert module.log_scale is not None
    tokens = torch.randn(1, 4, 8)
    with torch.no_grad():
        module.log_scale.fill_(math.log(100.0))
        at_the_cap = module(tokens)
        module.log_scale.fill_(20.0)
        torch.testing.assert_close(module(tokens), at_the_cap)


def test_bias_depends_on_the_offset_alone_and_begins_between_minus_8_and_8() -> None:
    bias = PositionBias(4, 5, heads=3)
    table = bias().detach().view(3, 4, 5, 4, 5)
    torch.testing.assert_close(table[:, 1:, 1:, 1:, 1:], table[:, :-1, :-1, :-1, :-1])
    assert table.abs().max() < 8
    assert len(table.flatten(1).unique(dim=1)[0]) <= 7 * 9


def test_tokens_of_zero_give_finite_gradients() -> None:
    for module, shape in ((window_attention(32, 4, 2), (2, 16, 32)), (group_attention(32, 4, 4), (2, 32, 16))):
        tokens = torch.zeros(shape, requires_grad=True)
        module(tokens).sum().backward()
        assert tokens.grad is not None
        assert tokens.grad.isfinite().all()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
def test_in_bfloat16_the_result_is_nearly_the_same() -> None:
    windows = torch.randn(3, 16, 32, generator=torch.Generator().manual_seed(1))
    for module, tokens in ((window_attention(32, 4, 2), windows), (group_attention(32, 4, 4), windows.mT)):
        drawn(module)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = module(tokens)
        with torch.no_grad():
            exact = module(tokens)
        assert rounded.dtype == torch.bfloat16
        assert (rounded - exact).abs().max() < 0.02 * exact.abs().max()


def test_groups_that_cannot_be_halved_are_refused() -> None:
    with pytest.raises(FateError, match="5 groups were given for 20 channels; expected a divisor that is even, 3 or 1"):
        GroupAggregation(20, groups=5)


@pytest.mark.parametrize(
    ("groups", "read"),
    [(6, [(0, 0, 1), (1, 2, 3), (3, 4, 5)]), (4, [(0, 0, 1), (1, 2, 3)]), (2, [(0, 0, 1)]), (3, [(0, 1, 2)])],
)
def test_new_groups_read_three_old_ones_and_share_one_with_their_neighbour(
    groups: int, read: list[tuple[int, ...]]
) -> None:
    module = drawn(GroupAggregation(channels=24, groups=groups))
    assert isinstance(module, GroupAggregation)
    tokens = torch.randn(2, 6, 7, 24, generator=torch.Generator().manual_seed(1))
    old = tokens.permute(0, 3, 1, 2).chunk(groups, dim=1)
    weights, biases = module.conv.weight.chunk(len(read)), module.conv.bias.chunk(len(read))
    with torch.no_grad():
        new = [
            functional.conv2d(torch.cat([old[number] for number in numbers], dim=1), weight, bias, padding=1)
            for numbers, weight, bias in zip(read, weights, biases, strict=True)
        ]
        joined = functional.layer_norm(
            torch.cat(new, dim=1).permute(0, 2, 3, 1), (48,), module.norm.weight, module.norm.bias, eps=1e-6
        )
        columns = functional.pad(joined.permute(0, 3, 1, 2), (1, 1, 0, 1), value=-math.inf)
        expected = functional.max_pool2d(columns, kernel_size=3, stride=2).permute(0, 2, 3, 1)
        torch.testing.assert_close(module(tokens), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize("columns", [3, 6])
def test_pooling_is_the_same_padding_of_tensorflow(rows: int, columns: int) -> None:
    image = torch.randn(1, 2, rows, columns)
    expected = torch.full((1, 2, -(-rows // 2), -(-columns // 2)), -math.inf)
    top, left = rows % 2, columns % 2  # of a border of 2 (odd) half lies before; of 1 (even) nothing
    for row in range(expected.shape[2]):
        for column in range(expected.shape[3]):
            above, before = max(2 * row - top, 0), max(2 * column - left, 0)
            patch = image[:, :, above : 2 * row - top + 3, before : 2 * column - left + 3]
            expected[:, :, row, column] = patch.amax(dim=(2, 3))
    torch.testing.assert_close(halve_by_max_pooling(image), expected, rtol=0, atol=0)
