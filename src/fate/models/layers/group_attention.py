"""Layers of GET (Peng et al., ICCV 2023): self-attention between positions and between channels, and aggregation.

Both attentions are the cosine attention of Swin Transformer V2: logits are cosines of queries and keys, and each pair
of tokens has a bias that a small network computes from the offset between the two (``PositionBias``). They differ in
what a token is:

- ``WindowAttention``: a token is one of the ``window``² positions, its features are the C channels. Tokens lie on the
  lattice ``window`` × ``window``. A learned scale for each head, at most 100, sharpens the comparison.
- ``GroupAttention``: a token is one of the C channels, its features are its values at the ``window``² positions, so
  time bins and polarities, which GET keeps in groups of channels, see each other. ``window`` heads, no learned scale.
  Channel c lies on the lattice (C / groups) × groups at row c // groups and column c % groups, as in the public code
  (whose convolutions count the other way round: there, channel c is of group c // (C / groups)).

Nothing here depends on the size of the frame, so one set of weights serves any sensor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError

HIDDEN = 512  # width of the network that computes a bias from an offset
LARGEST_SCALE = 100.0
FIRST_SCALE = 10.0
NO_LENGTH = 5e-5  # added to the length of a query or key, so that zero keeps the direction zero


class PositionBias(nn.Module):
    """A bias for each head and pair of tokens from the offset between the two on the lattice: [1, heads, L, L].

    Token row · columns + column lies at that row and column; L = rows · columns.
    """

    offsets: Tensor  # [(2 rows - 1) (2 columns - 1), 2] every offset there is, on a logarithmic scale
    pairs: Tensor  # [L · L] which of them lies between a query and a key

    def __init__(self, rows: int, columns: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.num_tokens = heads, rows * columns
        self.hidden = nn.Linear(2, HIDDEN)
        self.heads = nn.Linear(HIDDEN, heads, bias=False)
        steps = torch.meshgrid(logarithmic(rows), logarithmic(columns), indexing="ij")
        self.register_buffer("offsets", torch.stack(steps, dim=-1).view(-1, 2), persistent=False)
        token = torch.arange(rows * columns)
        row, column = token // columns, token % columns
        down = row[:, None] - row[None, :] + rows - 1
        right = column[:, None] - column[None, :] + columns - 1
        self.register_buffer("pairs", (down * (2 * columns - 1) + right).view(-1), persistent=False)

    def forward(self) -> Tensor:
        """The paper's 16 · sigmoid(x), less 8: softmax is the same, and small numbers keep more digits in bfloat16."""
        table = 8 * torch.tanh(self.heads(functional.relu(self.hidden(self.offsets))) / 2)
        bias = table.t().index_select(1, self.pairs)
        return bias.view(1, self.num_heads, self.num_tokens, self.num_tokens)


def logarithmic(length: int) -> Tensor:
    """Offsets 1 - length … length - 1 along one side of a lattice, [2 length - 1], as sign · log8(1 + 8 |share|)."""
    share = torch.arange(1 - length, length) / max(length - 1, 1)
    return torch.sign(share) * torch.log2(1 + 8 * share.abs()) / 3


class CosineAttention(nn.Module):
    """Self-attention between tokens on a lattice, [M, L, F] → [M, L, F], by the angles between queries and keys.

    With ``learned_scale`` each head learns what its cosines are multiplied with; else it is 1.
    """

    no_bias: Tensor  # [F] keys have none: it would add the same to every logit of a query

    def __init__(
        self, features: int, heads: int, lattice: tuple[int, int], learned_scale: bool, dropout: float
    ) -> None:
        super().__init__()
        if features % heads:
            raise FateError(f"{heads} heads were given for {features} features; expected a divisor of them")
        self.heads = heads
        self.qkv = nn.Linear(features, 3 * features, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(features))
        self.v_bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("no_bias", torch.zeros(features), persistent=False)
        self.log_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(FIRST_SCALE))) if learned_scale else None
        self.position_bias = PositionBias(*lattice, heads)
        self.projection = nn.Linear(features, features)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        bias = torch.cat((self.q_bias, self.no_bias, self.v_bias))
        qkv = functional.linear(tokens, self.qkv.weight, bias)
        qkv = qkv.view(*tokens.shape[:2], 3, self.heads, -1).transpose(1, 3)  # [M, heads, 3, L, F / heads]
        values = qkv[:, :, 2]
        queries, keys = directions(qkv[:, :, :2]).unbind(2)
        if self.log_scale is not None:
            queries = queries * self.log_scale.clamp(max=math.log(LARGEST_SCALE)).exp()
        attended = functional.scaled_dot_product_attention(
            queries.to(values.dtype),
            keys.to(values.dtype),
            values,
            attn_mask=self.position_bias().to(values.dtype),
            scale=1.0,
        )
        result: Tensor = self.dropout(self.projection(attended.transpose(1, 2).flatten(2)))
        return result


