"""``fate convert``: copy a recording into another format."""

from __future__ import annotations

from typing import Annotated

import typer

from fate.cli import arguments as args
from fate.text import grouped, plural

SHORT_HELP = "Copy a recording, or a part of it, to another format."
HELP = """Copy a recording, or a part of it, to another format. The suffix of OUT selects the format: .dat, .raw
(EVT3), .hdf5 (Prophesee), .h5 (the layout of RVT), .npz, .npy or .csv.

Example:

  fate convert drive.raw drive.h5

  fate convert drive.aedat4 part.dat --start +2s --end +4s --roi 0,0,320,240 --zero-time
"""


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A recording of any supported format.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="OUT", help="File to write; an existing one is replaced. With --to csv, - is standard output."
        ),
    ],
    start: args.Start = None,
    end: args.End = None,
    roi: Annotated[
        str | None,
        typer.Option(
            metavar="X1,Y1,X2,Y2",
            help="Copy only events of these pixels (X2 and Y2 not included); coordinates do not change.",
        ),
    ] = None,
    zero_time: Annotated[bool, typer.Option("--zero-time", help="Shift times so that the copy starts at 0.")] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="Format of OUT, if its suffix does not show it: dat, evt2, evt21, evt3, prophesee-hdf5, rvt-hdf5, npz,"
            " npy or csv.",
        ),
    ] = None,
    sensor: args.Sensor = None,
    format: args.Format = None,
    columns: args.Columns = None,
    time_unit: args.TimeUnit = None,
    strict: args.Strict = False,
    drop: args.Drop = False,
    sort: args.Sort = False,
    no_cache: args.NoCache = False,
) -> None:
    begin, stop = args.parse_part(start, end)
    region = args.parse_roi(roi) if roi is not None else None
    output_format = args.choice("--to", to, args.WRITABLE)
    options = args.open_options(sensor, format, columns, time_unit, strict, drop, sort, no_cache)

    from fate.formats.converting import convert as copy
    from fate.formats.saving import find_writer
    from fate.whole_files import find_target

    writer = find_writer(target, output_format)
    find_target(target, text=writer.text, seeks=writer.seeks)  # refused before the recording is read
    with args.opened(source, options) as recording, args.progress_bar("converting") as update:
        done = copy(
            recording,
            target,
            start_us=begin.at(recording.start_us) if begin else None,
            end_us=stop.at(recording.start_us) if stop else None,
            roi=region,
            zero_time=zero_time,
            output_format=output_format,
            progress=update,
        )
    args.printer(target)(f"{target}: {grouped(done.num_written)} of {plural(done.num_read, 'event')} written")
