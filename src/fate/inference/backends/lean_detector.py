"""A detector behind whose encoder a lean graph runs; see ``lean_graph.py``."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.inference.backends.graph_detector import GraphDetector
from fate.inference.backends.sessions import Session
from fate.inference.lean_graph import RAW, decoded, layers_with_rate, rates_of
from fate.models.detector import Detector
from fate.models.heads.yolox import YOLOXHead, cells_of
from fate.models.outputs import Outputs
from fate.models.state import State


class LeanDetector(GraphDetector):
    """A ``GraphDetector`` that computes the inputs of the rate, and decodes boxes itself."""

    def __init__(self, session: Session, detector: Detector) -> None:
        """``session`` has the graph of ``detector``, which is copied as far as it is needed."""
        encoder, history = copy.deepcopy((detector.encoder, detector.history))
        pairs = session.facts["state_pairs"]
        super().__init__(session, encoder, detector.frame, detector.classes, detector.description, pairs, history)
        self._layers = layers_with_rate(detector)
        strides = YOLOXHead.STRIDES
        sizes = [(detector.frame.padded.height // each, detector.frame.padded.width // each) for each in strides]
        self._cells, self._cell_strides = (part.numpy() for part in cells_of(sizes, strides))

    def _rates(self, scales: Tensor) -> dict[str, NDArray[np.float32]]:
        return rates_of(self._layers, scales)

    def _predictions(self, found: dict[str, NDArray[Any]]) -> Outputs:
        raw = found[RAW]
        boxes = decoded(raw, self._cells, self._cell_strides)
        return Outputs(*(torch.from_numpy(each) for each in (boxes, raw[..., 5:], raw[..., 4])))

    @staticmethod
    def as_in_torch(state: State) -> list[Tensor]:
        """The state of each stage as a detector in torch has it, but for its shape: [B, L, 2·P]; and the history."""
        parts: Any = state
        stages = [part.transpose(1, 2).flatten(2) for part in parts if isinstance(part, Tensor)]
        return stages + [each for part in parts if isinstance(part, tuple) for each in part]
