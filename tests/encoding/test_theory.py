"""The claims of docs/explanation/pillar-encoding.md: the projection is the best there is, the trapezoid converges and
the mean does not, and what becomes of pillars with few events.

Oracles: numpy's polynomials, Gauss quadrature, integrals by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial import legendre as numpys
from numpy.typing import NDArray

from fate.encoding.batch import EventBatch
from fate.encoding.kernels.reference import legendre, trapezoid_weights
from fate.encoding.pillars import PillarEncoder
from fate.events.events import Events
from fate.events.window import Window

Array = NDArray[Any]
Signal = Callable[[Array], Array]

SIGNALS: dict[str, Signal] = {
    "step": lambda t: (t > 0.15).astype(float),
    "ramp": lambda t: np.maximum(0.0, 0.25 + 0.75 * t),
    "oscillation": lambda t: 0.5 + 0.5 * np.sin(1.5 * np.pi * t),
    "burst": lambda t: np.exp(-(((t - 0.3) / 0.15) ** 2)),
}
#: Gauss quadrature: exact for the products of polynomials that occur here.
NODES, MASSES = numpys.leggauss(400)


def basis(tau: Array, moments: int) -> Array:
    """The encoder's L_0 to L_{K-1}, [K, ...]."""
    return legendre(torch.from_numpy(np.ascontiguousarray(tau)), moments).numpy()


def shares(tau: Array) -> Array:
    """Eq. 5 over its sum, for rows of rising times; uniform where the sum is 0, as Eq. 6 is defined there."""
    times = torch.from_numpy(np.atleast_2d(tau)).double()
    weights = trapezoid_weights(times, torch.ones_like(times))
    weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, 1.0)
    return (weights / weights.sum(-1, keepdim=True)).numpy()


def squared_norm(values: Array) -> Array:
    """Of functions given at NODES."""
    return (values**2 * MASSES).sum(-1)


def projection(values: Array, moments: int) -> Array:
    """Eq. 4, [K]."""
    return (2 * np.arange(moments) + 1) / 2 * (values * basis(NODES, moments) * MASSES).sum(-1)


# ---- the projection ---------------------------------------------------------------------------------------------


def test_polynomials_are_numpys_and_orthogonal_as_equation_3_says() -> None:
    tau = np.linspace(-1, 1, 101)
    np.testing.assert_allclose(basis(tau, 9), numpys.legvander(tau, 8).T, atol=1e-13)
    inner = (basis(NODES, 9)[:, None] * basis(NODES, 9) * MASSES).sum(-1)
    np.testing.assert_allclose(inner, np.diag(2 / (2 * np.arange(9) + 1)), atol=1e-12)


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("moments", [1, 2, 3, 4, 5])
def test_no_other_polynomial_of_the_degree_is_nearer_than_the_projection(name: str, moments: int) -> None:
    values, random = SIGNALS[name](NODES), np.random.default_rng(moments)
    best = projection(values, moments)
    lowest = squared_norm(values - best @ basis(NODES, moments))
    away = random.normal(size=(300, moments)) * 10.0 ** random.uniform(-4, 1, (300, 1))
    error = squared_norm(values - (best + away) @ basis(NODES, moments))
    assert (error > lowest).all()
    # and by exactly the distance between the two: the rest is orthogonal to the subspace
    np.testing.assert_allclose(error, lowest + squared_norm(away @ basis(NODES, moments)), rtol=1e-10)


