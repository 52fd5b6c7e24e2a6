"""Detectors in few kernels, computed by the readable operations: outputs and states are those of the detector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fate.errors import FateError
from fate.inference.fusing import fused
from fate.inference.fusing_network import fuse_network_, why_not_fused
from fate.models import state as states
from fate.models.detector import Detector
from fate.models.fused import reference
from fate.models.zoo import build_model
from tests.models.small_detectors import (
    CLASSES,
    FAMILIES,
    SENSOR,
    batch_of,
    difference,
    difference_of_sets,
    parts_of,
    rows,
    small_detector,
    some_windows,
    state_difference,
    stirred,
)

pytestmark = pytest.mark.usefixtures("one_thread")
#: Channels on both sides of the limit up to which a kernel computes whole rows.
WIDE = (8, 16, 32, 136)


def _fused(detector: Detector, dtype: torch.dtype = torch.float32) -> Detector:
    result = fused(detector)
    fuse_network_(result, reference, dtype)
    return result


@torch.inference_mode()
def _differences(
    detector: Detector, other: Detector, windows: int = 3, streams: int = 1, step_scale: Tensor | float | None = None
) -> list[float]:
    """The largest difference of outputs and of states, window after window, relative to the spread of the numbers."""
    pairs = some_windows(windows * streams, sensor=tuple(detector.sensor))
    state = other_state = None
    found = []
    for first in range(0, len(pairs), streams):
        batch = batch_of(pairs[first : first + streams])
        outputs, state = detector(batch, state, step_scale=step_scale)
        others, other_state = other(batch, other_state, step_scale=step_scale)
        assert [part.shape for part in parts_of(outputs).values()] == [part.shape for part in parts_of(others).values()]
        found.append(difference(others, outputs))
        if states.tensors(state):
            found.append(state_difference(other_state, state))
    return found


#: Small detectors of EvRT-DETR: with bottlenecks and a full CSP layer, without memory, with one that follows time, with
#: fewer cells than queries, and with a history of images.
DETR: list[dict[str, Any]] = [
    {},
    {"depth": 50, "expansion": 1.0},
    {"remember": False},
    {"recurrence": "time"},
    {"queries": 300},
    {"image_history": True},
]


@pytest.mark.parametrize("more", DETR)
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("encoder", ["pillars", "evrt-histogram"])
def test_outputs_and_states_of_evrt_detr_are_those_of_the_detector(
    more: dict[str, Any], streams: int, encoder: str
) -> None:
    detector = small_detector("evrt", encoder, **more)
    assert max(_differences(detector, _fused(detector), streams=streams)) < 1e-3


@pytest.mark.parametrize("family", ["s5", "lstm"])
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("dims", [FAMILIES["s5"][1]["dims"], WIDE])
def test_outputs_and_states_are_those_of_the_detector(family: str, streams: int, dims: Sequence[int]) -> None:
    detector = small_detector(family, dims=dims)
    assert max(_differences(detector, _fused(detector), streams=streams)) < 1e-4


@pytest.mark.parametrize(
    ("encoder", "more"),
    [
        ("histogram", {}),
        ("voxel", {"bottlenecks": 2}),
        ("pillars", {"official_state": True}),
        ("pillars", {"longest_memory_s": 0.1}),
        ("pillars", {"kinds": ["attention", "global", "global", "attention"]}),
        ("pillars", {"mlp_ratio": 2, "head_width": 24}),
        ("pillars", {"mlp_ratio": 0}),
        ("pillars", {"mlp_ratio": 0, "dims": WIDE}),
        ("pillars", {"kinds": ["convolution", "attention", "convolution", "attention"]}),
        ("pillars", {"kinds": ["plain", "plain", "global", "plain"]}),
        ("histogram", {"kinds": ["plain", "convolution", "global", "global"], "mlp_ratio": 0}),
        ("pillars", {"depthwise": True}),
        ("pillars", {"depthwise": True, "full_head": True}),
        ("pillars", {"image_history": True}),
    ],
)
def test_options_of_the_detector_keep_their_effect(encoder: str, more: dict[str, Any]) -> None:
    detector = small_detector("s5", encoder, **more)
    assert max(_differences(detector, _fused(detector))) < 1e-4


@pytest.mark.parametrize("name", ["fate-s-tiny", "fate-s-nano", "fate-e-tiny"])
@pytest.mark.parametrize("more", [{}, {"image_history": True}])
@pytest.mark.parametrize("streams", [1, 2])
def test_outputs_and_states_of_bundled_detectors_are_those_of_the_detector(
    name: str, more: dict[str, Any], streams: int
) -> None:
    torch.manual_seed(0)
    detector = stirred(build_model(name, CLASSES, SENSOR, **more)).eval()
    assert max(_differences(detector, _fused(detector), streams=streams)) < 1e-3


@torch.inference_mode()
def test_a_stream_that_is_reset_begins_again() -> None:
    other = _fused(small_detector("s5", image_history=True, depthwise=True))
    first, second = batch_of(some_windows(2)), batch_of(some_windows(2, seed=1))
    fresh, _ = other(second)
    _, state = other(first)
    state = other.reset(state, torch.tensor([True, False]))
    outputs, _ = other(second, state)
    assert difference(rows(outputs, [0]), rows(fresh, [0])) < 1e-5
    assert difference(rows(outputs, [1]), rows(fresh, [1])) > 1e-3


@pytest.mark.parametrize("family", ["s5", "evrt"])
def test_frames_that_are_no_multiple_of_32_are_padded(family: str) -> None:
    detector = small_detector(family, sensor=(70, 100))
    assert max(_differences(detector, _fused(detector))) < 1e-4


@pytest.mark.parametrize("step_scale", [0.1, torch.tensor([0.1, 2.0])])
@pytest.mark.parametrize("family", ["s5", "evrt"])
def test_the_time_between_windows_counts(step_scale: Tensor | float, family: str) -> None:
    detector = small_detector("s5") if family == "s5" else small_detector("evrt", recurrence="time")
    other = _fused(detector)
    assert max(_differences(detector, other, streams=2, step_scale=step_scale)) < 1e-4
    assert other.follows_time


@pytest.mark.parametrize("family", ["s5", "lstm"])
def test_sixteen_bits_change_little(family: str) -> None:
    detector = small_detector(family)
    other = _fused(detector, torch.float16)
    with torch.inference_mode():
        outputs, state = other(batch_of(some_windows(1)))
    kinds = {part.dtype for part in states.tensors(state)}
    assert kinds == ({torch.float32} if family == "s5" else {torch.float16, torch.float32})
    assert all(part.dtype == torch.float32 for part in outputs[:3] if part is not None)
    assert max(_differences(detector, other)) < 0.05


@torch.inference_mode()
def test_sixteen_bits_change_little_of_evrt_detr() -> None:
    """All cells become queries, since rounding decides between nearly equal ones; it also decides on their order."""
    detector = small_detector("evrt", queries=300)
    other = _fused(detector, torch.float16)
    state = other_state = None
    for pair in some_windows(3):
        outputs, state = detector(batch_of([pair]), state)
        others, other_state = other(batch_of([pair]), other_state)
        assert {part.dtype for part in states.tensors(other_state)} == {torch.float16, torch.float32}
        assert others.boxes.dtype == others.class_logits.dtype == torch.float32
        assert state_difference(other_state, state) < 0.05
        assert difference_of_sets(others, outputs) < 0.1


@pytest.mark.parametrize("family", ["s5", "evrt"])
def test_weights_of_the_detector_are_not_shared(family: str) -> None:
    detector = small_detector(family)
    other = _fused(detector)
    with torch.no_grad():
        for parameter in detector.parameters():
            parameter.fill_(math.nan)
    with torch.inference_mode():
        outputs, _ = other(batch_of(some_windows(1)))
    assert bool(outputs.boxes.isfinite().all())


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("fate-e", {"length_affine": True}, "its norms depend on the length of the window"),
        ("fate-e", {"hidden": 96}, "its attention heads have 12 channels, not a power of two"),
        ("fate-e", {"hidden": 1024}, "its queries have 1024 channels"),
        ("fate-e", {"stem": "upsample", "encoder_options": {"pillar": 8}}, "its stem repeats cells"),
        ("get-b", {}, "its backbone is not that of RVT, S5-ViT or EvRT-DETR"),
        ("fate-s", {"length_affine": True}, "its norms depend on the length of the window"),
        ("fate-s", {"dims": (64, 128, 256, 1024)}, "a stage has more than 512 channels"),
        ("fate-s", {"kinds": ["attention", "attention", "convolution", "plain"]}, "convolutions has more than 128"),
        ("fate-s", {"stem": "upsample", "encoder_options": {"pillar": 8}}, "its stem repeats cells"),
    ],
)
def test_other_detectors_are_refused(name: str, more: dict[str, Any], said: str) -> None:
    with torch.device("meta"):
        detector = build_model(name, ("car",), (240, 304), **more)
    reason = why_not_fused(detector)
    assert reason is not None
    assert said in reason
    with pytest.raises(FateError, match=f"precision='float16' was asked for with {name}, but .*; choose 'tf32'"):
        fuse_network_(detector, reference, torch.float16)


@pytest.mark.parametrize(
    "name",
    [
        *("fate-s", "rvt-b", "rvt-s", "s5-vit-b", "s5-vit-s"),
        *("fate-s-tiny", "fate-s-nano", "s5-vit-tiny", "s5-vit-nano"),
        *("fate-e", "fate-e-tiny", "evrt-detr-b", "evrt-detr-s", "evrt-detr-tiny"),
    ],
)
def test_all_other_detectors_can_be_fused(name: str) -> None:
    with torch.device("meta"):
        assert why_not_fused(build_model(name, ("car",), (240, 304))) is None


@pytest.mark.parametrize("family", ["s5", "evrt"])
def test_clips_are_refused(family: str) -> None:
    other = _fused(small_detector(family))
    with torch.inference_mode(), pytest.raises(FateError, match="steps=2 was given; .* one window"):
        other(batch_of(some_windows(2)), steps=2)
