"""An exported file is the detector: it runs without FATE, agrees with PyTorch, says what it is, or is not there."""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fate
from fate import EventBatch, Events, FateError, FateWarning, MissingDependencyError, write_events
from fate.events.window import Window
from fate.inference import export as exporting
from fate.inference import loading, step_graph
from fate.inference.export import Exported
from fate.inference.graph_check import TOLERANCES, Differences, clip, compare, refuse_above
from fate.inference.step_graph import Choice, StepGraph, state_names, to_onnx
from fate.models.backbones.get import GET
from fate.models.checkpoints import save_model
from fate.models.detector import Detector
from fate.models.necks.latent_memory import LatentMemory
from fate.models.zoo import build_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SENSOR, CLASSES = (60, 90), ("car", "pedestrian")
DOCUMENT = Path(__file__).parents[2] / "docs" / "guides" / "export.md"


def well_scaled(detector: Detector) -> Detector:
    """Fresh weights leave parts of a detector at zero, which would hide them: as large as trained ones instead."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in detector.named_parameters():
            if "ssm." in name:
                continue
            if value.ndim > 1:
                value.normal_(std=value[0].numel() ** -0.5)
            else:
                value.normal_(mean=1.0 if name.endswith("weight") else 0.0, std=0.2)
        for name, value in detector.named_buffers():
            if name.endswith("running_mean"):
                value.normal_(std=0.1)
            elif name.endswith("running_var"):
                value.uniform_(0.5, 1.5)
    return detector


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def recording(folder: Path) -> Path:
    """1.2 seconds of a small sensor, with a pause of several windows."""
    random = np.random.default_rng(0)
    t = np.sort(random.integers(0, 1_200_000, 30_000))
    t = t[(t < 300_000) | (t > 420_000)]
    y, x = ((random.random(len(t)) ** 2 * side).astype(int) for side in SENSOR)
    write_events(folder / "drive.npz", Events(t, x, y, random.integers(0, 2, len(t)), SENSOR))
    return folder / "drive.npz"


#: Options that make fate-e-tiny small.
SMALL_EVRT = {"layers": 1, "queries": 30, "hidden": 32, "feedforward": 32}


def small(name: str, **options: Any) -> Detector:
    return well_scaled(build_model(name, CLASSES, SENSOR, **options)).eval()


@pytest.fixture(scope="module")
def from_events(folder: Path, recording: Path) -> tuple[Detector, Exported]:
    """S5 and YOLOX, with the encoder in the graph; without the neck, which is plain and takes long to trace."""
    detector = small("fate-s-nano", dims=(8, 16, 32, 64), encoder_options={"max_events": 4})
    detector.neck = nn.Identity()
    return detector, fate.export(
        detector, folder / "fate-s.onnx", with_encoder=True, recording=recording, hz=100, opset=20
    )


@pytest.fixture(scope="module")
def detr(folder: Path, recording: Path) -> tuple[Detector, Exported]:
    """DETR, two streams, from a checkpoint."""
    detector = small("evrt-detr-tiny", layers=2, queries=30, widths=(8, 16, 16, 16), hidden=32, feedforward=32)
    save_model(detector, folder / "detr.safetensors")
    checkpoint = folder / "detr.safetensors"
    return detector, fate.export(checkpoint, folder / "detr.onnx", streams=2, recording=recording)


def close(found: Differences) -> bool:
    """A hundredth of what is allowed."""
    return all(value <= most / 100 for value, most in zip(found, TOLERANCES, strict=True))


@pytest.mark.slow
def test_a_graph_from_events_to_boxes_agrees_over_a_clip(from_events: tuple[Detector, Exported]) -> None:
    _, done = from_events
    assert close(done.differences), done.differences
    assert (done.steps, done.hz) == (20, 100)
    assert onnx.load(done.path).opset_import[0].version == done.opset == 20
    assert done.inputs["t_us"] == done.inputs["p"] == ("events",)
    assert "image" not in done.inputs
    assert "step_scale" not in done.inputs
    assert [name for name in done.outputs if "state" not in name] == ["boxes", "class_scores", "objectness"]


@pytest.mark.slow
def test_a_graph_with_detr_agrees_over_a_clip_of_two_streams(detr: tuple[Detector, Exported]) -> None:
    _, done = detr
    assert close(done.differences), done.differences
    assert done.inputs["image"] == (2, 20, *SENSOR)
    assert done.outputs == {
        "boxes": (2, 30, 4),
        "class_scores": (2, 30, 2),
        **{name.replace("state.", "new_state."): shape for name, shape in done.inputs.items() if "state" in name},
    }
    assert [name for name in done.inputs if "state" in name] == [
        f"state.memory.{level}.{kind}" for level in range(3) for kind in ("hidden", "cell")
    ]


def windows_of_lengths(recording: Path, lengths_us: tuple[int, ...]) -> list[EventBatch]:
    """Batches of windows of a recording that have these lengths and end at the same time."""
    with fate.open_recording(recording) as opened:
        return [
            EventBatch.from_windows(
                [(Window(end - each, end), opened.read(end - each, end)) for each in lengths_us]
            )
            for end in range(100_000, 200_000, 10_000)
        ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "file", "with_encoder", "option"),
    [
        ("fate-s-nano", {"dims": (8, 16, 32, 64)}, "events.onnx", True, "length_affine"),
        ("fate-s-nano", {"dims": (8, 16, 32, 64)}, "events.onnx", True, "image_history"),
        ("fate-s-nano", {"dims": (8, 16, 32, 64)}, "step.xml", False, "length_affine"),
        ("fate-s-nano", {"dims": (8, 16, 32, 64)}, "step.xml", False, "image_history"),
        ("fate-e-tiny", SMALL_EVRT, "step.onnx", False, "length_affine"),
        ("fate-e-tiny", SMALL_EVRT, "step.onnx", False, "image_history"),
    ],
)
def test_a_graph_depends_on_the_length_of_each_window(
    recording: Path, tmp_path: Path, name: str, options: dict[str, Any], file: str, with_encoder: bool, option: str
) -> None:
    if file.endswith(".xml"):
        pytest.importorskip("openvino")
    detector = small(name, **options, **{option: True})
    if with_encoder:
        detector.neck = nn.Identity()  # it is plain and takes long to trace
    done = fate.export(
        detector, tmp_path / file, streams=3, with_encoder=with_encoder, recording=recording, hz=100, opset=20
    )
    assert close(done.differences), done.differences
    step, mixed = StepGraph(detector, 3, with_encoder), windows_of_lengths(recording, (5_000, 50_000, 12_500))
    assert close(found := compare(done.path, step, detector, mixed)), found
    with torch.no_grad():
        for weight_name, weight in detector.named_parameters():
            if ".length_affine." in weight_name or weight_name == "history.gain":
                weight.zero_()
    assert not close(compare(done.path, step, detector, mixed))


class PartsOfGet(nn.Module):
    """What no other detector has: attention among groups, and pools that round odd maps up; with RVT's LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = GET(4, channels=16, groups=4, depths=(1, 1, 1, 1)).eval()
        cell = torch.zeros(1, 3, 4, 32)
        self.inputs = {"image": torch.randn(1, 4, 5, 7), "state.hidden": cell, "state.cell": cell.clone()}
        self.outputs = ["new_state.hidden", "new_state.cell"]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        image, *state = inputs
        tokens = self.backbone.stages[0](self.backbone.embedding(image))
        _, after = self.backbone.memories[1](self.backbone.aggregations[0](tokens), state)
        return tuple(after)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["step.onnx", "step.xml"])
