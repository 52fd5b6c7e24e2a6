"""Backbone and neck of a training step as CUDA graphs.

A small detector makes a GPU work for 20 ms a step, and Python takes 50 ms to tell it what to do: some thousand kernels,
forward and back. Their shapes are the same in every step, for they see all T · B windows at once. So they are recorded,
once for each shape, forward and backward, and started with one call each; encoder, head and losses, whose shapes
change, run as they are. Weights and running statistics are read and written where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fate.models import state as states
from fate.models.detector import Detector
from fate.models.state import State

#: Runs before a recording: kernels are compiled and algorithms chosen, which no graph can hold.
WARM_UP = 3
#: Shapes that are recorded at most; others run as they are. A teacher's clips differ in length.
MOST = 24


class RecordedFeatures:
    """``detector.features``, with graphs; of one GPU, for weights that stay where they are.

    What comes back lies in memory of the graphs, and is overwritten by the next call; so are gradients of weights,
    unless they are read before. Memory handed back has no gradient, as training cuts it anyway.
    """

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self._recorded: dict[tuple[Any, ...], _Recorded] = {}
        self._pool: Any = None
        self._begun: dict[int, State] = {}  # by lanes: zeros
        self._room = _Room()

    def __call__(
        self, images: Tensor, memory: State = None, steps: int = 1, step_scale: float | Tensor = 1.0
    ) -> tuple[list[Tensor], State]:
        """As of ``Detector.features``."""
        known = step_scale if isinstance(step_scale, float) else None
        grad = torch.is_grad_enabled()
        key = (tuple(images.shape), images.dtype, images.requires_grad and grad, steps, known, grad)
        if key not in self._recorded and len(self._recorded) >= MOST:
            return self.detector.features(images, memory, steps, step_scale)
        before = self._beginning(images[: len(images) // steps]) if memory is None else memory
        inputs = [images, *states.tensors(before)]
        if isinstance(step_scale, Tensor):
            inputs.append(step_scale)
        if key not in self._recorded:
            self._pool = torch.cuda.graph_pool_handle() if self._pool is None else self._pool
            own = self._room.like(inputs)
            self._recorded[key] = _record(self.detector, own, before, steps, known, self._pool)
        recorded = self._recorded[key]
        found = _Replayed.apply(recorded, len(inputs), *inputs, *recorded.weights)  # type: ignore[no-untyped-call]
        parts = found[recorded.levels :]
        return list(found[: recorded.levels]), states.rebuilt(before, [part.clone() for part in parts])

    def _beginning(self, images: Tensor) -> State:
        """The memory of lanes that begin: zeros, of the shapes that one window each leaves behind."""
        lanes = len(images)
        if lanes not in self._begun:
            with torch.no_grad(), _undone(self.detector), _as_now():  # weights that are cast here have no gradient
                _, after = self.detector.features(images.detach())
            self._begun[lanes] = states.mapped(torch.zeros_like, after)
        return self._begun[lanes]


@contextmanager
def _undone(detector: Detector) -> Iterator[None]:
    """Runs that do not count: running statistics and the generator are put back."""
    kept = [(buffer, buffer.clone()) for buffer in detector.buffers()]
    device = next(detector.parameters()).device
    generator = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    yield
    with torch.no_grad():
        for buffer, value in kept:
            buffer.copy_(value)
    if device.type == "cuda":
        torch.cuda.set_rng_state(generator, device)
    else:
        torch.set_rng_state(generator)


def _as_now() -> torch.autocast:
    """The precision of the moment, without memory of weights that were cast: a graph must cast them itself."""
    kind = torch.get_autocast_dtype("cuda")
    return torch.autocast("cuda", kind, torch.is_autocast_enabled("cuda"), cache_enabled=False)


class _Recorded(NamedTuple):
    """Two graphs, and the memory they read and write."""

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph | None  #: None where nothing is learned
    inputs: list[Tensor]  #: images, memory, lengths of steps
    weights: list[Tensor]  #: that learn
    outputs: list[Tensor]  #: first the levels, then memory
    levels: int
    asked: list[Tensor]  #: gradients of the levels
    gradients: list[Tensor | None]  #: of inputs and weights; None where there is none


class _Room:
    """Memory for inputs. Only one recording is replayed at a time, so those of all shapes lie in the same place.

    Each place has room for the largest so far. What was recorded before a larger one came keeps its own: to bound how
    much that is, places at least double.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, torch.dtype], Tensor] = {}

    def like(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Copies, in shared memory; each learns where the one given does."""
        found = []
        for number, part in enumerate(given):
            place, size = self._places.get((number, part.dtype)), part.numel()
            if place is None or len(place) < size:
                length = size if place is None else max(size, 2 * len(place))
                place = self._places[number, part.dtype] = torch.empty(length, dtype=part.dtype, device=part.device)
            own = place[:size].as_strided(part.shape, _dense_strides(part)).copy_(part.detach())
            found.append(own.requires_grad_(part.requires_grad and torch.is_grad_enabled()))
        return found


def _dense_strides(given: Tensor) -> tuple[int, ...]:
    """Those of a copy: channels last where the tensor is."""
    return torch.empty_like(given, device="meta").stride()


def leave_default_stream() -> None:
    """From here on, this thread works on a stream of its own: on the default one nothing can be recorded.

    Weights, and the places where their gradients are added up, belong to the stream they were first used on.
    """
    if torch.cuda.current_stream() == torch.cuda.default_stream():
        torch.cuda.synchronize()
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


def return_to_default_stream() -> None:
    """When all is done."""
    torch.cuda.synchronize()
    torch.cuda.set_stream(torch.cuda.default_stream())


def _record(
    detector: Detector, inputs: list[Tensor], before: State, steps: int, known: float | None, pool: Any
) -> _Recorded:
    grad = torch.is_grad_enabled()
    weights: list[Tensor] = [weight for weight in detector.parameters() if weight.requires_grad] if grad else []

    def run() -> tuple[list[Tensor], list[Tensor]]:
        memory = inputs[1:] if known is not None else inputs[1:-1]
        levels, after = detector.features(
            inputs[0], states.rebuilt(before, memory), steps, inputs[-1] if known is None else known
        )
        return levels, [part.detach() for part in states.tensors(after)]

    def back(levels: Sequence[Tensor], asked: Sequence[Tensor]) -> list[Tensor | None]:
        """Outside of autocast, as training goes back: what was computed in 32 bits stays so."""
        learning = [part for part in (*inputs, *weights) if part.requires_grad]
        with torch.autocast("cuda", enabled=False):
            found = iter(torch.autograd.grad(levels, learning, asked, allow_unused=True))
        return [next(found) if part.requires_grad else None for part in (*inputs, *weights)]

    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph() if grad else None
    # other threads may go on meanwhile: the one that loads takes page-locked memory
    capture = partial(
        torch.cuda.graph, pool=pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
    )
    asked, gradients = list[Tensor](), list[Tensor | None]([None] * (len(inputs) + len(weights)))
    with _undone(detector):
        for _ in range(WARM_UP):
            with _as_now():
                levels, after = run()
            if grad:
                back(levels, [torch.zeros_like(level) for level in levels])
        with _as_now(), capture(forward):
            levels, after = run()
        if backward is not None:
            asked = [torch.zeros_like(level) for level in levels]
            with capture(backward):
                gradients = back(levels, asked)
    outputs = [part.detach() for part in (*levels, *after)]
    return _Recorded(forward, backward, inputs, weights, outputs, len(levels), asked, gradients)


class _Replayed(torch.autograd.Function):
    """Inputs and weights in, levels and memory out."""

    @staticmethod
    def forward(ctx: Any, recorded: _Recorded, inputs: int, *given: Tensor) -> tuple[Tensor, ...]:
        for own, new in zip(recorded.inputs, given[:inputs], strict=True):
            own.detach().copy_(new)
        recorded.forward.replay()
        ctx.recorded = recorded
        results = tuple(part.detach() for part in recorded.outputs)
        ctx.mark_non_differentiable(*results[recorded.levels :])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        recorded: _Recorded = ctx.recorded
        for own, new in zip(recorded.asked, gradients, strict=False):  # none is asked of memory
            own.copy_(new)
        if recorded.backward is not None:
            recorded.backward.replay()
        return None, None, *(None if part is None else part.detach() for part in recorded.gradients)
