"""GET, the Group Event Transformer (Peng et al., ICCV 2023), as a detector's backbone.

Tokens carry the events of a patch of pixels in groups of channels, one for each time bin and polarity, and the network
works between positions and between groups in turn:

- ``GroupEmbedding`` (the paper's GTE): a 3 × 3 convolution within each group and a small perceptron.
- ``DualAttentionBlock`` (EDSA): attention between the positions of a window of 8 × 8 tokens, attention between the
  channels on what it found, two residual streams, and a perceptron on their sum. Windows are never shifted.
- ``GroupAggregation`` (GTA) between stages: half the rows, columns and groups, twice the channels.

**What is known and what is inferred.** The public code holds a classifier alone (three stages, no memory), and every
block here computes what its blocks do. The paper's detector has memory, YOLOX's neck and head, and 21.9 million
parameters; its layout is not public. Inferred:

- Four stages at strides 4, 8, 16 and 32, of which the last three go to the neck.
- 64, 128, 256 and 512 channels, RVT-B's, so that neck and head are RVT-B's too. The classifier begins with 48; other
  widths follow in its proportions: 16 channels a head, an embedding that is 4 and 16 times as wide inside.
- 16 groups, then 8, 4 and 2. (The classifier's 12 does not divide 64, nor can it be halved three times.) The tokens to
  go with it have a group for each: ``GroupTokens(sensor, groups=16)``, 8 time bins in two polarities.
- 2, 2, 6 and 2 blocks, as in Swin-T. With neck and head for two classes these are 21 879 565 parameters
  (21 916 429 on tokens of 24 groups).
- The memory is RVT's 1 × 1 LSTM after the blocks of each stage; what it says goes to the next stage and to the neck.

**Any grid.** Where 8 does not divide the map, attention sees it filled up with zeros at the right and the bottom, as in
the public code. Such a token is not masked: it has a key without direction, which a query sees through the position
bias alone, and the values' bias as its value. It is zero again for the next block, so nothing is carried through it.
At 256 × 320 pixels this concerns the maps of 16 × 20 and 8 × 10 tokens, at 384 × 640 the one of 12 × 20. Windows are
cut once for a stage and joined again after its last block, for all else in a block works token by token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError
from fate.models.layers.attention import from_windows, to_windows
from fate.models.layers.conv_lstm import ConvLSTM
from fate.models.layers.group_attention import GroupAggregation, GroupAttention, WindowAttention

#: Hidden and cell state of one stage, each [B, H, W, C].
CellState = tuple[Tensor, Tensor]

HEAD_CHANNELS = 16  # channels of an attention head
WINDOW = 8  # tokens along a side of a window


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

    The convolution is 3 × 3 on token maps and, as in the public code for smaller patches, 7 × 7 on finer images, which
    it takes to the tokens' stride. Its groups are the largest number that divides both the image's channels and
    ``groups``: 16 for tokens and pillars of 64 channels, 4 for histograms of 20.
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
        self.window_attention = WindowAttention(channels, window, channels // HEAD_CHANNELS, dropout)
        self.group_attention = GroupAttention(channels, window, groups, dropout)
        self.mlp = Mlp(channels, 4 * channels, channels, dropout)
        self.window_norm = nn.LayerNorm(channels, eps=1e-6)
        self.group_norm = nn.LayerNorm(channels, eps=1e-6)
        self.mlp_norm = nn.LayerNorm(channels, eps=1e-6)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor, refined: Tensor) -> tuple[Tensor, Tensor]:
        found = self.window_attention(tokens.flatten(0, 1))
        found_by_groups = self.group_attention(found)
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
            inside = to_windows(functional.pad(tokens.new_ones(1, rows, columns, 1), filling), (side, side))[None]
            tokens = functional.pad(tokens, filling)
        tokens = refined = to_windows(tokens, (side, side)).view(len(tokens), -1, side * side, channels)
        for block in self.blocks:
            tokens, refined = block(tokens, refined)
            if inside is not None:
                tokens = tokens * inside  # what lies outside the map is zero again for the next block
        joined = from_windows(tokens.flatten(0, 1), (side, side), rows + missing[0], columns + missing[1])
        return joined[:, :rows, :columns]


class GET(nn.Module):
    """The detector's backbone; the text above says what of it is inferred. It works on any grid.

    Args:
        in_channels: C of the encoder's image; GroupTokens with ``groups`` groups has 32 for each.
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
        shares = torch.linspace(0, drop_path, sum(depths), device="cpu").split(list(depths))
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
        self,
        images: Tensor,
        state: Sequence[CellState] | None = None,
        steps: int = 1,
        step_scale: float | Tensor = 1.0,
    ) -> tuple[list[Tensor], tuple[CellState, ...]]:
        """As ``MaxViT.forward``; the state is hidden and cell of each stage, each [B, H_i, W_i, C_i].

        ``step_scale`` is of no effect here, for an LSTM counts windows, not time.
        """
        if len(images) % steps:
            raise FateError(f"{len(images)} windows were given in clips of {steps}; expected a multiple of {steps}")
        tokens = self.dropout(self.embedding(images))
        features, carried = [], []
        for number, (stage, memory) in enumerate(zip(self.stages, self.memories, strict=True)):
            if number > 0:
                tokens = self.aggregations[number - 1](tokens)
            tokens, after = memory(stage(tokens), None if state is None else state[number], steps)
            features.append(tokens.permute(0, 3, 1, 2))
            carried.append(after)
        return features[1:], tuple(carried)
