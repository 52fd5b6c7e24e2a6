"""Filters that drop noise before the detector: background activity, hot pixels, flicker, and events that are too many.

    filters = EventFilters(["hot-pixels", "background:5ms"], sensor=(480, 640))
    clean = filters(events)                       # the next events of a stream, in pieces of any size
    filters.dropped                               # {"hot-pixels": 1204, "background:5ms": 5310}

A filter decides about each event from that event and earlier ones. Its state is kept from call to call, so the result
is the same however a stream is cut into pieces. Filters run in the given order, each on what the one before has left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.quantities import parse_amount, parse_duration, parse_roi
from fate.text import suggest_name

#: Time of a pixel without an event so far; less than any time minus any duration.
NEVER = np.iinfo(np.int64).min
#: Longest time that a filter takes, µs.
LONGEST_US = 60_000_000
#: A hot pixel has at least this many events per second while it is learned, and ``HOT_RATIO`` times as many as the
#: median of its neighbours. Measured in clips of six cameras: moving edges reach 3 times the median, hot pixels have
#: 25 to 1000 events per second beside neighbours that are silent.
HOT_PER_SECOND, HOT_RATIO = 25, 5
#: Periods inside the band after which a pixel flickers, and how many are counted at most; a period outside the band
#: takes one away, so that a single noise event does not end the flicker.
FLICKER_PERIODS, MOST_PERIODS = 3, 6
#: Length of the intervals in which the event rate is limited, µs.
RATE_INTERVAL_US = 1000
_NEIGHBOURS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]


class EventFilter:
    """The base of all filters: ``keep`` decides, and the state starts empty after ``reset``."""

    def __init__(self, sensor: Sequence[int]) -> None:
        self.sensor = Sensor.of(sensor)  #: (height, width)
        self.reset()

    def __call__(self, events: Events) -> Events:
        """The kept ones of the next events of a stream."""
        if events.sensor != self.sensor:
            raise FateError(f"events of a {events.sensor} sensor were given to a filter for a {self.sensor} one")
        return events.where(self.keep(events)) if len(events) else events

    def keep(self, events: Events) -> NDArray[np.bool_]:
        """[E] whether each of the next events is kept."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget all earlier events."""


class BackgroundActivity(EventFilter):
    """Drops an event if none of the 8 neighbouring pixels had an event in the last ``support_us`` µs.

    Edges move over many pixels, noise does not. Dropped events support their neighbours too; a pixel does not support
    itself, so a hot pixel is dropped as well.
    """

    def __init__(self, sensor: Sequence[int], support_us: int) -> None:
        self.support_us = _checked_duration(support_us)
        super().__init__(sensor)

    def keep(self, events: Events) -> NDArray[np.bool_]:
        return _supported(events.t_us, events.x, events.y, self.support_us, self._last)

    def reset(self) -> None:
        height, width = self.sensor
        self._last = np.full((height + 2, width + 2), NEVER, np.int64)  # with a border of pixels that are silent


class RefractoryPeriod(EventFilter):
    """Drops an event that follows the last kept event of its pixel within less than ``period_us`` µs."""

    def __init__(self, sensor: Sequence[int], period_us: int) -> None:
        self.period_us = _checked_duration(period_us)
        super().__init__(sensor)

    def keep(self, events: Events) -> NDArray[np.bool_]:
        return _rested(events.t_us, events.x, events.y, self.period_us, self._last)

    def reset(self) -> None:
        self._last = np.full(self.sensor, NEVER, np.int64)


