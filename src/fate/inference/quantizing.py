"""A graph that computes in 8-bit integers: a smaller file, and a faster one for large detectors on some processors.

The values of a layer are rounded to 256 steps between the smallest and the largest one that occurred in windows of
calibration recordings. ONNX Runtime's tools do this and write the steps into the graph, where OpenVINO reads them, too.

Convolutions and products with a constant matrix become integers. What stays in float32, with the AP50:95 that the
bundled fate-s-nano would lose otherwise on simulated drives:

- prediction layers (fewer than 16 channels) and depthwise convolutions: 1.7 points at 20 Hz;
- products with the state of S5, which changes by small amounts from window to window: 11 points at 200 Hz.

The convolutions of EvRT-DETR's memory become integers: they see the state beside the image, and AP stays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.events.window import WindowGrid
from fate.formats.opening import open_recording
from fate.inference.adapting import Adaptation
from fate.inference.backends.sessions import PREFIX, OnnxRuntimeSession
from fate.inference.windowing import LookBack
from fate.progress import Progress
from fate.rates import CANONICAL_US

if TYPE_CHECKING:
    from onnx import ModelProto

#: Hop and length of calibration windows in µs, and one of how many windows is used: neighbours are alike.
TIMINGS = ((50_000, 50_000, 2), (20_000, 50_000, 7), (5_000, 5_000, 23))
#: Most windows of each timing that are used, and so most recordings.
MOST = 40
#: Shortest length of a calibration recording and of all together, µs.
SHORTEST_US, SHORTEST_SUM_US = 200_000, 1_000_000
#: Layers with fewer output channels stay in float32.
FEWEST_CHANNELS = 16

Feed = dict[str, NDArray[Any]]


def check_calibration(recordings: Sequence[str | PathLike[str]], sensor: Sensor) -> None:
    """Refuse recordings of a sensor larger than ``sensor``, too short ones, and too many."""
    if len(recordings) > MOST:
        raise FateError(f"{len(recordings)} calibration recordings were given; expected at most {MOST}: leave some out")
    total_us = 0
    for path in recordings:
        with open_recording(path) as recording:
            if recording.sensor.height > sensor.height or recording.sensor.width > sensor.width:
                raise FateError(
                    f"{path}: of a {recording.sensor} sensor, the graph is for {sensor}; give a calibration recording"
                    " of at most that size, or export for its sensor"
                )
            length_us = recording.end_us - recording.start_us
            if length_us < SHORTEST_US:
                raise FateError(
                    f"{path}: a calibration recording of {length_us / 1e6:g} s was given; expected"
                    f" {SHORTEST_US / 1e6:g} s or more: give a longer one"
                )
            total_us += length_us
    if total_us < SHORTEST_SUM_US:
        raise FateError(
            f"calibration recordings of {total_us / 1e6:g} s together were given; expected {SHORTEST_SUM_US / 1e6:g} s"
            " or more: give longer ones"
        )


def quantize(
    file: Path,
    out: Path,
    adapted: Adaptation,
    state_pairs: dict[str, str],
    recordings: Sequence[str | PathLike[str]],
    progress: Progress | None = None,
) -> ModelProto:
    """Write the graph in ``file`` to ``out`` with 8-bit layers, and return it.

    Args:
        file: a graph of one stream that takes the encoder's image.
        out: the file to write.
        adapted: the detector of the graph, for the sensor of the events.
        state_pairs: for each input of the state the output that is its next value.
        recordings: for calibration; see :func:`check_calibration`.
        progress: called with (windows that were used, windows in all).
    """
    import onnx  # noqa: PLC0415  (optional packages)
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static  # noqa: PLC0415
    from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: PLC0415

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self.used = 0

        def get_next(self) -> Feed | None:
            if progress is not None:
                progress(self.used, len(feeds))
            self.used += 1
            return feeds[self.used - 1] if self.used <= len(feeds) else None

    feeds = list(_feeds(file, adapted, state_pairs, recordings))
    simple = out.with_suffix(".simple.onnx")
    quant_pre_process(file, simple, skip_symbolic_shape=True)  # without it, OpenVINO cannot read some of the results
    model = onnx.load(simple)
    exact = [node.name for node in model.graph.node if not _becomes_integer(node, model)]
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # advice to prepare the graph, which has been done
    try:
        quantize_static(
            simple, out, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8, op_types_to_quantize=["Conv", "MatMul", "Gemm"], nodes_to_exclude=exact,
        )  # fmt: skip
    finally:
        logging.disable(disabled)
    quantized: ModelProto = onnx.load(out)
    del quantized.metadata_props[:]
    quantized.metadata_props.extend(onnx.load(file).metadata_props)
    quantized.metadata_props.add(key=f"{PREFIX}precision", value=json.dumps("int8"))
    onnx.save(quantized, out)
    return quantized


def _becomes_integer(node: Any, model: ModelProto) -> bool:
    """Whether a layer is computed in integers; see the top of this file."""
    shapes: dict[str, tuple[int, ...]] = {weight.name: tuple(weight.dims) for weight in model.graph.initializer}
    shape = next((shapes[name] for name in node.input if name in shapes), ())
    if any("state." in name for name in node.input):
        return False
    if node.op_type == "Conv":
        return shape[0] >= FEWEST_CHANNELS and shape[1] > 1
    return node.op_type in ("MatMul", "Gemm") and len(shape) == 2 and shape[1] >= FEWEST_CHANNELS


def _feeds(
    file: Path,
    adapted: Adaptation,
    state_pairs: dict[str, str],
    recordings: Sequence[str | PathLike[str]],
) -> Iterator[Feed]:
    """Inputs of the graph in windows of the recordings, with the state that it has there."""
    run = OnnxRuntimeSession(file)
    most = max(1, MOST // len(recordings))
    for path in recordings:
        for hop_us, length_us, every in TIMINGS:
            state = {name: np.zeros(run.inputs[name], np.float32) for name in state_pairs}
            windows = islice(_windows(path, adapted, hop_us, length_us), most * every)
            for number, batch in enumerate(windows):
                with torch.inference_mode():
                    image = np.ascontiguousarray(adapted.model.encoder(batch).numpy())
                feed: Feed = {"image": image, **state}
                if "step_scale" in run.inputs:
                    feed["step_scale"] = np.array([hop_us / CANONICAL_US], np.float32)
                if number % every == every - 1:
                    yield feed
                found = run(feed)
                state = {name: found[after] for name, after in state_pairs.items()}


def _windows(path: str | PathLike[str], adapted: Adaptation, hop_us: int, length_us: int) -> Iterator[EventBatch]:
    """The windows of a recording, one after another, as the detector sees them."""
    sensor, merge = adapted.sensor, adapted.merger()
    with open_recording(path) as recording:
        back = LookBack(length_us)
        for window in WindowGrid(recording.start_us, hop_us, hop_us).windows(recording.end_us):
            part = recording.read(window.start_us, window.end_us)
            seen = merge(Events.trusted(part.t_us, part.x, part.y, part.p, sensor))
            yield EventBatch.from_windows([back.add(window, seen)])
