"""``fate info``; ``help.yaml`` explains it."""

from __future__ import annotations

from typing import Unpack

from fate.cli import arguments as args
from fate.text import format_table, grouped


def info(file: str, json_file: str | None = None, **reading: Unpack[args.Reading]) -> None:
    from fate.formats.summary import info as summarise

    args.check_outputs({"--json": json_file}, file)
    with args.opened(file, reading) as recording, args.progress_bar("counting") as update:
        found = summarise(recording, progress=update)
    rows = [
        ("file", found.path),
        ("format", found.format),
        ("sensor", f"{found.width}×{found.height} (x up to {found.x_max}, y up to {found.y_max})"),
        *([("orientation", found.header["orientation"])] if "orientation" in found.header else []),
        ("events", grouped(found.num_events)),
        ("time", f"{found.start_us} to {found.end_us} µs ({found.duration_s:.6f} s)"),
        ("rate", f"{found.rate_hz / 1e6:.3f} Mev/s"),
        ("ON share", f"{100 * found.on_share:.1f} %"),
        ("duplicates", f"{grouped(found.duplicates)} ({100 * found.duplicates / found.num_events:.1f} %)"),
        ("skipped", _counts(found.skipped)),
        ("dropped", _counts(found.dropped)),
        ("time steps back", grouped(found.time_steps_back)),
        ("bytes", f"{grouped(found.bytes_consumed)} of {grouped(found.bytes)} read"),
    ]
    table = format_table(rows, left=(0, 1))
    args.write_and_print(table, json_file, lambda target: args.write_json(target, found.to_dict()))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{grouped(number)} {kind}" for kind, number in counts.items()) or "nothing"
