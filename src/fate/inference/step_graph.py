"""One step of a detector as a graph for other runtimes, with named inputs and outputs, and its conversion to ONNX.

    image, step_scale, state.backbone.0, …  →  boxes, class_scores, objectness, new_state.backbone.0, …

A step processes one window of each of B streams. Its state goes in and comes out; all zeros start a new stream. With
the encoder in the graph, the columns of an ``EventBatch`` take the place of ``image`` and ``step_scale``.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fate.encoding.pillars import PillarEncoder
from fate.encoding.window_length import WindowLength, append_length
from fate.errors import FateError
from fate.inference import pillar_graph
from fate.inference.backends.graph_detector import encoder_facts
from fate.inference.backends.sessions import PREFIX
from fate.inference.fusing import fused
from fate.inference.pillar_graph import PillarGraph
from fate.models import state as states
from fate.models.checkpoints.saved import LARGE
from fate.models.detector import Detector
from fate.models.state import State
from fate.rates import CANONICAL_US
from fate.version import __version__

if TYPE_CHECKING:
    from onnx import ModelProto

    from fate.inference.lean_graph import LeanGraph

#: The cells that the queries of a DETR head come from: an output of the comparison, not of the file.
CELLS = "cells"
#: Events of the example that a graph is traced with; the graph takes any number.
EXAMPLE_EVENTS = 64


class StepGraph(nn.Module):
    """One step of a detector as a function of tensors, in the order of ``inputs`` and ``outputs``."""

    def __init__(self, detector: Detector, streams: int, with_encoder: bool = False) -> None:
        """The detector is copied, not changed; with ``with_encoder`` events replace images, for pillars."""
        super().__init__()
        self.detector, encoder = fused(detector), detector.encoder
        self.detector.encoder = nn.Identity()  # the graph contains it only as below
        self.encoder: PillarGraph | None = None
        self.has_length = isinstance(encoder, WindowLength)
        if with_encoder:
            events_encoder = encoder.encoder if isinstance(encoder, WindowLength) else encoder
            if not isinstance(events_encoder, PillarEncoder):
                kind = type(events_encoder).__name__
                raise FateError(f"a graph that begins with events was asked for; {kind} has none, only pillars have")
            self.encoder = PillarGraph(events_encoder, streams)
        size = (-(-side // detector.frame.encoder_stride) for side in detector.sensor)
        image = torch.zeros(streams, int(encoder.channels), *size)  # type: ignore[arg-type]
        with torch.no_grad(), Choice() as choice:
            outputs, state = self.detector(image, step_scale=torch.ones(streams))
        self.state: State = states.mapped(torch.zeros_like, state)
        names = state_names(state)
        self.timed = self.detector.follows_time
        self.inputs: dict[str, Tensor] = {}  #: example tensors by name
        if self.encoder is not None:
            events = {name: torch.zeros(EXAMPLE_EVENTS, dtype=kind) for name, kind in pillar_graph.INPUTS.items()}
            self.inputs |= events | {
                "t_us": torch.arange(EXAMPLE_EVENTS, dtype=torch.int32),
                "offsets": torch.tensor([0] + [EXAMPLE_EVENTS] * streams),
                "start_us": torch.zeros(streams, dtype=torch.int64),
                "duration_us": torch.full((streams,), CANONICAL_US),
            }
        else:
            self.inputs["image"] = image
            if self.timed:
                self.inputs["step_scale"] = torch.ones(streams)
        fresh = (torch.zeros(part.shape) for part in states.tensors(state))
        self.inputs |= dict(zip((f"state.{name}" for name in names), fresh, strict=True))
        #: names of the outputs, and for each input of the state the output that is its next value
        self.outputs = ["boxes", "class_scores"] + ["objectness"] * (outputs.objectness is not None)
        self.outputs += [f"new_state.{name}" for name in names] + [CELLS] * (choice.cells is not None)
        self.state_pairs = {f"state.{name}": f"new_state.{name}" for name in names}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the tensors named in ``outputs`` from tensors in the order of ``inputs``."""
        given = dict(zip(self.inputs, inputs, strict=True))
        if self.encoder is None:
            image, step_scale = given["image"], given.get("step_scale", 1.0)
        else:
            image = self.encoder(*(given[name] for name in pillar_graph.INPUTS))
            if self.has_length:
                image = append_length(image, given["duration_us"])
            step_scale = given["duration_us"].float() / CANONICAL_US
        state = states.rebuilt(self.state, [given[name] for name in self.state_pairs])
        with Choice() as choice:
            outputs, state = self.detector(image, state, step_scale=step_scale if self.timed else 1.0)
        objectness = () if outputs.objectness is None else (outputs.objectness.sigmoid(),)
        cells = () if choice.cells is None else (choice.cells,)
        return outputs.boxes, outputs.class_logits.sigmoid(), *objectness, *states.tensors(state), *cells


