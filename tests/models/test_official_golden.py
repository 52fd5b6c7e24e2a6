"""Known outputs of the public detectors, from files in their own containers through the importer's own mapping.

The weights are those of the golden rule: each number follows from its public name, so an entry in a wrong place shows.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.models.boxes import cxcywh_from_xyxy
from fate.models.checkpoints.importing import import_checkpoint
from fate.models.detector import Detector
from fate.models.outputs import Outputs
from fate.models.state import State
from tests.models.test_official import write

Arrays = dict[str, NDArray[Any]]
Close = Callable[[Tensor, Arrays, str, float], None]
Import = Callable[[str], Detector]

PADDED = torch.tensor([320, 256, 320, 256])


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory, golden_weights: Callable[..., dict[str, Tensor]]) -> Import:
    """``imported("rvt_b_gen1")``: the detector of a public checkpoint of these weights."""

    def load(keys: str) -> Detector:
        return import_checkpoint(write(golden_weights(keys), tmp_path_factory.mktemp(keys) / "public")).detector

    return load


@pytest.fixture(scope="module")
def images(golden_rule: ModuleType) -> Tensor:
    """[T, B, C, H, W]."""
    return torch.from_numpy(golden_rule.normal("input", (3, 2, 20, 256, 320)).astype(np.float32))


class Watched:
    """A detector of which the output of every stage, and of the neck, is kept."""

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self.maps: dict[str, Tensor] = {}
        for index, stage in enumerate(detector.backbone.stages):  # type: ignore[arg-type]
            stage.register_forward_hook(self._keeper(f"stage{index + 1}"))
        detector.neck.register_forward_hook(self._keep_neck)

    def _keeper(self, name: str) -> Callable[..., None]:
        def keep(_: Any, __: Any, result: tuple[Tensor, State]) -> None:
            self.maps[name] = result[0]

        return keep

    def _keep_neck(self, _: Any, __: Any, result: list[Tensor]) -> None:
        self.maps.update({f"fpn{level}": of_level for level, of_level in enumerate(result)})

    def __call__(self, images: Tensor, state: State = None, steps: int = 1) -> tuple[Outputs, State]:
        with torch.inference_mode():
            result: tuple[Outputs, State] = self.detector(images, state, steps)
        return result


def prediction(outputs: Outputs) -> Tensor:
    """[N, Q, 7] as the public head gives it: cx, cy, w, h in pixels, probabilities of an object and of the classes."""
    assert outputs.objectness is not None
    probabilities = outputs.objectness.sigmoid()[..., None], outputs.class_logits.sigmoid()
    return torch.cat([cxcywh_from_xyxy(outputs.boxes), *probabilities], dim=-1)


def decoded(raw: NDArray[Any]) -> NDArray[Any]:
    """What the public head makes of what its convolutions say (YOLOX: cells of strides 8, 16, 32, row by row)."""
    cells = [(x, y, stride) for stride in (8, 16, 32) for y in range(256 // stride) for x in range(320 // stride)]
    x, y, stride = np.array(cells, dtype=np.float64).T
    boxes = [(raw[..., 0] + x) * stride, (raw[..., 1] + y) * stride, *(np.exp(raw[..., i]) * stride for i in (2, 3))]
    return np.concatenate([np.stack(boxes, axis=-1), raw[..., 4:]], axis=-1)


def same_predictions(outputs: Tensor, known: Arrays, name: str) -> None:
    """Within float32's steps at 300 pixels, against the head's own boxes and those made of its raw numbers."""
    np.testing.assert_allclose(outputs, decoded(known[f"{name}_head_raw"]), rtol=0, atol=6e-5)
    if f"{name}_head_decoded" in known:
        np.testing.assert_allclose(outputs, known[f"{name}_head_decoded"], rtol=0, atol=4e-5)


@pytest.mark.slow
def test_rvt_gives_the_known_outputs_with_the_state_it_carries(
    imported: Import, images: Tensor, golden: Callable[[str], Arrays], close_to_golden: Close
) -> None:
    detector, known, state = Watched(imported("rvt_b_gen1")), golden("rvt_b"), None
    for t, image in enumerate(images):
        outputs, state = detector(image, state)
        cells: Any = state[0]  # type: ignore[index]
        for stage in range(4):
            close_to_golden(detector.maps[f"stage{stage + 1}"], known, f"t{t}_stage{stage + 1}", 2e-6)
            close_to_golden(cells[stage][1].permute(0, 3, 1, 2), known, f"t{t}_cell{stage + 1}", 3e-6)
        for level in range(3):
            close_to_golden(detector.maps[f"fpn{level}"], known, f"t{t}_fpn{level}", 1e-6)
        same_predictions(prediction(outputs), known, f"t{t}")
        close_to_golden(prediction(outputs), known, f"t{t}_head_decoded", 4e-5)


@pytest.mark.slow
def test_s5_vit_gives_the_known_outputs_of_a_clip_and_of_single_steps(
    imported: Import, images: Tensor, golden: Callable[[str], Arrays], close_to_golden: Close
) -> None:
    detector, known = Watched(imported("s5vit_b_gen1")), golden("s5vit_b")
    outputs, state = detector(images.flatten(0, 1), None, steps=3)
    states: Any = state[0]  # type: ignore[index]
    for t in range(3):
        window = slice(2 * t, 2 * t + 2)
        for name, value in detector.maps.items():
            close_to_golden(value[window], known, f"clip_t{t}_{name}", 1e-5)
        same_predictions(prediction(outputs)[window], known, f"clip_t{t}")
    for stage in range(4):
        pairs = torch.stack(states[stage].permute(0, 3, 1, 2).chunk(2, dim=1), dim=-1)  # real, imaginary
        close_to_golden(pairs, known, f"clip_state{stage + 1}", 1e-6)
    for t, image in enumerate(images):  # the state of the clip does not reach what comes out, as in the public code
        outputs, state = detector(image, state)
        for stage in range(4):
            close_to_golden(detector.maps[f"stage{stage + 1}"], known, f"step_t{t}_stage{stage + 1}", 1e-5)
        same_predictions(prediction(outputs), known, f"step_t{t}")


@pytest.mark.slow
def test_evrt_detr_gives_the_known_predictions_with_the_state_it_carries(
    imported: Import, images: Tensor, golden: Callable[[str], Arrays], close_to_golden: Close
) -> None:
    detector, known, state = imported("evrtdetr_b_gen1"), golden("evrtdetr_b"), None
    scores: list[Tensor] = []
    detector.head.cell_scores.register_forward_hook(lambda _, __, result: scores.append(result))  # type: ignore[union-attr]
    for t, image in enumerate(images):
        with torch.inference_mode():
            outputs, state = detector(image, state)
        memory: Any = state[1]  # type: ignore[index]
        for level in range(3):
            close_to_golden(memory[level][0], known, f"t{t}_hidden{level}", 1e-6)
            close_to_golden(memory[level][1], known, f"t{t}_cell{level}", 1e-6)
        close_to_golden(scores[t], known, f"t{t}_enc_class", 1e-5)
        chosen = scores[t].amax(dim=-1).topk(300, dim=1).indices
        boxes = cxcywh_from_xyxy(outputs.boxes) / PADDED
        for window in range(2):
            public = torch.from_numpy(known[f"t{t}_topk_ind"][window])
            assert set(public.tolist()) == set(chosen[window].tolist())
            query = {token: place for place, token in enumerate(chosen[window].tolist())}
            aligned = [query[token] for token in public.tolist()]
            for mine, name in ((outputs.class_logits, "logits"), (boxes, "boxes")):
                expected = known[f"t{t}_pred_{name}"][window]
                np.testing.assert_allclose(mine[window, aligned], expected, rtol=0, atol=1e-5)
