"""A step of training, from events to gradients: every parameter learns, whatever the windows hold, also in bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from fate.models import state as states
from fate.models.detector import Detector
from fate.models.heads import rtdetr
from fate.models.heads.matching import Matches
from fate.models.layers.norm import HAS_TRITON
from fate.models.outputs import FlatTargets, Targets
from fate.models.zoo import build_model
from tests.models.small_detectors import (
    CLASSES,
    FAMILIES,
    SENSOR,
    batch_of,
    small_detector,
    some_targets,
    some_windows,
)

pytestmark = pytest.mark.usefixtures("one_thread")
families = pytest.mark.parametrize("family", FAMILIES)
STEPS, STREAMS = 2, 2
#: What the windows of a clip of two streams may hold.
LABELS: dict[str, list[Targets | None]] = {
    "one box": [None, None, some_targets(1), None],
    "a hundred boxes": [some_targets(100, 3), None, None, some_targets(1, 4)],
    "labelled, but no box": [some_targets(0), None, some_targets(0), some_targets(0)],
    "a box in one window, none in the other": [some_targets(0), None, None, some_targets(1)],
    "nothing labelled": [None, None, None, None],
}


@pytest.fixture(scope="module")
def detectors() -> dict[str, Detector]:
    """One of each family; steps leave their gradients and statistics behind, and nothing else."""
    return {family: small_detector(family) for family in FAMILIES}


def gradients_of_a_step(detector: Detector, targets: Sequence[Targets | None], seed: int = 0) -> dict[str, Tensor]:
    """Of every parameter, for a clip; the terms of the loss are looked at on the way."""
    detector.train().zero_grad(set_to_none=True)
    torch.manual_seed(seed)  # of what a model drops, and of the noise that a head trains with
    outputs, _ = detector(batch_of(some_windows(STEPS * STREAMS, seed)), steps=STEPS, targets=targets)
    terms = detector.loss(outputs, targets)
    for name, term in terms.items():
        assert term.dtype == torch.float32, name
        assert bool(term.isfinite()), name
    torch.stack(list(terms.values())).sum().backward()
    gradients = {}
    for name, parameter in detector.named_parameters():
        assert parameter.grad is not None, name  # also where it is zero: processes that train together wait for each
        assert bool(parameter.grad.isfinite().all()), name
        gradients[name] = parameter.grad
    return gradients


def without(gradients: dict[str, Tensor]) -> set[str]:
    """The parameters that do not move."""
    return {name for name, gradient in gradients.items() if not bool((gradient != 0).any())}


@families
def test_every_parameter_learns_from_events_to_boxes(detectors: dict[str, Detector], family: str) -> None:
    still = without(gradients_of_a_step(detectors[family], LABELS["a hundred boxes"]))
    assert still == {"encoder.linear.bias"}  # the norm behind it takes every shift away again


@families
@pytest.mark.parametrize("labels", LABELS)
def test_a_step_goes_well_whatever_is_labelled(detectors: dict[str, Detector], family: str, labels: str) -> None:
    gradients = gradients_of_a_step(detectors[family], LABELS[labels])
    nothing_moves = without(gradients) == gradients.keys()
    assert nothing_moves is (labels == "nothing labelled")


@families
def test_a_step_without_a_single_event_goes_well(detectors: dict[str, Detector], family: str) -> None:
    detector = detectors[family].train()
    empty = batch_of([(window, events[:0]) for window, events in some_windows(2)])
    targets = [some_targets(2), None]
    outputs, _ = detector(empty, steps=2, targets=targets)
    terms = detector.loss(outputs, targets)
    detector.zero_grad(set_to_none=True)
    torch.stack(list(terms.values())).sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in detector.parameters())


@families
def test_a_first_step_from_fresh_weights_goes_well(family: str) -> None:
    name, options = FAMILIES[family]
    detector = build_model(name, CLASSES, SENSOR, encoder="pillars", encoder_options={"channels": 8}, **options)
    gradients = gradients_of_a_step(detector, LABELS["a box in one window, none in the other"])
    assert len(without(gradients)) < len(gradients) / 4  # what stands behind a layer of zeros


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 takes another way
@pytest.mark.parametrize(
    ("family", "labels"),
    [
        ("s5", "a hundred boxes"),
        ("s5", "nothing labelled"),
        ("lstm", "labelled, but no box"),
        pytest.param("evrt", "a hundred boxes", marks=pytest.mark.slow),
    ],
)
def test_bfloat16_makes_no_numbers_that_are_not_finite(
    detectors: dict[str, Detector], family: str, labels: str
) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = gradients_of_a_step(detectors[family], LABELS[labels])
    assert all(gradient.dtype == torch.float32 for gradient in gradients.values())


@families
def test_weights_of_boxes_scale_what_they_teach(detectors: dict[str, Detector], family: str) -> None:
    """Boxes of weight 0 teach nothing: what is left of the gradient is the background's, which needs no box."""
    boxes, class_ids = some_targets(4, 7)[:2]
    doubted = gradients_of_a_step(detectors[family], [Targets.of(boxes, class_ids, torch.zeros(4)), None, None, None])
    believed = gradients_of_a_step(detectors[family], [Targets.of(boxes, class_ids), None, None, None])
    of_boxes = "head.box_predictions" if family != "evrt" else "head.boxes.1.4"
    names = [name for name in believed if name.startswith(of_boxes)]
    assert names
    assert all(not bool(doubted[name].any()) for name in names)
    assert any(bool(believed[name].any()) for name in names)


