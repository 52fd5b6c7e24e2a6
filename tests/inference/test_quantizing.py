"""Exported detectors that compute in 8-bit integers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fate
from fate import FateError
from fate.boxes.iou import iou, xywh_of
from fate.inference.backends import bfloat16
from tests.conftest import make_events

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

RUNTIMES: list[Any] = [name for name in ("onnxruntime", "openvino") if find_spec(name) is not None]


def write_events(path: Path, seconds: float, sensor: tuple[int, int]) -> Path:
    """Noise of some seconds."""
    events = make_events(2000, sensor)
    span = int(events.t_us[-1] - events.t_us[0]) + 1
    stretched = fate.Events(events.t_us * int(seconds * 1e6) // span, events.x, events.y, events.p, sensor)
    fate.write_events(path, stretched)
    return path


def test_calibration_is_asked_for_and_checked_before_any_work(tmp_path: Path) -> None:
    out = tmp_path / "own.onnx"
    short = write_events(tmp_path / "short.dat", 0.5, (48, 64))
    large = write_events(tmp_path / "large.dat", 2, (720, 1280))
    with pytest.raises(FateError, match="0 calibration recordings.*expected one or more"):
        fate.export("fate-s-nano", out, precision="int8")
    with pytest.raises(FateError, match="2 streams.*expected .*one stream"):
        fate.export("fate-s-nano", out, precision="int8", calibration=[short], streams=2)
    with pytest.raises(FateError, match="only int8"):
        fate.export("fate-s-nano", out, calibration=[short])
    with pytest.raises(FateError, match=r"0\.\d+ s together.*1 s or more"):
        fate.export("fate-s-nano", out, precision="int8", calibration=[short])
    brief = write_events(tmp_path / "brief.dat", 0.1, (48, 64))
    with pytest.raises(FateError, match=r"brief\.dat.*0\.2 s or more"):
        fate.export("fate-s-nano", out, precision="int8", calibration=[brief])
    with pytest.raises(FateError, match="41 calibration recordings.*at most 40"):
        fate.export("fate-s-nano", out, precision="int8", calibration=[short] * 41)
    with pytest.raises(FateError, match=r"large\.dat.*1280.*320"):
        fate.export("fate-s-nano", out, precision="int8", calibration=[large])
    assert not out.exists()


@pytest.mark.slow
def test_strong_boxes_stay_where_they_are_and_weights_become_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fate.simulate(tmp_path / "drives", recordings=2, seconds=1.5, seed=11, preview=False, shares=(1, 0, 0))
    files = sorted((tmp_path / "drives").rglob("*_td.dat"))
    sensor = (240, 304)
    whole = fate.export("fate-s-nano", tmp_path / "whole.onnx", sensor=sensor)
    small = fate.export(
        "fate-s-nano",
        tmp_path / "small.onnx",
        sensor=sensor,
        precision="int8",
        calibration=files[:1],
        recording=files[1],
    )
    assert small.num_bytes < 0.6 * whole.num_bytes
    assert not small.trtexec  # it has unsigned integers

    weights = {each.name: each for each in onnx.load(small.path).graph.initializer}
    integers = sum(np.prod(each.dims) for each in weights.values() if each.data_type == onnx.TensorProto.INT8)
    floats = sum(np.prod(each.dims) for each in weights.values() if each.data_type == onnx.TensorProto.FLOAT)
    assert integers > floats

    expected = fate.load_detector(whole.path).detect(files[1], hz=20, threshold=0.2)
    for backend in RUNTIMES:
        found = fate.load_detector(small.path, backend=backend).detect(files[1], hz=20, threshold=0.2)
        strong = near = 0
        for ours, theirs in zip(found, expected, strict=True):
            for box, score in zip(theirs.boxes, theirs.scores, strict=True):
                if score > 0.5:
                    strong += 1
                    near += bool(len(ours.boxes) and iou(xywh_of(box[None]), xywh_of(ours.boxes)).max() > 0.7)
        assert strong >= 5
        assert near >= 0.8 * strong, backend

    if find_spec("openvino") is not None:
        monkeypatch.setattr(bfloat16, "has_bf16", lambda: True)
        with pytest.raises(FateError, match="small.onnx.*int8.*backend=openvino"):
            fate.load_detector(small.path, backend="openvino-bf16")
