"""Boxes of many windows together: in order, and refused where their values cannot be."""

from __future__ import annotations

import pytest
import torch

from fate.errors import FateError
from fate.models.heads.yolox import PaddedTargets
from fate.models.outputs import FlatTargets, Targets
from tests.models.small_detectors import some_targets

INF, NAN = float("inf"), float("nan")
CPU = torch.device("cpu")


def test_windows_follow_each_other_and_boxes_know_their_place() -> None:
    windows = [some_targets(2, 1), some_targets(0), some_targets(3, 2)]
    together = FlatTargets.of(windows, None, 2, CPU)
    assert together.counts == (2, 0, 3)
    assert together.window.tolist() == [0, 0, 2, 2, 2]
    assert together.box_index.tolist() == [0, 1, 0, 1, 2]
    for number, window in enumerate(windows):
        own = together.window == number
        assert torch.equal(together.boxes[own], window.boxes)
        assert torch.equal(together.class_ids[own], window.class_ids)


@pytest.mark.parametrize("windows", [[], [some_targets(0)], [some_targets(0), some_targets(0)]])
def test_no_boxes_are_no_error(windows: list[Targets]) -> None:
    assert FlatTargets.of(windows, None, 2, CPU).boxes.shape == (0, 4)
    assert PaddedTargets.of(windows, 2, CPU).boxes.shape == (len(windows), 1, 4)  # padding alone
    assert not PaddedTargets.of(windows, 2, CPU).real.any()
    assert FlatTargets.of(windows, (64, 96), 2, CPU).boxes.shape == (0, 4)


def test_padding_and_flattening_lose_nothing_on_the_way_through_one_table() -> None:
    many = 5000  # ids that are no longer small
    boxes = torch.rand(many, 2).repeat(1, 2) * 50 + torch.tensor([0.0, 0, 1, 1])
    window = Targets.of(boxes, torch.arange(many), torch.rand(many))
    padded = PaddedTargets.of([some_targets(0), window], many, CPU)
    flat = FlatTargets.of([some_targets(0), window], (64, 96), many, CPU)
    for of, own in ((padded.boxes, boxes), (padded.class_ids, window.class_ids), (padded.weights, window.weights)):
        assert torch.equal(of[1], own)
    assert padded.real.sum(1).tolist() == [0, many]
    assert torch.equal(flat.class_ids, window.class_ids)
    assert torch.equal(flat.weights, window.weights)
    assert torch.equal(flat.box_index, torch.arange(many))
    assert flat.window.unique().tolist() == [1]
    assert flat.class_ids.dtype == padded.class_ids.dtype == torch.int64


@pytest.mark.parametrize(
    ("box", "weight"),
    [
        ([5.0, 5, 4, 9], 1.0),
        ([5.0, 5, 9, 4], 1.0),
        ([NAN, 5, 9, 9], 1.0),
        ([5.0, 5, INF, 9], 1.0),
        ([5.0, 5, 9, 9], -0.1),
        ([5.0, 5, 9, 9], NAN),
        ([5.0, 5, 9, 9], INF),
    ],
)
def test_impossible_values_are_refused_with_their_place(box: list[float], weight: float) -> None:
    bad = Targets.of(torch.tensor([[0.0, 0, 1, 1], box]), torch.tensor([0, 1]), torch.tensor([1.0, weight]))
    with pytest.raises(FateError, match=r"^box 1 of labelled window 2 is \[.* with weight .*; expected finite x1"):
        FlatTargets.of([some_targets(3), some_targets(0), bad], None, 2, CPU)


def test_as_many_of_each_are_expected() -> None:
    with pytest.raises(FateError, match="2 boxes, 1 class ids and 2 weights were given"):
        Targets.of(torch.zeros(2, 4), torch.zeros(1))
