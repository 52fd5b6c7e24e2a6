"""Chooses the length of windows by the accuracy that weights state, and a rate that this machine sustains.

A detector sees more in a window of 50 ms than in one of 5 ms, so at high rates overlapping windows are often more
accurate. Which length is best is measured (``fate evaluate --record``) and kept in the header of the weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.events.window import Window, window_us
from fate.inference.stream_types import Accuracy, StreamOptions
from fate.inference.window_detector import WindowDetector
from fate.inference.windowing import ClosedWindow
from fate.threads import leave_a_processor

#: Rates that "auto" chooses from, best first.
AUTO_RATES = (200.0, 100.0, 80.0, 50.0, 40.0, 25.0, 20.0, 10.0, 5.0)
#: Points of AP50:95 for which longer windows are worth their cost.
WORTH = 0.5
#: What was measured counts for windows and rates that differ by no more than this factor.
SIMILAR = 2.0
#: Share of the time between two windows that a detector may take on a GPU, so that busy windows are in time too; and on
#: a CPU, where the page, its browser and the source slow it down as well: on two x86 cores, fate-s-nano took
#: 15 ms alone, and beside a browser 22 ms (median) and 38 ms (99 of 100 windows).
GPU_SHARE, CPU_SHARE = 0.7, 0.45
#: Events of a busy street, per pixel and second, with which the time of a window is measured.
EVENT_RATE = 10.0
#: Windows that are timed, and the seconds after which no more of them are.
TIMED, TIMED_S = 30, 0.15
#: Share of a measured time that another measurement surely reaches.
NEARLY = 0.9
#: If the first windows all take too long, no more of them are timed.
FEW = 4


class TimedDetector(Protocol):
    """What is needed of a :class:`fate.inference.stream.StreamingDetector` to choose its windows."""

    accuracy: tuple[Accuracy, ...]
    device: str | torch.device

    def window_detector(self, sensor: Sequence[int], options: StreamOptions) -> WindowDetector: ...


class Timing(NamedTuple):
    """The rate and the windows of a stream."""

    hz: float
    window_us: int
    reason: str = ""  #: a sentence, if something was chosen


def choose_timing(
    detector: TimedDetector,
    sensor: Sequence[int],
    hz: float | str = 200.0,
    length_us: int | None = None,
    in_time: bool = False,
) -> Timing:
    """The rate and the length of windows for events of a sensor.

    Args:
        detector: its weights may state their accuracy with several lengths of windows.
        sensor: (height, width).
        hz: windows per second, or "auto" for the highest rate that this machine sustains.
        length_us: length of windows; None to choose the most accurate one.
        in_time: whether windows must be detected in time, as for a camera. "auto" implies it.
    """

    took_ms = _WindowTimes(detector, Sensor.of(sensor))
    budget_ms = took_ms.budget_ms
    if hz != "auto":
        if isinstance(hz, str):
            raise FateError(f"hz={hz!r} was given; expected a number from 1 to 1000, or 'auto'")
        return _choose_window(detector.accuracy, hz, length_us, took_ms if in_time else None)
    # windows of a given length would leave gaps at rates that are too low
    rates = [rate for rate in AUTO_RATES if length_us is None or window_us(rate) <= length_us] or AUTO_RATES[-1:]
    needed_ms = 0.0
    for rate in rates:
        if budget_ms(rate) < NEARLY * needed_ms and rate != rates[-1]:
            continue  # windows of lower rates hold more events, so they take no less time
        needed_ms = took_ms(rate, window_us(rate) if length_us is None else length_us)
        if needed_ms <= budget_ms(rate):
            break
    chosen = _choose_window(detector.accuracy, rate, length_us, took_ms)
    took = took_ms(chosen.hz, chosen.window_us)
    text = f"{chosen.hz:g} Hz: a window takes {took:.2g} ms on this machine"
    if took > budget_ms(chosen.hz):
        text += f", too long even for this rate; {budget_ms(chosen.hz):.2g} ms are needed"
    return chosen._replace(reason="; ".join(filter(None, [text, chosen.reason])))


def choose_most_accurate_window(card: Sequence[Accuracy], hz: float) -> int:
    """The length of windows, µs, that ``fate detect`` uses for recordings at a rate."""
    return _choose_window(card, hz, None, None).window_us


def _choose_window(card: Sequence[Accuracy], hz: float, length_us: int | None, took_ms: _WindowTimes | None) -> Timing:
    """The shortest of the most accurate lengths at a rate; with ``took_ms``, of those that are in time."""
    hop = window_us(hz)
    given, longest = max(hop, length_us or 0), max((entry.window_us for entry in card), default=None)
    if longest is not None and given > longest:
        reason = (
            f"windows of {given / 1000:g} ms are longer than any that was measured with these weights, up to"
            f" {longest / 1000:g} ms: expect fewer correct boxes, or use {1e6 / longest:g} Hz or more"
        )
        return Timing(hz, given, reason)
    if length_us is not None:
        return Timing(hz, length_us)
    known = dict(_accuracy_at(card, hz))
    if not known.keys() - {hop}:
        return Timing(hz, hop)
    fitting = {hop: known[hop]} if hop in known else {}
    for length, ap in known.items():
        is_better = hop not in known or ap > known[hop] + WORTH  # the time of others need not be measured
        if is_better and (took_ms is None or took_ms(hz, length) <= took_ms.budget_ms(hz)):
            fitting[length] = ap
    if not fitting:
        return Timing(hz, hop, f"windows of {hop / 1000:g} ms; longer ones take too long on this machine")
    best = max(fitting.values())
    length = min(length for length, ap in fitting.items() if ap >= best - WORTH)
    others = [f", {ap:.1f} with {each / 1000:g} ms" for each, ap in sorted(known.items()) if each != length]
    reason = f"windows of {length / 1000:g} ms, one every {hop / 1000:g} ms"
    slow = "; longer ones take too long on this machine" if max(known.values()) > best + WORTH else ""
    return Timing(hz, length, f"{reason} (AP50:95 {known[length]:.1f} by the weights' header{''.join(others)}{slow})")


def _accuracy_at(card: Sequence[Accuracy], hz: float) -> Iterator[tuple[int, float]]:
    """The lengths of windows that are possible at a rate, and their AP at the nearest rate that was measured.

    A length is left out if nothing similar was measured: short windows can be much worse than long ones, and
    overlapping ones at a high rate worse than those at a low rate.
    """
    hop = window_us(hz)
    nearest = sorted(card, key=lambda entry: -abs(math.log(entry.hz / hz)))
    for entry in nearest:  # the nearest comes last and replaces the others
        if entry.window_us == window_us(entry.hz) and 1 / SIMILAR <= entry.window_us / hop <= SIMILAR:
            yield hop, entry.ap
        if entry.window_us > hop and hz <= SIMILAR * entry.hz:
            yield entry.window_us, entry.ap


class _WindowTimes:
    """``ms = took_ms(hz, length_us)``: the time of a window of random events, measured once for each pair."""

    def __init__(self, detector: TimedDetector, sensor: Sensor) -> None:
        self._detector, self._sensor = detector, sensor
        self._known: dict[tuple[float, int], float] = {}

    def __call__(self, hz: float, length_us: int) -> float:
        """The time that nine of ten windows do not exceed, in ms; the shortest one if that is too long for the rate."""
        if (hz, length_us) not in self._known:
            self._known[hz, length_us] = self._measure(StreamOptions(hz, length_us))
        return self._known[hz, length_us]

    def budget_ms(self, hz: float) -> float:
        """The time that a window may take at a rate."""
        is_gpu = torch.device(self._detector.device).type == "cuda"
        return (GPU_SHARE if is_gpu else CPU_SHARE) * 1000 / hz

    def _measure(self, options: StreamOptions) -> float:
        with leave_a_processor(self._detector.device):  # as in a live run
            return self._measure_alone(options)

    def _measure_alone(self, options: StreamOptions) -> float:
        detect = self._detector.window_detector(self._sensor, options)
        spent: list[float] = []
        for closed in self._random_windows(options):
            began = time.perf_counter()
            detect(closed)
            if closed.window.end_us >= options.length_us:  # the first windows are not full
                spent.append(time.perf_counter() - began)
            if len(spent) == FEW and 1000 * min(spent) > self.budget_ms(options.hz):
                return 1000 * min(spent)  # of so few windows, one that waited for a busy processor must not count
            if sum(spent) > TIMED_S and len(spent) >= 3:
                break
        return float(1000 * np.quantile(spent, 0.9))

    def _random_windows(self, options: StreamOptions) -> Iterator[ClosedWindow]:
        random, size, hop = np.random.default_rng(0), self._sensor, options.hop_us
        count = round(EVENT_RATE * size.height * size.width * hop / 1e6)
        for index in range(-(-options.length_us // hop) + TIMED):
            window = Window(index * hop, (index + 1) * hop)
            t_us = np.sort(random.integers(window.start_us, window.end_us, count))
            x, y = random.integers(0, size.width, count), random.integers(0, size.height, count)
            yield ClosedWindow(window, Events(t_us, x, y, random.integers(0, 2, count), size), "")
