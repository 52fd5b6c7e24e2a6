"""The same boxes in every runtime, and files of ``fate export`` as detectors."""

from __future__ import annotations

import copy
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fate
from fate import EventBatch, FateError, MissingDependencyError
from fate.densify.making import weights_hash
from fate.encoding.batch import EventBatch as Batch
from fate.inference.backends import bfloat16, choosing, sessions
from fate.inference.backends.choosing import choose, graph_file, run_in
from fate.inference.backends.graph_detector import GraphDetector
from fate.inference.backends.lean_detector import LeanDetector
from fate.inference.graph_check import clip
from fate.inference.loading import bundled_weights
from fate.inference.streaming_step import compile_for_streaming
from fate.models.boxes import pairwise_iou
from fate.models.detector import Detector
from fate.models.heads.yolox import YOLOXHead
from fate.models.layers import image_history_cpu
from fate.models.layers.image_history import ImageHistory
from fate.models.nms import Detections
from fate.models.state import tensors
from fate.models.zoo import build_model
from fate.simulation.camera.recorder import record
from fate.simulation.render.scene import Scene

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SENSOR, CLASSES = (60, 90), ("car", "pedestrian", "dog")
RUNTIMES = [name for name in ("onnxruntime", "openvino") if find_spec(name) is not None]


SMALL = {"dims": (8, 16, 32, 64)}
#: Detectors with a history of images, in a lean graph and in a readable one.
REMEMBERING: dict[str, tuple[str, dict[str, Any]]] = {
    "history": ("fate-s-nano", SMALL),
    "history and length": ("fate-s-nano", {**SMALL, "length_affine": True}),
    "history before detr": ("fate-e-tiny", {"layers": 1, "queries": 30, "hidden": 32, "feedforward": 32}),
}
remembering = pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in REMEMBERING])


@pytest.fixture(scope="module")
def detector() -> Detector:
    """Small, recurrent and dependent on time."""
    return with_random_weights(build_model("fate-s-nano", CLASSES, SENSOR, **SMALL))


def with_history(name: str) -> Detector:
    model, options = REMEMBERING[name]
    return with_random_weights(build_model(model, CLASSES, SENSOR, image_history=True, **options))


