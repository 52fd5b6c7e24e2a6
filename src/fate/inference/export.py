"""Exports a detector as an ONNX file that runs without FATE and without PyTorch.

    done = fate.export("fate-s.safetensors", "fate-s.onnx")
    done.differences.boxes        # pixels, the largest over 20 windows

The file holds one step: a window of each stream and the state in, predictions and the next state out
(``step_graph.py``). Its metadata describes it. ``docs/guides/export.md`` shows how to run it.

Before the file gets its name, it is compared with PyTorch (``graph_check.py``).
"""

from __future__ import annotations

import copy
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import torch

from fate.errors import PACKAGES, FateError, missing_packages, warn
from fate.events.events import Sensor
from fate.events.window import window_us
from fate.inference.adapting import Adaptation, adapt
from fate.inference.backends.graph_detector import GraphDetector
from fate.inference.backends.sessions import GRAPH_FILES
from fate.inference.graph_check import HALF_TOLERANCES, TOLERANCES, Differences, clip, compare, refuse_above
from fate.inference.loading import Model, bundled_weights, find_weights, load_trained, training_downscale
from fate.inference.quantizing import check_calibration, quantize
from fate.inference.step_graph import StepGraph, described, halve_weights
from fate.inference.stream import StreamingDetector
from fate.models.checkpoints import read_card
from fate.models.detector import Detector
from fate.models.table import MODELS
from fate.models.zoo import build_model
from fate.progress import Progress, ignore, scale
from fate.text import plural
from fate.whole_files import Draft, disk_faults, find_target, write_whole

#: The first version of ONNX's operators that suffices, and the last that the exporter can write.
FIRST_OPSET, LAST_OPSET = 18, 23
#: Fewest windows of a comparison; fewer hardly test the state.
LEAST_STEPS = 20
#: How weights are stored in a file; with int8, layers compute in integers, too.
Precision = Literal["fp32", "fp16", "int8"]
#: Largest differences from PyTorch by precision. Integers change boxes visibly: with them, the differences are only
#: reported, and a graph is refused if its results are no numbers.
ALLOWED: dict[Precision, Differences] = {
    "fp32": TOLERANCES,
    "fp16": HALF_TOLERANCES,
    "int8": Differences(boxes=math.inf, scores=1.0, states=math.inf, choice=math.inf),
}
#: Classes and sensor of a model with fresh weights unless given.
CLASSES, SENSOR = ("car", "pedestrian"), (240, 304)


