"""The consistency loss against values worked out by hand, for both kinds of heads."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fate.models.outputs import Outputs
from fate.training.consistency import consistency, divergence, match, select_teacher_predictions

SIZE = (100, 200)  # height, width


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def outputs(boxes: list[list[float]], chances: list[list[float]], objectness: list[float] | None = None) -> Outputs:
    logits = torch.tensor([[[logit(p) for p in row] for row in chances]])
    objects = None if objectness is None else torch.tensor([[logit(p) for p in objectness]])
    return Outputs(torch.tensor([boxes]), logits, objects)


def test_kl_of_yes_or_no_answers_is_that_of_the_formula() -> None:
    p, q = 0.8, 0.6
    by_hand = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    found = divergence(torch.tensor([[p, p]]), torch.tensor([[logit(q), logit(q)]]))
    assert found.tolist() == pytest.approx([2 * by_hand], rel=1e-5)


def test_with_objectness_the_product_counts() -> None:
    found = divergence(torch.tensor([[0.3]]), torch.tensor([[logit(0.5)]]), torch.tensor([logit(0.6)]))
    assert found.item() == pytest.approx(0.0, abs=1e-6)  # 0.5 · 0.6 is what the teacher says


def test_class_and_box_terms_by_hand() -> None:
    teacher = outputs([[0, 0, 40, 20], [100, 50, 140, 90]], [[0.9, 0.1], [0.2, 0.7]])
    # the student says the same two in another order, the second box 10 px to the right and 4 px wider, and a third
    student = outputs([[100, 50, 150, 90], [0, 0, 40, 20], [0, 0, 5, 5]], [[0.2, 0.5], [0.9, 0.1], [0.1, 0.1]])
    terms = consistency(select_teacher_predictions(teacher, 0.3), student, SIZE, 1.0)
    p, q = 0.7, 0.5
    kl = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert terms["consistency_class"].item() == pytest.approx(kl / 2, rel=1e-4)  # the mean over two pairs
    assert terms["consistency_box"].item() == pytest.approx((5 / 200 + 10 / 200) / 2, rel=1e-4)


def test_windows_count_equally_however_many_pairs_they_have() -> None:
    one, two = [[0.0, 0, 40, 20]], [[0.0, 0, 40, 20], [100, 50, 140, 90]]
    teacher = Outputs(torch.tensor([two, two]), torch.tensor([[[2.0], [-9]], [[2], [2]]]))
    student = Outputs(torch.tensor([two, two]), torch.tensor([[[1.0], [-9]], [[1], [1]]]))
    both = consistency(select_teacher_predictions(teacher, 0.3), student, SIZE, 2.0)["consistency_class"]
    alone = consistency(
        select_teacher_predictions(Outputs(torch.tensor([one]), torch.tensor([[[2.0]]])), 0.3),
        Outputs(torch.tensor([one]), torch.tensor([[[1.0]]])), SIZE, 1.0,
    )["consistency_class"]  # fmt: skip
    assert both.item() == pytest.approx(alone.item(), rel=1e-5)


def test_only_sure_predictions_without_doubles_are_followed() -> None:
    boxes = [[0.0, 0, 40, 20], [1, 0, 41, 20], [100, 50, 140, 90]]
    yolox = outputs(boxes, [[0.9], [0.8], [0.9]], [0.9, 0.9, 0.2])
    assert select_teacher_predictions(yolox, 0.3).there.tolist() == [[True]]  # overlapping, low score
    detr = outputs(boxes, [[0.9], [0.8], [0.2]])
    assert select_teacher_predictions(detr, 0.3).there.sum().item() == 2  # DETR says each object once by itself


@pytest.mark.parametrize("windows", [0, 2])
def test_nothing_to_follow_is_no_loss_and_has_a_gradient(windows: int) -> None:
    logits = torch.full((windows, 4, 2), -9.0, requires_grad=True)
    boxes = torch.zeros(windows, 4, 4)
    said = Outputs(boxes, logits, torch.full((windows, 4), -9.0))
    terms = consistency(select_teacher_predictions(said, 0.3), said, SIZE, max(windows, 1))
    total: Tensor = torch.stack(list(terms.values())).sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert total.item() == 0
    assert logits.grad is not None


def test_equal_teacher_and_student_give_no_loss_and_no_gradient() -> None:
    torch.manual_seed(0)
    corner = torch.rand(2, 6, 2) * 50
    boxes = torch.cat([corner, corner + 20], -1)
    logits = torch.randn(2, 6, 3, requires_grad=True)
    teacher = select_teacher_predictions(Outputs(boxes, logits.detach()), 0.3)
    terms = consistency(teacher, Outputs(boxes, logits), SIZE, 2.0)
    terms["consistency_class"].backward()  # type: ignore[no-untyped-call]
    assert terms["consistency_class"].item() == pytest.approx(0, abs=1e-5)
    assert terms["consistency_box"].item() == pytest.approx(0, abs=1e-6)
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-5


def test_every_followed_prediction_gets_one_of_the_student_s() -> None:
    torch.manual_seed(1)
    corner = torch.rand(3, 9, 2) * 50
    said = Outputs(torch.cat([corner, corner + 20], -1), torch.randn(3, 9, 2))
    wanted = select_teacher_predictions(said, 0.5)
    windows, _, students = match(wanted, said, SIZE)
    assert len(windows) == int(wanted.there.sum())
    for window in range(3):
        chosen = students[windows == window].tolist()
        assert len(set(chosen)) == len(chosen)
