"""What the benchmarks share: times of single calls, memory of a fresh process, and errors of that process."""

from __future__ import annotations

import math
import sys

import pytest

from fate.bench.encode import peak_of_forward
from fate.bench.harness import quantiles_ms, run_in_process, time_repeated
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window


def test_every_counted_call_has_its_time() -> None:
    calls = []
    times = time_repeated(lambda: calls.append(1), "cpu")
    assert len(times) == len(calls) - 2
    assert all(seconds >= 0 for seconds in times)


def test_quantiles_are_milliseconds() -> None:
    p50, p99 = quantiles_ms([0.001] * 99 + [0.101])
    assert p50 == pytest.approx(1)
    assert 1 < p99 < 101


def test_a_function_runs_in_another_process_and_its_error_comes_back() -> None:
    assert run_in_process(math.hypot, 3, 4) == 5
    with pytest.raises(FateError, match="math domain error|nonnegative"):
        run_in_process(math.sqrt, -1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a part of a run")
def test_memory_of_an_encoder_is_measured_in_a_fresh_process() -> None:
    batch = EventBatch.from_windows([(Window(0, 10), Events([1], [1], [1], [1], sensor=(240, 304)))])
    peak = run_in_process(peak_of_forward, "histogram", batch.block.numpy(), batch.counts, batch.sensor, 1)
    assert 0 < peak < 500