def with_random_weights(found: Detector) -> Detector:
    """In evaluation, and without YOLOX's neck, which is plain and takes long to trace."""
    torch.manual_seed(3)
    found.eval()
    with torch.no_grad():
        for name, value in found.named_parameters():
            if "ssm." not in name and value.ndim > 1:
                value.normal_(std=value[0].numel() ** -0.5)
            elif "head" in name and name.endswith("bias"):  # so that some cells are above the threshold
                value.normal_(std=0.5)
    if isinstance(found.head, YOLOXHead):
        found.neck = nn.Identity()
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests of this module: a graph takes seconds to make."""
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(autouse=True)
def one_cache(cache: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FATE_CACHE_DIR", str(cache))


@pytest.fixture(scope="module")
def windows(detector: Detector) -> list[EventBatch]:
    return clip(None, detector.sensor, hz=200, steps=10, streams=1)


def found_by(model: Detector, batches: list[EventBatch], **options: Any) -> list[Detections]:
    """The boxes of consecutive windows, with the state carried along."""
    step = compile_for_streaming(model, **options)
    return [found for batch in batches for found in step(batch)]


def assert_same_boxes(found: list[Detections], expected: list[Detections], within: float = 0.05) -> None:
    """Boxes within a part of a pixel and scores within 0.0001; those of the same score may be in another order."""
    assert [len(each.boxes) for each in found] == [len(each.boxes) for each in expected]
    assert any(len(each.boxes) for each in expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours.scores, theirs.scores, rtol=0, atol=1e-4)
        same = (ours.boxes[:, None] - theirs.boxes).abs().amax(-1) <= within
        same &= (ours.scores[:, None] - theirs.scores).abs() <= 1e-4
        same &= ours.class_ids[:, None] == theirs.class_ids
        assert same.any(0).all()
        assert same.any(1).all()


@pytest.mark.slow
@pytest.mark.parametrize("backend", RUNTIMES)
def test_a_runtime_finds_the_boxes_of_torch(detector: Detector, windows: list[EventBatch], backend: Any) -> None:
    model = run_in(detector, backend)
    assert isinstance(model, GraphDetector)
    assert model.backend == backend
    assert_same_boxes(found_by(model, windows, confidence=0.02), found_by(detector, windows, confidence=0.02))


@pytest.mark.parametrize("backend", RUNTIMES)
@remembering
def test_a_runtime_takes_images_that_their_history_has_completed(
    name: str, windows: list[EventBatch], backend: Any
) -> None:
    detector = with_history(name)
    model = run_in(detector, backend)
    assert isinstance(model, LeanDetector) == (name != "history before detr")
    found = found_by(model, windows, confidence=0.02)
    assert isinstance(detector.history, ImageHistory)
    detector.history.compiled = False
    assert_same_boxes(found, found_by(detector, windows, confidence=0.02))
    detector.history.gain.data.zero_()
    with pytest.raises(AssertionError):
        assert_same_boxes(found, found_by(detector, windows, confidence=0.02))


@remembering
def test_a_history_that_differs_from_pytorch_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = with_history(name)

    complete = image_history_cpu.complete

    def forgetful(images: Tensor, _state: Any, *rest: Any) -> Any:
        return complete(images, None, *rest)

    monkeypatch.setattr(choosing, "hash_of_code", lambda: b"a graph that is not in the cache")
    monkeypatch.setattr(image_history_cpu, "complete", forgetful)
    with pytest.raises(FateError, match="differs from PyTorch"):
        graph_file(detector)


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated drive of 0.6 s in the frame of the bundled detectors."""
    pieces = [piece.events for piece in record(Scene(40, "gen1", "test", 0.6))]
    events = fate.Events.concatenate(pieces)
    path = tmp_path_factory.mktemp("street") / "drive.npz"
    fate.write_events(path, fate.Events(events.t_us, events.x, events.y, events.p, (240, 320)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("hz", [20, 200])
@pytest.mark.parametrize("name", bundled_weights())
def test_bundled_detectors_find_the_same_boxes_in_every_runtime(name: str, hz: float, street: Path) -> None:
    model = fate.load_model(bundled_weights()[name])
    batches = clip(street, model.sensor, hz, steps=10, streams=1)
    expected = found_by(model, batches, confidence=0.05)
    for backend in RUNTIMES:
        assert_same_boxes(found_by(run_in(model, backend), batches, confidence=0.05), expected)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fate-s-nano", "fate-s-tiny"])
def test_bfloat16_finds_nearly_the_same_boxes(name: str, street: Path) -> None:
    pytest.importorskip("openvino")
    if not bfloat16.has_bf16():
        pytest.skip("this processor has no instructions for bfloat16")
    model = fate.load_model(bundled_weights()[name])
    batches = clip(street, model.sensor, 200, steps=115, streams=1)
    rounded = run_in(model, sessions.BF16)
    assert compile_for_streaming(rounded).precision == "bfloat16"
    expected, found = found_by(model, batches, confidence=0.2), found_by(rounded, batches, confidence=0.1)
    strong = near = 0
    for ours, theirs in zip(found, expected, strict=True):
        overlaps = pairwise_iou(theirs.boxes, ours.boxes) * (theirs.class_ids[:, None] == ours.class_ids)
        strong += len(overlaps)
        near += int((overlaps > 0.8).any(1).sum())
    assert strong
    assert near >= 0.9 * strong
    assert any(not torch.equal(ours.scores, theirs.scores) for ours, theirs in zip(found, expected, strict=True))


def test_bfloat16_is_the_only_precision_of_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(bfloat16, "has_bf16", lambda: True)
    with pytest.raises(FateError, match="'float32'.*bfloat16.*backend=openvino"):
        fate.load_detector("fate-s-nano", precision="float32", backend=sessions.BF16)


def test_a_detector_that_loses_accuracy_in_bfloat16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(bfloat16, "has_bf16", lambda: True)
    with pytest.raises(FateError, match="fate-e-tiny.*backend=openvino"):
        run_in(fate.load_model(bundled_weights()["fate-e-tiny"]), sessions.BF16)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "history", "history before detr"])
def test_a_graph_of_the_cache_is_no_exported_detector(detector: Detector, name: str) -> None:
    with pytest.raises(FateError, match="own use.*fate export"):
        fate.load_detector(graph_file(with_history(name) if name else detector))


def test_bfloat16_is_refused_on_a_processor_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(bfloat16, "has_bf16", lambda: False)
    with pytest.raises(FateError, match="bfloat16.*openvino"):
        fate.load_detector("fate-s-nano", backend=sessions.BF16)


