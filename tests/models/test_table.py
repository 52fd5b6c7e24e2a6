"""What a window costs: counted without computing, and the same as a profiler sees on a real run."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from fate.models import table, zoo
from fate.models.detector import Detector
from fate.models.zoo import MODELS, build_model, flops_per_window, list_models
from tests.models.small_detectors import CLASSES, FAMILIES, SENSOR, small_detector

pytestmark = pytest.mark.usefixtures("one_thread")
PRODUCTS = ("aten::conv2d", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
NANO = {name: MODELS[name] for name in ("fate-s-nano", "s5-vit-nano")}


def profiled(detector: Detector) -> int:
    """Operations of matrix products and convolutions, as torch's profiler counts them; attention made of products."""
    cells = (-(-side // detector.frame.encoder_stride) for side in detector.sensor)
    image = torch.zeros(1, detector.encoder.channels, *cells)  # type: ignore[arg-type]
    profiler = profile(activities=[ProfilerActivity.CPU], with_flops=True)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), profiler as run:
        detector(image)
    return sum(event.flops for event in run.events() if event.name in PRODUCTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_operations_are_those_of_a_real_run(family: str) -> None:
    detector = small_detector(family)
    before = {name: value.clone() for name, value in detector.state_dict().items()}
    assert flops_per_window(detector) == profiled(detector)
    assert all(torch.equal(value, before[name]) for name, value in detector.state_dict().items())


def test_a_coarser_encoder_changes_the_first_convolution_alone() -> None:
    """A 7×7 convolution has as many outputs from pillars of 2 pixels as from 1, and works on other channels in."""
    pillars, histogram = (
        flops_per_window(
            build_model("s5-vit-nano", CLASSES, SENSOR, encoder=name, encoder_options=options, depthwise=False)
        )
        for name, options in (("pillars", {"channels": 64}), ("histogram", {}))
    )
    outputs = (64 // 4) * (96 // 4) * 16
    assert pillars - histogram == 2 * outputs * 7 * 7 * (64 - 20)


def test_a_list_has_every_model_with_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "MODELS", NANO)
    seen: list[tuple[int, int]] = []
    entries = list_models(("a", "b", "c"), SENSOR, lambda done, total: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2)]
    assert [entry.name for entry in entries] == list(NANO)
    for entry in entries:
        detector = build_model(entry.name, ("a", "b", "c"), SENSOR)
        assert entry.parameters == sum(parameter.numel() for parameter in detector.parameters())
        assert entry.gflops == flops_per_window(detector) / 1e9
        assert (entry.encoder, entry.about) == (MODELS[entry.name].encoder, MODELS[entry.name].about)
        assert set(entry.to_dict()) == {"name", "parameters", "gflops", "encoder", "about"}
        assert entry.to_dict()["gflops"] == entry.gflops
        # what was built to be counted left no trace
        assert all(not part.is_meta and bool(part.isfinite().all()) for part in detector.state_dict().values())


@pytest.mark.slow
def test_the_stored_table_is_that_of_the_detectors() -> None:
    assert list_models(table.CLASSES, table.SENSOR) == list(table.MODELS.values())
