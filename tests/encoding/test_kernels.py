"""Versions of Pillar Encoding: values and gradients of all against the dense float64 reference."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call

from fate.encoding import pillars
from fate.encoding.batch import EventBatch
from fate.encoding.kernels import cpu_kernels, reference, torch_kernels
from fate.encoding.pillars import PillarEncoder
from fate.encoding.spec import PillarSpec, Weights
from fate.events.events import Events, Sensor
from fate.events.window import Window
from tests.encoding.conftest import (
    SENSOR,
    Row,
    batch_of,
    crowded,
    errors,
    expected,
    make_encoder,
    outcome,
    rows_of_events,
    special_batches,
)

VERSIONS = {"compiled loops": cpu_kernels, "plain torch": torch_kernels}
SPECIAL = special_batches()
CAPS: list[dict[str, int | None]] = [
    {"max_events": None, "max_pillars": None},
    {"max_events": 3, "max_pillars": 20},
    {"max_events": 32, "max_pillars": 200},
]
#: K and pillar in full, each with another mixture of the other options.
CONFIGS: list[dict[str, Any]] = [
    {
        "moments": moments,
        "pillar": pillar,
        "center_offsets": (moments + number) % 2 == 0,
        "weighting": "uniform" if (moments + 2 * number) % 5 == 0 else "trapezoid",
        **CAPS[(moments + 2 * number) % 3],
    }
    for moments in (1, 2, 3, 4, 5)
    for number, pillar in enumerate((1, 2, 3, 4, 8))
]
CONFIGS += [
    {"pooling": "max", "pillar": pillar, "center_offsets": number % 2 == 1, **CAPS[number % 3]}
    for number, pillar in enumerate((1, 2, 3, 4, 8))
]
CONFIGS += [
    {},
    {"center_offsets": True, "weighting": "uniform"},
    {"moments": 8, **CAPS[0]},
]  # two with the defaults' caps


#: By default two sizes of pillars for each K, and two K for each size.
EACH_CONFIG = [
    pytest.param(config, marks=[] if number >= 25 or (number // 5 - number % 5) % 5 < 2 else [pytest.mark.slow])
    for number, config in enumerate(CONFIGS)
]


def name_of(config: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in config.items()) or "defaults"


def use(version: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoders take this version, whatever the device."""
    monkeypatch.setattr(pillars, "kernel_for", lambda *_: version)