def test_a_memory_that_follows_time_agrees_whatever_its_forget_gates(
    recording: Path, tmp_path: Path, file: str
) -> None:
    if file.endswith(".xml"):
        pytest.importorskip("openvino")
    options: dict[str, Any] = {"layers": 1, "queries": 30, "hidden": 32, "feedforward": 32, "recurrence": "time"}
    detector = small("fate-e-tiny", **options)
    memories = [module for module in detector.modules() if isinstance(module, LatentMemory)]
    with torch.no_grad():
        for cell in memories[0].cells:
            bias = cell.forget_gate.from_input.bias
            bias.copy_(torch.linspace(-25.0, 20.0, len(bias)))  # trained gates have logits from -19 to 21
    done = fate.export(detector, tmp_path / file, with_encoder=False, recording=recording, hz=200, opset=20)
    assert close(done.differences), done.differences


@pytest.mark.slow
@pytest.mark.parametrize("file", ["step.onnx", "step.xml"])
def test_rounded_weights_may_order_cells_of_nearly_equal_scores_differently(
    recording: Path, tmp_path: Path, file: str
) -> None:
    if file.endswith(".xml"):
        pytest.importorskip("openvino")
    detector = small("fate-e-tiny", layers=1, queries=30, hidden=32, feedforward=32)
    with torch.no_grad():
        detector.head.cell_scores.weight.mul_(1e-3)
    done = fate.export(detector, tmp_path / file, recording=recording, hz=200, precision="fp16")
    assert done.differences.boxes < 1


