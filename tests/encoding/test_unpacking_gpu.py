"""One kernel unpacks a batch as eight copies do."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="the kernel is written in Triton, which is not installed here")

from fate.encoding.batch import COLUMNS, EventBatch, copy_events
from fate.encoding.kernels.unpacking_gpu import unpack_events
from fate.events.events import Sensor
from tests.encoding.conftest import crowded_windows
from tests.gpu import DEVICE, needs_triton

pytestmark = needs_triton
SENSOR = Sensor(60, 76)


def room(windows: int, capacity: int) -> EventBatch:
    """A batch with other values in all columns."""
    batch = EventBatch.of_counts([capacity] + [0] * windows, SENSOR, DEVICE)
    for name in COLUMNS:
        getattr(batch, name).fill_(7)
    return batch


@pytest.mark.parametrize("windows", [1, 2, 5])
@pytest.mark.parametrize("events", [0, 1, 700, 3000])
def test_a_block_becomes_the_columns_of_its_batch(windows: int, events: int) -> None:
    batch = EventBatch.from_windows(crowded_windows(3, windows, events, SENSOR)).to(DEVICE)
    capacity = batch.num_events + 1500
    expected, found = room(windows, capacity), room(windows, capacity)
    copy_events(batch, expected)
    block = torch.full((len(batch.block) + 100,), 9, dtype=torch.uint8, device=DEVICE)
    block[: len(batch.block)] = batch.block
    unpack_events(block, found, windows)
    for name in COLUMNS:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert torch.equal(found.t_us[: batch.num_events], batch.t_us)
    assert torch.equal(found.offsets[: windows + 1], batch.offsets)
