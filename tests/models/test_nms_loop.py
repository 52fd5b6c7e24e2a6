"""The compiled choice of boxes on the CPU: the result of the tensors' version, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fate.models.nms import (
    Score,
    best_classes,
    best_proposals,
    can_loop,
    detections,
    detections_by_loop,
    detections_by_tensors,
    detections_of_rows,
)
from fate.models.outputs import Outputs

SENSOR = (60, 90)


def some_outputs(seed: int, windows: int = 2, queries: int = 400, classes: int = 3) -> Outputs:
    """Boxes that overlap and leave the sensor; logits are parts of one tensor, and many of them are equal."""
    draw = torch.Generator().manual_seed(seed)
    raw = torch.randn(windows, queries, 1 + classes, generator=draw) * 2
    raw[:, ::3] = raw[:, ::3].round()
    centre = torch.rand(windows, queries, 2, generator=draw) * torch.tensor([120.0, 80.0]) - 15
    half = torch.rand(windows, queries, 2, generator=draw) * 12
    return Outputs(torch.cat([centre - half, centre + half], -1), raw[..., 1:], raw[..., 0])


def assert_equal(outputs: Outputs, **options: object) -> int:
    """Compare both versions; the number of boxes."""
    found = detections_by_loop(outputs, SENSOR, **options)  # type: ignore[arg-type]
    expected = detections_by_tensors(outputs, SENSOR, **options)  # type: ignore[arg-type]
    for ours, theirs in zip(found, expected, strict=True):
        for name, own, other in zip(ours._fields, ours, theirs, strict=True):
            assert own is not None
            assert other is not None
            assert torch.equal(own, other), name
            assert own.dtype == other.dtype
            assert not own.is_inference()
    return sum(len(each.boxes) for each in found)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("confidence", [0.0, 0.001, 0.05, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("score", ["class", "product"])
def test_the_loop_finds_the_boxes_of_the_tensors(seed: int, confidence: float, score: Score) -> None:
    with torch.inference_mode():
        for max_overlap in (None, 0.0, 0.3, 1.0):
            options = {"confidence": confidence, "score": score, "max_overlap": max_overlap}
            assert (assert_equal(some_outputs(seed), **options) > 0) == (confidence < 0.9)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("confidence", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("score", ["class", "product"])
@pytest.mark.parametrize("max_overlap", [None, 0.0, 1.0])
@pytest.mark.parametrize("objectness", [True, False])
def test_sorted_proposals_become_the_boxes_of_the_tensors(
    seed: int, confidence: float, score: Score, max_overlap: float | None, objectness: bool
) -> None:
    outputs = some_outputs(seed) if objectness else some_outputs(seed)._replace(objectness=None)
    best = best_proposals(outputs, confidence, 400) if objectness else best_classes(outputs, confidence, 300)
    last = best.scores if best.objectness is None else best.objectness
    columns = (best.confidences, best.scores, best.class_ids.float(), last)
    rows = torch.cat([best.boxes, torch.stack(columns, -1)], -1)
    found = detections_of_rows(rows, SENSOR, score, max_overlap, objectness=objectness)
    expected = detections_by_tensors(outputs, SENSOR, confidence, score, max_overlap)
    assert (sum(len(each.boxes) for each in found) > 0) == (confidence < (0.9 if objectness else 0.999))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.objectness is None) == (theirs.objectness is None) == (not objectness)
        for name, own, other in zip(ours._fields[: 3 + objectness], ours, theirs, strict=False):
            assert torch.equal(own, other), name
            assert own.dtype == other.dtype


def test_predictions_that_are_no_numbers_or_certain_are_treated_alike() -> None:
    outputs = some_outputs(1)
    for column, value in ((outputs.class_logits, 50.0), (outputs.objectness, 80.0)):
        assert column is not None
        column[:, 5:9] = value
    outputs.class_logits[0, 5, 1] = torch.nan
    outputs.objectness[0, 6] = torch.nan  # type: ignore[index]
    outputs.class_logits[0, 7, 0] = torch.inf
    outputs.boxes[1, 8, 2] = torch.inf
    for confidence in (0.0, 0.5, 1.0):
        assert assert_equal(outputs, confidence=confidence) > 0


def test_windows_without_boxes_and_windows_of_one_class() -> None:
    assert assert_equal(some_outputs(2)._replace(objectness=torch.full((2, 400), -30.0)), confidence=0.01) == 0
    assert assert_equal(some_outputs(2, classes=1), confidence=0.01) > 0
    assert assert_equal(some_outputs(2, windows=1, queries=1), confidence=0.0) <= 1


def test_only_float32_with_objectness_is_left_to_the_loop() -> None:
    outputs = some_outputs(3)
    assert can_loop(outputs)

    def half(part: Tensor | None) -> Tensor:
        assert part is not None
        return part.bfloat16()

    rounded = Outputs(outputs.boxes, half(outputs.class_logits), half(outputs.objectness))
    assert not can_loop(rounded)
    assert not can_loop(outputs._replace(objectness=None))
    assert len(detections(rounded, SENSOR)) == 2
