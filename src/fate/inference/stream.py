"""The streaming detector: boxes at any rate, from a recording or from events as they arrive.

    detector = fate.load_detector("fate-s-tiny")
    result = detector.detect("drive.raw", hz=200)                # all frames of a file
    result = detector(events, hz=200)                            # of events in memory
    for frame in detector.stream(recording, hz=200): ...         # one frame after another

    stream = detector.open_stream(sensor=(720, 1280), hz=200)    # events of your own
    frames = stream.feed(events)                                 # of the windows that these events close

    for frame in detector.live(source, hz=200): ...              # a camera; late windows are dropped (``live.py``)

The state is carried from window to window. Any rate works, not only the rates of the training: windows last 1 / hz, the
encoder knows their length, and S5 layers scale their step with it. With ``window_us``, windows are longer and overlap,
so that a detector sees as many events as in its training, at any rate.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any, Literal, Unpack

import torch

from fate.boxes.detection_files import DetectionLog
from fate.errors import FateError, warn
from fate.events.events import Events, Sensor
from fate.events.window import WindowGrid
from fate.formats.opening import open_recording
from fate.formats.recording import Recording
from fate.inference.adapting import Adaptation, adapt
from fate.inference.backends.choosing import Say, run_in
from fate.inference.backends.sessions import BF16, Backend, check_backend
from fate.inference.live import LiveStream
from fate.inference.results import DetectionResult
from fate.inference.score_calibration import ScoreCalibration
from fate.inference.sources import LiveSource
from fate.inference.stream_types import Accuracy, StreamFrame, StreamKeywords, StreamOptions
from fate.inference.streaming_step import Precision, StreamingStep
from fate.inference.timing import choose_timing
from fate.inference.window_detector import WindowDetector
from fate.inference.windowing import ClosedWindow, Windower
from fate.models.detector import Detector

#: How long after its end a live window is closed by the clock if no later event has closed it. It must be longer than
#: a busy computer delays the reading thread, because events that arrive later are dropped.
PATIENCE_US = 100_000
#: Windows of a recording that a CPU detects in one call: small detectors are several times as fast as with one.
CLIP_WINDOWS = 16


@dataclass(frozen=True)
class EventsInMemory:
    """Events, to be read like a recording."""

    events: Events

    @property
    def path(self) -> str:
        """What messages call them."""
        return "the events"

    @property
    def sensor(self) -> Sensor:
        """(height, width) in pixels."""
        return self.events.sensor

    @property
    def start_us(self) -> int:
        """Time of the first event."""
        return int(self.events.t_us[0]) if len(self.events) else 0

    @property
    def end_us(self) -> int:
        """One µs after the last event."""
        return int(self.events.t_us[-1]) + 1 if len(self.events) else 0

    def read(self, start_us: int, end_us: int) -> Events:
        """Events with ``start_us <= t < end_us``."""
        return self.events.between(start_us, end_us)

    def chunks(self, max_events: int, *, start_us: int, end_us: int) -> Iterator[Events]:
        """The events of ``[start_us, end_us)``, at most ``max_events`` at once."""
        part = self.read(start_us, end_us)
        return (part[first : first + max_events] for first in range(0, len(part), max_events))


def in_memory(recording: Recording | Events) -> Recording | EventsInMemory:
    """Events wrapped as a recording; a recording is returned as it is, and anything else is refused."""
    if isinstance(recording, Events):
        return EventsInMemory(recording)
    if not isinstance(recording, Recording):
        raise FateError(
            f"{type(recording).__name__} was given to detect objects in; expected a path, a recording or Events:"
            " fate.Events.from_structured makes them from a numpy array with named fields"
        )
    return recording


def part_of(
    recording: Recording | EventsInMemory, start_us: int | None, end_us: int | None
) -> tuple[int | None, int | None]:
    """The part from ``start_us`` to ``end_us``, limited to the recording; a part outside it is refused."""
    first, last = recording.start_us, recording.end_us
    late, early = start_us is not None and start_us >= last, end_us is not None and end_us <= first
    if late or early:
        asked = f"starts at {start_us} µs" if late else f"ends at {end_us} µs"
        raise FateError(
            f"{recording.path}: a part that {asked} was asked for, and the recording goes from {first} to {last} µs"
            f" ({(last - first) / 1e6:.2f} s); times such as +2s count from the first event"
        )
    return None if start_us is None else max(start_us, first), None if end_us is None else min(end_us, last)


class StreamingDetector:
    """A detector with its weights, ready for recordings and cameras. ``fate.load_detector`` returns one."""

    def __init__(
        self,
        model: Detector,
        device: str | torch.device = "cpu",
        precision: Precision | None = None,
        name: str = "",
        downscale: int = 1,
        accuracy: Sequence[Accuracy] = (),
        calibration: ScoreCalibration | None = None,
        sensors: Collection[Sensor] = (),
        backend: Backend = "torch",
        say: Say | None = None,
    ) -> None:
        """``model`` is not changed. ``name`` is shown in results; the name of the model unless given.

        ``downscale`` is that of the recordings of its training; see ``adapting.py``. ``accuracy`` is what its weights
        state about windows of several lengths; see ``timing.py``. ``calibration`` turns its confidences into scores.
        ``sensors`` are those whose events it saw in training, if they are not all of the size of ``model.sensor``.
        ``backend`` and ``say`` are those of ``backends.choosing.run_in``.
        """
        check_backend(backend, device)
        if backend == BF16 and precision not in (None, "bfloat16"):
            raise FateError(
                f"precision={precision!r} was given with backend={backend}, which computes in bfloat16; give no"
                " precision, or backend=openvino"
            )
        self.model, self.device, self.precision, self.backend = model, device, precision, backend
        self.classes = model.classes  #: names of the classes, in the order of class ids
        self.sensor = model.sensor  #: (height, width) of the training; see ``adapting.py`` for other sensors
        self.name = name or str(model.description.get("name", "detector"))
        self.accuracy = tuple(accuracy)  #: AP by rate and length of windows, as the weights state it
        self.calibration = calibration or ScoreCalibration()  #: from confidences to scores, and the default threshold
        self.sensors = frozenset(sensors)  #: whose events the detector saw in training, by the header of its weights
        self._downscale, self._say = downscale, say
        self._adapted: dict[tuple[Sensor, bool], Adaptation] = {}
        # by the id of the adapted model, which ``_adapted`` keeps, and the state of its weights then
        self._prepared: dict[int, tuple[int, StreamingStep]] = {}

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return (
            f"StreamingDetector({self.name!r}, {'/'.join(self.classes)}, {self.sensor}, {parameters:,} parameters,"
            f" {self.device})"
        )

    def adapted(self, sensor: Sequence[int], clips: bool = False) -> Adaptation:
        """The detector for events of a sensor, in its backend; a warning says once what was changed for the sensor.

        ``clips`` tells whether windows are detected 16 at a time; the fastest backend depends on it.
        """
        size = Sensor.of(sensor)
        key = size, clips and self.backend == "auto"
        if key not in self._adapted:
            found = adapt(self.model, size, self._downscale)
            is_known = size in self.sensors or any(size == other for other, _ in self._adapted)
            if not is_known and (change := found.describe()):
                warn(f"{change}; boxes may be less good there")
            model = run_in(found.model, self.backend, self.device, clips=clips, say=self._say)
            self._adapted[key] = replace(found, model=model)
        return self._adapted[key]

    def stream(
        self,
        recording: Recording | Events | str | PathLike[str],
        hz: float = 200,
        *,
        start_us: int | None = None,
        end_us: int | None = None,
        **options: Unpack[StreamKeywords],
    ) -> RecordingStream:
        """Detect objects in all windows of a recording, as fast as the frames are asked for.

        Args:
            recording: open, a path, or events in memory. ``recording.windows(hz)`` and an evaluation have the same
                windows.
            hz: windows per second, 1 to 1000.
            start_us: start of the first window; the first event unless given.
            end_us: no window starts at or after it; the end of the recording unless given.
            options: ``window_us``, ``threshold``, ``track``, ``threads``, ``score``, ``max_overlap``, ``most``,
                ``max_back_us``, ``max_gap_us``, ``clip_windows`` and ``filters``, the fields of
                :class:`StreamOptions`.
        """
        close = ExitStack()
        if isinstance(recording, str | PathLike):
            recording = close.enter_context(open_recording(recording))  # closed with the stream
        opened = in_memory(recording)
        detect = self.window_detector(opened.sensor, StreamOptions(hz, **options))
        return RecordingStream(opened, detect, start_us, end_us, close)

    def detect(
        self,
        recording: Recording | Events | str | PathLike[str],
        hz: float | Literal["auto"] = 200,
        *,
        start_us: int | None = None,
        end_us: int | None = None,
        **options: Unpack[StreamKeywords],
    ) -> DetectionResult:
        """Detect objects in a recording, and return all frames at once.

        Args:
            recording: a path, an open recording, or events in memory.
            hz: windows per second, 1 to 1000, or "auto" for the highest rate that this machine detects as fast as the
                recording was made.
            start_us, end_us: part of the recording, µs of its clock.
            options: same as for :meth:`stream`. Unless ``window_us`` is given, windows have the length that is most
                accurate by the header of the weights.

        Example:
            >>> result = fate.load_detector("fate-s-tiny").detect("drive.raw", hz=100)    # doctest: +SKIP
            >>> result[0].plot()                                                          # doctest: +SKIP
            >>> result.to_pandas()                                                        # doctest: +SKIP
        """
        with ExitStack() as close:
            if isinstance(recording, str | PathLike):
                recording = close.enter_context(open_recording(recording))
            opened = in_memory(recording)
            name = opened.path.name if isinstance(opened, Recording) else "events"
            if isinstance(opened, Recording):
                opened.refuse_empty()
            part = part_of(opened, start_us, end_us)
            chosen, _ = self.choose_options(opened.sensor, hz, **options)
            frames = list(self.stream(recording, start_us=part[0], end_us=part[1], **asdict(chosen)))
        log = DetectionLog(name, opened.sensor, tuple(self.classes), chosen.hz, frames, {"model": self.name})
        return DetectionResult(log, frames)

    def __call__(
        self, events: Recording | Events | str | PathLike[str], hz: float | Literal["auto"] = 200, **options: Any
    ) -> DetectionResult:
        """Detect objects in events: the same as :meth:`detect`, with the same arguments. State starts empty."""
        return self.detect(events, hz, **options)

    def choose_options(
        self, sensor: Sequence[int], hz: float | Literal["auto"], **options: Unpack[StreamKeywords]
    ) -> tuple[StreamOptions, str]:
        """The options of a stream over a whole recording, and why its rate and windows were chosen.

        The arguments are the same as for :meth:`detect`; ``sensor`` is (height, width).
        """
        options.setdefault("clip_windows", CLIP_WINDOWS)
        asked = StreamOptions(200 if hz == "auto" else hz, **options)
        timing = choose_timing(self, sensor, hz, asked.window_us)
        return replace(asked, hz=timing.hz, window_us=timing.window_us), timing.reason

    def open_stream(
        self, sensor: Sequence[int], hz: float = 200, *, start_us: int | None = None, **options: Unpack[StreamKeywords]
    ) -> Stream:
        """Open a stream that is given events of a sensor (height, width) as they arrive.

        The other arguments are the same as for :meth:`stream`.
        """
        detect = self.window_detector(sensor, StreamOptions(hz, **options))
        return Stream(detect.windower(start_us), detect)

    def live(
        self,
        source: LiveSource,
        hz: float = 200,
        *,
        budget_ms: float | None = None,
        waiting: int = 8,
        patience_us: int = PATIENCE_US,
        **options: Unpack[StreamKeywords],
    ) -> LiveStream:
        """Detect objects in a live source; windows that cannot be detected in time are dropped and counted.

        Args:
            source: from ``sources.py``, or an object with the same methods.
            hz: windows per second, 1 to 1000.
            budget_ms: longest time from a window's end to its boxes; the length of two hops unless given.
            waiting: number of windows that may wait for the detector.
            patience_us: how long after its end a window without later events is closed by the clock.
            options: the same as for ``stream``.
        """
        detect = self.window_detector(source.sensor, StreamOptions(hz, **options))
        budget = 2 * detect.options.hop_us / 1000 if budget_ms is None else budget_ms
        windower = detect.windower()
        return LiveStream(source, windower, detect, budget_ms=budget, waiting=waiting, patience_us=patience_us)

    def window_detector(self, sensor: Sequence[int], options: StreamOptions) -> WindowDetector:
        """Detects one window after another of a sensor (height, width), with a state of its own.

        On a CPU, all of them share one copy of the network: to prepare a copy takes longer than most windows.
        """
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        adapted = self.adapted(sensor, options.clip_windows > 1)
        tensors = [*adapted.model.parameters(), *adapted.model.buffers()]
        changes = sum(0 if tensor.is_inference() else tensor._version for tensor in tensors)
        known, prepared = self._prepared.get(id(adapted.model), (-1, None))
        prepared = prepared if known == changes else None  # weights may have been changed meanwhile
        made = WindowDetector(adapted, options, self.device, self.precision, self.calibration, prepared)
        if torch.device(self.device).type == "cpu":
            self._prepared[id(adapted.model)] = changes, made.step
        return made


class Stream:
    """Events in, frames out; made by ``StreamingDetector.open_stream``. It may be used by one thread at a time."""

    def __init__(self, windower: Windower, detect: WindowDetector) -> None:
        self._windower, self._detect = windower, detect
        self.counts = windower.counts  #: what was received, detected and dropped so far
        self.adaptation = detect.adaptation  #: how the detector was adapted to this sensor

    def feed(self, events: Events) -> list[StreamFrame]:
        """Frames of the windows that these events close: the next events of the sensor, in pieces of any size."""
        return [self._detect(closed) for closed in self._windower.add(events)]

    def tick(self, now_us: int) -> list[StreamFrame]:
        """Frames of the windows that are over at ``now_us`` on the clock of the events, without a later event."""
        return [self._detect(closed) for closed in self._windower.tick(now_us)]

    def close(self) -> list[StreamFrame]:
        """The frame of the open window, if it has events."""
        return [self._detect(closed) for closed in self._windower.close()]


class RecordingStream(AbstractContextManager["RecordingStream"]):
    """The frames of a recording; made by ``StreamingDetector.stream``. ``len`` is their number if none are skipped."""

    def __init__(
        self,
        recording: Recording | EventsInMemory,
        detect: WindowDetector,
        start_us: int | None,
        end_us: int | None,
        close: ExitStack,
    ) -> None:
        self.recording, self._detect, self._close = recording, detect, close
        detect.source = recording.events if isinstance(recording, EventsInMemory) else recording
        self.counts = detect.counts  #: what was read, detected and skipped so far
        self.adaptation = detect.adaptation  #: how the detector was adapted to this sensor
        self.start_us = recording.start_us if start_us is None else int(start_us)
        self.end_us = recording.end_us if end_us is None else int(end_us)
        self._grid = WindowGrid(self.start_us, detect.options.hop_us, detect.options.hop_us)
        self._frames = self._all_frames()

    def __len__(self) -> int:
        return self._grid.count(self.end_us)

    def __iter__(self) -> Iterator[StreamFrame]:
        return self

    def __next__(self) -> StreamFrame:
        return next(self._frames)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End early; a recording that was opened for the stream is closed."""
        self._frames.close()
        self._close.close()

    def _all_frames(self) -> Generator[StreamFrame, None, None]:
        """Detect window by window, or in clips, which end before a restart."""
        most = min(self._detect.options.clip_windows, self._detect.step.clip_windows)
        waiting: list[ClosedWindow] = []
        decode_ms = 0.0
        for closed, spent in self._windows():
            if waiting and (closed.restarted or len(waiting) == most):
                yield from self._detect.clip(waiting, decode_ms)
                waiting, decode_ms = [], 0.0
            waiting.append(closed)
            decode_ms += spent
        if waiting:
            yield from self._detect.clip(waiting, decode_ms)

    def _windows(self) -> Iterator[tuple[ClosedWindow, float]]:
        """The windows in order, and the time in ms that reading and filtering each of them took."""
        index, reason = 0, ""
        silent_until = self.start_us  # time of the next event, as far as it is known
        with self._close:
            while index < len(self):
                started = time.perf_counter()
                window = self._grid.window(index)
                events = self.recording.read(window.start_us, window.end_us)
                spent = 1e3 * (time.perf_counter() - started)
                if not len(events) and index:
                    if silent_until <= window.start_us:
                        later = self.recording.chunks(1, start_us=window.start_us, end_us=self.end_us)
                        silent_until = next((int(chunk.t_us[0]) for chunk in later), self.end_us)
                    gap = silent_until - window.start_us
                    if gap > self._detect.options.gap_us:
                        reason = self.counts.restart(f"no events for {gap / 1e6:g} s before {silent_until} µs")
                        index += self.counts.skip(gap, self._grid.hop_us)
                        continue
                started = time.perf_counter()
                kept = self._detect.filters.next_window(events, reason)
                yield ClosedWindow(window, kept, reason), spent + 1e3 * (time.perf_counter() - started)
                index, reason = index + 1, ""
