"""``fate convert``; ``help.yaml`` explains it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Unpack

from typer import BadParameter, Option

from fate.cli import arguments as args
from fate.cli.terminal import note, with_options
from fate.errors import FateError
from fate.quantities import ClockTime, parse_roi
from fate.text import grouped, one_line, plural


def convert(
    source: str,
    target: str,
    start: args.Time = None,
    end: args.Time = None,
    roi: Any = Option(None, parser=parse_roi),
    filters: args.Filters = None,
    zero_time: bool = False,
    to: Any = Option(None, parser=args.choice(*args.WRITABLE)),
    frames: str | None = None,
    fps: float | None = None,
    recording: str | None = None,
    classes: Any = Option(None, parser=args.parse_names),
    clip: bool = False,
    skip_empty: bool = False,
    **reading: Unpack[args.Reading],
) -> None:
    if frames is not None or fps is not None:
        if roi is not None or filters or zero_time or to is not None or end is not None or (frames and fps):
            raise BadParameter(
                "labels of a program go with --frames or --fps, and without --roi, --filter, --zero-time, --to, --end"
            )
        if start is not None and fps is None:
            raise BadParameter("--start is the time of frame 0 with --fps; --frames has the time of every frame")
        given = {"frames": frames, "fps": fps, "classes": classes, "clip": clip, "skip_empty": skip_empty}
        _import_labels(source, target, recording, start, given, reading)
        return
    if recording is not None or classes is not None or clip or skip_empty:
        raise BadParameter("--recording, --classes, --clip and --skip-empty go with --frames TABLE or --fps RATE")
    if Path(source).suffix.lower() in (".xml", ".json"):
        raise BadParameter(f"{source} looks like labels of a program; give --frames TABLE or --fps RATE for its times")
    args.check_part(start, end)

    from fate.events.filters import check_filters
    from fate.formats.converting import convert as copy
    from fate.formats.saving import find_writer
    from fate.whole_files import find_target

    with args.bad_usage():
        check_filters(filters or ())
    writer = find_writer(target, to)
    replaces = _says_replaced(target)
    find_target(target, text=writer.text, seeks=writer.seeks)  # refused before the recording is read
    with args.opened(source, reading) as opened, args.progress_bar("converting") as update:
        first, last = args.times_in(opened, start, end)
        done = copy(
            opened, target, start_us=first, end_us=last, roi=roi, filters=filters or (), zero_time=zero_time,
            output_format=to, progress=update,
        )  # fmt: skip
    filtered = [f"; {grouped(count)} dropped by {name}" for name, count in done.filtered.items()]
    written = f"{grouped(done.num_written)} of {plural(done.num_read, 'event')} written"
    args.printer(target)(f"{target}: {written}{''.join(filtered)}{replaces}")


def _says_replaced(target: str) -> str:
    """What to add to the line about a file or folder that is written, if it is there already."""
    return "; it replaces an older one" if os.path.isfile(target) or os.path.isdir(target) else ""


def _import_labels(
    source: str, target: str, recording: str | None, start: ClockTime | None, given: dict[str, Any],
    reading: args.Reading,
) -> None:  # fmt: skip
    """Write the labels of a labelling program as a label file."""
    args.check_inputs(given["frames"], recording)
    if recording is None and start is None and given["fps"] is not None:
        raise BadParameter("--fps needs the time of frame 0; give --recording FILE (its first event), or --start TIME")
    if recording is None and start is not None and start.from_start:
        raise BadParameter(f"--start +{start.us}us counts from the first event; give --recording FILE")
    if not Path(target).is_dir():  # an existing folder of YOLO text may be replaced; the writer checks it
        args.check_outputs({"OUT": target}, source, given["frames"], recording, binary=("OUT",))

    from fate.boxes.importing import ExportError, read_export
    from fate.boxes.label_files import write_labels

    about: dict[str, Any] = {"start_us": 0 if start is None else start.us, "sensor": reading.get("sensor")}
    if recording is not None:
        with args.opened(recording, reading) as opened:
            first = opened.start_us if start is None else start.at(opened.start_us)
            about = {"start_us": first, "span_us": (opened.start_us, opened.end_us), "sensor": opened.sensor}
            about["recording"] = recording
    try:
        done = read_export(source, **given, **about)
    except ExportError as error:
        for problem in error.problems:
            print(f"{source}: {with_options(one_line(problem))}", file=sys.stderr)
        count = plural(len(error.problems), "problem")
        raise FateError(
            f"{source}: {count}, listed above; nothing was written; correct the labels, export again"
        ) from None
    replaces = _says_replaced(target)
    write_labels(target, done.labels)
    labels = done.labels
    for text in done.notes:
        note(with_options(text))
    counts = [int((labels.class_id == index).sum()) for index in range(len(labels.classes or ()))]
    named = ", ".join(f"{count} {name}" for name, count in zip(labels.classes or (), counts, strict=True))
    print(
        f"{target}: {plural(len(labels), 'box', 'boxes')} at {plural(len(labels.labelled_us), 'labelled time')} from"
        f" {done.tool}{f' ({named})' if named else ''}{replaces}"
    )
