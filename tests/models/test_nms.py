"""Post-processing: greedy NMS against a plain loop on every device, scores, clipping, ties, top queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fate.errors import FateError
from fate.models import nms
from fate.models.boxes import iou
from fate.models.nms import Candidates, Detections, best_proposals, detections, suppress_by_loop, suppress_by_tensors
from fate.models.outputs import Outputs

SENSOR = (240, 304)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")),
]


VERSIONS = {"compiled loop": suppress_by_loop, "tensors": suppress_by_tensors}
version = pytest.mark.parametrize("suppress", VERSIONS.values(), ids=VERSIONS.keys())
Suppress = Callable[[Candidates, float], Tensor]


def greedy(boxes: Tensor, class_ids: Tensor, max_overlap: float) -> list[int]:
    """Places that stay, of boxes given best first."""
    kept: list[int] = []
    for one in range(len(boxes)):
        if all(class_ids[one] != class_ids[two] or iou(boxes[one], boxes[two]) <= max_overlap for two in kept):
            kept.append(one)
    return kept


def candidates_of(boxes: Tensor, class_ids: Tensor, there: int | None = None) -> Candidates:
    """One window; all but the first ``there`` are below the confidence."""
    confidences = torch.linspace(1, 0.5, len(boxes))
    if there is not None:
        confidences[there:] = -1
    return Candidates(boxes[None], confidences[None], confidences[None], class_ids[None], None)


def proposals(windows: int = 2, count: int = 120, classes: int = 3, seed: int = 0, device: str = "cpu") -> Outputs:
    """Boxes in heaps, as detectors make them."""
    generator = torch.Generator().manual_seed(seed)
    heaps = torch.rand(windows, 6, 2, generator=generator) * torch.tensor([304.0, 240.0])
    of = torch.randint(0, 6, (windows, count), generator=generator)
    centre = heaps.gather(1, of[:, :, None].expand(-1, -1, 2)) + 6 * torch.randn(windows, count, 2, generator=generator)
    half = 12 + 8 * torch.rand(windows, count, 2, generator=generator)
    return Outputs(
        torch.cat([centre - half, centre + half], -1).to(device),
        2 * torch.randn(windows, count, classes, generator=generator).to(device),
        2 * torch.randn(windows, count, generator=generator).to(device) - 1,
    )


def same(first: Detections, second: Detections) -> bool:
    """To the last digit but one: processors take the ends of an array through another sigmoid."""
    pairs = [pair for pair in zip(first, second, strict=True) if pair[0] is not None and pair[1] is not None]
    return all(one.shape == two.shape and torch.allclose(one, two, rtol=1e-6, atol=0) for one, two in pairs)


boxes_on_a_grid = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 6), st.integers(1, 6), st.integers(0, 1)),
    min_size=1,
    max_size=40,
)


@version
@settings(max_examples=60, deadline=None)
@given(rows=boxes_on_a_grid, max_overlap=st.sampled_from([0.0, 0.25, 0.45, 0.5, 1.0]))
def test_what_stays_is_what_a_plain_greedy_loop_keeps(
    suppress: Suppress, rows: list[tuple[int, int, int, int, int]], max_overlap: float
) -> None:
    x, y, width, height, class_ids = torch.tensor(rows).unbind(1)
    boxes = torch.stack([x, y, x + width, y + height], 1).float()
    stays = suppress(candidates_of(boxes, class_ids), max_overlap)
    assert stays.shape == (1, len(rows))
    assert stays[0].nonzero().flatten().tolist() == greedy(boxes, class_ids, max_overlap)


@version
def test_a_long_chain_of_overlaps_is_followed_to_its_end(suppress: Suppress) -> None:
    # Each box pushes out the next and so saves the one after it.
    left = 4.0 * torch.arange(101)
    boxes = torch.stack([left, torch.zeros(101), left + 10, torch.ones(101)], 1)
    stays = suppress(candidates_of(boxes, torch.zeros(101, dtype=torch.int64)), 0.4)
    assert stays[0].tolist() == [number % 2 == 0 for number in range(101)]


@version
def test_boxes_below_the_confidence_neither_stay_nor_push_others_out(suppress: Suppress) -> None:
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0], [50.0, 50.0, 60.0, 60.0]])
    assert suppress(candidates_of(boxes, torch.zeros(3, dtype=torch.int64), there=1), 0.45).tolist() == [
        [True, False, False]
    ]
    assert suppress(candidates_of(boxes[:0], torch.zeros(0, dtype=torch.int64)), 0.45).shape == (1, 0)


@pytest.mark.parametrize("pairs_at_once", [1, 1 << 24])
def test_both_versions_agree_on_many_windows_however_they_are_cut(
    pairs_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = best_proposals(proposals(7, 200), 0.001)
    monkeypatch.setattr(nms, "PAIRS_AT_ONCE", pairs_at_once)
    stays = suppress_by_loop(found, 0.45)
    assert suppress_by_tensors(found, 0.45).equal(stays)
    assert stays.any()
    assert not stays.all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", ["class", "product"])
def test_detections_are_those_of_the_public_recipe(score: nms.Score, device: str) -> None:
    outputs = proposals(3, device=device)
    assert outputs.objectness is not None
    for window, found in enumerate(detections(outputs, SENSOR, confidence=0.05, score=score)):
        boxes, classes, objects = (part[window].cpu() for part in outputs[:3])
        of_class, class_ids = classes.sigmoid().max(1)
        product = objects.sigmoid() * of_class
        order = [int(n) for n in product.argsort(descending=True) if product[n] >= 0.05]
        order = [order[n] for n in greedy(boxes[order], class_ids[order], 0.45)]
        assert len(order) > 5
        clipped = boxes[order].clamp(min=0).minimum(torch.tensor([304.0, 240.0, 304.0, 240.0]))
        torch.testing.assert_close(found.boxes.cpu(), clipped)
        torch.testing.assert_close(found.scores.cpu(), of_class[order] if score == "class" else product[order])
        assert found.class_ids.tolist() == class_ids[order].tolist()
        assert found.objectness is not None
        torch.testing.assert_close(found.objectness.cpu(), objects.sigmoid()[order])


def test_the_order_of_predictions_does_not_matter() -> None:
    outputs = proposals()
    shuffle = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    shuffled = Outputs(*(part[:, shuffle] for part in outputs[:3] if part is not None))
    for first, second in zip(detections(outputs, SENSOR), detections(shuffled, SENSOR), strict=True):
        assert same(first, second)


def test_classes_are_suppressed_as_if_they_were_alone() -> None:
    outputs = proposals(1)
    together = detections(outputs, SENSOR)[0]
    best = outputs.class_logits.argmax(-1)[0]
    for class_id in range(3):
        only = Outputs(*(part[:, best == class_id] for part in outputs[:3] if part is not None))
        alone, chosen = detections(only, SENSOR)[0], together.class_ids == class_id
        assert len(alone.boxes) > 1
        assert alone.boxes.equal(together.boxes[chosen])


@pytest.mark.parametrize("device", DEVICES)
def test_of_equal_scores_the_first_prediction_wins(device: str) -> None:
    left = torch.tensor([0.0, 1.0, 2.0, 100.0])
    boxes = torch.stack([left, torch.zeros(4), left + 20, torch.full((4,), 20.0)], 1)
    outputs = Outputs(boxes[None].to(device), torch.ones(1, 4, 2, device=device), torch.ones(1, 4, device=device))
    found = detections(outputs, SENSOR)[0]
    assert found.boxes[:, 0].tolist() == [0.0, 100.0]
    assert found.class_ids.tolist() == [0, 0]


def test_boxes_are_clipped_to_the_sensor_and_those_without_area_left_out() -> None:
    boxes = torch.tensor(
        [[-10.0, -10.0, 20.0, 20.0], [310.0, 10.0, 315.0, 20.0], [50.0, 50.0, 50.0, 60.0], [290.0, 230.0, 999.0, 999.0]]
    )
    boxes = torch.cat([boxes, torch.full((1, 4), torch.nan)])
    for objectness in (torch.ones(1, 5), None):
        found = detections(Outputs(boxes[None], torch.ones(1, 5, 1), objectness), SENSOR)[0]
        assert found.boxes.tolist() == [[0.0, 0.0, 20.0, 20.0], [290.0, 230.0, 304.0, 240.0]]


def test_the_threshold_is_on_the_product_and_includes_its_value() -> None:
    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [20.0, 0.0, 29.0, 9.0], [40.0, 0.0, 49.0, 9.0]])
    outputs = Outputs(boxes[None], torch.zeros(1, 3, 1), torch.tensor([[0.0, 0.1, -0.1]]))
    found = detections(outputs, SENSOR, confidence=0.25)[0]
    assert found.boxes[:, 0].tolist() == [20.0, 0.0]
    assert found.scores.tolist() == [0.5, 0.5]


def test_nothing_above_the_threshold_is_no_detections_and_no_windows_is_no_list() -> None:
    outputs = proposals()
    for part in (outputs, outputs._replace(objectness=None)):
        for found in detections(part, SENSOR, confidence=1.1):
            assert [tuple(column.shape) for column in found[:3]] == [(0, 4), (0,), (0,)]
        empty = Outputs(*(None if column is None else column[:0] for column in part[:3]))  # type: ignore[arg-type]
        assert detections(empty, SENSOR) == []


def test_a_score_that_is_not_a_number_is_not_a_detection() -> None:
    outputs = proposals(1)
    assert outputs.objectness is not None
    spoilt = outputs._replace(objectness=outputs.objectness.index_fill(1, torch.tensor([3]), torch.nan))
    rest = Outputs(*(part[:, torch.arange(120) != 3] for part in outputs[:3] if part is not None))
    assert same(detections(spoilt, SENSOR)[0], detections(rest, SENSOR)[0])


def test_candidates_of_a_fixed_number_hold_the_best_and_suppress_alike() -> None:
    outputs = proposals(3)
    every, fixed = best_proposals(outputs, 0.001), best_proposals(outputs, 0.001, most=50)
    assert fixed.boxes.shape == (3, 50, 4)
    assert fixed.confidences.equal(every.confidences[:, :50])
    assert suppress_by_loop(fixed, 0.45).equal(suppress_by_loop(every, 0.45)[:, :50])
    assert best_proposals(outputs, 0.001, most=1000).boxes.shape == (3, 120, 4)


def test_duplicates_of_heads_without_objectness_go_only_if_an_overlap_is_given() -> None:
    boxes = torch.tensor([[0.0, 0.0, 40.0, 20.0], [1.0, 0.0, 41.0, 20.0], [100.0, 0.0, 140.0, 20.0]])
    logits = torch.tensor([[3.0, -9.0], [2.0, -9.0], [1.0, -9.0]])
    outputs = Outputs(boxes[None], logits[None], None)
    assert detections(outputs, SENSOR, confidence=0.1)[0].boxes[:, 0].tolist() == [0.0, 1.0, 100.0]
    assert detections(outputs, SENSOR, confidence=0.1, max_overlap=0.45)[0].boxes[:, 0].tolist() == [0.0, 100.0]
    assert detections(outputs, SENSOR, confidence=0.1, max_overlap=1.0)[0].boxes[:, 0].tolist() == [0.0, 1.0, 100.0]
    other_class = outputs._replace(class_logits=torch.tensor([[3.0, -9.0], [-9.0, 2.0], [1.0, -9.0]])[None])
    assert len(detections(other_class, SENSOR, confidence=0.1, max_overlap=0.45)[0].boxes) == 3


def test_queries_without_objectness_give_their_best_pairs_of_query_and_class() -> None:
    outputs = proposals(2, 60)._replace(objectness=None)
    for window, found in enumerate(detections(outputs, (10_000, 10_000), confidence=0, most=40)):
        inside = [
            (-float(score), query, class_id)
            for query, scores in enumerate(outputs.class_logits[window].sigmoid())
            for class_id, score in enumerate(scores)
        ]
        chosen = sorted(inside)[:40]
        expected = outputs.boxes[window, [query for _, query, _ in chosen]].clamp(min=0)
        visible = ((expected[:, 2] > 0) & (expected[:, 3] > 0)).nonzero().flatten().tolist()
        torch.testing.assert_close(found.boxes, expected[visible])
        assert found.class_ids.tolist() == [chosen[number][2] for number in visible]
        torch.testing.assert_close(found.scores, torch.tensor([-chosen[number][0] for number in visible]))
        assert found.objectness is None


def test_bad_usage_says_what_was_expected() -> None:
    with pytest.raises(FateError, match="expected one of 'class', 'product'"):
        detections(proposals(), SENSOR, score="objectness")  # type: ignore[arg-type]
    with pytest.raises(FateError, match="without objectness"):
        best_proposals(proposals()._replace(objectness=None), 0.1)


@version
def test_no_windows_have_nothing(suppress: Suppress) -> None:
    none = candidates_of(torch.zeros(5, 4), torch.zeros(5, dtype=torch.int64))
    empty = Candidates(none.boxes[:0], none.confidences[:0], none.scores[:0], none.class_ids[:0], None)
    assert suppress(empty, 0.45).shape == (0, 5)


@pytest.mark.parametrize("given", [[0.4], "half", True, 1.5])
def test_a_wrong_overlap_is_refused(given: Any) -> None:
    with pytest.raises(FateError, match="max_overlap.*0 to 1"):
        detections(Outputs(torch.zeros(1, 2, 4), torch.zeros(1, 2, 1), torch.zeros(1, 2)), SENSOR, max_overlap=given)