@pytest.mark.slow
def test_the_parts_of_get_agree_on_maps_of_odd_size() -> None:
    torch.manual_seed(0)
    step = PartsOfGet()
    session = onnxruntime.InferenceSession(to_onnx(step, 18).SerializeToString())  # type: ignore[arg-type]
    given = {name: torch.randn_like(value) for name, value in step.inputs.items()}
    with torch.no_grad():
        expected = step(*given.values())
    found = session.run(step.outputs, {name: value.numpy() for name, value in given.items()})
    assert expected[0].shape == (1, 3, 4, 32)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.slow
def test_the_file_says_what_it_is_and_nothing_of_where_it_was_made(detr: tuple[Detector, Exported]) -> None:
    detector, done = detr
    model = onnx.load(done.path)
    facts = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert facts["fate.model"] == json.loads(json.dumps(detector.description))
    assert facts["fate.classes"] == list(CLASSES)
    assert facts["fate.sensor"] == list(SENSOR)
    assert facts["fate.canonical_hz"] == 20
    assert set(facts["fate.state_pairs"]) <= set(done.inputs)
    assert set(facts["fate.state_pairs"].values()) <= set(done.outputs)
    assert model.opset_import[0].version == done.opset == 18
    assert not model.functions
    assert b"site-packages" not in model.SerializeToString()
    assert b".py" not in model.SerializeToString()
    assert done.path.stat().st_mode == (done.path.parent / "drive.npz").stat().st_mode  # as any file
    assert {path.suffix for path in done.path.parent.iterdir()} <= {".onnx", ".npz", ".safetensors"}  # no draft is left


@pytest.mark.slow
def test_the_state_is_what_makes_windows_follow_each_other(detr: tuple[Detector, Exported]) -> None:
    """Each stream remembers itself alone; zeros are a fresh stream."""
    detector, done = detr
    session = onnxruntime.InferenceSession(done.path)
    pairs = {name: f"new_{name}" for name in done.inputs if "state" in name}
    image = torch.randn(2, 20, *SENSOR)
    fresh = {name: np.zeros(shape, np.float32) for name, shape in done.inputs.items() if name in pairs}
    names = list(done.outputs)

    def run(state: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(names, session.run(names, {"image": image.numpy()} | state), strict=True))

    first = run(fresh)
    carried = {name: first[new].copy() for name, new in pairs.items()}
    second = run(carried)
    for value in carried.values():
        value[1] = 0
    restarted = run(carried)
    name = "new_state.memory.0.cell"
    assert np.abs(second[name] - first[name]).max() > 1e-3
    np.testing.assert_allclose(restarted[name][0], second[name][0], atol=1e-6)
    np.testing.assert_allclose(restarted[name][1], first[name][1], atol=1e-6)
    with torch.inference_mode():
        _, state = detector(image)
    np.testing.assert_allclose(first[name], state[1][0][1], atol=1e-5)


