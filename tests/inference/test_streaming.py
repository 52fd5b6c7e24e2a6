"""One window after another: the same boxes as the plain detector, memory and resets included; here on a CPU.

Boxes are compared one by one: each must have a partner of its class, so near that only rounding can lie between them.
Suppression is switched off for that (``max_overlap=1``), since a rounding error may decide between two boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window
from fate.inference import streaming_step as streaming
from fate.inference.streaming_step import (
    CAPACITY_GROWTH,
    LIKELY_EVENTS,
    MIN_CAPACITY,
    GraphStep,
    capacities_up_to,
    compile_for_streaming,
)
from fate.models.detector import Detector
from fate.models.layers.image_history import ImageHistory
from fate.models.nms import Detections
from tests.encoding.conftest import Pair
from tests.models.small_detectors import FAMILIES, SENSOR, batch_of, small_detector, some_windows

pytestmark = pytest.mark.usefixtures("one_thread")
families = pytest.mark.parametrize("family", FAMILIES)
#: Everything the heads say, so that comparisons see all of it.
ALL: dict[str, Any] = {"confidence": 0.0, "max_overlap": 1.0}


@pytest.fixture(scope="module")
def detectors() -> dict[str, Detector]:
    """One of each family; nobody changes them."""
    return {family: small_detector(family) for family in FAMILIES}


def without_partner(found: Detections, expected: Detections, pixels: float, score: float) -> float:
    """The share of boxes, of both lists, that have no box of their class, place and score in the other."""
    if not len(found.boxes) and not len(expected.boxes):
        return 0.0
    near = (found.boxes[:, None] - expected.boxes[None]).abs().amax(-1) <= pixels
    alike = (found.scores[:, None] - expected.scores[None]).abs() <= score
    partners = near & alike & (found.class_ids[:, None] == expected.class_ids[None])
    total = len(found.boxes) + len(expected.boxes)
    return 1 - int(partners.any(1).sum() + partners.any(0).sum()) / total


@torch.no_grad()
def plain(detector: Detector, batches: Sequence[EventBatch], **options: Any) -> list[list[Detections]]:
    """What the detector finds, window after window, without any help; on the CPU."""
    found, state = [], None
    for batch in batches:
        outputs, state = detector(batch.to(detector.device), state)
        found.append(detector.detections(outputs, **{**ALL, **options}))
    return found


def worst(
    found: Sequence[Sequence[Detections]], expected: Sequence[Sequence[Detections]], pixels: float, score: float
) -> float:
    """The largest share without partner among all windows."""
    return max(
        without_partner(one, other, pixels, score)
        for ones, others in zip(found, expected, strict=True)
        for one, other in zip(ones, others, strict=True)
    )


def stream(steps: int, streams: int = 1, seed: int = 0) -> list[EventBatch]:
    """Windows of each stream, of 5 to 50 ms; one of them is empty."""
    pairs = some_windows(steps * streams, seed)
    return [batch_of(pairs[first : first + streams]) for first in range(0, len(pairs), streams)]


def window_of(events: int, duration_us: int = 50_000, seed: int = 0) -> Pair:
    """A window with exactly so many events."""
    random = np.random.default_rng((seed, events))
    t = np.sort(random.integers(0, duration_us, events))
    y, x, p = (random.integers(0, high, events) for high in (*SENSOR, 2))
    return Window(0, duration_us), Events(t, x, y, p, SENSOR)


@families
@pytest.mark.parametrize("streams", [1, 2])
def test_a_step_finds_what_the_detector_finds(detectors: dict[str, Detector], family: str, streams: int) -> None:
    detector, batches = detectors[family], stream(4, streams)
    step = compile_for_streaming(detector, "cpu", streams=streams, **ALL)
    found = [step(batch) for batch in batches]
    expected = plain(detector, batches)
    assert worst(found, expected, pixels=0.01, score=1e-5) == 0
    assert all(len(window.boxes) > 0 for windows in found for window in windows)
    forgetful = [plain(detector, [batch])[0] for batch in batches]
    assert worst(found, forgetful, pixels=0.01, score=1e-5) > 0.1  # the memory was needed for that


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("family", ["s5", "lstm", "evrt"])
def test_a_step_remembers_images(family: str, streams: int) -> None:
    detector, batches = small_detector(family, image_history=True), stream(6, streams)
    step = compile_for_streaming(detector, "cpu", streams=streams, **ALL)
    found = [step(batch) for batch in batches[:3]]
    step.stages(batches[:2])  # leaves the state as it was
    found += [step(batch) for batch in batches[3:]]
    assert isinstance(detector.history, ImageHistory)
    detector.history.compiled = False
    expected = plain(detector, batches)
    assert worst(found, expected, pixels=0.01, score=1e-5) == 0
    detector.history.gain.data.zero_()
    without = plain(detector, batches)
    assert worst(expected[1:], without[1:], pixels=0.01, score=1e-5) > 0.1


def test_windows_of_one_length_are_the_same_prepared_or_not(detectors: dict[str, Detector]) -> None:
    batches = [batch_of([window_of(500, seed=number)]) for number in range(4)]
    step = compile_for_streaming(detectors["s5"], **ALL)
    assert worst([step(batch) for batch in batches], plain(detectors["s5"], batches), pixels=0.01, score=1e-5) == 0


@families
def test_reset_begins_anew(detectors: dict[str, Detector], family: str) -> None:
    batches = stream(2, streams=2)
    step = compile_for_streaming(detectors[family], streams=2, **ALL)
    first = [step(batch) for batch in batches]
    step.reset()
    assert worst([step(batch) for batch in batches], first, pixels=0.0, score=0.0) == 0

    step.reset()
    step(batches[0])
    step.reset(torch.tensor([True, False]))
    fresh, carried = step(batches[1])
    step.reset()
    assert worst([[fresh]], [[step(batches[1])[0]]], pixels=1e-3, score=1e-6) == 0
    assert worst([[carried]], [[first[1][1]]], pixels=1e-3, score=1e-6) == 0
    assert worst([[fresh]], [[first[1][0]]], pixels=1e-3, score=1e-6) > 0.1


def test_a_reset_before_the_first_window_does_nothing(detectors: dict[str, Detector]) -> None:
    step = compile_for_streaming(detectors["s5"])
    step.reset()
    step.reset(torch.tensor([True]))
    assert len(step(stream(1)[0])) == 1


def test_the_detector_is_copied() -> None:
    detector = small_detector("s5").train()
    batch = stream(1)[0]
    step = compile_for_streaming(detector, **ALL)
    before = step(batch)
    assert detector.training
    assert all(parameter.requires_grad for parameter in detector.parameters())
    with torch.no_grad():
        for parameter in detector.parameters():
            parameter.zero_()
    step.reset()
    assert worst([step(batch)], [before], pixels=0.0, score=0.0) == 0


def test_what_is_found_is_plain_numbers(detectors: dict[str, Detector]) -> None:
    window = compile_for_streaming(detectors["s5"], **ALL)(stream(1)[0])[0]
    for part in window:
        assert part is not None
        assert part.device.type == "cpu"
        assert not part.requires_grad
        assert not part.is_inference()  # others may compute with it, and train on it


@pytest.mark.parametrize("family", ["s5", "evrt"])  # one of each kind of head
def test_options_are_those_of_detections(detectors: dict[str, Detector], family: str) -> None:
    batches = stream(2)
    for options in ({"confidence": 0.03}, {"score": "product"}, {"most": 5}, {"max_overlap": 0.2}):
        step = compile_for_streaming(detectors[family], **{**ALL, **options})
        found, expected = [step(batch) for batch in batches], plain(detectors[family], batches, **options)
        assert worst(found, expected, pixels=0.01, score=1e-5) == 0, options


def test_windows_that_all_differ_in_length_do_not_fill_the_memory(
    detectors: dict[str, Detector], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "MAX_SCALES", 3)
    batches = [
        batch_of([window_of(200, duration_us=duration)]) for duration in (5000, 50_000, 7000, 8000, 9000, 50_000)
    ]
    step = compile_for_streaming(detectors["s5"], **ALL)
    assert worst([step(batch) for batch in batches], plain(detectors["s5"], batches), pixels=0.01, score=1e-5) == 0
    kept = [len(module._frozen) for module in step.detector.modules() if hasattr(module, "_frozen")]
    assert kept
    assert max(kept) == 3


def test_settings_of_others_are_as_before(detectors: dict[str, Detector]) -> None:
    step, batch = compile_for_streaming(detectors["s5"]), stream(1)[0]
    matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matrices.allow_tf32, convolutions.allow_tf32
    try:
        for setting in (False, True):
            matrices.allow_tf32 = convolutions.allow_tf32 = setting
            step(batch)
            assert (matrices.allow_tf32, convolutions.allow_tf32) == (setting, setting)
            step.detector.backbone.register_forward_pre_hook(_fail)
            with pytest.raises(RuntimeError, match="on purpose"):
                step(batch)
            assert (matrices.allow_tf32, convolutions.allow_tf32) == (setting, setting)
            step = compile_for_streaming(detectors["s5"])
    finally:
        matrices.allow_tf32, convolutions.allow_tf32 = before


def _fail(*_: object) -> None:
    raise RuntimeError("on purpose")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"streams": 0}, "streams=0 was given; expected 1 or more"),
        ({"precision": "tf32"}, "precision='tf32' was given for cpu; expected one of float32$"),
        ({"precision": "bfloat16"}, "precision='bfloat16' was given for cpu; expected one of float32$"),
        ({"precision": "int8"}, "precision='int8' was given"),
        ({"max_overlap": 1.5}, "max_overlap=1.5 was given; expected an IoU"),
        ({"score": "objectness"}, "score='objectness' was given; expected one of class, product"),
        ({"device": "gpu"}, "device 'gpu' was asked for; expected cpu or cuda"),
    ],
)
def test_bad_options_are_refused(detectors: dict[str, Detector], options: dict[str, Any], said: str) -> None:
    with pytest.raises(FateError, match=said):
        compile_for_streaming(detectors["s5"], **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused(detectors: dict[str, Detector]) -> None:
    with pytest.raises(FateError, match="device 'cuda' was asked for; expected cpu or cuda, with a GPU"):
        compile_for_streaming(detectors["s5"], "cuda")


def test_windows_that_do_not_fit_are_refused(detectors: dict[str, Detector]) -> None:
    step = compile_for_streaming(detectors["s5"], streams=2)
    with pytest.raises(FateError, match="3 windows were given; this step has 2 streams"):
        step(stream(1, streams=3)[0])
    other = EventBatch.from_windows([(Window(0, 1000), Events.empty((64, 96)))] * 2)
    with pytest.raises(FateError, match="windows of a 96×64 sensor were given; the detector has 76×60"):
        step(other)
    step(stream(1, streams=2)[0])
    with pytest.raises(FateError, match="a mask of shape"):
        step.reset(torch.tensor([True]))


# --- what a GPU has recorded, and when ---


class Recorder(GraphStep):
    """A step that notes what it would record."""

    def __init__(self, detector: Detector, streams: int) -> None:
        super().__init__(detector, streams, "float32", None, {}, compiler=False)
        self.noted: list[tuple[int, float | None]] = []

    def _record(self, room: int, scale: float | None) -> Any:
        self.noted.append((room, scale))

    def window(self, events: int, scale: float | torch.Tensor) -> list[int]:
        """The rooms that are recorded because of a window with so many events."""
        before = len(self.noted)
        self._record_ahead(scale)
        self._graph_for(events, scale)
        return [room for room, _ in self.noted[before:]]


@pytest.mark.parametrize("events", [0, 1, MIN_CAPACITY, MIN_CAPACITY + 1, 100_000, 5_000_000])
def test_a_room_holds_its_events_and_is_not_far_too_large(events: int) -> None:
    room = capacities_up_to(events)[-1]
    assert room >= events
    assert room == MIN_CAPACITY or room < CAPACITY_GROWTH * events
    assert capacities_up_to(room)[-1] == room


def test_from_the_third_window_on_nothing_likely_is_recorded(detectors: dict[str, Detector]) -> None:
    step = Recorder(detectors["s5"], streams=8)
    rooms = capacities_up_to(LIKELY_EVENTS * 60 * 76 * 8)  # four events a pixel of every stream
    assert len(rooms) > 2
    assert step.window(rooms[1], 1.0) == [rooms[1]]
    assert step.window(10, 1.0) == [room for room in rooms if room != rooms[1]]
    assert [step.window(events, 1.0) for events in (0, 10, *rooms)] == [[]] * (2 + len(rooms))
    assert step.window(rooms[-1] + 1, 1.0) == [CAPACITY_GROWTH * rooms[-1]]
    assert step.window(rooms[-1] + 2, 1.0) == []


def test_windows_that_all_differ_in_length_have_one_graph_each_recorded(detectors: dict[str, Detector]) -> None:
    step = Recorder(detectors["s5"], streams=8)
    assert [len(step.window(10, scale)) for scale in (1.0, 0.5, 0.25, 0.125)] == [1] * 4
    known_to_the_device = torch.ones(8)
    assert len(step.window(10, known_to_the_device)) == 1
    assert len(step.window(10, known_to_the_device)) > 0  # graphs that read the length have come twice
    assert step.window(10, known_to_the_device) == []
