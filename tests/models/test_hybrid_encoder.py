"""The hybrid encoder: what the public one gives, its table of positions, its attention, and its fused form.

Its wiring is compared with ``transformers`` in test_transformers_encoder.py.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fate.errors import FateError
from fate.models.backbones.presnet import PResNet
from fate.models.checkpoints.importing import EVRT_DETR, EVRT_DETR_IGNORED
from fate.models.necks.hybrid_encoder import AIFI, HybridEncoder, position_table
from tests.models.conftest import rename_entries

CHANNELS = (6, 10, 14)


def small(expansion: float = 1.0) -> HybridEncoder:
    """In evaluation, with BatchNorms that have seen something."""
    torch.manual_seed(0)
    encoder = HybridEncoder(CHANNELS, 32, heads=4, feedforward=48, expansion=expansion, blocks=2)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, 0.0, 0.2)
            nn.init.normal_(module.running_mean, 0.0, 0.2)
            nn.init.uniform_(module.running_var, 0.2, 1.0)
    return encoder.eval()


def features(rows: int = 3, columns: int = 5, batch: int = 2) -> list[Tensor]:
    """Maps whose coarsest has so many rows and columns."""
    return [
        torch.randn(batch, channels, rows * finer, columns * finer)
        for channels, finer in zip(CHANNELS, (4, 2, 1), strict=True)
    ]


@pytest.mark.slow
def test_outputs_are_those_of_the_public_encoder(
    golden: Callable[[str], dict[str, np.ndarray]],
    golden_weights: Callable[..., dict[str, Tensor]],
    golden_rule: ModuleType,
    close_to_golden: Callable[..., None],
) -> None:
    backbone, encoder = PResNet(20).eval(), HybridEncoder((512, 1024, 2048)).eval()
    of_backbone = golden_weights("evrtdetr_b_gen1", "net_backbone.pth::_net.")
    backbone.load_state_dict(rename_entries(of_backbone, EVRT_DETR["backbone"]))
    encoder.load_state_dict(rename_entries(golden_weights("evrtdetr_b_gen1", "net_encoder.pth::"), EVRT_DETR["neck"]))
    images = torch.from_numpy(golden_rule.normal("input", (3, 2, 20, 256, 320))[0].astype(np.float32))
    with torch.inference_mode():
        outputs = encoder(backbone(images)[0])
    for level, maps in enumerate(outputs):
        close_to_golden(maps, golden("evrtdetr_b"), f"t0_encoder{level}", atol=1e-6)


def test_only_the_table_of_positions_of_a_public_file_is_ignored(reference_folder: Path) -> None:
    for keys, cells in (("gen1", 80), ("gen4", 240)):
        lines = (reference_folder / f"keys_evrtdetr_b_{keys}.txt").read_text().splitlines()
        names = [line.removeprefix("net_encoder.pth::") for line in lines if line.startswith("net_encoder.pth::")]
        ignored = [name for name in names if re.search(EVRT_DETR_IGNORED, name.split(" ")[0])]
        assert ignored == [f"pos_embed2 (1, {cells}, 256) float32"]


@pytest.mark.parametrize(
    ("channels", "expansion", "expected"), [((512, 1024, 2048), 1.0, 11_950_848), ((128, 256, 512), 0.5, 4_965_120)]
)
def test_parameters_are_as_many_as_in_the_public_code(
    channels: tuple[int, ...], expansion: float, expected: int
) -> None:
    with torch.device("meta"):
        encoder = HybridEncoder(channels, expansion=expansion)
    assert sum(p.numel() for p in encoder.parameters()) == expected
    assert encoder.channels == (256, 256, 256)


@pytest.mark.parametrize(("rows", "columns"), [(8, 10), (12, 20), (4, 4), (1, 3)])
def test_positions_are_counted_down_the_columns(rows: int, columns: int) -> None:
    table = position_table(rows, columns, 16).tolist()
    assert len(table) == rows * columns
    for number, entry in enumerate(table):
        x, y = number // rows, number % rows
        waves = [10_000 ** -(i / 4) for i in range(4)]
        expected = [wave(axis * w) for axis in (x, y) for wave in (math.sin, math.cos) for w in waves]
        assert entry == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (4, 4)])
def test_attention_is_that_of_torch_with_positions_on_queries_and_keys_alone(rows: int, columns: int) -> None:
    torch.manual_seed(0)
    ours, theirs = AIFI(16, 4, 24).double().eval(), nn.MultiheadAttention(16, 4, batch_first=True).double().eval()
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.4)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.query_key_value.weight)
        theirs.in_proj_bias.copy_(ours.query_key_value.bias)
        theirs.out_proj.load_state_dict(ours.output.state_dict())
        maps = torch.randn(2, 16, rows, columns, dtype=torch.float64)
        tokens = maps.permute(0, 2, 3, 1).reshape(2, rows * columns, 16)
        placed = tokens + position_table(rows, columns, 16).double()
        tokens = ours.norm1(tokens + theirs(placed, placed, tokens)[0])
        tokens = ours.norm2(tokens + ours.linear2(nn.functional.gelu(ours.linear1(tokens))))
        expected = tokens.reshape(2, rows, columns, 16).permute(0, 3, 1, 2)
        torch.testing.assert_close(ours(maps), expected, rtol=0, atol=1e-12)


def test_projections_of_attention_begin_like_those_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = AIFI(64, 4, 24), nn.MultiheadAttention(64, 4)
    bound = math.sqrt(6 / (64 + 3 * 64))
    for weight in (ours.query_key_value.weight, theirs.in_proj_weight):
        assert bound * 0.99 < weight.abs().max() <= bound
    assert not ours.query_key_value.bias.any()
    assert not ours.output.bias.any()


@pytest.mark.parametrize("expansion", [1.0, 0.5])
def test_a_fused_encoder_gives_the_same(expansion: float) -> None:
    encoder = small(expansion)
    fused = copy.deepcopy(encoder)
    fused.fuse_()
    fused.fuse_()  # a second time changes nothing
    assert sum(p.numel() for p in fused.parameters()) < sum(p.numel() for p in encoder.parameters())
    maps = features()
    with torch.no_grad():
        for ours, expected in zip(fused(maps), encoder(maps), strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_the_table_follows_the_size_of_the_image_and_is_no_part_of_the_weights() -> None:
    encoder = small()
    first, second = features(3, 5), features(5, 3)
    assert not any("positions" in name for name in encoder.state_dict())
    with torch.inference_mode():
        expected = encoder(first)
        encoder(second)
        again = encoder(first)
    for ours, other in zip(again, expected, strict=True):
        assert torch.equal(ours, other)
    encoder.train()(first)[0].sum().backward()  # a table made in inference mode does for training too


def test_every_map_reaches_every_output() -> None:
    encoder = small()
    maps = [level.requires_grad_() for level in features(batch=1)]
    for output in encoder(maps):
        gradients = torch.autograd.grad(output.square().sum(), maps, retain_graph=True)
        assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_gradients_reach_every_parameter() -> None:
    encoder = small(expansion=0.5).train()
    sum(maps.square().mean() for maps in encoder(features())).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())


def test_maps_with_channels_last_stay_so() -> None:
    encoder, maps = small(), features()
    with torch.no_grad():
        expected = encoder(maps)
        last = [level.to(memory_format=torch.channels_last) for level in maps]
        outputs = encoder.to(memory_format=torch.channels_last)(last)
    for ours, other in zip(outputs, expected, strict=True):
        assert ours.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


def test_attention_is_one_graph() -> None:
    torch.manual_seed(0)
    attention = AIFI(16, 4, 24).eval()
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    maps = torch.randn(1, 16, 3, 5)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(maps), attention(maps))


def test_no_windows_at_all_ask_no_kernel_and_reach_every_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_for_nothing(*_: Tensor, **__: object) -> Tensor:
        raise AssertionError("on a GPU, in bfloat16, this gives None for no windows")

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", not_for_nothing)
    attention = AIFI(16, 4, 24)
    maps = attention(torch.zeros(0, 16, 3, 5))
    assert maps.shape == (0, 16, 3, 5)
    maps.sum().backward()
    assert all(parameter.grad is not None for parameter in attention.parameters())


def test_a_width_that_does_not_divide_is_refused() -> None:
    with pytest.raises(FateError, match="width 30 was given with 8 heads"):
        HybridEncoder(CHANNELS, 30)
