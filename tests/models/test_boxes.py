"""Boxes: overlaps against counted pixels, and what must hold of any boxes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fate.models.boxes import (
    areas,
    clip_boxes,
    cxcywh_from_xyxy,
    giou,
    intersection_and_union,
    iou,
    pairwise_giou,
    pairwise_iou,
    xyxy_from_cxcywh,
)

SIDE = 12
whole = st.integers(0, SIDE)
corners = st.tuples(whole, whole, whole, whole).map(
    lambda c: [min(c[0], c[1]), min(c[2], c[3]), max(c[0], c[1]), max(c[2], c[3])]
)


def pixels(box: list[int]) -> Tensor:
    """[SIDE, SIDE] bool, which pixels a box of whole corners covers."""
    image = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    image[box[1] : box[3], box[0] : box[2]] = True
    return image


def random_boxes(*shape: int, seed: int = 0, size: float = 100.0) -> Tensor:
    drawn = torch.rand(*shape, 2, 2, generator=torch.Generator().manual_seed(seed)) * size
    return torch.cat([drawn.amin(-2), drawn.amax(-2)], dim=-1)


@settings(max_examples=200, deadline=None)
@given(corners, corners)
def test_overlaps_are_those_of_counted_pixels(first: list[int], second: list[int]) -> None:
    one, two = pixels(first), pixels(second)
    a, b = torch.tensor(first, dtype=torch.float32), torch.tensor(second, dtype=torch.float32)
    common, union = intersection_and_union(a, b)
    assert common == (one & two).sum()
    assert union == (one | two).sum()
    assert areas(a) == one.sum()
    ratio = float((one & two).sum() / (one | two).sum().clamp(min=1))
    assert iou(a, b).item() == pytest.approx(ratio)
    around = [min(first[0], second[0]), min(first[1], second[1]), max(first[2], second[2]), max(first[3], second[3])]
    whole_area = float(pixels(around).sum())
    if whole_area:
        expected = ratio - (whole_area - float((one | two).sum())) / whole_area
        assert giou(a, b).item() == pytest.approx(expected, abs=1e-6)


def test_the_two_ways_to_write_a_box_are_inverse() -> None:
    boxes = random_boxes(5, 7)
    torch.testing.assert_close(xyxy_from_cxcywh(cxcywh_from_xyxy(boxes)), boxes)
    assert cxcywh_from_xyxy(torch.tensor([2.0, 10.0, 6.0, 12.0])).tolist() == [4.0, 11.0, 4.0, 2.0]


@pytest.mark.parametrize(("pairwise", "single"), [(pairwise_iou, iou), (pairwise_giou, giou)])
def test_pairs_are_what_single_comparisons_say(pairwise, single) -> None:  # type: ignore[no-untyped-def]
    first, second = random_boxes(3, 4, seed=1), random_boxes(3, 6, seed=2)
    table = pairwise(first, second)
    assert table.shape == (3, 4, 6)
    for n in range(3):
        for m in range(4):
            torch.testing.assert_close(table[n, m], single(first[n, m].expand(6, 4), second[n]), rtol=0, atol=0)
    assert pairwise(first[:, :0], second).shape == (3, 0, 6)


def test_a_box_overlaps_itself_wholly_and_comparisons_are_symmetric() -> None:
    first, second = random_boxes(50, seed=3), random_boxes(50, seed=4)
    torch.testing.assert_close(iou(first, first), torch.ones(50))
    torch.testing.assert_close(giou(first, first), torch.ones(50))
    torch.testing.assert_close(iou(first, second), iou(second, first), rtol=0, atol=0)
    assert (giou(first, second) <= iou(first, second)).all()
    assert (giou(first, second) >= -1).all()


def test_boxes_without_area_overlap_nothing_and_have_finite_gradients() -> None:
    point = torch.full((1, 4), 3.0, requires_grad=True)
    for other in (torch.full((1, 4), 3.0), torch.tensor([[0.0, 0.0, 5.0, 5.0]])):
        for measure in (iou, giou):
            value = measure(point, other).sum()
            assert value.item() <= 0
            (gradient,) = torch.autograd.grad(value, point)
            assert gradient.isfinite().all()


def test_boxes_that_do_not_touch_are_pulled_together_by_giou_alone() -> None:
    box = torch.tensor([[0.0, 0.0, 2.0, 2.0]], requires_grad=True)
    other = torch.tensor([[5.0, 0.0, 7.0, 2.0]])
    assert torch.autograd.grad(iou(box, other).sum(), box)[0].abs().sum() == 0
    (pull,) = torch.autograd.grad(giou(box, other).sum(), box)
    assert pull[0, 2] > 0  # the right side, towards the other box


def test_clipping_keeps_what_is_inside_and_leaves_no_area_outside() -> None:
    boxes = torch.tensor(
        [[1.0, 2.0, 3.0, 4.0], [-5.0, -5.0, 5.0, 6.0], [300.0, 230.0, 400.0, 250.0], [310.0, 10.0, 320.0, 20.0]]
    )
    expected = [[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 5.0, 6.0], [300.0, 230.0, 304.0, 240.0], [304.0, 10.0, 304.0, 20.0]]
    assert clip_boxes(boxes, (240, 304)).tolist() == expected
    assert areas(clip_boxes(boxes, (240, 304)))[3] == 0
    drawn = random_boxes(40, seed=5, size=400.0)
    torch.testing.assert_close(
        areas(clip_boxes(drawn, (240, 304))), intersection_and_union(drawn, torch.tensor([0.0, 0.0, 304.0, 240.0]))[0]
    )
