"""The detectors by name.

    model = build_model("fate-s", classes=("car", "pedestrian"), sensor=(240, 304))

``models.yaml`` is the only list of detectors: to add one, add an entry there, with its family (a function below) and
the options in which it differs. The encoder is one of them: ``fate-s`` is ``s5-vit-b`` with pillars, and any other
encoder can be asked for (``encoder="voxel"``) with its own arguments (``encoder_options={"bins": 9}``). The ablations
of the paper are arguments of the pillar encoder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fate.encoding.grids import GRIDS
from fate.encoding.pillars import PillarEncoder
from fate.encoding.spec import check_options
from fate.errors import FateError
from fate.models.backbones.get import GET
from fate.models.backbones.maxvit import Kind, MaxViT, Memory
from fate.models.backbones.presnet import PResNet
from fate.models.detector import Detector
from fate.models.frame import Frame, Stem, frame_of
from fate.models.heads.rtdetr import RtDetrHead
from fate.models.heads.yolox import YOLOXHead
from fate.models.layers.conv import Activation
from fate.models.necks.hybrid_encoder import HybridEncoder
from fate.models.necks.latent_memory import LatentMemory, Recurrence
from fate.models.necks.pafpn import PAFPN
from fate.models.table import MODELS, Entry, Family
from fate.progress import Progress
from fate.text import suggest_name

#: Every encoder by its name; the first argument is the sensor.
ENCODERS: dict[str, Callable[..., nn.Module]] = {"pillars": PillarEncoder, **GRIDS}
#: Backbone, neck, head, and the memory between the last two.
Network = tuple[nn.Module, nn.Module, nn.Module, nn.Module | None]


def maxvit_yolox(
    frame: Frame,
    channels: int,
    classes: int,
    *,
    dims: Sequence[int] = (64, 128, 256, 512),
    memory: Memory = "s5",
    official_state: bool = False,
    bottlenecks: int = 2,
    head_dim: int | None = None,
    kinds: Sequence[Kind] = ("attention",) * 4,
    mlp_ratio: int = 4,
    depthwise: bool = False,
    head_width: int | None = None,
    full_head: bool = False,
) -> Network:
    """RVT and S5-ViT: attention with a memory in every stage, YOLOX's neck and head.

    Args:
        frame, channels, classes: geometry of the input, channels of the encoder's image, and number of classes.
        dims, memory, official_state, head_dim, kinds, mlp_ratio: of the backbone, see ``MaxViT``.
        bottlenecks: in each CSP layer of the neck.
        depthwise: for small models on CPUs: neck and head filter each channel by itself, with an activation that needs
            no exp, and the stem's kernel is as small as its stride allows (with pillars of two pixels 3 instead of 7).
        head_width: channels inside the detection head; None for a quarter of the last stage's.
        full_head: a head of full convolutions all the same: it learns better, for a third of a small model's time.
    """
    if official_state and memory != "s5":
        raise FateError(
            f"official_state=True was given for a model with memory={memory!r}; it belongs to S5 (s5-vit, fate-s)"
        )
    activation: Activation = "hardswish" if depthwise else "silu"
    backbone = MaxViT(
        channels, dims, memory, frame.stem_stride, frame.partition, head_dim, official_state, kinds,
        stem_kernel=max(2 * frame.stem_stride - 1, 3) if depthwise else 7, mlp_ratio=mlp_ratio,
    )  # fmt: skip
    neck = PAFPN(backbone.channels, bottlenecks, depthwise, activation)
    head = YOLOXHead(neck.channels, classes, head_width, depthwise=depthwise and not full_head, activation=activation)
    return backbone, neck, head, None


def get_yolox(
    frame: Frame,
    in_channels: int,
    classes: int,
    *,
    channels: int = 64,
    groups: int = 16,
    depths: Sequence[int] = (2, 2, 6, 2),
) -> Network:
    """GET: attention among groups of time and polarity, ConvLSTM memories, YOLOX's neck and head; options of GET."""
    backbone = GET(in_channels, frame.stem_stride, channels, groups, depths)
    neck = PAFPN(backbone.channels)
    return backbone, neck, YOLOXHead(neck.channels, classes), None


def evrt_detr(
    frame: Frame,
    channels: int,
    classes: int,
    *,
    depth: int = 50,
    widths: Sequence[int] = (64, 128, 256, 512),
    hidden: int = 256,
    feedforward: int = 1024,
    expansion: float = 1.0,
    layers: int = 6,
    queries: int = 300,
    remember: bool = True,
    recurrence: Recurrence = "steps",
) -> Network:
    """EvRT-DETR: RT-DETR with a memory between encoder and decoder.

    Args:
        frame, channels, classes: geometry of the input, channels of the encoder's image, and number of classes.
        depth, widths: of the PResNet.
        hidden, feedforward: width of everything behind it.
        expansion: of the CSP layers.
        layers, queries: of the decoder.
        remember: False for the detector of single windows, which the first stage of its two-stage training trains.
        recurrence: what the recurrent cell counts: ``"steps"``, as published, or ``"time"``.
    """
    backbone = PResNet(channels, depth, frame.stem_stride, widths)
    neck = HybridEncoder(backbone.channels, hidden, feedforward=feedforward, expansion=expansion)
    head = RtDetrHead(neck.channels, classes, hidden=hidden, queries=queries, layers=layers, feedforward=feedforward)
    return backbone, neck, head, LatentMemory(neck.channels, recurrence=recurrence) if remember else None