# --- all versions against the reference ---


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("config", EACH_CONFIG, ids=name_of)
def test_values_and_gradients_are_those_of_the_reference(
    config: dict[str, Any], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = crowded(seed=CONFIGS.index(config))
    encoder = make_encoder(**config)
    encoder.train(training)
    wanted = expected(encoder, batch)
    assert wanted.image.abs().max() > 0.1
    for version in VERSIONS.values():
        use(version, monkeypatch)
        got = outcome(encoder, batch)
        assert got.stats == wanted.stats
        assert got.image.dtype == torch.float32
        found = errors(got, wanted, training)
        assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("config", EACH_CONFIG, ids=name_of)
def test_without_gradients_the_image_is_the_same(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    batch, encoder = crowded(seed=CONFIGS.index(config)), make_encoder(**config)
    for version in VERSIONS.values():
        use(version, monkeypatch)
        image = encoder(batch).detach()
        stats = encoder.last_stats
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                alone = encoder(batch)
            assert not alone.requires_grad
            assert encoder.last_stats == stats
            assert alone.is_contiguous(memory_format=torch.channels_last)
            assert float((alone - image).abs().max()) < 2e-6 * float(image.abs().max())


@pytest.mark.parametrize("channels", [1, 2, 16, 33, 64])
def test_any_number_of_channels_agrees(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, batch = make_encoder(channels=channels, max_pillars=None), crowded(seed=1)
    wanted = expected(encoder, batch)
    for version in VERSIONS.values():
        use(version, monkeypatch)
        found = errors(outcome(encoder, batch), wanted, training=False)
        assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("config", [{"moments": 3}, {"moments": 5, "center_offsets": True}, {"pooling": "max"}])
@pytest.mark.parametrize("name", ["crowded", *SPECIAL])
def test_in_float64_versions_differ_by_rounding_alone(
    name: str, config: dict[str, Any], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = crowded(seed=3) if name == "crowded" else SPECIAL[name]
    encoder = make_encoder(max_events=4, max_pillars=100, **config).double()
    encoder.train(training)
    wanted = expected(encoder, batch)
    for version in VERSIONS.values():
        use(version, monkeypatch)
        got = outcome(encoder, batch)
        assert got.stats == wanted.stats
        assert got.image.dtype == torch.float64
        torch.testing.assert_close(got.image, wanted.image, rtol=1e-9, atol=1e-9)
        scale = max(float(gradient.abs().max()) for gradient in wanted.gradients.values())
        for gradient, other in zip(got.gradients.values(), wanted.gradients.values(), strict=True):
            torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-9 * max(scale, 1))


@settings(max_examples=25)
@given(
    st.lists(rows_of_events(), min_size=1, max_size=3),
    st.sampled_from([(2, None, None), (3, 2, None), (8, 4, 2), (1, 1, 5)]),
    st.sampled_from([{}, {"weighting": "uniform"}, {"pooling": "max"}]),
)
def test_any_events_have_the_image_of_the_reference(
    rows: list[list[Row]], shape: tuple[int, int | None, int | None], options: dict[str, Any]
) -> None:
    pillar, max_events, max_pillars = shape
    encoder = make_encoder(pillar=pillar, max_events=max_events, max_pillars=max_pillars, **options).double()
    batch = batch_of(*rows)
    wanted, got = expected(encoder, batch), outcome(encoder, batch)
    assert got.stats == wanted.stats
    torch.testing.assert_close(got.image, wanted.image, rtol=1e-9, atol=1e-9)
    for name, gradient in wanted.gradients.items():
        torch.testing.assert_close(got.gradients[name], gradient, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("center_offsets", [False, True])
@pytest.mark.parametrize("name", ["crowded", *SPECIAL])
def test_moments_of_the_features_are_sums_over_the_events_kept(name: str, center_offsets: bool) -> None:
    batch = crowded(seed=6) if name == "crowded" else SPECIAL[name]
    spec = PillarSpec(Sensor(*SENSOR), 3, max_events=5, max_pillars=30, center_offsets=center_offsets)
    events = torch_kernels.prepare(batch, spec, 3)
    windows = [reference.pillarize(events, number, torch.float64) for number in range(len(batch))]
    values = torch.cat([window.X.flatten(1) for window in windows], 1)
    real = torch.cat([window.mask.flatten() for window in windows])
    values = values[:, real > 0]
    for version in VERSIONS.values():
        count, total, products = version.moments(version.prepare(batch, spec, 3))
        assert count == values.shape[1]
        torch.testing.assert_close(total, values.sum(1))
        torch.testing.assert_close(products, values @ values.T)


# --- large batches, threads, memory ---


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_many_pillars_are_the_same_to_the_bit_on_any_number_of_threads(training: bool) -> None:
    sensor = (100, 150)
    batch = crowded(events=9000, sensor=sensor, clusters=300)
    encoder = make_encoder(sensor, channels=8, pillar=1)
    encoder.train(training)
    before, made = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            made.append(outcome(encoder, batch))
    finally:
        torch.set_num_threads(before)
    assert made[0].stats.pillars > 3000  # several tasks to a window
    for other in made[1:]:
        assert torch.equal(other.image, made[0].image)
        assert all(torch.equal(other.gradients[name], part) for name, part in made[0].gradients.items())


def test_many_pillars_agree_with_the_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = (100, 150)
    batch = crowded(events=9000, sensor=sensor, clusters=300)
    encoder = make_encoder(sensor, channels=8, pillar=1, max_pillars=2500)
    encoder.train()
    got = outcome(encoder, batch)
    use(torch_kernels, monkeypatch)
    wanted = outcome(encoder.double(), batch)
    assert got.stats == wanted.stats
    assert got.stats.pillars_dropped > 0
    found = errors(got, wanted, training=True)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_the_image_has_its_channels_last_in_memory(version: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    use(version, monkeypatch)
    image = make_encoder()(crowded())
    assert image.shape == (3, 5, 12, 16)
    assert image.is_contiguous(memory_format=torch.channels_last)


def test_a_gradient_may_have_any_layout() -> None:
    encoder, batch = make_encoder(), crowded()
    made = []
    for layout in (torch.channels_last, torch.contiguous_format):
        encoder.zero_grad()
        image = encoder(batch)
        gradient = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
        image.backward(gradient.contiguous(memory_format=layout))
        made.append([parameter.grad for parameter in encoder.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))
    encoder.zero_grad()
    encoder(batch).sum().backward()  # a gradient with strides of 0
    assert encoder.beta is not None
    assert encoder.last_stats is not None
    torch.testing.assert_close(
        encoder.beta.grad, torch.full((5,), float(encoder.last_stats.pillars - encoder.last_stats.pillars_dropped))
    )


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("options", [{}, {"moments": 4}, {"pooling": "max"}], ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_a_parameter_that_is_no_number_is_seen_in_its_channel(
    version: ModuleType, options: dict[str, Any], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(version, monkeypatch)
    batch = crowded()
    for name, _ in make_encoder(**options).named_parameters():
        encoder = make_encoder(**options)
        encoder.train(training)
        with torch.no_grad():
            encoder.get_parameter(name)[2] = float("nan")
        with torch.random.fork_rng(devices=[]):
            occupied = (make_encoder(**options).train(training)(batch) != 0).any(1)
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                image = encoder(batch).detach()
            assert image[:, 2][occupied].isnan().all(), name
            assert image[:, [0, 1, 3, 4]].isfinite().all(), name


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("options", [{}, {"pooling": "max"}], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.filterwarnings("error")
def test_a_gradient_that_is_no_number_is_not_lost(
    version: ModuleType, options: dict[str, Any], value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(version, monkeypatch)
    encoder = make_encoder(**options)
    image = encoder(crowded())
    rest = image.detach() - (0.0 if encoder.beta is None else encoder.beta.detach()[:, None, None])
    loudest = torch.where(image.detach()[:, 2] != 0, rest[:, 2].abs(), 0.0)  # a pillar where ReLU lets something pass
    gradient = torch.zeros_like(image)
    gradient[:, 2] = torch.where(loudest == loudest.max(), value, 0.0)
    image.backward(gradient)
    for name, parameter in encoder.named_parameters():
        assert not parameter.grad[2].isfinite().all(), name
        assert parameter.grad[[0, 1, 3, 4]].isfinite().all(), name


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_an_encoders_gradients_are_those_of_differences(
    version: ModuleType, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(version, monkeypatch)
    rows = [(0, 0, 0, 1), (30, 1, 1, 0), (30, 1, 0, 1), (90, 3, 3, 1), (40, 4, 2, 0), (70, 0, 1, 0)]
    batch = batch_of(rows, [], [(50, 2, 2, 1)], duration_us=100, sensor=(5, 5))
    encoder = make_encoder((5, 5), channels=2, max_events=None, max_pillars=None).double()
    encoder.train(training)
    names = [name for name, _ in encoder.named_parameters()]
    given = tuple(parameter.detach().clone().requires_grad_() for parameter in encoder.parameters())

    def image(*parts: Tensor) -> Tensor:
        return functional_call(encoder, dict(zip(names, parts, strict=True)), (batch,))

    assert torch.autograd.gradcheck(image, given)


def test_the_folded_weights_are_unfolded_by_the_transpose() -> None:
    """For any weights w and any gradient g: <fold(w), g> = <w, unfold(g)>."""
    spec = PillarSpec(Sensor(*SENSOR), 3, center_offsets=True)
    random = torch.Generator().manual_seed(0)
    shapes = [(4, 9), (4,), (4, 3), (4,)]
    weights = Weights(*(torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes))
    folded = cpu_kernels.fold(weights, spec)
    numpy_random = np.random.default_rng(0)
    gradient = type(folded)(*(numpy_random.normal(size=part.shape) for part in folded))
    one = sum(float((a * b).sum()) for a, b in zip(folded, gradient, strict=True))
    unfolded = cpu_kernels.unfold(gradient, spec, weights)
    other = sum(float((a * b).sum()) for a, b in zip(weights, unfolded, strict=True))
    assert one == pytest.approx(other)


def test_gradients_of_one_pillar_that_holds_very_many_events_do_not_wear_off() -> None:
    torch.manual_seed(5)  # with some weights, rounding decides on which side of zero an event is
    random = np.random.default_rng(5)
    t = np.sort(random.integers(0, 50_000, 60_000))
    x, y, p = (random.integers(0, high, 60_000) for high in (8, 8, 2))
    batch = EventBatch.from_windows([(Window(0, 50_000), Events(t, x, y, p, sensor=(8, 8)))])
    encoder = PillarEncoder((8, 8), pillar=8, channels=4, max_events=None, max_pillars=None).eval()
    wide = copy.deepcopy(encoder).double()
    for one in (encoder, wide):
        one(batch).sum().backward()
    for ours, exact in zip(encoder.parameters(), wide.parameters(), strict=True):
        assert ours.grad is not None
        assert exact.grad is not None
        scale = exact.grad.abs().max()
        assert (ours.grad.double() - exact.grad).abs().max() <= 1e-5 * scale
