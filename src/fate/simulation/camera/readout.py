"""What the readout of a sensor does to its events: coarse time stamps, and losses above a rate."""

from __future__ import annotations

import numpy as np

from fate.events.events import Events

#: The rate is limited in each slice of time of this many µs.
SLICE_US = 1000


class Readout:
    """The readout of one recording, fed piece by piece; the last slice of a piece waits for the next piece."""

    def __init__(self, most: int, step_us: int, seed: int) -> None:
        """Args:
        most: events that a slice can hold; others are lost, at random.
        step_us: time stamps are rounded down to multiples of this.
        seed: of the recording.
        """
        self.most, self.step_us, self.seed = most, step_us, seed
        self._held: Events | None = None

    def __call__(self, events: Events, last: bool) -> Events:
        """The next events that leave the sensor, in time order; ``last`` says that no others come."""
        if self._held is not None:
            events = Events.concatenate([self._held, events])
        if not len(events):
            return events
        numbers = np.arange(events.t_us[0] // SLICE_US, events.t_us[-1] // SLICE_US + 1)
        first = np.searchsorted(events.t_us, numbers * SLICE_US)  # of each slice
        complete = len(events) if last else int(first[-1])
        self._held, events = events[complete:], events[:complete]
        count = np.diff(np.append(first, complete))
        t_us, x, y, p = events.t_us, events.x, events.y, events.p
        if count.max() > self.most:
            kept = np.ones(len(events), np.bool_)
            for each in np.flatnonzero(count > self.most):
                random = np.random.default_rng([self.seed, 0x4EAD, int(numbers[each])])
                lost = random.choice(int(count[each]), int(count[each]) - self.most, replace=False, shuffle=False)
                kept[first[each] + lost] = False
            t_us, x, y, p = t_us[kept], x[kept], y[kept], p[kept]
        if self.step_us > 1:
            t_us = t_us // self.step_us * self.step_us
        return Events.trusted(t_us, x, y, p, events.sensor)
