"""``fate view``; ``help.yaml`` explains it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from typer import Option

from fate.cli import arguments as args
from fate.cli.terminal import note
from fate.quantities import parse_time
from fate.text import plural


def view(
    file: str,
    detections: str | None = None,
    acc: Any = Option("50ms", parser=parse_time),
    start: args.Time = None,
    end: args.Time = None,
    threshold: args.Share = 0.0,
    save: Path | None = None,
    **reading: Unpack[args.Reading],
) -> None:
    args.check_part(start, end)

    from fate.view.rerun_view import TELEMETRY, import_rerun, show_recording

    args.check_inputs(file, detections)
    import_rerun()

    with args.opened(file, reading) as recording:
        first, last = args.times_in(recording, start, end)
        note(TELEMETRY)
        shown = show_recording(
            recording, detections, acc_us=acc.us, threshold=threshold, save=save, start_us=first, end_us=last
        )  # fmt: skip
    print(
        f"{plural(shown.events, 'event')}, {shown.events_left_out} left out, {plural(shown.frames, 'frame')},"
        f" {plural(shown.boxes, 'box', 'boxes')}"
    )
