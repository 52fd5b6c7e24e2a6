"""Checkpoints of the public projects as detectors of ours: ``fate import-checkpoint SRC OUT``.

Three layouts are known, told apart by their names:

    mdl.backbone. …                     RVT, ssms_event_cameras (S5-ViT)      one Lightning file
    net_backbone.pth::_net. …           EvRT-DETR                             a folder of files
    model.backbone.model.embedder. …    RT-DETR on COCO, in transformers      one file, for the parts that fit

The first two are whole detectors: every entry of ours comes from the file, or the file is refused. What tensors do not
say (names of classes, the sensor) is inferred from what the projects publish, and can be given instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fate.errors import FateError
from fate.models import transformers_layout
from fate.models.backbones import maxvit, presnet
from fate.models.checkpoints import check_entries, is_own, save_model
from fate.models.detector import Detector
from fate.models.heads import rtdetr, yolox
from fate.models.necks import hybrid_encoder, latent_memory, pafpn
from fate.models.public_files import read_tensors
from fate.models.renaming import Rules, renamed
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


class Imported(NamedTuple):
    """A detector with foreign weights."""

    detector: Detector
    layout: str  #: which project's
    taken: int  #: entries of the detector that come from the file
    fresh: tuple[str, ...]  #: those that do not and begin anew
    unused: tuple[str, ...]  #: entries of the file that no part of the detector wants


class _Given(NamedTuple):
    """What there is to go by: the file's tensors, and what the user says of them."""

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
        classes: their names. None for those of Gen1 where the checkpoint has two, of 1Mpx where it has three; for
            RT-DETR on COCO they have to be given.
        sensor: (height, width) in pixels. None for Gen1's, or half of 1Mpx's, where the classes are those.
        model: for RT-DETR on COCO, the detector its weights go into: "fate-e" for the one with pillars. None for the
            one the checkpoint is of.
    """
    if is_own(source):
        raise FateError(f"{source}: written by FATE, so it needs no import; fate.load_model reads it as it is")
    names = (classes,) if isinstance(classes, str) else classes
    given = _Given(source, read_tensors(source), names, sensor, model)
    if any(name.startswith("mdl.backbone.") for name in given.entries):
        result = _from_rvt(given)
    elif any(re.match(r"net_\w+\.pth::", name) for name in given.entries):
        result = _from_evrt(given)
    elif any(re.match(transformers_layout.MARK, name) for name in given.entries):
        result = _from_transformers(given)
    else:
        some = ", ".join(sorted(given.entries)[:3])
        raise FateError(
            f"{source}: names such as {some} belong to no layout known here; expected a checkpoint of RVT,"
            " ssms_event_cameras, EvRT-DETR, or RT-DETR in the layout of transformers"
        )
    if target is not None:
        origin = {"from": Path(source).name, "layout": result.layout, "fresh": list(result.fresh)}
        save_model(result.detector, target, facts={"imported": origin})
    return result


def _from_rvt(given: _Given) -> Imported:
    """RVT's and S5-ViT's layout: size, memory and classes are seen in the shapes."""
    prefixes = ("mdl.backbone.", "mdl.fpn.", "mdl.yolox_head.")
    ours = {
        **_part(given.entries, prefixes[0], "backbone.", maxvit.OFFICIAL_NAMES),
        **_part(given.entries, prefixes[1], "neck.", pafpn.OFFICIAL_NAMES),
        **_part(given.entries, prefixes[2], "head.", yolox.OFFICIAL_NAMES),
    }
    first = _rows(given, ours, "backbone.stages.0.downsample.conv.weight")
    if first not in SIZES:
        raise FateError(
            f"{given.source}: its first stage has {first} channels; expected 64 (base), 48 (small) or 32 (tiny), since"
            " a file does not say how many heads of attention another size has"
        )
    s5 = "backbone.stages.0.memory.ssm.eigenvalues" in ours
    size, sizes = SIZES[first]
    name, options = f"{'s5-vit' if s5 else 'rvt'}-{size}", dict(sizes)
    if s5:
        options["official_state"] = True
    detector = _built(given, name, _rows(given, ours, "head.class_predictions.0.weight"), options)
    _fill(given, detector, ours)
    unused = (public for public in given.entries if not public.startswith(prefixes))
    return Imported(detector, "ssms_event_cameras" if s5 else "RVT", len(ours), (), tuple(unused))


def _from_evrt(given: _Given) -> Imported:
    """EvRT-DETR's layout; of the two copies that training keeps, the averaged one (``net_ema_…``) is the result."""
    ours: dict[str, Tensor] = {}
    wanted: set[str] = set()
    for part, inside, prefix, rules, ignored in (
        ("backbone", "_net.", "backbone.", presnet.OFFICIAL_NAMES, ()),
        ("encoder", "", "neck.", hybrid_encoder.OFFICIAL_NAMES, hybrid_encoder.OFFICIAL_IGNORED),
        ("decoder", "", "head.", rtdetr.OFFICIAL_NAMES, ()),
        ("temp_enc", "", "memory.", latent_memory.OFFICIAL_NAMES, ()),
    ):
        averaged = f"net_ema_{part}.pth::"
        begins = averaged if any(name.startswith(averaged) for name in given.entries) else f"net_{part}.pth::"
        begins += inside
        of_part = {
            name: value
            for name, value in given.entries.items()
            if name.startswith(begins) and not any(re.match(table, name.removeprefix(begins)) for table in ignored)
        }
        wanted |= of_part.keys()
        ours |= _part(of_part, begins, prefix, rules)
    deep = "backbone.stages.0.0.branch.2.conv.weight" in ours  # bottlenecks have three convolutions
    options = {} if any(name.startswith("memory.") for name in ours) else {"remember": False}
    count = _rows(given, ours, "head.cell_scores.weight")
    detector = _built(given, "evrt-detr-b" if deep else "evrt-detr-s", count, options)
    _fill(given, detector, ours)
    unused = (public for public in given.entries if public not in wanted)
    return Imported(detector, "EvRT-DETR", len(ours), (), tuple(unused))


