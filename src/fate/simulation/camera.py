"""The pixel of an event camera: its parameters, presets, and a readable model in torch.

Linear light I goes in (1.0 is a white wall in full sun), events come out. One step of a pixel, from t0 to t1 = t0 + dt:

1. **Logarithm**: u = ln(I + dark_light). Between steps u is linear in time, with slope s = (u1 − u0) / dt.
2. **Photoreceptor**: a first-order low-pass of corner f_c = cutoff_hz · max(cutoff_floor, min(I1, 1)), where I1 is the
   light at the step's end, so tau = 1e6 / (2π f_c) µs. Its exact response to the ramp is, with a = exp(−dt / tau),
   v1 = u1 − s·tau + (v0 − u0 + s·tau)·a. Without low-pass v1 = u1. Inside the step v is taken as linear.
3. **Comparator**: it holds a reference level m; d = v − m is the change it has seen. Leak lowers m by
   leak_hz · theta_on per second while the pixel is not in reset.
4. **Reset**: until its release time r a pixel gives no events; at r it takes m = v(r). If r lies beyond t1, nothing
   happens in this step. Otherwise d is linear between max(t0, r) and t1, and if it reaches +theta_on (ON) or −theta_off
   (OFF) there is an event at the interpolated time t_c, and r = t_c + refractory_us. That is repeated inside the step
   until no pixel fires; with refractory_us = 0, m = v(t_c) at once.
5. **Time**: t_c is rounded to the nearest microsecond, floor(t_c + 0.5).

At the start v = u and d = phase: uniform between −theta_off and +theta_on (times 0.999), because pixels that look at a
scene for long have all been reset at different times; 0 for a sensor without mismatch and leak, whose answer is
analytic.

This model is written to be read and is the twin that fast kernels are compared with. Noise that does not come from the
pixel's own signal is in ``noise.py``.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.simulation import noise
from fate.simulation.noise import BackgroundNoise, EventColumns

GEN1_SENSOR = Sensor(height=240, width=304)
LOWEST_THRESHOLD_SHARE = 0.2  # mismatch never takes a pixel below this share of the nominal threshold
PHASE_SHARE = 0.999  # how much of the range between the thresholds a pixel may have used up at the start
AWAKE = -1.0  # release time of a pixel that is not in reset

#: What each number may be: (lowest, highest, unit). Anything else, and NaN, is refused when a model is made.
_RANGES: dict[str, tuple[float, float, str]] = {
    "threshold_on": (0.001, 10, "in ln(light)"),  # far below any sensor; and a step can be split into crossings
    "threshold_off": (0.001, 10, "in ln(light)"),
    "threshold_sigma": (0, 10, "in ln(light)"),
    "cutoff_hz": (0, 1e9, "Hz, or None"),
    "cutoff_floor": (1e-6, 1, "a share"),
    "dark_light": (1e-12, 1, "in light, 1 = white in the sun"),
    "refractory_us": (0, 1e9, "µs"),
    "leak_hz": (0, 1e5, "Hz"),
    "noise_hz": (0, 1e5, "Hz"),
    "noise_sigma": (0, 5, "in ln(rate)"),
    "noise_on_share": (0, 1, "a share"),
    "hot_pixels": (0, 2**32, "pixels"),
    "hot_hz_min": (1e-6, 1e6, "Hz"),
    "hot_hz_max": (1e-6, 1e6, "Hz"),
    "jitter_us": (0, 1e5, "µs"),
    "burst_share": (0, 1, "a share"),
    "burst_light": (0, 0.99, "in light, 1 = white in the sun"),
    "burst_full_light": (0, 100, "in light, 1 = white in the sun"),
    "burst_contrast": (0, 10, "in ln(light)"),
    "burst_length": (2, 65_536, "events"),
    "burst_longest": (2, 65_536, "events"),
    "burst_gap_zero": (0, 1, "a share"),
    "burst_gap_one": (0, 1, "a share"),
    "burst_gap_us": (0, 1e5, "µs"),
}
_WHOLE = frozenset({"refractory_us", "hot_pixels", "burst_longest"})


@dataclass(frozen=True, kw_only=True)
class CameraModel:
    """Parameters of a sensor; the defaults are those of an ATIS sensor on a car (the preset ``gen1``)."""

    sensor: Sensor = GEN1_SENSOR
    """(height, width) in pixels."""
    threshold_on: float = 0.30
    """ln(light) by which a pixel must brighten for an ON event; ON above OFF gives the ON share of Gen1, 0.36–0.46."""
    threshold_off: float = 0.25
    """ln(light) by which a pixel must darken for an OFF event."""
    threshold_sigma: float = 0.03
    """Standard deviation of both thresholds over pixels; transistors differ. Clipped at 20 % of the threshold."""
    cutoff_hz: float | None = 200.0
    """Corner of the photoreceptor's low-pass at full light (I = 1) in Hz; 0 or None for an endlessly fast one."""
    cutoff_floor: float = 0.10
    """Share of ``cutoff_hz`` that is left in the dark; a photoreceptor slows down with its current."""
    dark_light: float = 0.02
    """Light added before the logarithm (dark current and stray light): 1 : 50 is what a pixel can still tell apart."""
    refractory_us: int = 1500
    """Microseconds of reset after an event; Gen1's shortest interval of a pixel is 1.5 to 1.7 ms."""
    leak_hz: float = 0.05
    """ON events a second that a pixel gives in constant light, by the leak of its reset switch."""
    noise_hz: float = 0.10
    """Shot-noise events a second and pixel, mean over the sensor; the noise floor measured in Gen1."""
    noise_sigma: float = 1.0
    """Spread of the shot-noise rate over pixels: standard deviation of ln(rate)."""
    noise_on_share: float = 0.5
    """Share of ON among the events of shot noise and hot pixels."""
    hot_pixels: int = 20
    """Number of pixels that fire all the time."""
    hot_hz_min: float = 50.0
    """Slowest hot pixel in Hz; rates are log-uniform."""
    hot_hz_max: float = 500.0
    """Fastest hot pixel in Hz."""
    jitter_us: float = 20.0
    """Standard deviation of the time stamps of signal events in µs: arbitration and comparator noise."""
    bursts: bool = False
    """Whether bright, textured places repeat their events, as ATIS sensors do in some recordings."""
    burst_share: float = 0.9
    """Chance that an event starts a burst on bright texture; falls to 0 at ``burst_light``."""
    burst_light: float = 0.05
    """Light below which there are no bursts."""
    burst_full_light: float = 0.35
    """Light from which on bursts are as frequent as they get; with these numbers about two thirds of the events of a
    recording sit in bursts, in a busy second of Gen1 77 %."""
    burst_contrast: float = 0.15
    """ln(light) by which a pixel must differ from a neighbour to count as textured."""
    burst_length: float = 3.0
    """Mean number of events in a burst, the first included; a power law from 2 up."""
    burst_longest: int = 592
    """Largest number of events in a burst; the longest seen in Gen1."""
    burst_gap_zero: float = 0.42
    """Share of the gaps in bursts that are 0 µs."""
    burst_gap_one: float = 0.18
    """Share of the gaps in bursts that are 1 µs."""
    burst_gap_us: float = 10.0
    """The other gaps are 2 µs plus an exponential wait of this mean in µs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensor", Sensor.of(self.sensor))
        for name, (lowest, highest, unit) in _RANGES.items():
            value = getattr(self, name)
            if name == "cutoff_hz" and value is None:
                continue
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not number or not lowest <= value <= highest or (name in _WHOLE and value != int(value)):
                kind = "a whole number" if name in _WHOLE else "a number"
                raise FateError(f"{name} is {value!r}; expected {kind} from {lowest:g} to {highest:g} ({unit})")
            if name in _WHOLE:
                object.__setattr__(self, name, int(value))
        self._check_together()

    def _check_together(self) -> None:
        """Refuse numbers that are possible on their own but not with each other."""
        pixels = self.sensor.height * self.sensor.width
        if self.hot_pixels > pixels:
            raise FateError(f"{self.hot_pixels} hot pixels were asked for; a {self.sensor} sensor has {pixels} pixels")
        if self.hot_hz_min > self.hot_hz_max:
            raise FateError(
                f"hot_hz_min is {self.hot_hz_min:g} and hot_hz_max {self.hot_hz_max:g} Hz; give the smaller one first"
            )
        if self.hot_pixels and self.hot_hz_max * self.refractory_us >= 1e6:
            raise FateError(
                f"hot_hz_max is {self.hot_hz_max:g} Hz, but with refractory_us = {self.refractory_us} a pixel fires at"
                f" fewer than {1e6 / self.refractory_us:g} Hz; lower one of the two"
            )
        if self.burst_gap_zero + self.burst_gap_one > 1:
            raise FateError(
                f"burst_gap_zero and burst_gap_one are shares {self.burst_gap_zero:g} and {self.burst_gap_one:g} of all"
                " gaps; their sum must not exceed 1"
            )
        if self.burst_full_light <= self.burst_light:
            raise FateError(
                f"burst_full_light is {self.burst_full_light:g} and burst_light {self.burst_light:g}; the first must be"
                " larger"
            )
        if self.bursts:
            noise.check_burst_lengths(self.burst_length, self.burst_longest)

    def background(self, seed: int, device: str | torch.device = "cpu") -> BackgroundNoise:
        """Shot noise and hot pixels of the recording with this seed, to be drawn by window."""
        return BackgroundNoise(
            self.sensor,
            seed,
            noise_hz=self.noise_hz,
            noise_sigma=self.noise_sigma,
            on_share=self.noise_on_share,
            hot_count=self.hot_pixels,
            hot_hz_min=self.hot_hz_min,
            hot_hz_max=self.hot_hz_max,
            dead_us=self.refractory_us,
            device=device,
        )

    def burst_probability(self, light: Tensor) -> Tensor:
        """Chance that an event starts a burst, by pixel, [..., H, W], from the light of the same shape."""
        return noise.burst_probability(
            light, self.burst_share, self.burst_light, self.burst_full_light, self.burst_contrast, self.dark_light
        )

    def with_bursts(self, events: EventColumns, probability: Tensor | float, random: torch.Generator) -> EventColumns:
        """Events of which some are repeated, each with ``probability`` [E]; see ``noise.bursts``."""
        return noise.bursts(
            events,
            probability,
            random,
            mean_length=self.burst_length,
            longest=self.burst_longest,
            gap_zero=self.burst_gap_zero,
            gap_one=self.burst_gap_one,
            gap_us=self.burst_gap_us,
        )


PRESETS: dict[str, CameraModel] = {
    "gen1": CameraModel(),
    # A later sensor: faster, quieter, balanced towards ON (its recordings hold 53 % ON, intervals down to 0.3–0.8 ms).
    "1mpx": CameraModel(
        sensor=Sensor(720, 1280),
        threshold_on=0.24,
        threshold_off=0.27,
        threshold_sigma=0.025,
        cutoff_hz=600.0,
        refractory_us=500,
        leak_hz=0.02,
        noise_hz=0.05,
        jitter_us=10.0,
    ),
    # Nothing but logarithm and thresholds: every event can be worked out by hand.
    "ideal": CameraModel(
        threshold_sigma=0.0,
        cutoff_hz=None,
        refractory_us=0,
        leak_hz=0.0,
        noise_hz=0.0,
        hot_pixels=0,
        jitter_us=0.0,
    ),
}


def camera_preset(name: str, **changes: Any) -> CameraModel:
    """A preset by name (``gen1``, ``1mpx``, ``ideal``), with the given fields of :class:`CameraModel` changed."""
    if name not in PRESETS:
        raise FateError(f"camera preset {name!r} was asked for; the presets are {', '.join(PRESETS)}")
    known = [field.name for field in fields(CameraModel)]
    for change in changes:
        if change not in known:
            raise FateError(f"a camera has no field {change!r}; its fields are {', '.join(known)}")
    return replace(PRESETS[name], **changes)


class PixelMaps(NamedTuple):
    """What differs from pixel to pixel of one sensor, each [H, W] float64 on the CPU, in ln(light)."""

    theta_on: Tensor
    theta_off: Tensor
    phase: Tensor  # v − m at the start


def pixel_maps(model: CameraModel, seed: int) -> PixelMaps:
    """Thresholds and phases of the sensor with this seed; the same on every device, as they are drawn on the CPU."""
    random = noise.generator(seed, noise.PIXEL_MAPS)
    shape = (2, model.sensor.height, model.sensor.width)
    mismatch = torch.randn(shape, generator=random, dtype=torch.float64) * model.threshold_sigma
    share = torch.rand(shape[1:], generator=random, dtype=torch.float64)
    theta_on, theta_off = (
        (threshold + mismatch[i]).clamp_(min=LOWEST_THRESHOLD_SHARE * threshold)
        for i, threshold in enumerate((model.threshold_on, model.threshold_off))
    )
    phase = torch.zeros_like(theta_on)
    if model.threshold_sigma > 0 or model.leak_hz > 0:
        phase = PHASE_SHARE * (share * (theta_on + theta_off) - theta_off)
    return PixelMaps(theta_on, theta_off, phase)


class PixelEvents(NamedTuple):
    """Events of one step as int64 tensors [E], ordered by recording, then by time."""

    recording: Tensor  # index into the batch
    t_us: Tensor
    x: Tensor
    y: Tensor
    p: Tensor


class EventCamera:
    """Sensors of one model that watch ``batch`` scenes side by side; the step is the one of the module's docstring.

    Args:
        model: parameters of all sensors.
        batch: B, number of recordings.
        seeds: one per recording, by default 0 … B − 1; a recording's events depend on its own seed alone.
        device: where the state lives and the light comes from.
        dtype: of the state; float32 holds times to 1 µs in steps up to 4 s, float64 in any.

    Attributes:
        log_light, receptor, reference: u, v and m, [B, H, W]; theta_on, theta_off: thresholds, [B, H, W].
        release_us: when a pixel comes out of reset, in µs after the last step, [B, H, W]; ``AWAKE`` if it is in none.
    """

    def __init__(
        self,
        model: CameraModel,
        batch: int = 1,
        seeds: Sequence[int] | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if batch < 1:
            raise FateError(f"a batch of {batch} recordings was asked for; expected 1 or more")
        self.seeds = list(range(batch)) if seeds is None else [int(seed) for seed in seeds]
        if len(self.seeds) != batch:
            raise FateError(f"{len(self.seeds)} seeds were given for a batch of {batch} recordings; give one for each")
        self.model, self.batch, self.device, self.dtype = model, batch, torch.device(device), dtype
        maps = [pixel_maps(model, seed) for seed in self.seeds]
        self.theta_on, self.theta_off, self._phase = (
            torch.stack(column).to(self.device, dtype) for column in zip(*maps, strict=True)
        )
        self._t_us: Tensor | None = None

    def start(self, light: Tensor, t_us: int | Tensor) -> None:
        """Begin (again) at ``t_us`` (one time, or one per recording [B]) in the light [B, H, W]."""
        light = self._checked(light)
        self._t_us = self._times(t_us)
        self.log_light = torch.log(light + self.model.dark_light)
        self.receptor = self.log_light.clone()
        self.reference = self.receptor - self._phase
        self.release_us = torch.full_like(self.receptor, AWAKE)

    def step(self, light: Tensor, t_us: int | Tensor) -> PixelEvents:
        """Go on to ``t_us`` (one time, or one per recording [B]), when the light is ``light`` [B, H, W].

        Returns the events after the previous time and up to ``t_us``; those of one recording and microsecond come in
        the order of their crossing within a pixel, and by rows over pixels.
        """
        if self._t_us is None:
            raise FateError("the camera has no picture to compare with; call start(light, t_us) before step")
        light, now = self._checked(light), self._times(t_us)
        span = now - self._t_us  # [B]
        if int(span.min()) <= 0:
            raise FateError(f"a step to {now.tolist()} µs was asked for at {self._t_us.tolist()} µs; time must go on")
        dt = span.to(self.dtype)[:, None, None]
        receptor = self._photoreceptor(light, dt)
        index, times, on = self._comparator(receptor, dt)
        recording, y, x = index
        order = torch.argsort(recording * (int(span.max()) + 1) + times, stable=True)
        events = PixelEvents(recording, self._t_us[recording] + times, x, y, on.long())
        self.receptor, self._t_us = receptor, now
        return PixelEvents(*(column[order] for column in events))

    def _photoreceptor(self, light: Tensor, dt: Tensor) -> Tensor:
        """v at the step's end, [B, H, W]; moves ``log_light`` on."""
        before, after = self.log_light, torch.log(light + self.model.dark_light)
        self.log_light = after
        if not self.model.cutoff_hz:
            return after
        corner_hz = self.model.cutoff_hz * light.clamp(self.model.cutoff_floor, 1.0)
        tau = 1e6 / (2 * math.pi * corner_hz)
        lag = (after - before) / dt * tau  # how far behind a steady ramp the photoreceptor settles
        return after - lag + (self.receptor - before + lag) * torch.exp(-dt / tau)

    def _comparator(self, after: Tensor, dt: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]:
        """Crossings while v goes from ``receptor`` to ``after``: (recording, row, column), whole µs into the step, ON.

        Moves ``reference`` and ``release_us`` on to the step's end.
        """
        before, reference = self.receptor, self.reference
        slope = (after - before) / dt
        leak = self.model.leak_hz * self.theta_on / 1e6  # per µs
        since = self.release_us.clamp(min=0.0)  # from when the comparator is awake, µs into the step
        reset = self.release_us >= 0
        found: list[Tensor] = []
        times: list[Tensor] = []
        signs: list[Tensor] = []
        while True:
            awake = since <= dt
            level = before + slope * since
            reference = torch.where(reset & awake, level, reference)
            # the reference at the step's end: from here on d is compared as the next step will see it
            lowered = torch.where(awake, reference - leak * (dt - since), reference)
            change, change_at_end = level - reference, after - lowered
            on = awake & (change_at_end >= self.theta_on)
            fires = on | (awake & (change_at_end <= -self.theta_off))
            where = torch.nonzero(fires)
            if not len(where):
                break
            target = torch.where(on, self.theta_on, -self.theta_off)
            crossing = since + ((target - change) / (change_at_end - change)).clamp(0.0, 1.0) * (dt - since)
            pixel = tuple(where.T)
            found.append(where)
            times.append(torch.floor(crossing[pixel] + 0.5).long())
            signs.append(on[pixel])
            since, reset = torch.where(fires, crossing + self.model.refractory_us, since), fires
        self.reference = lowered
        self.release_us = torch.where(since > dt, since - dt, torch.full_like(since, AWAKE))
        if not found:
            nothing = torch.zeros(0, dtype=torch.int64, device=self.device)
            return (nothing, nothing, nothing), nothing, nothing
        recording, row, column = torch.cat(found).T
        return (recording, row, column), torch.cat(times), torch.cat(signs)

    def simulate(
        self, frames: Tensor | NDArray[Any], t_us: Sequence[int] | Tensor | NDArray[Any], background: bool = True
    ) -> list[Events]:
        """Recordings of whole clips: the events of every frame after the first, with all that the model adds to them.

        Args:
            frames: linear light, [T, H, W] for a batch of one or [B, T, H, W].
            t_us: [T] times of the frames in µs, increasing. Frames should be so close that motion is below half a
                pixel, since the light between two of them is interpolated.
            background: whether shot noise and hot pixels are added.

        Returns:
            B recordings between the first and the last time.
        """
        light = torch.as_tensor(frames)
        light = light[None] if light.ndim == 3 else light
        times = [int(time) for time in t_us]
        if light.ndim != 4 or light.shape[1] != len(times) or len(times) < 2:
            raise FateError(
                f"frames of shape {tuple(light.shape)} and {len(times)} times were given; expected [T, H, W] or"
                " [B, T, H, W] with one time for each of two or more frames"
            )
        self.start(light[:, 0], times[0])
        steps: list[PixelEvents] = []
        chances: list[Tensor] = []
        for i, time in enumerate(times[1:], start=1):
            steps.append(self.step(light[:, i], time))
            if self.model.bursts:
                chance = self.model.burst_probability(light[:, i].to(self.device, self.dtype))
                chances.append(chance[steps[-1].recording, steps[-1].y, steps[-1].x])
        signal = PixelEvents(*(torch.cat(column) for column in zip(*steps, strict=True)))
        chance = torch.cat(chances) if chances else torch.zeros(len(signal.t_us), device=self.device)
        clips = []
        for i, seed in enumerate(self.seeds):
            mine = signal.recording == i
            events = EventColumns(*(column[mine] for column in signal[1:]))
            clips.append(self._finished(events, chance[mine], seed, times[0], times[-1], background))
        return clips

    def _finished(
        self, events: EventColumns, chance: Tensor, seed: int, start_us: int, end_us: int, background: bool
    ) -> Events:
        """One recording's signal with jitter, bursts and background, in time order and inside its span."""
        random = noise.generator(seed, noise.JITTER, start_us, self.device)
        jittered = noise.jitter(events.t_us, self.model.jitter_us, random).clamp(start_us, end_us)
        events = events._replace(t_us=jittered)
        if self.model.bursts:  # after jitter: the gaps in bursts are exact
            random = noise.generator(seed, noise.BURSTS, start_us, self.device)
            events = self.model.with_bursts(events, chance, random)
            inside = events.t_us <= end_us
            events = EventColumns(*(column[inside] for column in events))
        added = [self.model.background(seed, self.device).window(start_us, end_us)] if background else []
        t_us, x, y, p = (column.cpu().numpy() for column in noise.in_time_order(events, *added))
        return Events.trusted(t_us, x.astype(np.uint16), y.astype(np.uint16), p.astype(np.uint8), self.model.sensor)

    def _checked(self, light: Tensor) -> Tensor:
        """The light [B, H, W] on the camera's device, refused if it is none."""
        expected = (self.batch, *self.model.sensor)
        if tuple(light.shape) != expected:
            raise FateError(f"light of shape {tuple(light.shape)} was given; expected [B, H, W] = {expected}")
        light = light.to(self.device, self.dtype)
        low, high = (float(bound) for bound in torch.aminmax(light))
        if not (low >= 0 and math.isfinite(high)):  # also where it is NaN
            raise FateError(f"light from {low} to {high} was given; expected finite numbers from 0 up (1 is white)")
        return light

    def _times(self, t_us: int | Tensor) -> Tensor:
        """Times of all recordings, [B] int64."""
        return torch.as_tensor(t_us, dtype=torch.int64, device=self.device).expand(self.batch)
