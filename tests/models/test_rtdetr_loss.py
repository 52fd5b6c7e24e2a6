"""RT-DETR's loss: the public values, how weights of boxes enter, and the corners of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fate.models.boxes import xyxy_from_cxcywh
from fate.models.heads.matching import Matches, match
from fate.models.heads.rtdetr import ForLoss, Predictions, detr_loss, set_losses
from fate.models.outputs import FlatTargets, Targets, mean_over_processes

FRAME = (256, 320)
SIDES = torch.tensor([320, 256, 320, 256])
CPU = torch.device("cpu")
NAMES = {name + group for name in ("class", "box", "giou") for group in ("", "_aux", "_encoder", "_denoising")}


def targets_of(*counts: int, classes: int = 3, weight: float = 1.0) -> FlatTargets:
    windows = []
    for count in counts:
        boxes = torch.cat([torch.rand(count, 2) * 0.6 + 0.2, torch.rand(count, 2) * 0.3 + 0.05], dim=1)
        weights = torch.full((count,), weight)
        windows.append(Targets.of(xyxy_from_cxcywh(boxes) * SIDES, torch.randint(classes, (count,)), weights))
    return FlatTargets.of(windows, FRAME, classes, CPU)


def predictions(sets: int, windows: int, queries: int = 20, classes: int = 3) -> Predictions:
    logits = torch.randn(sets, windows, queries, classes, requires_grad=True)
    boxes = torch.rand(sets, windows, queries, 4) * 0.5 + 0.1
    return Predictions(logits, boxes.requires_grad_())


def outputs_of(windows: int, layers: int = 3) -> ForLoss:
    return ForLoss(FRAME, predictions(layers, windows), predictions(1, windows))


def test_losses_and_gradients_are_those_of_the_public_code(
    golden: Callable[..., dict[str, Any]], golden_rule: ModuleType
) -> None:
    stored = golden("loss_rtdetr")
    expected = dict(zip(stored["loss_names"].tolist(), stored["loss_values"].tolist(), strict=True))

    def drawn(tag: str, queries: int = 300) -> tuple[Tensor, Tensor]:
        logits = golden_rule.normal("detr_logits" + tag, (2, 300, 2)) * 1.5 - 1
        boxes = torch.from_numpy(golden_rule.normal("detr_boxes" + tag, (2, 300, 4))).sigmoid()
        boxes[..., 2:] /= 2
        return torch.from_numpy(logits).float()[:, :queries], boxes.float()[:, :queries]

    torch.testing.assert_close(drawn("")[1], torch.from_numpy(stored["pred_boxes"]))
    windows = [
        Targets.of(
            xyxy_from_cxcywh(torch.from_numpy(stored[f"tgt_boxes{n}"])) * SIDES,
            torch.from_numpy(stored[f"tgt_labels{n}"]),
        )
        for n in range(2)
    ]
    flat = FlatTargets.of(windows, FRAME, 2, CPU)
    place = torch.cat([flat.box_index, 10 + flat.box_index])[None]  # two groups of 2 × 5
    matches = Matches(flat.window.repeat(2)[None], place, torch.arange(8).repeat(2)[None])
    main = [tensor.requires_grad_() for tensor in drawn("")]
    layers = Predictions(*(torch.stack(pair) for pair in zip(drawn("aux0"), main, strict=True)))
    encoder, denoising = (Predictions(*(part[None] for part in drawn(*tag))) for tag in (("aux1",), ("dn", 20)))
    terms = detr_loss(ForLoss(FRAME, layers, encoder, denoising, matches, 2), flat)
    for public, ours in (("vfl", "class"), ("bbox", "box"), ("giou", "giou")):
        for suffix, group in (("", ""), ("_aux_0", "_aux"), ("_aux_1", "_encoder"), ("_dn_0", "_denoising")):
            assert terms[ours + group].item() == pytest.approx(expected[f"loss_{public}{suffix}"], abs=1e-5, rel=1e-6)
    sum(terms.values(), torch.zeros(())).backward()
    for tensor, name in zip(main, ("grad_logits_abs_sum", "grad_boxes_abs_sum"), strict=True):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum().item() == pytest.approx(float(stored[name]), rel=1e-5)


def test_a_perfect_prediction_costs_nothing() -> None:
    flat = targets_of(3, 1)
    logits = torch.full((1, 2, 20, 3), -30.0)
    boxes = torch.rand(1, 2, 20, 4) * 0.5 + 0.1
    query = torch.tensor([2, 5, 9, 4])
    logits[0, flat.window, query, flat.class_ids] = 30.0
    boxes[0, flat.window, query] = flat.boxes
    given = Predictions(logits, boxes)
    torch.testing.assert_close(set_losses(given, match(*given, flat), flat), torch.zeros(3, 1), rtol=0, atol=2e-6)


def test_a_box_counts_as_much_as_its_weight_in_each_of_its_terms() -> None:
    torch.manual_seed(0)
    flat = targets_of(2, 3)
    given = predictions(2, 2)
    matches = match(*given, flat)
    at = [set_losses(given, matches, flat._replace(weights=flat.weights * weight)) for weight in (0.0, 0.25, 1.0)]
    torch.testing.assert_close(at[1], 0.75 * at[0] + 0.25 * at[2])
    assert (at[0][1:] == 0).all()  # what is left of the class term is that of the other predictions
    assert (at[0][0] < at[2][0]).all()
    assert (at[0][0] > 0).all()


def test_weights_do_not_change_what_the_loss_is_divided_by() -> None:
    torch.manual_seed(0)
    outputs = outputs_of(2)
    flat = targets_of(4, 2)
    whole, tenth = detr_loss(outputs, flat), detr_loss(outputs, flat._replace(weights=flat.weights / 10))
    for name in ("box", "giou_aux", "box_encoder"):
        torch.testing.assert_close(tenth[name], whole[name] / 10)


def test_denoising_terms_are_means_over_groups() -> None:
    """Every group the same: as many groups as one likes give the same loss."""
    torch.manual_seed(0)
    flat = targets_of(2, 1)
    outputs = outputs_of(2, layers=2)
    group = predictions(2, 2, queries=4)
    terms = []
    for groups in (1, 3):
        noisy = Predictions(*(part.repeat(1, 1, groups, 1) for part in group))
        first = torch.arange(groups)[:, None] * 4
        query = (first + flat.box_index).view(1, -1)
        matches = Matches(flat.window.repeat(groups)[None], query, torch.arange(3).repeat(groups)[None])
        terms.append(
            detr_loss(outputs._replace(denoising=noisy, denoising_matches=matches, denoising_groups=groups), flat)
        )
    for name in NAMES:
        torch.testing.assert_close(terms[0][name], terms[1][name])


@pytest.mark.parametrize("counts", [(), (0, 0), (1, 0), (100, 3)])
def test_terms_are_the_same_twelve_and_finite_for_any_number_of_boxes(counts: tuple[int, ...]) -> None:
    outputs = outputs_of(len(counts))
    terms = detr_loss(outputs, targets_of(*counts))
    assert terms.keys() == NAMES
    total = sum(terms.values(), torch.zeros(()))
    total.backward()
    for part in (*outputs.layers, *outputs.encoder):
        assert part.grad is not None
        assert part.grad.isfinite().all()
    if sum(counts) == 0:
        assert all(float(terms[name].detach()) == 0 for name in NAMES if not name.startswith("class"))


def test_a_layer_more_is_a_term_more() -> None:
    torch.manual_seed(0)
    outputs, flat = outputs_of(2), targets_of(2, 2)
    twice = Predictions(*(torch.cat([part[:1], part]) for part in outputs.layers))
    one = outputs._replace(layers=Predictions(*(part[:1] for part in outputs.layers)))
    terms, more, first = detr_loss(outputs, flat), detr_loss(outputs._replace(layers=twice), flat), detr_loss(one, flat)
    for name in ("class", "box", "giou"):
        torch.testing.assert_close(more[name + "_aux"], terms[name + "_aux"] + first[name])
        torch.testing.assert_close(more[name], terms[name])
        assert first[name + "_aux"] == 0


def test_losses_are_float32_inside_autocast_and_of_half_precision() -> None:
    torch.manual_seed(0)
    outputs, flat = outputs_of(2), targets_of(3, 1)
    exact = detr_loss(outputs, flat)
    halves = outputs._replace(
        layers=outputs.layers._replace(logits=outputs.layers.logits.bfloat16()),
        encoder=outputs.encoder._replace(logits=outputs.encoder.logits.bfloat16()),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, rounded = detr_loss(outputs, flat), detr_loss(halves, flat)
    for name in NAMES:
        assert rounded[name].dtype == torch.float32
        assert torch.equal(inside[name], exact[name])
    torch.testing.assert_close(rounded["class"], exact["class"], rtol=0.02, atol=0.02)


def _count_in_process(rank: int, folder: str, results: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    results[rank] = [float(mean_over_processes(torch.tensor(counts[rank]))) for counts in ((0, 6), (1, 0), (0, 0))]
    torch.distributed.destroy_process_group()


def test_one_process_divides_by_its_boxes_but_never_by_less_than_one() -> None:
    assert mean_over_processes(torch.tensor(0)) == 1
    assert mean_over_processes(torch.tensor(6)) == 6


@pytest.mark.slow
def test_processes_divide_by_the_mean_of_their_boxes(tmp_path: Path) -> None:
    with torch.multiprocessing.get_context("spawn").Manager() as manager:
        results = manager.list([None, None])
        torch.multiprocessing.spawn(_count_in_process, (str(tmp_path), results), nprocs=2)
        # one box in all: 1 / 2, for the mean of two gradients is half of their sum
        assert list(results) == [[3, 0.5, 0.5]] * 2
