"""Import checkpoints of the public projects: ``fate import-checkpoint SRC OUT``.

Three layouts are known. The names of the entries show which one a file has:

    mdl.backbone. …                     RVT, ssms_event_cameras (S5-ViT)      one Lightning file
    net_backbone.pth::_net. …           EvRT-DETR                             a folder of files
    model.backbone.model.embedder. …    RT-DETR on COCO, in transformers      one file

The first two are whole detectors: every entry of ours must come from the file. RT-DETR (Zhao et al. 2024) trained on
COCO initialises detectors of events: all parts fit except those that depend on the three colour channels or on COCO's
classes. A checkpoint does not hold class names and sensor; by default they are those of the published models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor

from fate.errors import FateError
from fate.models.backbones import presnet
from fate.models.checkpoints.public_files import read_tensors
from fate.models.checkpoints.saved import fill, is_own, save_model
from fate.models.detector import Detector
from fate.models.zoo import build_model

#: (pattern, replacement) pairs, as in ``re.sub``.
Rules = tuple[tuple[str, str], ...]
#: Rules of ``layouts.yaml`` by public layout and part of our detector; they apply to names without the part's prefix.
_TABLES: dict[str, dict[str, Rules]] = {
    layout: {part: tuple(map(tuple, rules)) for part, rules in parts.items()}
    for layout, parts in yaml.safe_load(Path(__file__).with_name("layouts.yaml").read_text(encoding="utf-8")).items()
}
RVT, EVRT_DETR = _TABLES["RVT"], _TABLES["EVRT_DETR"]
#: Neck and head have the names of EvRT-DETR after these rules.
TRANSFORMERS = {
    part: rules if part == "backbone" else (*rules, *EVRT_DETR[part]) for part, rules in _TABLES["TRANSFORMERS"].items()
}
#: Entries of EvRT-DETR's encoder that are no weights: the position table of its one image size.
EVRT_DETR_IGNORED = r"^pos_embed\d$"
#: Classes and sensor of the public models by the number of classes: Gen1, and 1Mpx at half its resolution.
PUBLISHED: dict[int, tuple[tuple[str, ...], tuple[int, int]]] = {
    2: (("car", "pedestrian"), (240, 304)),
    3: (("pedestrian", "two wheeler", "car"), (360, 640)),
}
#: Sizes of RVT and S5-ViT with their options, by the channels of the first stage; RVT-T has one head there.
SIZES: dict[int, tuple[str, dict[str, Any]]] = {
    64: ("b", {}),
    48: ("s", {}),
    32: ("s", {"dims": [32, 64, 128, 256], "head_dim": 32}),
}
RVT_PREFIXES = {"backbone": "mdl.backbone.", "neck": "mdl.fpn.", "head": "mdl.yolox_head."}
EVRT_FILES = {"backbone": "backbone", "neck": "encoder", "head": "decoder", "memory": "temp_enc"}
#: Detectors that take weights of RT-DETR in transformers, by the depth of the PResNet; the first is the default.
TRANSFORMERS_DETECTORS = {50: ("evrt-detr-b", "fate-e"), 18: ("evrt-detr-s",)}
#: Pattern of a name in the layout of transformers; the prefix is missing if a model was saved without its heads.
TRANSFORMERS_MARK = r"(model\.)?backbone\.model\.embedder\."
#: Our entries that RT-DETR cannot fill: encoder and memory, which it does not have, the first convolution, whose inputs
#: are colours, and everything that has one value per class.
FRESH = r"(?:encoder|memory)\.|backbone\.stem\.0\.conv\.|head\.(?:cell_scores|scores|denoising_classes)\."
NOTHING_FRESH = r"(?!)"


class Imported(NamedTuple):
    """A detector with the weights of a public checkpoint."""

    detector: Detector
    layout: str  #: the project of the file
    taken: int  #: number of entries of the detector that come from the file
    fresh: tuple[str, ...]  #: entries of the detector that keep their random initialisation
    unused: tuple[str, ...]  #: entries of the file that no part of the detector uses


class _Layout(NamedTuple):
    """A checkpoint in the terms of our detectors."""

    name: str  #: of the project
    model: str
    classes: int
    options: Mapping[str, Any]  #: of the model
    fresh: str = NOTHING_FRESH  #: pattern of our entries that keep their random initialisation


def import_checkpoint(
    source: str | Path,
    target: str | Path | None = None,
    *,
    classes: Sequence[str] | None = None,
    sensor: Sequence[int] | None = None,
    model: str | None = None,
) -> Imported:
    """Read a public checkpoint and, if ``target`` is given, save it as one of ours.

    Args:
        source: a file, or EvRT-DETR's folder.
        target: a .safetensors file to write.
        classes: class names. None for those of Gen1 if the checkpoint has two classes, of 1Mpx if it has three;
            required for RT-DETR on COCO.
        sensor: (height, width) in pixels. None for Gen1's, or half of 1Mpx's, if the classes are those.
        model: for RT-DETR on COCO, the detector to build, such as "fate-e". None for the detector of the checkpoint.
    """
    if is_own(source):
        raise FateError(f"{source}: written by FATE, so it needs no import; fate.load_model reads it as it is")
    class_names = (classes,) if isinstance(classes, str) else classes
    entries = read_tensors(source)
    names = our_names(entries)
    ours = _rename(source, entries, names)
    if any(name.startswith("mdl.backbone.") for name in entries):
        layout = _rvt(source, ours)
    elif any(re.match(r"net_\w+\.pth::", name) for name in entries):
        layout = _evrt(source, ours)
    elif any(re.match(TRANSFORMERS_MARK, name) for name in entries):
        layout = _transformers(source, ours, class_names, model)
    else:
        raise FateError(
            f"{source}: names such as {', '.join(sorted(entries)[:3])} belong to no known layout; expected a checkpoint"
            " of RVT, ssms_event_cameras, EvRT-DETR, or RT-DETR in the layout of transformers"
        )
    if model not in (None, layout.model):
        raise FateError(
            f"{source}: holds {layout.model}, but {model} was requested; only weights of RT-DETR on COCO fit more than"
            " one model"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same file gives the same detector, including its random initialisation
        detector = _build(source, layout, class_names, sensor)
    own = detector.state_dict()
    fresh = tuple(entry for entry in own if re.match(layout.fresh, entry))
    taken = {entry: value for entry, value in ours.items() if not re.match(layout.fresh, entry)}
    # RT-DETR's frozen norms do not count their batches; the count has no effect in ours.
    counters = {entry for entry in own if entry.endswith(".num_batches_tracked") and entry not in taken}
    fill(detector, source, taken, {*fresh, *(counters if fresh else ())})
    unused = tuple(public for public in entries if public not in names or re.match(layout.fresh, names[public]))
    result = Imported(detector, layout.name, len(taken), fresh, unused)
    if target is not None:
        origin = {"from": Path(source).name, "layout": layout.name, "fresh": list(fresh)}
        save_model(detector, target, facts={"imported": origin})
    detector.eval()
    return result


def our_names(entries: Mapping[str, Any]) -> dict[str, str]:
    """Our names of public entries; entries that a detector does not have are left out.

    If a matrix of ours is stored in parts, the names of the parts end in #0, #1, #2. Of the two copies that EvRT-DETR's
    training keeps, the averaged one (``net_ema_…``) is taken.
    """
    if any(re.match(TRANSFORMERS_MARK, name) for name in entries):
        return {name: rename_transformers(name) for name in entries}
    prefixes = [(prefix, part, RVT[part]) for part, prefix in RVT_PREFIXES.items()]
    for part, file in EVRT_FILES.items():
        averaged = any(name.startswith(f"net_ema_{file}.pth::") for name in entries)
        inside = "_net." if part == "backbone" else ""
        prefixes.append((f"net_{'ema_' if averaged else ''}{file}.pth::{inside}", part, EVRT_DETR[part]))
    return {
        name: f"{part}.{rename(name.removeprefix(prefix), rules)}"
        for prefix, part, rules in prefixes
        for name in entries
        if name.startswith(prefix) and not re.match(EVRT_DETR_IGNORED, name.removeprefix(prefix))
    }


def rename(name: str, rules: Rules) -> str:
    """Apply every rule whose pattern matches, in the order of the rules."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def rename_transformers(public: str) -> str:
    """Our name of an entry in the layout of transformers.

    Files from before version 5 have other names in the attention layers (``encoder.encoder.0`` instead of
    ``encoder.aifi.0``), and a second name without prefix for the heads of the decoder.
    """
    inside = re.sub(r"^(class_embed|bbox_embed)\.", r"decoder.\1.", public.removeprefix("model."))
    if inside.startswith("backbone.model."):
        return "backbone." + rename(inside.removeprefix("backbone.model."), TRANSFORMERS["backbone"])
    part = "neck" if inside.startswith(("encoder.", "encoder_input_proj.")) else "head"
    return f"{part}." + rename(inside, TRANSFORMERS[part])