class HotPixels(EventFilter):
    """Counts the events of each pixel in the first ``learning_us`` µs, and drops those of hot pixels afterwards.

    A pixel is hot if it has at least 25 events per second and more than 5 times as many as the median of its
    neighbours. Nothing is dropped while it learns, so a shorter stream stays as it is.
    """

    hot: NDArray[np.bool_] | None  #: [H, W] whether each pixel is hot; None while it learns
    _end_us: int | None

    def __init__(self, sensor: Sequence[int], learning_us: int = 1_000_000) -> None:
        self.learning_us = _checked_duration(learning_us)
        super().__init__(sensor)

    def keep(self, events: Events) -> NDArray[np.bool_]:
        if self.hot is not None:
            return ~self.hot[events.y, events.x]
        if self._end_us is None:
            self._end_us = int(events.t_us[0]) + self.learning_us
        known = int(events.t_us.searchsorted(self._end_us))
        np.add.at(self._counts, (events.y[:known], events.x[:known]), 1)
        if known == len(events):
            return np.ones(known, bool)
        self.hot = self._find_hot()
        return np.concatenate((np.ones(known, bool), ~self.hot[events.y[known:], events.x[known:]]))

    def reset(self) -> None:
        self._counts = np.zeros(self.sensor, np.int64)
        self._end_us = self.hot = None

    def _find_hot(self) -> NDArray[np.bool_]:
        hot = self._counts >= HOT_PER_SECOND * self.learning_us / 1e6
        y, x = np.nonzero(hot)
        padded = np.pad(self._counts, 1)  # beyond the edge there are no events
        beside = np.stack([padded[y + 1 + dy, x + 1 + dx] for dy, dx in _NEIGHBOURS])
        hot[y, x] = self._counts[y, x] > HOT_RATIO * np.median(beside, axis=0)
        return hot


class FlickerBand(EventFilter):
    """Drops the events of pixels that alternate between ON and OFF with a frequency from ``low_hz`` to ``high_hz``.

    A period lasts from one change from OFF to ON to the next. After three periods inside the band the events of the
    pixel are dropped, until periods outside the band are more, or until no period has begun for 1 / ``low_hz``.
    Lamps flicker with twice the frequency of the mains, 100 or 120 Hz.
    """

    def __init__(self, sensor: Sequence[int], low_hz: float, high_hz: float) -> None:
        if not 1 <= low_hz < high_hz <= 10_000:
            raise FateError(f"flicker from {low_hz:g} to {high_hz:g} Hz was given; expected 1 to 10 000, rising")
        self.low_hz, self.high_hz = low_hz, high_hz
        super().__init__(sensor)

    def keep(self, events: Events) -> NDArray[np.bool_]:
        shortest, longest = round(1e6 / self.high_hz), round(1e6 / self.low_hz)
        return _steady(
            events.t_us, events.x, events.y, events.p, shortest, longest, self._began, self._periods, self._polarity
        )

    def reset(self) -> None:
        self._began = np.full(self.sensor, NEVER, np.int64)  # start of the current period
        self._periods = np.zeros(self.sensor, np.int8)
        self._polarity = np.ones(self.sensor, np.uint8)  # of the last event


class RegionOfInterest(EventFilter):
    """Drops events outside ``x1 <= x < x2, y1 <= y < y2``; coordinates stay as they are."""

    def __init__(self, sensor: Sequence[int], x1: int, y1: int, x2: int, y2: int) -> None:
        super().__init__(sensor)
        if not (0 <= x1 < x2 <= self.sensor.width and 0 <= y1 < y2 <= self.sensor.height):
            raise FateError(
                f"the region {x1},{y1},{x2},{y2} was given; expected x1 < x2 and y1 < y2 inside the {self.sensor}"
                " sensor (x2, y2 not included)"
            )
        self.region = x1, y1, x2, y2

    def keep(self, events: Events) -> NDArray[np.bool_]:
        x1, y1, x2, y2 = self.region
        return np.asarray((events.x >= x1) & (events.x < x2) & (events.y >= y1) & (events.y < y2))


class RateLimit(EventFilter):
    """Keeps at most ``per_second`` events per second, in each millisecond alone.

    If the millisecond before had too many events, an equal share of this one is dropped all over the sensor; beyond
    the limit everything is dropped until the millisecond ends.
    """

    def __init__(self, sensor: Sequence[int], per_second: int) -> None:
        self.most = per_second * RATE_INTERVAL_US // 1_000_000  #: events of an interval
        if self.most < 1:
            raise FateError(f"a limit of {per_second} events per second was given; expected 1000 or more")
        super().__init__(sensor)

    def keep(self, events: Events) -> NDArray[np.bool_]:
        return _thinned(events.t_us, RATE_INTERVAL_US, self.most, self._state)

    def reset(self) -> None:
        self._state = np.zeros(5, np.int64)
        self._state[0] = NEVER


