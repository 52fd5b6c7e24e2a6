"""The detectors by name.

    model = build_model("fate-s", classes=("car", "pedestrian"), sensor=(240, 304))

Three families (functions below) and, for each name, what differs. The encoder is one of them: ``fate-s`` is
``s5-vit-b`` with pillars, and any other encoder can be asked for (``encoder="voxel"``) with its own arguments
(``encoder_options={"bins": 9}``). The ablations of the paper are arguments of the pillar encoder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from fate.encoding.grids import GRIDS
from fate.encoding.pillars import PillarEncoder
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
from fate.text import suggest_name

PILLARS = "pillars"
#: What an encoder can be called.
ENCODERS = (PILLARS, *GRIDS)


class Parts(NamedTuple):
    """What ``build_model`` has settled before a family is asked."""

    frame: Callable[[int], Frame]  #: by the stride of the backbone's first convolution
    channels: int  #: of the encoder's image
    classes: int


class Family(NamedTuple):
    """All of a detector but its encoder."""

    frame: Frame
    backbone: nn.Module
    neck: nn.Module
    head: nn.Module
    memory: nn.Module | None = None


class Model(NamedTuple):
    """A name's entry: one line on what it is, its family with sizes, its encoder."""

    about: str
    family: Callable[..., Family]
    encoder: str
    encoder_options: Mapping[str, Any] = {}


def maxvit_yolox(
    parts: Parts,
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
) -> Family:
    """RVT and S5-ViT: attention with a memory in every stage, YOLOX's neck and head.

    Args:
        parts: see there.
        dims: channels of the four stages.
        memory: "lstm" (RVT) or "s5" (S5-ViT).
        official_state: S5 as the public code computes it, for its checkpoints.
        bottlenecks: in each CSP layer of the neck.
        head_dim: channels of one head of attention; None for two heads in the first stage that attends.
        kinds: what each stage does before it remembers, see ``maxvit.Kind``.
        mlp_ratio: channels inside an MLP over those around it.
        depthwise: for small models on CPUs: neck and head filter each channel by itself, with an activation that needs
            no exp, and the stem's kernel is as small as its stride allows (with pillars of two pixels 3 instead of 7).
        head_width: channels inside the detection head; None for a quarter of the last stage's.
        full_head: a head of full convolutions all the same: it learns better, for a third of a small model's time.
    """
    if official_state and memory != "s5":
        raise FateError(
            f"official_state=True was given for a model with memory={memory!r}; it belongs to S5 (s5-vit, fate-s)"
        )
    frame = parts.frame(4)
    activation: Activation = "hardswish" if depthwise else "silu"
    backbone = MaxViT(
        parts.channels, dims, memory, frame.stem_stride, frame.partition, head_dim, official_state, kinds,
        stem_kernel=max(2 * frame.stem_stride - 1, 3) if depthwise else 7, mlp_ratio=mlp_ratio,
    )  # fmt: skip
    neck = PAFPN(backbone.channels, bottlenecks, depthwise, activation)
    head = YOLOXHead(
        neck.channels, parts.classes, head_width, depthwise=depthwise and not full_head, activation=activation
    )
    return Family(frame, backbone, neck, head)


def get_yolox(parts: Parts, *, channels: int = 64, groups: int = 16, depths: Sequence[int] = (2, 2, 6, 2)) -> Family:
    """GET: attention among groups of time and polarity, ConvLSTM memories, YOLOX's neck and head.

    Args:
        parts: see there.
        channels: of the first stage.
        groups: of channels in the first stage.
        depths: blocks of each stage.
    """
    frame = parts.frame(4)
    backbone = GET(parts.channels, frame.stem_stride, channels, groups, depths)
    neck = PAFPN(backbone.channels)
    return Family(frame, backbone, neck, YOLOXHead(neck.channels, parts.classes))


def evrt_detr(
    parts: Parts,
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
) -> Family:
    """EvRT-DETR: RT-DETR with a memory between encoder and decoder.

    Args:
        parts: see there.
        depth, widths: of the PResNet.
        hidden, feedforward: width of everything behind it.
        expansion: of the CSP layers.
        layers, queries: of the decoder.
        remember: False for the detector of single windows, which the first stage of its two-stage training trains.
        recurrence: what the recurrent cell counts: ``"steps"``, as published, or ``"time"``.
    """
    frame = parts.frame(2)
    backbone = PResNet(parts.channels, depth, frame.stem_stride, widths)
    neck = HybridEncoder(backbone.channels, hidden, feedforward=feedforward, expansion=expansion)
    head = RtDetrHead(
        neck.channels, parts.classes, hidden=hidden, queries=queries, layers=layers, feedforward=feedforward
    )
    return Family(frame, backbone, neck, head, LatentMemory(neck.channels, recurrence=recurrence) if remember else None)


