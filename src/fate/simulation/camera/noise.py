"""What a sensor adds to the signal: shot noise, hot pixels, timestamp jitter, ATIS bursts.

Shot noise and hot pixels are superposed: they depend on nothing but the seed and the window ``[start_us, end_us)``,
and **they do not reset the comparator** of the pixel they fall on. In a real pixel a noise event does reset it, which
moves the next signal event by up to one threshold; at 0.1 noise events a second and pixel few signal events follow one
closely, and leaving it out keeps the processes exact and independent.

Every function draws from a generator keyed by the recording's seed, the kind of noise and the start of the window, so
on the CPU the same window gives the same events whatever was simulated before. Windows are independent of each other
and every process is stationary at its start, so the rate asked for holds for windows of any length. A GPU has its own
generator: same statistics, other events. Maps that belong to a sensor (rates, places of hot pixels) are drawn on the
CPU and are the same everywhere.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fate.errors import FateError
from fate.events.events import Sensor
from fate.simulation.arrays import Float64

#: Kinds of randomness of one recording; each has its own stream of numbers, so switching one off moves no other.
PIXEL_MAPS, RATE_MAP, SHOT_NOISE, HOT_PLACES, HOT_EVENTS, JITTER, BURSTS = range(7)

JITTER_LIMIT = 4.0  # standard deviations; a bound on how far an event moves lets a stream be sorted piece by piece


class EventColumns(NamedTuple):
    """Events of one recording as int64 tensors of one length E on one device; not necessarily in time order."""

    t_us: Tensor  # [E] microseconds
    x: Tensor  # [E] column
    y: Tensor  # [E] row
    p: Tensor  # [E] 1 for ON, 0 for OFF


def generator(seed: int, kind: int, start_us: int = 0, device: str | torch.device = "cpu") -> torch.Generator:
    """Random numbers of one kind for the window that starts at ``start_us`` of the recording with this seed."""
    keys = [key & 0xFFFF_FFFF_FFFF_FFFF for key in (seed, kind, start_us)]  # negative times and seeds are fine too
    state = int(np.random.SeedSequence(keys).generate_state(1, np.uint64)[0])
    return torch.Generator(device=device).manual_seed(state)


def in_time_order(*pieces: EventColumns) -> EventColumns:
    """All events of ``pieces`` sorted by time; events of one time keep the order in which they were given."""
    if not pieces:
        raise FateError("no events were given to put in time order; give at least one piece (it may be empty)")
    t_us, x, y, p = (torch.cat(columns) for columns in zip(*pieces, strict=True))
    order = torch.argsort(t_us, stable=True)
    return EventColumns(t_us[order], x[order], y[order], p[order])


def noise_rates(sensor: Sensor, noise_hz: float, noise_sigma: float, seed: int) -> Tensor:
    """Shot-noise rate of every pixel in Hz, [H, W] float64: log-normal over pixels, its mean exactly ``noise_hz``.

    The spread is what silences half of a real sensor's pixels in a second while others fire several times; the map is
    scaled to its own mean, so that a recording's noise does not depend on the luck of a few loud pixels.
    """
    shape = (sensor.height, sensor.width)
    normal = torch.randn(shape, generator=generator(seed, RATE_MAP), dtype=torch.float64)
    spread = torch.exp(noise_sigma * normal)
    return spread * (noise_hz / spread.mean())


def shot_noise(rates_hz: Tensor, start_us: int, end_us: int, seed: int, on_share: float = 0.5) -> EventColumns:
    """Poisson events of every pixel in ``[start_us, end_us)``, in time order, on the device of ``rates_hz`` [H, W].

    One count is drawn for the whole sensor and dealt out to pixels by their rates, which is the same process as one
    count per pixel and takes time by events, not by pixels.
    """
    span_us = _span(start_us, end_us)
    random = generator(seed, SHOT_NOISE, start_us, rates_hz.device)
    total_hz = torch.cumsum(rates_hz.double().flatten(), 0)
    expected = total_hz[-1:] * (span_us / 1e6)
    count = int(torch.poisson(expected, generator=random).item())
    pick, when, sign = torch.rand((3, count), generator=random, dtype=torch.float64, device=rates_hz.device)
    pixel = torch.searchsorted(total_hz, pick * total_hz[-1], right=True).clamp_(max=len(total_hz) - 1)
    t_us = start_us + (when * span_us).long().clamp_(max=span_us - 1)  # the product may round up to the span
    return in_time_order(_columns(t_us, pixel, sign < on_share, rates_hz.shape[-1]))


def hot_pixels(sensor: Sensor, count: int, hz_min: float, hz_max: float, seed: int) -> tuple[Tensor, Tensor]:
    """Places and rates of the hot pixels: flat indices [count] int64, all different, and Hz [count] float64.

    Rates are log-uniform between ``hz_min`` and ``hz_max``: as many between 50 and 100 Hz as between 100 and 200.
    """
    random = generator(seed, HOT_PLACES)
    places = torch.randperm(sensor.height * sensor.width, generator=random)[:count]
    share = torch.rand(len(places), generator=random, dtype=torch.float64)
    return places, hz_min * (hz_max / hz_min) ** share


def hot_pixel_events(
    places: Tensor,
    rates_hz: Tensor,
    width: int,
    start_us: int,
    end_us: int,
    seed: int,
    *,
    dead_us: float,
    on_share: float = 0.5,
) -> EventColumns:
    """Events of hot pixels in ``[start_us, end_us)``, in time order.

    A renewal process: ``dead_us`` of silence after every event, then an exponential wait, whose mean is chosen so that
    the rate is ``rates_hz`` [N] exactly. At the window's start the process is in its steady state (with probability
    ``rate · dead`` a pixel is still silent after an event before the window), so short windows get their share too.
    The silence does not reach over a window's start: the window before is drawn on its own.
    """
    span_us = _span(start_us, end_us)
    device = rates_hz.device
    period_us = 1e6 / rates_hz.double()
    wait_us = period_us - dead_us
    if len(places) and float(wait_us.min()) <= 0:
        raise FateError(
            f"a hot pixel of {float(rates_hz.max()):g} Hz was asked for with {dead_us:g} µs of silence after an event;"
            f" it must stay below {1e6 / dead_us:g} Hz; lower the rate"
        )
    if not len(places):
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        return EventColumns(nothing, nothing, nothing, nothing)
    random = generator(seed, HOT_EVENTS, start_us, device)

    def uniform(columns: int) -> Tensor:
        return torch.rand((len(places), columns), generator=random, dtype=torch.float64, device=device)

    still_silent = (uniform(1) < (dead_us / period_us)[:, None]) * uniform(1) * dead_us
    now = still_silent - torch.log1p(-uniform(1)) * wait_us[:, None]
    times = [now]
    batch = 16 + int(span_us / float(period_us.min()))
    while float(now.min()) < span_us:
        intervals = dead_us - torch.log1p(-uniform(batch)) * wait_us[:, None]
        times.append(now + torch.cumsum(intervals, 1))
        now = times[-1][:, -1:]
    every = torch.cat(times, 1)
    pixel, column = torch.nonzero(every < span_us, as_tuple=True)
    sign = torch.rand(len(pixel), generator=random, dtype=torch.float64, device=device)
    return in_time_order(_columns(start_us + every[pixel, column].long(), places[pixel], sign < on_share, width))


class BackgroundNoise:
    """Shot noise and hot pixels of one recording: holds the maps that its seed gives, draws windows.

    Args:
        sensor: size of the sensor.
        seed: the recording's seed.
        noise_hz, noise_sigma, on_share: see :func:`noise_rates` and :func:`shot_noise`; 0 Hz for none.
        hot_count, hot_hz_min, hot_hz_max: see :func:`hot_pixels`; a count of 0 for none.
        dead_us: silence after each event of a hot pixel, the refractory period.
        device: where the events are drawn and returned.
    """

    def __init__(
        self,
        sensor: Sensor,
        seed: int,
        *,
        noise_hz: float,
        noise_sigma: float,
        on_share: float,
        hot_count: int,
        hot_hz_min: float,
        hot_hz_max: float,
        dead_us: float,
        device: str | torch.device = "cpu",
    ) -> None:
        self.sensor, self.seed, self.on_share, self.dead_us = sensor, seed, on_share, dead_us
        self.rates_hz = noise_rates(sensor, noise_hz, noise_sigma, seed).to(device)
        places, rates = hot_pixels(sensor, hot_count, hot_hz_min, hot_hz_max, seed)
        self.hot_places, self.hot_rates_hz = places.to(device), rates.to(device)

    def window(self, start_us: int, end_us: int) -> EventColumns:
        """All background events of ``[start_us, end_us)``, in time order."""
        shot = shot_noise(self.rates_hz, start_us, end_us, self.seed, self.on_share)
        hot = hot_pixel_events(
            self.hot_places,
            self.hot_rates_hz,
            self.sensor.width,
            start_us,
            end_us,
            self.seed,
            dead_us=self.dead_us,
            on_share=self.on_share,
        )
        return in_time_order(shot, hot)


def jitter(t_us: Tensor, jitter_us: float, random: torch.Generator) -> Tensor:
    """Times [E] int64 moved by Gaussian noise of ``jitter_us`` standard deviation, rounded to the microsecond.

    No event moves by more than ``JITTER_LIMIT`` standard deviations, so after jitter a stream is sorted again by
    holding back that much. Sorting, and events that leave a window, are the caller's.
    """
    if jitter_us == 0:
        return t_us
    normal = torch.randn(t_us.shape, generator=random, dtype=torch.float32, device=t_us.device)
    return t_us + torch.round(normal.clamp_(-JITTER_LIMIT, JITTER_LIMIT) * jitter_us).long()


def burst_probability(
    light: Tensor, share: float, light_min: float, light_full: float, contrast_min: float, dark_light: float
) -> Tensor:
    """Probability that an event starts a burst, by pixel, [..., H, W], from linear light of the same shape.

    ATIS pixels burst where the picture is bright and textured: the probability rises from 0 at ``light_min`` to
    ``share`` at ``light_full``, and is 0 where ln(light + dark_light) differs from all four neighbours by less than
    ``contrast_min``.
    """
    level = torch.log(light + dark_light)
    contrast = torch.zeros_like(level)
    down, right = (level.diff(dim=-2)).abs(), (level.diff(dim=-1)).abs()
    for part, step in (
        (contrast[..., 1:, :], down),
        (contrast[..., :-1, :], down),
        (contrast[..., 1:], right),
        (contrast[..., :-1], right),
    ):
        torch.maximum(part, step, out=part)
    bright = ((light - light_min) / (light_full - light_min)).clamp(0.0, 1.0)
    return share * bright * (contrast >= contrast_min)


def bursts(
    events: EventColumns,
    probability: Tensor | float,
    random: torch.Generator,
    *,
    mean_length: float = 3.0,
    longest: int = 592,
    gap_zero: float = 0.42,
    gap_one: float = 0.18,
    gap_us: float = 10.0,
) -> EventColumns:
    """Events of which some are repeated: same pixel, same polarity, a few µs apart, as ATIS sensors do.

    Args:
        events: [E] events of the signal.
        probability: [E] (or one number) chance that an event starts a burst; see :func:`burst_probability`.
        random: generator on the events' device.
        mean_length: mean number of events in a burst, the first included; lengths follow a power law from 2 up.
        longest: the largest number of events in a burst.
        gap_zero, gap_one: shares of the gaps inside bursts that are 0 µs and 1 µs; the others are 2 µs plus an
            exponential wait of mean ``gap_us``, in whole microseconds.

    Returns:
        All events, each with its repeats right behind it (hence not in time order where bursts overlap).
    """
    device = events.t_us.device
    chosen = torch.rand(len(events.t_us), generator=random, device=device) < probability
    lengths = torch.ones_like(events.t_us)
    table = torch.from_numpy(_length_table(mean_length, longest)).to(device)
    pick = torch.rand(int(chosen.sum()), generator=random, dtype=torch.float64, device=device)
    lengths[chosen] = 2 + torch.searchsorted(table, pick, right=True).clamp_(max=len(table) - 1)
    source = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
    first = torch.cumsum(lengths, 0) - lengths  # [E] where each event lies in the output
    kind, wait = torch.rand((2, len(source)), generator=random, device=device)
    gaps = 2 + (-torch.log1p(-wait) * gap_us).long()
    gaps[kind < gap_zero + gap_one] = 1
    gaps[kind < gap_zero] = 0
    gaps[first] = 0
    elapsed = torch.cumsum(gaps, 0)
    offset = elapsed - elapsed[first][source]
    return EventColumns(events.t_us[source] + offset, events.x[source], events.y[source], events.p[source])


def check_burst_lengths(mean: float, longest: int) -> None:
    """Refuse a mean length that no power law between 2 and ``longest`` has."""
    if not 2 < mean < (2 + longest) / 2:
        raise FateError(
            f"bursts of {mean:g} events on average and at most {longest} were asked for; the mean must lie above 2 and"
            " below half-way between 2 and the longest; change one of them"
        )


@lru_cache(maxsize=16)
def _length_table(mean: float, longest: int) -> Float64:
    """Cumulative probabilities of burst lengths 2, 3, … longest: k^−a with the exponent that gives this mean."""
    check_burst_lengths(mean, longest)
    lengths = np.arange(2, longest + 1, dtype=np.float64)
    low, high = 0.0, 64.0  # the mean falls as the exponent grows: half-way at 0, 2 at the other end
    for _ in range(80):
        exponent = (low + high) / 2
        weight = (lengths / 2) ** -exponent
        low, high = (exponent, high) if (weight * lengths).sum() > mean * weight.sum() else (low, exponent)
    weight = (lengths / 2) ** -((low + high) / 2)
    return np.asarray(np.cumsum(weight) / weight.sum())


def _columns(t_us: Tensor, pixel: Tensor, on: Tensor, width: int) -> EventColumns:
    """Columns from flat pixel indices."""
    return EventColumns(t_us, pixel % width, pixel.div(width, rounding_mode="floor"), on.long())


def _span(start_us: int, end_us: int) -> int:
    if not (math.isfinite(start_us) and math.isfinite(end_us)) or end_us <= start_us:
        raise FateError(f"noise from {start_us} to {end_us} µs was asked for; the end must come after the start")
    return end_us - start_us
