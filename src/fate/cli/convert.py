"""``fate convert``; ``help.yaml`` explains it."""

from __future__ import annotations

from typing import Any, Unpack

from typer import Option

from fate.cli import arguments as args
from fate.text import grouped, plural


def convert(
    source: str,
    target: str,
    start: args.Time = None,
    end: args.Time = None,
    roi: Any = Option(None, parser=args.parse_roi),
    zero_time: bool = False,
    to: Any = Option(None, parser=args.choice(*args.WRITABLE)),
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
