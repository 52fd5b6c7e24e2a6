"""Two processes train together: nobody waits for ever when one of them has no box, no label or no event."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from fate.models.detector import Detector
from fate.models.outputs import Targets
from tests.encoding.conftest import Pair
from tests.models.small_detectors import batch_of, small_detector, some_targets, some_windows

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="this torch has no gloo to join processes")
PATIENCE_S = 240  # for both processes to start, on a busy machine
FAMILIES = ("s5", "evrt")  # with a YOLOX and with a DETR head
Labels = list[Targets | None]
#: What each of the two has to learn from in a clip of two windows.
CASES: dict[str, tuple[Labels, Labels]] = {
    "both have boxes": ([some_targets(2), some_targets(3)], [None, some_targets(1)]),
    "the second has no box": ([None, some_targets(2)], [some_targets(0), some_targets(0)]),
    "the second has no label": ([None, some_targets(2)], [None, None]),
    "the first has no label": ([None, None], [some_targets(1), None]),
    "nobody has a label": ([None, None], [None, None]),
}


@pytest.mark.slow
def test_two_processes_agree_on_every_gradient(tmp_path: Path) -> None:
    context = multiprocessing.spawn(learn, (str(tmp_path),), nprocs=2, join=False)
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not context.join(timeout=1):  # raises what a process raised
            assert time.monotonic() < deadline, "the processes wait for each other"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    for rank in range(2):
        done = (tmp_path / f"done{rank}").read_text().splitlines()
        assert done == [f"{family}: {name}" for family in FAMILIES for name in CASES]


def learn(rank: int, folder: str) -> None:
    """What each process does; ``rank`` is its number."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=PATIENCE_S / 2),
    )
    done = Path(folder) / f"done{rank}"
    for family in FAMILIES:
        for name, case in CASES.items():
            two_steps(family, rank, case[rank], without_events=name == "nobody has a label" and rank == 1)
            with done.open("a") as file:
                file.write(f"{family}: {name}\n")
    distributed.destroy_process_group()


def two_steps(family: str, rank: int, targets: Labels, without_events: bool) -> None:
    """Joined gradients are those averaged by hand; where one was missing, the second step would fail."""
    detector = small_detector(family).train()
    joined = DistributedDataParallel(small_detector(family).train())
    state = None
    for number in range(2):
        pairs = some_windows(2, seed=10 * number + rank)
        if without_events:
            pairs = [(window, events[:0]) for window, events in pairs]
        gradients, state = gradients_of(joined, pairs, state, targets, seed=rank)
        if number == 0:
            own, _ = gradients_of(detector, pairs, None, targets, seed=rank)
            distributed.all_reduce(own)
            torch.testing.assert_close(gradients, own / 2, rtol=1e-4, atol=1e-5)
        both = [torch.zeros_like(gradients) for _ in range(2)]
        distributed.all_gather(both, gradients)
        assert torch.equal(both[0], both[1])


def gradients_of(
    model: Detector | DistributedDataParallel, pairs: Sequence[Pair], state: object, targets: Labels, seed: int
) -> tuple[Tensor, object]:
    """All gradients of a step in one row, and the memory for the next step."""
    detector = cast(Detector, model.module if isinstance(model, DistributedDataParallel) else model)
    torch.manual_seed(seed)  # of the noise that a head trains with
    model.zero_grad()
    outputs, state = model(batch_of(pairs), state, steps=2, targets=targets)
    torch.stack(list(detector.loss(outputs, targets).values())).sum().backward()
    gradients = [cast(Tensor, parameter.grad).flatten() for parameter in detector.parameters()]
    return torch.cat(gradients), detector.detach(state)
