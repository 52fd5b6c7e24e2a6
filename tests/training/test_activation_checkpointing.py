"""Activation checkpointing saves memory and changes no loss, gradient or statistic."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fate.models import state as states
from fate.training.activation_checkpointing import checkpoint_activations, keep_statistics
from fate.training.config import Checkpointing
from fate.training.loop import build
from tests.models.small_detectors import batch_of, small_detector, some_windows
from tests.training.conftest import small_config

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")


def trained_with(drives: Path, name: str, choice: Checkpointing) -> tuple[dict[str, Tensor], int]:
    """Loss, gradients, state and statistics of one batch, and the bytes that were kept for the backward pass."""
    from fate.training.module import TrainingModule

    config = small_config(
        drives,
        model={
            "name": name,
            "options": {},
            "encoder_options": {"channels": 8, "max_events": None, "max_pillars": None},
        },
        run={"epochs": 1, "epoch_steps": 1, "device": "cpu", "activation_checkpointing": choice},
    )
    parts = build(config)
    torch.manual_seed(1)
    module = TrainingModule(parts.detector, parts.strategy, config)
    module.prepare("cpu")
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = module.training_step(next(iter(parts.batches())), 0)
    loss.backward()
    found = {"loss": loss.detach()}
    found |= {f"state {i}": part for i, part in enumerate(states.tensors(module.memory))}
    found |= {f"statistic {name}": buffer.clone() for name, buffer in module.student.named_buffers()}
    for weight_name, weight in module.student.named_parameters():
        if weight.grad is not None:
            found[f"gradient {weight_name}"] = weight.grad
    return found, sum(kept.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shares"), [("fate-e-tiny", {"head": 0.9, "all": 0.5}), ("fate-s-nano", {"head": 1.001, "all": 0.9})]
)
def test_results_are_the_same_with_less_memory(drives: Path, name: str, shares: dict[Checkpointing, float]) -> None:
    expected, whole = trained_with(drives, name, "none")
    assert any(key.startswith("gradient") and bool(value.any()) for key, value in expected.items())
    for choice, share in shares.items():
        found, kept = trained_with(drives, name, choice)
        assert kept <= share * whole
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=0, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("family", ["evrt", "s5"])
def test_blocks_that_run_again_know_the_length_of_windows(family: str) -> None:
    gradients = []
    for choice in ("none", "all"):
        detector = small_detector(family, length_affine=True).train()
        checkpoint_activations(detector, choice)
        torch.manual_seed(0)
        features, _ = detector.features(detector.encoder(batch_of(some_windows(4))))
        sum(maps.square().mean() for maps in features).backward()  # type: ignore[union-attr]
        gradients.append({name: weight.grad for name, weight in detector.backbone.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient is not None, name
        assert bool(gradient.any()), name
        assert torch.equal(gradient, gradients[1][name]), name  # type: ignore[arg-type]


def test_a_second_choice_replaces_the_first(drives: Path) -> None:
    config = small_config(drives, model={"name": "fate-s-nano", "options": {}}, run={"device": "cpu"})
    detector = build(config).detector
    plain = {name: module.forward for name, module in detector.named_modules()}
    checkpoint_activations(detector, "all")
    assert any(module.forward != plain[name] for name, module in detector.named_modules())
    checkpoint_activations(detector, "none")
    assert all(module.forward == plain[name] for name, module in detector.named_modules())


def test_statistics_shared_by_several_processes_are_kept_as_well() -> None:
    """``SyncBatchNorm`` insists on its counter of batches; alone on a CPU, it computes what BatchNorm computes."""
    from fate.models.necks.hybrid_encoder import CSPRep

    torch.manual_seed(0)
    plain = nn.Sequential(CSPRep(8, 8, 1.0, 1)).train()
    shared = nn.SyncBatchNorm.convert_sync_batchnorm(deepcopy(plain))
    checkpoint_activations(plain, "all")
    images = torch.randn(2, 8, 6, 6)
    plain(images).sum().backward()
    counts = [buffer for name, buffer in plain.named_buffers() if name.endswith("num_batches_tracked")]
    assert [int(count) for count in counts] == [1] * len(counts)
    checkpoint_activations(shared, "all")
    norm = next(module for module in shared.modules() if isinstance(module, nn.SyncBatchNorm))
    with keep_statistics(shared):
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
    assert int(norm.num_batches_tracked) == 0
