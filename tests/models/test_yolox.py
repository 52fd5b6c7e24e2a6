"""YOLOX's head: wiring and decoding against a plain computation by the public names, counts, sizes, no windows."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fate.models.checkpoints.importing import RVT
from fate.models.heads.yolox import YOLOXHead, decode_boxes
from fate.models.outputs import Outputs, Targets
from tests.models.conftest import rename_entries
from tests.models.test_pafpn import conv, conv_shapes, well_scaled

CHANNELS = (6, 10, 16)
HIDDEN, CLASSES = 8, 3


def public_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for level, channels in enumerate(CHANNELS):
        shapes |= conv_shapes(f"stems.{level}", channels, HIDDEN)
        for tower in ("cls_convs", "reg_convs"):
            for number in range(2):
                shapes |= conv_shapes(f"{tower}.{level}.{number}", HIDDEN, HIDDEN, 3)
        for name, out in (("cls_preds", CLASSES), ("reg_preds", 4), ("obj_preds", 1)):
            shapes |= {f"{name}.{level}.weight": (out, HIDDEN, 1, 1), f"{name}.{level}.bias": (out,)}
    return shapes


def plain(weights: dict[str, Tensor], features: list[Tensor]) -> Tensor:
    """[N, Q, 4 + 1 + classes] cx, cy, w, h in pixels, logits; cell by cell, as the description reads."""
    rows_of_all = []
    for level, (image, stride) in enumerate(zip(features, (8, 16, 32), strict=True)):
        stem = conv(weights, f"stems.{level}", image)
        towers = {}
        for tower in ("cls_convs", "reg_convs"):
            towers[tower] = conv(weights, f"{tower}.{level}.1", conv(weights, f"{tower}.{level}.0", stem))
        reg, obj, cls = (
            functional.conv2d(towers[tower], weights[f"{name}.{level}.weight"], weights[f"{name}.{level}.bias"])
            for name, tower in (("reg_preds", "reg_convs"), ("obj_preds", "reg_convs"), ("cls_preds", "cls_convs"))
        )
        for y in range(image.shape[2]):
            for x in range(image.shape[3]):
                px, py, pw, ph = reg[:, :, y, x].unbind(1)
                box = [(px + x) * stride, (py + y) * stride, pw.exp() * stride, ph.exp() * stride]
                rows_of_all.append(torch.cat([torch.stack(box, 1), obj[:, :, y, x], cls[:, :, y, x]], 1))
    return torch.stack(rows_of_all, 1)


def maps(windows: int = 2, rows: int = 3, columns: int = 5, channels: tuple[int, ...] = CHANNELS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(windows, number, rows * 2**level, columns * 2**level, generator=generator)
        for number, level in zip(channels, (2, 1, 0), strict=True)
    ]


def target(*boxes: list[float], class_id: int = 0) -> Targets:
    return Targets.of(torch.tensor(boxes).reshape(-1, 4), torch.full((len(boxes),), class_id))


def test_predictions_are_those_of_the_plain_computation_by_public_names() -> None:
    weights = well_scaled(public_shapes())
    head = YOLOXHead(CHANNELS, CLASSES, HIDDEN).eval()
    head.load_state_dict(rename_entries(weights, RVT["head"]))
    outputs, expected = head(maps()), plain(weights, maps())
    centre, size = expected[..., :2], expected[..., 2:4]
    assert expected[..., 4:].std() > 0.1
    torch.testing.assert_close(outputs.boxes, torch.cat([centre - size / 2, centre + size / 2], -1), atol=1e-4, rtol=0)
    assert outputs.objectness is not None
    torch.testing.assert_close(outputs.objectness, expected[..., 4], atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs.class_logits, expected[..., 5:], atol=1e-5, rtol=0)
    assert outputs.training is None


@pytest.mark.parametrize(("keys", "classes", "count"), [("gen1", 2, 1_890_709), ("gen4", 3, 1_890_709 + 387)])
def test_every_public_entry_has_one_of_ours_and_counts_agree(
    keys: str, classes: int, count: int, golden_weights: Callable[..., dict[str, Tensor]]
) -> None:
    head = YOLOXHead((128, 256, 512), classes)
    assert sum(parameter.numel() for parameter in head.parameters()) == count
    official = golden_weights(f"rvt_b_{keys}", "mdl.yolox_head.")
    ours = rename_entries(official, RVT["head"])
    assert len(ours) == len(official)
    assert set(ours) == set(head.state_dict())
    head.load_state_dict(ours)


def test_a_prediction_of_zeros_is_a_cell_sized_box_at_the_cells_corner() -> None:
    cells, strides = torch.tensor([[3, 1]]), torch.tensor([[16]])
    assert decode_boxes(torch.zeros(1, 1, 4), cells, strides).tolist() == [[[40.0, 8.0, 56.0, 24.0]]]


def test_a_fresh_head_believes_in_one_object_in_a_hundred() -> None:
    head = YOLOXHead(CHANNELS, CLASSES)
    for layer in (*head.class_predictions, *head.object_predictions):
        assert isinstance(layer.bias, Tensor)
        torch.testing.assert_close(layer.bias.sigmoid(), torch.full_like(layer.bias, 0.01))
        assert layer.bias[0].item() == pytest.approx(-math.log(99))
    assert head.stems[0].conv.out_channels == CHANNELS[-1] // 4


def test_another_size_of_frame_gets_its_own_cells() -> None:
    head = YOLOXHead(CHANNELS, CLASSES, HIDDEN).eval()
    first = head(maps(1)).boxes
    assert head(maps(1, rows=2, columns=3)).boxes.shape == (1, 21 * 6, 4)
    torch.testing.assert_close(head(maps(1)).boxes, first, rtol=0, atol=0)
    assert not any("cell" in key for key in head.state_dict())


def test_cells_laid_while_nobody_trains_serve_training_too() -> None:
    head = YOLOXHead(CHANNELS, CLASSES, HIDDEN)
    with torch.inference_mode():
        head(maps())
    terms = head.loss(head(maps()), [target([5.0, 5.0, 60.0, 50.0]), target()])
    sum(terms.values()).backward()  # type: ignore[union-attr]
    assert all(parameter.grad is not None for parameter in head.parameters())


def test_boxes_of_a_16_bit_head_are_placed_in_32() -> None:
    head = YOLOXHead(CHANNELS, CLASSES, HIDDEN).eval()
    for layer in head.box_predictions:
        torch.nn.init.zeros_(layer.weight)  # every box is then known
        torch.nn.init.zeros_(layer.bias)
    exact = head(maps(1, 2, 300)).boxes  # 1200 columns at stride 8: not a number of 8 bits
    rough = head.bfloat16()([image.bfloat16() for image in maps(1, 2, 300)])
    assert rough.boxes.dtype == torch.float32
    torch.testing.assert_close(rough.boxes, exact, rtol=0, atol=0)


@pytest.mark.parametrize("boxes", [0, 1, 100])
def test_every_parameter_gets_a_finite_gradient_whatever_the_number_of_boxes(boxes: int) -> None:
    torch.manual_seed(0)
    head = YOLOXHead(CHANNELS, CLASSES, HIDDEN)
    corner, size = torch.rand(boxes, 2) * 90, 5 + torch.rand(boxes, 1) * 60
    targets = [Targets.of(torch.cat([corner, corner + size], 1), torch.arange(boxes) % CLASSES), target()]
    with torch.autocast("cpu", torch.bfloat16):
        outputs = head(maps(), targets)
        terms = head.loss(outputs, targets)
    assert set(terms) == {"iou", "objectness", "class"}
    assert all(term.dtype == torch.float32 and term.isfinite() for term in terms.values())
    sum(terms.values()).backward()  # type: ignore[union-attr]
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if boxes == 100:  # a single box is matched at some of the strides only
            assert parameter.grad.any(), name


def test_no_window_at_all_costs_nothing_and_reaches_every_parameter() -> None:
    head = YOLOXHead(CHANNELS, CLASSES, HIDDEN)
    outputs = head(maps(0), [])
    assert outputs.boxes.shape == (0, 63 * 5, 4)
    total = sum(head.loss(outputs, []).values())
    assert isinstance(total, Tensor)
    assert total.item() == 0
    total.backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in head.parameters())
    assert all(buffer.isfinite().all() for buffer in head.buffers())


def test_the_inference_path_is_one_graph() -> None:
    head = YOLOXHead(CHANNELS, CLASSES, HIDDEN).eval()
    expected = head(maps())
    torch._dynamo.reset()
    graph: Callable[[list[Tensor]], Outputs] = torch.compile(head, fullgraph=True, backend="eager")
    with torch.no_grad():
        outputs = graph(maps())
    torch.testing.assert_close(outputs.boxes, expected.boxes)
