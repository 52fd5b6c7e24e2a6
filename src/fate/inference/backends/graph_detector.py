"""A detector whose part behind the encoder runs as an exported graph, in ONNX Runtime or OpenVINO.

    detector = read_graph("nano.onnx")
    outputs, state = detector(batch, state)        # like every detector

It takes the place of a :class:`Detector` in streams, evaluations and sweeps, but it cannot be trained or moved to a
GPU. The encoder is FATE's own: its kernels are several times faster than a graph, and its weights are in the file. In
graphs that FATE makes for its own use, so is the history of images; in exported files, it is a part of the graph.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.files import check_regular
from fate.inference.backends.bfloat16 import refuse_detector
from fate.inference.backends.sessions import BF16, GRAPH_FILES, IMAGE, Backend, Session, open_session
from fate.models.detector import Detector, Frame, step_scale_of
from fate.models.outputs import Outputs, Targets
from fate.models.state import State
from fate.models.zoo import rebuild

#: Step scales whose inputs are kept.
MOST_RATES = 64


class GraphDetector(Detector):
    """``outputs, state = detector(batch, state)``; the graph computes one window of its streams after another."""

    def __init__(
        self,
        session: Session,
        encoder: nn.Module,
        frame: Frame,
        classes: Sequence[str],
        description: dict[str, Any],
        state_pairs: dict[str, str],
        history: nn.Module | None = None,
    ) -> None:
        """``history``: of the images, if it is no part of the graph."""
        parts = (nn.Identity(), nn.Identity(), nn.Identity())
        super().__init__(encoder, *parts, frame, classes, None, description, history)
        self.session = session
        self._pairs = state_pairs  # the input of each part of the state, and the output that is its next value
        self._streams = session.inputs[IMAGE][0]
        self._known_rates: dict[float, dict[str, NDArray[np.float32]]] = {}
        self.eval().requires_grad_(False)

    @property
    def backend(self) -> Backend:
        """The runtime."""
        return self.session.backend

    @property
    def device(self) -> torch.device:
        """Always the CPU."""
        return torch.device("cpu")

    def forward(
        self,
        batch: EventBatch | Tensor,
        state: State = None,
        steps: int = 1,
        targets: Sequence[Targets | None] | None = None,
        step_scale: float | Tensor | None = None,
        reuse_state: bool = False,
    ) -> tuple[Outputs, State]:
        """Predict boxes as :meth:`Detector.forward` does.

        The state is a tuple of tensors, as the graph has them, and of the state of the history before the graph.
        """
        windows = len(batch)
        if steps < 1 or windows % steps:
            raise FateError(f"{windows} windows were given in clips of {steps}; expected a multiple")
        if targets is not None:
            raise FateError("an exported detector was to be trained; give the .safetensors file that it was made from")
        images = self.encoder(batch) if isinstance(batch, EventBatch) else batch
        self._check_images(images)
        if step_scale is None:
            step_scale = step_scale_of(batch) if isinstance(batch, EventBatch) else 1.0
        history_state: tuple[State, ...] = ()
        if self.history is not None:
            before = None
            if state is not None:
                *state, before = state
            images, after = self.history(images, before, steps, step_scale, reuse_state)
            history_state = (after,)
        of_windows = step_scale.float().expand(windows) if isinstance(step_scale, Tensor) else None
        rows, found = windows // steps, []
        memory = self._fresh(rows) if state is None else tuple(part.numpy() for part in state)
        pixels = images.numpy()
        for first in range(0, windows, rows):
            chosen = slice(first, first + rows)
            rates = self._rate(float(step_scale)) if of_windows is None else self._rates(of_windows[chosen])
            outputs, memory = self._step({IMAGE: pixels[chosen], **rates}, rows, memory)
            found.append(outputs)
        whole = found[0] if steps == 1 else {name: np.concatenate([each[name] for each in found]) for name in found[0]}
        return self._predictions(whole), (*(torch.from_numpy(part) for part in memory), *history_state)

    def _rate(self, scale: float) -> dict[str, NDArray[np.float32]]:
        """The inputs that depend on the step scale, for one that all windows share: the same arrays in every call."""
        if scale not in self._known_rates:
            if len(self._known_rates) == MOST_RATES:
                self._known_rates.clear()
            self._known_rates[scale] = self._rates(torch.full((self._streams,), scale))
        return self._known_rates[scale]

    def _rates(self, scales: Tensor) -> dict[str, NDArray[np.float32]]:
        """The inputs that depend on the step scales [B]."""
        return {"step_scale": scales.numpy()}

    def _predictions(self, found: dict[str, NDArray[Any]]) -> Outputs:
        """The outputs of the graph as those of a head."""
        boxes, scores = (torch.from_numpy(found[name]) for name in ("boxes", "class_scores"))
        objectness = torch.from_numpy(found["objectness"]).logit() if "objectness" in found else None
        return Outputs(boxes, scores.logit(), objectness)

    def _step(
        self, columns: dict[str, NDArray[np.float32]], rows: int, memory: tuple[NDArray[Any], ...]
    ) -> tuple[dict[str, NDArray[Any]], tuple[NDArray[Any], ...]]:
        """One window of each of B = ``rows`` streams: outputs by name, and the next state. Spare streams are zero.

        An array has a row for each of B streams. The inputs of a rate that all windows share have a row for each stream
        of the graph.
        """
        given = columns | dict(zip(self._pairs, memory, strict=True))
        if rows == self._streams:
            found = self.session({name: given[name] for name in self.session.inputs})
            return found, tuple(found[after] for after in self._pairs.values())
        parts = []
        for first in range(0, rows, self._streams):
            feed = {}
            for name in self.session.inputs:
                value = given[name]
                if len(value) != self._streams:
                    value = value[first : first + self._streams]
                spare = self._streams - len(value)
                feed[name] = np.pad(value, [(0, spare)] + [(0, 0)] * (value.ndim - 1)) if spare else value
            parts.append(self.session(feed))
        found = {name: np.concatenate([each[name] for each in parts])[:rows] for name in parts[0]}
        return found, tuple(found[after] for after in self._pairs.values())

    def _fresh(self, rows: int) -> tuple[NDArray[np.float32], ...]:
        """The initial state of so many streams."""
        return tuple(np.zeros((rows, *self.session.inputs[name][1:]), np.float32) for name in self._pairs)


def encoder_facts(detector: Detector) -> str:
    """The weights of a detector's encoder as text, for the metadata of a file."""
    entries = {name: value.detach().cpu().contiguous() for name, value in detector.encoder.state_dict().items()}
    return b64encode(save(entries)).decode()