def _from_transformers(given: _Given) -> Imported:
    """RT-DETR in the layout of transformers, for the parts that fit; see ``transformers_layout``."""
    ours = transformers_layout.our_entries(given.source, given.entries)
    depth = transformers_layout.depth_of(ours)
    detectors = transformers_layout.DETECTORS.get(depth, ())
    name = given.model or next(iter(detectors), "")
    if name not in detectors:
        known = "; ".join(f"{depth} ({', '.join(names)})" for depth, names in transformers_layout.DETECTORS.items())
        raise FateError(
            f"{given.source}: an RT-DETR with PResNet-{depth} was given{f' for {given.model}' if given.model else ''};"
            f" expected one of depth {known}"
        )
    if not given.classes:
        raise FateError(
            f"{given.source}: RT-DETR on COCO knows no classes of event data; say which there will be, such as car and"
            " pedestrian"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same file gives the same detector, its fresh parts too
        detector = _built(given._replace(model=None), name, len(given.classes), {})
    own = detector.state_dict()
    fresh = tuple(entry for entry in own if transformers_layout.is_fresh(entry))
    taken = {entry: value for entry, value in ours.items() if not transformers_layout.is_fresh(entry)}
    # Frozen norms have not counted their batches; the count changes nothing in ours.
    counters = {entry for entry in own if entry.endswith(".num_batches_tracked") and entry not in taken}
    _fill(given, detector, taken, {*fresh, *counters})
    unused = (public for public in given.entries if transformers_layout.is_fresh(transformers_layout.our_name(public)))
    return Imported(detector, "RT-DETR in transformers", len(taken), fresh, tuple(unused))


def _part(entries: Mapping[str, Tensor], begins: str, prefix: str, rules: Rules) -> dict[str, Tensor]:
    """The entries that begin so, by our names."""
    return {prefix + name: value for name, value in renamed(entries, rules, begins).items()}


def _built(given: _Given, name: str, count: int, options: Mapping[str, Any]) -> Detector:
    """The detector a checkpoint with ``count`` classes is of, with fresh weights."""
    if given.model not in (None, name):
        raise FateError(
            f"{given.source}: holds {name}, and {given.model} was asked for; only weights of RT-DETR on COCO go into a"
            " model of choice"
        )
    known, known_sensor = PUBLISHED.get(count, ((), None))
    classes = known if given.classes is None else tuple(given.classes)
    if given.classes is not None and len(classes) != count:
        raise FateError(
            f"{given.source}: has {count} classes; {len(classes)} were given ({', '.join(classes) or 'no names'})"
        )
    if not classes:
        raise FateError(f"{given.source}: has {count} classes, as no published model; give their names and the sensor")
    sensor = given.sensor or (known_sensor if classes == known else None)
    if sensor is None:
        raise FateError(
            f"{given.source}: which sensor saw its classes ({', '.join(classes)}) is not known; give its size, since"
            " they are not those of Gen1 or 1Mpx"
        )
    return build_model(name, classes, sensor, **options)


def _rows(given: _Given, ours: Mapping[str, Tensor], name: str) -> int:
    if name not in ours or not ours[name].ndim:
        raise FateError(f"{given.source}: {name} was not found under its public name; the checkpoint is not whole")
    return len(ours[name])


def _fill(given: _Given, detector: Detector, ours: Mapping[str, Tensor], fresh: Iterable[str] = ()) -> None:
    """Every entry of the detector but the fresh ones from ``ours``, in evaluation mode."""
    own = detector.state_dict()
    left = set(fresh)
    check_entries(given.source, ours, {name: value for name, value in own.items() if name not in left})
    for name, value in ours.items():
        if not bool(torch.isfinite(value).all()):
            raise FateError(f"{given.source}: {name} holds numbers that are not finite; the checkpoint is damaged")
    detector.load_state_dict({**own, **ours})
    detector.eval()
