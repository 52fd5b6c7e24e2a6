"""Compares the graph of an exported detector with PyTorch on the same windows.

Boxes inside the sensor, scores and state are compared with PyTorch on the same windows,
each side with its own state. Both compute in float32 in different orders, so the last digits differ; differences above
``TOLERANCES`` mean that the graph is not the detector.

**Ties.** A DETR head selects its 300 best cells. If cells have nearly equal scores (exactly equal in an untrained model
without events), both sides may select different ones, and neither is wrong. PyTorch therefore uses the graph's
selection, and its own scores check it: the worst selected cell may score lower than the worst of the best cells only
within a tolerance.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.events.window import Window, WindowGrid, window_us
from fate.formats.opening import open_recording
from fate.inference import pillar_graph
from fate.inference.backends.sessions import OpenVinoSession
from fate.inference.step_graph import CELLS, Choice, StepGraph
from fate.models import state as states
from fate.models.boxes import clip_boxes
from fate.models.detector import Detector
from fate.models.outputs import Outputs
from fate.models.state import State
from fate.progress import Progress
from fate.rates import CANONICAL_US

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
#: Tolerances of weights that are rounded to half precision, which has eleven bits.
HALF_TOLERANCES = Differences(boxes=1.0, scores=0.01, states=0.1, choice=0.02)


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
    path: Path,
    step: StepGraph,
    detector: Detector,
    batches: Sequence[EventBatch],
    progress: Progress | None = None,
    history: nn.Module | None = None,
) -> Differences:
    """Compare the file at ``path`` with its detector in PyTorch, on the same windows.

    A file for OpenVINO (.xml) runs there, others in ONNX Runtime; the cells that DETR selects are one more output. If
    the graph takes completed images, ``history`` completes them.
    """
    cells_of = [name for name in step.outputs if name == CELLS]
    run = OpenVinoSession(path, also=cells_of) if path.suffix == ".xml" else _with_cells(path, step.outputs)
    differences = [Differences(0.0, 0.0, 0.0)]
    state: State = None
    of_history: State = None
    carried = {name: step.inputs[name].numpy() for name in step.state_pairs}
    for number, batch in enumerate(batches):
        with torch.inference_mode():
            image, step_scale = detector.encoder(batch), batch.duration_us / CANONICAL_US
            feed = {name: getattr(batch, name).numpy() for name in pillar_graph.INPUTS}
            if step.encoder is None:
                given = image
                if history is not None:
                    given, of_history = history(image, of_history, step_scale=step_scale)
                feed = {"image": np.ascontiguousarray(given.numpy())}
                feed |= {"step_scale": step_scale.float().numpy()} if step.timed else {}
            found = run(feed | carried)
            cells = torch.from_numpy(found[CELLS]).long() if CELLS in found else None
            with Choice(cells) as choice:
                outputs, state = detector(image, state, step_scale=step_scale)
        carried = {name: found[after] for name, after in step.state_pairs.items()}
        own = [*carried.values(), *(part.numpy() for part in states.tensors(of_history))]
        parts = zip(own, states.tensors(state), strict=True)
        difference = _difference(found, outputs, parts, detector.sensor)
        differences.append(difference._replace(choice=choice.worse_by))
        if progress is not None:
            progress(number + 1, len(batches))
    return Differences(*np.max(differences, axis=0).tolist())  # NaN stays NaN


def compare_detectors(
    found: Detector, expected: Detector, batches: Sequence[EventBatch], state_of: Callable[[State], list[Tensor]]
) -> Differences:
    """Compare two forms of a detector on the same windows, each with its own state.

    ``state_of`` makes tensors of the first one's state that agree with those of the second one but for their shapes.
    """
    differences, states_now = [Differences(0.0, 0.0, 0.0)], (None, None)
    for batch in batches:
        with torch.inference_mode():
            (ours, own), (theirs, state) = (
                model(batch, state) for model, state in zip((found, expected), states_now, strict=True)
            )
            states_now = own, state
            parts = zip(state_of(own), states.tensors(state), strict=True)
            memory = [(part.reshape(other.shape).numpy(), other) for part, other in parts]
            outputs = {"boxes": ours.boxes.numpy(), "class_scores": ours.class_logits.sigmoid().numpy()}
            if ours.objectness is not None:
                outputs["objectness"] = ours.objectness.sigmoid().numpy()
        differences.append(_difference(outputs, theirs, memory, expected.sensor))
    return Differences(*np.max(differences, axis=0).tolist())


def _with_cells(path: Path, names: Sequence[str]) -> Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
    """A file in ONNX Runtime, with the outputs of these names."""
    import onnx  # noqa: PLC0415  (optional packages)
    import onnxruntime  # noqa: PLC0415

    model = onnx.load(path)
    if any(CELLS in node.output for node in model.graph.node):
        model.graph.output.append(onnx.ValueInfoProto(name=CELLS))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feed: dict(zip(names, session.run(names, feed), strict=True))


def refuse_above(found: Differences, tolerances: Differences = TOLERANCES) -> None:
    """Raise an error that names every difference above its tolerance."""
    above = [
        f"{name} {value:.2g} (at most {most:g})"
        for name, value, most in zip(Differences._fields, found, tolerances, strict=True)
        if not value <= most  # NaN is refused
    ]
    if above:
        raise FateError(
            f"the graph differs from PyTorch by {', '.join(above)}; no file was written: this is a fault of the"
            " exporter or of the runtime (onnxruntime, openvino), try another opset=N or another version of the runtime"
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
