"""GET, the Group Event Transformer (Peng et al., ICCV 2023), as the backbone of a detector.

A token holds the events of a patch of pixels. Its channels are divided into groups, one for each time bin and polarity.

- ``GroupEmbedding`` (GTE in the paper): a 3 × 3 convolution within each group, and an MLP.
- ``DualAttentionBlock`` (EDSA): attention between the positions of a window of 8 × 8 tokens, attention between the
  channels of its output, two residual streams, and an MLP of their sum. Windows are not shifted.
- ``GroupAggregation`` (GTA) between stages: half the rows, columns and groups, twice the channels.

Both attentions are the cosine attention of Swin Transformer V2: logits are cosines of queries and keys plus a bias,
which a small network computes from the offset between two tokens on a lattice (``PositionBias``).

- ``window_attention``: tokens are the ``window``² positions, with C features, on the lattice ``window`` × ``window``.
  Each head multiplies its cosines by a learned scale, at most 100.
- ``group_attention``: tokens are the C channels, with their values at the ``window``² positions as features, so that
  information is exchanged between time bins and polarities. There are ``window`` heads and no learned scale. Channel c
  is at row c // groups and column c % groups of the lattice (C / groups) × groups, as in the public code (although in
  its convolutions the channel belongs to group c // (C / groups)).

**Published and inferred parts.** The public code is a classifier of three stages without memory; every block here
computes the same as its blocks. The paper's detector has memory, YOLOX's neck and head, and 21.9 million parameters,
but its code is not public. Inferred are:

- Four stages at strides 4, 8, 16 and 32; the neck gets the last three.
- 64, 128, 256 and 512 channels, as in RVT-B, so that neck and head are RVT-B's. The classifier has 48 channels in the
  first stage; its proportions are kept: 16 channels per head, an embedding that is 4 and 16 times as wide inside.
- 16 groups, then 8, 4 and 2. (The classifier's 12 does not divide 64, and cannot be halved three times.)
- 2, 2, 6 and 2 blocks, as in Swin-T. With neck and head for two classes this gives 21 879 565 parameters (21 916 429
  with tokens of 24 groups).
- RVT's 1 × 1 LSTM after the blocks of each stage; its output goes to the next stage and to the neck.

**Any size of map.** If 8 does not divide a map, attention sees it padded with zeros at the right and the bottom, as in
the public code. Padding is not masked: a padded token has a zero key, so its logit is the position bias alone, and the
bias of the values as its value. It is set to zero again after each block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError
from fate.models.layers.attention import attend, from_groups, to_groups
from fate.models.layers.conv_lstm import ConvLSTM
from fate.models.layers.deformable import at_least_float32

#: Hidden and cell state of one stage, each [B, H, W, C].
CellState = tuple[Tensor, Tensor]

HEAD_CHANNELS = 16  # channels of an attention head
WINDOW = 8  # tokens along a side of a window
HIDDEN = 512  # width of the network that computes the position bias
LARGEST_SCALE = 100.0
FIRST_SCALE = 10.0
NO_LENGTH = 5e-5  # added to the length of a query or key, so that a zero vector stays zero


class PositionBias(nn.Module):
    """A bias [1, heads, L, L] for each head and pair of tokens, from the offset between the tokens.

    Token ``row · columns + column`` is at that row and column of the lattice; L = rows · columns.
    """

    offsets: Tensor  # [(2 rows - 1) (2 columns - 1), 2] all possible offsets, on a logarithmic scale
    pairs: Tensor  # [L · L] index of the offset between a query and a key

    def __init__(self, rows: int, columns: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.num_tokens = heads, rows * columns
        self.hidden = nn.Linear(2, HIDDEN)
        self.heads = nn.Linear(HIDDEN, heads, bias=False)
        shares = (torch.arange(1 - side, side) / max(side - 1, 1) for side in (rows, columns))
        scaled = (torch.sign(share) * torch.log2(1 + 8 * share.abs()) / 3 for share in shares)  # ± log8(1 + 8 |share|)
        offsets = torch.stack(torch.meshgrid(*scaled, indexing="ij"), dim=-1)
        self.register_buffer("offsets", offsets.view(-1, 2), persistent=False)
        token = torch.arange(rows * columns)
        row, column = token // columns, token % columns
        down = row[:, None] - row[None, :] + rows - 1
        right = column[:, None] - column[None, :] + columns - 1
        self.register_buffer("pairs", (down * (2 * columns - 1) + right).view(-1), persistent=False)

    def forward(self) -> Tensor:
        """The paper's 16 · sigmoid(x) minus 8: softmax is the same, and small numbers are more exact in bfloat16."""
        table = 8 * torch.tanh(self.heads(functional.relu(self.hidden(self.offsets))) / 2)
        bias = table.t().index_select(1, self.pairs)
        return bias.view(1, self.num_heads, self.num_tokens, self.num_tokens)