@pytest.mark.slow
@pytest.mark.parametrize("backend", RUNTIMES)
@pytest.mark.parametrize("name", ["", "history"])
def test_clips_of_several_streams_give_the_predictions_of_single_windows(
    detector: Detector, windows: list[EventBatch], backend: Any, name: str
) -> None:
    """Three windows of two streams in one call, time-major, as evaluations call a detector."""
    model = run_in(with_history(name) if name else detector, backend)
    pairs = [(first, second) for first, second in zip(windows[:3], windows[3:6], strict=True)]
    whole = Batch.from_windows([window_of(each) for pair in pairs for each in pair])
    outputs, state = model(whole, None, 3)
    for stream in (0, 1):
        memory = None
        for t, pair in enumerate(pairs):
            one, memory = model(pair[stream], memory)
            assert torch.allclose(one.boxes[0], outputs.boxes[2 * t + stream], atol=1e-3)
            assert torch.allclose(one.class_logits[0], outputs.class_logits[2 * t + stream], atol=1e-3)
        for part, own in zip(tensors(state), tensors(memory), strict=True):
            assert torch.allclose(part[stream], own[0], atol=1e-4)


def window_of(batch: EventBatch) -> tuple[fate.Window, fate.Events]:
    """The window of a batch of one."""
    start = int(batch.start_us[0])
    t_us = batch.t_us.numpy().astype(np.int64) + start
    events = fate.Events(t_us, batch.x.numpy(), batch.y.numpy(), batch.p.numpy(), batch.sensor)
    return fate.Window(start, start + int(batch.duration_us[0])), events


