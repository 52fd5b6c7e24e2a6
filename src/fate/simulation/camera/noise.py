"""What a sensor adds to the signal: shot noise, hot pixels, timestamp jitter, ATIS bursts.

Shot noise and hot pixels are superposed: they depend on the seed and the window ``[start_us, end_us)``, and shot noise
also on the light of its pixel, if the camera has an exponent for it. They **do not reset the comparator** of the pixel
they fall on. In a real pixel a noise event does reset it, which moves the next signal event by up to one threshold; at
0.1 noise events a second and pixel few signal events follow one closely, and leaving it out keeps the processes exact
and independent.

Every function draws from a generator keyed by the recording's seed, the kind of noise and the start of the window, so
on the CPU the same window gives the same events whatever was simulated before. Windows are independent of each other
and every process is stationary at its start, so the rate asked for holds for windows of any length. A GPU has its own
generator: same statistics, other events. Maps that belong to a sensor (rates, places of hot pixels) are drawn on the
CPU and are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fate.events.events import Events, Sensor
from fate.simulation.arrays import Float64
from fate.simulation.camera.camera_model import CameraModel

#: Kinds of randomness of one recording; each has its own stream of numbers, so switching one off moves no other.
PIXEL_MAPS, RATE_MAP, SHOT_NOISE, HOT_POSITIONS, HOT_EVENTS, JITTER, BURSTS, NOISE_IN_LIGHT = range(8)

JITTER_LIMIT = 4.0  # standard deviations; a bound on how far an event moves lets a stream be sorted piece by piece


class EventColumns(NamedTuple):
    """Events of one recording as int64 tensors of one length E on one device; not necessarily in time order."""

    t_us: Tensor  # [E] microseconds
    x: Tensor  # [E] column
    y: Tensor  # [E] row
    p: Tensor  # [E] 1 for ON, 0 for OFF

    @staticmethod
    def empty(device: str | torch.device) -> EventColumns:
        """No events."""
        return EventColumns(*torch.zeros((4, 0), dtype=torch.int64, device=device))

    def select(self, which: Tensor | slice) -> EventColumns:
        """Some of the events."""
        return EventColumns(*(column[which] for column in self))

    def to_events(self, sensor: Sensor) -> Events:
        """The events in memory; they must be in time order."""
        t_us, x, y, p = (column.cpu().numpy() for column in self)
        return Events.trusted(t_us, x.astype(np.uint16), y.astype(np.uint16), p.astype(np.uint8), sensor)


def generator(seed: int, kind: int, start_us: int = 0, device: str | torch.device = "cpu") -> torch.Generator:
    """Random numbers of one kind for the window that starts at ``start_us`` of the recording with this seed."""
    keys = [key & 0xFFFF_FFFF_FFFF_FFFF for key in (seed, kind, start_us)]  # negative times and seeds are fine too
    state = int(np.random.SeedSequence(keys).generate_state(1, np.uint64)[0])
    return torch.Generator(device=device).manual_seed(state)


def in_time_order(*pieces: EventColumns) -> EventColumns:
    """All events of ``pieces`` sorted by time; events of one time keep the order in which they were given."""
    events = EventColumns(*(torch.cat(columns) for columns in zip(*pieces, strict=True)))
    return events.select(torch.argsort(events.t_us, stable=True))


class BackgroundNoise:
    """Shot noise and hot pixels of the recording with this seed: holds the maps that the seed gives, draws windows.

    Attributes:
        rates_hz: shot-noise rate of every pixel, [H, W] float64: log-normal over pixels, its mean exactly ``noise_hz``.
            The spread is what silences half of a real sensor's pixels in a second while others fire several times; the
            map is scaled to its own mean, so that a recording's noise does not depend on the luck of a few loud pixels.
        hot_positions, hot_rates_hz: flat indices [N] int64 of the hot pixels, all different, and their Hz [N] float64.
            Rates are log-uniform: as many between 50 and 100 Hz as between 100 and 200.
    """

    def __init__(self, model: CameraModel, seed: int, device: str | torch.device = "cpu") -> None:
        self.model, self.seed = model, seed
        normal = torch.randn(tuple(model.sensor), generator=generator(seed, RATE_MAP), dtype=torch.float64)
        spread = torch.exp(model.noise_sigma * normal)
        self.rates_hz = (spread * (model.noise_hz / spread.mean())).to(device)
        random = generator(seed, HOT_POSITIONS)
        self.hot_positions = torch.randperm(spread.numel(), generator=random)[: model.hot_pixels].to(device)
        share = torch.rand(len(self.hot_positions), generator=random, dtype=torch.float64)
        self.hot_rates_hz = (model.hot_hz_min * (model.hot_hz_max / model.hot_hz_min) ** share).to(device)

    def window(
        self, start_us: int, end_us: int, light_of: Callable[[EventColumns], Tensor] | None = None
    ) -> EventColumns:
        """All background events of ``[start_us, end_us)``, in time order.

        ``light_of`` returns the linear light [E] of the pixels of events at their times; None for darkness.
        """
        noise = self.shot_noise(start_us, end_us)
        if self.model.noise_light_exponent and light_of is not None:
            random = generator(self.seed, NOISE_IN_LIGHT, start_us, noise.t_us.device)
            chance = torch.rand(len(noise.t_us), generator=random, device=noise.t_us.device)
            noise = noise.select(
                chance < noise_in_light(light_of(noise), self.model.dark_light, self.model.noise_light_exponent)
            )
        return in_time_order(noise, self.hot_pixel_events(start_us, end_us))

    def shot_noise(self, start_us: int, end_us: int) -> EventColumns:
        """Poisson events of every pixel in the dark in ``[start_us, end_us)``, in time order.

        One count is drawn for the whole sensor and dealt out to pixels by their rates, which is the same process as
        one count per pixel and takes time by events, not by pixels.
        """
        span_us, device = end_us - start_us, self.rates_hz.device
        random = generator(self.seed, SHOT_NOISE, start_us, device)
        total_hz = torch.cumsum(self.rates_hz.flatten(), 0)
        count = int(torch.poisson(total_hz[-1:] * (span_us / 1e6), generator=random).item())
        pick, when, sign = torch.rand((3, count), generator=random, dtype=torch.float64, device=device)
        pixel = torch.searchsorted(total_hz, pick * total_hz[-1], right=True).clamp_(max=len(total_hz) - 1)
        t_us = start_us + (when * span_us).long().clamp_(max=span_us - 1)  # the product may round up to the span
        return self._in_order(t_us, pixel, sign)

    def hot_pixel_events(self, start_us: int, end_us: int) -> EventColumns:
        """Events of hot pixels in ``[start_us, end_us)``, in time order.

        A renewal process: a refractory period of silence after every event, then an exponential wait, whose mean is
        chosen so that the rate is met exactly. At the window's start the process is in its steady state (with
        probability ``rate · dead`` a pixel is still silent after an event before the window), so short windows get
        their share too. The silence does not reach over a window's start: the window before is drawn on its own.
        """
        count, device = len(self.hot_positions), self.hot_rates_hz.device
        span_us, dead_us = end_us - start_us, self.model.refractory_us
        random = generator(self.seed, HOT_EVENTS, start_us, device)
        if not count:
            return EventColumns.empty(device)

        def uniform(columns: int) -> Tensor:
            return torch.rand((count, columns), generator=random, dtype=torch.float64, device=device)

        period_us = 1e6 / self.hot_rates_hz[:, None]
        wait_us = period_us - dead_us
        still_silent = (uniform(1) < dead_us / period_us) * uniform(1) * dead_us
        times = [still_silent - torch.log1p(-uniform(1)) * wait_us]
        batch = 16 + int(span_us / float(period_us.min()))
        while float(times[-1][:, -1].min()) < span_us:
            intervals = dead_us - torch.log1p(-uniform(batch)) * wait_us
            times.append(times[-1][:, -1:] + torch.cumsum(intervals, 1))
        every = torch.cat(times, 1)
        pixel, column = torch.nonzero(every < span_us, as_tuple=True)
        sign = torch.rand(len(pixel), generator=random, dtype=torch.float64, device=device)
        return self._in_order(start_us + every[pixel, column].long(), self.hot_positions[pixel], sign)

    def _in_order(self, t_us: Tensor, pixel: Tensor, sign: Tensor) -> EventColumns:
        """Events of flat pixel indices, ON where ``sign`` lies below the share of ON, sorted by time."""
        width = self.model.sensor.width
        row = pixel.div(width, rounding_mode="floor")
        return in_time_order(EventColumns(t_us, pixel % width, row, (sign < self.model.noise_on_share).long()))


def noise_in_light(light: Tensor, dark_light: float, exponent: Tensor | float) -> Tensor:
    """The share of shot noise in the dark that is left in linear light of any shape."""
    return (dark_light / (light + dark_light)) ** exponent


def jittered(
    model: CameraModel,
    events: EventColumns,
    chance: Tensor | float,
    seed: int,
    start_us: int,
    span: tuple[int, int | None],
) -> EventColumns:
    """Return the signal of the window that starts at ``start_us`` as the sensor gives it out: jittered, with bursts.

    Times move by Gaussian noise, rounded to the microsecond and kept inside ``span``. No event moves by more than
    ``JITTER_LIMIT`` standard deviations, so after jitter a stream is sorted again by holding back that much. Bursts
    come after jitter, since their gaps are exact; an event starts one with probability ``chance`` [E].
    """
    device = events.t_us.device
    if model.jitter_us > 0:
        random = generator(seed, JITTER, start_us, device)
        normal = torch.randn(events.t_us.shape, generator=random, device=device).clamp_(-JITTER_LIMIT, JITTER_LIMIT)
        events = events._replace(t_us=events.t_us + torch.round(normal * model.jitter_us).long())
    events = events._replace(t_us=events.t_us.clamp(*span))
    return bursts(model, events, chance, generator(seed, BURSTS, start_us, device)) if model.bursts else events


def burst_probability(model: CameraModel, light: Tensor) -> Tensor:
    """Probability that an event starts a burst, by pixel, [..., H, W], from linear light of the same shape.

    ATIS pixels burst where the picture is bright and textured: the probability rises from 0 at ``burst_light`` to
    ``burst_share`` at ``burst_full_light``, and is 0 where ln(light + dark_light) differs from all four neighbours by
    less than ``burst_contrast``.
    """
    level = torch.log(light + model.dark_light)
    contrast = torch.zeros_like(level)
    down, right = (level.diff(dim=-2)).abs(), (level.diff(dim=-1)).abs()
    for part, step in (
        (contrast[..., 1:, :], down),
        (contrast[..., :-1, :], down),
        (contrast[..., 1:], right),
        (contrast[..., :-1], right),
    ):
        torch.maximum(part, step, out=part)
    bright = ((light - model.burst_light) / (model.burst_full_light - model.burst_light)).clamp(0.0, 1.0)
    return model.burst_share * bright * (contrast >= model.burst_contrast)


def bursts(
    model: CameraModel, events: EventColumns, probability: Tensor | float, random: torch.Generator
) -> EventColumns:
    """Repeat some events [E] of the signal at the same pixel and polarity, a few µs apart, as ATIS sensors do.

    An event starts a burst with its ``probability`` [E], see :func:`burst_probability`; the generator is on the events'
    device. Returns all events, each with its repeats right behind it, so not in time order where bursts overlap.
    """
    device = events.t_us.device
    chosen = torch.rand(len(events.t_us), generator=random, device=device) < probability
    lengths = torch.ones_like(events.t_us)
    table = torch.from_numpy(_length_table(model.burst_length, model.burst_longest)).to(device)
    pick = torch.rand(int(chosen.sum()), generator=random, dtype=torch.float64, device=device)
    lengths[chosen] = 2 + torch.searchsorted(table, pick, right=True).clamp_(max=len(table) - 1)
    source = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
    first = torch.cumsum(lengths, 0) - lengths  # [E] where each event lies in the output
    kind, wait = torch.rand((2, len(source)), generator=random, device=device)
    gaps = 2 + (-torch.log1p(-wait) * model.burst_gap_us).long()
    gaps[kind < model.burst_gap_zero + model.burst_gap_one] = 1
    gaps[kind < model.burst_gap_zero] = 0
    gaps[first] = 0
    elapsed = torch.cumsum(gaps, 0)
    repeated = events.select(source)
    return repeated._replace(t_us=repeated.t_us + elapsed - elapsed[first][source])


@lru_cache(maxsize=16)
def _length_table(mean: float, longest: int) -> Float64:
    """Cumulative probabilities of burst lengths 2, 3, … longest: k^−a with the exponent that gives this mean."""
    lengths = np.arange(2, longest + 1, dtype=np.float64)
    low, high = 0.0, 64.0  # the mean falls as the exponent grows: half-way at 0, 2 at the other end
    for _ in range(80):
        exponent = (low + high) / 2
        weight = (lengths / 2) ** -exponent
        low, high = (exponent, high) if (weight * lengths).sum() > mean * weight.sum() else (low, exponent)
    weight = (lengths / 2) ** -((low + high) / 2)
    return np.asarray(np.cumsum(weight) / weight.sum())