#: The families, and the stride of their first convolution for an image at the sensor's resolution.
FAMILIES: dict[Family, tuple[Callable[..., Network], int]] = {
    "maxvit_yolox": (maxvit_yolox, 4),
    "get_yolox": (get_yolox, 4),
    "evrt_detr": (evrt_detr, 2),
}


def build_model(
    name: str,
    classes: Sequence[str],
    sensor: Sequence[int],
    *,
    encoder: str | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    stem: Stem = "native",
    **options: Any,
) -> Detector:
    """A detector with fresh weights.

    Args:
        name: a key of ``MODELS``.
        classes: names, in the order of class ids.
        sensor: (height, width) of the events, pixels.
        encoder: one of ``ENCODERS``; None for the model's own.
        encoder_options: of the encoder, on top of the model's own.
        stem: how a coarse image meets the backbone; see ``frame.py``.
        options: of the model's family: ``official_state``, ``dims``, ``layers``, …
    """
    model = model_named(name)
    given = _class_names(classes)
    chosen = model.encoder if encoder is None else encoder
    if chosen not in ENCODERS:
        known = ", ".join(ENCODERS)
        raise FateError(f"encoder {chosen!r} was asked for; there are {known}{suggest_name(chosen, ENCODERS)}")
    settings = {**(model.encoder_options if chosen == model.encoder else {}), **(encoder_options or {})}
    check_options(chosen, ENCODERS[chosen], 1, settings)
    image: Any = ENCODERS[chosen](sensor, **settings)
    build, stride = FAMILIES[model.family]
    check_options(name, build, 3, options)
    frame = frame_of(sensor, int(image.stride), stride, stem, float(getattr(image, "empty_value", 0.0)))
    backbone, neck, head, memory = build(frame, int(image.channels), len(given), **{**model.options, **options})
    description = {
        "name": name,
        "classes": list(given),
        "sensor": [int(side) for side in frame.sensor],
        "encoder": chosen,
        "encoder_options": settings,
        "stem": stem,
        "options": dict(options),
    }
    return Detector(image, backbone, neck, head, frame, given, memory, description)


def rebuild(description: Mapping[str, Any]) -> Detector:
    """A detector with fresh weights from another's ``description``."""
    requested = dict(description)
    options = requested.pop("options", {})
    return build_model(**requested, **options)


def model_named(name: str) -> Entry:
    """An entry of ``MODELS``; a name that is not there is answered with the nearest."""
    if name not in MODELS:
        raise FateError(f"model {name!r} was asked for; there are {', '.join(MODELS)}{suggest_name(name, MODELS)}")
    return MODELS[name]


def list_models(
    classes: Sequence[str] = ("car", "pedestrian"),
    sensor: Sequence[int] = (240, 304),
    progress: Progress | None = None,
) -> list[Entry]:
    """Every detector that ``build_model`` knows, for these classes and this sensor.

    Args:
        classes: names; the heads grow with them.
        sensor: (height, width) of the events, pixels.
        progress: called with how many models are done, and how many there are.
    """
    entries = []
    for number, (name, model) in enumerate(MODELS.items()):
        if progress is not None:
            progress(number, len(MODELS))
        with torch.device("meta"):
            detector = build_model(name, classes, sensor)
        count = sum(parameter.numel() for parameter in detector.parameters())
        entries.append(replace(model, parameters=count, flops=flops_per_window(detector)))
    return entries


def flops_per_window(detector: Detector) -> int:
    """Operations of one window (see ``table``), counted on torch's ``meta`` device, which computes shapes alone."""
    shapes = copy.deepcopy(detector).to("meta").eval()
    rows, columns = (-(-side // shapes.frame.encoder_stride) for side in shapes.sensor)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        shapes(torch.zeros(1, shapes.image_channels, rows, columns))
    return int(counter.get_total_flops())


def _class_names(classes: Sequence[str]) -> tuple[str, ...]:
    try:
        given = (classes,) if isinstance(classes, str) else tuple(classes)
    except TypeError:
        given = ()
    if not given or len(set(given)) < len(given) or not all(isinstance(each, str) and each for each in given):
        raise FateError(f"classes {classes!r} were given; expected at least one, each with a name of its own")
    return given
