"""Backbone and neck of a training step as CUDA graphs.

With a small detector the GPU computes for 20 ms a step, but Python needs 50 ms to launch its thousand kernels. The
shapes of backbone and neck are the same in every step, because they process all T · B windows at once. So their forward
and backward passes are captured once for each shape and replayed with one call. Encoder, head and losses have changing
shapes and run without graphs. Weights and running statistics are read and written in place.

``torch.cuda.make_graphed_callables`` takes the same time, but its warm-up changes running statistics, and a capture
fails if another thread allocates pinned memory meanwhile, as the data loader does (measurements: docs, Performance).
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

#: Runs before a capture, in which kernels are compiled and algorithms are chosen.
WARM_UP = 3
#: Number of captured shapes; further ones run without graphs. The clips of the teacher differ in length.
MAX_GRAPHS = 24


class RecordedFeatures:
    """``detector.features`` as CUDA graphs, on one GPU, for weights whose storage does not change.

    The next call overwrites the returned features and, unless ``copy_gradients``, the gradients of weights: set it if
    gradients of several batches are accumulated. The returned state has no gradient; training detaches it anyway.
    """

    def __init__(self, detector: Detector, copy_gradients: bool = False) -> None:
        self.detector, self.copy_gradients = detector, copy_gradients
        self._recorded: dict[tuple[Any, ...], _Recorded] = {}
        self._pool: Any = None
        self._zero_states: dict[int, State] = {}  # by batch size
        self._room = _Room()

    def __call__(
        self, images: Tensor, memory: State = None, steps: int = 1, step_scale: float | Tensor = 1.0
    ) -> tuple[list[Tensor], State]:
        """Same arguments and results as ``Detector.features``: images [T · B, C, H, W] to feature maps and state."""
        known = step_scale if isinstance(step_scale, float) else None
        grad = torch.is_grad_enabled()
        key = (tuple(images.shape), images.dtype, images.requires_grad and grad, steps, known, grad)
        if key not in self._recorded and len(self._recorded) >= MAX_GRAPHS:
            return self.detector.features(images, memory, steps, step_scale)
        before = self._zero_state(images[: len(images) // steps]) if memory is None else memory
        inputs = [images, *states.tensors(before)]
        if isinstance(step_scale, Tensor):
            inputs.append(step_scale)
        if key not in self._recorded:
            self._pool = torch.cuda.graph_pool_handle() if self._pool is None else self._pool
            own = self._room.like(inputs)
            self._recorded[key] = _record(self.detector, own, before, steps, known, self._pool)
        recorded = self._recorded[key]
        found = _Replayed.apply(  # type: ignore[no-untyped-call]
            recorded, self.copy_gradients, len(inputs), *inputs, *recorded.weights
        )
        parts = found[recorded.levels :]
        return list(found[: recorded.levels]), states.rebuilt(before, [part.clone() for part in parts])

    def _zero_state(self, images: Tensor) -> State:
        """The state of streams that begin: zeros, in the shapes that one window of each returns."""
        batch_size = len(images)
        if batch_size not in self._zero_states:
            # without the autocast cache: weights that are cast here have no gradient
            with torch.no_grad(), _restore_buffers(self.detector), _autocast_without_cache():
                _, after = self.detector.features(images.detach())
            self._zero_states[batch_size] = states.mapped(torch.zeros_like, after)
        return self._zero_states[batch_size]


@contextmanager
def _restore_buffers(detector: Detector) -> Iterator[None]:
    """Restore running statistics and the random generator after the block, also if it fails."""
    kept = [(buffer, buffer.clone()) for buffer in detector.buffers()]
    device = next(detector.parameters()).device
    generator = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
        if device.type == "cuda":
            torch.cuda.set_rng_state(generator, device)
        else:
            torch.set_rng_state(generator)


def _autocast_without_cache() -> torch.autocast:
    """The current autocast settings without the cache of cast weights: a graph must cast them itself."""
    kind = torch.get_autocast_dtype("cuda")
    return torch.autocast("cuda", kind, torch.is_autocast_enabled("cuda"), cache_enabled=False)


class _Recorded(NamedTuple):
    """Two graphs and the tensors they read and write."""

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph | None  #: None without gradients
    inputs: list[Tensor]  #: images, state, lengths of steps
    weights: list[Tensor]  #: weights with gradients
    outputs: list[Tensor]  #: first the feature maps, then the state
    levels: int
    asked: list[Tensor]  #: gradients of the feature maps
    gradients: list[Tensor | None]  #: gradients of inputs and weights; None for those without


class _Room:
    """Memory for inputs. Only one graph is replayed at a time, so the inputs of all shapes share their memory.

    Each buffer has room for the largest input so far. Graphs captured before a larger one keep the old buffer; to bound
    their total size, buffers at least double.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, torch.dtype], Tensor] = {}

    def like(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Copies of tensors in the shared memory; they have gradients if the given ones do."""
        found = []
        for number, part in enumerate(given):
            buffer, size = self._buffers.get((number, part.dtype)), part.numel()
            if buffer is None or len(buffer) < size:
                length = size if buffer is None else max(size, 2 * len(buffer))
                buffer = self._buffers[number, part.dtype] = torch.empty(length, dtype=part.dtype, device=part.device)
            strides = torch.empty_like(part, device="meta").stride()  # a copy keeps channels last
            own = buffer[:size].as_strided(part.shape, strides).copy_(part.detach())
            found.append(own.requires_grad_(part.requires_grad and torch.is_grad_enabled()))
        return found


def leave_default_stream() -> None:
    """Use a new CUDA stream in this thread, because graphs cannot be captured on the default one.

    Weights and their accumulated gradients belong to the stream they were first used on.
    """
    if torch.cuda.current_stream() == torch.cuda.default_stream():
        torch.cuda.synchronize()
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


def return_to_default_stream() -> None:
    """Use the default stream again."""
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
        """Gradients outside of autocast, as in training."""
        learning = [part for part in (*inputs, *weights) if part.requires_grad]
        with torch.autocast("cuda", enabled=False):
            found = iter(torch.autograd.grad(levels, learning, asked, allow_unused=True))
        return [next(found) if part.requires_grad else None for part in (*inputs, *weights)]

    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph() if grad else None
    # other threads may use CUDA meanwhile: the one that loads data allocates pinned memory
    capture = partial(
        torch.cuda.graph, pool=pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
    )
    asked, gradients = list[Tensor](), list[Tensor | None]([None] * (len(inputs) + len(weights)))
    with _restore_buffers(detector):
        for _ in range(WARM_UP):
            with _autocast_without_cache():
                levels, after = run()
            if grad:
                back(levels, [torch.zeros_like(level) for level in levels])
        with _autocast_without_cache(), capture(forward):
            levels, after = run()
        if backward is not None:
            asked = [torch.zeros_like(level) for level in levels]
            with capture(backward):
                gradients = back(levels, asked)
    outputs = [part.detach() for part in (*levels, *after)]
    return _Recorded(forward, backward, inputs, weights, outputs, len(levels), asked, gradients)


class _Replayed(torch.autograd.Function):
    """Replay the graphs: inputs and weights to feature maps and state."""

    @staticmethod
    def forward(ctx: Any, recorded: _Recorded, copy_gradients: bool, inputs: int, *given: Tensor) -> tuple[Tensor, ...]:
        for own, new in zip(recorded.inputs, given[:inputs], strict=True):
            own.detach().copy_(new)
        recorded.forward.replay()
        ctx.recorded, ctx.copy_gradients = recorded, copy_gradients
        results = tuple(part.detach() for part in recorded.outputs)
        ctx.mark_non_differentiable(*results[recorded.levels :])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        recorded: _Recorded = ctx.recorded
        for own, new in zip(recorded.asked, gradients, strict=False):  # the state has no gradient
            own.copy_(new)
        if recorded.backward is not None:
            recorded.backward.replay()
        found = [None if part is None else part.detach() for part in recorded.gradients]
        if ctx.copy_gradients:
            found = [None if part is None else part.clone() for part in found]
        return None, None, None, *found