class CosineAttention(nn.Module):
    """Cosine self-attention of tokens on a lattice, [M, L, F] → [M, L, F].

    With ``learned_scale`` each head multiplies its cosines by a learned number.
    """

    no_bias: Tensor  # [F] bias of the keys: it would add the same value to all logits of a query

    def __init__(
        self, features: int, heads: int, lattice: tuple[int, int], learned_scale: bool, dropout: float
    ) -> None:
        super().__init__()
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
        vectors = at_least_float32(qkv[:, :, :2])
        lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        queries, keys = (vectors / (lengths + NO_LENGTH)).unbind(2)
        if self.log_scale is not None:
            queries = queries * self.log_scale.clamp(max=math.log(LARGEST_SCALE)).exp()
        bias, queries, keys = (part.to(values.dtype) for part in (self.position_bias(), queries, keys))
        attended = attend(queries, keys, values, attn_mask=bias, scale=1.0)
        return cast(Tensor, self.dropout(self.projection(attended.transpose(1, 2).flatten(2))))


class GroupAggregation(nn.Module):
    """Group Token Aggregation: [N, H, W, C] → [N, ceil(H / 2), ceil(W / 2), 2 C], with half as many groups.

    Groups of channels are consecutive. An *overlapping group convolution* computes one new group from three old ones:
    new group j from the old groups 2j - 1, 2j and 2j + 1, the first from groups 0, 0 and 1. For six groups:

        new group      0          1          2
        old groups  0  0  1    1  2  3    3  4  5

    Three groups, or one, become one. LayerNorm follows, and 3 × 3 max pooling with stride 2.
    """

    read: Tensor  # channels that the convolution reads, three old groups for each new one

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
    """3 × 3 max pooling with stride 2, [N, C, H, W] → [N, C, ceil(H / 2), ceil(W / 2)], TensorFlow's padding "same".

    Odd sizes are padded on both sides, even sizes on the far side, where ``ceil_mode`` cuts the kernel off.
    """
    border = (images.shape[-2] % 2, images.shape[-1] % 2)
    return functional.max_pool2d(images, kernel_size=3, stride=2, padding=border, ceil_mode=True)


class Pointwise(nn.Conv2d):
    """A linear map of the last axis, [..., in] → [..., out], whose weight has the public shape [out, in, 1, 1]."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight.flatten(1), self.bias)


class Mlp(nn.Module):
    """Two linear layers with GELU between, [..., in] → [..., out]; with ``normed``, LayerNorm before GELU."""

    def __init__(self, channels: int, hidden: int, out_channels: int, dropout: float, normed: bool = False) -> None:
        super().__init__()
        self.widen = Pointwise(channels, hidden, kernel_size=1)
        self.norm = nn.LayerNorm(hidden, eps=1e-6) if normed else nn.Identity()
        self.narrow = Pointwise(hidden, out_channels, kernel_size=1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.narrow(functional.gelu(self.norm(self.widen(tokens))))))


class DropPath(nn.Module):
    """Stochastic depth: in training, a branch [N, ...] is dropped for a random share of the N windows."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return branch
        kept = branch.new_empty(len(branch), *(1,) * (branch.ndim - 1)).bernoulli_(1 - self.share)
        return branch * (kept / (1 - self.share))


class GroupEmbedding(nn.Module):
    """The encoder's image [N, C, H, W] to tokens [N, H / stride, W / stride, channels].

    The convolution is 3 × 3 on token maps and 7 × 7 on finer images, as in the public code. Its number of groups is the
    greatest common divisor of the image's channels and ``groups``.
    """

    def __init__(
        self, in_channels: int, channels: int, hidden: int, groups: int, stride: int = 1, dropout: float = 0.1
    ) -> None:
        super().__init__()
        kernel = 3 if stride == 1 else 7
        self.conv = nn.Conv2d(
            in_channels, hidden // 4, kernel, stride, padding=kernel // 2, groups=math.gcd(in_channels, groups)
        )
        self.mlp = Mlp(hidden // 4, hidden, channels, dropout, normed=True)

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.mlp(self.conv(images).permute(0, 2, 3, 1)))


class DualAttentionBlock(nn.Module):
    """Event Dual Self-Attention on two residual streams, each [N, windows, window², C].

    ``tokens`` sums the outputs of window attention and MLP, ``refined`` those of group attention.
    """

    def __init__(self, channels: int, groups: int, window: int, dropout: float, drop_path: float) -> None:
        super().__init__()
        heads, lattice = channels // HEAD_CHANNELS, (channels // groups, groups)
        self.window_attention = CosineAttention(channels, heads, (window, window), True, dropout)
        self.group_attention = CosineAttention(window * window, window, lattice, False, dropout)
        self.mlp = Mlp(channels, 4 * channels, channels, dropout)
        self.window_norm = nn.LayerNorm(channels, eps=1e-6)
        self.group_norm = nn.LayerNorm(channels, eps=1e-6)
        self.mlp_norm = nn.LayerNorm(channels, eps=1e-6)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor, refined: Tensor) -> tuple[Tensor, Tensor]:
        found = self.window_attention(tokens.flatten(0, 1))
        found_by_groups = self.group_attention(found.transpose(1, 2)).transpose(1, 2)
        tokens = tokens + self.drop_path(self.window_norm(found).view_as(tokens))
        refined = refined + self.drop_path(self.group_norm(found_by_groups).view_as(tokens))
        tokens = tokens + self.drop_path(self.mlp_norm(self.mlp(tokens + refined)))
        return tokens, refined


