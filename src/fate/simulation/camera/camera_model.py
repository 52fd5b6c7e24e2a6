"""The parameters of an event camera, with the reason for each default, and presets for known sensors."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from fate.errors import FateError
from fate.events.events import Sensor
from fate.events.sensors import GEN1_SENSOR
from fate.simulation.camera import noise
from fate.simulation.camera.noise import BackgroundNoise, EventColumns
from fate.simulation.writing.request import check_switch

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
    """Light from which on bursts are as frequent as they get; with these numbers about 60 % of the events of a
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
        check_switch("bursts", self.bursts)
        object.__setattr__(self, "bursts", bool(self.bursts))
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
        threshold_sigma=0.0, cutoff_hz=None, refractory_us=0, leak_hz=0.0, noise_hz=0.0, hot_pixels=0, jitter_us=0.0
    ),
}


def camera_preset(name: str, **changes: Any) -> CameraModel:
    """A preset by name (``gen1``, ``1mpx``, ``ideal``), with the given fields of :class:`CameraModel` changed."""
    if not isinstance(name, str) or name not in PRESETS:
        raise FateError(f"camera preset {name!r} was asked for; the presets are {', '.join(PRESETS)}")
    known = [field.name for field in fields(CameraModel)]
    for change in changes:
        if change not in known:
            raise FateError(f"a camera has no field {change!r}; its fields are {', '.join(known)}")
    return replace(PRESETS[name], **changes)