@pytest.mark.slow
def test_the_example_of_the_document_finds_what_the_detector_finds(
    from_events: tuple[Detector, Exported], recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector, done = from_events
    (example,) = (
        text for text in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S) if "LENGTH_US" in text
    )
    assert len(example.strip().splitlines()) < 45
    monkeypatch.chdir(done.path.parent)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example.replace("5_000", "50_000"), "example", "exec"), {})
    rows = re.findall(r"^(\d+) (\w+) ([\d.e-]+) \[(.*?)\]$", printed.getvalue(), re.M | re.S)
    expected, state = [], None
    with fate.open_recording(recording) as opened, torch.inference_mode():
        for window, events in opened.windows(hz=20):
            outputs, state = detector(EventBatch.from_windows([(window, events)]), state)
            (found,) = detector.detections(outputs, confidence=0.3, score="product")
            expected += [(window.end_us, *row) for row in zip(found.class_ids, found.scores, found.boxes, strict=True)]
    assert len(rows) == len(expected) > 20
    # scores that differ by rounding alone may change places
    rows.sort(key=lambda row: (int(row[0]), row[1], [round(float(value), 1) for value in row[3].split()]))
    expected.sort(key=lambda row: (row[0], CLASSES[row[1]], [round(float(value), 1) for value in row[3]]))
    for (end, name, score, box), (end_us, class_id, wanted, corners) in zip(rows, expected, strict=True):
        assert (int(end), name) == (end_us, CLASSES[class_id])
        assert float(score) == pytest.approx(float(wanted), abs=1e-5)
        np.testing.assert_allclose([float(value) for value in box.split()], corners, atol=1e-3)


@pytest.mark.slow
def test_a_graph_that_differs_is_an_error_and_the_file_before_it_stays(
    detr: tuple[Detector, Exported], recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, done = detr
    other = small("evrt-detr-tiny", layers=2, queries=30, widths=(8, 16, 16, 16), hidden=32, feedforward=32)
    with torch.no_grad():
        other.memory.projections[1].bias += 0.05  # type: ignore[union-attr, index, operator, union-attr]
    monkeypatch.setattr(step_graph, "to_onnx", lambda *_: onnx.load(done.path))
    target = tmp_path / "before.onnx"
    target.write_bytes(b"before")
    with pytest.raises(FateError, match=r"the graph differs from PyTorch by boxes .* \(at most 0\.05\)"):
        fate.export(other, target, streams=2, recording=recording)
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("found", [(0.051, 0, 0, 0), (0, np.nan, 0, 0), (0, 0, 0.1, 0), (0, 0, 0, np.inf)])
def test_whatever_is_not_within_its_tolerance_is_refused(found: tuple[float, ...]) -> None:
    refuse_above(TOLERANCES)
    with pytest.raises(FateError, match="no file was written"):
        refuse_above(Differences(*found))


def test_a_choice_among_ties_can_be_made_from_outside_and_is_held_to_the_scores() -> None:
    def best(scores: Tensor) -> tuple[Tensor, Tensor]:
        result = scores.topk(2, dim=1)
        return result.values, result.indices

    scores = torch.tensor([[3.0, 1.0, 1.0, 0.5]])
    for given, worse_by in (([0, 2], 0.0), ([2, 0], 0.0), ([0, 3], 0.5), ([0, 0], np.inf)):
        with Choice(torch.tensor([given])) as choice:
            values, indices = best(scores)
        assert indices.tolist() == [given]
        assert values.tolist() == [[scores[0, place] for place in given]]
        assert choice.worse_by == worse_by
    with Choice() as choice:
        assert best(scores)[1].tolist()[0][0] == 0
    assert choice.cells is not None


def test_names_of_the_state_say_where_it_belongs() -> None:
    one = torch.zeros(1)
    assert state_names(((one, one), None)) == ["backbone.0", "backbone.1"]
    assert state_names((None, ((one, one),))) == ["memory.0.hidden", "memory.0.cell"]
    assert state_names((None, None)) == []


def test_a_detector_of_single_windows_has_no_state(recording: Path) -> None:
    step = StepGraph(small("evrt-detr-tiny", layers=1, remember=False), streams=1)
    assert list(step.inputs) == ["image"]
    assert step.state_pairs == {}


def test_the_synthetic_clip_fits_any_sensor_and_streams_begin_one_after_another() -> None:
    batches = clip(None, fate.Sensor(720, 1280), hz=100, steps=20, streams=2)
    assert [batch.start_us.tolist() for batch in batches[:2]] == [[0, 10_000], [10_000, 20_000]]
    assert len(batches) == 20
    assert max(int(batch.x.max()) for batch in batches) > 1200
    assert min(min(batch.counts) for batch in batches) > 1000


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"path": "graph.pb"}, "ends in .onnx"),
        ({"path": "nowhere/graph.onnx"}, "does not exist"),
        ({"path": "graph.xml", "with_encoder": True}, "give a path that ends in .onnx"),
        ({"steps": 19}, "steps=19 was given; expected 20 or more"),
        ({"streams": 0}, "streams=0"),
        ({"opset": 17}, "opset=17 was given; expected 18 to 23"),
        ({"hz": 0}, "0 Hz"),
        ({"model": "fate-q"}, "fate-q: no weights are bundled under this name"),
        ({"model": "fate-s-tinny"}, "did you mean 'fate-s-tiny'?"),
        ({"model": "weights.safetensors", "classes": ["car"]}, "weights have their own"),
        ({"classes": ["car"]}, "fate-s-nano; weights have their own, pass fresh=True for fresh ones"),
        ({"model": "weights.safetensors", "fresh": True}, "only a model's name gives them"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FateError, match=re.escape(words)):
        fate.export(**{"model": "fate-s-nano", "path": "graph.onnx", **given})
    assert list(tmp_path.iterdir()) == []


