"""``fate view``: a recording in space and time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fate.cli import arguments as args

HELP = """Look at a recording in the rerun viewer: its events as a cloud in x, y and time, boxes, and the event rate.
Needs pip install rerun-sdk.

Example:

  fate view drive.raw

  fate view drive.raw --detections drive.json --start +2s --end +4s --save drive.rrd
"""


def view(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A recording of any format.")],
    detections: Annotated[
        str | None, typer.Option(metavar="FILE", help="Of fate detect --json, or any labels (COCO, Prophesee, npz).")
    ] = None,
    acc: Annotated[str, typer.Option(help="Events of this time are shown at once, such as 50ms.")] = "50ms",
    start: Annotated[str | None, typer.Option(help="Such as 2s, or +2s from the first event.")] = None,
    end: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    threshold: Annotated[float, typer.Option(help="Least score of a box.")] = 0.0,
    save: Annotated[
        Path | None, typer.Option(metavar="OUT.rrd", help="Write a file instead of opening a window.")
    ] = None,
    sensor: args.Sensor = None,
    format: args.Format = None,
) -> None:
    options = args.open_options(sensor, format, None, None, False, False, False, False)
    begin = args.parse_time(start, "--start") if start is not None else None
    stop = args.parse_time(end, "--end") if end is not None else None
    args.check_order(begin, stop)
    time = args.parse_time(acc, "--acc")

    from fate.runtime.detection_log import read_frames
    from fate.view.rerun_view import TELEMETRY, show_recording

    frames, classes = (None, None) if detections is None else read_frames(detections)
    with args.opened(file, options) as recording:
        first = recording.start_us
        print(TELEMETRY)
        shown = show_recording(
            recording, frames, acc_us=time.us, threshold=threshold, classes=classes, save=save,
            start_us=None if begin is None else begin.at(first), end_us=None if stop is None else stop.at(first),
        )  # fmt: skip
    print(f"{shown.events} events, {shown.events_left_out} left out, {shown.frames} frames, {shown.boxes} boxes")