@families
def test_a_step_looks_at_no_value_of_its_device_but_to_match(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device "meta" tensors have shapes and no values: whatever asks for one fails, as a GPU is waited for."""

    def any_match(logits: Tensor, boxes: Tensor, flat: FlatTargets) -> Matches:
        pairs = sum(min(count, logits.shape[2]) for count in flat.counts)
        return Matches(*torch.zeros(3, len(boxes), pairs, dtype=torch.int64, device=logits.device))

    monkeypatch.setattr(rtdetr, "match", any_match)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which meta does not have
    detector = small_detector(family).train()
    with torch.no_grad():
        images = detector.encoder(batch_of(some_windows(STEPS * STREAMS)))
    detector, images = detector.to("meta"), images.to("meta").requires_grad_()
    targets = [some_targets(3), None, some_targets(0), some_targets(5)]
    scales = torch.ones(len(images), device="meta")
    outputs, _ = detector(images, steps=STEPS, targets=targets, step_scale=scales)
    torch.stack(list(detector.loss(outputs, targets).values())).sum().backward()
    assert images.grad is not None
    assert images.grad.is_meta


@pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA GPU and triton")
@families
def test_nothing_in_a_training_step_waits_for_the_gpu(family: str) -> None:
    detector = small_detector(family).to("cuda").train()
    batch = batch_of(some_windows(STEPS * STREAMS)).to("cuda")
    targets = [some_targets(3), None, some_targets(0), some_targets(5)]

    def step() -> None:
        outputs, _ = detector(batch, steps=STEPS, targets=targets)
        torch.stack(list(detector.loss(outputs, targets).values())).sum().backward()

    step()  # builds kernels, and tables for this size of frame
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@families
def test_clips_follow_each_other_with_a_detached_memory(detectors: dict[str, Detector], family: str) -> None:
    detector, state = detectors[family].train(), None
    for seed in range(2):
        targets = [None, some_targets(2, seed)]
        outputs, state = detector(batch_of(some_windows(2, seed)), state, steps=2, targets=targets)
        detector.zero_grad(set_to_none=True)
        torch.stack(list(detector.loss(outputs, targets).values())).sum().backward()  # twice through one graph fails
        assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in detector.parameters())
        state = detector.detach(state)
        assert not any(part.requires_grad for part in states.tensors(state))
