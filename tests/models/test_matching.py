"""Hungarian matching: the cheapest pairs by trying all, the public matches, and what goes wrong in training."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fate.errors import FateError
from fate.models.boxes import xyxy_from_cxcywh
from fate.models.heads.matching import match, matching_costs, pairwise_l1
from fate.models.outputs import FlatTargets, Targets

FRAME = (100, 200)  # rows, columns
CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU on this machine")


def targets_of(*counts: int, classes: int = 3) -> FlatTargets:
    """Windows with so many random boxes each."""
    windows = []
    for count in counts:
        middle, side = torch.rand(count, 2) * 0.6 + 0.2, torch.rand(count, 2) * 0.3 + 0.05
        boxes = xyxy_from_cxcywh(torch.cat([middle, side], dim=1)) * torch.tensor([200, 100, 200, 100])
        windows.append(Targets.of(boxes, torch.randint(classes, (count,))))
    return FlatTargets.of(windows, FRAME, classes, CPU)


def predictions(sets: int, windows: int, queries: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(sets, windows, queries, classes), torch.rand(sets, windows, queries, 4) * 0.5 + 0.1


def test_flat_targets_are_fractions_of_the_frame_and_know_their_place() -> None:
    first = Targets.of(torch.tensor([[20.0, 10, 60, 30], [0, 0, 200, 100]]), torch.tensor([1, 0]))
    last = Targets.of(torch.tensor([[100.0, 50, 110, 70]]), torch.tensor([2]), torch.tensor([0.5]))
    flat = FlatTargets.of([first, Targets.of(torch.zeros(0, 4), torch.zeros(0)), last], FRAME, 3, CPU)
    torch.testing.assert_close(flat.boxes[0], torch.tensor([0.2, 0.2, 0.2, 0.2]))
    torch.testing.assert_close(flat.boxes[2], torch.tensor([0.525, 0.6, 0.05, 0.2]))
    assert flat.counts == (2, 0, 1)
    assert flat.window.tolist() == [0, 0, 2]
    assert flat.box_index.tolist() == [0, 1, 0]
    assert flat.weights.tolist() == [1, 1, 0.5]
    assert flat.padded(flat.class_ids, filling=9).tolist() == [[1, 0], [9, 9], [2, 9]]


def test_matches_cost_least_of_all_ways_to_pair() -> None:
    torch.manual_seed(0)
    flat = targets_of(3, 0, 2, 4)
    logits, boxes = predictions(2, 4, 5)
    found = match(logits, boxes, flat)
    table = matching_costs(logits, boxes, flat)
    for of_set in range(2):
        for window, count in enumerate(flat.counts):
            own = table[of_set, window, :, :count].tolist()
            least = min(sum(own[q][t] for t, q in enumerate(way)) for way in permutations(range(5), count))
            mine = found.window[of_set] == window
            places = flat.box_index[found.target[of_set, mine]]
            assert sorted(places.tolist()) == list(range(count))
            assert (flat.window[found.target[of_set, mine]] == window).all()
            cost = sum(own[q][t] for q, t in zip(found.query[of_set, mine].tolist(), places.tolist(), strict=True))
            assert cost == pytest.approx(least, abs=1e-5)


def test_a_prediction_on_the_box_with_its_class_costs_least() -> None:
    torch.manual_seed(0)
    flat = targets_of(3)
    logits, boxes = predictions(1, 1, 20)
    logits[0, 0, [4, 11, 7]] = torch.nn.functional.one_hot(flat.class_ids, 3) * 10.0 - 5
    boxes[0, 0, [4, 11, 7]] = flat.boxes
    found = match(logits, boxes, flat)
    assert dict(zip(found.target[0].tolist(), found.query[0].tolist(), strict=True)) == {0: 4, 1: 11, 2: 7}


def test_more_boxes_than_predictions_leave_the_dearest_out() -> None:
    flat = targets_of(7, 2)
    found = match(*predictions(3, 2, 4), flat)
    assert found.query.shape == (3, 4 + 2)
    assert len(set(found.target[0].tolist())) == 6


@pytest.mark.parametrize("counts", [(), (0, 0)])
def test_nothing_to_match_is_no_error(counts: tuple[int, ...]) -> None:
    found = match(*predictions(2, len(counts), 5), targets_of(*counts))
    assert found.window.shape == found.query.shape == found.target.shape == (2, 0)


def test_matches_are_those_of_the_public_code(golden: Callable[..., dict[str, Any]]) -> None:
    stored = golden("loss_rtdetr")
    windows = [
        Targets.of(
            xyxy_from_cxcywh(torch.from_numpy(stored[f"tgt_boxes{n}"])) * torch.tensor([200, 100, 200, 100]),
            torch.from_numpy(stored[f"tgt_labels{n}"]),
        )
        for n in range(2)
    ]
    flat = FlatTargets.of(windows, FRAME, 2, CPU)
    found = match(torch.from_numpy(stored["pred_logits"])[None], torch.from_numpy(stored["pred_boxes"])[None], flat)
    for window in range(2):
        own = found.window[0] == window
        pairs = torch.stack([found.query[0, own], flat.box_index[found.target[0, own]]]).numpy()
        np.testing.assert_array_equal(pairs, stored[f"match{window}"])


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_predictions_that_are_not_finite_are_called_a_divergence(broken: float) -> None:
    logits, boxes = predictions(2, 2, 5)
    boxes[1, 0, 3, 2] = broken
    with pytest.raises(FateError, match="training diverged"):
        match(logits, boxes, targets_of(1, 2))


@needs_gpu
def test_a_gpu_finds_the_same_pairs_without_waiting() -> None:
    torch.manual_seed(0)
    for counts, queries in (((3, 0, 7, 1), 30), ((12, 40, 0), 300), ((0, 0), 5), ((5,), 5)):
        flat = targets_of(*counts)
        logits, boxes = predictions(4, len(counts), queries)
        expected = match(logits, boxes, flat)
        on_gpu = FlatTargets(*(part.cuda() for part in flat[:5]), flat.counts)
        given = logits.cuda(), boxes.cuda()
        match(*given, on_gpu)  # compiles
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.set_sync_debug_mode("error")
            try:
                found = match(*given, on_gpu)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine.cpu(), theirs)


@needs_gpu
def test_a_gpu_finds_the_cheapest_pairs_where_rows_compete_and_costs_are_equal() -> None:
    from fate.models.heads.matching_gpu import cheapest_columns

    rng = np.random.default_rng(0)
    for trial in range(20):
        rows = int(rng.integers(1, 30))
        cost = rng.normal(size=(50, rows, int(rng.integers(rows, 320)))).astype(np.float32)
        cost = np.round(2 * cost) if trial % 2 else cost[:, :1] + 0.1 * cost
        counts = rng.integers(0, rows + 1, len(cost)).astype(np.int32)
        found = cheapest_columns(torch.from_numpy(cost).cuda(), torch.from_numpy(counts).cuda()).cpu().numpy()
        for own, columns, count in zip(cost, found, counts, strict=True):
            assert len(set(columns[:count])) == count
            assert (columns[count:] == -1).all()
            least = own[linear_sum_assignment(own[:count])].sum(dtype=np.float64)
            assert own[np.arange(count), columns[:count]].sum(dtype=np.float64) == pytest.approx(least, abs=1e-5)


@needs_gpu
def test_costs_that_are_not_finite_do_not_stop_a_gpu() -> None:
    logits, boxes = predictions(2, 2, 5)
    boxes[1, 0, 3, 2] = float("nan")
    flat = targets_of(1, 2)
    found = match(logits.cuda(), boxes.cuda(), FlatTargets(*(part.cuda() for part in flat[:5]), flat.counts))
    assert (found.query >= 0).all()


@pytest.mark.parametrize("class_id", [-1, 3])
def test_a_class_the_head_does_not_know_is_refused(class_id: int) -> None:
    window = Targets.of(torch.tensor([[0.0, 0, 9, 9]]), torch.tensor([class_id]))
    with pytest.raises(FateError, match=f"{class_id} to {class_id} were given; expected 0 to 2"):
        FlatTargets.of([window], FRAME, 3, CPU)


def test_l1_of_boxes_is_that_of_cdist() -> None:
    torch.manual_seed(0)
    first, second = torch.rand(3, 2, 7, 4), torch.rand(2, 5, 4)
    wanted = torch.cdist(first.double(), second.double().expand(3, -1, -1, -1), p=1)
    torch.testing.assert_close(pairwise_l1(first, second).double(), wanted, rtol=1e-6, atol=1e-6)
    assert pairwise_l1(first, second[:, :0]).shape == (3, 2, 7, 0)