def directions(vectors: Tensor) -> Tensor:
    """Vectors [..., D] at length 1, but for a hair; computed in float32 at least."""
    vectors = vectors.float() if vectors.dtype in {torch.bfloat16, torch.float16} else vectors
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / (lengths + NO_LENGTH)


class WindowAttention(CosineAttention):
    """Positions of a window attend to each other: [M, window², C] → the same, M windows."""

    def __init__(self, channels: int, window: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__(channels, heads, (window, window), learned_scale=True, dropout=dropout)


class GroupAttention(CosineAttention):
    """Channels of a window, in ``groups``, attend to each other: [M, window², C] → the same, M windows."""

    def __init__(self, channels: int, window: int, groups: int, dropout: float = 0.0) -> None:
        if channels % groups:
            raise FateError(f"{groups} groups were given for {channels} channels; expected a divisor of them")
        lattice = (channels // groups, groups)
        super().__init__(window * window, window, lattice, learned_scale=False, dropout=dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens.transpose(1, 2)).transpose(1, 2)


class GroupAggregation(nn.Module):
    """Group Token Aggregation: [N, H, W, C] → [N, ceil(H / 2), ceil(W / 2), 2 C], with half as many groups.

    Channels lie group after group. An *overlapping group convolution* makes one new group from three old ones: new
    group j reads the old groups 2j - 1, 2j and 2j + 1, and the first reads group 0 twice. From six groups:

        new group      0          1          2
        reads       0  0  1    1  2  3    3  4  5

    Three groups become one, which reads each of them once. LayerNorm follows, and a 3 × 3 max pooling at stride 2 with
    the border that TensorFlow calls "same". There are an even number of groups before, or 3 or 1, which become one.
    """

    read: Tensor  # [three times channels of a group for each new group] the channels that the convolution reads

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        if channels % groups or (groups % 2 and groups not in {1, 3}):
            raise FateError(
                f"{groups} groups were given for {channels} channels; expected a divisor that is even, 3 or 1"
            )
        each, new_groups = channels // groups, max(groups // 2, 1)
        read = torch.arange(channels)
        if groups % 2 == 0:
            first = (torch.arange(new_groups) * 2 - 1) * each
            read = (first[:, None] + torch.arange(3 * each)).view(-1)
            read[:each] += each  # group 0 replaces the one before it
        self.register_buffer("read", read, persistent=False)
        self.conv = nn.Conv2d(len(read), 2 * channels, kernel_size=3, padding=1, groups=new_groups)
        self.norm = nn.LayerNorm(2 * channels, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        overlapping = tokens.index_select(-1, self.read).permute(0, 3, 1, 2)
        normed = self.norm(self.conv(overlapping).permute(0, 2, 3, 1))
        return halve_by_max_pooling(normed.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def halve_by_max_pooling(images: Tensor) -> Tensor:
    """Largest of each 3 × 3 pixels at stride 2: [N, C, H, W] → [N, C, ceil(H / 2), ceil(W / 2)].

    Odd sizes have one pixel more on both sides, even ones on the far side only, where the ceiling mode of the pooling
    cuts the kernel off: no copy with a border is made.
    """
    border = (images.shape[-2] % 2, images.shape[-1] % 2)
    return functional.max_pool2d(images, kernel_size=3, stride=2, padding=border, ceil_mode=True)