Maker = Callable[[Sequence[int]], EventFilter]  #: makes a filter for a sensor (height, width)


class FilterKind(NamedTuple):
    """How a filter is written as text."""

    form: str
    example: str
    parse: Callable[[str], Maker]  #: of the text after the colon


def _parse_band(text: str) -> Maker:
    low, _, high = text.partition("-")
    return partial(FlickerBand, low_hz=float(low), high_hz=float(high))


def _parse_region(text: str) -> Maker:
    x1, y1, x2, y2 = parse_roi(text)
    return partial(RegionOfInterest, x1=x1, y1=y1, x2=x2, y2=y2)


#: All filters by name.
FILTERS: dict[str, FilterKind] = {
    "background": FilterKind(
        "background:TIME up to 60s",
        "background:5ms",
        lambda text: partial(BackgroundActivity, support_us=parse_duration(text)),
    ),
    "refractory": FilterKind(
        "refractory:TIME up to 60s",
        "refractory:1ms",
        lambda text: partial(RefractoryPeriod, period_us=parse_duration(text)),
    ),
    "hot-pixels": FilterKind(
        "hot-pixels, or hot-pixels:TIME up to 60s",
        "hot-pixels:500ms",
        lambda text: partial(HotPixels, learning_us=parse_duration(text)) if text else HotPixels,
    ),
    "flicker": FilterKind("flicker:LOW-HIGH in Hz, 1 to 10000", "flicker:90-130", _parse_band),
    "roi": FilterKind("roi:X1,Y1,X2,Y2 in pixels, X1 < X2 and Y1 < Y2", "roi:0,0,640,360", _parse_region),
    "rate": FilterKind(
        "rate:EVENTS per second, 1000 or more",
        "rate:5M",
        lambda text: partial(RateLimit, per_second=parse_amount(text)),
    ),
}


def parse_filter(spec: str) -> Maker:
    """Return what makes the filter of a text such as ``background:5ms`` for a sensor (height, width)."""
    name, colon, value = str(spec).strip().partition(":")
    if name not in FILTERS:
        raise FateError(
            f"the filter {spec} was given; expected one of {', '.join(kind.example for kind in FILTERS.values())}"
            f"{suggest_name(name, FILTERS)}"
        )
    kind = FILTERS[name]
    try:
        if colon and not value:
            raise ValueError("nothing follows the colon")
        make = kind.parse(value)
        if name != "roi":  # which depends on the size of the sensor; the others refuse wrong values for any
            make((1, 1))
    except ValueError:  # also a FateError
        raise FateError(f"the filter {spec} was given; expected {kind.form}, such as {kind.example}") from None
    return make


def check_filters(specs: str | Sequence[str], sensor: Sequence[int] | None = None) -> tuple[str, ...]:
    """The texts of filters as a tuple; a wrong one, or one that is given twice, is refused.

    With a sensor (height, width), a region outside it is refused, too.
    """
    given = (specs,) if isinstance(specs, str) else tuple(specs)
    for spec in given:
        make = parse_filter(spec)
        if sensor is not None:
            make((sensor[0], sensor[1]))
        if given.count(spec) > 1:
            raise FateError(f"the filter {spec} was given {given.count(spec)} times; give it once")
    return given


