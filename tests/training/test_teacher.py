"""The mean teacher moves as its formula says, running statistics too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fate.training.teacher import EmaUpdate, decay_at, make_teacher


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_parameters_and_buffers_move_by_hand_computed_amounts() -> None:
    student = net()
    teacher = make_teacher(student)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    with torch.no_grad():
        for value in student.state_dict().values():
            value.add_(1)
    for _ in range(2):
        EmaUpdate(teacher, student).step(0.9)
    for name, value in teacher.state_dict().items():
        moved = 1.0 if name.endswith("num_batches_tracked") else 1 - 0.9**2
        assert torch.allclose(value.double(), before[name].double() + moved), name


def test_with_gamma_zero_the_teacher_is_the_student_to_the_bit() -> None:
    student = net()
    teacher = make_teacher(student)
    student(torch.randn(8, 3))  # moves running statistics
    with torch.no_grad():
        student[0].weight.mul_(1.2345)
    EmaUpdate(teacher, student).step(0.0)
    for name, value in student.state_dict().items():
        assert torch.equal(teacher.state_dict()[name], value), name


def test_no_gradient_reaches_the_teacher_and_training_mode_neither() -> None:
    teacher = make_teacher(net().train())
    assert not teacher.training
    assert not any(weight.requires_grad for weight in teacher.parameters())


def test_a_warm_up_raises_the_decay_from_nothing() -> None:
    assert decay_at(0, 0.99, 100) == 0
    assert decay_at(100, 0.99, 100) == pytest.approx(0.495)
    assert decay_at(5, 0.99, 0) == 0.99
