"""RT-DETR's head: the public numbers, where queries come from, what gradients reach, and that it can be compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fate.models.backbones.presnet import PResNet
from fate.models.boxes import cxcywh_from_xyxy
from fate.models.checkpoints.importing import EVRT_DETR
from fate.models.heads.rtdetr import RtDetrHead, cell_anchors
from fate.models.necks.hybrid_encoder import HybridEncoder
from fate.models.necks.latent_memory import LatentMemory
from fate.models.outputs import Outputs, Targets
from tests.models.conftest import rename_entries

SIZES = [(8, 10), (4, 5), (2, 3)]  # of a frame of 64 × 80 pixels


def small(**options: Any) -> RtDetrHead:
    """A head that is quick to run, with weights that make numbers of ordinary size."""
    arguments: dict[str, Any] = {"hidden": 16, "queries": 20, "layers": 3, "heads": 2, "feedforward": 24} | options
    head = RtDetrHead((16,) * 3, 3, **arguments)
    for name, parameter in head.named_parameters():
        if parameter.ndim > 1 and "norm" not in name:
            nn.init.normal_(parameter, std=1 / math.sqrt(parameter[0].numel()))
    return head


def maps(windows: int, sizes: Sequence[tuple[int, int]] = SIZES, channels: int = 16) -> list[Tensor]:
    return [torch.randn(windows, channels, *size) for size in sizes]


def targets_of(*counts: int) -> list[Targets]:
    windows = []
    for count in counts:
        corner = torch.rand(count, 2) * 40
        boxes = torch.cat([corner, corner + torch.rand(count, 2) * 20 + 4], dim=1)
        windows.append(Targets.of(boxes, torch.randint(3, (count,))))
    return windows


def total(terms: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(terms.values())).sum()


@pytest.mark.parametrize(("classes", "layers", "parameters"), [(2, 6, 7_306_218), (3, 6, 7_308_273)])
def test_it_has_the_parameters_of_the_public_decoder(classes: int, layers: int, parameters: int) -> None:
    head = RtDetrHead((256,) * 3, classes, layers=layers)
    assert sum(parameter.numel() for parameter in head.parameters()) == parameters


def test_every_public_name_becomes_one_of_ours(golden_weights: Callable[..., dict[str, Tensor]]) -> None:
    public = golden_weights("evrtdetr_b_gen1", "net_decoder.pth::")
    ours = RtDetrHead((256,) * 3, 2).state_dict()
    given = rename_entries(public, EVRT_DETR["head"])
    assert len(given) == len(public)
    assert {name: value.shape for name, value in given.items()} == {name: ours[name].shape for name in ours}


@pytest.mark.slow
def test_a_whole_evrt_detr_gives_the_public_outputs(
    golden: Callable[..., dict[str, Any]],
    golden_weights: Callable[..., dict[str, Tensor]],
    golden_rule: ModuleType,
    close_to_golden: Callable[..., None],
) -> None:
    stored = golden("evrtdetr_b")
    parts: dict[str, tuple[nn.Module, Any, str]] = {
        "backbone": (PResNet(20), EVRT_DETR["backbone"], "net_backbone.pth::_net."),
        "neck": (HybridEncoder((512, 1024, 2048)), EVRT_DETR["neck"], "net_encoder.pth::"),
        "memory": (LatentMemory((256,) * 3), EVRT_DETR["memory"], "net_temp_enc.pth::"),
        "head": (RtDetrHead((256,) * 3, 2), EVRT_DETR["head"], "net_decoder.pth::"),
    }
    for module, names, prefix in parts.values():
        module.load_state_dict(rename_entries(golden_weights("evrtdetr_b_gen1", prefix), names))
        module.eval()
    backbone, neck, memory, head = (part[0] for part in parts.values())
    assert isinstance(head, RtDetrHead)
    images = torch.from_numpy(golden_rule.normal("input", (3, 2, 20, 256, 320))).float()
    state = None
    with torch.no_grad():
        for step, image in enumerate(images):
            features, state = memory(neck(backbone(image, None)[0]), state, 1)
            outputs = head(features)
            cells = _cells(head, features)
            of_cells = head.cell_scores(cells).numpy()
            np.testing.assert_allclose(of_cells, stored[f"t{step}_enc_class"], rtol=0, atol=1e-5)
            close_to_golden(head.cell_boxes(cells) + head.anchors, stored, f"t{step}_enc_coord_unact_inf0", atol=1e-5)
            chosen = head.cell_scores(cells).amax(dim=-1).topk(300).indices.numpy()
            for window in range(2):
                public = stored[f"t{step}_topk_ind"][window]
                assert set(public) == set(chosen[window])
                aligned = np.argsort(chosen[window])[np.argsort(np.argsort(public))]
                logits = outputs.class_logits[window].numpy()[aligned]
                np.testing.assert_allclose(logits, stored[f"t{step}_pred_logits"][window], rtol=0, atol=1e-5)
                boxes = cxcywh_from_xyxy(outputs.boxes[window] / torch.tensor([320, 256, 320, 256]))
                expected = stored[f"t{step}_pred_boxes"][window]
                np.testing.assert_allclose(boxes.numpy()[aligned], expected, rtol=0, atol=1e-5)


def _cells(head: RtDetrHead, features: Sequence[Tensor]) -> Tensor:
    """[N, S, C] what every cell proposes from."""
    projected = [project(image) for project, image in zip(head.projections, features, strict=True)]
    memory = torch.cat([image.flatten(2).transpose(1, 2) for image in projected], dim=1)
    result: Tensor = head.cell_features(memory * head.valid)
    return result


@pytest.mark.parametrize(("frame", "invalid"), [((256, 320), 0), ((384, 640), 96)])
def test_cells_propose_boxes_around_themselves_unless_at_the_margin(frame: tuple[int, int], invalid: int) -> None:
    sizes = [(frame[0] // stride, frame[1] // stride) for stride in (8, 16, 32)]
    anchors, valid = cell_anchors(sizes)
    rows, columns = sizes[1]
    cell = sizes[0][0] * sizes[0][1] + 3 * columns + 7  # row 3, column 7 of the second map
    expected = torch.tensor([7.5 / columns, 3.5 / rows, 0.1, 0.1])
    torch.testing.assert_close(anchors[cell].sigmoid(), expected)
    assert int((~valid).sum()) == invalid
    assert (anchors[~valid[:, 0]] == math.inf).all()
    assert anchors[valid[:, 0]].isfinite().all()


def test_a_fresh_head_predicts_the_boxes_of_its_best_cells_in_pixels() -> None:
    torch.manual_seed(0)
    head = RtDetrHead((16,) * 3, 3, hidden=16, queries=7, layers=2, heads=2).eval()
    features = maps(2)
    with torch.no_grad():
        outputs = head(features)
        best = head.cell_scores(_cells(head, features)).amax(dim=-1).topk(7).indices
    boxes = cxcywh_from_xyxy(outputs.boxes) / torch.tensor([80, 64, 80, 64])
    torch.testing.assert_close(boxes, head.anchors[best].sigmoid())
    assert outputs.class_logits.shape == (2, 7, 3)
    assert outputs.objectness is None
    assert outputs.training is None


def test_a_frame_with_fewer_cells_than_queries_uses_them_all() -> None:
    head = small(queries=300)
    outputs = head(maps(2), targets_of(2, 1))
    assert outputs.boxes.shape == (2, sum(rows * columns for rows, columns in SIZES), 4)
    assert total(head.loss(outputs, targets_of(2, 1))).isfinite()


def test_cells_at_the_margin_may_become_queries_without_harm() -> None:
    head = small(queries=1000)
    sizes = [(4, 80), (2, 40), (1, 20)]
    targets = targets_of(2)
    outputs = head(maps(1, sizes), targets)
    assert not head.valid.all()
    assert outputs.boxes.isfinite().all()
    total(head.loss(outputs, targets)).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in head.parameters())


def test_windows_do_not_depend_on_one_another() -> None:
    torch.manual_seed(0)
    head, features = small().double().eval(), [image.double() for image in maps(3)]
    with torch.no_grad():
        together = head(features)
        alone = head([image[1:2] for image in features])
    torch.testing.assert_close(together.boxes[1:2], alone.boxes)
    torch.testing.assert_close(together.class_logits[1:2], alone.class_logits)


def test_queries_do_not_depend_on_the_noisy_copies_of_the_truth() -> None:
    torch.manual_seed(0)
    head, features = small().double(), [image.double() for image in maps(2)]
    with_noise, without = head(features, targets_of(3, 1)), head(features)
    assert with_noise.training.denoising is not None
    assert without.training.denoising is None
    for mine, other in zip(with_noise.training.layers, without.training.layers, strict=True):
        torch.testing.assert_close(mine, other)


def test_evaluation_with_targets_gives_the_same_predictions_and_a_loss() -> None:
    torch.manual_seed(0)
    head, features, targets = small().eval(), maps(2), targets_of(2, 3)
    plain, with_targets = head(features), head(features, targets)
    torch.testing.assert_close(plain.boxes, with_targets.boxes)
    torch.testing.assert_close(plain.class_logits, with_targets.class_logits)
    assert len(with_targets.training.layers.boxes) == 3
    assert with_targets.training.denoising is None
    assert total(head.loss(with_targets, targets)).isfinite()
    assert plain.training is None


def test_loss_of_a_layers_boxes_reaches_its_own_box_head_and_the_one_before() -> None:
    torch.manual_seed(0)
    head = small(layers=4, denoising=0)
    head(maps(1)).training.layers.boxes[2].sum().backward()
    reached = [box[-1].bias.grad is not None and bool(box[-1].bias.grad.any()) for box in head.boxes]  # type: ignore[index]
    assert reached == [False, True, True, False]
    assert head.cell_features[0].weight.grad is None  # queries enter the decoder detached
    assert head.cell_boxes[0].weight.grad is None


@pytest.mark.parametrize("counts", [(), (0, 0), (1, 0), (100, 2)])
def test_every_parameter_gets_a_finite_gradient_whatever_the_boxes(counts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    head, targets = small(), targets_of(*counts)
    outputs = head(maps(len(counts)), targets)
    total(head.loss(outputs, targets)).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if sum(counts):
            assert parameter.grad.any(), name
    assert all(value.isfinite().all() for value in head.state_dict().values())


def test_a_few_steps_bring_the_boxes_nearer() -> None:
    torch.manual_seed(0)
    head, features, targets = small(layers=2, denoising=4), maps(2), targets_of(2, 1)
    optimiser = torch.optim.AdamW(head.parameters(), lr=1e-2)
    distances = []
    for _ in range(50):
        optimiser.zero_grad()
        terms = head.loss(head(features, targets), targets)
        total(terms).backward()
        optimiser.step()
        distances.append(float(terms["box"].detach() + terms["giou"].detach()))
    assert np.mean(distances[-5:]) < 0.5 * np.mean(distances[:5])


def test_training_in_bfloat16_autocast_is_finite_and_near() -> None:
    torch.manual_seed(0)
    head, features, targets = small(), maps(2), targets_of(3, 0)
    exact = head(features, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = head(features, targets)
        terms = head.loss(outputs, targets)
    assert outputs.boxes.dtype == torch.float32
    assert (outputs.boxes - exact.boxes).abs().median() < 1
    total(terms).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in head.parameters())


def test_a_model_cast_to_bfloat16_keeps_its_anchors_in_float32() -> None:
    torch.manual_seed(0)
    head, features = small().eval(), maps(1)
    head(features)
    anchors = head.anchors
    with torch.no_grad():
        outputs = head.bfloat16()([image.bfloat16() for image in features])
    assert torch.equal(head.anchors, anchors)
    assert outputs.boxes.dtype == torch.float32
    assert outputs.boxes.isfinite().all()


def test_tables_made_in_inference_mode_serve_in_training_and_follow_the_frame() -> None:
    head, targets = small(), targets_of(1)
    with torch.inference_mode():
        head.eval()(maps(1))
    total(head.train().loss(head(maps(1), targets), targets)).backward()
    larger = head.eval()(maps(1, [(16, 12), (8, 6), (4, 3)]))
    assert larger.boxes.shape == (1, 20, 4)
    assert len(head.anchors) == 16 * 12 + 8 * 6 + 4 * 3
    assert head.frame.tolist() == [96, 128, 96, 128]
    assert not any("anchors" in name or "valid" in name or "frame" in name for name in head.state_dict())


@pytest.mark.slow
def test_inference_is_one_graph_and_can_be_exported() -> None:
    torch.manual_seed(0)
    head, features = small().eval(), maps(1)

    def run(features: list[Tensor]) -> tuple[Tensor, Tensor]:
        outputs: Outputs = head(features)
        return outputs.boxes, outputs.class_logits

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = head

        def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
            return run(features)

    with torch.no_grad():
        expected = run(features)
        compiled = torch.compile(run, fullgraph=True, backend="eager")(features)
        exported = torch.export.export(Step(), (features,)).module()(features)
    for mine in (compiled, exported):
        torch.testing.assert_close(mine, expected)


def _step_in_process(rank: int, folder: str, results: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    head = small(layers=1)
    model = nn.parallel.DistributedDataParallel(head)
    targets = [targets_of(), targets_of(2, 0)][rank]  # one process has no labelled window
    total(head.loss(model(maps(len(targets)), targets), targets)).backward()
    results[rank] = [parameter.grad.double().norm().item() for parameter in head.parameters()]
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_step_together_when_one_has_no_window(tmp_path: Path) -> None:
    with torch.multiprocessing.get_context("spawn").Manager() as manager:
        results = manager.list([None, None])
        torch.multiprocessing.spawn(_step_in_process, (str(tmp_path), results), nprocs=2)
        first, second = results
    assert first == pytest.approx(second)
    assert all(norm > 0 for norm in first)
