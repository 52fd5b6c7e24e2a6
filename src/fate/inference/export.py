"""Exports a detector as an ONNX file that runs without FATE and without PyTorch.

    done = fate.export("fate-s.safetensors", "fate-s.onnx")
    done.differences.boxes        # pixels, the largest over 20 windows

The file holds one step: a window of each stream and the state in, predictions and the next state out
(``step_graph.py``). Its metadata describes it. ``docs/guides/export.md`` shows how to run it.

Before the file gets its name, boxes inside the sensor, scores and state are compared with PyTorch on the same windows,
each side with its own state. Both compute in float32 in different orders, so the last digits differ; differences above
``TOLERANCES`` mean that the graph is not the detector.

**Ties.** A DETR head selects its 300 best cells. If cells have nearly equal scores (exactly equal in an untrained model
without events), both sides may select different ones, and neither is wrong. PyTorch therefore uses the graph's
selection, and its own scores check it: the worst selected cell may score lower than the worst of the best cells only
within a tolerance.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.encoding.batch import EventBatch
from fate.errors import PACKAGES, FateError, missing_packages, warn
from fate.events.events import Events, Sensor
from fate.events.window import Window, WindowGrid, window_us
from fate.formats.opening import open_recording
from fate.inference import pillar_graph
from fate.inference.loading import Model, bundled_weights, load_trained
from fate.inference.step_graph import CELLS, Choice, StepGraph, to_onnx
from fate.inference.stream import StreamingDetector
from fate.models import state as states
from fate.models.boxes import clip_boxes
from fate.models.detector import Detector
from fate.models.outputs import Outputs
from fate.models.state import State
from fate.models.table import MODELS
from fate.models.zoo import build_model
from fate.progress import Progress
from fate.rates import CANONICAL_US
from fate.version import __version__
from fate.whole_files import Draft, disk_faults, find_target

#: The first version of ONNX's operators that suffices, and the last that the exporter can write.
FIRST_OPSET, LAST_OPSET = 18, 23
#: Fewest windows of a comparison; fewer hardly test the state.
LEAST_STEPS = 20
#: Classes and sensor of a model with fresh weights unless given.
CLASSES, SENSOR = ("car", "pedestrian"), (240, 304)
#: Seed of the synthetic events that are used without a recording.
SEED = 2


class Differences(NamedTuple):
    """The largest differences between a graph and PyTorch over all windows of a clip."""

    boxes: float  #: pixels, of coordinates clipped to the sensor
    scores: float  #: of classes and objectness, probabilities
    states: float  #: of a state tensor, relative to its largest value (or to 1, if that is larger)
    choice: float = 0.0  #: how much lower the cells selected by DETR score than the best ones, logits


#: Tolerances; differences of a few units in the last place are a hundredth of them or less.
TOLERANCES = Differences(boxes=0.05, scores=1e-4, states=1e-3, choice=1e-3)


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
    found, weights = _detector(model, sensor, classes, fresh)
    detector = copy.deepcopy(found).cpu().float().eval()
    import onnx  # noqa: PLC0415  (an optional package)

    with Draft(target) as draft:
        batches = clip(recording, detector.sensor, hz, steps, streams)
        step = StepGraph(detector, streams, with_encoder)
        onnx_model = to_onnx(step, opset)
        outputs_kept = [output for output in onnx_model.graph.output if output.name != CELLS]
        del onnx_model.graph.output[:]
        onnx_model.graph.output.extend(outputs_kept)
        onnx_model.producer_name, onnx_model.producer_version, onnx_model.graph.name = "fate", __version__, "step"
        facts = {
            "fate.model": detector.description,
            "fate.classes": list(detector.classes),
            "fate.sensor": list(detector.sensor),
            "fate.canonical_hz": 1e6 / CANONICAL_US,
            "fate.state_pairs": step.state_pairs,
        }
        onnx.helper.set_model_props(onnx_model, {name: json.dumps(fact) for name, fact in facts.items()})
        with disk_faults(target):
            onnx.save(onnx_model, draft.path)
        onnx.checker.check_model(draft.path, full_check=True)
        differences = compare(draft.path, step, detector, batches, progress)
        refuse_above(differences)
    inputs, outputs = (
        {
            value.name: tuple(side.dim_param or side.dim_value for side in value.type.tensor_type.shape.dim)
            for value in values
        }
        for values in (onnx_model.graph.input, onnx_model.graph.output)
    )
    return Exported(Path(path), opset, inputs, outputs, steps, hz, differences, weights)


def _detector(
    model: Model, sensor: Sequence[int] | None, classes: Sequence[str] | None, fresh: bool
) -> tuple[Detector, str]:
    """The detector, and a description of its weights."""
    model = model.model if isinstance(model, StreamingDetector) else model
    name = "a detector" if isinstance(model, Detector) else str(model)
    bundled = name in bundled_weights()
    if name in MODELS and (fresh or not bundled):
        warn(f"{name}: fresh weights, which detect nothing; give a .safetensors file to export what was trained")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build_model(name, classes or CLASSES, sensor or SENSOR), f"{name}, fresh"
    if fresh:
        raise FateError(f"fresh weights of {name} were asked for; only a model's name gives them: {', '.join(MODELS)}")
    if sensor is not None or classes is not None:
        way = "pass fresh=True for fresh ones" if bundled else "only a model's name takes them"
        raise FateError(f"a sensor or classes were given for {name}; weights have their own, {way}")
    if isinstance(model, Detector):
        return model, "the weights of the given detector"
    return load_trained(model), f"{name}, trained and bundled" if bundled else name


def clip(
    recording: str | os.PathLike[str] | None, sensor: Sensor, hz: float, steps: int, streams: int
) -> list[EventBatch]:
    """Windows of B streams, one batch a step. Stream b begins b windows later than the first."""
    count = steps + streams - 1
    if recording is None:
        windows = _moving_bars(sensor, window_us(hz), count)
    else:
        with open_recording(recording) as opened:
            if opened.sensor != sensor:
                raise FateError(
                    f"{recording}: of a {opened.sensor} sensor, the model is for {sensor}; give a recording of that"
                )
            windows = list(islice(opened.windows(hz=hz), count))
        if len(windows) < count:
            raise FateError(
                f"{recording}: has {len(windows)} windows at {hz:g} Hz; {count} are needed to compare {steps} steps of"
                f" {streams} streams: give a longer recording, or a higher rate"
            )
    return [EventBatch.from_windows(windows[step : step + streams]) for step in range(steps)]


def compare(
    path: Path, step: StepGraph, detector: Detector, batches: Sequence[EventBatch], progress: Progress | None = None
) -> Differences:
    """Compare the file at ``path`` in ONNX Runtime with its detector in PyTorch, on the same windows."""
    import onnx  # noqa: PLC0415  (optional packages)
    import onnxruntime  # noqa: PLC0415

    model, names = onnx.load(path), step.outputs
    if any(CELLS in node.output for node in model.graph.node):  # the cells that DETR selects, as one more output
        model.graph.output.append(onnx.ValueInfoProto(name=CELLS))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    differences = [Differences(0.0, 0.0, 0.0)]
    state: State = None
    carried = {name: step.inputs[name].numpy() for name in step.state_pairs}
    for number, batch in enumerate(batches):
        with torch.inference_mode():
            image, step_scale = detector.encoder(batch), batch.duration_us / CANONICAL_US
            feed = {name: getattr(batch, name).numpy() for name in pillar_graph.INPUTS}
            if step.encoder is None:
                feed = {"image": np.ascontiguousarray(image.numpy())}
                feed |= {"step_scale": step_scale.float().numpy()} if step.timed else {}
            found = dict(zip(names, session.run(names, feed | carried), strict=True))
            cells = torch.from_numpy(found[CELLS]) if CELLS in found else None
            with Choice(cells) as choice:
                outputs, state = detector(image, state, step_scale=step_scale)
        carried = {name: found[after] for name, after in step.state_pairs.items()}
        parts = zip(carried.values(), states.tensors(state), strict=True)
        difference = _difference(found, outputs, parts, detector.sensor)
        differences.append(difference._replace(choice=choice.worse_by))
        if progress is not None:
            progress(number + 1, len(batches))
    return Differences(*np.max(differences, axis=0).tolist())  # NaN stays NaN


def refuse_above(found: Differences) -> None:
    """Raise an error that names every difference above its tolerance."""
    above = [
        f"{name} {value:.2g} (at most {most:g})"
        for name, value, most in zip(Differences._fields, found, TOLERANCES, strict=True)
        if not value <= most  # NaN is refused
    ]
    if above:
        raise FateError(
            f"the graph differs from PyTorch by {', '.join(above)}; no file was written: this is a fault of the"
            " exporter or of the runtime, try another opset=N or another version of onnxruntime"
        )


def _difference(
    found: dict[str, NDArray[Any]], outputs: Outputs, memory: Iterable[tuple[NDArray[Any], Tensor]], sensor: Sensor
) -> Differences:
    """The differences of one window of each stream."""
    boxes = clip_boxes(torch.from_numpy(found["boxes"]), sensor) - clip_boxes(outputs.boxes, sensor)
    scores = [torch.from_numpy(found["class_scores"]) - outputs.class_logits.sigmoid()]
    if outputs.objectness is not None:
        scores.append(torch.from_numpy(found["objectness"]) - outputs.objectness.sigmoid())
    parts = [0.0]
    for ours, theirs in memory:
        parts.append(_size(torch.from_numpy(ours) - theirs) / max(1.0, _size(theirs)))
    return Differences(_size(boxes), float(np.max([_size(part) for part in scores])), float(np.max(parts)))


def _size(values: Tensor) -> float:
    """The largest absolute value; NaN if there is one."""
    return float(values.abs().max()) if values.numel() else 0.0


def _moving_bars(sensor: Sensor, length_us: int, count: int) -> list[tuple[Window, Events]]:
    """``count`` windows of events of vertical bars that move to the right at different speeds, with noise."""
    draw = np.random.default_rng(SEED)
    total = min(int(length_us * count * 0.3), 3_000_000)  # 0.3 events per µs, as many as a busy street gives
    t_us = np.sort(draw.integers(0, length_us * count, total))
    bar = draw.integers(0, 8, total)
    x = (bar * sensor.width / 8 + t_us * (bar + 1) * 1e-6 * sensor.width / 8 + draw.integers(0, 3, total)).astype(int)
    noise = draw.random(total) < 0.1
    x = np.where(noise, draw.integers(0, sensor.width, total), x % sensor.width).astype(np.uint16)
    y = draw.integers(0, sensor.height, total).astype(np.uint16)
    events = Events.trusted(t_us, x, y, draw.integers(0, 2, total).astype(np.uint8), sensor)
    windows = WindowGrid(0, length_us, length_us).windows(length_us * count)
    return [(window, events.between(window.start_us, window.end_us)) for window in windows]
