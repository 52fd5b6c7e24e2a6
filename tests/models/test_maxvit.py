"""The backbone of RVT and S5-ViT: attention, memories, wiring, public names; test_official_golden: known outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fate.errors import FateError
from fate.models.backbones.maxvit import Kind, MaxViT, Memory
from fate.models.checkpoints.importing import RVT
from fate.models.layers.attention import SelfAttention, TransformerBlock, from_groups, to_groups
from fate.models.layers.conv_lstm import ConvLSTM
from tests.models.conftest import rename_entries

Golden = Callable[[str], dict[str, NDArray[np.generic]]]
Weights = Callable[..., dict[str, Tensor]]
SMALL: dict[str, Any] = {"dims": (8, 16, 32, 64), "partition": (2, 3)}  # frames are multiples of 64×96
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU on this machine")
any_memory = pytest.mark.parametrize("memory", ["lstm", "s5"])


def model(memory: Memory = "s5", in_channels: int = 4, **arguments: Any) -> MaxViT:
    """A small one whose attention and memory count as much as what they are added to."""
    torch.manual_seed(0)
    backbone = MaxViT(in_channels, memory=memory, **(SMALL | arguments)).eval()
    for name, parameter in backbone.named_parameters():
        if name.endswith("_scale"):
            nn.init.uniform_(parameter, 0.5, 1.5)
    return backbone


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# --- attention ---


def test_windows_are_tiles_of_neighbours() -> None:
    x = torch.arange(2 * 6 * 8).view(2, 6, 8, 1)
    groups = to_groups(x, (3, 2))
    assert groups.shape == (2 * 2 * 4, 6, 1)
    assert groups[5, :, 0].tolist() == x[0, 3:6, 2:4, 0].flatten().tolist()
    assert torch.equal(from_groups(groups, (3, 2), 6, 8), x)


def test_a_grid_is_spread_evenly_over_the_image() -> None:
    x = torch.arange(2 * 6 * 8).view(2, 6, 8, 1)
    groups = to_groups(x, (3, 2), grid=True)
    assert groups.shape == (2 * 2 * 4, 6, 1)
    assert groups[5, :, 0].tolist() == x[0, 1::2, 1::4, 0].flatten().tolist()
    assert torch.equal(from_groups(groups, (3, 2), 6, 8, grid=True), x)


def test_attention_is_the_softmax_of_scaled_products_head_by_head() -> None:
    torch.manual_seed(0)
    attention, tokens = SelfAttention(12, 4).double(), torch.randn(2, 5, 12, dtype=torch.float64)
    weight, bias = attention.qkv.weight.view(3, 3, 4, 12), attention.qkv.bias.view(3, 3, 4)  # head, part, row
    heads = []
    for head in range(3):
        query, key, value = (tokens @ weight[head, part].T + bias[head, part] for part in range(3))
        heads.append(torch.softmax(query @ key.mT / 2, -1) @ value)
    expected = torch.cat(heads, -1) @ attention.out.weight.T + attention.out.bias
    torch.testing.assert_close(attention(tokens), expected)


def test_a_block_adds_scaled_attention_and_mlp() -> None:
    torch.manual_seed(0)
    tokens = torch.randn(2, 5, 12)
    for normed in (False, True):
        block = TransformerBlock(12, 4, normed)
        assert block.attention_scale.tolist() == block.mlp_scale.tolist() == pytest.approx([1e-5] * 12)
        nn.init.normal_(block.attention_scale)
        nn.init.normal_(block.mlp_scale)
        norm = nn.Identity() if normed else nn.LayerNorm(12, eps=1e-5)
        middle = tokens + block.attention_scale * block.attention(norm(tokens))
        hidden = nn.functional.gelu(block.mlp[0](nn.LayerNorm(12)(middle)))
        torch.testing.assert_close(block(tokens), middle + block.mlp_scale * block.mlp[2](hidden))


# --- the LSTM ---


def test_every_pixel_has_an_lstm_of_its_own() -> None:
    torch.manual_seed(0)
    ours, plain = ConvLSTM(6), nn.LSTMCell(6, 6)
    with torch.no_grad():  # torch's order is input, forget, candidate, output; ours forget, input, output, candidate
        weight, bias = ours.gates.weight.flatten(1), ours.gates.bias
        assert bias is not None
        order = torch.tensor([1, 0, 3, 2])
        plain.weight_ih.copy_(weight[:, :6].view(4, 6, 6)[order].flatten(0, 1))
        plain.weight_hh.copy_(weight[:, 6:].view(4, 6, 6)[order].flatten(0, 1))
        plain.bias_ih.copy_(bias.view(4, 6)[order].flatten())
        plain.bias_hh.zero_()
    x, state = torch.randn(4, 2, 3, 5, 6), (torch.randn(2, 3, 5, 6), torch.randn(2, 3, 5, 6))
    for start in (None, state):
        hidden, (last, cell) = ours(x.flatten(0, 1), start, 4)
        expected = None if start is None else tuple(part.reshape(-1, 6) for part in start)
        for t in range(4):
            expected = plain(x[t].reshape(-1, 6), expected)
            torch.testing.assert_close(hidden.view(4, -1, 6)[t], expected[0])
        torch.testing.assert_close(last.view(-1, 6), expected[0])
        torch.testing.assert_close(cell.view(-1, 6), expected[1])


# --- the whole backbone ---


@any_memory
@torch.no_grad()
def test_features_have_strides_8_16_and_32_and_lie_channels_last(memory: Memory) -> None:
    backbone, images = model(memory), torch.randn(2, 4, 64, 192)
    features, _ = backbone(images)
    assert [tuple(feature.shape) for feature in features] == [(2, 16, 8, 24), (2, 32, 4, 12), (2, 64, 2, 6)]
    assert backbone.channels == (16, 32, 64)
    assert all(feature.is_contiguous(memory_format=torch.channels_last) for feature in features)
    stages, _ = all_stages(backbone, images)
    assert stages[0].shape == (2, 8, 16, 48)
    assert all(torch.equal(one, other) for one, other in zip(stages[1:], features, strict=True))


@torch.no_grad()
def test_a_pillar_map_of_stride_2_gives_the_same_strides() -> None:
    backbone = model(in_channels=5, stem_stride=2)
    features, _ = backbone(torch.randn(1, 5, 32, 48))
    assert [tuple(feature.shape[2:]) for feature in features] == [(8, 12), (4, 6), (2, 3)]
    assert count(backbone) == count(model(in_channels=5, stem_stride=4))


@any_memory
@torch.no_grad()
def test_a_clip_gives_what_its_windows_give_one_by_one(memory: Memory) -> None:
    backbone, images = model(memory), torch.randn(3, 2, 4, 64, 96)
    clip, last = backbone(images.flatten(0, 1), None, 3)
    state = None
    for t in range(3):
        features, state = backbone(images[t], state)
        for one, whole in zip(features, clip, strict=True):
            torch.testing.assert_close(one, whole.view(3, 2, *whole.shape[1:])[t], rtol=0, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=0, atol=1e-5)
    carried, _ = backbone(images[1:].flatten(0, 1), backbone(images[0])[1], 2)
    for one, whole in zip(carried, clip, strict=True):
        torch.testing.assert_close(one, whole[2:], rtol=0, atol=1e-5)


@any_memory
@torch.no_grad()
def test_streams_of_a_batch_do_not_touch_each_other(memory: Memory) -> None:
    backbone, images = model(memory), torch.randn(2, 2, 4, 64, 96)
    together, _ = backbone(images.flatten(0, 1), None, 2)
    alone, _ = backbone(images[:, 1], None, 2)
    for both, one in zip(together, alone, strict=True):
        torch.testing.assert_close(both.view(2, 2, *both.shape[1:])[:, 1], one, rtol=0, atol=1e-5)


@any_memory
@torch.no_grad()
def test_memory_remembers(memory: Memory) -> None:
    backbone, images = model(memory), torch.randn(1, 4, 64, 96)
    fresh, state = backbone(images)
    again, _ = backbone(images, state)
    assert all((one - other).abs().max() > 1e-3 for one, other in zip(fresh, again, strict=True))


@torch.no_grad()
def test_official_state_does_not_reach_the_output() -> None:
    backbone, images = model(official_state=True), torch.randn(1, 4, 64, 96)
    fresh, state = backbone(images)
    again, _ = backbone(images, state)
    assert all(torch.equal(one, other) for one, other in zip(fresh, again, strict=True))


@torch.no_grad()
def test_the_rate_reaches_every_state_space_layer() -> None:
    backbone, images = model(), torch.randn(2, 4, 64, 96)
    _, slow = backbone(images, None, 1, 1.0)
    _, fast = backbone(images, None, 1, 0.1)
    assert all((one - other).abs().max() > 1e-3 for one, other in zip(slow, fast, strict=True))
    _, mixed = backbone(images, None, 1, torch.tensor([1.0, 0.1]))
    torch.testing.assert_close(mixed[0][0], slow[0][0])
    torch.testing.assert_close(mixed[0][1], fast[0][1])
    backbone.freeze(0.1)
    torch.testing.assert_close(backbone(images, None, 1, 0.1)[1], fast)


@any_memory
def test_every_parameter_gets_a_gradient(memory: Memory) -> None:
    backbone = model(memory).train()
    features, _ = backbone(torch.randn(4, 4, 64, 96), None, 2)
    sum(feature.square().mean() for feature in features).backward()  # type: ignore[union-attr]
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@any_memory
def test_bfloat16_autocast_is_finite_and_near(memory: Memory) -> None:
    backbone, images = model(memory), torch.randn(2, 4, 64, 96)
    exact, _ = backbone(images, None, 2)
    with torch.autocast("cpu", torch.bfloat16):
        features, state = backbone(images, None, 2)
        features, state = backbone(images, state, 2)
        near, _ = backbone(images, None, 2)
    sum(feature.float().square().mean() for feature in features).backward()  # type: ignore[union-attr]
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in backbone.parameters())
    for one, other in zip(near, exact, strict=True):
        assert (one - other).abs().mean() < 0.03 * other.abs().mean()


@any_memory
@torch.no_grad()
def test_a_model_turned_to_bfloat16_runs_with_its_state_in_float32(memory: Memory) -> None:
    backbone = model(memory).bfloat16()
    features, state = backbone(torch.randn(2, 4, 64, 96).bfloat16(), None, 2)
    features, state = backbone(torch.randn(1, 4, 64, 96).bfloat16(), state)
    assert all(feature.dtype == torch.bfloat16 and feature.isfinite().all() for feature in features)
    assert all(part.dtype == torch.float32 for stage in state for part in (stage if memory == "lstm" else [stage]))


@pytest.mark.parametrize("dims", [(16, 32, 64, 128), (32, 64, 128, 256)])
@torch.no_grad()
def test_smaller_sizes_work(dims: tuple[int, ...]) -> None:
    backbone = model(dims=dims, partition=(8, 10))
    features, _ = backbone(torch.randn(1, 4, 256, 320))
    assert [feature.shape[1] for feature in features] == [*dims[1:]]


# --- stages of other kinds ---

KINDS: tuple[Kind, ...] = ("plain", "convolution", "global", "attention")


@any_memory
@torch.no_grad()
def test_stages_of_every_kind_step_as_they_run_over_a_clip(memory: Memory) -> None:
    backbone, images = model(memory, kinds=KINDS, mlp_ratio=2), torch.randn(3, 2, 4, 64, 96)
    clip, last = backbone(images.flatten(0, 1), None, 3)
    assert [tuple(feature.shape[1:]) for feature in clip] == [(16, 8, 12), (32, 4, 6), (64, 2, 3)]
    state = None
    for t in range(3):
        features, state = backbone(images[t], state)
        for one, whole in zip(features, clip, strict=True):
            torch.testing.assert_close(one, whole.view(3, 2, *whole.shape[1:])[t], rtol=0, atol=1e-5)
    assert state is not None
    assert [part is None for part in state] == [True, False, False, False]
    torch.testing.assert_close(state[1:], last[1:], rtol=0, atol=1e-5)


def all_stages(
    backbone: MaxViT, images: Tensor, state: Any = None, steps: int = 1
) -> tuple[list[Tensor], tuple[Any, ...]]:
    """What the backbone returns, with the first stage's features too."""
    first: list[Tensor] = []
    hook = backbone.stages[0].register_forward_hook(lambda _module, _inputs, outputs: first.append(outputs[0]))
    features, after = backbone(images, state, steps)
    hook.remove()
    return [*first, *features], after


