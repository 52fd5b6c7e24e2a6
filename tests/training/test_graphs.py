"""Recorded as CUDA graphs, backbone and neck give what they give without: losses, gradients, statistics, memory.

Without a GPU a stand-in takes the place of the graphs: what would be replayed is run again.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fate.models import state as states
from fate.models.detector import Detector
from fate.training import graphs
from fate.training.graphs import RecordedFeatures
from fate.training.loop import build
from tests.training.conftest import small_config

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")

BATCHES = 6
HAS_GPU = torch.cuda.is_available()


class Again:
    """In the place of two graphs: both are run again, into the same memory."""

    def __init__(
        self, detector: Detector, inputs: list[Tensor], before: states.State, steps: int, known: float | None
    ) -> None:
        grad = torch.is_grad_enabled()
        self.inputs = inputs
        self.weights = [weight for weight in detector.parameters() if weight.requires_grad] if grad else []
        self.grad, self.levels = grad, list[Tensor]()
        self.call = partial(self.run, detector, before, steps, known)
        kept = [(buffer, buffer.clone()) for buffer in detector.buffers()]
        self.outputs = [part.detach().clone() for part in self.call()]
        self.asked = [torch.zeros_like(level) for level in self.levels] if grad else []
        self.gradients = self.found()
        for buffer, value in kept:
            buffer.copy_(value)

    def run(self, detector: Detector, before: states.State, steps: int, known: float | None) -> list[Tensor]:
        memory = self.inputs[1:] if known is not None else self.inputs[1:-1]
        scale = self.inputs[-1] if known is None else known
        with torch.set_grad_enabled(self.grad):
            self.levels, after = detector.features(self.inputs[0], states.rebuilt(before, memory), steps, scale)
        return [*self.levels, *states.tensors(after)]

    def found(self) -> list[Tensor | None]:
        learning = [part for part in (*self.inputs, *self.weights) if part.requires_grad]
        if not learning:
            return [None] * len(self.inputs)
        found = iter(torch.autograd.grad(self.levels, learning, self.asked, allow_unused=True))
        return [next(found) if part.requires_grad else None for part in (*self.inputs, *self.weights)]

    def forward(self) -> None:
        for own, new in zip(self.outputs, self.call(), strict=True):
            own.copy_(new.detach())

    def backward(self) -> None:
        for own, new in zip(self.gradients, self.found(), strict=True):
            if own is not None and new is not None:
                own.copy_(new)


@pytest.fixture(params=["stand-in", pytest.param("graphs", marks=pytest.mark.skipif(not HAS_GPU, reason="no GPU"))])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where to train."""
    if request.param == "graphs":
        return "cuda"

    def again(*given: Any) -> graphs._Recorded:
        made = Again(*given[:-1])
        both = (SimpleNamespace(replay=made.forward), SimpleNamespace(replay=made.backward))
        return graphs._Recorded(
            *both, made.inputs, made.weights, made.outputs, len(made.levels), made.asked, made.gradients
        )

    monkeypatch.setattr(graphs, "_record", again)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 0)
    return "cpu"


def trained_on(
    drives: Path, device: str, record: bool, model: dict[str, Any], precision: str, **run: Any
) -> dict[str, list[Tensor]]:
    """What a few batches of clips at 20 and 200 Hz give, teacher and all; weights stay as they are.

    With ``accumulate``, gradients are those of so many batches.
    """
    from fate.training.module import TrainingModule

    config = small_config(
        drives,
        model={"encoder_options": {"channels": 8, "max_events": None, "max_pillars": None}, "options": {}, **model},
        strategy={"name": "consistency", "rates": [20, 200], "consistency_score": 0.0},
        run={"epochs": 1, "epoch_steps": BATCHES, "device": device, "precision": precision, "graphs": record, **run},
    )
    parts = build(config)
    torch.manual_seed(1)
    module = TrainingModule(parts.detector, parts.strategy, config)
    module.prepare(device)
    assert module.records == (record and device == "cuda")
    if record and device == "cpu":
        module._features = RecordedFeatures(module.student, copy_gradients=config.run.accumulate > 1)
        module._taught = RecordedFeatures(module.teacher)
    found: dict[str, list[Tensor]] = {"loss": [], "gradient": [], "gradient in 32 bits": [], "memory": []}
    for number, batch in enumerate(islice(parts.batches(), BATCHES)):
        if number % config.run.accumulate == 0:
            module.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = module.training_step(batch, 0)
        loss.backward()
        found["loss"].append(loss.detach().clone())
        gradients = [weight.grad for weight in module.student.parameters() if weight.grad is not None]
        found["gradient"].append(torch.cat([gradient.flatten() for gradient in gradients]))
        exact = [weight.grad for name, weight in module.student.named_parameters() if ".ssm." in name]
        found["gradient in 32 bits"] += [gradient.clone() for gradient in exact if gradient is not None]
        kept = [part.flatten().float() for part in states.tensors(module.memory)]
        found["memory"].append(torch.cat([*kept, torch.ones(1, device=loss.device)]))
    found["statistics"] = [buffer.float().flatten() for buffer in module.student.buffers()]
    return found


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(
    "name",
    [
        "fate-s-nano",
        "fate-s-nano with a history of images",
        "s5-vit-nano",
        *(pytest.param(f"fate-e-tiny{more}", marks=pytest.mark.slow) for more in ("", " without memory")),
    ],
)
def test_graphs_change_nothing(drives: Path, device: str, name: str, precision: str) -> None:
    if device == "cpu" and precision == "bf16":
        pytest.skip("16 bits are for GPUs")
    model: dict[str, Any] = {"name": name.split(maxsplit=1)[0]}
    if "without" in name:
        model["options"] = {"remember": False}
    if "history" in name:
        model["options"] = {"image_history": True}
    if name.startswith("s5"):
        model["encoder_options"] = {}
    compare(*(trained_on(drives, device, record, model, precision) for record in (False, True)), precision)


