"""``fate view``: a recording in space and time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fate.cli import arguments as args
from fate.cli.terminal import note
from fate.text import plural

SHORT_HELP = "Show a recording in the rerun 3-D viewer."
HELP = """Show a recording in the rerun viewer: its events as a cloud in x, y and time, the boxes, and the event
rate. Needs pip install rerun-sdk.

Example:

  fate view drive.raw

  fate view drive.raw --detections drive.json --start +2s --end +4s --save drive.rrd
"""


def view(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A recording of any supported format.")],
    detections: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Boxes to show: a file of fate detect --json, or labels (COCO, Prophesee, npz)."
        ),
    ] = None,
    acc: Annotated[str, typer.Option(help="Time span of the events shown at once, such as 50ms.")] = "50ms",
    start: args.Start = None,
    end: args.End = None,
    threshold: args.Threshold = 0.0,
    save: Annotated[
        Path | None, typer.Option(metavar="OUT.rrd", help="Write a rerun file instead of opening a window.")
    ] = None,
    sensor: args.Sensor = None,
    format: args.Format = None,
) -> None:
    options = args.open_options(sensor, format, None, None, False, False, False, False)
    begin, stop = args.parse_part(start, end)
    time = args.parse_time(acc, "--acc")

    from fate.boxes.detection_files import read_frames
    from fate.view.rerun_view import TELEMETRY, import_rerun, show_recording

    args.check_inputs(file, detections)
    import_rerun()

    frames, classes = (None, None) if detections is None else read_frames(detections)
    with args.opened(file, options) as recording:
        first = recording.start_us
        note(TELEMETRY)
        shown = show_recording(
            recording, frames, acc_us=time.us, threshold=threshold, classes=classes, save=save,
            start_us=None if begin is None else begin.at(first), end_us=None if stop is None else stop.at(first),
        )  # fmt: skip
    print(
        f"{plural(shown.events, 'event')}, {shown.events_left_out} left out, {plural(shown.frames, 'frame')},"
        f" {plural(shown.boxes, 'box', 'boxes')}"
    )