def reached(backbone: MaxViT, stage: int) -> Tensor:
    """Which cells of a stage's map [H, W] a change of one cell of its input reaches."""
    images = torch.randn(1, 4, 64, 192, generator=torch.Generator().manual_seed(0))
    before = all_stages(backbone, images)[0]
    inputs = images if stage == 0 else before[stage - 1].clone()
    _, _, height, width = inputs.shape
    inputs[..., height // 2, width // 2] += 1.0
    with torch.no_grad():
        after, _ = backbone.stages[stage](inputs, None, 1, 1.0)
    return (after - before[stage])[0].abs().amax(0) > 1e-6


@torch.no_grad()
def test_a_kind_says_how_far_a_stage_looks() -> None:
    counts = {}
    for kind in get_args(Kind):
        seen = reached(model(kinds=("plain", kind, "attention", "attention")), 1)
        assert seen.shape == (8, 24)
        counts[kind] = int(seen.sum())
    assert counts["plain"] <= 4  # the strided 3×3 convolution alone
    assert counts["plain"] < counts["convolution"] <= 6 * 6  # and 5×5 around it
    assert counts["global"] == 6 * counts["plain"]  # every point of the grids of 2×3 that it touches
    assert counts["attention"] >= 6 * 6  # of the grids of a whole window


def test_every_parameter_of_every_kind_gets_a_gradient() -> None:
    backbone = model(kinds=KINDS).train()
    features, _ = backbone(torch.randn(4, 4, 64, 96), None, 2)
    sum(feature.square().mean() for feature in features).backward()  # type: ignore[union-attr]
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in backbone.parameters()), [
        name for name, parameter in backbone.named_parameters() if parameter.grad is None
    ]