@dataclass(frozen=True)
class Exported:
    """The written file, and its differences from PyTorch."""

    path: Path
    sensor: Sensor  #: of the recordings that it is for
    opset: int
    inputs: dict[str, tuple[int | str, ...]]  #: shapes by name; "events" where any number may be given
    outputs: dict[str, tuple[int | str, ...]]
    steps: int  #: windows of each stream that were compared
    hz: float
    differences: Differences
    weights: str = ""  #: description of the weights
    precision: Precision = "fp32"  #: of the stored weights

    @property
    def num_bytes(self) -> int:
        """Size of the file; for OpenVINO with that of the weights beside it."""
        files = (self.path, self.path.with_suffix(".bin")) if self.path.suffix == ".xml" else (self.path,)
        return sum(file.stat().st_size for file in files)

    @property
    def trtexec(self) -> str:
        """The command that builds an engine of TensorRT from the file; empty if TensorRT does not take it.

        TensorRT reads ONNX files. It has no inputs of 16-bit integers, which events have, and no unsigned integers in
        layers, which files of int8 have.
        """
        if self.path.suffix != ".onnx" or "image" not in self.inputs or self.precision == "int8":
            return ""
        engine, cache = self.path.with_suffix(".engine"), self.path.with_suffix(".timing")
        half = " --fp16" if self.precision == "fp16" else ""
        return f"trtexec --onnx={self.path} --saveEngine={engine} --timingCacheFile={cache}{half}"


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
    precision: Precision = "fp32",
    calibration: Sequence[str | os.PathLike[str]] = (),
    sensor: Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write one step of a detector as ONNX. If the comparison with PyTorch fails, no file is written or replaced.

    Args:
        model: a ``.safetensors`` file, a detector, or a model's name: its bundled weights if it has some, else fresh
            ones (with a warning).
        path: the file, which ends in ``.onnx``, or in ``.xml`` for OpenVINO, which adds a ``.bin`` file beside it.
        streams: B, windows in a step.
        with_encoder: take events instead of the encoder's image; for models with pillars.
        recording: for the comparison; None for synthetic events.
        hz: windows per second of the comparison. The graph takes any rate.
        steps: windows of each stream to compare, 20 or more.
        opset: version of ONNX's operators.
        precision: "fp32", or "fp16" to store large weights in half precision, which halves the file. Both compute in
            float32, unless a runtime is set otherwise. "int8" computes in 8-bit integers (``quantizing.py``); its
            differences from PyTorch are reported, not refused: evaluate the file to know its AP.
        calibration: recordings for "int8", of some seconds and of scenes like yours, on a sensor that is no larger.
        sensor: (height, width) of the events; that of the training by default, (240, 304) for fresh weights. A sensor
            that is much larger is divided, as in streams; see ``adapting.py``.
        classes: of a model with fresh weights; ("car", "pedestrian") by default.
        fresh: use fresh weights although the name has bundled ones.
        progress: called with (share that is done, 1).
    """
    suffix = Path(path).suffix
    if suffix not in GRAPH_FILES:
        raise FateError(f"{path}: a graph was to be written under this name; expected one that ends in .onnx or .xml")
    target = find_target(path, seeks=True)
    window_us(hz)
    for name, value, least in (("streams", streams, 1), ("steps", steps, LEAST_STEPS)):
        if value < least:
            raise FateError(f"{name}={value} was given; expected {least} or more")
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        raise FateError(f"opset={opset} was given; expected {FIRST_OPSET} to {LAST_OPSET}")
    if precision not in get_args(Precision):
        raise FateError(f"precision={precision!r} was given; expected one of {', '.join(get_args(Precision))}")
    if precision == "int8" and (not calibration or with_encoder or streams > 1):
        raise FateError(
            f"int8 was asked for with {plural(len(calibration), 'calibration recording')}, {plural(streams, 'stream')}"
            f" and {'the' if with_encoder else 'no'} encoder in the graph; expected one or more recordings of"
            " scenes like yours (calibration=FILE), one stream and no encoder"
        )
    if with_encoder and suffix == ".xml":
        raise FateError(
            f"{path}: a graph with the encoder was asked for as a file for OpenVINO, which computes its 64-bit integers"
            " with 32 bits; give a path that ends in .onnx, or export without the encoder"
        )
    if calibration and precision != "int8":
        raise FateError(f"calibration recordings were given with precision={precision!r}; only int8 takes them")
    needed = (*PACKAGES["export"], *(PACKAGES["openvino"] if suffix == ".xml" else ()))
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise missing_packages("export", missing)
    adapted, weights, card = _detector(model, sensor, classes, fresh)
    detector = copy.deepcopy(adapted.model).cpu().float().eval()
    if calibration:
        check_calibration(calibration, adapted.sensor)
    import onnx  # noqa: PLC0415  (an optional package)

    share = 0.8 if precision == "int8" else 0.0  # of the time: calibration, before the comparison
    calibrating, comparing = scale(progress or ignore, 0, share), scale(progress or ignore, share, 1)
    with Draft(target) as draft, TemporaryDirectory() as folder:
        batches = clip(recording, detector.sensor, hz, steps, streams)
        step = StepGraph(detector, streams, with_encoder)
        onnx_model = described(step, detector, opset, card)
        if precision == "fp16":
            halve_weights(onnx_model)
        file = draft.path if suffix == ".onnx" else Path(folder) / "step.onnx"
        if precision == "int8":
            onnx.save(onnx_model, float_file := Path(folder) / "float.onnx")
            parts = replace(adapted, model=detector), step.state_pairs, calibration
            onnx_model = quantize(float_file, Path(folder) / "quantized.onnx", *parts, calibrating)
        with disk_faults(target):
            onnx.save(onnx_model, file)
        onnx.checker.check_model(file, full_check=True)
        if suffix == ".xml":
            file = _for_openvino(file)
        differences = compare(file, step, detector, batches, comparing)
        refuse_above(differences, ALLOWED[precision])
        if suffix == ".xml":
            with disk_faults(target):
                shutil.copyfile(file, draft.path)
                write_whole(Path(path).with_suffix(".bin"), file.with_suffix(".bin").read_bytes())
    inputs, outputs = (
        {
            value.name: tuple(side.dim_param or side.dim_value for side in value.type.tensor_type.shape.dim)
            for value in values
        }
        for values in (onnx_model.graph.input, onnx_model.graph.output)
    )
    return Exported(Path(path), adapted.sensor, opset, inputs, outputs, steps, hz, differences, weights, precision)


def _for_openvino(file: Path) -> Path:
    """Convert an ONNX file to a file for OpenVINO beside it, with its metadata; weights keep their precision."""
    import openvino  # noqa: PLC0415  (an optional package)

    openvino.save_model(openvino.Core().read_model(file), file.with_suffix(".xml"), compress_to_fp16=False)
    return file.with_suffix(".xml")


def _detector(
    model: Model, sensor: Sequence[int] | None, classes: Sequence[str] | None, fresh: bool
) -> tuple[Adaptation, str, Mapping[str, Any]]:
    """The detector for the sensor, a description of its weights, and what their header says."""
    model = model.model if isinstance(model, StreamingDetector) else model
    if isinstance(model, GraphDetector):
        raise FateError("an exported detector was to be exported; give the .safetensors file that it was made from")
    name = "a detector" if isinstance(model, Detector) else str(model)
    bundled = name in bundled_weights()
    if name in MODELS and (fresh or not bundled):
        warn(f"{name}: fresh weights, which detect nothing; give a .safetensors file to export what was trained")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            built = build_model(name, classes or CLASSES, sensor or SENSOR)
        return adapt(built, built.sensor), f"{name}, fresh", {}
    if fresh:
        raise FateError(f"fresh weights of {name} were asked for; only a model's name gives them: {', '.join(MODELS)}")
    if classes is not None:
        way = "pass fresh=True for fresh ones" if bundled else "only a model's name takes them"
        raise FateError(f"classes were given for {name}; weights have their own, {way}")
    if isinstance(model, Detector):
        found, words, card = model, "the weights of the given detector", dict[str, Any]()
    else:
        found, words = load_trained(model), f"{name}, trained and bundled" if bundled else name
        card = read_card(find_weights(model))
    size = found.sensor if sensor is None else Sensor.of(sensor)
    adapted = adapt(found, size, training_downscale(card) if card else 1)
    return adapted, f"{words}; {change}" if (change := adapted.describe()) else words, card
