"""One step of FATE-S or S5-ViT as a graph with few operations, for the runtimes that FATE itself calls.

    image, rate.1.transition.real, …, state.1, …  →  raw, new_state.1, …

A small detector spends more than half of its time on hundreds of small operations, whose start takes longer than their
work. ``step_graph.StepGraph`` is the readable form, and the one of exported files. This form computes the same:

- **The rate** is given as Λ̄ and the gain of each S5 layer (``S5.at_rate``), which the caller computes once for each
  rate; so no operation depends on it, and all weights are constants.
- **Complex numbers** are two tensors, and each half of a linear layer is a layer of its own, so that nothing is split
  or joined. The state [B, 2, L, P] has first all real parts, then all imaginary parts, of L tokens.
- **Tokens** [B, L, C] keep their order from the convolution of a stage to its end.
- **A norm that follows a convolution** needs no mean: the mean over channels is subtracted from the weights instead.
- **Factors** (LayerScale, and 1 / √d of attention) are multiplied into weights.
- **Boxes** are decoded behind the graph (``decoded``), which has one output for all predictions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fate.compiled import compiled
from fate.inference.fusing import fused
from fate.models.backbones.maxvit import MaxViT, PlainStage, Stage
from fate.models.detector import Detector
from fate.models.heads.yolox import YOLOXHead
from fate.models.layers.attention import TransformerBlock, from_groups, to_groups
from fate.models.layers.length_affine import split_length
from fate.models.layers.s5 import S5, S5Block

#: Parts of the rate of an S5 layer, each [B, 1, P]: real and imaginary parts of Λ̄ and of the gain.
RATE = ("transition.real", "transition.imag", "gain.real", "gain.imag")
#: The output [B, Q, 5 + classes]: offset and size of the box in cells, then logits of objectness and of the classes.
RAW = "raw"


def can_be_lean(detector: Detector) -> bool:
    """Whether ``LeanGraph`` supports a detector: S5 in all stages that have a memory, and YOLOX's head."""
    backbone = detector.backbone
    if not isinstance(backbone, MaxViT) or not isinstance(detector.head, YOLOXHead):
        return False
    if detector.memory is not None:
        return False
    memories = [stage.memory for stage in backbone.stages if isinstance(stage, Stage)]
    return all(isinstance(memory, S5Block) and not memory.ssm.official_state for memory in memories)


