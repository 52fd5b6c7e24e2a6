"""The parameters of an event camera, with the reason for each default, and presets for known sensors."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import nextafter
from typing import Any

from fate.errors import FateError
from fate.events.events import GEN1_SENSOR, Sensor
from fate.simulation.writing.request import check_number, check_switch


def _number(default: float | None, lowest: float, highest: float, unit: str) -> Any:
    """A field that takes a number in this range; anything else, and NaN, is refused when a model is made."""
    return field(default=default, metadata={"range": (lowest, highest, unit)})


@dataclass(frozen=True, kw_only=True)
class CameraModel:
    """Parameters of a sensor; the defaults are those of an ATIS sensor on a car (the preset ``gen1``)."""

    sensor: Sensor = GEN1_SENSOR
    """(height, width) in pixels."""
    threshold_on: float = _number(0.30, 0.001, 10, "in ln(light)")
    """ln(light) by which a pixel must brighten for an ON event; ON above OFF gives the ON share of Gen1, 0.36–0.46."""
    threshold_off: float = _number(0.25, 0.001, 10, "in ln(light)")
    """ln(light) by which a pixel must darken for an OFF event."""
    threshold_sigma: float = _number(0.03, 0, 10, "in ln(light)")
    """Standard deviation of both thresholds over pixels; transistors differ. Clipped at 20 % of the threshold."""
    cutoff_hz: float | None = _number(200.0, 0, 1e9, "Hz, or None")
    """Corner of the photoreceptor's low-pass at full light (I = 1) in Hz; 0 or None for an endlessly fast one."""
    cutoff_floor: float = _number(0.10, 1e-6, 1, "a share")
    """Share of ``cutoff_hz`` that is left in the dark; a photoreceptor slows down with its current."""
    dark_light: float = _number(0.02, 1e-12, 1, "in light, 1 = white in the sun")
    """Light added before the logarithm (dark current and stray light): 1 : 50 is what a pixel can still tell apart."""
    refractory_us: int = _number(1500, 0, 1e9, "µs")
    """Microseconds of reset after an event; Gen1's shortest interval of a pixel is 1.5 to 1.7 ms."""
    leak_hz: float = _number(0.05, 0, 1e5, "Hz")
    """ON events a second that a pixel gives in constant light, by the leak of its reset switch."""
    noise_hz: float = _number(0.10, 0, 1e5, "Hz")
    """Shot-noise events a second and pixel in the dark, mean over the sensor; the noise floor measured in Gen1."""
    noise_light_exponent: float = _number(0.0, 0, 4, "no unit")
    """How shot noise falls with light: its rate is that in the dark times (dark_light / (light + dark_light)) ^ this
    number. With 0, it is the same everywhere; with 1, twice the photocurrent halves it: only dark places show it."""
    noise_sigma: float = _number(1.0, 0, 5, "in ln(rate)")
    """Spread of the shot-noise rate over pixels: standard deviation of ln(rate)."""
    noise_on_share: float = _number(0.5, 0, 1, "a share")
    """Share of ON among the events of shot noise and hot pixels."""
    hot_pixels: int = _number(20, 0, 2**32, "pixels")
    """Number of pixels that fire all the time."""
    hot_hz_min: float = _number(50.0, 1e-6, 1e6, "Hz")
    """Slowest hot pixel in Hz; rates are log-uniform."""
    hot_hz_max: float = _number(500.0, 1e-6, 1e6, "Hz")
    """Fastest hot pixel in Hz."""
    jitter_us: float = _number(20.0, 0, 1e5, "µs")
    """Standard deviation of the time stamps of signal events in µs: arbitration and comparator noise."""
    bursts: bool = False
    """Whether bright, textured places repeat their events, as ATIS sensors do in some recordings."""
    burst_share: float = _number(0.9, 0, 1, "a share")
    """Chance that an event starts a burst on bright texture; falls to 0 at ``burst_light``."""
    burst_light: float = _number(0.05, 0, 0.99, "in light, 1 = white in the sun")
    """Light below which there are no bursts."""
    burst_full_light: float = _number(0.35, 0, 100, "in light, 1 = white in the sun")
    """Light from which on bursts are as frequent as they get; with these numbers about 60 % of the events of a
    recording sit in bursts, in a busy second of Gen1 77 %."""
    burst_contrast: float = _number(0.15, 0, 10, "in ln(light)")
    """ln(light) by which a pixel must differ from a neighbour to count as textured."""
    burst_length: float = _number(3.0, 2, 65_536, "events")
    """Mean number of events in a burst, the first included; a power law from 2 up."""
    burst_longest: int = _number(592, 2, 65_536, "events")
    """Largest number of events in a burst; the longest seen in Gen1."""
    burst_gap_zero: float = _number(0.42, 0, 1, "a share")
    """Share of the gaps in bursts that are 0 µs."""
    burst_gap_one: float = _number(0.18, 0, 1, "a share")
    """Share of the gaps in bursts that are 1 µs."""
    burst_gap_us: float = _number(10.0, 0, 1e5, "µs")
    """The other gaps are 2 µs plus an exponential wait of this mean in µs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensor", Sensor.of(self.sensor))
        check_switch("bursts", self.bursts)
        object.__setattr__(self, "bursts", bool(self.bursts))
        for each in fields(self):
            value = getattr(self, each.name)
            if "range" not in each.metadata or (value is None and "None" in str(each.type)):
                continue
            lowest, highest, unit = each.metadata["range"]
            whole = each.type == "int"
            exact = int(value) if whole and isinstance(value, float) and value.is_integer() else value
            check_number(f"{each.name} ({unit})", exact, lowest, highest, whole)
            object.__setattr__(self, each.name, int(exact) if whole else exact)
        fastest_hz, longest_mean = 1e6 / max(self.refractory_us, 1e-9), (2 + self.burst_longest) / 2
        for name, value, least, most in (  # each is possible on its own, but not with the others
            ("the number of hot pixels", self.hot_pixels, 0, self.sensor.height * self.sensor.width),
            ("hot_hz_max, with this refractory_us,", self.hot_pixels and self.hot_hz_max, 0, nextafter(fastest_hz, 0)),
            ("burst_gap_zero + burst_gap_one", self.burst_gap_zero + self.burst_gap_one, 0, 1),
            ("hot_hz_min", self.hot_hz_min, 0, self.hot_hz_max),
            ("burst_light", self.burst_light, 0, nextafter(self.burst_full_light, 0)),
            ("burst_length", self.burst_length if self.bursts else 2.1, nextafter(2, 3), nextafter(longest_mean, 0)),
        ):
            check_number(name, value, least, most, whole=False)


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
    # A small sensor with a shared readout: lower thresholds, more noise, coarser times.
    "park": CameraModel(
        sensor=Sensor(180, 240),
        threshold_on=0.20,
        threshold_off=0.20,
        cutoff_hz=300.0,
        refractory_us=500,
        leak_hz=0.1,
        noise_hz=0.3,
        jitter_us=40.0,
    ),
    # Nothing but logarithm and thresholds: every event can be worked out by hand.
    "ideal": CameraModel(
        threshold_sigma=0.0, cutoff_hz=None, refractory_us=0, leak_hz=0.0, noise_hz=0.0, hot_pixels=0, jitter_us=0.0
    ),
}


def camera_preset(name: str, **changes: Any) -> CameraModel:
    """A preset by its name in ``PRESETS``, with the given fields of :class:`CameraModel` changed."""
    if not isinstance(name, str) or name not in PRESETS:
        raise FateError(f"camera preset {name!r} was asked for; the presets are {', '.join(PRESETS)}")
    known = [field.name for field in fields(CameraModel)]
    for change in changes:
        if change not in known:
            raise FateError(f"a camera has no field {change!r}; its fields are {', '.join(known)}")
    return replace(PRESETS[name], **changes)
