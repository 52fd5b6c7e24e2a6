"""Import checkpoints of the public projects: ``fate import-checkpoint SRC OUT``.

Three layouts are known, recognised by their names:

    mdl.backbone. …                     RVT, ssms_event_cameras (S5-ViT)      one Lightning file
    net_backbone.pth::_net. …           EvRT-DETR                             a folder of files
    model.backbone.model.embedder. …    RT-DETR on COCO, in transformers      one file, for the parts that fit

The first two are whole detectors: every entry of ours comes from the file, or the file is refused. RT-DETR (Zhao et al.
2024) trained on COCO is an initialisation for detectors of events: all fits but the parts that depend on the three
colour channels or on COCO's classes. Class names and sensor, which tensors do not hold, are inferred from the published
models, and can be given instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fate.errors import FateError
from fate.models.backbones import presnet
from fate.models.checkpoints.layouts import EVRT_DETR, EVRT_DETR_IGNORED, RVT, TRANSFORMERS, rename, rename_entries
from fate.models.checkpoints.public_files import read_tensors
from fate.models.checkpoints.saved import fill, is_own, save_model
from fate.models.detector import Detector
from fate.models.zoo import build_model

#: Classes and sensor of the public models by the number of classes: Gen1, and 1Mpx at half its resolution.
PUBLISHED: dict[int, tuple[tuple[str, ...], tuple[int, int]]] = {
    2: (("car", "pedestrian"), (240, 304)),
    3: (("pedestrian", "two wheeler", "car"), (360, 640)),
}
#: Models of RVT's and S5-ViT's layout by the channels of the first stage, with options; RVT-T has one head there.
SIZES: dict[int, tuple[str, dict[str, Any]]] = {
    64: ("b", {}),
    48: ("s", {}),
    32: ("s", {"dims": [32, 64, 128, 256], "head_dim": 32}),
}
#: Detectors that take weights of RT-DETR in transformers, by the depth of the PResNet; the first is the default.
TRANSFORMERS_DETECTORS = {50: ("evrt-detr-b", "fate-e"), 18: ("evrt-detr-s",)}
#: Pattern of a name in the layout of transformers; without the prefix if a model was saved without its heads.
TRANSFORMERS_MARK = r"(model\.)?backbone\.model\.embedder\."
#: Our entries that RT-DETR cannot fill: encoder and memory, which it does not have, the first convolution, whose inputs
#: are an encoder's channels instead of colours, and all that has one value for each class.
FRESH = r"(?:encoder|memory)\.|backbone\.stem\.0\.conv\.|head\.(?:cell_scores|scores|denoising_classes)\."


class Imported(NamedTuple):
    """A detector with the weights of a public checkpoint."""

    detector: Detector
    layout: str  #: the project of the file
    taken: int  #: number of entries of the detector that come from the file
    fresh: tuple[str, ...]  #: entries of the detector that keep their random initialisation
    unused: tuple[str, ...]  #: entries of the file that no part of the detector uses


class _Request(NamedTuple):
    """The tensors of a file and the arguments of ``import_checkpoint``."""

    source: str | Path
    entries: Mapping[str, Tensor]
    classes: Sequence[str] | None
    sensor: Sequence[int] | None
    model: str | None


def import_checkpoint(
    source: str | Path,
    target: str | Path | None = None,
    *,
    classes: Sequence[str] | None = None,
    sensor: Sequence[int] | None = None,
    model: str | None = None,
) -> Imported:
    """Read a public checkpoint and, with ``target``, write it as ours.

    Args:
        source: a file, or EvRT-DETR's folder.
        target: a .safetensors file to write.
        classes: their names. None for those of Gen1 if the checkpoint has two, of 1Mpx if it has three; required for
            RT-DETR on COCO.
        sensor: (height, width) in pixels. None for Gen1's, or half of 1Mpx's, if the classes are those.
        model: for RT-DETR on COCO, the detector to build: "fate-e" for the one with pillars. None for the detector of
            the checkpoint.
    """
    if is_own(source):
        raise FateError(f"{source}: written by FATE, so it needs no import; fate.load_model reads it as it is")
    names = (classes,) if isinstance(classes, str) else classes
    request = _Request(source, read_tensors(source), names, sensor, model)
    if any(name.startswith("mdl.backbone.") for name in request.entries):
        result = _from_rvt(request)
    elif any(re.match(r"net_\w+\.pth::", name) for name in request.entries):
        result = _from_evrt(request)
    elif any(re.match(TRANSFORMERS_MARK, name) for name in request.entries):
        result = _from_transformers(request)
    else:
        some = ", ".join(sorted(request.entries)[:3])
        raise FateError(
            f"{source}: names such as {some} belong to no known layout; expected a checkpoint of RVT,"
            " ssms_event_cameras, EvRT-DETR, or RT-DETR in the layout of transformers"
        )
    if target is not None:
        origin = {"from": Path(source).name, "layout": result.layout, "fresh": list(result.fresh)}
        save_model(result.detector, target, facts={"imported": origin})
    result.detector.eval()
    return result


def _from_rvt(request: _Request) -> Imported:
    """RVT's and S5-ViT's layout; shapes give size, memory and classes."""
    prefixes = {"backbone": "mdl.backbone.", "neck": "mdl.fpn.", "head": "mdl.yolox_head."}
    ours: dict[str, Tensor] = {}
    for part, prefix in prefixes.items():
        ours |= rename_entries(request.entries, RVT[part], prefix, f"{part}.")
    first = _rows(request, ours, "backbone.stages.0.downsample.conv.weight")
    if first not in SIZES:
        raise FateError(
            f"{request.source}: its first stage has {first} channels; expected 64 (base), 48 (small) or 32 (tiny): a"
            " file does not hold the number of attention heads of another size"
        )
    s5 = "backbone.stages.0.memory.ssm.eigenvalues" in ours
    size, sizes = SIZES[first]
    options = {**sizes, "official_state": True} if s5 else dict(sizes)
    count = _rows(request, ours, "head.class_predictions.0.weight")
    detector = _build(request, f"{'s5-vit' if s5 else 'rvt'}-{size}", count, options)
    fill(detector, request.source, ours)
    unused = (public for public in request.entries if not public.startswith(tuple(prefixes.values())))
    return Imported(detector, "ssms_event_cameras" if s5 else "RVT", len(ours), (), tuple(unused))


def _from_evrt(request: _Request) -> Imported:
    """EvRT-DETR's layout; of the two copies that training keeps, the averaged one (``net_ema_…``) is taken."""
    ours: dict[str, Tensor] = {}
    used: set[str] = set()
    for part, file in {"backbone": "backbone", "neck": "encoder", "head": "decoder", "memory": "temp_enc"}.items():
        prefix = f"net_ema_{file}.pth::"
        if not any(name.startswith(prefix) for name in request.entries):
            prefix = f"net_{file}.pth::"
        prefix += "_net." if part == "backbone" else ""
        entries = {
            name: value
            for name, value in request.entries.items()
            if name.startswith(prefix) and not re.match(EVRT_DETR_IGNORED, name.removeprefix(prefix))
        }
        used |= entries.keys()
        ours |= rename_entries(entries, EVRT_DETR[part], prefix, f"{part}.")
    deep = "backbone.stages.0.0.branch.2.conv.weight" in ours  # bottlenecks have three convolutions
    options = {} if any(name.startswith("memory.") for name in ours) else {"remember": False}
    count = _rows(request, ours, "head.cell_scores.weight")
    detector = _build(request, "evrt-detr-b" if deep else "evrt-detr-s", count, options)
    fill(detector, request.source, ours)
    unused = (public for public in request.entries if public not in used)
    return Imported(detector, "EvRT-DETR", len(ours), (), tuple(unused))


