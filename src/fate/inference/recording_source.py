"""A live source that can be recorded while it is used.

    source = RecordingSource(TcpSource(9000, sensor=(480, 640)))
    source.start("drive.raw")                        # before the first event, or at any time
    with detector.live(source, hz=50) as live:       # the detector gets every event, recorded or not
        for frame in live: ...
    print(source.state)

A thread writes the file, so that a slow disk does not delay detection. If the disk is full or too slow, the recording
stops, ``state.failed`` says why, and the source continues. The file grows in place and has all events before that.

The file has the events in the order in which the source sent them, and decodes to the same events. Detection in a file
and detection in a source both start their windows at the first event, so a recording that was started before the first
event has the windows of the live run.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.formats.saving import open_writer
from fate.inference.sources import LiveSource
from fate.inference.stream_types import MAX_BACK_US
from fate.text import grouped, plural
from fate.whole_files import next_numbered

#: Most events that wait for the disk, about 220 MB; a recording stops when there are more.
MAX_WAITING_EVENTS = 1 << 24


@dataclass(frozen=True)
class RecordingState:
    """What a recording has written so far."""

    #: several if the source came back or time went back by more than a second, which begins drive.001.raw and so on
    files: tuple[Path, ...] = ()
    is_active: bool = False  #: whether events are being recorded
    events: int = 0  #: in the files
    bytes: int = 0  #: of the files
    skipped_events: int = 0  #: not recorded, because they were earlier than the events before, by up to a second
    failed: str = ""  #: a sentence that says why the recording stopped by itself; empty if it did not

    @property
    def path(self) -> Path | None:
        """The first file; None if there is none."""
        return self.files[0] if self.files else None

    def describe(self) -> str:
        """A sentence about the files and what they have, or why the recording stopped."""
        if self.failed:
            return self.failed
        text = (
            f"recorded {', '.join(map(str, self.files))}: {plural(self.events, 'event')} in {grouped(self.bytes)} bytes"
        )
        if self.skipped_events:
            text += f" ({plural(self.skipped_events, 'event')} not recorded, because time went back)"
        return text


class RecordingSource(LiveSource):
    """Yields the events of another source unchanged, and writes them to a file from ``start`` to ``stop``.

    ``start``, ``stop`` and ``state`` may be used from any thread, at any time, and several times.
    """

    def __init__(self, source: LiveSource) -> None:
        super().__init__(source.sensor)
        self._source = source
        self._recorders: list[_Recorder] = []
        with open_writer(os.devnull, (1, 1), "evt3") as writer:  # compiles the writer before the first events arrive
            writer.write(Events([0], [0], [0], [0], (1, 1)))

    @property
    def counts(self) -> dict[str, int]:
        return self._source.counts

    @property
    def reconnections(self) -> int:
        return int(getattr(self._source, "reconnections", 0))

    @property
    def age_s(self) -> Any:
        """The method of this name of the other source, if it has one."""
        return self._source.age_s  # type: ignore[attr-defined]  # an AttributeError is the right answer

    @property
    def state(self) -> RecordingState:
        """What the current recording has written, or the last one if there is none."""
        return self._recorders[-1].state if self._recorders else RecordingState()

    @property
    def recordings(self) -> list[RecordingState]:
        """All recordings so far, in their order."""
        return [recorder.state for recorder in self._recorders]

    def start(self, path: str | os.PathLike[str]) -> None:
        """Record the events from the next piece on into a new file; its suffix is .raw (EVT3), .dat or .csv."""
        if self.state.is_active:
            raise FateError(f"{path}: {self.state.path} is being recorded already; stop that first")
        recorder = _Recorder(Path(path), self.sensor)
        recorder.start()
        self._recorders.append(recorder)

    def stop(self) -> RecordingState:
        """Complete the file and return what it has; does nothing if nothing is being recorded."""
        if self._recorders:
            self._recorders[-1].finish()
        return self.state

    def close(self) -> None:
        """End the source soon, and complete the file with the events that were sent before."""
        self._source.close()
        self.stop()

    def __iter__(self) -> Iterator[Events]:
        try:
            for events in self._source:
                if self._recorders:
                    self._recorders[-1].put(events, self.reconnections)
                yield events
        finally:
            self.stop()


class _Recorder(threading.Thread):
    """The thread that writes one recording."""

    def __init__(self, path: Path, sensor: Sensor) -> None:
        super().__init__(name="fate-recorder", daemon=True)
        self._path, self._writer = path, open_writer(path, sensor, grows=True)
        # events with the reconnections before them; None ends the recording
        self._pieces: queue.SimpleQueue[tuple[Events, int] | None] = queue.SimpleQueue()
        self._change = threading.Lock()
        self._num_waiting = 0  # events in the queue
        self._ends = False
        self._too_slow = ""
        self._last: tuple[int, int] | None = None  # time of the latest event, µs, and the reconnections before it
        self._bytes_before = 0  # of the files that are complete
        self.state = RecordingState((path,), True, bytes=self._writer.flush())

    def put(self, events: Events, reconnections: int) -> None:
        """Record the next events, before which the source had come back so often; does nothing after the end."""
        with self._change:
            if self._ends or not len(events):
                return
            if self._num_waiting + len(events) > MAX_WAITING_EVENTS:
                self._too_slow = (
                    f"{self.state.path}: the disk is too slow, and {plural(self._num_waiting, 'event')} were waiting"
                    " for it; record to a faster one"
                )
                self._end()
                return
            self._num_waiting += len(events)
            self._pieces.put((events, reconnections))

    def finish(self) -> None:
        """Write what waits, and complete the file."""
        with self._change:
            self._end()
        if self.ident is not None and self is not threading.current_thread():
            self.join()

    def _end(self) -> None:
        if not self._ends:
            self._ends = True
            self._pieces.put(None)

    def run(self) -> None:
        failed = ""
        try:
            while (piece := self._pieces.get()) is not None:
                with self._change:
                    self._num_waiting -= len(piece[0])
                self._write(*piece)
            self._writer.close()
            failed = self._too_slow
        except Exception as error:  # whatever it is, nobody may believe that the recording goes on
            self._writer.discard()
            failed = str(error) if isinstance(error, FateError) else f"{self._path}: the writer broke ({error!r})"
            if not self._writer.path.exists():  # it had no events
                self.state = replace(self.state, files=self.state.files[:-1], bytes=self._bytes_before)
        with self._change:
            self._ends, self._pieces = True, queue.SimpleQueue()  # what still waits is dropped
        if failed:
            kept = (
                f"its first {plural(self.state.events, 'event')} were kept" if self.state.files else "no file is left"
            )
            failed = f"{failed}; the recording stopped, and {kept}"
        self.state = replace(self.state, is_active=False, failed=failed)

    def _write(self, events: Events, reconnections: int) -> None:
        """Write events; if the source came back, begin a further file; if time goes back, skip those that are too
        early, or begin a further file.
        """
        if self._last is not None:
            last_us, before = self._last
            if reconnections > before or last_us - int(events.t_us[0]) > MAX_BACK_US:
                self._begin_next_file()
            else:
                skipped = int(events.t_us.searchsorted(last_us))
                self.state = replace(self.state, skipped_events=self.state.skipped_events + skipped)
                events = events[skipped:]
        if len(events):
            self._writer.write(events)
            self._last, total = (int(events.t_us[-1]), reconnections), self.state.events + len(events)
            self.state = replace(self.state, events=total, bytes=self._bytes_before + self._writer.flush())

    def _begin_next_file(self) -> None:
        self._writer.close()
        self._bytes_before = self.state.bytes
        path = next_numbered(self._path, len(self.state.files))
        self._writer = open_writer(path, self._writer.sensor, grows=True)
        self.state = replace(self.state, files=(*self.state.files, path))
