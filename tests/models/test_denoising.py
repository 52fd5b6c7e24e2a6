"""Noisy copies of the truth: how many, how noisy, and who sees whom."""

from __future__ import annotations

import pytest
import torch

from fate.models.boxes import xyxy_from_cxcywh
from fate.models.heads.rtdetr import DenoisingQueries, denoising_queries, visibility
from fate.models.outputs import FlatTargets, Targets

CPU = torch.device("cpu")
FRAME = (100, 100)


def targets_of(*counts: int, classes: int = 3, low: float = 30, high: float = 50) -> FlatTargets:
    windows = [
        Targets.of(
            torch.cat([torch.rand(count, 2) * 10 + low, torch.rand(count, 2) * 10 + high], dim=1),
            torch.randint(classes, (count,)),
        )
        for count in counts
    ]
    return FlatTargets.of(windows, FRAME, classes, CPU)


def made(targets: FlatTargets, classes: int = 3, queries: int = 7, **options: float) -> DenoisingQueries:
    result = denoising_queries(targets, classes, queries, **options)  # type: ignore[arg-type]
    assert result is not None
    return result


@pytest.mark.parametrize(("counts", "groups"), [((1, 0), 100), ((3, 1), 33), ((60, 2), 1), ((120, 5), 1)])
def test_groups_share_a_hundred_boxes_and_are_never_none(counts: tuple[int, ...], groups: int) -> None:
    noisy = made(targets_of(*counts))
    count = groups * 2 * max(counts)
    assert noisy.groups == groups
    assert noisy.class_ids.shape == (len(counts), count)
    assert noisy.box_logits.shape == (len(counts), count, 4)
    assert noisy.visible.shape == (count + 7, count + 7)
    assert noisy.matches.query.shape == (1, groups * sum(counts))


@pytest.mark.parametrize("counts", [(), (0,), (0, 0, 0)])
def test_no_box_means_no_queries(counts: tuple[int, ...]) -> None:
    assert denoising_queries(targets_of(*counts), 3, 7) is None


def test_matches_are_the_positives_of_each_group_and_their_own_boxes() -> None:
    targets = targets_of(4, 1, 0, 2)
    noisy = made(targets, num_boxes=12, box_noise=0.0, label_noise=0.0)
    window, query, target = (column[0] for column in noisy.matches)
    torch.testing.assert_close(noisy.box_logits.sigmoid()[window, query], targets.boxes[target])
    assert (noisy.class_ids[window, query] == targets.class_ids[target]).all()
    assert (query % 8 < 4).all()  # positives come first in a group of 2 × 4
    assert torch.bincount(target).tolist() == [3] * 7
    assert torch.stack([window, query]).unique(dim=1).shape[1] == 21


def test_edges_of_positives_move_at_most_half_a_side_and_of_negatives_up_to_a_whole_one() -> None:
    torch.manual_seed(0)
    targets = targets_of(5, low=42, high=52)
    noisy = made(targets, num_boxes=2000)
    truth = targets.boxes.repeat(2 * noisy.groups, 1)
    half = truth[:, 2:].repeat(1, 2) / 2
    given = noisy.box_logits[0].sigmoid()
    whole = (given[:, 2:] > 1e-4).all(dim=1)  # others were turned inside out
    moves = ((xyxy_from_cxcywh(given) - xyxy_from_cxcywh(truth)).abs() / half)[whole]
    negative = (torch.arange(len(truth)) // 5 % 2 == 1)[whole]
    assert moves[~negative].max() < 1 + 1e-4
    assert 0.4 < moves[~negative].mean() < 0.6
    assert moves[negative].min() > 1 - 1e-4
    assert moves[negative].max() < 2 + 1e-4


def test_a_quarter_of_the_classes_is_drawn_anew_and_only_of_real_boxes() -> None:
    torch.manual_seed(0)
    targets = targets_of(9, 3, classes=5)
    noisy = made(targets, classes=5, num_boxes=9000)
    truth = targets.padded(targets.class_ids, filling=5).repeat(1, 2 * noisy.groups)
    real = truth < 5
    assert (noisy.class_ids[~real] == 5).all()
    assert noisy.class_ids[real].max() < 5
    changed = (noisy.class_ids != truth)[real].float().mean()
    assert changed == pytest.approx(0.25 * 4 / 5, abs=0.01)  # a fifth of the new ones is the old one again


def test_coordinates_stay_inside_the_frame_and_finite() -> None:
    torch.manual_seed(0)
    noisy = made(targets_of(6, low=0, high=90))
    assert noisy.box_logits.isfinite().all()
    given = noisy.box_logits.sigmoid()
    assert given.min() > 0.9e-5
    assert given.max() < 1


def test_groups_see_themselves_and_the_queries_which_see_none_of_them() -> None:
    visible = visibility(groups=2, of_group=2, queries=3, device=CPU)
    expected = [
        "1100111",
        "1100111",
        "0011111",
        "0011111",
        "0000111",
        "0000111",
        "0000111",
    ]
    assert ["".join(str(int(cell)) for cell in row) for row in visible] == expected


def test_noise_comes_from_torchs_generator() -> None:
    targets = targets_of(3, 2)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(made(targets).box_logits)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
