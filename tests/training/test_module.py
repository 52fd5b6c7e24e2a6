"""What the optimiser sees of a gradient."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fate.training.config import TrainConfig
from fate.training.loop import build, train
from tests.training.conftest import small_config

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")

#: Of a descent without momentum, whose one step shows the gradient: large, so that weights do not round it.
RATE = 1e9


@pytest.fixture
def plain_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights move by the rate times the gradient; what they become is of no interest."""
    from fate.training import callbacks, module

    def descent(weights: list[Tensor], lr: float, **_: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(weights, lr)

    monkeypatch.setattr(module, "AdamW", descent)
    monkeypatch.setattr(callbacks.Validation, "evaluate", lambda *_: None)


def one_step(drives: Path, clip_norm: float, accumulate: int) -> TrainConfig:
    """Without caps, which would leave out other events each time."""
    return small_config(
        drives,
        model={"encoder_options": {"channels": 8, "max_events": None, "max_pillars": None}},
        optimiser={"lr": RATE, "clip_norm": clip_norm},
        run={"epochs": 1, "epoch_steps": 1, "accumulate": accumulate},
    )


def seen(config: TrainConfig, folder: Path) -> dict[str, Tensor]:
    """The gradient that the only step of a run was made with."""
    before = dict(build(config).detector.named_parameters())
    train(config, folder)
    after = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
    return {name: (weight.detach() - after[f"student.{name}"]) / RATE for name, weight in before.items()}


def whole(config: TrainConfig) -> dict[str, Tensor]:
    """The mean gradient of the batches of a step, as they are."""
    from fate.training.module import TrainingModule

    parts = build(config)
    module = TrainingModule(parts.detector, parts.strategy, config)
    module.prepare("cpu")
    for batch in islice(parts.batches(), config.run.accumulate):
        (module.training_step(batch, 0) / config.run.accumulate).backward()  # type: ignore[no-untyped-call]
    return {name: weight.grad for name, weight in module.student.named_parameters() if weight.grad is not None}


def test_each_number_of_the_gradient_is_limited_as_rvt_does(drives: Path) -> None:
    from fate.training.module import TrainingModule

    config = small_config(drives, optimiser={"clip_value": 0.01})
    parts = build(config)
    module = TrainingModule(parts.detector, parts.strategy, config)
    weight = next(module.student.parameters())
    weight.grad = torch.linspace(-1, 1, weight.numel()).view_as(weight)
    expected = weight.grad.clamp(-0.01, 0.01)
    module.configure_gradient_clipping(None)
    assert torch.equal(weight.grad, expected)


def norm(gradients: dict[str, Tensor]) -> float:
    return float(torch.cat([of.flatten() for of in gradients.values()]).norm())


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Each weight's gradient by its own measure: they differ by orders of magnitude."""
    for name, gradient in expected.items():
        most = float(gradient.abs().max())
        assert torch.allclose(found[name], gradient, rtol=1e-3, atol=1e-3 * most), name


@pytest.mark.usefixtures("plain_descent")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_long_gradient_is_shortened_once_after_all_batches_of_a_step(
    drives: Path, tmp_path: Path, accumulate: int
) -> None:
    config = one_step(drives, 0.5, accumulate)
    expected, found = whole(config), seen(config, tmp_path / "run")
    length = norm(expected)
    assert length > 1.0, "nothing would have to be clipped"
    assert norm(found) == pytest.approx(0.5, rel=1e-4)
    assert_near(found, {name: gradient * (0.5 / length) for name, gradient in expected.items()})


@pytest.mark.usefixtures("plain_descent")
def test_a_short_gradient_is_left_as_it_is(drives: Path, tmp_path: Path) -> None:
    config = one_step(drives, 1e6, 2)
    expected, found = whole(config), seen(config, tmp_path / "run")
    assert norm(expected) < 1e6, "something would have to be clipped"
    assert_near(found, expected)


def test_the_teacher_follows_after_its_tensors_have_moved(drives: Path) -> None:
    from fate.training.module import TrainingModule

    config = small_config(drives)
    parts = build(config)
    module = TrainingModule(parts.detector, parts.strategy, config)
    module.prepare("cpu")
    module.follow(0.5)
    module.double()  # other tensors in the places of buffers
    module.prepare("cpu")
    with torch.no_grad():
        for value in module.student.state_dict().values():
            value.add_(1)
    module.follow(0.0)
    for name, value in module.student.state_dict().items():
        assert torch.equal(module.teacher.state_dict()[name], value), name
