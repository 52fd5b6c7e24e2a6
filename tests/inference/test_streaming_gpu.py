"""One window after another on a GPU: graphs find what the plain detector finds, whatever sizes of windows follow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window
from fate.inference.streaming_step import MIN_CAPACITY, GraphStep, Precision, compile_for_streaming
from fate.models.detector import Detector
from fate.models.zoo import build_model
from tests.inference.test_streaming import ALL, plain, stream, window_of, worst
from tests.models.small_detectors import CLASSES, FAMILIES, SENSOR, batch_of, small_detector, stirred

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU on this machine")
KINDS = ("plain", "convolution", "global", "attention")
families = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def on_gpu() -> dict[str, Detector]:
    """One of each family, and one with other stages and a history of images; nobody changes them."""
    found = {family: small_detector(family) for family in FAMILIES}
    found["small"] = small_detector("s5", kinds=KINDS, depthwise=True, mlp_ratio=0, image_history=True)
    return {name: detector.to("cuda") for name, detector in found.items()}


@pytest.fixture
def exact_products() -> Iterator[None]:
    """Matrix products of the plain detector in whole float32."""
    matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matrices.allow_tf32, convolutions.allow_tf32
    matrices.allow_tf32 = convolutions.allow_tf32 = False
    yield
    matrices.allow_tf32, convolutions.allow_tf32 = before


#: Pixels, scores, and the share of boxes that may differ by more: rounding decides which cells become queries of DETR.
TOLERANCES = {
    "float32": (0.05, 1e-4, 0.0),
    "tf32": (0.5, 0.01, 0.1),
    "bfloat16": (2.0, 0.05, 0.3),
    "float16": (0.5, 0.01, 0.1),
}


@families
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("streams", [1, 2])
def test_a_graph_finds_what_the_detector_finds(
    on_gpu: dict[str, Detector], exact_products: None, family: str, precision: Precision, streams: int
) -> None:
    if precision == "float16" and family == "get":
        with pytest.raises(FateError, match="precision='float16' was asked for with .*, but its backbone"):
            compile_for_streaming(on_gpu[family], "cuda", streams=streams, precision=precision, **ALL)
        return
    detector, batches = on_gpu[family], stream(5, streams)
    if precision == "float16" and family == "evrt":  # all cells: one other query changes all boxes of random weights
        detector = small_detector("evrt", queries=300).to("cuda")
    step = compile_for_streaming(detector, "cuda", streams=streams, precision=precision, **ALL)
    assert isinstance(step, GraphStep)
    pixels, score, share = TOLERANCES[precision]
    found, expected = [step(batch) for batch in batches], plain(detector, batches)
    assert worst(found, expected, pixels, score) <= share
    assert all(len(window.boxes) > 0 for windows in found for window in windows)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("family", ["s5", "evrt"])
def test_a_graph_remembers_images(exact_products: None, family: str, precision: Precision) -> None:
    detector, batches = small_detector(family, image_history=True).to("cuda"), stream(5, 2)
    step = compile_for_streaming(detector, "cuda", streams=2, precision=precision, **ALL)
    found, expected = [step(batch) for batch in batches], plain(detector, batches)
    pixels, score, share = TOLERANCES[precision]
    assert worst(found, expected, pixels, score) <= max(share, 0.02)
    without = plain(small_detector(family).to("cuda"), batches)
    assert worst(expected[1:], without[1:], pixels=0.05, score=1e-4) > 0.1


@pytest.mark.parametrize("name", ["fate-s-tiny", "fate-s-nano", "fate-e-tiny"])
@pytest.mark.parametrize("options", [{}, {"image_history": True}])
def test_bundled_detectors_find_nearly_the_same_in_float16(
    exact_products: None, name: str, options: dict[str, bool]
) -> None:
    torch.manual_seed(0)
    detector = stirred(build_model(name, CLASSES, SENSOR, **options)).eval().to("cuda")
    batches = stream(5, 2)
    step = compile_for_streaming(detector, "cuda", streams=2, precision="float16", **ALL)
    found, expected = [step(batch) for batch in batches], plain(detector, batches)
    assert worst(found, expected, *TOLERANCES["float16"][:2]) <= TOLERANCES["float16"][2]


@pytest.mark.parametrize("family", ["s5", "evrt"])
def test_a_graph_suppresses_duplicates_as_the_detector_does(
    on_gpu: dict[str, Detector], exact_products: None, family: str
) -> None:
    batches, given = stream(3), {**ALL, "max_overlap": 0.1}
    step = compile_for_streaming(on_gpu[family], "cuda", precision="float32", **given)
    found, expected = [step(batch) for batch in batches], plain(on_gpu[family], batches, max_overlap=0.1)
    assert worst(found, expected, pixels=0.05, score=1e-4) <= 0.02  # rounding may decide for one of two equal boxes
    for windows, every in zip(found, plain(on_gpu[family], batches), strict=True):
        assert 0 < len(windows[0].boxes) < len(every[0].boxes)


@families
def test_a_graph_on_a_gpu_finds_what_the_cpu_finds(exact_products: None, family: str) -> None:
    batches, detector = stream(4), small_detector(family)
    step = compile_for_streaming(detector, "cuda", precision="float32", **ALL)
    assert worst([step(batch) for batch in batches], plain(detector, batches), pixels=0.1, score=1e-3) == 0


@pytest.mark.parametrize("family", ["s5", "evrt"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_windows_of_many_sizes_follow_each_other(
    on_gpu: dict[str, Detector], exact_products: None, family: str, where: str
) -> None:
    sizes = [0, 1, 300, MIN_CAPACITY, MIN_CAPACITY + 1, 0, 5 * MIN_CAPACITY, 17, 2 * MIN_CAPACITY, 0, 0, 300]
    durations = [50_000, 50_000, 5000, 20_000, 50_000, 5000, 50_000, 10_000, 50_000, 1, 50_000, 5000]
    pairs = [window_of(*both, seed=number) for number, both in enumerate(zip(sizes, durations, strict=True))]
    batches = [batch_of([pair]).to(where) for pair in pairs]
    step = compile_for_streaming(on_gpu[family], "cuda", precision="float32", **ALL)
    expected = plain(on_gpu[family], batches)
    assert worst([step(batch) for batch in batches], expected, pixels=0.05, score=1e-4) == 0
    step.reset()  # and again, now that every graph is there
    assert worst([step(batch) for batch in batches], expected, pixels=0.05, score=1e-4) == 0


@pytest.mark.parametrize(
    ("family", "precision"),
    [*((family, "float32") for family in FAMILIES), *((family, "float16") for family in ("s5", "lstm", "small"))],
)
def test_a_graph_is_reset_as_a_step_is(on_gpu: dict[str, Detector], family: str, precision: Precision) -> None:
    batches = stream(2, streams=2)
    step = compile_for_streaming(on_gpu[family], "cuda", streams=2, precision=precision, **ALL)
    first = [step(batch) for batch in batches]
    step.reset()
    assert worst([step(batch) for batch in batches], first, pixels=1e-3, score=1e-5) == 0
    step.reset()
    step(batches[0])
    step.reset(torch.tensor([True, False]))
    fresh, carried = step(batches[1])
    step.reset()
    assert worst([[fresh]], [[step(batches[1])[0]]], pixels=1e-3, score=1e-5) == 0
    assert worst([[carried]], [[first[1][1]]], pixels=1e-3, score=1e-5) == 0
    assert worst([[fresh]], [[first[1][0]]], pixels=1e-3, score=1e-5) > 0.1


@pytest.mark.parametrize(
    ("family", "precision"), [("s5", "float32"), ("s5", "float16"), ("lstm", "float16"), ("small", "float16")]
)
def test_graphs_recorded_beforehand_do_not_disturb_the_memory(
    on_gpu: dict[str, Detector], family: str, precision: Precision
) -> None:
    batches = [batch_of([window_of(1000, seed=number)]) for number in range(4)]
    step = compile_for_streaming(on_gpu[family], "cuda", precision=precision, **ALL)
    expected = [step(batch) for batch in batches]
    prepared = compile_for_streaming(on_gpu[family], "cuda", precision=precision, **ALL)
    assert isinstance(prepared, GraphStep)
    prepared.prepare(MIN_CAPACITY, 50_000)
    found = [prepared(batch) for batch in batches[:2]]
    prepared.prepare(4 * MIN_CAPACITY, 50_000)  # in the middle of a stream
    prepared.stages(batches[:2])
    found += [prepared(batch) for batch in batches[2:]]
    assert worst(found, expected, pixels=1e-3, score=1e-5) == 0


def test_results_stay_when_the_next_window_comes(on_gpu: dict[str, Detector]) -> None:
    batches = stream(3)
    step = compile_for_streaming(on_gpu["s5"], "cuda", **ALL)
    first = step(batches[0])[0]
    before = [part.clone() for part in first if part is not None]
    step(batches[2])
    assert all(torch.equal(part, kept) for part, kept in zip(first, before, strict=True))
    assert all(part is not None and part.device.type == "cpu" for part in first)


def test_few_kernels_and_a_compiler_exclude_each_other(on_gpu: dict[str, Detector]) -> None:
    with pytest.raises(FateError, match="precision='float16' was given .*; it needs Triton"):
        compile_for_streaming(on_gpu["s5"], "cuda", precision="float16", compiler=True)


def test_windows_that_do_not_fit_are_refused_before_they_reach_the_gpu(on_gpu: dict[str, Detector]) -> None:
    step = compile_for_streaming(on_gpu["s5"], "cuda", streams=2)
    with pytest.raises(FateError, match="3 windows were given"):
        step(stream(1, streams=3)[0])
    with pytest.raises(FateError, match="windows of a 96×64 sensor"):
        step(EventBatch.from_windows([(Window(0, 1000), Events.empty((64, 96)))] * 2))
    step(stream(1, streams=2)[0])
    with pytest.raises(FateError, match="a mask of shape"):
        step.reset(torch.tensor([True]))