class EventFilters:
    """Several filters in a row; the module's text has an example."""

    def __init__(self, specs: str | Sequence[str], sensor: Sequence[int]) -> None:
        """Take the texts of the filters, in their order, and the size of the sensor (height, width)."""
        self._filters = {spec: parse_filter(spec)(sensor) for spec in check_filters(specs)}
        self.dropped = dict.fromkeys(self._filters, 0)  #: events that each filter has dropped, by its text

    def __call__(self, events: Events) -> Events:
        """What all filters keep of the next events of a stream."""
        for spec, keep in self._filters.items():
            kept = keep(events)
            self.dropped[spec] += len(events) - len(kept)
            events = kept
        return events

    def next_window(self, events: Events, restarted: str = "") -> Events:
        """What all filters keep of the next window; after a restart, all earlier events are forgotten."""
        if restarted:
            self.reset()
        return self(events)

    def reset(self) -> None:
        """Forget all earlier events; the counts stay."""
        for each in self._filters.values():
            each.reset()


def _checked_duration(us: int) -> int:
    if not 1 <= us <= LONGEST_US:
        raise FateError(f"{us} µs was given to a filter; expected 1 µs to {LONGEST_US // 1_000_000} s")
    return int(us)


@compiled
def _supported(t_us: Any, x: Any, y: Any, support_us: int, last: Any) -> NDArray[np.bool_]:
    """[E] bool: whether a neighbour had an event; ``last`` [H + 2, W + 2] has a border, so pixel (0, 0) is (1, 1)."""
    keep = np.zeros(len(t_us), np.bool_)
    for index in range(len(t_us)):
        row, column, since = int(y[index]) + 1, int(x[index]) + 1, t_us[index] - support_us
        keep[index] = (
            last[row - 1, column - 1] >= since
            or last[row - 1, column] >= since
            or last[row - 1, column + 1] >= since
            or last[row, column - 1] >= since
            or last[row, column + 1] >= since
            or last[row + 1, column - 1] >= since
            or last[row + 1, column] >= since
            or last[row + 1, column + 1] >= since
        )
        last[row, column] = t_us[index]
    return keep


@compiled
def _rested(t_us: Any, x: Any, y: Any, period_us: int, last: Any) -> NDArray[np.bool_]:
    """[E] bool: whether the last kept event of the pixel, whose time is in ``last`` [H, W], is old enough."""
    keep = np.zeros(len(t_us), np.bool_)
    for index in range(len(t_us)):
        if last[y[index], x[index]] <= t_us[index] - period_us:
            last[y[index], x[index]] = t_us[index]
            keep[index] = True
    return keep


@compiled
def _steady(
    t_us: Any, x: Any, y: Any, p: Any, shortest: int, longest: int, began: Any, periods: Any, polarity: Any
) -> NDArray[np.bool_]:
    """[E] bool: whether the pixel does not flicker; a period in the band lasts ``shortest`` to ``longest`` µs."""
    keep = np.zeros(len(t_us), np.bool_)
    for index in range(len(t_us)):
        row, column, t = y[index], x[index], t_us[index]
        if began[row, column] < t - longest:
            periods[row, column] = 0
        if p[index] == 1 and polarity[row, column] == 0:
            if began[row, column] >= t - longest:
                change = 1 if began[row, column] <= t - shortest else -1
                periods[row, column] = min(max(periods[row, column] + change, 0), MOST_PERIODS)
            began[row, column] = t
        polarity[row, column] = p[index]
        keep[index] = periods[row, column] < FLICKER_PERIODS
    return keep


@compiled
def _thinned(t_us: Any, interval_us: int, most: int, state: Any) -> NDArray[np.bool_]:
    """[E] bool: at most ``most`` events of an interval.

    ``state`` has the number of the interval, its events and kept events, the events of the interval before, and a sum
    that rises by ``most`` with each event: an event is kept each time it reaches the events of the interval before.
    """
    keep = np.zeros(len(t_us), np.bool_)
    interval, seen, kept, before, total = state[0], state[1], state[2], state[3], state[4]
    for index in range(len(t_us)):
        now = t_us[index] // interval_us
        if now != interval:
            before = seen if now == interval + 1 else 0
            interval, seen, kept, total = now, 0, 0, 0
        seen += 1
        total += most
        if kept < most and total >= before:
            total -= max(before, most)
            kept += 1
            keep[index] = True
    state[0], state[1], state[2], state[3], state[4] = interval, seen, kept, before, total
    return keep
