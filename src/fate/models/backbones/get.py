"""GET, the Group Event Transformer (Peng et al., ICCV 2023), as a detector's backbone.

Tokens carry the events of a patch of pixels in groups of channels, one for each time bin and polarity, and the network
works between positions and between groups in turn:

- ``GroupEmbedding`` (the paper's GTE): a 3 × 3 convolution within each group and a small perceptron.
- ``DualAttentionBlock`` (EDSA): attention between the positions of a window of 8 × 8 tokens, attention between the
  channels on what it found, two residual streams, and a perceptron on their sum. Windows are never shifted.
- ``GroupAggregation`` (GTA) between stages: half the rows, columns and groups, twice the channels.

Both attentions are the cosine attention of Swin Transformer V2: logits are cosines of queries and keys, and each pair
of tokens has a bias that a small network computes from the offset between the two (``PositionBias``). They differ in
what a token is:

- ``window_attention``: one of the ``window``² positions, with C features. Tokens lie on the lattice ``window`` ×
  ``window``. A learned scale for each head, at most 100, sharpens the comparison.
- ``group_attention``: one of the C channels, with its values at the ``window``² positions, so that time bins and
  polarities see each other. ``window`` heads, no learned scale. Channel c lies on the lattice (C / groups) × groups at
  row c // groups and column c % groups, as in the public code (in whose convolutions it is of group c // (C / groups)).

**What is known and what is inferred.** The public code holds a classifier alone (three stages, no memory), and every
block here computes what its blocks do. The paper's detector has memory, YOLOX's neck and head, and 21.9 million
parameters; its layout is not public. Inferred:

- Four stages at strides 4, 8, 16 and 32, of which the last three go to the neck.
- 64, 128, 256 and 512 channels, RVT-B's, so that neck and head are RVT-B's too. The classifier begins with 48; its
  proportions stay: 16 channels a head, an embedding that is 4 and 16 times as wide inside.
- 16 groups, then 8, 4 and 2 (the classifier's 12 does not divide 64, nor can it be halved three times).
- 2, 2, 6 and 2 blocks, as in Swin-T. With neck and head for two classes these are 21 879 565 parameters
  (21 916 429 on tokens of 24 groups).
- The memory is RVT's 1 × 1 LSTM after the blocks of each stage; what it says goes to the next stage and to the neck.

**Any grid.** Where 8 does not divide the map, attention sees it filled up with zeros at the right and the bottom, as in
the public code. Such a token is not masked: it has a key without direction, which a query sees through the position
bias alone, and the values' bias as its value. It is zero again for the next block, so nothing is carried through it.
Windows are cut once for a stage and joined again after its last block, for all else in a block works token by token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError
from fate.models.layers.attention import from_groups, to_groups
from fate.models.layers.conv_lstm import ConvLSTM

#: Hidden and cell state of one stage, each [B, H, W, C].
CellState = tuple[Tensor, Tensor]

HEAD_CHANNELS = 16  # channels of an attention head
WINDOW = 8  # tokens along a side of a window
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


class Pointwise(nn.Conv2d):
    """A linear map of the last axis, [..., in] → [..., out], whose weight has the public shape [out, in, 1, 1]."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight.flatten(1), self.bias)


class Mlp(nn.Module):
    """Two layers with GELU between, [..., in] → [..., out]; with ``normed``, LayerNorm before the GELU."""

    def __init__(self, channels: int, hidden: int, out_channels: int, dropout: float, normed: bool = False) -> None:
        super().__init__()
        self.widen = Pointwise(channels, hidden, kernel_size=1)
        self.norm = nn.LayerNorm(hidden, eps=1e-6) if normed else nn.Identity()
        self.narrow = Pointwise(hidden, out_channels, kernel_size=1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.dropout(self.narrow(functional.gelu(self.norm(self.widen(tokens)))))
        return result


class DropPath(nn.Module):
    """In training, a branch [N, ...] is left out for a share of the N windows, and weighs more for the others."""

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

    The convolution is 3 × 3 on token maps and, as in the public code for smaller patches, 7 × 7 on finer images. Its
    groups are the largest number that divides both the image's channels and ``groups``.
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
        tokens: Tensor = self.mlp(self.conv(images).permute(0, 2, 3, 1))
        return tokens


class DualAttentionBlock(nn.Module):
    """Event Dual Self-Attention: tokens and refined tokens [N, windows, window², C] → the same two.

    ``tokens`` collects what positions found, ``refined`` what channels found in that; the perceptron sees their sum.
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
    """Blocks on one map of tokens, [N, H, W, C] → [N, H, W, C], H and W at will; each block drops its own share."""

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
                tokens = tokens * inside  # what lies outside the map is zero again for the next block
        merged = from_groups(tokens.flatten(0, 1), (side, side), rows + missing[0], columns + missing[1])
        return merged[:, :rows, :columns]


class GET(nn.Module):
    """The detector's backbone; the text above says what of it is inferred. It works on any grid.

    Args:
        in_channels: C of the encoder's image; ``GroupTokens(sensor, groups=16)`` has 32 for each group.
        stem_stride: cells of that image along a token of 4 pixels: 1 for tokens, 2 for pillars, 4 for histograms.
        channels: of the first stage; each has twice those of the one before.
        groups: of channels in the first stage; each has half those of the one before.
        depths: blocks of each of the four stages.
        window: tokens along a side of an attention window.
        dropout: share of values that training sets to 0, half as many in the embedding; as the public code trains.
        drop_path: how often training leaves a branch of the last block out; less often before it.
    """

    remembers = True

    def __init__(
        self,
        in_channels: int,
        stem_stride: int = 1,
        channels: int = 64,
        groups: int = 16,
        depths: Sequence[int] = (2, 2, 6, 2),
        window: int = WINDOW,
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
        # The share of dropped paths grows evenly from block to block.
        shares = torch.split(torch.linspace(0, drop_path, sum(depths), device="cpu"), list(depths))
        self.stages = nn.ModuleList(
            Stage(width, count, window, dropout, share.tolist())
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
        """As ``MaxViT.forward``; the state is hidden and cell of each stage, each [B, H_i, W_i, C_i].

        ``step_scale`` is of no effect here, for an LSTM counts windows, not time.
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
