"""Predictions on neutral boxes are not taught as background, and nothing else about the losses changes."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from fate.errors import FateError
from fate.models.boxes import cxcywh_from_xyxy, lie_in_neutral, xyxy_from_cxcywh
from fate.models.heads.matching import Matches, match
from fate.models.heads.rtdetr import Predictions, detr_loss, set_losses
from fate.models.heads.yolox import Anchors, PaddedTargets, YOLOXHead, assign
from fate.models.outputs import FlatTargets, Outputs, Targets
from tests.models.test_rtdetr_loss import FRAME, NAMES, SIDES, outputs_of, predictions, targets_of
from tests.models.test_yolox_loss import CLASSES, problem

CPU = torch.device("cpu")
#: Neutral boxes of three windows: one, none and two of them, xyxy in pixels.
NEUTRAL = [[[20.0, 10.0, 90.0, 70.0]], [], [[0.0, 0.0, 60.0, 128.0], [100.0, 40.0, 160.0, 100.0]]]


def with_neutral(targets: list[Targets]) -> list[Targets]:
    return [
        target._replace(neutral=torch.tensor(boxes).reshape(-1, 4))
        for target, boxes in zip(targets, NEUTRAL, strict=True)
    ]


def share_inside(box: list[float], neutral: list[float]) -> float:
    width = min(box[2], neutral[2]) - max(box[0], neutral[0])
    height = min(box[3], neutral[3]) - max(box[1], neutral[1])
    area = (box[2] - box[0]) * (box[3] - box[1])
    return max(width, 0.0) * max(height, 0.0) / area if area > 0 else 0.0


def on_neutral(boxes: Tensor) -> Tensor:
    """Which boxes [3, Q, 4] lie in a box of ``NEUTRAL``, one after the other: [3, Q] bool."""
    rows = [
        [any(share_inside(box, other) >= 0.5 for other in neutral) for box in window]
        for window, neutral in zip(boxes.tolist(), NEUTRAL, strict=True)
    ]
    return torch.tensor(rows)


def test_a_box_is_on_a_neutral_one_if_half_of_it_lies_inside() -> None:
    neutral = [[0.0, 0.0, 10.0, 10.0], [30.0, 0.0, 40.0, 10.0], [0.0, 0.0, 0.0, 0.0]]
    inside, outside = (
        [[5.0, 0, 15, 10], [2, 2, 3, 3], [35, 0, 45, 9]],
        [[5.1, 0, 15, 10], [-5, -5, 25, 25], [5, 5, 5, 9]],
    )
    apart = [[8.0, 0, 32, 10]]  # a twelfth in each of two
    found = lie_in_neutral(torch.tensor(inside + outside + apart), torch.tensor(neutral))
    assert found.tolist() == [True] * 3 + [False] * 4


def test_yolox_leaves_out_the_objectness_of_predictions_on_neutral_boxes_and_nothing_else() -> None:
    outputs, targets = problem([3, 4, 2])
    assert outputs.objectness is not None
    plain, terms = YOLOXHead.loss(outputs, targets), YOLOXHead.loss(outputs, with_neutral(targets))
    padded = PaddedTargets.of(targets, CLASSES, CPU)
    found = assign(outputs.boxes, outputs.class_logits, outputs.objectness, outputs.training, padded)
    left_out = on_neutral(outputs.boxes) & ~found.matched
    assert left_out.sum() > 20
    assert (on_neutral(outputs.boxes) & found.matched).any()
    kept = cross_entropy(outputs.objectness, found.matched.float(), reduction="none")[~left_out].sum()
    torch.testing.assert_close(terms["objectness"], kept / found.matched.sum())
    assert torch.equal(terms["iou"], plain["iou"])
    assert torch.equal(terms["class"], plain["class"])
    (gradient,) = torch.autograd.grad(terms["objectness"], outputs.objectness)
    assert torch.equal(gradient == 0, left_out)


def test_detr_leaves_out_the_scores_of_unmatched_queries_on_neutral_boxes_and_nothing_else() -> None:
    torch.manual_seed(0)
    given, plain = predictions(2, 3, queries=60), targets_of(2, 0, 3)
    given = given._replace(boxes=given.boxes.detach() * torch.tensor([1.0, 1.0, 0.4, 0.4]))  # small ones
    size = torch.tensor([320, 256, 320, 256])
    windows = with_neutral([Targets.of(torch.zeros(0, 4), torch.zeros(0))] * 3)
    neutral = FlatTargets.of(windows, FRAME, 3, CPU).neutral
    assert neutral is not None
    torch.testing.assert_close(xyxy_from_cxcywh(neutral[2]) * size, torch.tensor(NEUTRAL[2]))
    matches = match(*given, plain)
    first, terms = (set_losses(given, matches, flat) for flat in (plain, plain._replace(neutral=neutral)))
    assert torch.equal(terms[1:], first[1:])
    (gradient,) = torch.autograd.grad(terms[0].sum(), given.logits, retain_graph=True)
    (before,) = torch.autograd.grad(first[0].sum(), given.logits)
    inside = torch.stack([on_neutral(xyxy_from_cxcywh(boxes) * size) for boxes in given.boxes])
    matched = torch.zeros_like(inside)
    matched[torch.arange(2)[:, None], matches.window, matches.query] = True
    left_out = inside & ~matched
    assert left_out.sum() > 5
    assert (gradient[left_out] == 0).all()
    assert torch.equal(gradient[~left_out], before[~left_out])
    assert (before[left_out] != 0).all()


def test_neutral_boxes_give_no_pairs_and_do_not_change_what_the_loss_is_divided_by() -> None:
    torch.manual_seed(0)
    outputs, flat = outputs_of(3), targets_of(1, 0, 2)
    whole = torch.tensor([[[0.5, 0.5, 1.0, 1.0]]]).expand(3, 1, 4)  # all of the frame
    plain, terms = detr_loss(outputs, flat), detr_loss(outputs, flat._replace(neutral=whole))
    for name in NAMES:
        if name.startswith("class"):
            assert terms[name] < plain[name] if name == "class" else terms[name] <= plain[name]
        else:
            assert torch.equal(terms[name], plain[name])


def test_neutral_boxes_of_a_window_do_not_reach_others() -> None:
    outputs, targets = problem([3, 3, 3], seed=1)
    whole = torch.tensor([[-1e3, -1e3, 1e3, 1e3]])
    changed = [targets[0]._replace(neutral=whole), *targets[1:]]
    terms = YOLOXHead.loss(outputs, changed)
    assert outputs.objectness is not None
    (gradient,) = torch.autograd.grad(terms["objectness"], outputs.objectness)
    assert (gradient[0] == 0).float().mean() > 0.9
    assert (gradient[1:] != 0).all()


def test_no_value_of_the_device_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which meta does not have
    outputs, targets = problem([3, 0, 7])
    shapes = Outputs(*(part.detach().to("meta").requires_grad_() for part in outputs[:3]))  # type: ignore[union-attr]
    anchors = Anchors(*(part.to("meta") for part in outputs.training))
    terms = YOLOXHead.loss(shapes._replace(training=anchors), with_neutral(targets))
    assert torch.stack(list(terms.values())).sum().is_meta
    given, flat = predictions(2, 2), targets_of(2, 1)
    neutral = torch.tensor([[[0.5, 0.5, 1.0, 1.0]]]).expand(2, 1, 4)
    matches = Matches(*(part.to("meta") for part in match(*given, flat)))
    shapes_of_targets = FlatTargets(*(part.to("meta") for part in flat[:5]), flat.counts, neutral.to("meta"))
    assert set_losses(Predictions(*(part.to("meta") for part in given)), matches, shapes_of_targets).is_meta


@pytest.mark.parametrize("box", [[5.0, 0.0, 4.0, 9.0], [0.0, 0.0, float("nan"), 9.0], [0.0, 0.0, float("inf"), 9.0]])
def test_a_neutral_box_that_is_none_is_refused(box: list[float]) -> None:
    window = Targets.of(torch.zeros(0, 4), torch.zeros(0), neutral=torch.tensor([box]))
    with pytest.raises(FateError, match="neutral box"):
        FlatTargets.of([window], None, 2, CPU)


def test_without_neutral_boxes_nothing_is_computed_for_them() -> None:
    targets = problem([2, 0])[1]
    assert FlatTargets.of(targets, FRAME, CLASSES, CPU).neutral is None
    boxes = torch.tensor([[2.0, 3.0, 40.0, 50.0]])
    flat = FlatTargets.of([Targets.of(boxes, torch.zeros(1), neutral=boxes)], FRAME, CLASSES, CPU)
    assert flat.neutral is not None
    torch.testing.assert_close(flat.neutral, cxcywh_from_xyxy(boxes / SIDES)[None])
