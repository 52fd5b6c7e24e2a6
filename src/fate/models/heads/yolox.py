"""YOLOX's head: every cell of three maps proposes one box, its objectness and its classes.

Each map is brought to one width by a 1×1 convolution (the stem) and read by two towers of two 3×3 convolutions, one for
the classes, one for box and objectness, which do not share weights (YOLOX: Ge et al., 2021; as RVT uses it). A cell is
called an anchor where it stands for its proposal. The order of the Q predictions of a window: strides 8, 16, 32, within
each row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fate.models.heads import yolox_loss
from fate.models.layers.conv import Activation, AnyCountConv2d, ConvNormAct, block_diagonal, side_by_side
from fate.models.layers.deformable import at_least_float32
from fate.models.outputs import Outputs, Targets

#: At first every cell is an object, and of each class, with this probability (as of the focal loss: Lin et al., 2017).
PRIOR = 0.01


class YOLOXHead(nn.Module):
    """Maps of N windows → Q = Σ H_i · W_i predictions of each.

    Stems and towers have ``hidden`` channels; None: a quarter of the last map's, as YOLOX scales it. With
    ``depthwise``, for small models, stems filter each channel by itself too (5×5), and a tower is one 1×1 convolution.
    """

    cells: Tensor
    cell_strides: Tensor

    def __init__(
        self,
        in_channels: Sequence[int],
        classes: int,
        hidden: int | None = None,
        strides: Sequence[int] = (8, 16, 32),
        depthwise: bool = False,
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        width = in_channels[-1] // 4 if hidden is None else hidden
        self.classes = classes
        self.strides = tuple(strides)
        self.depthwise = depthwise
        self.merged: nn.ModuleList | None = None
        self.stems = nn.ModuleList(_stem(channels, width, depthwise, activation) for channels in in_channels)
        self.class_towers = nn.ModuleList(_tower(width, depthwise, activation) for _ in strides)
        self.box_towers = nn.ModuleList(_tower(width, depthwise, activation) for _ in strides)
        self.class_predictions = nn.ModuleList(_prediction(width, classes, PRIOR) for _ in strides)
        self.box_predictions = nn.ModuleList(_prediction(width, 4) for _ in strides)
        self.object_predictions = nn.ModuleList(_prediction(width, 1, PRIOR) for _ in strides)
        # Whole numbers, so that a model cast to 16 bits keeps them; built by the first call, for its size of frame.
        self.register_buffer("cells", torch.zeros(0, 2, dtype=torch.int32), persistent=False)
        self.register_buffer("cell_strides", torch.zeros(0, 1, dtype=torch.int32), persistent=False)
        self._sizes: list[tuple[int, int]] = []

    def forward(self, features: Sequence[Tensor], targets: Sequence[Targets] | None = None) -> Outputs:
        """Proposals from features [N, C_i, H_i, W_i] (N may be 0), finest first.

        In training, or with targets, they hold what the loss needs; this head looks at targets in the loss alone.
        """
        maps = (self._predicted(level, image) for level, image in enumerate(features))
        raw = torch.cat([of.flatten(2).transpose(1, 2) for of in maps], dim=1)  # [N, Q, 5 + classes]
        self._lay_cells([(image.shape[-2], image.shape[-1]) for image in features], features[0].device)
        return Outputs(
            boxes=decoded(raw[..., :4], self.cells, self.cell_strides),
            class_logits=raw[..., 5:],
            objectness=raw[..., 4],
            training=self.anchors() if self.training or targets is not None else None,
        )

    def _predicted(self, level: int, image: Tensor) -> Tensor:
        """[N, C, H, W] of a level → [N, 5 + classes, H, W]: box, objectness, classes."""
        stem = self.stems[level](image)
        if self.merged is not None:
            predicted: Tensor = self.merged[level](stem)
            return predicted
        of_boxes, of_classes = self.box_towers[level](stem), self.class_towers[level](stem)
        boxes, objects = self.box_predictions[level](of_boxes), self.object_predictions[level](of_boxes)
        return torch.cat([boxes, objects, self.class_predictions[level](of_classes)], dim=1)

    def fuse_(self) -> None:
        """Where towers are 1×1 convolutions, run both as one, in place and for good; BatchNorm is folded already."""
        if not self.depthwise or self.merged is not None:
            return
        self.merged = nn.ModuleList()
        for level in range(len(self.strides)):
            tower, other = (
                cast(ConvNormAct, towers[level].get_submodule("0")) for towers in (self.box_towers, self.class_towers)
            )
            boxes, objects, classes = (
                cast(nn.Conv2d, predictions[level])
                for predictions in (self.box_predictions, self.object_predictions, self.class_predictions)
            )
            tower.conv = side_by_side([tower.conv, other.conv])
            self.merged.append(nn.Sequential(tower, block_diagonal([side_by_side([boxes, objects]), classes])))
        self.box_towers = self.class_towers = nn.ModuleList()
        self.box_predictions = self.object_predictions = self.class_predictions = nn.ModuleList()

    def loss(self, outputs: Outputs, targets: Sequence[Targets]) -> dict[str, Tensor]:
        """The terms of ``yolox_loss.loss``: their sum is to be made small."""
        return yolox_loss.loss(outputs, targets)

    def anchors(self) -> yolox_loss.Anchors:
        """Where the cells of the last call lie."""
        return yolox_loss.Anchors((self.cells + 0.5) * self.cell_strides, self.cell_strides[:, 0].float())

    def _lay_cells(self, sizes: list[tuple[int, int]], device: torch.device) -> None:
        if sizes == self._sizes and self.cells.device == device:
            return
        with torch.inference_mode(False):  # a table that is made while nobody trains can be used in training later
            cells = [_cells(rows, columns, device) for rows, columns in sizes]
            self.cells = torch.cat(cells)
            self.cell_strides = torch.cat(
                [torch.full_like(of[:, :1], stride) for of, stride in zip(cells, self.strides, strict=True)]
            )
        self._sizes = sizes


def decoded(raw: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
    """Boxes [N, Q, 4] xyxy in pixels, in float32 at least: 16 bits cannot place a box to the pixel.

    Args:
        raw: [N, Q, 4] offset of the centre from the cell's corner (x, y), logarithm of width and height, in cells.
        cells: [Q, 2] column and row.
        strides: [Q, 1] pixels per cell.
    """
    raw = at_least_float32(raw)
    centre = (raw[..., :2] + cells) * strides
    half = raw[..., 2:].exp() * (strides / 2)
    return torch.cat([centre - half, centre + half], dim=-1)


def _stem(channels: int, width: int, depthwise: bool, activation: Activation) -> nn.Module:
    narrow = ConvNormAct(channels, width, activation=activation, any_count=True)
    if not depthwise:
        return narrow
    return nn.Sequential(narrow, ConvNormAct(width, width, kernel=5, groups=width, activation=activation))


def _tower(width: int, depthwise: bool, activation: Activation) -> nn.Sequential:
    kernels = (1,) if depthwise else (3, 3)
    return nn.Sequential(
        *(ConvNormAct(width, width, kernel, activation=activation, any_count=True) for kernel in kernels)
    )


def _prediction(width: int, channels: int, prior: float | None = None) -> nn.Conv2d:
    """A 1×1 convolution; with ``prior`` its logits start around that probability."""
    layer = AnyCountConv2d(width, channels, 1)
    if prior is not None and layer.bias is not None:
        nn.init.constant_(layer.bias, -math.log((1 - prior) / prior))
    return layer


def _cells(rows: int, columns: int, device: torch.device) -> Tensor:
    """[rows · columns, 2] int32 column and row of each cell, row by row."""
    y, x = (torch.arange(count, dtype=torch.int32, device=device) for count in (rows, columns))
    return torch.cartesian_prod(y, x).flip(-1)
