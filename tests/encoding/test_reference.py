"""The dense reference: its polynomials and weights are numpy's, and its gradients those of differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.polynomial.legendre import legval
from torch import Tensor

from fate.encoding.batch import EventBatch
from fate.encoding.kernels import reference, torch_kernels
from fate.encoding.spec import PillarSpec
from fate.events.events import Sensor
from tests.encoding.conftest import SENSOR, batch_of, make_encoder, window_of


@pytest.mark.parametrize("moments", [1, 2, 3, 5, 9])
def test_legendre_polynomials_are_numpys(moments: int) -> None:
    tau = torch.linspace(-1, 1, 41, dtype=torch.float64).view(1, 41)
    wanted = [legval(tau.numpy(), np.eye(moments)[k]) for k in range(moments)]
    np.testing.assert_allclose(torch_kernels.legendre(tau, moments).numpy(), wanted, atol=1e-13)


def numpys_weights(t: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What ``np.trapezoid`` multiplies each sample with."""
    return np.array([np.trapezoid(one, t) for one in np.eye(len(t))])


@pytest.mark.parametrize("count", [1, 2, 3, 10])
@pytest.mark.parametrize("padding", [0, 4])
def test_weights_of_distinct_times_are_numpys(count: int, padding: int) -> None:
    tau = np.sort(np.random.default_rng(count).uniform(-1, 1, count))
    given = torch.from_numpy(np.concatenate([tau, np.zeros(padding)]))[None]
    mask = torch.tensor([[1.0] * count + [0.0] * padding], dtype=torch.float64)
    weights = reference.trapezoid_weights(given, mask)[0].numpy()
    np.testing.assert_allclose(weights[:count], numpys_weights(tau), rtol=1e-12, atol=1e-15)
    assert (weights[count:] == 0).all()


def test_events_of_one_time_share_the_weight_that_numpy_gives_them_together() -> None:
    tau = np.array([-0.9, -0.5, -0.5, -0.5, 0.0, 0.3, 0.3])
    weights = reference.trapezoid_weights(torch.from_numpy(tau)[None], torch.ones(1, 7, dtype=torch.float64))[0].numpy()
    wanted = numpys_weights(tau)
    for time in np.unique(tau):
        np.testing.assert_allclose(weights[tau == time], wanted[tau == time].mean(), rtol=1e-12, atol=1e-15)
    assert weights.sum() == pytest.approx(1.2)


def test_every_version_weighs_events_alike() -> None:
    """The share of an event is what its pillar's image holds of it, if the layer shows it alone."""
    rows = [(0, 4, 4, 1), (100, 5, 4, 1), (100, 4, 5, 0), (400, 4, 4, 0), (1000 - 1, 5, 5, 1)]
    spec = PillarSpec(Sensor(*SENSOR), 2)
    of = torch_kernels.prepare(batch_of(rows), spec, 0)
    wanted = numpys_weights(np.array([row[0] for row in rows]))
    wanted[1:3] = wanted[1:3].mean()
    np.testing.assert_allclose(
        torch_kernels.normalized_weights(of).numpy(), wanted / wanted.sum(), rtol=1e-12, atol=1e-15
    )


def test_a_pillar_is_the_trapezoidal_integral_that_numpy_computes() -> None:
    """The whole encoding of one pillar with distinct times, in numpy from the formulas alone."""
    random = np.random.default_rng(9)
    t = np.sort(random.choice(40_000, 20, replace=False))
    x, y, p = random.integers(8, 12, 20), random.integers(4, 8, 20), random.integers(0, 2, 20)
    encoder = make_encoder(pillar=4, moments=4, center_offsets=True, max_events=None).double()
    window = window_of(list(zip(*(column.tolist() for column in (t, x, y, p)), strict=True)), 40_000, start_us=123)
    image = encoder(EventBatch.from_windows([window]))[0].detach().numpy()

    tau = 2 * t / 40_000 - 1
    features = [x / 31, y / 23, tau, 2 * p - 1, (x - x.mean()) / 31, (y - y.mean()) / 23, tau - tau.mean()]
    features += [(x - 9.5) / 31, (y - 5.5) / 23]
    given = {name: value.detach().numpy() for name, value in encoder.state_dict().items()}
    latent = given["linear.weight"] @ np.array(features) + given["linear.bias"][:, None]
    mean, variance = given["norm.running_mean"][:, None], given["norm.running_var"][:, None]
    latent = (latent - mean) / np.sqrt(variance + 1e-5) * given["norm.weight"][:, None] + given["norm.bias"][:, None]
    hidden = np.maximum(latent, 0)
    moments = [np.trapezoid(hidden * legval(tau, np.eye(4)[k]), tau) / (tau[-1] - tau[0]) for k in range(4)]
    wanted = (given["alpha"] * np.array(moments).T).sum(1) + given["beta"]
    np.testing.assert_allclose(image[:, 1, 2], wanted, rtol=1e-10)
    image[:, 1, 2] = 0
    assert (image == 0).all()


@pytest.mark.parametrize("running", [False, True], ids=["training", "evaluation"])
@pytest.mark.parametrize(
    "options", [{}, {"weighting": "uniform"}, {"pooling": "max"}, {"center_offsets": True}], ids=str
)
def test_the_references_gradients_are_those_of_differences(options: dict[str, Any], running: bool) -> None:
    rows = [(0, 0, 0, 1), (30, 1, 1, 0), (30, 1, 0, 1), (90, 3, 3, 1), (40, 4, 2, 0), (70, 0, 1, 0)]
    batch = batch_of(rows, [(50, 2, 2, 1)], duration_us=100, sensor=(5, 5))
    spec = PillarSpec(Sensor(5, 5), 2, 2, max_events=3, max_pillars=4, **options)
    random = torch.Generator().manual_seed(3)
    shapes = [(2, spec.features), (2,), (2,), (2,), (2, 2), (2,)]
    given = tuple(torch.randn(s, generator=random, dtype=torch.float64).requires_grad_() for s in shapes)
    statistics = (torch.tensor([0.1, -0.2]).double(), torch.tensor([0.5, 0.7]).double()) if running else None

    def image(*parts: Tensor) -> Tensor:
        return reference.encode(batch, spec, 0, reference.Parameters(*parts), statistics)[0]

    assert torch.autograd.gradcheck(image, given)