_SMALL = (48, 96, 192, 384)
_tiny = partial(
    maxvit_yolox,
    dims=(32, 64, 128, 256),
    kinds=("convolution", "attention", "attention", "attention"),
    head_dim=32,
    depthwise=True,
    head_width=96,
    full_head=True,
)
_nano = partial(
    maxvit_yolox,
    dims=(16, 32, 64, 224),
    kinds=("plain", "convolution", "global", "global"),
    mlp_ratio=0,
    depthwise=True,
    head_dim=32,
    head_width=48,
)
_evrt_s = partial(evrt_detr, depth=18, expansion=0.5, layers=3)
_evrt_tiny = partial(
    evrt_detr,
    depth=10,
    widths=(24, 64, 128, 320),  # parameters where pixels are few
    hidden=64,
    feedforward=256,
    expansion=0.5,
    layers=3,
    queries=100,
)

#: Every detector by its name.
MODELS: dict[str, Model] = {
    "fate-s": Model("S5-ViT-B with Pillar Encoding (FATE-S)", maxvit_yolox, PILLARS),
    "fate-e": Model("EvRT-DETR-B with Pillar Encoding (FATE-E)", evrt_detr, PILLARS),
    "s5-vit-b": Model("S5-ViT-B (Zubić et al. 2024), histograms", maxvit_yolox, "histogram"),
    "s5-vit-s": Model("S5-ViT-S, histograms", partial(maxvit_yolox, dims=_SMALL, bottlenecks=1), "histogram"),
    "rvt-b": Model("RVT-B (Gehrig & Scaramuzza 2023)", partial(maxvit_yolox, memory="lstm"), "histogram"),
    "rvt-s": Model("RVT-S", partial(maxvit_yolox, memory="lstm", dims=_SMALL, bottlenecks=1), "histogram"),
    "evrt-detr-b": Model("EvRT-DETR-B (Torbunov et al. 2025), PResNet-50", evrt_detr, "evrt-histogram"),
    "evrt-detr-s": Model("EvRT-DETR-S, PResNet-18", _evrt_s, "evrt-histogram"),
    "get-b": Model("GET (Peng et al. 2023), its detector inferred from the paper", get_yolox, "group-tokens"),
    "fate-s-tiny": Model("FATE-S for laptops", _tiny, PILLARS, {"channels": 32}),
    "s5-vit-tiny": Model("fate-s-tiny with histograms instead of pillars", _tiny, "histogram"),
    "fate-e-tiny": Model("FATE-E for laptops", _evrt_tiny, PILLARS, {"channels": 32}),
    "evrt-detr-tiny": Model("fate-e-tiny with histograms instead of pillars", _evrt_tiny, "evrt-histogram"),
    "fate-s-nano": Model("FATE-S, the smallest, for live use on a CPU", _nano, PILLARS, {"channels": 16}),
    "s5-vit-nano": Model("fate-s-nano with histograms instead of pillars", _nano, "histogram"),
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
    settings = {**(model.encoder_options if chosen == model.encoder else {}), **(encoder_options or {})}
    events_to_image = _encoder(chosen, sensor, settings)
    stride, empty_value = int(events_to_image.stride), float(getattr(events_to_image, "empty_value", 0.0))  # type: ignore[arg-type]

    def frame(full_stride: int) -> Frame:
        return frame_of(sensor, stride, full_stride, stem, empty_value)

    _check_options(name, [known for known in inspect.signature(model.family).parameters if known != "parts"], options)
    family = model.family(Parts(frame, int(events_to_image.channels), len(given)), **options)  # type: ignore[arg-type]
    description = {
        "name": name,
        "classes": list(given),
        "sensor": [int(side) for side in family.frame.sensor],
        "encoder": chosen,
        "encoder_options": settings,
        "stem": stem,
        "options": dict(options),
    }
    return Detector(events_to_image, family.backbone, family.neck, family.head, family.frame, given, family.memory,
                    description)  # fmt: skip


def rebuild(description: Mapping[str, Any]) -> Detector:
    """A detector with fresh weights from another's ``description``."""
    wanted = dict(description)
    options = wanted.pop("options", {})
    return build_model(**wanted, **options)


def model_named(name: str) -> Model:
    """An entry of ``MODELS``; a name that is not there is answered with the nearest."""
    if name not in MODELS:
        raise FateError(f"model {name!r} was asked for; there are {', '.join(MODELS)}{suggest_name(name, MODELS)}")
    return MODELS[name]


def _class_names(classes: Sequence[str]) -> tuple[str, ...]:
    try:
        given = (classes,) if isinstance(classes, str) else tuple(classes)
    except TypeError:
        given = ()
    if not given or len(set(given)) < len(given) or not all(isinstance(each, str) and each for each in given):
        raise FateError(f"classes {classes!r} were given; expected at least one, each with a name of its own")
    return given


def _encoder(name: str, sensor: Sequence[int], options: Mapping[str, Any]) -> nn.Module:
    if name not in ENCODERS:
        known = ", ".join(ENCODERS)
        raise FateError(f"encoder {name!r} was asked for; there are {known}{suggest_name(name, ENCODERS)}")
    encoder: Callable[..., nn.Module] = PillarEncoder if name == PILLARS else GRIDS[name]
    _check_options(name, list(inspect.signature(encoder).parameters)[1:], options)
    return encoder(sensor, **options)


def _check_options(name: str, known: Sequence[str], options: Mapping[str, Any]) -> None:
    for option, value in options.items():
        if option not in known:
            takes = ", ".join(known) or "no options"
            raise FateError(f"{option}={value!r} was given; {name} takes {takes}{suggest_name(option, known)}")