@pytest.mark.parametrize("name", SIGNALS)
def test_the_projection_is_what_least_squares_find(name: str) -> None:
    values = SIGNALS[name](NODES)
    np.testing.assert_allclose(
        projection(values, 5), numpys.legfit(NODES, values, 4, w=np.sqrt(MASSES)), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("name", SIGNALS)
def test_another_moment_never_makes_the_projection_worse(name: str) -> None:
    values = SIGNALS[name](NODES)
    errors = [squared_norm(values - projection(values, k) @ basis(NODES, k)) for k in range(1, 9)]
    assert (np.diff(errors) <= 1e-12).all()


# ---- the trapezoid ----------------------------------------------------------------------------------------------


def density(tau: Array) -> Array:
    """Not normalised: a burst early in the window, little after it, never 0."""
    return 0.2 + 2 * np.exp(-(((tau + 0.45) / 0.2) ** 2))


def rising(tau: Array) -> Array:
    return 1 / (1 + np.exp(-5 * (tau - 0.1)))


def draw_times(random: np.random.Generator, rows: int, events: int) -> Array:
    """Rising times of ``density``."""
    grid = np.linspace(-1, 1, 20_001)
    cumulative = np.cumsum(density(grid))
    return np.sort(np.interp(random.random((rows, events)), cumulative / cumulative[-1], grid), axis=1)


def root_mean_square(values: Array) -> float:
    return float(np.sqrt((values**2).mean()))


def slope(counts: Sequence[int], errors: Sequence[float]) -> float:
    return float(np.polyfit(np.log(counts), np.log(errors), 1)[0])


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_the_trapezoid_converges_with_the_number_of_events_and_the_mean_keeps_its_bias(degree: int) -> None:
    random, counts = np.random.default_rng(degree), (256, 512, 1024, 2048, 4096)
    truth = (rising(NODES) * basis(NODES, 3)[degree] * MASSES).sum() / 2
    seen = (rising(NODES) * basis(NODES, 3)[degree] * MASSES * density(NODES)).sum() / (density(NODES) * MASSES).sum()
    trapezoid, span, mean = [], [], []
    for count in counts:
        tau = draw_times(random, 300, count)
        values = rising(tau) * basis(tau, 3)[degree]
        estimate = (shares(tau) * values).sum(-1)
        inside = tau[:, :1] + (tau[:, -1:] - tau[:, :1]) * (NODES + 1) / 2
        covered = (rising(inside) * basis(inside, 3)[degree] * MASSES).sum(-1) / 2
        trapezoid.append(root_mean_square(estimate - truth))
        span.append(root_mean_square(estimate - covered))
        mean.append(float(values.mean()) - truth)
    # what lies before the first and after the last event is of the order of a gap: error as 1 / n
    assert slope(counts, trapezoid) == pytest.approx(-1, abs=0.15)
    # between them only the curvature is missed: as 1 / n²
    assert slope(counts, span) == pytest.approx(-2, abs=0.2)
    # the mean goes to the integral weighted by the density, however many events there are
    np.testing.assert_allclose(mean, seen - truth, rtol=0.1)
    assert trapezoid[-1] < abs(seen - truth) / 10


def test_noise_of_events_weighs_half_as_much_again_in_the_trapezoid_as_in_the_mean() -> None:
    tau = np.sort(np.random.default_rng(0).uniform(-1, 1, (200, 1000)), axis=1)
    variance = (shares(tau) ** 2).sum(-1).mean()  # of independent noise of variance 1 on each event
    assert variance == pytest.approx(1.5 / 1000, rel=0.02)


def moments_of(
    t_us: Sequence[int], pixels: Sequence[int] | None = None, *, window_us: int = 50_000, of_tau: float = 0.0,
    base: float = 1.0, weighting: Any = "trapezoid", moments: int = 3,
) -> Array:  # fmt: skip
    """The moments [K] of a pillar, read out of the encoder: H = relu(base + pixel + of_tau · τ), pixels 0 and 1."""
    encoder = PillarEncoder((2, 2), channels=moments, moments=moments, max_events=None, weighting=weighting)
    encoder = encoder.double().eval()
    encoder.norm.eps = 0.0
    assert encoder.alpha is not None
    with torch.no_grad():
        encoder.linear.weight.zero_()
        encoder.linear.weight[:, 0], encoder.linear.weight[:, 2] = 2.0, of_tau  # x is divided by the width, 2
        encoder.linear.bias.fill_(base)
        encoder.alpha.copy_(torch.eye(moments))
        zeros = np.zeros(len(t_us), int)
        events = Events(np.asarray(t_us), zeros if pixels is None else np.asarray(pixels), zeros, zeros, sensor=(2, 2))
        image = encoder(EventBatch.from_windows([(Window(0, window_us), events)]))
    return image[0, :, 0, 0].numpy()


def test_the_encoders_own_moments_go_to_the_projection_integral_and_uniform_weights_elsewhere() -> None:
    latent, window_us = SIGNALS["ramp"], 20_000_000  # relu(0.25 + 0.75 τ); a window so long that rounding is nothing
    truth = (latent(NODES) * basis(NODES, 3) * MASSES).sum(-1) / 2
    seen = (latent(NODES) * basis(NODES, 3) * MASSES * density(NODES)).sum(-1) / (density(NODES) * MASSES).sum()
    tau = draw_times(np.random.default_rng(3), 1, 8192)[0]
    t_us = np.minimum((tau + 1) / 2 * window_us, window_us - 1).astype(np.int64)
    common: dict[str, Any] = {"window_us": window_us, "base": 0.25, "of_tau": 0.75}
    np.testing.assert_allclose(moments_of(t_us, **common), truth, atol=3e-3)
    np.testing.assert_allclose(moments_of(t_us, weighting="uniform", **common), seen, atol=1e-2)
    assert np.abs(seen - truth).max() > 0.1


# ---- few events -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t_us", [0, 1, 12_500, 25_000, 49_999])
def test_the_moments_of_one_event_are_its_feature_times_the_polynomials_at_its_time(t_us: int) -> None:
    tau = 2 * t_us / 50_000 - 1
    expected = (1.5 + 0.4 * tau) * numpys.legvander(tau, 4).ravel()
    np.testing.assert_allclose(moments_of([t_us], base=1.5, of_tau=0.4, moments=5), expected, atol=1e-14)


@pytest.mark.parametrize("gap_us", [0, 1, 2, 30, 49_000])
def test_two_events_have_equal_shares_whatever_lies_between_them(gap_us: int) -> None:
    np.testing.assert_array_equal(shares(np.array([-0.9, -0.9 + gap_us / 25_000])), [[0.5, 0.5]])
    times, pixels = [500, 500 + gap_us], [0, 1]
    np.testing.assert_allclose(
        moments_of(times, pixels, of_tau=0.3), moments_of(times, pixels, of_tau=0.3, weighting="uniform"), atol=1e-14
    )


def test_two_events_that_come_together_have_a_continuous_limit() -> None:
    tied = moments_of([1000, 1000], [0, 1], of_tau=0.5)
    gaps = (1, 10, 100, 1000)
    apart = [np.abs(moments_of([1000, 1000 + gap], [0, 1], of_tau=0.5) - tied).max() for gap in gaps]
    assert slope(gaps, apart) == pytest.approx(1, abs=0.05)  # goes as the gap


@pytest.mark.parametrize("early", [1, 5, 9])
def test_three_different_events_jump_when_they_come_together_even_with_equal_gaps(early: int) -> None:
    # shares of the limit: (a, 1, b) / 2 of the gaps a + b = 1; at one time: thirds
    limit = np.array([early / 20, 1 / 2, (10 - early) / 20])
    for spread in (10, 1000, 20_000):
        times = [1000, 1000 + spread * early // 10, 1000 + spread]
        assert moments_of(times, [0, 1, 0], moments=1)[0] == pytest.approx(1 + limit[1], abs=1e-14)
        assert moments_of(times, [1, 0, 0], moments=1)[0] == pytest.approx(1 + limit[0], abs=1e-14)
    for pixels in ([0, 1, 0], [1, 0, 0]):
        assert moments_of([1000] * 3, pixels, moments=1)[0] == pytest.approx(1 + 1 / 3, abs=1e-14)


def test_events_of_one_pixel_and_polarity_have_a_continuous_limit_however_many() -> None:
    tied = moments_of([1000] * 4, of_tau=0.5)
    spreads = (10, 100, 1000)
    apart = [
        np.abs(moments_of([1000, 1000 + s // 10, 1000 + s // 2, 1000 + s], of_tau=0.5) - tied).max() for s in spreads
    ]
    assert slope(spreads, apart) == pytest.approx(1, abs=0.05)


@given(st.lists(st.integers(0, 10_000), min_size=3, max_size=12, unique=True))
def test_three_or_more_different_times_never_have_equal_shares_and_none_has_more_than_half(t_us: list[int]) -> None:
    share = shares(np.sort(np.array(t_us)) / 5000 - 1)[0]
    # the second event has the first one's half gap and half of the next one on top
    assert share[1] > share[0]
    assert share.max() <= 0.5 + 1e-12
    assert share.sum() == pytest.approx(1)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=8, unique=True), st.data())
def test_the_share_at_equal_times_is_halfway_between_just_before_and_just_after(t_us: list[int], data: Any) -> None:
    others = np.sort(np.array(t_us)) / 500 - 1
    met = data.draw(st.integers(0, len(others) - 1))

    def share_at(time: float) -> float:
        """Of an event that stands at ``time`` among the others."""
        place = int(np.searchsorted(others, time))
        return float(shares(np.insert(others, place, time))[0, place])

    near = 1e-9
    halfway = (share_at(others[met] - near) + share_at(others[met] + near)) / 2
    assert share_at(others[met]) == pytest.approx(halfway, abs=1e-5)


def test_an_event_that_passes_the_first_one_jumps_from_nothing_to_half() -> None:
    def share_of_a(offset: int) -> float:
        pair = sorted([(15_000 + offset, 1), (15_000, 0)])
        return float(moments_of([pair[0][0], pair[1][0], 40_000], [pair[0][1], pair[1][1], 0], moments=1)[0] - 1)

    assert share_of_a(-1) == pytest.approx(0, abs=1e-4)
    assert share_of_a(0) == pytest.approx(1 / 4)
    assert share_of_a(1) == pytest.approx(1 / 2)


def test_the_examples_of_the_document_run() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "pillar-encoding.md"
    scope: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        exec(block, scope)
    assert tuple(scope["image"].shape) == (1, 64, 120, 152)
