"""The graph with few operations computes what the detector does; it is compared in PyTorch, without a runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fate.encoding.window_length import WindowLength
from fate.inference.backends.lean_detector import LeanDetector
from fate.inference.lean_graph import LeanGraph, can_be_lean, decoded, layers_with_rate, rates_of
from fate.models.detector import Detector
from fate.models.heads.yolox import cells_of, decode_boxes
from fate.models.state import tensors
from tests.models.small_detectors import small_detector

pytestmark = pytest.mark.usefixtures("one_thread")
#: Options of small detectors: attention in windows and over a grid; the stages of fate-s-nano; and others.
DETECTORS: dict[str, dict[str, Any]] = {
    "attention": {},
    "nano": {"kinds": ("plain", "convolution", "global", "global"), "depthwise": True, "mlp_ratio": 0, "head_dim": 16},
    "length": {"length_affine": True, "longest_memory_s": 0.5},
    "history": {"image_history": True},
    "history and length": {"image_history": True, "length_affine": True},
    "length in plain stages": {"length_affine": True, "kinds": ("plain", "plain", "convolution", "global")},
}


def images_of(detector: Detector, streams: int, seed: int, length: float) -> Tensor:
    """Images of random numbers; the last channel is the length of the window, if the detector depends on it."""
    draw = torch.Generator().manual_seed(seed)
    rows, columns = (-(-side // detector.frame.encoder_stride) for side in detector.sensor)
    images = torch.randn(streams, detector.image_channels, rows, columns, generator=draw)
    if isinstance(detector.encoder, WindowLength):
        images[:, -1] = length
    return images


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("streams", [1, 2])
def test_a_lean_step_computes_what_the_detector_does_at_changing_rates(name: str, streams: int) -> None:
    detector = small_detector("s5", **DETECTORS[name])
    assert can_be_lean(detector)
    graph, layers = LeanGraph(detector, streams), layers_with_rate(detector)
    carried = {part: graph.inputs[part] for part in graph.state_pairs}
    state = of_history = None
    for number, scale in enumerate((0.1, 1.0, 0.5, 0.1)):
        scales = torch.full((streams,), scale) * torch.arange(1, streams + 1)
        images = images_of(detector, streams, number, float(np.log(scale)))
        completed = images
        if detector.history is not None:
            with torch.no_grad():
                completed, of_history = detector.history(images, of_history, step_scale=scales)
        given = {"image": completed, **{key: torch.from_numpy(rate) for key, rate in rates_of(layers, scales).items()}}
        with torch.no_grad():
            expected, state = detector(images, state, step_scale=scales)
            found = dict(zip(graph.outputs, graph(*({**given, **carried}[key] for key in graph.inputs)), strict=True))
        carried = {before: found[after] for before, after in graph.state_pairs.items()}
        raw = found["raw"]
        assert torch.allclose(raw[..., 5:], expected.class_logits, atol=1e-4)
        assert torch.allclose(raw[..., 4], expected.objectness, atol=1e-4)
        boxes = decode_boxes(raw[..., :4], detector.head.cells, detector.head.cell_strides)  # type: ignore[arg-type]
        assert torch.allclose(boxes, expected.boxes, atol=1e-2, rtol=1e-4)
        memories = LeanDetector.as_in_torch((*carried.values(), *([of_history] if of_history is not None else [])))
        for own, other in zip(memories, tensors(state), strict=True):
            assert torch.allclose(own.view(other.shape), other, atol=1e-4)
            assert other.abs().max() > 0.01


def test_the_detector_is_not_changed() -> None:
    detector = small_detector("s5", **DETECTORS["nano"])
    before = {name: value.clone() for name, value in detector.state_dict().items()}
    LeanGraph(detector)
    assert all(torch.equal(value, before[name]) for name, value in detector.state_dict().items())


def test_other_detectors_keep_the_readable_graph() -> None:
    for family in ("lstm", "get", "evrt"):
        assert not can_be_lean(small_detector(family))
    assert not can_be_lean(small_detector("s5", official_state=True))


def test_decoded_boxes_are_those_of_the_head() -> None:
    draw = np.random.default_rng(0)
    cells, strides = cells_of([(4, 6), (2, 3)], (8, 16))
    raw = draw.normal(size=(2, 30, 8)).astype(np.float32)
    found = decoded(raw, cells.numpy(), strides.numpy())
    expected = decode_boxes(torch.from_numpy(raw[..., :4]), cells, strides)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-4)
