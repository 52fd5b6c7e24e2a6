"""Options that several commands share, and how their values are written on the command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from fate.errors import FateError

Sensor = Annotated[
    str | None, typer.Option("--sensor", metavar="WIDTHxHEIGHT", help="Sensor size, if the file does not say.")
]
Format = Annotated[str | None, typer.Option("--format", help="Format of the file, if its content does not say.")]
Columns = Annotated[
    str | None, typer.Option("--columns", help="Order of the columns in a table without names, such as txyp.")
]
TimeUnit = Annotated[str | None, typer.Option("--time-unit", help="Unit of time in a table: s, ms, us or ns.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse a file with a truncated tail.")]
Drop = Annotated[
    bool, typer.Option("--drop-out-of-bounds", help="Drop and count events outside the sensor instead of refusing.")
]
Sort = Annotated[bool, typer.Option("--sort", help="Sort events whose times go back instead of refusing.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Do not keep the time index on disk.")]


def open_options(
    sensor: str | None,
    format: str | None,
    columns: str | None,
    time_unit: str | None,
    strict: bool,
    drop: bool,
    sort: bool,
    no_cache: bool,
) -> dict[str, Any]:
    """Command-line values as arguments of :func:`fate.open_recording`."""
    return {
        "sensor": parse_sensor(sensor) if sensor else None,
        "format": format,
        "columns": columns,
        "time_unit": time_unit,
        "strict": strict,
        "out_of_bounds": "drop" if drop else "raise",
        "unsorted": "sort" if sort else "raise",
        "cache": not no_cache,
    }


def parse_sensor(text: str) -> tuple[int, int]:
    """``"1280x720"`` → ``(720, 1280)``."""
    match = re.fullmatch(r"(\d+)[x×](\d+)", text.strip())
    if not match:
        raise FateError(f"--sensor {text}: expected WIDTHxHEIGHT in pixels, such as 1280x720")
    return int(match[2]), int(match[1])


def parse_roi(text: str) -> tuple[int, int, int, int]:
    """``"x1,y1,x2,y2"`` as four integers."""
    parts = text.split(",")
    try:
        x1, y1, x2, y2 = (int(part) for part in parts)
    except ValueError:
        raise FateError(f"--roi {text}: expected x1,y1,x2,y2 in pixels, such as 0,0,640,360") from None
    return x1, y1, x2, y2


def parse_time(text: str, option: str, start_us: int) -> int:
    """A time in µs: ``1500``, ``1500us``, ``1.5ms``, ``2s``; with ``+`` in front, counted from ``start_us``."""
    match = re.fullmatch(r"(\+?)(-?\d+(?:\.\d+)?)\s*(us|µs|ms|s)?", text.strip())
    if not match:
        raise FateError(f"{option} {text}: expected a time such as 1500us, 1.5ms, 2s, or +2s from the first event")
    scale = {"s": 1_000_000, "ms": 1000}.get(match[3], 1)
    whole, _, fraction = match[2].partition(".")
    digits = len(fraction)
    value, rest = divmod(int(whole + fraction) * scale, int(10**digits))
    if rest:
        raise FateError(f"{option} {text}: is not a whole number of microseconds")
    return value + (start_us if match[1] else 0)


@contextmanager
def progress_bar(label: str) -> Iterator[Any]:
    """A progress bar on the terminal: yields ``update(done, total)``, or None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