def test_attention_without_an_mlp_has_fewer_parameters_and_nothing_else_changes() -> None:
    with_mlp, without = (model(mlp_ratio=ratio) for ratio in (4, 0))
    gone = with_mlp.state_dict().keys() - without.state_dict().keys()
    assert gone == {name for name in with_mlp.state_dict() if ".mlp" in name and ".memory." not in name}
    assert without.state_dict().keys() < with_mlp.state_dict().keys()


def test_a_stage_without_attention_may_have_any_width() -> None:
    assert MaxViT(4, dims=(6, 10, 32, 64), kinds=("plain", "convolution", "global", "global")).channels == (10, 32, 64)
    with pytest.raises(FateError, match="four of attention, global, convolution, plain"):
        MaxViT(4, kinds=("plain", "conv", "global", "global"))  # type: ignore[arg-type]
    with pytest.raises(FateError, match="four of attention"):
        MaxViT(4, kinds=("attention",))


@needs_gpu
@any_memory
@torch.inference_mode()
def test_a_window_can_be_captured_in_a_graph(memory: Memory) -> None:
    backbone, images = model(memory).cuda(), torch.randn(3, 1, 4, 64, 96, device="cuda")
    _, state = backbone(images[0])
    expected, _ = backbone(images[1], state)
    given = images[2].clone()
    with torch.cuda.stream(torch.cuda.Stream()):
        backbone(given, state)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        features, _ = backbone(given, state)
    given.copy_(images[1])
    graph.replay()
    torch.testing.assert_close(features, expected)


