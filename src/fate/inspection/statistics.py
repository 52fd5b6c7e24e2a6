"""Statistics of the events of one recording that matter to an encoder and a detector.

One pass over all events gives rates, polarities, repeats, bursts and silent pixels. Pillars (cells of 2 × 2 pixels) are
counted in windows of 5, 10 and 50 ms spread evenly over the recording, and in all windows of its busiest second.
Memory stays bounded by the size of the sensor.

**Bursts.** Some sensors (ATIS: the Gen1 dataset) repeat one change of light as a burst of events within microseconds.
*Merged* figures count a burst once: an event is left out if the same pixel fired with the same polarity less than 1 ms
before it. Only the time since the previous event counts, so a burst of any length is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.errors import FateError
from fate.formats.recording import Recording
from fate.progress import Progress, ignore, scale

BURST_US = 1000  # closer events of one pixel and polarity are one
WINDOWS_US = (5_000, 10_000, 50_000)
PILLAR = 2  # pixels along a side of a pillar
MAX_EVENTS = 32  # N: events that pillar encoding keeps of one pillar
MAX_PILLARS = 16_000  # P: pillars that it keeps of one window
SECOND_US = 1_000_000

_INTERVAL_BIN_US, _INTERVAL_BINS = 10, 2001  # the last bin holds all that is longer than 20 ms
_COUNT_BINS = 8192  # events in one pillar; the last bin holds all that are more
_MAX_PIXELS = 16 << 20
_MAX_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True)
class Occupancy:
    """How full the active pillars of many windows are. Shares lie in 0 to 1."""

    p50: float  #: events in an active pillar, median
    p90: float
    p99: float
    above_share: float  #: active pillars with more than N = 32 events
    lost_share: float  #: events beyond the first N of their pillar
    histogram: NDArray[np.int64]  #: [8192] active pillars by number of events, all windows together


@dataclass(frozen=True)
class PillarStatistics:
    """Pillars of 2 × 2 pixels in windows of one length."""

    window_us: int
    num_windows: int
    num_pillars: int  #: pillars of the sensor
    active_share: float  #: pillars with events, mean over windows
    active_max: int  #: most in one window
    windows_above_share: float  #: windows with more than P = 16 000 active pillars
    pillars_lost_share: float  #: active pillars beyond the first P of their window
    raw: Occupancy
    merged: Occupancy


@dataclass(frozen=True)
class EventStatistics:
    """The events of one recording. Shares lie in 0 to 1; merged figures count bursts once."""

    height: int
    width: int
    num_events: int
    start_us: int
    duration_s: float
    rate_hz: float
    merged_rate_hz: float
    busiest_hz: float  #: events in the busiest whole second from the start
    busiest_start_us: int
    on_share: float
    silent_share: float | None  #: pixels without an event in a second, mean over whole seconds; None without one
    duplicate_share: float  #: events that repeat an earlier (t, x, y, p)
    burst_share: float  #: events that belong to a burst of two or more
    burst_length: float  #: mean events in such a burst; 0 without bursts
    interval_p1_us: float  #: 1st percentile of the time between two events of a pixel
    merged_interval_p1_us: float  #: ``interval_p1_us`` with each burst as one event
    rate_per_second: NDArray[np.int64]  #: [seconds] events in each second from the start, the last one cut short
    pillars: dict[int, PillarStatistics]  #: by window length in µs, over the whole recording
    busiest_pillars: dict[int, PillarStatistics]  #: ``pillars`` in the busiest second


def event_statistics(recording: Recording, *, windows: int = 200, progress: Progress | None = None) -> EventStatistics:
    """Measure the events of a recording.

    Args:
        recording: open, with at least one event.
        windows: at most this many windows of each length, spread evenly over the recording.
        progress: called with the share that is done.
    """
    recording.refuse_empty()
    if windows < 1:
        raise FateError(f"{windows} windows were asked for; expected at least 1")
    report = progress or ignore
    per_second, fired, intervals, merged_intervals, totals = _count_events(recording, scale(report, 0.0, 0.5))
    height, width = recording.sensor
    start, end = recording.start_us, recording.end_us
    whole = max(1, (end - start + SECOND_US // 100) // SECOND_US)  # the last second may lack its last events
    busiest = int(np.argmax(per_second[:whole]))
    busiest_start = start + busiest * SECOND_US
    duration = (end - start) / 1e6
    total = int(per_second.sum())
    on, repeats, followers, bursts = totals.tolist()
    pillars: dict[int, PillarStatistics] = {}
    busy: dict[int, PillarStatistics] = {}
    spans = ((pillars, start, end), (busy, busiest_start, min(busiest_start + SECOND_US, end)))
    for step, (length, (found, first, last)) in enumerate(product(WINDOWS_US, spans), 1):
        found[length] = pillar_statistics(recording, spread(first, last, length, windows), length)
        report(0.5 + 0.5 * step / (2 * len(WINDOWS_US)))
    return EventStatistics(
        height=height,
        width=width,
        num_events=total,
        start_us=start,
        duration_s=duration,
        rate_hz=total / duration,
        merged_rate_hz=(total - followers) / duration,
        busiest_hz=float(per_second[busiest]) / min(1.0, duration),
        busiest_start_us=busiest_start,
        on_share=on / total,
        silent_share=None if duration < 0.99 else 1.0 - float(fired[:whole].mean()) / (height * width),
        duplicate_share=repeats / total,
        burst_share=(followers + bursts) / total,
        burst_length=(followers + bursts) / bursts if bursts else 0.0,
        interval_p1_us=_quantile(intervals, 0.01) * _INTERVAL_BIN_US,
        merged_interval_p1_us=_quantile(merged_intervals, 0.01) * _INTERVAL_BIN_US,
        rate_per_second=per_second,
        pillars=pillars,
        busiest_pillars=busy,
    )


def spread(start_us: int, end_us: int, length_us: int, count: int) -> list[int]:
    """Starts of at most ``count`` windows in ``[start_us, end_us)``: adjacent if all fit, else evenly spread.

    A span shorter than one window gives one window that reaches beyond it.
    """
    fitting = max(1, (end_us - start_us) // length_us)
    if fitting <= count:
        return [start_us + index * length_us for index in range(fitting)]
    room = end_us - start_us - length_us
    if count == 1:
        return [start_us + room // 2]
    return [start_us + index * room // (count - 1) for index in range(count)]


def pillar_statistics(recording: Recording, starts: list[int], length_us: int) -> PillarStatistics:
    """Pillars in the windows ``[start, start + length_us)``."""
    height, width = recording.sensor
    cells = (-(-height // PILLAR), -(-width // PILLAR))
    last = np.full((height, width, 2), -2 * BURST_US, np.int64)
    counts = np.zeros((2, *cells), np.int64)
    histograms = np.zeros((2, _COUNT_BINS), np.int64)
    lost = np.zeros(2, np.int64)
    active = np.zeros(len(starts), np.int64)
    events_seen = np.zeros(2, np.int64)
    for index, start in enumerate(starts):
        events = recording.read(start - BURST_US, start + length_us)  # earlier events tell whether a burst continues
        first = int(events.t_us.searchsorted(start))
        columns = (events.t_us - (start - BURST_US), events.x, events.y, events.p)
        active[index] = _count_pillars(*columns, first, last, counts, histograms, lost, events_seen)
    beyond = np.maximum(active - MAX_PILLARS, 0)
    raw, merged = (
        Occupancy(
            p50=_quantile(histogram, 0.50),
            p90=_quantile(histogram, 0.90),
            p99=_quantile(histogram, 0.99),
            above_share=float(histogram[MAX_EVENTS + 1 :].sum()) / max(1, int(histogram.sum())),
            lost_share=int(lost[kind]) / max(1, int(events_seen[kind])),
            histogram=histogram,
        )
        for kind, histogram in enumerate(histograms)
    )
    return PillarStatistics(
        window_us=length_us,
        num_windows=len(starts),
        num_pillars=cells[0] * cells[1],
        active_share=float(active.mean()) / (cells[0] * cells[1]),
        active_max=int(active.max()),
        windows_above_share=float(np.count_nonzero(beyond)) / len(starts),
        pillars_lost_share=float(beyond.sum()) / max(1, int(active.sum())),
        raw=raw,
        merged=merged,
    )


def _quantile(histogram: NDArray[np.int64], share: float) -> float:
    """The smallest bin with at least ``share`` of all at or below it; 0 if the histogram is empty."""
    total = int(histogram.sum())
    return float(np.searchsorted(np.cumsum(histogram), share * total)) if total else 0.0


def _count_events(recording: Recording, report: Progress) -> tuple[NDArray[np.int64], ...]:
    """Counts of one pass over all events.

    Returns:
        Events in each second, pixels with an event in each second, histograms of the intervals between events of a
        pixel, of all events and with bursts merged, and four totals: ON events, exact repeats, events that merging
        leaves out, bursts of two or more.
    """
    height, width = recording.sensor
    if height * width > _MAX_PIXELS:
        raise FateError(
            f"{recording.path}: a sensor of {recording.sensor} is too large to keep a map of its pixels; pass the true"
            " size with sensor=(height, width)"
        )
    start = recording.start_us
    seconds = -(-(recording.end_us - start) // SECOND_US)
    if seconds > _MAX_SECONDS:
        raise FateError(
            f"{recording.path}: its events span {seconds / 86_400:.0f} days, so their times jump somewhere; cut out the"
            " part that is good with fate convert --start --end"
        )
    counts = tuple(np.zeros(n, np.int64) for n in (seconds, seconds, _INTERVAL_BINS, _INTERVAL_BINS, 4))
    never = -2 * BURST_US
    maps = (
        np.full((height, width, 2), never, np.int64),  # time of the last event of each polarity
        np.zeros((height, width, 2), np.bool_),  # whether it was part of a burst
        np.full((height, width), never, np.int64),  # time of the last event that merging keeps
        np.full((height, width), -1, np.int32),  # last second with an event
    )
    done = 0
    for events in recording.chunks():
        _walk_events(events.t_us - start, events.x, events.y, events.p, maps, counts)
        done += len(events)
        report(done / recording.num_events)
    return counts


@compiled
def _walk_events(t: Any, x: Any, y: Any, p: Any, maps: Any, found: Any) -> None:
    """Add one chunk to the counts ``found``; ``t`` counts from the first event, maps are kept between chunks."""
    last, in_burst, last_kept, last_second = maps
    per_second, fired_per_second, intervals, merged_intervals, totals = found
    for i in range(t.shape[0]):
        now, row, column, polarity = t[i], y[i], x[i], p[i]
        second = now // SECOND_US
        per_second[second] += 1
        if last_second[row, column] != second:
            last_second[row, column] = second
            fired_per_second[second] += 1
        totals[0] += polarity
        before = last[row, column, polarity]
        if before == now:
            totals[1] += 1
        any_before = max(before, last[row, column, 1 - polarity])
        if any_before >= 0:
            intervals[min((now - any_before) // _INTERVAL_BIN_US, _INTERVAL_BINS - 1)] += 1
        if now - before < BURST_US:
            totals[2] += 1
            if not in_burst[row, column, polarity]:
                totals[3] += 1
            in_burst[row, column, polarity] = True
        else:
            in_burst[row, column, polarity] = False
            kept = last_kept[row, column]
            if kept >= 0:
                merged_intervals[min((now - kept) // _INTERVAL_BIN_US, _INTERVAL_BINS - 1)] += 1
            last_kept[row, column] = now
        last[row, column, polarity] = now


@compiled
def _count_pillars(
    t: Any, x: Any, y: Any, p: Any, first: int, last: Any, counts: Any, histograms: Any, lost: Any, seen: Any
) -> int:
    """Count one window, whose events start at index ``first``; earlier ones only tell whether a burst goes on.

    Row 0 of ``counts`` [2, rows, columns], ``histograms``, ``lost`` and ``seen`` is raw, row 1 merged. ``last`` and
    ``counts`` are left as they were found, so that the next window need not clear them.
    """
    for i in range(t.shape[0]):
        follows = t[i] - last[y[i], x[i], p[i]] < BURST_US
        last[y[i], x[i], p[i]] = t[i]
        if i >= first:
            counts[0, y[i] // PILLAR, x[i] // PILLAR] += 1
            if not follows:
                counts[1, y[i] // PILLAR, x[i] // PILLAR] += 1
    active = 0
    for i in range(t.shape[0]):
        last[y[i], x[i], p[i]] = -2 * BURST_US
        row, column = y[i] // PILLAR, x[i] // PILLAR
        if counts[0, row, column]:
            active += 1
        for kind in range(2):
            number = counts[kind, row, column]
            if number:
                seen[kind] += number
                lost[kind] += max(0, number - MAX_EVENTS)
                histograms[kind, min(number, histograms.shape[1] - 1)] += 1
                counts[kind, row, column] = 0
    return active
