"""``fate convert``; ``help.yaml`` explains it."""

from __future__ import annotations

from typing import Any, Unpack

from typer import Argument, Option

from fate.cli import arguments as args
from fate.text import grouped, plural


def convert(
    source: str = Argument(..., metavar="IN", help="A recording of any supported format."),
    target: str = Argument(
        ..., metavar="OUT", help="File to write; an existing one is replaced. With --to csv, - is standard output."
    ),
    start: args.Start = None,
    end: args.End = None,
    roi: Any = Option(
        None,
        metavar="X1,Y1,X2,Y2",
        parser=args.parse_roi,
        help="Copy only events of these pixels (X2 and Y2 not included); coordinates do not change.",
    ),
    zero_time: bool = Option(False, "--zero-time", help="Shift times so that the copy starts at 0."),
    to: Any = Option(
        None,
        parser=args.choice(*args.WRITABLE),
        help=f"Format of OUT, if its suffix does not show it: {', '.join(args.WRITABLE[:-1])} or {args.WRITABLE[-1]}.",
    ),
    **reading: Unpack[args.Reading],
) -> None:
    args.check_part(start, end)

    from fate.formats.converting import convert as copy
    from fate.formats.saving import find_writer
    from fate.whole_files import find_target

    writer = find_writer(target, to)
    find_target(target, text=writer.text, seeks=writer.seeks)  # refused before the recording is read
    with args.opened(source, reading) as recording, args.progress_bar("converting") as update:
        first, last = args.times_in(recording, start, end)
        done = copy(
            recording, target, start_us=first, end_us=last, roi=roi, zero_time=zero_time, output_format=to,
            progress=update,
        )  # fmt: skip
    args.printer(target)(f"{target}: {grouped(done.num_written)} of {plural(done.num_read, 'event')} written")
