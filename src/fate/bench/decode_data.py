"""Made-up recordings for measuring decoders: the statistics of a sensor's readout, not uniform noise.

A sensor reads out row by row: events come in bursts of one time and one row, in neighbouring columns of mostly one
polarity (an edge), with single noise events in between. That decides how many vectors and repeated rows a file has,
and so how fast it decodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fate.events.events import Events, Sensor

SENSOR = Sensor(720, 1280)
PIECE = 500_000  # events made at a time
MEAN_RUN = 4.0  # events of one row readout on an edge
NOISE_SHARE = 0.3  # of the readouts: single events


def readout(num_events: int, rate_hz: float = 1e6, seed: int = 0, sensor: Sensor = SENSOR) -> Iterator[Events]:
    """About ``num_events`` events at ``rate_hz``, in pieces; the same for the same seed."""
    random = np.random.default_rng(seed)
    mean_length = NOISE_SHARE + (1 - NOISE_SHARE) * (1 + MEAN_RUN)
    start = 0.0
    left = num_events
    while left > 0:
        readouts = max(1, int(min(PIECE, left) / mean_length))
        edge = random.random(readouts) >= NOISE_SHARE
        length = np.where(edge, 1 + random.poisson(MEAN_RUN, readouts), 1)
        times = start + np.cumsum(random.exponential(mean_length / rate_hz * 1e6, readouts))
        start = float(times[-1])
        rows = random.integers(0, sensor.height, readouts)
        # edges drift over the sensor; noise is anywhere
        drift = (times / 1e6 * 200 + rows * 0.5) % sensor.width
        first = np.where(edge, drift + random.integers(-3, 4, readouts), random.integers(0, sensor.width, readouts))
        owner = np.repeat(np.arange(readouts), length)
        step = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
        x = np.clip(first[owner].astype(np.int64) + step, 0, sensor.width - 1)
        p = (random.random(readouts) < 0.5)[owner]
        yield Events(times.astype(np.int64)[owner], x, rows[owner], p.astype(np.uint8), sensor)
        left -= len(owner)
