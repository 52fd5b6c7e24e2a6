"""EvRT-DETR's memory: what the public one gives, clips and steps, and its fused form."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fate.errors import FateError
from fate.inference.graph_check import clip as windows_of
from fate.inference.step_graph import StepGraph
from fate.inference.streaming_step import compile_for_streaming
from fate.models import state as states
from fate.models.backbones.presnet import PResNet
from fate.models.checkpoints.importing import EVRT_DETR
from fate.models.necks.hybrid_encoder import HybridEncoder
from fate.models.necks.latent_memory import Gate, LatentMemory, PeepholeConvLSTM
from fate.models.zoo import build_model
from tests.models.conftest import rename_entries

CHANNELS = (6, 4)


def small(hidden: int | None = 5, kernel: int = 3) -> LatentMemory:
    """In double precision, with peepholes that see something."""
    torch.manual_seed(0)
    memory = LatentMemory(CHANNELS, hidden, kernel).double()
    for name, parameter in memory.named_parameters():
        if name.endswith("peephole"):
            torch.nn.init.normal_(parameter)
    return memory


def clip(steps: int, batch: int = 2) -> list[Tensor]:
    """Maps of two levels, time-major."""
    generator = torch.Generator().manual_seed(1)
    sizes = ((4, 6), (2, 3))
    return [
        torch.randn(steps * batch, channels, *size, generator=generator, dtype=torch.float64)
        for channels, size in zip(CHANNELS, sizes, strict=True)
    ]


def one_by_one(memory: LatentMemory, maps: list[Tensor], steps: int) -> tuple[list[Tensor], object]:
    """The clip in as many calls as it has windows."""
    state, outputs = None, []
    for window in zip(*(level.chunk(steps) for level in maps), strict=True):
        output, state = memory(window, state)
        outputs.append(output)
    return [torch.cat(level) for level in zip(*outputs, strict=True)], state


def gate_by_gate(cell: PeepholeConvLSTM, maps: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """One window, each gate by its own convolutions, as the equations say it."""

    def told(gate: Gate) -> Tensor:
        padding = gate.from_input.kernel_size[0] // 2
        seen = functional.conv2d(maps, gate.from_input.weight, gate.from_input.bias, padding=padding)
        return seen + functional.conv2d(hidden, gate.from_hidden.weight, padding=padding)

    i = torch.sigmoid(told(cell.input_gate) + cell.input_gate.peephole * memory)
    f = torch.sigmoid(told(cell.forget_gate) + cell.forget_gate.peephole * memory)
    memory = f * memory + i * torch.tanh(told(cell.candidate))
    o = torch.sigmoid(told(cell.output_gate) + cell.output_gate.peephole * memory)
    return o * torch.tanh(memory), memory


@pytest.mark.slow
def test_outputs_are_those_of_the_public_model(
    golden: Callable[[str], dict[str, np.ndarray]],
    golden_weights: Callable[..., dict[str, Tensor]],
    golden_rule: ModuleType,
    close_to_golden: Callable[..., None],
) -> None:
    backbone, encoder, memory = PResNet(20), HybridEncoder((512, 1024, 2048)), LatentMemory((256, 256, 256))
    for module, names, prefix in (
        (backbone, EVRT_DETR["backbone"], "net_backbone.pth::_net."),
        (encoder, EVRT_DETR["neck"], "net_encoder.pth::"),
        (memory, EVRT_DETR["memory"], "net_temp_enc.pth::"),
    ):
        module.load_state_dict(rename_entries(golden_weights("evrtdetr_b_gen1", prefix), names))
        module.eval()
    images = torch.from_numpy(golden_rule.normal("input", (3, 2, 20, 256, 320)).astype(np.float32))
    arrays, state = golden("evrtdetr_b"), None
    with torch.inference_mode():
        for step in range(3):
            encoded = encoder(backbone(images[step])[0])
            outputs, state = memory(encoded, state)
            for level in range(3):
                close_to_golden(encoded[level], arrays, f"t{step}_encoder{level}", atol=1e-6)
                close_to_golden(outputs[level], arrays, f"t{step}_tempenc{level}", atol=1e-6)
                close_to_golden(state[level][0], arrays, f"t{step}_hidden{level}", atol=1e-6)
                close_to_golden(state[level][1], arrays, f"t{step}_cell{level}", atol=1e-6)


def test_parameters_are_as_many_as_in_the_public_code() -> None:
    with torch.device("meta"):
        memory = LatentMemory((256, 256, 256))
    assert sum(p.numel() for p in memory.parameters()) == 14_358_528


@pytest.mark.parametrize(("hidden", "kernel"), [(None, 3), (5, 3), (7, 1), (3, 5)])
def test_joined_gates_compute_what_each_computes_alone(hidden: int | None, kernel: int) -> None:
    memory, maps = small(hidden, kernel), clip(steps=3)
    with torch.no_grad():
        outputs, after = memory(maps, None, steps=3)
        for level, (cell, project) in enumerate(zip(memory.cells, memory.projections, strict=True)):
            h = c = torch.zeros(2, hidden or CHANNELS[level], *maps[level].shape[2:], dtype=torch.float64)
            for window, output in zip(maps[level].chunk(3), outputs[level].chunk(3), strict=True):
                h, c = gate_by_gate(cell, window, h, c)
                torch.testing.assert_close(output, window + project(h), rtol=0, atol=1e-12)
            torch.testing.assert_close(after[level], (h, c), rtol=0, atol=1e-12)


@pytest.mark.parametrize("fused", [False, True])
def test_a_clip_gives_what_its_windows_give_one_by_one(fused: bool) -> None:
    memory, maps = small(), clip(steps=4)
    if fused:
        memory.fuse_()
    with torch.no_grad():
        together, after = memory(maps, None, steps=4)
        alone, after_alone = one_by_one(memory, maps, 4)
        halves = [level.chunk(2) for level in maps]
        first, between = memory([level[0] for level in halves], None, steps=2)
        second, after_halves = memory([level[1] for level in halves], between, steps=2)
    for level in range(2):
        torch.testing.assert_close(together[level], alone[level], rtol=0, atol=1e-12)
        torch.testing.assert_close(together[level], torch.cat((first[level], second[level])), rtol=0, atol=1e-12)
    torch.testing.assert_close(after, after_alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(after, after_halves, rtol=0, atol=1e-12)


def test_a_fused_memory_gives_the_same_and_keeps_no_separate_gates() -> None:
    memory, maps = small(), clip(steps=3)
    fused = copy.deepcopy(memory)
    fused.fuse_()
    fused.fuse_()  # a second time changes nothing
    assert not any(isinstance(module, Gate) for module in fused.modules())
    assert sum(p.numel() for p in fused.parameters()) == sum(p.numel() for p in memory.parameters())
    with torch.no_grad():
        torch.testing.assert_close(fused(maps, None, 3), memory(maps, None, 3), rtol=0, atol=1e-12)


def test_streams_do_not_touch_each_other_and_begin_anew_when_reset() -> None:
    memory, maps = small(), clip(steps=1)
    with torch.no_grad():
        fresh, after = memory(maps)
        carried, _ = memory(maps, after)
        mixed, _ = memory(maps, states.reset(after, torch.tensor([True, False])))
    for level in range(2):
        torch.testing.assert_close(mixed[level][0], fresh[level][0])
        torch.testing.assert_close(mixed[level][1], carried[level][1])
        assert not torch.allclose(fresh[level], carried[level])


def test_peepholes_begin_at_zero() -> None:
    peepholes = [p for name, p in LatentMemory((4,)).named_parameters() if name.endswith("peephole")]
    assert len(peepholes) == 3
    assert not any(p.any() for p in peepholes)


def test_gradients_reach_every_parameter_through_time() -> None:
    memory, maps = small(), [level.requires_grad_() for level in clip(steps=3)]
    outputs, _ = memory(maps, None, steps=3)
    sum(level[-2:].square().mean() for level in outputs).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in memory.parameters())
    assert all(level.grad is not None and level.grad[:2].abs().sum() > 0 for level in maps)  # of the first window


@pytest.mark.parametrize("steps", [1, 3])
def test_under_autocast_the_cell_stays_in_float32_and_types_do_not_change_from_step_to_step(steps: int) -> None:
    memory, maps = small().float(), [level.bfloat16() for level in clip(steps)]
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        _, first = memory(maps, None, steps)
        outputs, second = memory(maps, first, steps)
    for hidden, cell in (*first, *second):
        assert (hidden.dtype, cell.dtype) == (torch.bfloat16, torch.float32)
    assert all(level.dtype == torch.bfloat16 and level.isfinite().all() for level in outputs)


def test_maps_and_state_with_channels_last_stay_so() -> None:
    memory, maps = small().to(memory_format=torch.channels_last), clip(steps=1)
    with torch.no_grad():
        outputs, after = memory([level.to(memory_format=torch.channels_last) for level in maps])
        expected, _ = small()(maps)
    for level, output in enumerate(outputs):
        torch.testing.assert_close(output, expected[level])
        for part in (output, *after[level]):
            assert part.is_contiguous(memory_format=torch.channels_last)


def timed(recurrence: str = "time") -> LatentMemory:
    """The small memory with another recurrence and the same parameters."""
    memory = LatentMemory(CHANNELS, 5, recurrence=recurrence).double()  # type: ignore[arg-type]
    memory.load_state_dict(small().state_dict())
    return memory


@pytest.mark.parametrize("scale", [1.0, torch.ones(6, dtype=torch.float64)])
def test_steps_of_50_ms_equal_the_published_cell(scale: float | Tensor) -> None:
    expected, expected_state = small()(clip(3), None, 3)
    outputs, state = timed()(clip(3), None, 3, scale)
    given = [*outputs, *states.tensors(state)]
    for ours, published in zip(given, [*expected, *states.tensors(expected_state)], strict=True):
        assert torch.allclose(ours, published, rtol=1e-12, atol=1e-12)


def test_ten_steps_of_5_ms_equal_one_of_50_ms_while_the_gates_are_constant() -> None:
    memory = timed()
    with torch.no_grad():
        for cell in memory.cells:
            for gate in (cell.input_gate, cell.forget_gate, cell.output_gate, cell.candidate):
                gate.from_hidden.weight.zero_()
                if hasattr(gate, "peephole"):
                    gate.peephole.zero_()
    before = memory(clip(4), None, 4)[1]
    window = clip(1)
    once, _ = memory(window, before)
    repeated, _ = memory([level.repeat(10, 1, 1, 1) for level in window], before, 10, 0.1)
    for given, wanted in zip(repeated, once, strict=True):
        assert torch.allclose(given[-2:], wanted, rtol=1e-10, atol=1e-12)


def test_streams_of_one_batch_may_have_steps_of_different_lengths() -> None:
    memory, maps = timed(), clip(3)
    outputs, _ = memory(maps, None, 3, torch.tensor([0.1, 1.0] * 3, dtype=torch.float64))
    for stream, scale in enumerate((0.1, 1.0)):
        alone, _ = memory([level[stream::2] for level in maps], None, 3, scale)
        for given, wanted in zip(outputs, alone, strict=True):
            assert torch.allclose(given[stream::2], wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("scale", [0.1, 0.5])
def test_short_steps_have_finite_gradients_for_extreme_gates(scale: float) -> None:
    memory = timed().float()
    with torch.no_grad():
        for cell in memory.cells:
            cell.forget_gate.from_input.bias.fill_(200.0)
    maps = [level.float().requires_grad_() for level in clip(3)]
    outputs, _ = memory(maps, None, 3, scale)
    sum(level.square().sum() for level in outputs).backward()
    assert all(level.grad is not None and level.grad.isfinite().all() for level in maps)


def test_the_published_cell_ignores_elapsed_time() -> None:
    for given, wanted in zip(small()(clip(3), None, 3, 0.1)[0], small()(clip(3), None, 3)[0], strict=True):
        assert torch.equal(given, wanted)


def test_an_unknown_recurrence_is_refused() -> None:
    with pytest.raises(FateError, match="'hours'.*'steps'.*'time'"):
        timed("hours")


def test_streams_and_exported_graphs_follow_time_as_the_detector_does() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"layers": 1, "queries": 10, "widths": (8, 16, 16, 16), "hidden": 32, "feedforward": 32}
    model = build_model("fate-e-tiny", ("car",), (64, 64), recurrence="time", **sizes).eval()
    assert StepGraph(model, 1).timed
    for hz in (20, 200):
        state, step = None, compile_for_streaming(model)
        for batch in windows_of(None, model.sensor, hz, 4, 1):
            with torch.no_grad():
                _, state = model(batch, state)
            step(batch)
            for ours, theirs in zip(states.tensors(step.state), states.tensors(state), strict=True):
                assert torch.allclose(ours, theirs, atol=1e-5), hz