def test_a_recording_that_does_not_fit_is_refused(recording: Path, tmp_path: Path) -> None:
    detector = small("s5-vit-nano", dims=(8, 16, 32, 64))
    with pytest.raises(FateError, match="has 12 windows at 10 Hz; 21 are needed to compare 20 steps of 2 streams"):
        fate.export(detector, tmp_path / "graph.onnx", recording=recording, hz=10, streams=2)
    other = build_model("s5-vit-nano", CLASSES, (64, 90))
    with pytest.raises(FateError, match="of a 90×60 sensor, the model is for 90×64"):
        fate.export(other, tmp_path / "graph.onnx", recording=recording)
    with pytest.raises(FateError, match="StackedHistogram has none|only pillars have"):
        fate.export(detector, tmp_path / "graph.onnx", recording=recording, with_encoder=True)
    assert list(tmp_path.iterdir()) == []


def test_fresh_weights_are_warned_of_and_always_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def stop(_: Any, sensor: fate.Sensor, *rest: Any) -> None:
        raise FateError("far enough")

    monkeypatch.setattr(exporting, "clip", stop)
    monkeypatch.setattr(exporting, "build_model", lambda *given: built.append(build_model(*given)) or built[-1])
    for _ in range(2):
        torch.rand(1)
        with (
            pytest.warns(FateWarning, match="s5-vit-nano: fresh weights"),
            pytest.raises(FateError, match="far enough"),
        ):
            fate.export("s5-vit-nano", tmp_path / "graph.onnx", sensor=SENSOR, classes=["a", "b", "c"])
    first, second = (model.state_dict() for model in built)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert built[0].classes == ("a", "b", "c")
    assert built[0].sensor == SENSOR


def test_a_name_with_bundled_weights_gives_those_unless_fresh_ones_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = small("s5-vit-nano", dims=(8, 16, 32, 64))
    monkeypatch.setattr(loading, "WEIGHTS", tmp_path)
    save_model(bundled, tmp_path / "s5-vit-nano.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FateWarning)
        found, words, _ = exporting._detector("s5-vit-nano", None, None, fresh=False)
    assert words == "s5-vit-nano, trained and bundled"
    assert all(torch.equal(value, bundled.state_dict()[name]) for name, value in found.model.state_dict().items())
    with pytest.warns(FateWarning, match="s5-vit-nano: fresh weights"):
        found, words, _ = exporting._detector("s5-vit-nano", SENSOR, CLASSES, fresh=True)
    assert words == "s5-vit-nano, fresh"
    own = build_model("s5-vit-nano", CLASSES, SENSOR).state_dict()
    assert {name: value.shape for name, value in found.model.state_dict().items()} == {
        name: own[name].shape for name in own
    }


def test_missing_packages_are_named_with_the_line_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name != "onnx" else object())
    with pytest.raises(MissingDependencyError, match="pip install onnxruntime onnxscript"):
        fate.export("fate-s-nano", tmp_path / "graph.onnx")
