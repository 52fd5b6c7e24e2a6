"""SimOTA and YOLOX's loss: known values of the public code, a plain loop, weights, empty windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from fate.errors import FateError
from fate.models.boxes import xyxy_from_cxcywh
from fate.models.heads.yolox import Anchors, Assignment, PaddedTargets, YOLOXHead, assign
from fate.models.outputs import Outputs, Targets

CLASSES = 3


def grid(rows: int = 4, columns: int = 5) -> Anchors:
    """Anchors of three strides over a frame of 32 · rows × 32 · columns pixels."""
    centres, strides = [], []
    for stride, factor in ((8, 4), (16, 2), (32, 1)):
        for y in range(rows * factor):
            for x in range(columns * factor):
                centres.append([(x + 0.5) * stride, (y + 0.5) * stride])
                strides.append(float(stride))
    return Anchors(torch.tensor(centres), torch.tensor(strides))


def problem(boxes: list[int], seed: int = 0, anchors: Anchors | None = None) -> tuple[Outputs, list[Targets]]:
    """Random predictions around their anchors, and ``boxes[n]`` true boxes in window n."""
    generator = torch.Generator().manual_seed(seed)
    anchors = grid() if anchors is None else anchors
    windows, count = len(boxes), len(anchors.strides)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    stride = anchors.strides[:, None]
    centre = anchors.centres + 0.5 * stride * normal(windows, count, 2)
    size = stride * (0.7 + 0.7 * normal(windows, count, 2)).exp()
    outputs = Outputs(
        torch.cat([centre - size / 2, centre + size / 2], -1).requires_grad_(),
        (2 * normal(windows, count, CLASSES)).requires_grad_(),
        (2 * normal(windows, count) - 1).requires_grad_(),
        anchors,
    )
    targets = []
    for number in boxes:
        middle = torch.rand(number, 2, generator=generator) * torch.tensor([160.0, 128.0])
        half = 3 + torch.rand(number, 2, generator=generator) * 30
        ids = torch.randint(0, CLASSES, (number,), generator=generator)
        targets.append(Targets.of(torch.cat([middle - half, middle + half], 1), ids))
    return outputs, targets


def numbers(*tensors: Tensor) -> list[NDArray[np.float64]]:
    return [tensor.detach().double().numpy() for tensor in tensors]


def plain_iou(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0) * max(height, 0)
    return float(common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common))


def plain_assignment(outputs: Outputs, targets: list[Targets]) -> dict[tuple[int, int], int]:
    """{(window, anchor): box}, one window, one box, one anchor after the other, in double precision."""
    matched = {}
    assert outputs.objectness is not None
    centres, strides = numbers(*outputs.training)
    for window, target in enumerate(targets):
        boxes, classes, objects, true = numbers(
            outputs.boxes[window], outputs.class_logits[window].sigmoid(), outputs.objectness[window].sigmoid(),
            target.boxes,
        )  # fmt: skip
        middles = (true[:, :2] + true[:, 2:]) / 2
        near = np.array([np.abs(centres - middle).max(1) < 1.5 * strides for middle in middles])
        candidates = np.flatnonzero(near.any(0)) if len(true) else []
        cost, claims = {}, {}
        for number, box in enumerate(true):
            overlaps = {}
            for anchor in candidates:
                overlaps[anchor] = plain_iou(boxes[anchor], box)
                error = 0.0
                for kind in range(CLASSES):
                    p = math.sqrt(classes[anchor, kind] * objects[anchor])
                    error -= math.log(p if kind == target.class_ids[number] else 1 - p)
                error -= 3 * math.log(overlaps[anchor] + 1e-8)
                cost[number, anchor] = error + (0 if near[number, anchor] else 1e6)
            k = max(1, int(sum(sorted(overlaps.values())[-10:])))
            claims[number] = sorted(candidates, key=lambda anchor, number=number: cost[number, anchor])[:k]
        for anchor in candidates:
            owners = [number for number, claimed in claims.items() if anchor in claimed]
            if len(owners) > 1:
                owners = [min(claims, key=lambda number, anchor=anchor: cost[number, anchor])]
            if owners:
                matched[window, int(anchor)] = owners[0]
    return matched


def assignment(outputs: Outputs, targets: list[Targets]) -> Assignment:
    assert outputs.objectness is not None
    padded = PaddedTargets.of(targets, CLASSES, outputs.boxes.device)
    return assign(outputs.boxes, outputs.class_logits, outputs.objectness, outputs.training, padded)


def pairs(found: Assignment) -> dict[tuple[int, int], int]:
    places = found.matched.nonzero().tolist()
    return {(window, anchor): int(found.box[window, anchor]) for window, anchor in places}


def test_assignment_loss_and_gradient_are_those_of_the_public_code(
    golden: Callable[[str], dict[str, NDArray[np.generic]]],
) -> None:
    stored = {name: torch.from_numpy(np.array(value)) for name, value in golden("loss_yolox").items()}
    raw = stored["decoded_outputs"].clone().requires_grad_()
    cells, strides = torch.stack([stored["x_shifts"], stored["y_shifts"]], 1), stored["strides"]
    anchors = Anchors((cells + 0.5) * strides[:, None], strides)
    outputs = Outputs(xyxy_from_cxcywh(raw[..., :4]), raw[..., 5:], raw[..., 4], anchors)
    real = [rows[rows.sum(1) > 0] for rows in stored["labels"]]
    targets = [Targets.of(xyxy_from_cxcywh(rows[:, 1:]), rows[:, 0]) for rows in real]

    found = assignment(outputs, targets)
    window, anchor, box, overlap = stored["assign_b_anchor_gt_iou"].unbind(1)
    expected = {(int(w), int(a)): int(b) for w, a, b in zip(window, anchor, box, strict=True)}
    assert pairs(found) == expected
    torch.testing.assert_close(found.iou[window.long(), anchor.long()].double(), overlap, rtol=0, atol=1e-6)

    terms = YOLOXHead.loss(outputs, targets)
    total, overlap_term, objectness, classes = stored["losses"][:4].tolist()
    assert terms["iou"].item() == pytest.approx(overlap_term, rel=1e-6)
    assert terms["objectness"].item() == pytest.approx(objectness, rel=1e-6)
    assert terms["class"].item() == pytest.approx(classes, rel=1e-6)
    sum(terms.values()).backward()  # type: ignore[union-attr]
    assert sum(term.item() for term in terms.values()) == pytest.approx(total, rel=1e-6)
    assert raw.grad is not None
    assert raw.grad.abs().sum().item() == pytest.approx(stored["grad_sum_abs"].item(), rel=1e-5)
    touched = (raw.grad[..., :4] != 0).any(-1).nonzero()
    assert touched.tolist() == stored["grad_outputs_nonzero_boxes"].tolist()


@pytest.mark.parametrize("seed", range(6))
def test_assignment_is_that_of_a_plain_loop(seed: int) -> None:
    outputs, targets = problem([4, 0, 1, 13], seed)
    expected = plain_assignment(outputs, targets)
    assert pairs(assignment(outputs, targets)) == expected
    assert len({window for window, _ in expected}) == 3


def test_loss_is_the_written_out_sum_with_each_box_weighed() -> None:
    outputs, targets = problem([5, 2], seed=7)
    generator = torch.Generator().manual_seed(8)
    targets = [one._replace(weights=torch.rand(len(one.boxes), generator=generator)) for one in targets]
    matched = plain_assignment(outputs, targets)
    assert outputs.objectness is not None
    sums = {"iou": 0.0, "objectness": 0.0, "class": 0.0}
    for window in range(2):
        boxes, classes, objects = numbers(
            outputs.boxes[window], outputs.class_logits[window].sigmoid(), outputs.objectness[window].sigmoid()
        )
        for anchor in range(len(boxes)):
            box = matched.get((window, anchor))
            if box is None:
                sums["objectness"] -= math.log(1 - objects[anchor])
                continue
            weight = float(targets[window].weights[box])
            overlap = plain_iou(boxes[anchor], numbers(targets[window].boxes[box])[0])
            sums["iou"] += 5 * weight * (1 - overlap**2)
            sums["objectness"] -= weight * math.log(objects[anchor])
            for kind, p in enumerate(classes[anchor]):
                goal = overlap if kind == targets[window].class_ids[box] else 0.0
                sums["class"] -= weight * (goal * math.log(p) + (1 - goal) * math.log(1 - p))
    for name, term in YOLOXHead.loss(outputs, targets).items():
        assert term.item() == pytest.approx(sums[name] / len(matched), rel=1e-5), name


def window_by_window(outputs: Outputs, targets: list[Targets]) -> dict[str, Tensor]:
    """The loss as the public code goes about it: what is matched is taken out, one window after the other."""
    found = plain_assignment(outputs, targets)
    assert outputs.objectness is not None
    sums = {name: outputs.boxes.sum() * 0 for name in ("iou", "objectness", "class")}
    for window, target in enumerate(targets):
        pairs = {anchor: box for (of, anchor), box in found.items() if of == window}
        anchor, box = (
            torch.tensor(list(pairs), dtype=torch.int64),
            torch.tensor(list(pairs.values()), dtype=torch.int64),
        )
        weight, true = target.weights[box], target.boxes[box]
        low = torch.maximum(outputs.boxes[window, anchor, :2], true[:, :2])
        high = torch.minimum(outputs.boxes[window, anchor, 2:], true[:, 2:])
        common = (high - low).clamp(min=0).prod(1)
        sizes = (one[:, 2:] - one[:, :2] for one in (outputs.boxes[window, anchor], true))
        overlap = common / (sum(size.prod(1) for size in sizes) - common)
        goal = torch.nn.functional.one_hot(target.class_ids[box], CLASSES) * overlap.detach()[:, None]
        of_class = cross_entropy(outputs.class_logits[window, anchor], goal, reduction="none").sum(1)
        there = torch.zeros(len(outputs.objectness[window])).index_fill(0, anchor, 1.0)
        importance = torch.ones_like(there).index_copy(0, anchor, weight)
        sums["iou"] = sums["iou"] + 5 * (weight * (1 - overlap**2)).sum()
        sums["class"] = sums["class"] + (weight * of_class).sum()
        of_window = cross_entropy(outputs.objectness[window], there, importance, reduction="sum")
        sums["objectness"] = sums["objectness"] + of_window
    return {name: term / max(len(found), 1) for name, term in sums.items()}


@pytest.mark.parametrize("boxes", [[5, 0, 2, 13], [0, 0], [1], [0, 30]])
def test_terms_and_gradients_are_those_of_a_loop_over_windows(boxes: list[int]) -> None:
    outputs, targets = problem(boxes, seed=11)
    generator = torch.Generator().manual_seed(12)
    targets = [one._replace(weights=torch.rand(len(one.boxes), generator=generator)) for one in targets]
    leaves = (outputs.boxes, outputs.class_logits, outputs.objectness)
    expected = window_by_window(outputs, targets)
    for name, term in YOLOXHead.loss(outputs, targets).items():
        torch.testing.assert_close(term, expected[name])
        ours, theirs = (
            torch.autograd.grad(of, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
            for of in (term, expected[name])
        )
        for mine, plain in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, plain)


def test_what_is_not_matched_may_be_anything_without_spoiling_the_gradient_of_boxes() -> None:
    outputs, targets = problem([2, 1], seed=13)
    far = outputs.boxes.detach().clone()
    free = ~assignment(outputs, targets).matched
    far[free] = torch.inf
    boxes = far.requires_grad_()
    YOLOXHead.loss(outputs._replace(boxes=boxes), targets)["iou"].backward()
    assert boxes.grad is not None
    assert boxes.grad.isfinite().all()
    assert not boxes.grad[free].any()
    assert boxes.grad[~free].any()


def test_no_value_of_the_device_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the device "meta" have shapes and no values: whatever asked for one, as a GPU is waited for, fails."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which meta does not have
    outputs, targets = problem([3, 0, 7])
    shapes = Outputs(*(part.detach().to("meta").requires_grad_() for part in outputs[:3]))  # type: ignore[union-attr]
    anchors = Anchors(*(part.to("meta") for part in outputs.training))
    total = torch.stack(list(YOLOXHead.loss(shapes._replace(training=anchors), targets).values())).sum()
    assert total.is_meta
    total.backward()
    assert shapes.boxes.grad is not None


@pytest.mark.parametrize("class_id", [-1, CLASSES])
def test_a_class_the_head_does_not_know_is_refused(class_id: int) -> None:
    outputs, _ = problem([1])
    window = Targets.of(torch.tensor([[0.0, 0, 9, 9]]), torch.tensor([class_id]))
    with pytest.raises(FateError, match=f"{class_id} to {class_id} were given; expected 0 to 2"):
        YOLOXHead.loss(outputs, [window])


def test_windows_do_not_see_each_other() -> None:
    outputs, targets = problem([3, 0, 20, 1], seed=3)
    together = assignment(outputs, targets)
    for window in range(4):
        part = Outputs(*(column[window : window + 1] for column in outputs[:3]), outputs.training)
        alone = assignment(part, targets[window : window + 1])
        assert alone.matched[0].equal(together.matched[window])
        assert alone.box[alone.matched].equal(together.box[window, together.matched[window]])


def test_a_box_of_weight_0_teaches_nothing_but_keeps_its_anchors_from_being_background() -> None:
    outputs, targets = problem([2], seed=4)
    silent = [targets[0]._replace(weights=torch.tensor([0.0, 1.0]))]
    found = assignment(outputs, targets)
    sum(YOLOXHead.loss(outputs, silent).values()).backward()  # type: ignore[union-attr]
    assert outputs.objectness is not None
    of_first, of_second = (found.matched[0] & (found.box[0] == number) for number in range(2))
    assert of_first.any()
    for column in (outputs.boxes, outputs.class_logits, outputs.objectness):
        assert column.grad is not None
        assert not column.grad[0, of_first].any()
        assert column.grad[0, of_second].any()


def test_windows_without_boxes_add_to_objectness_alone() -> None:
    outputs, targets = problem([0, 0], seed=5)
    terms = YOLOXHead.loss(outputs, targets)
    assert terms["iou"].item() == terms["class"].item() == 0
    assert outputs.objectness is not None
    expected = -(1 - outputs.objectness.detach().double().sigmoid()).log().sum()
    assert terms["objectness"].item() == pytest.approx(expected.item(), rel=1e-5)
    sum(terms.values()).backward()  # type: ignore[union-attr]
    for column in outputs[:3]:
        assert column.grad is not None
        assert column.grad.isfinite().all()


def test_no_window_at_all_is_a_loss_of_0_with_a_gradient() -> None:
    outputs, targets = problem([])
    total = sum(YOLOXHead.loss(outputs, targets).values())
    assert isinstance(total, Tensor)
    assert total.item() == 0
    total.backward()
    assert all(column.grad is not None for column in outputs[:3])


@pytest.mark.parametrize(
    "boxes",
    [
        [[-400.0, -400.0, -300.0, -350.0]],  # no anchor is near
        [[-400.0, -400.0, -300.0, -350.0], [20.0, 20.0, 60.0, 60.0]],
        [[30.0, 30.0, 30.0, 50.0]],  # no area
        [[0.0, 0.0, 160.0, 128.0]] * 3,  # the same box thrice
    ],
)
def test_odd_boxes_leave_loss_and_gradient_finite(boxes: list[list[float]]) -> None:
    outputs, _ = problem([1], seed=6)
    targets = [Targets.of(torch.tensor(boxes), torch.zeros(len(boxes)))]
    total = sum(YOLOXHead.loss(outputs, targets).values())
    assert isinstance(total, Tensor)
    total.backward()
    assert total.isfinite()
    assert all(column.grad is not None and column.grad.isfinite().all() for column in outputs[:3])


def test_extreme_logits_leave_the_loss_finite() -> None:
    outputs, targets = problem([4], seed=9)
    assert outputs.objectness is not None
    sharp = outputs._replace(class_logits=outputs.class_logits * 1000, objectness=outputs.objectness * 1000)
    assert all(term.isfinite() for term in YOLOXHead.loss(sharp, targets).values())


def test_a_frame_of_less_than_ten_anchors_is_enough() -> None:
    anchors = Anchors(torch.tensor([[16.0, 16.0], [48.0, 16.0]]), torch.tensor([32.0, 32.0]))
    outputs, _ = problem([1], anchors=anchors)
    found = assignment(outputs, [Targets.of(torch.tensor([[4.0, 4.0, 30.0, 30.0]]), torch.tensor([1]))])
    assert found.matched.sum() == 1