class LeanGraph(nn.Module):
    """A step of a detector with the interface of ``StepGraph``, for ``to_onnx``.

    A history of images is no part of it: the graph takes completed images.
    """

    encoder = None

    def __init__(self, detector: Detector, streams: int = 1) -> None:
        """The detector is copied, not changed; ``can_be_lean`` must be true of it."""
        super().__init__()
        whole = fused(detector.behind_history())
        backbone = cast(MaxViT, whole.backbone)
        self.frame, self.neck, self.head = whole.frame, whole.neck, cast(YOLOXHead, whole.head)
        self.partition, self.length_affine = backbone.partition, backbone.length_affine
        stride = detector.frame.encoder_stride
        image = torch.zeros(streams, whole.image_channels, *(-(-side // stride) for side in detector.sensor))
        with torch.no_grad():
            _, (state, _) = whole.features(image)
        self.stages = nn.ModuleList(
            LeanStage(stage, self.partition) if isinstance(stage, Stage) else stage for stage in backbone.stages
        )
        self.numbers = [number for number, stage in enumerate(self.stages) if isinstance(stage, LeanStage)]
        of_stages = cast(tuple[Tensor | None, ...], state)
        self.inputs: dict[str, Tensor] = {"image": image}  #: example tensors by name
        rates = rates_of(layers_with_rate(detector), torch.ones(streams))
        self.inputs |= {name: torch.from_numpy(value) for name, value in rates.items()}
        for number in self.numbers:
            rows, height, width, pairs = cast(Tensor, of_stages[number]).shape
            self.inputs[f"state.{number}"] = torch.zeros(rows, 2, height * width, pairs // 2)
        names = [name for name in self.inputs if name.startswith("state.")]
        self.state_pairs = {name: f"new_{name}" for name in names}
        self.outputs = [RAW, *self.state_pairs.values()]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the tensors named in ``outputs`` from tensors in the order of ``inputs``."""
        given = dict(zip(self.inputs, inputs, strict=True))
        images, length = self.frame.padded_image(given["image"]), None
        if self.length_affine:
            images, length = split_length(images)
        x, features, after = images, list[Tensor](), list[Tensor]()
        for number, stage in enumerate(self.stages):
            if isinstance(stage, PlainStage):
                x, _ = stage(x, None, 1, 1.0, length)
            else:
                rate = [given[f"rate.{number}.{part}"] for part in RATE]
                x, new_state = stage(x, rate, given[f"state.{number}"], length)
                after.append(new_state)
            features.append(x)
        return self.predictions(self.neck(features[1:])), *after

    def predictions(self, features: list[Tensor]) -> Tensor:
        """Raw predictions [B, Q, 5 + classes]."""
        levels = (self.head.predict_level(level, each) for level, each in enumerate(features))
        return torch.cat([level.permute(0, 2, 3, 1).flatten(1, 2) for level in levels], dim=1)


class LeanStage(nn.Module):
    """``maxvit.Stage`` with S5."""

    def __init__(self, stage: Stage, partition: tuple[int, int]) -> None:
        super().__init__()
        self.partition, downsample = partition, stage.downsample
        conv = downsample.conv
        conv.weight = nn.Parameter(conv.weight - conv.weight.mean(0, keepdim=True), requires_grad=False)
        self.conv, self.norm, self.length_affine, self.mix = conv, downsample.norm, downsample.length_affine, stage.mix
        blocks = ((stage.window, False), (stage.grid, True))
        self.grids = [grid for block, grid in blocks if block is not None]
        self.blocks = nn.ModuleList(LeanTransformerBlock(block) for block, _ in blocks if block is not None)
        self.memory = LeanS5Block(cast(S5Block, stage.memory))

    def forward(self, x: Tensor, rate: list[Tensor], state: Tensor, length: Tensor | None) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] to [N, C', H', W'] and the next state."""
        x = self.conv(x).permute(0, 2, 3, 1)
        _, height, width, channels = x.shape
        tokens = x.flatten(1, 2)
        # Their mean is 0. Both runtimes recognise this form of the root mean square as one operation.
        tokens = tokens / torch.sqrt(tokens.pow(2).mean(-1, keepdim=True) + self.norm.eps)
        tokens = tokens * self.norm.weight + self.norm.bias
        if self.length_affine is not None:
            affine, window = self.length_affine, cast(Tensor, length)[:, None, None]
            tokens = tokens * (1 + window * affine.scale) + window * affine.offset
        if self.mix is not None:
            images = tokens.view(-1, height, width, channels).permute(0, 3, 1, 2)
            tokens = self.mix(images).permute(0, 2, 3, 1).flatten(1, 2)
        for block, grid in zip(self.blocks, self.grids, strict=True):
            if (height, width) == self.partition:  # one group of all tokens, in their order
                tokens = block(tokens)
            else:
                groups = to_groups(tokens.view(-1, height, width, channels), self.partition, grid)
                tokens = from_groups(block(groups), self.partition, height, width, grid).flatten(1, 2)
        tokens, state = self.memory(tokens, rate, state)
        return tokens.view(-1, height, width, channels).permute(0, 3, 1, 2), state


class LeanTransformerBlock(nn.Module):
    """``attention.TransformerBlock`` with weights of their own for query, key and value."""

    def __init__(self, block: TransformerBlock) -> None:
        super().__init__()
        attention = block.attention
        channels = attention.out.out_features
        self.heads, self.norm = channels // attention.head_dim, block.attention_norm
        weights = attention.qkv.weight.view(self.heads, 3, attention.head_dim, channels)
        biases = attention.qkv.bias.view(self.heads, 3, attention.head_dim)
        factors = (attention.head_dim**-0.5, 1.0, 1.0)
        self.query_key_value = nn.ModuleList(
            linear(weights[:, part].reshape(-1, channels) * factor, biases[:, part].reshape(-1) * factor)
            for part, factor in enumerate(factors)
        )
        self.out = linear(*scaled(attention.out, block.attention_scale))
        self.mlp: nn.Sequential | None = None
        if block.mlp is not None:
            widen, activation, narrow = block.mlp
            shrink = linear(*scaled(cast(nn.Linear, narrow), block.mlp_scale))
            self.mlp = nn.Sequential(block.mlp_norm, widen, activation, shrink)

    def forward(self, tokens: Tensor) -> Tensor:
        """[M, L, C] to the same."""
        normed = self.norm(tokens)
        query, key, value = (part(normed).view(*tokens.shape[:2], self.heads, -1) for part in self.query_key_value)
        # OpenVINO recognises this form, with the permutations, as one operation.
        weights = torch.softmax(query.permute(0, 2, 1, 3) @ key.permute(0, 2, 3, 1), -1)
        attended = (weights @ value.permute(0, 2, 1, 3)).permute(0, 2, 1, 3).reshape(tokens.shape)
        tokens = self.out(attended) + tokens
        return tokens if self.mlp is None else self.mlp(tokens) + tokens


class LeanS5Block(nn.Module):
    """``s5.S5Block`` for one window, with real and imaginary parts as tensors of their own."""

    def __init__(self, block: S5Block) -> None:
        super().__init__()
        self.norm, self.mlp_norm, self.contract = block.norm, block.mlp_norm, block.contract
        ssm = block.ssm
        self.drive = nn.ModuleList(linear(part) for part in ssm.input_matrix.unbind(-1))  # B
        real, imag = ssm.output_matrix.unbind(-1)
        self.read = nn.ModuleList([linear(real), linear(-imag)])  # C, for Re(C x)
        self.feedthrough = nn.Parameter(ssm.feedthrough.detach(), requires_grad=False)
        self.expand = nn.ModuleList(linear(part) for part in block.expand.weight.chunk(2))

    def forward(self, x: Tensor, rate: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, L, C], ``RATE`` and the state [B, 2, L, P] to tokens and the next state."""
        a_real, a_imag, g_real, g_imag = rate
        x_real, x_imag = state[:, :1].flatten(0, 1), state[:, 1:].flatten(0, 1)
        u = self.norm(x)
        d_real, d_imag = (part(u) for part in self.drive)
        real = a_real * x_real - a_imag * x_imag + (g_real * d_real - g_imag * d_imag)
        imag = a_real * x_imag + a_imag * x_real + (g_real * d_imag + g_imag * d_real)
        y = self.read[0](real) + self.read[1](imag) + u * self.feedthrough
        v = self.mlp_norm(functional.gelu(y) + u)
        values, gates = (part(v) for part in self.expand)
        return self.contract(values * functional.gelu(gates)) + v, torch.stack((real, imag), 1)


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A layer with constant weights."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return layer


def scaled(layer: nn.Linear, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer whose outputs are multiplied by ``factors``."""
    return layer.weight * factors[:, None], layer.bias * factors


def layers_with_rate(detector: Detector) -> dict[int, S5]:
    """Copies of the S5 layers of a detector by the number of their stage."""
    stages = enumerate(cast(MaxViT, detector.backbone).stages)
    return {
        number: copy.deepcopy(cast(S5Block, stage.memory).ssm).float() for number, stage in stages
        if isinstance(stage, Stage)
    }  # fmt: skip


@torch.no_grad()
def rates_of(layers: Mapping[int, S5], step_scale: Tensor) -> dict[str, NDArray[np.float32]]:
    """The inputs with the rate, for the step scales [B] of the windows of a call."""
    found: dict[str, NDArray[np.float32]] = {}
    for number, ssm in layers.items():
        parts = (part for pair in ssm.at_rate(step_scale.float()[:, None]) for part in pair.chunk(2, -1))
        for name, part in zip(RATE, parts, strict=True):
            found[f"rate.{number}.{name}"] = part[:, None].contiguous().numpy()
    return found


def decoded(raw: NDArray[np.float32], cells: NDArray[np.int32], strides: NDArray[np.int32]) -> NDArray[np.float32]:
    """``yolox.decode_boxes`` of raw predictions [N, Q, 5 + classes]: boxes [N, Q, 4], xyxy in pixels."""
    boxes = np.empty((*raw.shape[:2], 4), np.float32)
    _decode(raw, cells, strides, boxes)
    return boxes


@compiled
def _decode(
    raw: NDArray[np.float32], cells: NDArray[np.int32], strides: NDArray[np.int32], boxes: NDArray[np.float32]
) -> None:
    for window in range(len(raw)):
        for q in range(raw.shape[1]):
            stride = np.float32(strides[q, 0])
            for axis in range(2):
                centre = (raw[window, q, axis] + np.float32(cells[q, axis])) * stride
                half = np.exp(raw[window, q, 2 + axis]) * (stride / np.float32(2))
                boxes[window, q, axis] = centre - half
                boxes[window, q, 2 + axis] = centre + half