class Choice(TorchFunctionMode):
    """Observes or replaces the selection of DETR's best cells (``topk`` in ``heads.rtdetr``)."""

    def __init__(self, given: Tensor | None = None) -> None:
        super().__init__()
        self.given = given  #: [N, Q] cells to select instead
        self.cells: Tensor | None = None  #: [N, Q] selected cells; None for other heads
        #: how much lower the worst given cell scores than the worst of the best, logits; infinite if one is given twice
        self.worse_by = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not Tensor.topk:
            return result
        self.cells = result.indices
        if self.given is None:
            return result
        scores = args[0].gather(1, self.given)
        twice = bool((self.given.sort(dim=1).values.diff(dim=1) == 0).any())
        self.worse_by = float("inf") if twice else float((result.values.amin(1) - scores.amin(1)).clamp(min=0).max())
        return type(result)((scores, self.given))


def state_names(state: State) -> list[str]:
    """A name for each tensor of a detector's state, such as ``backbone.0``, ``memory.2.cell`` or ``history.0``."""
    names = []
    for part, of_part in zip(("backbone", "memory", "history"), state, strict=False):
        for number, of_stage in enumerate(of_part or ()):
            if of_stage is not None:  # a stage may have no state
                parts = [""] if isinstance(of_stage, Tensor) else [".hidden", ".cell"]
                names += [f"{part}.{number}{kind}" for kind in parts]
    return names


def to_onnx(step: StepGraph | LeanGraph, opset: int) -> ModelProto:
    """The step as an ONNX model with folded constants, without names of files or lines of code.

    The exporter's own optimisation takes twice as long, and runtimes optimise a model when they load it.
    """
    from onnxscript import optimizer  # noqa: PLC0415  (an optional package)

    events = torch.export.Dim("events")
    lengths = tuple({0: events} if name in pillar_graph.EVENT_COLUMNS else None for name in step.inputs)
    with torch.no_grad(), warnings.catch_warnings(), ExitStack() as closing:
        warnings.simplefilter("ignore")  # warnings of the exporter are expected; errors are still raised
        closing.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)
        program = torch.onnx.export(
            step,
            tuple(step.inputs.values()),
            input_names=list(step.inputs),
            output_names=step.outputs,
            opset_version=opset,
            dynamic_shapes=(lengths,),
            dynamo=True,
            optimize=False,
            verbose=False,
        )
        if program is None:
            raise RuntimeError("torch.onnx.export returned no program")
        optimizer.inline(program.model)
        optimizer.fold_constants(program.model)
        optimizer.remove_unused_nodes(program.model)
        model: ModelProto = program.model_proto
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("doc_string")
        del part.metadata_props[:]  # file and line of each operation
    return model


def halve_weights(model: ModelProto) -> None:
    """Store large weights in half precision; runtimes turn them into float32 again when they load the model."""
    import onnx  # noqa: PLC0415  (an optional package)

    back = []
    for weight in model.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT and math.prod(weight.dims) >= LARGE:
            name, values = weight.name, onnx.numpy_helper.to_array(weight)
            weight.CopyFrom(onnx.numpy_helper.from_array(values.astype("float16"), f"{name}.half"))
            back.append(onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*back, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def described(
    step: StepGraph | LeanGraph, detector: Detector, opset: int, card: Mapping[str, Any] | None = None
) -> ModelProto:
    """The step of a detector as an ONNX model with metadata from which FATE runs it again; see ``graph_detector.py``.

    ``card`` is what the header of the weights says about them.
    """
    import onnx  # noqa: PLC0415  (an optional package)

    model = to_onnx(step, opset)
    outputs_kept = [output for output in model.graph.output if output.name != CELLS]
    del model.graph.output[:]
    model.graph.output.extend(outputs_kept)
    model.producer_name, model.producer_version, model.graph.name = "fate", __version__, "step"
    facts = {
        "model": detector.description,
        "classes": list(detector.classes),
        "sensor": list(detector.sensor),
        "canonical_hz": 1e6 / CANONICAL_US,
        "state_pairs": step.state_pairs,
        "encoder": encoder_facts(detector),
        "card": {"training": None, **(card or {}), "model": detector.description},
    }
    onnx.helper.set_model_props(model, {PREFIX + name: json.dumps(fact) for name, fact in facts.items()})
    return model
