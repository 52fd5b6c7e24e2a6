"""The detectors by name.

    model = build_model("fate-s", classes=("car", "pedestrian"), sensor=(240, 304))

``models.yaml`` is the only list of detectors. To add one, add an entry with its family and its options. A new family
is a function below, with an entry in ``FAMILIES`` and in ``table.Family``.

``fate-s`` is ``s5-vit-b`` with pillars; any detector can be built with another encoder (``encoder="voxel"``) and its
arguments (``encoder_options={"bins": 9}``). The ablations of the paper are arguments of the pillar encoder.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fate.encoding.grids import GRIDS
from fate.encoding.pillars import PillarEncoder
from fate.encoding.spec import check_options
from fate.encoding.window_length import WindowLength
from fate.errors import FateError
from fate.events.events import GEN1_SENSOR
from fate.models.backbones.get import GET
from fate.models.backbones.maxvit import Kind, MaxViT, Memory
from fate.models.backbones.presnet import PResNet
from fate.models.detector import Detector, Frame, Stem, frame_of
from fate.models.heads.rtdetr import RtDetrHead
from fate.models.heads.yolox import YOLOXHead
from fate.models.layers.conv import Activation
from fate.models.layers.image_history import ImageHistory
from fate.models.necks.hybrid_encoder import HybridEncoder
from fate.models.necks.latent_memory import LatentMemory, Recurrence
from fate.models.necks.pafpn import PAFPN
from fate.models.table import MODELS, Entry, Family
from fate.progress import Progress
from fate.text import suggest_name

#: Encoders by name; their first argument is the sensor.
ENCODERS: dict[str, Callable[..., nn.Module]] = {"pillars": PillarEncoder, **GRIDS}
#: Backbone, neck, head, and the memory between neck and head.
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
    longest_memory_s: float | None = None,
    length_affine: bool = False,
) -> Network:
    """RVT and S5-ViT: attention and memory in every stage, YOLOX's neck and head; see ``MaxViT`` for other options.

    Args:
        frame, channels, classes: geometry of the input, channels of the encoder's image, and number of classes.
        bottlenecks: in each CSP layer of the neck.
        depthwise: for small models on CPUs: depthwise convolutions in neck and head, an activation without exp, and the
            smallest kernel of the stem that its stride allows (3 instead of 7 with pillars of two pixels).
        head_width: channels inside the detection head; None for a quarter of the last stage's.
        full_head: with ``depthwise``, keep full convolutions in the head, which are slower but learn better.
        longest_memory_s: longest time constant of S5 in seconds, see ``layers.s5``; None, as published, for no limit.
            Training sets it to the length of the longest training recording.
        length_affine: scale and offset of every stage of the backbone depend on the length of the window; the last
            channel of the image is then this length.
    """
    if (official_state or longest_memory_s is not None) and memory != "s5":
        given = "official_state=True" if official_state else f"longest_memory_s={longest_memory_s:g}"
        raise FateError(f"{given} was given for a model with memory={memory!r}; it belongs to S5 (s5-vit, fate-s)")
    activation: Activation = "hardswish" if depthwise else "silu"
    backbone = MaxViT(
        channels, dims, memory, frame.stem_stride, frame.partition, head_dim, official_state, kinds,
        stem_kernel=max(2 * frame.stem_stride - 1, 3) if depthwise else 7, mlp_ratio=mlp_ratio,
        longest_memory_s=longest_memory_s, length_affine=length_affine,
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
    """GET with YOLOX's neck and head; same options as ``GET``."""
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
    length_affine: bool = False,
) -> Network:
    """EvRT-DETR: RT-DETR with a memory between neck and head.

    Args:
        frame, channels, classes: geometry of the input, channels of the encoder's image, and number of classes.
        depth, widths: of the PResNet.
        hidden, feedforward: widths in neck and head.
        expansion: of the CSP layers of the neck.
        layers, queries: of the head.
        remember: False for the detector without memory, the first stage of the published two-stage training.
        recurrence: of the memory: ``"steps"``, as published, or ``"time"``.
        length_affine: scale and offset of every stage of the backbone depend on the length of the window; the last
            channel of the image is then this length.
    """
    backbone = PResNet(channels, depth, frame.stem_stride, widths, length_affine)
    neck = HybridEncoder(backbone.channels, hidden, feedforward=feedforward, expansion=expansion)
    head = RtDetrHead(neck.channels, classes, hidden=hidden, queries=queries, layers=layers, feedforward=feedforward)
    return backbone, neck, head, LatentMemory(neck.channels, recurrence=recurrence) if remember else None


