"""BatchNorm folded into convolutions: the same numbers from fewer operations, and the original untouched."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fate.inference.fusing import fused, lay_out_for_cpu_
from fate.models.detector import Detector
from tests.models.small_detectors import (
    FAMILIES,
    batch_of,
    difference,
    small_detector,
    some_targets,
    some_windows,
    state_difference,
)

pytestmark = pytest.mark.usefixtures("one_thread")
families = pytest.mark.parametrize("family", FAMILIES)
with_lean = pytest.mark.parametrize("family", [*FAMILIES, "lean"])  # the small models' convolutions channel by channel


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[Detector, Detector]]:
    """Detectors and their fused copies."""
    detectors = {family: small_detector(family) for family in FAMILIES}
    detectors["lean"] = small_detector("s5", kinds=("plain", "convolution", "global", "global"), depthwise=True)
    return {family: (detector, fused(detector)) for family, detector in detectors.items()}


@with_lean
def test_a_fused_detector_computes_the_same(pairs: dict[str, tuple[Detector, Detector]], family: str) -> None:
    original, quick = pairs[family]
    state, quick_state = None, None
    with torch.no_grad():
        for number in range(3):
            batch = batch_of(some_windows(2, seed=number))
            expected, state = original(batch, state)
            outputs, quick_state = quick(batch, quick_state)
            assert difference(outputs, expected) < 1e-4
            assert state_difference(quick_state, state) < 1e-4
        clip = batch_of(some_windows(4, seed=5))
        assert difference(quick(clip, steps=2)[0], original(clip, steps=2)[0]) < 1e-4


@with_lean
def test_no_norm_over_the_batch_is_left_outside_the_encoder(
    pairs: dict[str, tuple[Detector, Detector]], family: str
) -> None:
    def norms(detector: Detector) -> int:
        return sum(isinstance(module, nn.BatchNorm2d) for module in detector.modules())

    original, quick = pairs[family]
    assert norms(original) > 0
    assert norms(quick) == 0
    assert not quick.training
    assert not any(parameter.requires_grad for parameter in quick.parameters())


@families
def test_the_original_stays_as_it_was_and_can_be_trained(family: str) -> None:
    detector = small_detector(family).train()
    batch, targets = batch_of(some_windows(2)), [some_targets(2), some_targets(1)]
    sum(detector.loss(detector(batch, targets=targets)[0], targets).values()).backward()  # type: ignore[union-attr]
    before = copy.deepcopy(detector.state_dict())
    fused(detector)  # also from the middle of training
    assert detector.training
    assert all(parameter.requires_grad for parameter in detector.parameters())
    assert all(torch.equal(value, before[name]) for name, value in detector.state_dict().items())


@with_lean
def test_a_fused_detector_can_be_fused_again(pairs: dict[str, tuple[Detector, Detector]], family: str) -> None:
    _, quick = pairs[family]
    batch = batch_of(some_windows(2))
    with torch.no_grad():
        assert difference(fused(quick)(batch)[0], quick(batch)[0]) < 1e-6


def test_what_it_was_built_as_is_still_known(pairs: dict[str, tuple[Detector, Detector]]) -> None:
    for original, quick in pairs.values():
        assert quick.classes == original.classes
        assert quick.frame == original.frame
        assert quick.description == original.description


def test_fewer_convolutions_are_left_where_several_read_the_same(pairs: dict[str, tuple[Detector, Detector]]) -> None:
    def convolutions(module: nn.Module) -> int:
        return sum(isinstance(part, nn.Conv2d) for part in module.modules())

    original, quick = pairs["s5"]
    assert convolutions(quick.neck) == convolutions(original.neck) - 4  # one of the two at each CSP layer's entry
    original, quick = pairs["lean"]
    assert convolutions(original.head) == 3 * (2 + 2 + 3)
    assert convolutions(quick.head) == 3 * (2 + 1 + 1)  # both towers as one, all predictions as one


def test_another_order_in_memory_changes_no_weight(pairs: dict[str, tuple[Detector, Detector]]) -> None:
    original, _ = pairs["lean"]
    laid_out = fused(original)
    before = {name: value.clone() for name, value in laid_out.state_dict().items()}
    lay_out_for_cpu_(laid_out)
    assert all(torch.equal(value, before[name]) for name, value in laid_out.state_dict().items())
    for name, module in laid_out.named_modules():
        if isinstance(module, nn.Linear):
            assert module.weight.t().is_contiguous() != name.startswith("encoder."), name
    batch = batch_of(some_windows(2))
    with torch.no_grad():
        assert difference(laid_out(batch)[0], original(batch)[0]) < 1e-4