class Stage(nn.Module):
    """Blocks on one map of tokens of any size, [N, H, W, C] → [N, H, W, C]; ``drop_paths`` has one share per block.

    Windows are cut once before the first block, since all of a block but attention works token by token.
    """

    def __init__(self, channels: int, groups: int, window: int, dropout: float, drop_paths: Sequence[float]) -> None:
        super().__init__()
        self.window = window
        self.blocks = nn.ModuleList(
            DualAttentionBlock(channels, groups, window, dropout, drop_path) for drop_path in drop_paths
        )

    def forward(self, tokens: Tensor) -> Tensor:
        side, (_, rows, columns, channels) = self.window, tokens.shape
        missing = (-rows % side, -columns % side)
        inside = None
        if any(missing):
            filling = (0, 0, 0, missing[1], 0, missing[0])
            inside = to_groups(functional.pad(tokens.new_ones(1, rows, columns, 1), filling), (side, side))[None]
            tokens = functional.pad(tokens, filling)
        tokens = refined = to_groups(tokens, (side, side)).view(len(tokens), -1, side * side, channels)
        for block in self.blocks:
            tokens, refined = block(tokens, refined)
            if inside is not None:
                tokens = tokens * inside  # padding is zero again for the next block
        merged = from_groups(tokens.flatten(0, 1), (side, side), rows + missing[0], columns + missing[1])
        return merged[:, :rows, :columns]


class GET(nn.Module):
    """The backbone, for maps of any size.

    Args:
        in_channels: C of the encoder's image; ``GroupTokens(sensor, groups=16)`` has 32 for each group.
        stem_stride: cells of the image along a token of 4 pixels: 1 for tokens, 2 for pillars, 4 for histograms.
        channels: of the first stage; each stage has twice as many as the one before.
        groups: of channels in the first stage; each stage has half as many as the one before.
        depths: blocks of each of the four stages.
        dropout: share of values that training sets to 0, half as many in the embedding; the public code's value.
        drop_path: share of dropped branches in the last block; it increases linearly from block to block.
    """

    remembers = True

    def __init__(
        self,
        in_channels: int,
        stem_stride: int = 1,
        channels: int = 64,
        groups: int = 16,
        depths: Sequence[int] = (2, 2, 6, 2),
        dropout: float = 0.2,
        drop_path: float = 0.2,
    ) -> None:
        super().__init__()
        if len(depths) != 4:
            raise FateError(f"depths={tuple(depths)} were given; expected four, for the strides 4, 8, 16 and 32")
        if channels % groups or channels % HEAD_CHANNELS:
            raise FateError(
                f"{channels} channels in {groups} groups were given; expected a multiple of {HEAD_CHANNELS} channels"
                " and as many in each group"
            )
        widths = tuple(channels * 2**number for number in range(4))
        counts = tuple(max(groups // 2**number, 1) for number in range(4))
        shares = torch.split(torch.linspace(0, drop_path, sum(depths), device="cpu"), list(depths))
        self.stages = nn.ModuleList(
            Stage(width, count, WINDOW, dropout, share.tolist())
            for width, count, share in zip(widths, counts, shares, strict=True)
        )
        self.aggregations = nn.ModuleList(map(GroupAggregation, widths[:-1], counts[:-1]))
        self.embedding = GroupEmbedding(in_channels, channels, 16 * channels, groups, stem_stride, dropout / 2)
        self.dropout = nn.Dropout(dropout)
        self.memories = nn.ModuleList(ConvLSTM(width) for width in widths)
        self.channels = widths[1:]

    def forward(
        self, images: Tensor, state: Sequence[CellState] | None = None, steps: int = 1, step_scale: float | Tensor = 1.0
    ) -> tuple[list[Tensor], tuple[CellState, ...]]:
        """Same arguments and results as ``MaxViT.forward``; the state is a ``CellState`` of each stage.

        ``step_scale`` has no effect, since an LSTM depends on the number of windows, not on time.
        """
        tokens = self.dropout(self.embedding(images))
        features, carried = [], []
        for number, (stage, memory) in enumerate(zip(self.stages, self.memories, strict=True)):
            if number > 0:
                tokens = self.aggregations[number - 1](tokens)
            tokens, after = memory(stage(tokens), None if state is None else state[number], steps)
            features.append(tokens.permute(0, 3, 1, 2))
            carried.append(after)
        return features[1:], tuple(carried)
