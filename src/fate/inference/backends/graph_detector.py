"""A detector whose part behind the encoder runs as an exported graph, in ONNX Runtime or OpenVINO.

    detector = read_graph("nano.onnx")
    outputs, state = detector(batch, state)        # like every detector

It takes the place of a :class:`Detector` in streams, evaluations and sweeps, but it cannot be trained or moved to a
GPU. The encoder is FATE's own: its kernels are several times faster than a graph, and its weights are in the file.
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
from fate.inference.backends.sessions import GRAPH_FILES, Backend, Session, open_session
from fate.models.detector import Detector, Frame, step_scale_of
from fate.models.outputs import Outputs, Targets
from fate.models.state import State
from fate.models.zoo import rebuild


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
    ) -> None:
        super().__init__(encoder, nn.Identity(), nn.Identity(), nn.Identity(), frame, classes, None, description)
        self.session = session
        self._pairs = state_pairs  # the input of each part of the state, and the output that is its next value
        self._streams = session.inputs["image"][0]
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
    ) -> tuple[Outputs, State]:
        """Predict boxes as :meth:`Detector.forward` does; the state is a tuple of tensors, as the graph has them."""
        windows = len(batch)
        if steps < 1 or windows % steps:
            raise FateError(f"{windows} windows were given in clips of {steps}; expected a multiple")
        if targets is not None:
            raise FateError("an exported detector was to be trained; give the .safetensors file that it was made from")
        images = self.encoder(batch) if isinstance(batch, EventBatch) else batch
        self._check_images(images)
        if step_scale is None:
            step_scale = step_scale_of(batch) if isinstance(batch, EventBatch) else 1.0
        scales = np.broadcast_to(np.asarray(step_scale, np.float32), windows)
        rows, found = windows // steps, []
        memory = self._fresh(rows) if state is None else tuple(part.numpy() for part in state)
        pixels = images.numpy()
        for first in range(0, windows, rows):
            after = slice(first, first + rows)
            outputs, memory = self._step(pixels[after], scales[after], memory)
            found.append(outputs)
        whole = found[0] if steps == 1 else {name: np.concatenate([each[name] for each in found]) for name in found[0]}
        boxes, scores = (torch.from_numpy(whole[name]) for name in ("boxes", "class_scores"))
        objectness = torch.from_numpy(whole["objectness"]).logit() if "objectness" in whole else None
        return Outputs(boxes, scores.logit(), objectness), tuple(torch.from_numpy(part) for part in memory)

    def _step(
        self, images: NDArray[np.float32], scales: NDArray[np.float32], memory: tuple[NDArray[Any], ...]
    ) -> tuple[dict[str, NDArray[Any]], tuple[NDArray[Any], ...]]:
        """One window of each stream [B, …]: outputs by name, and the next state. Spare streams are zero."""
        parts, rows = [], len(images)
        for first in range(0, rows, self._streams):
            given = {"image": images, "step_scale": scales, **dict(zip(self._pairs, memory, strict=True))}
            feed = {}
            for name in self.session.inputs:
                value = given[name][first : first + self._streams]
                spare = self._streams - len(value)
                feed[name] = np.pad(value, [(0, spare)] + [(0, 0)] * (value.ndim - 1)) if spare else value
            parts.append(self.session(feed))
        found = parts[0]
        if rows != self._streams:
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
    try:
        frame_of = rebuild(facts["model"])
        frame_of.encoder.load_state_dict(load(b64decode(facts["encoder"])))
    except FateError:
        raise
    except (SafetensorError, TypeError, ValueError, LookupError, AttributeError, RuntimeError):
        raise FateError(f"{path}: its description is damaged; export the detector again (fate export)") from None
    detector = GraphDetector(
        session, frame_of.encoder, frame_of.frame, facts["classes"], facts["model"], facts["state_pairs"]
    )
    return detector, facts["card"]
