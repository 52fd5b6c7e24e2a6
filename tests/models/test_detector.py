"""The joined detector: clips and single windows, streams and their memory, any encoder before any family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window
from fate.inference.streaming_step import compile_for_streaming
from fate.models import state as states
from fate.models.detector import Detector
from fate.models.outputs import Outputs
from fate.models.state import State
from fate.rates import CANONICAL_US
from tests.models.small_detectors import (
    FAMILIES,
    SENSOR,
    batch_of,
    difference,
    joined,
    rows,
    small_detector,
    some_targets,
    some_windows,
    state_difference,
)

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, STREAMS = 3, 2
families = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def detectors() -> dict[str, Detector]:
    """One of each family, with pillars; nobody changes them."""
    return {family: small_detector(family) for family in FAMILIES}


@torch.no_grad()
def one_by_one(detector: Detector, batch_pairs: list[Any], state: State = None) -> tuple[Outputs, State]:
    """A clip of streams, window after window."""
    outputs = []
    for first in range(0, len(batch_pairs), STREAMS):
        of_step, state = detector(batch_of(batch_pairs[first : first + STREAMS]), state)
        outputs.append(of_step)
    return joined(outputs), state


@families
def test_a_clip_in_one_call_is_its_windows_one_by_one(detectors: dict[str, Detector], family: str) -> None:
    detector, pairs = detectors[family], some_windows(STEPS * STREAMS)
    assert len({window.duration_us for window, _ in pairs}) == len(pairs)  # each stream and window has its own duration
    with torch.no_grad():
        at_once, state = detector(batch_of(pairs), steps=STEPS)
    stepped, state_stepped = one_by_one(detector, pairs)
    assert difference(at_once, stepped) < 1e-5
    assert state_difference(state, state_stepped) < 1e-5


@families
def test_a_clip_continues_where_the_last_one_ended(detectors: dict[str, Detector], family: str) -> None:
    detector, pairs = detectors[family], some_windows(4 * STREAMS, seed=3)
    with torch.no_grad():
        whole, _ = detector(batch_of(pairs), steps=4)
        first, state = detector(batch_of(pairs[:STREAMS]))
        rest, _ = detector(batch_of(pairs[STREAMS:]), state, steps=3)
        forgotten, _ = detector(batch_of(pairs[STREAMS:]), steps=3)
    assert difference(joined([first, rest]), whole) < 1e-5
    assert difference(forgotten, rest) > 1e-3  # the memory is seen in what comes out


@families
def test_streams_do_not_see_each_other(detectors: dict[str, Detector], family: str) -> None:
    detector, pairs = detectors[family], some_windows(STEPS * STREAMS, seed=1)
    alone = pairs[1::STREAMS]
    with torch.no_grad():
        together, state = detector(batch_of(pairs), steps=STEPS)
        single, state_of_single = detector(batch_of(alone), steps=STEPS)
    assert difference(rows(together, slice(1, None, STREAMS)), single) < 1e-5
    assert state_difference(states.mapped(lambda part: part[1:2], state), state_of_single) < 1e-5


@families
def test_reset_restarts_the_streams_of_the_mask_and_no_other(detectors: dict[str, Detector], family: str) -> None:
    detector, pairs = detectors[family], some_windows(2 * STREAMS, seed=2)
    before, after = batch_of(pairs[:STREAMS]), batch_of(pairs[STREAMS:])
    with torch.no_grad():
        _, state = detector(before)
        carried, _ = detector(after, state)
        fresh, _ = detector(after)
        mixed, _ = detector(after, detector.reset(state, torch.tensor([True, False])))
    assert difference(rows(mixed, [0]), rows(fresh, [0])) < 1e-5
    assert difference(rows(mixed, [1]), rows(carried, [1])) < 1e-5
    assert difference(rows(carried, [0]), rows(fresh, [0])) > 1e-3
    assert difference(rows(carried, [1]), rows(fresh, [1])) > 1e-3


@families
def test_gradients_reach_earlier_windows_unless_detached(detectors: dict[str, Detector], family: str) -> None:
    detector = detectors[family]
    with torch.no_grad():
        images = detector.encoder(batch_of(some_windows(2)))
    for cut in (False, True):
        first = images[:1].clone().requires_grad_()
        _, state = detector(first)
        outputs, _ = detector(images[1:], detector.detach(state) if cut else state)
        outputs.class_logits.square().sum().backward()
        reached = first.grad is not None and bool((first.grad != 0).any())
        assert reached is not cut
    detector.zero_grad(set_to_none=True)


@families
def test_the_state_is_a_plain_tree_with_the_streams_first(detectors: dict[str, Detector], family: str) -> None:
    def plain(part: State) -> bool:
        return part is None or type(part) is Tensor or (type(part) is tuple and all(map(plain, part)))

    with torch.no_grad():
        _, state = detectors[family](batch_of(some_windows(6)), steps=2)
    assert plain(state)
    tensors = list(states.tensors(state))
    assert tensors
    assert all(len(part) == 3 for part in tensors)


def test_a_detector_of_single_windows_remembers_nothing() -> None:
    detector, pairs = small_detector("evrt", remember=False), some_windows(4)
    with torch.no_grad():
        clip, state = detector(batch_of(pairs), steps=2)
        windows, _ = detector(batch_of(pairs))
    assert list(states.tensors(state)) == []
    assert difference(clip, windows) < 1e-6
    assert detector.memory is None


@families
def test_images_of_the_encoder_may_be_given_instead_of_events(detectors: dict[str, Detector], family: str) -> None:
    detector, batch = detectors[family], batch_of(some_windows(4))
    with torch.no_grad():
        of_events, _ = detector(batch, steps=2)
        of_images, _ = detector(detector.encoder(batch), steps=2, step_scale=batch.duration_us / CANONICAL_US)
    assert difference(of_images, of_events) < 1e-6


@families
def test_only_s5_is_told_how_long_windows_are(detectors: dict[str, Detector], family: str) -> None:
    detector = detectors[family]
    with torch.no_grad():
        images = detector.encoder(batch_of(some_windows(4)))
        canonical, _ = detector(images, steps=4)
        said, _ = detector(images, steps=4, step_scale=1.0)
        faster, _ = detector(images, steps=4, step_scale=0.1)
        mixed, _ = detector(images, steps=4, step_scale=torch.tensor([0.1, 1.0, 0.5, 0.2]))
    assert difference(said, canonical) == 0
    assert (difference(faster, canonical) > 1e-4) is (family == "s5")
    assert (difference(mixed, canonical) > 1e-4) is (family == "s5")


@families
def test_the_head_works_on_labelled_windows_alone(detectors: dict[str, Detector], family: str) -> None:
    detector, batch = detectors[family], batch_of(some_windows(6))
    targets = [None, some_targets(2, 1), None, some_targets(0), some_targets(1, 2), None]
    with torch.no_grad():
        outputs, state = detector(batch, steps=3, targets=targets)
        features, _ = detector.features(detector.encoder(batch), None, 3, batch.duration_us / CANONICAL_US)
        wanted = detector.head([of_level[[1, 3, 4]] for of_level in features])
        everything, state_of_all = detector(batch, steps=3)
        terms = detector.loss(outputs, targets)
    assert difference(outputs, wanted) < 1e-4  # of numbers around -4.6 that differ by 0.1
    assert difference(outputs, rows(everything, [1, 3, 4])) < 1e-4
    assert state_difference(state, state_of_all) == 0  # unlabelled windows are remembered all the same
    assert terms == detector.head.loss(outputs, [targets[1], targets[3], targets[4]])  # type: ignore[operator]


@families
def test_what_is_found_lies_on_the_sensor(detectors: dict[str, Detector], family: str) -> None:
    detector = detectors[family]
    with torch.no_grad():
        outputs, _ = detector(batch_of(some_windows(3)))
    found = detector.detections(outputs, confidence=0.0)
    assert len(found) == 3
    height, width = SENSOR
    for window in found:
        assert len(window.boxes) > 0
        x1, y1, x2, y2 = window.boxes.unbind(1)
        assert bool(((x1 >= 0) & (y1 >= 0) & (x2 <= width) & (y2 <= height) & (x2 > x1) & (y2 > y1)).all())
        assert bool(((window.class_ids >= 0) & (window.class_ids < len(detector.classes))).all())
    few = detector.detections(outputs, confidence=0.99)
    assert all(len(a.boxes) <= len(b.boxes) for a, b in zip(few, found, strict=True))


def test_the_detector_knows_its_sensor_classes_and_device(detectors: dict[str, Detector]) -> None:
    for detector in detectors.values():
        assert tuple(detector.sensor) == SENSOR
        assert detector.classes == ("car", "pedestrian")
        assert detector.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"steps": 4}, "6 windows were given in clips of 4"),
        ({"steps": 0}, "in clips of 0"),
        ({"targets": [None] * 5}, "targets of 5 windows were given for 6"),
        ({"step_scale": torch.ones(5)}, "one for each of the 6 windows"),
        ({"step_scale": 0.0}, "step_scale=0.0 was given"),
        ({"step_scale": -0.1}, "step_scale=-0.1 was given"),
        ({"step_scale": float("nan")}, "step_scale=nan was given"),
        ({"step_scale": float("inf")}, "step_scale=inf was given"),
        ({"step_scale": torch.tensor([1.0, 1, 0.1, 0, 1, 1])}, "step_scale=tensor.* finite number above 0"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(
    detectors: dict[str, Detector], arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(FateError, match=said):
        detectors["s5"](batch_of(some_windows(6)), **arguments)


def test_windows_of_another_sensor_are_refused(detectors: dict[str, Detector]) -> None:
    other = EventBatch.from_windows([(Window(0, 1000), Events.empty((32, 40)))])
    with pytest.raises(FateError, match="40×32"):
        detectors["s5"](other)
    with pytest.raises(FateError, match=r"expected \[N, 8, 30, 38\]"):
        detectors["s5"](torch.zeros(1, 8, 40, 48))


@families
def test_a_loss_needs_the_targets_of_the_call(detectors: dict[str, Detector], family: str) -> None:
    detector, batch = detectors[family].eval(), batch_of(some_windows(2))
    targets = [some_targets(1), None]
    labelled, plain = detector(batch, targets=targets)[0], detector(batch)[0]
    assert detector.loss(labelled, targets)
    with pytest.raises(FateError, match="outputs of 1 windows and targets of 2 were given"):
        detector.loss(labelled, [some_targets(1), some_targets(1)])
    with pytest.raises(FateError, match="expected the targets that the detector was called with"):
        detector.loss(plain, [some_targets(1), some_targets(1)])


@families
def test_a_state_of_other_streams_is_refused(detectors: dict[str, Detector], family: str) -> None:
    detector = detectors[family]
    with torch.no_grad():
        _, state = detector(batch_of(some_windows(3)))
    with pytest.raises(FateError, match="3 streams"):
        detector(batch_of(some_windows(2)), state)


@families
def test_a_state_of_another_sensor_is_refused_with_both(detectors: dict[str, Detector], family: str) -> None:
    other = small_detector(family, sensor=(90, 124))
    with torch.no_grad():
        _, state = other(batch_of(some_windows(2, sensor=(90, 124))))
    with pytest.raises(FateError, match="a frame of 128×96 pixels was given; .* for a sensor of 76×60"):
        detectors[family](batch_of(some_windows(2)), state)


@pytest.mark.parametrize("class_id", [-1, 2])
def test_targets_of_classes_that_do_not_exist_are_refused(detectors: dict[str, Detector], class_id: int) -> None:
    target = some_targets(1)._replace(class_ids=torch.tensor([class_id]))
    with pytest.raises(FateError, match=rf"class ids {class_id} to {class_id} .* expected 0 to 1 \(car, pedestrian\)"):
        detectors["s5"](batch_of(some_windows(1)), targets=[target])


@pytest.mark.parametrize("device", ["mps", torch.device("meta"), "gpu"])
def test_devices_on_which_no_detector_streams_are_refused(
    detectors: dict[str, Detector], device: str | torch.device
) -> None:
    with pytest.raises(FateError, match=f"device '{device}' was asked for; expected cpu or cuda"):
        compile_for_streaming(detectors["s5"], device)