@needs_gpu
@any_memory
def test_a_gpu_gives_the_features_and_gradients_of_the_cpu(memory: Memory) -> None:
    outcomes = []
    for device in ("cpu", "cuda"):
        backbone = model(memory).to(device)
        images = torch.randn(6, 4, 64, 96, generator=torch.Generator().manual_seed(1)).to(device)
        with torch.backends.cudnn.flags(allow_tf32=False):
            features, state = backbone(images, None, 3, torch.linspace(0.1, 1, 6))
            features, _ = backbone(images, state, 3)
            sum(feature.square().mean() for feature in features).backward()  # type: ignore[union-attr]
        gradients = [parameter.grad for parameter in backbone.parameters()]
        outcomes.append([*(feature.detach() for feature in features), *gradients])
    for one, other in zip(*outcomes, strict=True):
        assert (one - other.cpu()).abs().max() < 1e-4 * max(1e-2, float(one.abs().max()))


def test_wrong_sizes_are_refused_with_the_right_ones() -> None:
    with pytest.raises(FateError, match="multiples of head_dim=32"):
        MaxViT(4, dims=(48, 96, 192, 384), head_dim=32)
    with pytest.raises(FateError, match="'lstm', 's5'"):
        MaxViT(4, memory="gru")  # type: ignore[arg-type]


# --- the public models ---


@pytest.mark.parametrize(
    ("memory", "dims", "parameters"),
    [
        ("lstm", (64, 128, 256, 512), 12_784_768),
        ("s5", (64, 128, 256, 512), 12_440_448),
        ("lstm", (48, 96, 192, 384), 7_209_312),  # and 2 660 853 in neck and head: RVT-S has 9 870 165,
        ("s5", (48, 96, 192, 384), 7_016_352),  # S5-ViT-S 9 677 205
    ],
)
def test_parameters_are_as_many_as_the_public_ones(memory: Memory, dims: tuple[int, ...], parameters: int) -> None:
    assert count(MaxViT(20, dims, memory)) == parameters


@pytest.mark.parametrize(("memory", "public"), [("lstm", "rvt_b"), ("s5", "s5vit_b")])
def test_public_names_are_ours_one_to_one(memory: Memory, public: str, golden_weights: Weights) -> None:
    weights = golden_weights(f"{public}_gen1", "mdl.backbone.")
    ours = rename_entries(weights, RVT["backbone"])
    own = MaxViT(20, memory=memory).state_dict()
    assert len(ours) == len(weights)
    assert set(ours) == set(own)
    assert all(ours[name].shape == value.shape for name, value in own.items())
