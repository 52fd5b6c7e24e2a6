"""Group Token Aggregation of GET (Peng et al., ICCV 2023): from one stage to the next, which has half the rows, columns
and groups and twice the channels.

The channels of a map of group tokens lie group after group. An *overlapping group convolution* makes one new group from
three old ones, and neighbours share one of them: new group j reads the old groups 2j - 1, 2j and 2j + 1. The first has
nothing before it and reads group 0 twice. From six groups:

    new group      0          1          2
    reads       0  0  1    1  2  3    3  4  5

Then come LayerNorm and a max pooling of 3 × 3 at stride 2, with the border that TensorFlow calls "same". Three groups
become one, which reads each of them once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError


class GroupAggregation(nn.Module):
    """[N, H, W, C] → [N, ceil(H / 2), ceil(W / 2), 2 C], whose groups are half as many.

    Args:
        channels: C.
        groups: groups of channels before: an even divisor of C, or 3 or 1, which become one.
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
            read[:each] += each  # group 0 stands in for the one before it
        self.register_buffer("read", read, persistent=False)
        self.conv = nn.Conv2d(len(read), 2 * channels, kernel_size=3, padding=1, groups=new_groups)
        self.norm = nn.LayerNorm(2 * channels, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        overlapping = tokens.index_select(-1, self.read).permute(0, 3, 1, 2)
        normed = self.norm(self.conv(overlapping).permute(0, 2, 3, 1))
        return half_by_maximum(normed.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def half_by_maximum(images: Tensor) -> Tensor:
    """Largest of each 3 × 3 pixels at stride 2: [N, C, H, W] → [N, C, ceil(H / 2), ceil(W / 2)].

    Odd sizes have one pixel more on both sides, even ones on the far side only, where the ceiling mode of the pooling
    cuts the kernel off: no copy with a border is made.
    """
    border = (images.shape[-2] % 2, images.shape[-1] % 2)
    return functional.max_pool2d(images, kernel_size=3, stride=2, padding=border, ceil_mode=True)