def test_auto_takes_the_fastest_one_and_measures_it_only_once(
    detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    measured = {"torch": 3.0, **dict.fromkeys(RUNTIMES, 2.0), RUNTIMES[-1]: 1.0}
    monkeypatch.setattr(choosing, "measure", lambda _, __, clips, ___: calls.append(clips) or measured)
    said: list[str] = []
    assert [choose(detector, say=said.append) for _ in range(2)] == [RUNTIMES[-1]] * 2
    assert calls == [False]
    assert RUNTIMES[-1] in said[-1]
    assert "3.0" in said[-1]
    choose(detector, clips=True)  # another use is another measurement
    assert calls == [False, True]


@pytest.mark.slow
def test_a_measurement_has_a_time_for_every_installed_backend(detector: Detector) -> None:
    for clips in (False, True):
        times = choosing.measure(detector, sessions.installed_backends(), clips)
        assert set(times) == {"torch", *RUNTIMES}
        assert min(times.values()) > 0


@pytest.mark.slow
def test_the_graph_of_a_detector_is_made_once_and_other_weights_or_code_get_another(
    detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    first = graph_file(detector, said.append)
    assert graph_file(detector, said.append) == first
    assert len(said) <= 1
    other = copy.deepcopy(detector)
    with torch.no_grad():
        next(other.backbone.parameters()).add_(1)
    assert graph_file(other) != first
    monkeypatch.setattr(choosing, "hash_of_code", lambda: b"another version of FATE")
    assert graph_file(detector) != first


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_backend_that_is_missing_is_named_with_its_pip_line(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "find_spec", lambda name: None if name == backend else object())
    with pytest.raises(MissingDependencyError, match=f"pip install {backend}"):
        fate.load_detector("fate-s-nano", backend=backend)  # type: ignore[arg-type]
    monkeypatch.setattr(sessions, "find_spec", lambda _: None)
    assert sessions.installed_backends() == ["torch"]


def test_an_unknown_backend_and_one_on_a_gpu_are_refused() -> None:
    with pytest.raises(FateError, match="tensorrt.*onnxruntime"):
        fate.load_detector("fate-s-nano", backend="tensorrt")  # type: ignore[arg-type]
    with pytest.raises(FateError, match="cuda.*CPU"):
        fate.load_detector("fate-s-nano", "cuda", backend="onnxruntime")


@pytest.fixture(scope="module")
def exported(detector: Detector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "own.onnx"
    fate.export(detector, path, hz=200)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", *RUNTIMES])
def test_an_exported_file_is_a_detector(
    detector: Detector, exported: Path, windows: list[EventBatch], backend: Any
) -> None:
    read = fate.load_detector(exported, backend=backend)
    assert read.classes == CLASSES
    assert read.sensor == SENSOR
    assert read.name == "own"
    events = fate.Events(np.arange(4000) * 20, np.arange(4000) % 90, np.arange(4000) % 60, np.arange(4000) % 2, SENSOR)
    both = [each.detect(events, hz=100, threshold=0.02) for each in (read, fate.load_detector(detector))]
    assert len(both[0]) == len(both[1]) == 8
    for ours, theirs in zip(*both, strict=True):
        assert np.allclose(ours.boxes, theirs.boxes, atol=0.05)
        assert np.array_equal(ours.class_ids, theirs.class_ids)
    assert_same_boxes(found_by(read.model, windows, confidence=0.02), found_by(detector, windows, confidence=0.02))


@pytest.mark.slow
@pytest.mark.parametrize("backend", RUNTIMES)
def test_outputs_of_a_graph_stay_after_the_next_call_and_images_may_lie_in_any_order(
    exported: Path, backend: Any
) -> None:
    session, draw = sessions.open_session(exported, backend), np.random.default_rng(0)
    feeds = [{name: draw.random(shape, np.float32) for name, shape in session.inputs.items()} for _ in range(2)]
    first = session(feeds[0])
    kept = {name: value.copy() for name, value in first.items()}
    second = session(feeds[1])
    assert all(np.array_equal(first[name], kept[name]) for name in kept)
    assert not np.allclose(first["boxes"], second["boxes"])
    image = np.ascontiguousarray(feeds[0]["image"].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)  # channels last
    for name, value in session({**feeds[0], "image": image}).items():
        np.testing.assert_allclose(value, kept[name], rtol=0, atol=1e-4)
    with pytest.raises(Exception, match="image"):
        session({**feeds[0], "image": feeds[0]["image"][:, :1]})


@pytest.mark.slow
def test_an_exported_file_cannot_be_trained_moved_or_adapted(exported: Path) -> None:
    read = fate.load_detector(exported)
    with pytest.raises(FateError, match=r"exported for a 90×60 sensor.*sensor=\(64, 96\)"):
        read.adapted((64, 96))
    with pytest.raises(FateError, match=r"\.safetensors"):
        fate.export(read.model, exported.with_name("again.onnx"))
    with pytest.raises(FateError, match=r"labels.*\.safetensors"):
        weights_hash(read.model)
    with pytest.raises(FateError, match="trained"):
        read.model(torch.zeros(1, 16, 30, 45), targets=[None])


@pytest.mark.slow
def test_files_of_other_programs_are_refused_by_name(exported: Path, tmp_path: Path) -> None:
    import onnx

    text, foreign = tmp_path / "text.onnx", tmp_path / "foreign.onnx"
    text.write_text("no graph")
    model = onnx.load(exported)
    del model.metadata_props[:]
    onnx.save(model, foreign)
    for path, fact in ((text, "cannot be run"), (foreign, "description"), (tmp_path / "none.onnx", "no such file")):
        with pytest.raises(FateError, match=f"{path.name}.*{fact}"):
            fate.load_detector(path)
    if "openvino" in RUNTIMES:
        del model.graph.output[0].type.tensor_type.shape.dim[:]
        dim = model.graph.output[0].type.tensor_type.shape.dim.add()
        dim.dim_param = "boxes"
        onnx.save(model, foreign)
        with pytest.raises(FateError, match="foreign.onnx"):
            fate.load_detector(foreign, backend="openvino")
    damaged = onnx.load(exported)
    for entry in damaged.metadata_props:
        if entry.key == "fate.encoder":
            entry.value = json.dumps("bm8=")
    onnx.save(damaged, foreign)
    with pytest.raises(FateError, match="foreign.onnx.*damaged"):
        fate.load_detector(foreign)
    exported.with_suffix(".xml").write_text("")
    with pytest.raises(FateError, match="own.xml.*openvino"):
        fate.load_detector(exported.with_suffix(".xml"), backend="onnxruntime")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".onnx", *[".xml"] * ("openvino" in RUNTIMES)])
def test_half_precision_halves_the_file_and_moves_boxes_by_less_than_a_pixel(
    exported: Path, detector: Detector, windows: list[EventBatch], suffix: str
) -> None:
    done = fate.export(detector, exported.with_name(f"half{suffix}"), hz=200, precision="fp16")
    whole = fate.export(detector, exported.with_name(f"whole{suffix}"), hz=200)
    files = [each.path.with_suffix(".bin" if suffix == ".xml" else suffix) for each in (done, whole)]
    half, full = (file.stat().st_size for file in files)  # the graph of this small detector is large beside its weights
    assert half < 0.75 * full
    assert done.num_bytes < whole.num_bytes
    read = fate.load_detector(done.path)
    assert (read.classes, read.sensor) == (CLASSES, SENSOR)
    with torch.inference_mode():
        outputs, expected = (model(windows[0])[0] for model in (read.model, detector))
    assert float((outputs.boxes - expected.boxes).abs().max()) < 1
    assert ("trtexec" in done.trtexec and "--fp16" in done.trtexec) == (suffix == ".onnx")


@pytest.mark.slow
def test_weights_are_exported_for_another_sensor(tmp_path: Path) -> None:
    done = fate.export("fate-s-nano", tmp_path / "vga.onnx", sensor=(480, 640))
    read = fate.load_detector(done.path)
    adaptation = read.adapted((480, 640))
    assert read.sensor == fate.load_detector("fate-s-nano").adapted((480, 640)).model.sensor
    assert adaptation.divisor == 2