def _rename(source: str | Path, entries: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """The entries by our names, with the parts of a matrix concatenated along the first axis."""
    parts: dict[str, dict[str, Tensor]] = {}
    for public, ours in names.items():
        name, _, part = ours.partition("#")
        parts.setdefault(name, {})[part] = entries[public]
    renamed = {}
    for name, values in parts.items():
        try:
            ordered = [values[part] for part in sorted(values)]
            renamed[name] = torch.cat(ordered) if len(ordered) > 1 else ordered[0]
        except (RuntimeError, TypeError):
            shapes = ", ".join(str(tuple(value.shape)) for value in values.values())
            raise FateError(
                f"{source}: {name}: queries, keys and values of shapes {shapes} were found; expected equal ones"
            ) from None
    return renamed


def _rvt(source: str | Path, ours: Mapping[str, Tensor]) -> _Layout:
    """RVT or S5-ViT; shapes show size, memory and number of classes."""
    first = _rows(source, ours, "backbone.stages.0.downsample.conv.weight")
    if first not in SIZES:
        raise FateError(
            f"{source}: its first stage has {first} channels; expected 64 (base), 48 (small) or 32 (tiny): a file does"
            " not hold the number of attention heads of another size"
        )
    size, options = SIZES[first]
    classes = _rows(source, ours, "head.class_predictions.0.weight")
    if "backbone.stages.0.memory.ssm.eigenvalues" not in ours:
        return _Layout("RVT", f"rvt-{size}", classes, options)
    return _Layout("ssms_event_cameras", f"s5-vit-{size}", classes, {**options, "official_state": True})


def _evrt(source: str | Path, ours: Mapping[str, Tensor]) -> _Layout:
    """EvRT-DETR, with or without its memory."""
    options = {} if any(name.startswith("memory.") for name in ours) else {"remember": False}
    model = "evrt-detr-b" if _presnet_depth(ours) >= 50 else "evrt-detr-s"
    return _Layout("EvRT-DETR", model, _rows(source, ours, "head.cell_scores.weight"), options)


def _transformers(
    source: str | Path, ours: Mapping[str, Tensor], classes: Sequence[str] | None, model: str | None
) -> _Layout:
    """RT-DETR on COCO, for the requested model or the first that fits."""
    depth = _presnet_depth(ours)
    detectors = TRANSFORMERS_DETECTORS.get(depth, ())
    name = model or next(iter(detectors), "")
    if name not in detectors:
        known = "; ".join(f"{depth} ({', '.join(names)})" for depth, names in TRANSFORMERS_DETECTORS.items())
        raise FateError(
            f"{source}: an RT-DETR with PResNet-{depth} was given{f' for {name}' if name else ''};"
            f" expected one of depth {known}"
        )
    if not classes:
        raise FateError(
            f"{source}: RT-DETR on COCO has no classes of event data; give their names, such as car and pedestrian"
        )
    return _Layout("RT-DETR in transformers", name, len(classes), {}, FRESH)


def _presnet_depth(ours: Mapping[str, Tensor]) -> int:
    """The depth of a PResNet by its blocks; an incomplete one counts as 18 or 50, and its names are checked later."""
    bottleneck = "backbone.stages.0.0.branch.2.conv.weight" in ours
    present = {match.groups() for name in ours if (match := re.match(r"backbone\.stages\.(\d)\.(\d+)\.", name))}
    blocks = tuple(sum(stage == str(number) for stage, _ in present) for number in range(4))
    depths = (depth for depth, known in presnet.BLOCKS.items() if known == blocks and (depth >= 50) == bottleneck)
    return next(depths, 50 if bottleneck else 18)


def _build(
    source: str | Path, layout: _Layout, classes: Sequence[str] | None, sensor: Sequence[int] | None
) -> Detector:
    """The detector of a checkpoint, with random weights."""
    count = layout.classes
    known, known_sensor = PUBLISHED.get(count, ((), None))
    names = known if classes is None else tuple(classes)
    if classes is not None and len(names) != count:
        raise FateError(f"{source}: has {count} classes; {len(names)} were given ({', '.join(names) or 'no names'})")
    sensor = sensor or (known_sensor if names == known else None)
    if not names or sensor is None:
        raise FateError(
            f"{source}: has {count} classes ({', '.join(names) or 'names unknown'}), not those of Gen1 or 1Mpx; give"
            " their names and the size of the sensor"
        )
    return build_model(layout.model, names, sensor, **layout.options)


def _rows(source: str | Path, ours: Mapping[str, Tensor], name: str) -> int:
    if name not in ours or not ours[name].ndim:
        raise FateError(f"{source}: {name} was not found under its public name; the checkpoint is incomplete")
    return len(ours[name])
