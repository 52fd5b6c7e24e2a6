"""A sensor of its own for every recording, drawn from the recording's seed: size, lens, pixels and readout.

The profile ``mixed`` has recordings of many cameras in one frame, in which ``framing.py`` puts what a sensor gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fate.events.events import COMMON_FRAME, Sensor
from fate.events.merging import divisor_for
from fate.simulation.camera.camera_model import CameraModel
from fate.simulation.camera.lens import Lens

#: Sizes of sensors, and how often each is drawn.
SIZES = {
    Sensor(128, 128): 0.08,
    Sensor(180, 240): 0.11,
    Sensor(240, 304): 0.20,
    Sensor(260, 346): 0.22,
    Sensor(480, 640): 0.22,
    Sensor(720, 1280): 0.17,
}


class Range(NamedTuple):
    """Values from ``low`` to ``high``, all equally likely; with ``log``, equal ratios are."""

    low: float
    high: float
    log: bool = False

    def draw(self, rng: np.random.Generator) -> float:
        """One of the values."""
        if self.log:
            return float(np.exp(rng.uniform(np.log(self.low), np.log(self.high))))
        return float(rng.uniform(self.low, self.high))


RANGES = {
    "field_of_view": Range(25, 100, log=True),  # degrees across the sensor
    "distortion": Range(-0.3, 0.05),  # k of ``lens.py`` for a field of 100 degrees; in proportion for smaller ones
    "threshold": Range(0.12, 0.5, log=True),  # ln(light)
    "on_to_off": Range(1 / 1.6, 1.6, log=True),  # ratio of the thresholds, whose product is kept
    "mismatch": Range(0.01, 0.08),  # share of the threshold
    "cutoff_hz": Range(30, 2000, log=True),
    "refractory_us": Range(100, 3000, log=True),
    "leak_hz": Range(0, 0.3),
    "noise_hz": Range(0.01, 30, log=True),  # per pixel
    "hot_share": Range(0, 0.001),  # of the pixels
    "jitter_us": Range(5, 40, log=True),
    "readout_mev": Range(5, 50, log=True),  # million events per second that the sensor can give out
}
#: Share of the recordings with bursts.
BURSTS = 0.25
#: Shot noise in the light: in half of the recordings it falls with light, with an exponent of at most this.
NOISE_LIGHT_EXPONENT = 1.2
#: Units of time stamps, µs; one is drawn for each recording.
STEPS_US = (1, 1, 1, 1, 1, 10, 100, 1000)


@dataclass(frozen=True, eq=False)
class RandomSensor:
    """The sensor of one recording, and its place in the frame."""

    size: Sensor
    field_of_view: float  #: degrees, across the sensor
    distortion: float  #: k, see ``lens.py``
    lens: Lens
    camera: CameraModel  #: of the simulated pixels
    readout_mev: float  #: million events per second that it can give out
    step_us: int  #: unit of its time stamps
    divisor: int  #: this many pixels along each side become one pixel of the frame
    left: int  #: column of the frame in which its first column lies; negative if it is cut
    top: int  #: row of the frame in which its first row lies

    def values(self) -> dict[str, Any]:
        """What the manifest lists beside the parameters of the pixels."""
        names = ("field_of_view", "distortion", "readout_mev", "step_us", "divisor", "left", "top")
        return {"sensor": list(self.size), **{name: getattr(self, name) for name in names}}


def draw_sensor(seed: int) -> RandomSensor:
    """The sensor of the recording with this seed."""
    rng = np.random.default_rng([seed, 0x5E45])
    size = list(SIZES)[int(rng.choice(len(SIZES), p=list(SIZES.values())))]
    drawn = {name: each.draw(rng) for name, each in RANGES.items()}
    bursts, step_us = bool(rng.random() < BURSTS), int(rng.choice(STEPS_US))
    more = np.random.default_rng([seed, 0x0153])  # a generator of its own, so that all other values stay as they were
    divisor = divisor_for(size, COMMON_FRAME)
    free = [side - -(-length // divisor) for side, length in zip(COMMON_FRAME, size, strict=True)]
    top, left = (int(rng.integers(min(each, 0), max(each, 0), endpoint=True)) for each in free)
    distortion = drawn["distortion"] * drawn["field_of_view"] / 100
    lens = Lens(size, drawn["field_of_view"], distortion)
    low, high, _ = RANGES["threshold"]
    tilt = np.sqrt(drawn["on_to_off"])
    refractory_us = round(drawn["refractory_us"])
    camera = CameraModel(
        sensor=lens.simulated,
        threshold_on=float(np.clip(drawn["threshold"] * tilt, low, high)),
        threshold_off=float(np.clip(drawn["threshold"] / tilt, low, high)),
        threshold_sigma=drawn["mismatch"] * drawn["threshold"],
        cutoff_hz=drawn["cutoff_hz"],
        refractory_us=refractory_us,
        leak_hz=drawn["leak_hz"],
        noise_hz=drawn["noise_hz"],
        noise_light_exponent=max(float(more.uniform(-NOISE_LIGHT_EXPONENT, NOISE_LIGHT_EXPONENT)), 0.0),
        noise_on_share=float(more.uniform(0, 1)),
        hot_pixels=round(drawn["hot_share"] * lens.simulated.height * lens.simulated.width),
        hot_hz_max=min(CameraModel.hot_hz_max, 0.9e6 / refractory_us),  # a pixel in reset gives no events
        jitter_us=drawn["jitter_us"],
        bursts=bursts,
    )
    facts = drawn["field_of_view"], distortion, lens, camera, drawn["readout_mev"], step_us
    return RandomSensor(size, *facts, divisor, left, top)