@pytest.mark.parametrize("run", [{"accumulate": 2}, {"activation_checkpointing": "all"}], ids=str)
def test_graphs_change_nothing_with_accumulated_batches_or_checkpointed_activations(
    drives: Path, device: str, run: dict[str, Any]
) -> None:
    model, plain_run = {"name": "fate-s-nano"}, {**run, "activation_checkpointing": "none"}
    plain = trained_on(drives, device, False, model, "float32", **plain_run)
    compare(plain, trained_on(drives, device, True, model, "float32", **run), "float32")


def compare(plain: dict[str, list[Tensor]], recorded: dict[str, list[Tensor]], precision: str) -> None:
    """Compare values of a training without and with graphs."""
    allowed = 3e-3 if precision == "float32" else 3e-2
    for kind, values in plain.items():
        assert len(values) == len(recorded[kind])
        for number, (wanted, got) in enumerate(zip(values, recorded[kind], strict=True)):
            assert wanted.shape == got.shape
            error = float((got - wanted).norm() / wanted.norm().clamp(min=1e-6)) if wanted.numel() else 0.0
            assert error < allowed, (kind, number, error)


def test_inputs_of_all_shapes_share_their_room() -> None:
    room = graphs._Room()
    large, small = torch.rand(6, 3, 4, 4).contiguous(memory_format=torch.channels_last), torch.rand(2, 3, 4, 4)
    first = room.like([large.requires_grad_(), torch.ones(6)])
    assert torch.equal(first[0], large)
    assert first[0].is_contiguous(memory_format=torch.channels_last)
    assert first[0].requires_grad
    assert not first[1].requires_grad
    second = room.like([small, torch.zeros(2)])
    assert torch.equal(second[0], small)
    assert second[0].is_contiguous()
    assert second[0].data_ptr() == first[0].data_ptr()
    assert second[1].data_ptr() == first[1].data_ptr()
    larger = room.like([torch.rand(7, 3, 4, 4)])[0]
    assert larger.data_ptr() != first[0].data_ptr()
    assert room.like([torch.rand(12, 3, 4, 4)])[0].data_ptr() == larger.data_ptr()  # twice what there was before
    with torch.no_grad():
        assert not room.like([large])[0].requires_grad


@pytest.mark.parametrize("learns", [True, False])
def test_what_is_recorded_is_what_is_computed(drives: Path, monkeypatch: pytest.MonkeyPatch, learns: bool) -> None:
    """Recording itself, with a GPU's calls replaced: what runs while a graph listens gives outputs and gradients."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    parts = build(small_config(drives))
    detector = parts.detector.train()
    images = detector.encoder(next(iter(parts.batches())).inputs("cpu")).detach().requires_grad_(learns)
    steps = parts.config.data.steps
    wanted, state = detector.features(images, None, steps, 0.5)
    before = states.mapped(torch.zeros_like, state)
    statistics = [buffer.clone() for buffer in detector.buffers()]
    with torch.set_grad_enabled(learns):
        inputs = graphs._Room().like([images, *states.tensors(before)])
        recorded = graphs._record(detector, inputs, before, steps, 0.5, 0)
    assert all(torch.equal(*pair) for pair in zip(statistics, detector.buffers(), strict=True))
    assert (recorded.backward is not None) == learns
    for ours, theirs in zip(wanted, recorded.outputs[: recorded.levels], strict=True):
        torch.testing.assert_close(theirs, ours)
    if learns:
        assert recorded.gradients[0] is not None
        assert recorded.gradients[0].shape == images.shape
        assert sum(gradient is not None for gradient in recorded.gradients[len(inputs) :]) > 50
        assert all(float(level.abs().sum()) == 0 for level in recorded.asked)
