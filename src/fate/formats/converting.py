"""Copy a recording into another format, whole or in part, with bounded memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, Unpack

from fate.errors import FateError, warn
from fate.events.filters import EventFilters
from fate.formats.opening import OpenOptions, as_recording
from fate.formats.recording import Recording
from fate.formats.saving import open_writer
from fate.progress import Progress


class Converted(NamedTuple):
    """Numbers of events."""

    num_read: int
    num_written: int
    filtered: dict[str, int]  #: dropped by each filter


def convert(
    source: str | os.PathLike[str] | Recording,
    target: str | os.PathLike[str],
    *,
    start_us: int | None = None,
    end_us: int | None = None,
    roi: tuple[int, int, int, int] | None = None,
    filters: str | Sequence[str] = (),
    zero_time: bool = False,
    output_format: str | None = None,
    progress: Progress | None = None,
    **options: Unpack[OpenOptions],
) -> Converted:
    """Copy ``source`` to ``target``; the suffix of ``target`` (or ``output_format``) gives its format.

    Args:
        source: any recording that :func:`fate.open_recording` reads, or one already open.
        target: written whole or not at all; replaced if it exists.
        start_us: first time to copy, in the recording's own µs.
        end_us: first time not to copy.
        roi: ``(x1, y1, x2, y2)``, the last two not included; coordinates and sensor stay as they are.
        filters: events to drop, such as ``["hot-pixels", "background:5ms"]``; see ``fate.events.filters``.
        zero_time: shift times so that the copied part starts at 0.
        output_format: a key of ``fate.formats.saving.WRITERS``.
        progress: called with (events read, events in all).
        options: as for :func:`fate.open_recording`.
    """
    with as_recording(source, **options) as recording:
        if os.path.exists(target) and os.path.samefile(recording.path, target):
            raise FateError(f"{target}: is the recording to convert; give another name for the copy")
        first, last = recording.start_us, recording.end_us
        start, end = first if start_us is None else start_us, last if end_us is None else end_us
        if start_us is not None and end_us is not None and end <= start:
            raise FateError(f"from {start} to {end} µs: the end must come after the start")
        if recording.num_events and (start >= last or end <= first):
            raise FateError(
                f"{recording.path}: nothing lies between the start and the end given; its events span {first} to"
                f" {last} µs"
            )
        if roi is not None:
            x1, y1, x2, y2 = roi
            if not (0 <= x1 < x2 <= recording.sensor.width and 0 <= y1 < y2 <= recording.sensor.height):
                raise FateError(
                    f"roi=({x1}, {y1}, {x2}, {y2}) was given; expected x1 < x2 and y1 < y2 inside the"
                    f" {recording.sensor} sensor (x2, y2 not included)"
                )
        clean = EventFilters(filters, recording.sensor)
        read = written = 0
        shift: int | None = None if zero_time else 0
        with open_writer(target, recording.sensor, output_format) as writer:
            for piece in recording.chunks(start_us=start_us, end_us=end_us):
                read += len(piece)
                events = clean(piece.inside(*roi) if roi else piece)
                if shift is None and len(events):
                    shift = -int(events.t_us[0])
                writer.write(events.shifted(shift) if shift else events)
                written += len(events)
                if progress:
                    progress(read, recording.num_events)
        if writer.format == "NPY":
            warn(f"{target}: an NPY file holds no sensor size; pass sensor={tuple(recording.sensor)} to read it")
        return Converted(read, written, clean.dropped)
