"""The pixel of an event camera: a readable model in torch. Its parameters are in ``camera_model.py``.

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
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.errors import FateError
from fate.events.events import Events
from fate.simulation.camera import noise
from fate.simulation.camera.camera_model import CameraModel
from fate.simulation.camera.noise import BackgroundNoise, EventColumns
from fate.simulation.writing.request import check_number

LOWEST_THRESHOLD_SHARE = 0.2  # mismatch never takes a pixel below this share of the nominal threshold
PHASE_SHARE = 0.999  # how much of the range between the thresholds a pixel may have used up at the start
AWAKE = -1.0  # release time of a pixel that is not in reset


def pixel_maps(model: CameraModel, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return theta_on, theta_off and phase (v − m at the start) of every pixel of the sensor with this seed.

    Each is [H, W] float64 in ln(light). They are drawn on the CPU, so they are the same on every device.
    """
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
    return theta_on, theta_off, phase


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
        if dtype not in (torch.float32, torch.float64):
            raise FateError(f"the dtype {dtype} was asked for; a pixel's state is float32 or float64")
        if not isinstance(model, CameraModel):
            raise FateError(f"the model {model!r} was given; expected a CameraModel, such as camera_preset('gen1')")
        check_number("the batch", batch, 1)
        batch = int(batch)
        try:
            self.seeds = [operator.index(seed) for seed in (range(batch) if seeds is None else seeds)]
        except TypeError:
            self.seeds = []
        if len(self.seeds) != batch:
            raise FateError(f"the seeds {seeds!r} were given; expected {batch}, a whole number for each recording")
        try:
            self.device = torch.device(device)
            torch.zeros(1, device=self.device).item()
        except (RuntimeError, AssertionError, TypeError, ValueError) as error:  # torch has no error of its own for this
            reason = str(error).partition("\n")[0].rstrip(".")
            given = f"device={str(device)!r} cannot be used ({reason})"
            raise FateError(f"{given}; give 'cpu', or 'cuda' with a GPU") from None
        self.model, self.batch, self.dtype = model, batch, dtype
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

        Returns the events after the previous time and up to ``t_us``. Events of one recording and microsecond are
        ordered by rows over pixels, and by their crossing within a pixel.
        """
        if self._t_us is None:
            raise FateError("the camera has no picture to compare with; call start(light, t_us) before step")
        light, now = self._checked(light), self._times(t_us)
        span = now - self._t_us  # [B]
        if int(span.min()) <= 0:
            raise FateError(f"a step to {now.tolist()} µs was asked for at {self._t_us.tolist()} µs; time must go on")
        dt = span.to(self.dtype)[:, None, None]
        receptor = self._photoreceptor(light, dt)
        events = self._comparator(receptor, dt)
        order = torch.argsort(events[0] * (int(span.max()) + 1) + events[1], stable=True)
        events[1] += self._t_us[events[0]]
        self.receptor, self._t_us = receptor, now
        return PixelEvents(*events[:, order])

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

    def _comparator(self, after: Tensor, dt: Tensor) -> Tensor:
        """Return the crossings while v goes from ``receptor`` to ``after``, with the rows of :class:`PixelEvents`.

        Times are µs into the step. ``reference`` and ``release_us`` move on to the step's end.
        """
        before, reference = self.receptor, self.reference
        slope = (after - before) / dt
        leak = self.model.leak_hz * self.theta_on / 1e6  # per µs
        since = self.release_us.clamp(min=0.0)  # from when the comparator is awake, µs into the step
        reset = self.release_us >= 0
        found = [torch.zeros((5, 0), dtype=torch.int64, device=self.device)]
        while True:
            awake = since <= dt
            level = before + slope * since
            reference = torch.where(reset & awake, level, reference)
            # the reference at the step's end: from here on d is compared as the next step will see it
            lowered = torch.where(awake, reference - leak * (dt - since), reference)
            change, change_at_end = level - reference, after - lowered
            on = awake & (change_at_end >= self.theta_on)
            fires = on | (awake & (change_at_end <= -self.theta_off))
            pixel = torch.nonzero(fires, as_tuple=True)
            if not len(pixel[0]):
                break
            target = torch.where(on, self.theta_on, -self.theta_off)
            crossing = since + ((target - change) / (change_at_end - change)).clamp(0.0, 1.0) * (dt - since)
            recording, y, x = pixel
            found.append(torch.stack([recording, torch.floor(crossing[pixel] + 0.5).long(), x, y, on[pixel].long()]))
            since, reset = torch.where(fires, crossing + self.model.refractory_us, since), fires
        self.reference = lowered
        self.release_us = torch.where(since > dt, since - dt, torch.full_like(since, AWAKE))
        return torch.cat(found, 1)

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
        if any(time != exact for time, exact in zip(times, t_us, strict=True)):
            raise FateError("times between microseconds were given; times are whole microseconds, not seconds")
        if not light.is_floating_point() or light.ndim != 4 or light.shape[1] != len(times) or len(times) < 2:
            raise FateError(
                f"frames {tuple(light.shape)} of {light.dtype} and {len(times)} times were given; expected"
                " linear light as floats, [T, H, W] or [B, T, H, W], with one time for each of two or more frames; 1 is"
                " white: divide 8-bit frames by 255, and undo their gamma"
            )
        self.start(light[:, 0], times[0])
        steps: list[PixelEvents] = []
        chances: list[Tensor] = []
        for i, time in enumerate(times[1:], start=1):
            steps.append(self.step(light[:, i], time))
            if self.model.bursts:
                chance = noise.burst_probability(self.model, light[:, i].to(self.device, self.dtype))
                chances.append(chance[steps[-1].recording, steps[-1].y, steps[-1].x])
        signal = PixelEvents(*(torch.cat(column) for column in zip(*steps, strict=True)))
        chance = torch.cat(chances) if chances else torch.zeros(len(signal.t_us), device=self.device)
        ends = torch.tensor(times, device=self.device)
        clips = []
        for i, seed in enumerate(self.seeds):

            def light_of(events: EventColumns, own: Tensor = light[i]) -> Tensor:
                return own.to(self.device)[torch.searchsorted(ends, events.t_us), events.y, events.x]

            own = signal.recording == i
            events = EventColumns(*signal[1:]).select(own)
            events = noise.jittered(self.model, events, chance[own], seed, times[0], (times[0], times[-1]))
            pieces = [events.select(events.t_us <= times[-1])]
            if background:
                pieces.append(BackgroundNoise(self.model, seed, self.device).window(times[0], times[-1], light_of))
            clips.append(noise.in_time_order(*pieces).to_events(self.model.sensor))
        return clips

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