def _from_transformers(request: _Request) -> Imported:
    """RT-DETR in the layout of transformers, for the parts that fit."""
    ours = _transformers_entries(request)
    depth = _presnet_depth(ours)
    detectors = TRANSFORMERS_DETECTORS.get(depth, ())
    name = request.model or next(iter(detectors), "")
    if name not in detectors:
        known = "; ".join(f"{depth} ({', '.join(names)})" for depth, names in TRANSFORMERS_DETECTORS.items())
        raise FateError(
            f"{request.source}: an RT-DETR with PResNet-{depth} was given{f' for {name}' if name else ''};"
            f" expected one of depth {known}"
        )
    if not request.classes:
        raise FateError(
            f"{request.source}: RT-DETR on COCO has no classes of event data; give their names, such as car and"
            " pedestrian"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same file gives the same detector, including its random initialisation
        detector = _build(request._replace(model=None), name, len(request.classes), {})
    own = detector.state_dict()
    fresh = tuple(entry for entry in own if re.match(FRESH, entry))
    taken = {entry: value for entry, value in ours.items() if not re.match(FRESH, entry)}
    # Frozen norms have not counted their batches; the count changes nothing in ours.
    counters = {entry for entry in own if entry.endswith(".num_batches_tracked") and entry not in taken}
    fill(detector, request.source, taken, {*fresh, *counters})
    unused = (public for public in request.entries if re.match(FRESH, rename_transformers(public)))
    return Imported(detector, "RT-DETR in transformers", len(taken), fresh, tuple(unused))


def rename_transformers(public: str) -> str:
    """Our name of an entry of transformers. Parts of a matrix that is one here end in #0, #1, #2.

    Files from before version 5 of transformers have other names in the attention layers (``encoder.encoder.0`` instead
    of ``encoder.aifi.0``, ``fc1`` instead of ``mlp.fc1``), and the decoder's heads have a second name at the top.
    """
    inside = re.sub(r"^(class_embed|bbox_embed)\.", r"decoder.\1.", public.removeprefix("model."))
    if inside.startswith("backbone.model."):
        return "backbone." + rename(inside.removeprefix("backbone.model."), TRANSFORMERS["backbone"])
    if inside.startswith(("encoder.", "encoder_input_proj.")):
        return "neck." + rename(inside, TRANSFORMERS["neck"])
    return "head." + rename(inside, TRANSFORMERS["head"])


def _transformers_entries(request: _Request) -> dict[str, Tensor]:
    """All entries of a file by our names, with the parts of a matrix concatenated along the first axis."""
    parts: dict[str, dict[str, Tensor]] = {}
    for public, value in request.entries.items():
        name, _, part = rename_transformers(public).partition("#")
        parts.setdefault(name, {})[part] = value
    ours = {}
    for name, values in parts.items():
        try:
            ours[name] = (
                torch.cat([values[part] for part in sorted(values)]) if len(values) > 1 else values.popitem()[1]
            )
        except (RuntimeError, TypeError):
            shapes = ", ".join(str(tuple(value.shape)) for value in values.values())
            raise FateError(
                f"{request.source}: {name}: queries, keys and values of shapes {shapes} were found; expected equal ones"
            ) from None
    return ours


def _presnet_depth(ours: Mapping[str, Tensor]) -> int:
    """The depth of a PResNet by its blocks; an incomplete one counts as 18 or 50, and its names are checked later."""
    bottleneck = "backbone.stages.0.0.branch.2.conv.weight" in ours
    present = {match.groups() for name in ours if (match := re.match(r"backbone\.stages\.(\d)\.(\d+)\.", name))}
    blocks = tuple(sum(stage == str(number) for stage, _ in present) for number in range(4))
    depths = (depth for depth, known in presnet.BLOCKS.items() if known == blocks and (depth >= 50) == bottleneck)
    return next(depths, 50 if bottleneck else 18)


def _build(request: _Request, name: str, count: int, options: Mapping[str, Any]) -> Detector:
    """The detector of a checkpoint with ``count`` classes, with random weights."""
    if request.model not in (None, name):
        raise FateError(
            f"{request.source}: holds {name}, but {request.model} was requested; only weights of RT-DETR on COCO fit"
            " more than one model"
        )
    known, known_sensor = PUBLISHED.get(count, ((), None))
    classes = known if request.classes is None else tuple(request.classes)
    if request.classes is not None and len(classes) != count:
        raise FateError(
            f"{request.source}: has {count} classes; {len(classes)} were given ({', '.join(classes) or 'no names'})"
        )
    sensor = request.sensor or (known_sensor if classes == known else None)
    if not classes or sensor is None:
        raise FateError(
            f"{request.source}: has {count} classes ({', '.join(classes) or 'names unknown'}), not those of Gen1 or"
            " 1Mpx; give their names and the size of the sensor"
        )
    return build_model(name, classes, sensor, **options)


def _rows(request: _Request, ours: Mapping[str, Tensor], name: str) -> int:
    if name not in ours or not ours[name].ndim:
        raise FateError(f"{request.source}: {name} was not found under its public name; the checkpoint is incomplete")
    return len(ours[name])