def read_graph(path: str | Path, backend: Backend = "auto") -> tuple[GraphDetector, dict[str, Any]]:
    """The detector of a file that ``fate export`` wrote, and what the header of its weights said.

    ``backend`` "auto" is the usual runtime of the file: ONNX Runtime for .onnx, OpenVINO for .xml.
    """
    possible = GRAPH_FILES[Path(path).suffix.lower()]
    if backend not in ("auto", *possible):
        raise FateError(f"{path}: backend={backend} was given; a file of this kind runs in {' or '.join(possible)}")
    check_regular(path, "a file written by fate export")
    session = open_session(path, possible[0] if backend == "auto" else backend)
    facts = session.facts
    if not {"model", "classes", "sensor", "state_pairs", "card", "encoder"} <= facts.keys():
        raise FateError(
            f"{path}: lacks FATE's description of the detector; expected a file of this version of fate export:"
            " export the .safetensors file again"
        )
    if "image" not in session.inputs:
        raise FateError(
            f"{path}: was exported with its encoder, for programs without FATE; FATE brings its own encoder: export it"
            " again without its encoder"
        )
    for_own_use = FateError(
        f"{path}: is a graph that FATE made for its own use, with other inputs than a file of fate export; give the"
        " weights that it was made from, or export them (fate export)"
    )
    if not session.inputs.keys() <= {"image", "step_scale", *facts["state_pairs"]}:
        raise for_own_use
    try:
        frame_of = rebuild(facts["model"])
        if frame_of.history is not None and not any(name.startswith("state.history.") for name in session.inputs):
            raise for_own_use
        if session.backend == BF16:
            refuse_detector(frame_of, str(path))
            if facts.get("precision") == "int8":
                raise FateError(
                    f"{path}: was exported with int8, and its accuracy in bfloat16 was not measured; give"
                    " backend=openvino"
                )
        frame_of.encoder.load_state_dict(load(b64decode(facts["encoder"])))
    except FateError:
        raise
    except (SafetensorError, TypeError, ValueError, LookupError, AttributeError, RuntimeError):
        raise FateError(f"{path}: its description is damaged; export the detector again (fate export)") from None
    detector = GraphDetector(
        session, frame_of.encoder, frame_of.frame, facts["classes"], facts["model"], facts["state_pairs"]
    )
    return detector, facts["card"]
