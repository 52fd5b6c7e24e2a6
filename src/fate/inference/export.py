"""Exports a detector as an ONNX file that runs without FATE and without PyTorch.

    done = fate.export("fate-s.safetensors", "fate-s.onnx")
    done.differences.boxes        # pixels, the largest over 20 windows

The file holds one step: a window of each stream and the state in, predictions and the next state out
(``step_graph.py``). It is compared with PyTorch before it gets its name (``export_check.py``), and its metadata
describes it. ``docs/guides/export.md`` shows how to run it.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fate.errors import PACKAGES, FateError, missing_packages, warn
from fate.events.window import window_us
from fate.inference.export_check import Differences, clip, compare, refuse_above
from fate.inference.loading import Model, bundled_weights, load_trained
from fate.inference.step_graph import CELLS, StepGraph, to_onnx
from fate.inference.stream import StreamingDetector
from fate.models.detector import CANONICAL_US, Detector
from fate.models.table import MODELS
from fate.models.zoo import build_model
from fate.progress import Progress
from fate.text import suggest_name
from fate.version import __version__
from fate.whole_files import Draft, Target, disk_faults, find_target

if TYPE_CHECKING:
    import onnx
    from onnx import ModelProto

#: The first version of ONNX's operators that suffices, and the last that the exporter can write.
FIRST_OPSET, LAST_OPSET = 18, 23
#: Fewest windows of a comparison; fewer hardly test the state.
LEAST_STEPS = 20
#: Classes and sensor of a model with fresh weights unless given.
CLASSES, SENSOR = ("car", "pedestrian"), (240, 304)


@dataclass(frozen=True)
class Exported:
    """The written file, and its differences from PyTorch."""

    path: Path
    opset: int
    inputs: dict[str, tuple[int | str, ...]]  #: shapes by name; "events" where any number may be given
    outputs: dict[str, tuple[int | str, ...]]
    steps: int  #: windows of each stream that were compared
    hz: float
    differences: Differences
    weights: str = ""  #: description of the weights


def export(
    model: Model,
    path: str | os.PathLike[str],
    *,
    streams: int = 1,
    with_encoder: bool = False,
    recording: str | os.PathLike[str] | None = None,
    hz: float = 20.0,
    steps: int = LEAST_STEPS,
    opset: int = FIRST_OPSET,
    sensor: Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write one step of a detector as ONNX. If the comparison with PyTorch fails, no file is written or replaced.

    Args:
        model: a ``.safetensors`` file, a detector, or a model's name: its bundled weights if it has some, else fresh
            ones (with a warning).
        path: the file, which ends in ``.onnx``.
        streams: B, windows in a step.
        with_encoder: take events instead of the encoder's image; for models with pillars.
        recording: for the comparison; None for synthetic events.
        hz: windows per second of the comparison. The graph takes any rate.
        steps: windows of each stream to compare, 20 or more.
        opset: version of ONNX's operators.
        sensor, classes: of a model with fresh weights; (240, 304) and ("car", "pedestrian") by default.
        fresh: use fresh weights although the name has bundled ones.
        progress: called with (compared windows, windows in all).
    """
    target = _check(path, streams, hz, steps, opset)
    found, weights = _detector(model, sensor, classes, fresh)
    detector = copy.deepcopy(found).cpu().float().eval()
    import onnx  # noqa: PLC0415  (an optional package)

    with Draft(target) as draft:
        batches = clip(recording, detector.sensor, hz, steps, streams)
        step = StepGraph(detector, streams, with_encoder)
        onnx_model = _with_metadata(to_onnx(step, opset), step, detector)
        with disk_faults(target):
            onnx.save(onnx_model, draft.path)
        onnx.checker.check_model(draft.path, full_check=True)
        differences = compare(draft.path, step, detector, batches, progress)
        refuse_above(differences)
    graph = onnx_model.graph
    return Exported(Path(path), opset, _shapes(graph.input), _shapes(graph.output), steps, hz, differences, weights)


def _check(path: str | os.PathLike[str], streams: int, hz: float, steps: int, opset: int) -> Target:
    """Check all arguments before anything is computed."""
    if Path(path).suffix != ".onnx":
        raise FateError(f"{path}: a graph was to be written under this name; expected one that ends in .onnx")
    target = find_target(path, seeks=True)
    window_us(hz)
    for name, value, least in (("streams", streams, 1), ("steps", steps, LEAST_STEPS)):
        if value < least:
            raise FateError(f"{name}={value} was given; expected {least} or more")
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        raise FateError(f"opset={opset} was given; expected {FIRST_OPSET} to {LAST_OPSET}")
    missing = [name for name in PACKAGES["export"] if find_spec(name) is None]
    if missing:
        raise missing_packages("export", missing)
    return target


def _detector(
    model: Model, sensor: Sequence[int] | None, classes: Sequence[str] | None, fresh: bool
) -> tuple[Detector, str]:
    """The detector, and a description of its weights."""
    model = model.model if isinstance(model, StreamingDetector) else model
    name = "a detector" if isinstance(model, Detector) else str(model)
    bundled = name in bundled_weights()
    if name in MODELS and (fresh or not bundled):
        return _fresh(name, sensor, classes), f"{name}, fresh"
    if fresh:
        raise FateError(f"fresh weights of {name} were asked for; only a model's name gives them: {', '.join(MODELS)}")
    if sensor is not None or classes is not None:
        way = "pass fresh=True for fresh ones" if bundled else "only a model's name takes them"
        raise FateError(f"a sensor or classes were given for {name}; weights have their own, {way}")
    if isinstance(model, Detector):
        return model, "those of the detector given"
    if not bundled and not Path(model).exists():
        raise FateError(
            f"{model} was given; expected a .safetensors file, or the name of a model: {', '.join(MODELS)}"
            f"{suggest_name(name, MODELS)}"
        )
    return load_trained(model), f"{name}, trained and bundled" if bundled else name


def _fresh(name: str, sensor: Sequence[int] | None, classes: Sequence[str] | None) -> Detector:
    warn(f"{name}: fresh weights, which detect nothing; give a .safetensors file to export what was trained")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_model(name, classes or CLASSES, sensor or SENSOR)


def _with_metadata(model: ModelProto, step: StepGraph, detector: Detector) -> ModelProto:
    """The model with metadata that its users need, as JSON under a few names."""
    import onnx  # noqa: PLC0415  (an optional package)

    kept = [output for output in model.graph.output if output.name != CELLS]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    model.producer_name, model.producer_version, model.graph.name = "fate", __version__, "step"
    facts = {
        "fate.model": detector.description,
        "fate.classes": list(detector.classes),
        "fate.sensor": list(detector.sensor),
        "fate.canonical_hz": 1e6 / CANONICAL_US,
        "fate.state_pairs": step.state_pairs,
    }
    onnx.helper.set_model_props(model, {name: json.dumps(fact) for name, fact in facts.items()})
    return model


def _shapes(values: Sequence[onnx.ValueInfoProto]) -> dict[str, tuple[int | str, ...]]:
    return {
        value.name: tuple(side.dim_param or side.dim_value for side in value.type.tensor_type.shape.dim)
        for value in values
    }
