"""The streaming detector: boxes at any rate, from a recording or from events as they come.

    detector = fate.load_detector("fate-s-tiny")
    for frame in detector.stream(recording, hz=200): ...         # a file, window after window

    stream = detector.open_stream(sensor=(720, 1280), hz=200)    # events of one's own
    frames = stream.feed(events)                                 # of the windows that these events close

    for frame in detector.live(source, hz=200): ...              # a camera: on time, or not at all (``live.py``)

What a detector remembers is carried from window to window. A rate need not be one it was trained at: windows last
1 / hz, the encoder sees their length, and a memory that counts time (S5) is told of it. Or windows are longer and
overlap (``window_us``): then a detector sees as many events as it is used to, at any rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike
from typing import TYPE_CHECKING

import torch

from fate.errors import FateError, warn
from fate.events.events import Events, Sensor
from fate.events.window import window_us as hop_of
from fate.formats.opening import open_recording
from fate.formats.recording import Recording
from fate.inference.adapting import Adaptation, adapt
from fate.inference.recording_stream import RecordingStream
from fate.inference.stream_frames import StreamCounts, StreamFrame
from fate.inference.streaming_step import Precision, compile_for_streaming
from fate.inference.window_detector import WEAK, Ids, WindowDetector, check_threshold, set_threads
from fate.inference.windowing import MAX_BACK_US, MAX_GAP_US, LookBack, Windower
from fate.models.detector import Detector
from fate.models.nms import MAX_OVERLAP, Score

if TYPE_CHECKING:
    from fate.inference.live import LiveStream, Source

#: Rates that a stream may have.
LEAST_HZ, MOST_HZ = 1, 1000
#: The longest window, µs: one at the least rate.
LONGEST_US = 1_000_000
#: The least confidence that is shown unless another is asked for.
THRESHOLD = 0.4
#: Boxes of a window, at most.
MOST = 100
#: How long after its end a window is closed by the clock, if no later event has closed it: more than a busy computer
#: keeps a reading thread waiting, for what comes later is lost.
PATIENCE_US = 100_000


class StreamingDetector:
    """A detector with its weights, ready to be run on recordings and cameras. ``fate.load_detector`` gives one."""

    def __init__(
        self,
        model: Detector,
        device: str | torch.device = "cpu",
        precision: Precision | None = None,
        name: str = "",
    ) -> None:
        """Args:
        model: a detector; it is not changed.
        device: "cpu" or "cuda".
        precision: as of ``compile_for_streaming``; None for the device's own.
        name: to be shown.
        """
        self.model, self.device, self.precision = model, device, precision
        self.name = name or str(model.description.get("name", "detector"))
        self._adapted: dict[Sensor, Adaptation] = {}

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names, in the order of class ids."""
        return self.model.classes

    @property
    def sensor(self) -> Sensor:
        """That it was trained on, (height, width); others are adapted to (``adapting.py``)."""
        return self.model.sensor

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return (
            f"StreamingDetector({self.name!r}, {'/'.join(self.classes)}, {self.sensor}, {parameters:,} parameters,"
            f" {self.device})"
        )

    def adapted(self, sensor: Sequence[int]) -> Adaptation:
        """The detector for events of a sensor; what that took is said once, as a warning."""
        size = Sensor.of(sensor)
        if size not in self._adapted:
            self._adapted[size] = adapt(self.model, size)
            if told := self._adapted[size].describe():
                warn(f"{told}; boxes may be less good there")
        return self._adapted[size]

    def stream(
        self,
        recording: Recording | str | PathLike[str],
        hz: float = 200,
        *,
        window_us: int | None = None,
        threshold: float = THRESHOLD,
        track: bool = False,
        start_us: int | None = None,
        end_us: int | None = None,
        threads: int | None = None,
        score: Score = "product",
        max_overlap: float = MAX_OVERLAP,
        most: int = MOST,
        max_gap_us: int = MAX_GAP_US,
    ) -> RecordingStream:
        """Boxes of a recording, window after window, as fast as they are asked for.

        Args:
            recording: of ``fate.open_recording``, or a path. Windows are those of ``recording.windows(hz)``, and of
                an evaluation.
            hz: 1 to 1000; windows a second.
            window_us: their length, where it is not 1 / hz but longer: they overlap, and every event is looked at more
                than once. For detectors that were trained at a lower rate. Frames tell of the time since the last one.
            threshold: the least confidence that is shown: objectness · class, or class where there is no objectness.
            track: give each object a number that it keeps.
            start_us: start of the first window; the first event unless given.
            end_us: no window starts at or after it; the end of the recording unless given.
            threads: of the CPU, for this whole process; None leaves them.
            score: what is shown as the score; "product" is the confidence, "class" the class alone, as evaluations do.
            max_overlap: IoU, 0 to 1, above which the weaker of two boxes of a class goes, so that an object has one
                box (and one track); 1 keeps every box. It holds for all heads, unlike in an evaluation.
            most: boxes of a window.
            max_gap_us: silences in the recording that are longer are skipped, and memory begins anew after them.
        """
        close = ExitStack()
        if isinstance(recording, str | PathLike):
            recording = close.enter_context(open_recording(recording))  # and closed with the stream
        duration, counts = _duration(hz), StreamCounts()
        span = _span(window_us, duration)
        detect = self._window_detector(
            recording.sensor, duration, span, counts, threshold, track, threads, score, max_overlap, most
        )
        return RecordingStream(recording, detect, duration, start_us, end_us, max(max_gap_us, duration), close)

    def open_stream(
        self,
        sensor: Sequence[int],
        hz: float = 200,
        *,
        window_us: int | None = None,
        threshold: float = THRESHOLD,
        track: bool = False,
        start_us: int | None = None,
        threads: int | None = None,
        score: Score = "product",
        max_overlap: float = MAX_OVERLAP,
        most: int = MOST,
        max_back_us: int = MAX_BACK_US,
        max_gap_us: int = MAX_GAP_US,
    ) -> Stream:
        """A stream that is given events as they come.

        Args:
            sensor: (height, width) of the events.
            start_us: start of the first window; the first event unless given.
            max_back_us, max_gap_us: jumps in time after which the stream begins anew, see ``windowing.py``.
            hz, window_us, threshold, track, threads, score, max_overlap, most: as of ``stream``.
        """
        duration, counts = _duration(hz), StreamCounts()
        span = _span(window_us, duration)
        detect = self._window_detector(
            sensor, duration, span, counts, threshold, track, threads, score, max_overlap, most
        )
        gap = max(max_gap_us, duration)
        windower = Windower(sensor, duration, start_us=start_us, max_back_us=max_back_us, max_gap_us=gap, counts=counts)
        return Stream(windower, detect)

    def live(
        self,
        source: Source,
        hz: float = 200,
        *,
        window_us: int | None = None,
        budget_ms: float | None = None,
        waiting: int = 8,
        patience_us: int = PATIENCE_US,
        threshold: float = THRESHOLD,
        track: bool = False,
        threads: int | None = None,
        score: Score = "product",
        max_overlap: float = MAX_OVERLAP,
        most: int = MOST,
        max_back_us: int = MAX_BACK_US,
        max_gap_us: int = MAX_GAP_US,
    ) -> LiveStream:
        """Boxes of a source that does not wait: windows that cannot be detected in time are dropped and counted.

        Args:
            source: of ``sources.py``, ``sockets.py`` or ``camera.py``, or anything like them.
            budget_ms: from a window's closing to its boxes; two windows unless given.
            waiting: windows that may wait for the detector.
            patience_us: how long after its end a window without later events is closed by the clock.
            hz, window_us, threshold, track, threads, score, max_overlap, most: as of ``stream``.
            max_back_us, max_gap_us: as of ``open_stream``.
        """
        from fate.inference.live import LiveStream  # noqa: PLC0415  (it is made of what is here)

        duration, counts = _duration(hz), StreamCounts()
        span = _span(window_us, duration)
        detect = self._window_detector(
            source.sensor, duration, span, counts, threshold, track, threads, score, max_overlap, most
        )
        gap = max(max_gap_us, duration)
        windower = Windower(source.sensor, duration, max_back_us=max_back_us, max_gap_us=gap, counts=counts)
        budget = 2 * duration / 1000 if budget_ms is None else budget_ms
        return LiveStream(source, windower, detect, budget_ms=budget, waiting=waiting, patience_us=patience_us)

    def _window_detector(
        self,
        sensor: Sequence[int],
        duration: int,
        span: int,
        counts: StreamCounts,
        threshold: float,
        track: bool,
        threads: int | None,
        score: Score,
        max_overlap: float,
        most: int,
    ) -> WindowDetector:
        least = check_threshold(threshold)
        if most < 1:
            raise FateError(f"most={most} was given; expected 1 or more boxes of a window")
        set_threads(threads)
        adaptation = self.adapted(sensor)
        step = compile_for_streaming(
            adaptation.model,
            self.device,
            precision=self.precision,
            confidence=WEAK * least if track else least,
            hop_us=duration,
            score=score,
            max_overlap=max_overlap,
            most=most,
        )
        ids = Ids(begin_score=least) if track else None
        back = LookBack(span) if span > duration else None
        detect = WindowDetector(step, adaptation, threshold=least, most=most, ids=ids, counts=counts, back=back)
        detect.warm_up(span)
        return detect


