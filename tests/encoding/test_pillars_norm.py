"""BatchNorm in PillarEncoder: computed from the features' moments, equal to ``nn.BatchNorm1d`` over every event."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fate.encoding.batch import EventBatch
from fate.encoding.kernels import torch_kernels
from fate.encoding.pillars import PillarEncoder
from tests.encoding.conftest import batch_of, crowded, crowded_windows, drawn_seed, expected, make_encoder, outcome

momenta = pytest.mark.parametrize("momentum", [0.1, 0.5, None])
caps = pytest.mark.parametrize("options", [{}, {"max_events": 2, "max_pillars": 9}, {"center_offsets": True}], ids=str)


def latent(encoder: PillarEncoder, batch: EventBatch, draw: int) -> Tensor:
    """[E, C] the layer's output for every event that the caps keep, float64."""
    features = torch_kernels.event_features(torch_kernels.prepare(batch, encoder.spec, drawn_seed(draw)), torch.float64)
    return features @ encoder.linear.weight.detach().double().T + encoder.linear.bias.detach().double()


def torchs_norm(encoder: PillarEncoder) -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(encoder.channels, momentum=encoder.norm.momentum).double()
    norm.load_state_dict(encoder.norm.state_dict())
    return norm.train()


def statistics(norm: nn.BatchNorm1d) -> list[Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    return [part.clone().double() for part in (norm.running_mean, norm.running_var, norm.num_batches_tracked)]


def trained(momentum: float | None = 0.1, **options: Any) -> PillarEncoder:
    encoder = make_encoder(**options)
    encoder.norm.momentum = momentum
    return encoder.train()


@momenta
@caps
def test_running_statistics_are_torchs_over_all_events(momentum: float | None, options: dict[str, Any]) -> None:
    encoder = trained(momentum, **options)
    norm = torchs_norm(encoder)
    for draw in range(3):
        batch = crowded(seed=draw)
        norm(latent(encoder, batch, draw))
        outcome(encoder, batch, draw)
    for ours, theirs in zip(statistics(encoder.norm), statistics(norm), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@caps
def test_running_statistics_of_a_float64_encoder_are_torchs_to_the_last_digits(options: dict[str, Any]) -> None:
    encoder = trained(None, **options).double()
    norm = torchs_norm(encoder)
    for draw in range(3):
        norm(latent(encoder, crowded(seed=draw), draw))
        outcome(encoder, crowded(seed=draw), draw)
    for ours, theirs in zip(statistics(encoder.norm), statistics(norm), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


def test_running_statistics_do_not_depend_on_how_far_the_features_are_from_zero() -> None:
    """All events in the far corner: products of features less products of means must not lose the variance."""
    rows = [(1000 - 200 + i, 600 + i % 4, 400 + i // 4 % 4, i // 16 % 2) for i in range(200)]
    batch = batch_of(rows, sensor=(404, 604))
    encoder = trained(None, sensor=(404, 604)).double()
    norm = torchs_norm(encoder)
    norm(latent(encoder, batch, 0))
    outcome(encoder, batch)
    for ours, theirs in zip(statistics(encoder.norm), statistics(norm), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@momenta
def test_one_event_sets_the_mean_and_has_no_variance(momentum: float | None) -> None:
    encoder, batch = trained(momentum), batch_of([(400, 17, 5, 1)])
    mean, variance, _ = statistics(encoder.norm)
    image = encoder(batch)
    share = 1.0 if momentum is None else momentum
    value = latent(encoder, batch, 0)[0]
    new_mean, new_variance, calls = statistics(encoder.norm)
    torch.testing.assert_close(new_mean, mean * (1 - share) + value * share, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(new_variance, variance * (1 - share), rtol=1e-6, atol=1e-6)
    assert int(calls) == 1
    image.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())


@momenta
@pytest.mark.parametrize("empty_first", [True, False])
def test_a_batch_without_events_changes_nothing(momentum: float | None, empty_first: bool) -> None:
    batch, empty = crowded(), batch_of([], [])
    with_empty, without = trained(momentum), trained(momentum)
    outcome(without, batch)
    for given in (empty, batch) if empty_first else (batch, empty):
        outcome(with_empty, given)
    for ours, theirs in zip(statistics(with_empty.norm)[:2], statistics(without.norm)[:2], strict=True):
        assert torch.equal(ours, theirs)
    later = crowded(seed=1)  # nor does it change what the next batch counts for
    outcome(without, later)
    outcome(with_empty, later)
    for ours, theirs in zip(statistics(with_empty.norm)[:2], statistics(without.norm)[:2], strict=True):
        assert torch.equal(ours, theirs)


def test_padding_and_empty_windows_do_not_count() -> None:
    pairs = crowded_windows(windows=3)  # the second is empty
    one, other = trained(max_events=None), trained(max_events=None)
    outcome(one, EventBatch.from_windows(pairs))
    outcome(other, EventBatch.from_windows([pairs[0], pairs[2]]))
    for ours, theirs in zip(statistics(one.norm), statistics(other.norm), strict=True):
        assert torch.equal(ours, theirs)


def test_evaluation_after_training_uses_what_was_learned() -> None:
    encoder, batch = trained(), crowded()
    for draw in range(4):
        outcome(encoder, crowded(seed=draw), draw)
    encoder.eval()
    before = statistics(encoder.norm)
    wanted, got = expected(encoder, batch), outcome(encoder, batch)
    torch.testing.assert_close(got.image.double(), wanted.image, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(statistics(encoder.norm), before, strict=True))
    encoder.train()
    assert not torch.allclose(encoder(batch), got.image)


def test_a_call_without_gradients_in_training_moves_the_statistics_as_torch_does() -> None:
    encoder, other = (trained(max_events=None, max_pillars=None) for _ in range(2))
    with torch.no_grad():
        assert not encoder(crowded()).requires_grad
    other(crowded())
    assert all(torch.equal(a, b) for a, b in zip(statistics(encoder.norm), statistics(other.norm), strict=True))


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_batchnorm_with_another_eps_does_what_torchs_does(training: bool) -> None:
    encoder = make_encoder(moments=1, weighting="uniform", max_events=None, max_pillars=None).double()
    encoder.norm, norm = (nn.BatchNorm1d(encoder.channels, eps=0.1).double() for _ in range(2))
    encoder.train(training)
    assert encoder.alpha is not None
    assert encoder.beta is not None
    with torch.no_grad():  # the image is the mean of what comes through ReLU
        encoder.alpha.fill_(1)
        encoder.beta.zero_()
    batch = crowded()
    of = torch_kernels.prepare(batch, encoder.spec, 0)
    hidden = torch.relu(norm.train(training)(latent(encoder, batch, 0)))
    mean = hidden.new_zeros(len(of.size), 5).index_add(0, of.pillar, hidden) / of.size[:, None]
    image = encoder(batch).permute(0, 2, 3, 1).flatten(0, 2)
    torch.testing.assert_close(image[of.cell], mean)


def test_statistics_of_several_processes_are_those_of_their_batches_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """SyncBatchNorm: what each process sums is added up; here one process plays both, with the other's sums known."""
    options: dict[str, Any] = {"max_events": None, "max_pillars": None}
    pairs = crowded_windows(windows=4)
    halves = [EventBatch.from_windows(pairs[:2]), EventBatch.from_windows(pairs[2:])]
    wanted = trained(**options)
    together = outcome(wanted, EventBatch.from_windows(pairs))
    sums: list[Tensor] = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, group: sums.append(tensor.clone()))
    for half in halves:
        nn.SyncBatchNorm.convert_sync_batchnorm(trained(**options))(half)
    assert len(sums) == 2

    for number, half in enumerate(halves):
        other = sums[1 - number]
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, group, more=other: tensor.add_(more))
        encoder = nn.SyncBatchNorm.convert_sync_batchnorm(trained(**options))
        image = encoder(half).detach()
        torch.testing.assert_close(image, together.image[2 * number : 2 * number + 2], rtol=1e-5, atol=1e-6)
        for ours, theirs in zip(statistics(encoder.norm), statistics(wanted.norm), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
