"""What is remembered between windows: a tree of tensors with the streams first."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fate.errors import FateError
from fate.models import state as states
from fate.models.state import State

STREAMS = 4


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> State:
    """Any state of four streams: tensors and parts without memory, at any depth."""
    kind = draw(st.sampled_from(["tensor", "nothing", "tuple"] if depth else ["tensor", "nothing"]))
    if kind == "nothing":
        return None
    if kind == "tuple":
        return tuple(draw(st.lists(trees(depth - 1), max_size=3)))
    shape = (STREAMS, *draw(st.lists(st.integers(0, 3), max_size=3)))
    return torch.randn(shape, dtype=draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))) + 2


@given(trees())
def test_a_tree_taken_apart_and_put_together_is_the_same(tree: State) -> None:
    parts = list(states.tensors(tree))
    again = states.rebuilt(tree, parts)
    assert repr(again) == repr(tree)
    assert [id(part) for part in states.tensors(again)] == [id(part) for part in parts]


@given(trees(), st.lists(st.booleans(), min_size=STREAMS, max_size=STREAMS))
def test_reset_makes_zeros_of_the_chosen_streams_and_leaves_the_others(tree: State, chosen: list[bool]) -> None:
    mask = torch.tensor(chosen)
    before = states.mapped(Tensor.clone, tree)
    after = states.reset(tree, mask)
    for old, new, kept in zip(*map(states.tensors, (before, after, tree)), strict=True):
        assert new.dtype == old.dtype
        assert torch.equal(new[~mask], old[~mask])
        assert bool((new[mask] == 0).all())
        assert torch.equal(kept, old)  # the state that was given stays as it was


def test_reset_clears_numbers_that_are_not_finite() -> None:
    broken = (torch.full((2, 3), torch.nan), torch.full((2,), torch.inf))
    for part in states.tensors(states.reset(broken, torch.tensor([1, 0]))):  # any kind of truth value
        assert bool((part[0] == 0).all())
        assert not bool(part[1].isfinite().any())


def test_every_stream_of_no_state_begins() -> None:
    assert states.reset(None, torch.tensor([True])) is None
    assert states.detach(None) is None
    assert list(states.tensors(None)) == []


def test_detach_cuts_the_gradient_and_shares_the_numbers() -> None:
    source = torch.ones(2, 3, requires_grad=True)
    tree = (source * 2, (None, source * 3))
    cut = states.detach(tree)
    assert not any(part.requires_grad for part in states.tensors(cut))
    assert [a.data_ptr() for a in states.tensors(cut)] == [b.data_ptr() for b in states.tensors(tree)]
    assert cut[1][0] is None


@pytest.mark.parametrize("mask", [torch.tensor([True]), torch.tensor(True), torch.zeros(2, 1)])
def test_a_mask_that_does_not_fit_is_refused(mask: Tensor) -> None:
    with pytest.raises(FateError, match=r"a mask of shape .* for a state of 2 streams"):
        states.reset((torch.zeros(2, 3),), mask)


def test_other_things_in_a_state_are_refused() -> None:
    with pytest.raises(FateError, match="a state with a dict in it"):
        states.detach((torch.zeros(1), {"hidden": torch.zeros(1)}))