class Stream:
    """Events in, frames out; made by ``StreamingDetector.open_stream``. One thread at a time."""

    def __init__(self, windower: Windower, detect: WindowDetector) -> None:
        self._windower, self._detect = windower, detect

    @property
    def counts(self) -> StreamCounts:
        """What came and what was seen so far."""
        return self._windower.counts

    @property
    def adaptation(self) -> Adaptation:
        """How the detector meets this sensor."""
        return self._detect.adaptation

    def feed(self, events: Events) -> list[StreamFrame]:
        """Frames of the windows that these events close: none, one or many.

        Args:
            events: the next ones, of the stream's sensor, in pieces of any size.
        """
        return [self._detect(closed) for closed in self._windower.add(events)]

    def tick(self, now_us: int) -> list[StreamFrame]:
        """Frames of the windows that are over at ``now_us``, on the clock of the events, though no event said so."""
        return [self._detect(closed) for closed in self._windower.tick(now_us)]

    def close(self) -> list[StreamFrame]:
        """The frame of the window that was still open, if it holds events."""
        return [self._detect(closed) for closed in self._windower.close()]


def _duration(hz: float) -> int:
    if not isinstance(hz, int | float) or not LEAST_HZ <= hz <= MOST_HZ:
        raise FateError(f"a rate of {hz!r} Hz was given; expected {LEAST_HZ} to {MOST_HZ}")
    return hop_of(hz)


def _span(given_us: int | None, hop_us: int) -> int:
    """The length of windows, µs."""
    span = hop_us if given_us is None else int(given_us)
    if not hop_us <= span <= LONGEST_US:
        raise FateError(
            f"windows of {span / 1000:g} ms, one every {hop_us / 1000:g} ms, were asked for; expected them to last as"
            f" long as the time between two, or longer, up to {LONGEST_US / 1000:g} ms"
        )
    return span
