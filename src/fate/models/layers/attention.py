"""Self-attention of MaxViT (Tu et al., ECCV 2022), as RVT uses it, and of RT-DETR.

MaxViT divides an image into groups of L = rows · columns tokens that attend to each other. A group is a window of
neighbouring pixels, or a ``grid`` of pixels spread evenly over the image. There is no positional encoding.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError
from fate.models.layers.norm import LayerNorm

#: Groups that attend in one call. The backward pass of cuDNN fails from 65 536 on, and 320 windows of 1Mpx have 81 920.
MAX_GROUPS = 2**15


def to_groups(x: Tensor, size: tuple[int, int], grid: bool = False) -> Tensor:
    """[N, H, W, C] to tokens [N · groups, L, C]; ``size`` (rows, columns) of a group must divide (H, W)."""
    n, height, width, channels = x.shape
    rows, columns = size
    if grid:
        split = x.reshape(n, rows, height // rows, columns, width // columns, channels).permute(0, 2, 4, 1, 3, 5)
    else:
        split = x.reshape(n, height // rows, rows, width // columns, columns, channels).transpose(2, 3)
    return split.reshape(-1, rows * columns, channels)


def from_groups(tokens: Tensor, size: tuple[int, int], height: int, width: int, grid: bool = False) -> Tensor:
    """Tokens back to [N, H, W, C]."""
    rows, columns = size
    split = tokens.view(-1, height // rows, width // columns, rows, columns, tokens.shape[-1])
    split = split.permute(0, 3, 1, 4, 2, 5) if grid else split.transpose(2, 3)
    return split.reshape(-1, height, width, tokens.shape[-1])


def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """``scaled_dot_product_attention`` of any number of groups; ``options`` are its other arguments, for all groups."""
    if len(query) <= MAX_GROUPS:
        return functional.scaled_dot_product_attention(query, key, value, **options)
    parts = zip(*(torch.split(each, MAX_GROUPS) for each in (query, key, value)), strict=True)
    return torch.cat([functional.scaled_dot_product_attention(*part, **options) for part in parts])


class SelfAttention(nn.Module):
    """All tokens of a group attend to each other, in C / head_dim heads."""

    def __init__(self, channels: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.qkv = nn.Linear(channels, 3 * channels)  # query, key and value of the first head, then of the next
        self.out = nn.Linear(channels, channels)

    def forward(self, tokens: Tensor) -> Tensor:
        """[M, L, C] to the same."""
        heads: Tensor = self.qkv(tokens).view(*tokens.shape[:2], -1, 3, self.head_dim).transpose(1, 2)
        query, key, value = heads.unbind(-2)  # each [M, heads, L, head_dim]
        return cast(Tensor, self.out(attend(query, key, value).transpose(1, 2).reshape(tokens.shape)))


class TransformerBlock(nn.Module):
    """Attention and an MLP, each multiplied by a learned factor per channel (LayerScale) and added to its input."""

    def __init__(self, channels: int, head_dim: int, normed: bool = False, mlp_ratio: int = 4) -> None:
        """``normed``: the input is normalised already; ``mlp_ratio``: width inside the MLP over C, 0 for no MLP."""
        super().__init__()
        self.attention_norm = nn.Identity() if normed else LayerNorm(channels, for_product=True)
        self.attention = SelfAttention(channels, head_dim)
        self.attention_scale = nn.Parameter(torch.full((channels,), 1e-5))
        self.mlp: nn.Sequential | None = None
        if mlp_ratio:
            inside = mlp_ratio * channels
            self.mlp_norm = LayerNorm(channels, for_product=True)
            self.mlp = nn.Sequential(nn.Linear(channels, inside), nn.GELU(), nn.Linear(inside, channels))
            self.mlp_scale = nn.Parameter(torch.full((channels,), 1e-5))

    def forward(self, tokens: Tensor) -> Tensor:
        """[M, L, C] to the same."""
        tokens = torch.addcmul(tokens, self.attention_scale, self.attention(self.attention_norm(tokens)))
        if self.mlp is None:
            return tokens
        return torch.addcmul(tokens, self.mlp_scale, self.mlp(self.mlp_norm(tokens)))


class PositionalSelfAttention(nn.Module):
    """Self-attention of tokens [N, L, C]; positions are added to queries and keys, but not to values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise FateError(f"width {width} was given with {heads} heads; expected a multiple of the heads")
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.query_key_value.weight)  # as one matrix, like nn.MultiheadAttention
        nn.init.zeros_(self.query_key_value.bias)
        nn.init.zeros_(self.output.bias)

    def forward(self, tokens: Tensor, positions: Tensor, visible: Tensor | None = None) -> Tensor:
        """[N, L, C] (N may be 0) and positions [N, L, C] or [L, C] → [N, L, C].

        ``visible`` [L, L] is True if the token of the row attends to the token of the column; None: all attend to all.
        """
        width = tokens.shape[2]
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        query_key = functional.linear(tokens + positions, weight[: 2 * width], bias[: 2 * width])
        value = functional.linear(tokens, weight[2 * width :], bias[2 * width :])
        query, key, value = (
            part.view(*part.shape[:2], self.heads, width // self.heads).transpose(1, 2)
            for part in (*query_key.chunk(2, dim=2), value)
        )
        attended = value
        if len(tokens):  # GPU kernels do not accept an empty batch
            attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        return cast(Tensor, self.output(attended.transpose(1, 2).flatten(2)))