#: Families, and the stride of their first convolution for an image at the sensor's resolution.
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
    image_history: bool = False,
    **options: Any,
) -> Detector:
    """Build a detector with random weights.

    Args:
        name: a key of ``MODELS``.
        classes: class names, in the order of class ids.
        sensor: (height, width) of the events, pixels.
        encoder: one of ``ENCODERS``; None for the model's own.
        encoder_options: arguments of the encoder that differ from the model's own. Pillar Encoding keeps 16 000 pillars
            of a window on sensors up to 304×240, and all of them on larger ones.
        stem: how the backbone takes an image that is coarser than the sensor, see ``detector.Stem``.
        image_history: complete the images of windows shorter than 50 ms, see ``layers.image_history``; for encoders
            whose cells without events are 0.
        options: arguments of the model's family: ``official_state``, ``dims``, ``layers``, …
    """
    model = model_named(name)
    given = _class_names(classes)
    chosen = model.encoder if encoder is None else encoder
    if chosen not in ENCODERS:
        known = ", ".join(ENCODERS)
        raise FateError(f"encoder {chosen!r} was asked for; there are {known}{suggest_name(chosen, ENCODERS)}")
    settings = {**(model.encoder_options if chosen == model.encoder else {}), **(encoder_options or {})}
    if chosen == "pillars" and math.prod(sensor) > math.prod(GEN1_SENSOR):
        # The paper gives P = 16 000 for Gen1. On 1Mpx it would drop up to 72 % of the events.
        settings.setdefault("max_pillars", None)
    check_options(chosen, ENCODERS[chosen], 1, settings)
    image: Any = ENCODERS[chosen](sensor, **settings)
    build, stride = FAMILIES[model.family]
    check_options(name, build, 3, options)
    chosen_options = {**model.options, **options}
    if image_history and float(getattr(image, "empty_value", 0.0)) != 0:
        raise FateError(
            f"image_history=True was given with the encoder {chosen}, whose cells without events are not 0; give"
            " another encoder, such as pillars"
        )
    history = ImageHistory(int(image.channels), bool(chosen_options.get("length_affine"))) if image_history else None
    channels = int(image.channels) + bool(chosen_options.get("length_affine"))
    if image_history or chosen_options.get("length_affine"):
        image = WindowLength(image)
    frame = frame_of(sensor, int(image.stride), stride, stem, float(getattr(image, "empty_value", 0.0)))
    backbone, neck, head, memory = build(frame, channels, len(given), **chosen_options)
    description = {
        "name": name,
        "classes": list(given),
        "sensor": [int(side) for side in frame.sensor],
        "encoder": chosen,
        "encoder_options": settings,
        "stem": stem,
        "options": {**options, **({"image_history": True} if image_history else {})},
    }
    return Detector(image, backbone, neck, head, frame, given, memory, description, history)


def has_s5(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a model with these options remembers by S5, and computes it with its own state."""
    model = model_named(name)
    chosen = {"memory": "s5", "official_state": False, **model.options, **options}
    return model.family == "maxvit_yolox" and chosen["memory"] == "s5" and not chosen["official_state"]


def rebuild(description: Mapping[str, Any]) -> Detector:
    """Build a detector with random weights from the ``description`` of another."""
    requested = dict(description)
    options = requested.pop("options", {})
    return build_model(**requested, **options)


def model_named(name: str) -> Entry:
    """The entry of ``MODELS``; for an unknown name, the error suggests the most similar one."""
    if name not in MODELS:
        raise FateError(f"model {name!r} was asked for; there are {', '.join(MODELS)}{suggest_name(name, MODELS)}")
    return MODELS[name]


def list_models(
    classes: Sequence[str] = ("car", "pedestrian"),
    sensor: Sequence[int] = (240, 304),
    progress: Progress | None = None,
) -> list[Entry]:
    """All detectors, with parameters and operations for these classes and this sensor.

    Args:
        classes: class names.
        sensor: (height, width) of the events, pixels.
        progress: called with the number of models that are done, and the number of all.
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
    """Operations per window (see ``table``), counted on the device ``meta``, which computes only shapes."""
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
