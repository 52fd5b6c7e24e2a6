"""Options that several commands share, and how their values are written on the command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fate.cli.wording import with_options
from fate.errors import FateError

if TYPE_CHECKING:
    from fate.formats.recording import Recording

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


FORMATS = ("dat", "evt2", "evt21", "evt3", "hdf5", "aedat2", "aedat4", "es", "npy", "npz", "csv", "ros")
WRITABLE = ("dat", "evt2", "evt21", "evt3", "prophesee-hdf5", "rvt-hdf5", "npz", "npy", "csv")
TIME_UNITS = ("s", "ms", "us", "ns")


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
    """Command-line values as arguments of :func:`fate.open_recording`; bad ones are bad usage."""
    if columns is not None and sorted(columns) != sorted("txyp"):
        raise typer.BadParameter(f"--columns {columns}: expected each of t, x, y, p once, such as txyp")
    return {
        "sensor": parse_sensor(sensor) if sensor is not None else None,
        "format": choice("--format", format, FORMATS),
        "columns": columns,
        "time_unit": choice("--time-unit", time_unit, TIME_UNITS),
        "strict": strict,
        "out_of_bounds": "drop" if drop else "raise",
        "unsorted": "sort" if sort else "raise",
        "cache": not no_cache,
    }


def choice(option: str, given: str | None, known: tuple[str, ...]) -> str | None:
    """One of ``known``, or nothing."""
    if given is not None and given not in known:
        raise typer.BadParameter(f"{option} {given}: expected one of {', '.join(known)}")
    return given


def parse_sensor(text: str) -> tuple[int, int]:
    """``"1280x720"`` → ``(720, 1280)``."""
    match = re.fullmatch(r"(\d{1,5})[x×](\d{1,5})", text.strip())
    if not match or not (0 < int(match[1]) <= 65_536 and 0 < int(match[2]) <= 65_536):
        raise typer.BadParameter(f"--sensor {text}: expected WIDTHxHEIGHT in pixels, such as 1280x720")
    return int(match[2]), int(match[1])


def parse_roi(text: str) -> tuple[int, int, int, int]:
    """``"x1,y1,x2,y2"`` as four integers."""
    try:
        x1, y1, x2, y2 = (int(part) for part in text.split(","))
    except ValueError:
        x1 = y1 = x2 = y2 = 0
    if not (0 <= x1 < x2 and 0 <= y1 < y2):
        raise typer.BadParameter(f"--roi {text}: expected x1,y1,x2,y2 in pixels, such as 0,0,640,360")
    return x1, y1, x2, y2


@contextmanager
def bad_usage() -> Iterator[None]:
    """What is refused inside was wrong on the command line: the same sentence, but exit code 2 as for all bad usage."""
    try:
        yield
    except FateError as error:
        raise typer.BadParameter(with_options(str(error))) from None


def check_outputs(outputs: dict[str, str | None], source: str) -> None:
    """Refuse files that cannot be written, before minutes of work and not after.

    Args:
        outputs: the file of each option, or None where it was not given.
        source: what is read, which no output may replace.
    """
    given = {option: Path(file) for option, file in outputs.items() if file is not None}
    for option, path in given.items():
        try:
            folder = path.absolute().parent
            if not folder.is_dir():
                raise FateError(f"{option} {path}: the folder {path.parent} does not exist; make it first")
            if path.is_dir():
                raise FateError(f"{option} {path}: is a folder; give the name of a file, in it or elsewhere")
            if not os.access(path if path.exists() else folder, os.W_OK):
                raise FateError(f"{option} {path}: cannot be written (permission denied); give another file")
        except OSError as error:
            raise FateError(f"{option} {path}: cannot be written ({error.strerror}); give another file") from None
    places = {option: os.path.realpath(path) for option, path in given.items()}
    for option, place in places.items():
        if place == os.path.realpath(source):
            raise typer.BadParameter(f"{option} {given[option]}: would replace what is read; give another file")
        same = next((other for other in places if other != option and places[other] == place), None)
        if same:
            raise typer.BadParameter(f"{option} and {same} name the same file {given[option]}; give two")


class Time(NamedTuple):
    """A time in µs, on the recording's clock or counted from its first event."""

    us: int
    from_start: bool

    def at(self, start_us: int) -> int:
        """On the recording's clock, given its first event."""
        return self.us + (start_us if self.from_start else 0)


def parse_time(text: str, option: str) -> Time:
    """``1500``, ``1500us``, ``1.5ms``, ``2s``; with ``+`` in front, from the first event."""
    match = re.fullmatch(r"(\+?)(-?\d{1,18}(?:\.\d{1,9})?)\s*(us|µs|ms|s)?", text.strip())
    if not match:
        raise typer.BadParameter(
            f"{option} {text}: expected a time such as 1500us, 1.5ms, 2s, or +2s from the first event"
        )
    whole, _, fraction = match[2].partition(".")
    scale = {"s": 1_000_000, "ms": 1000}.get(match[3], 1)
    value, rest = divmod(int(whole + fraction) * scale, int(10 ** len(fraction)))
    if rest:
        raise typer.BadParameter(f"{option} {text}: is not a whole number of microseconds")
    return Time(value, bool(match[1]))


def parse_duration(text: str, option: str) -> int:
    """µs of ``50ms``, ``0.05s`` or ``50000us``; without a unit, 50 would be 50 µs and hardly meant."""
    time = parse_time(text, option)
    if time.us < 1 or time.from_start or not text.strip().endswith("s"):
        raise FateError(f"{option} {text} was given; expected a time with its unit, such as 50ms")
    return time.us


def check_order(start: Time | None, end: Time | None) -> None:
    """The end must come after the start, where that can be told."""
    if start and end and start.from_start == end.from_start and end.us <= start.us:
        raise typer.BadParameter("--end: the end must come after the start")


@contextmanager
def opened(file: str, options: dict[str, Any]) -> Iterator[Recording]:
    """A recording with its time index, which must have events; bar and sentences as for every command."""
    from fate.formats.opening import open_recording

    with open_recording(file, **options) as recording:
        with progress_bar("indexing") as update:
            recording.index(update)
        recording.refuse_empty()
        yield recording


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


@contextmanager
def task_bar() -> Iterator[Any]:
    """For work in several parts: yields ``show(what, done, total, text)``, or None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total, text: bar.update(
            task, completed=done, total=total, description=f"{what} {text}".strip()
        )


@contextmanager
def step_bar(label: str) -> Iterator[Any]:
    """For long runs: yields ``show(done, total, text)``, a bar on a terminal, a line each time elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total, text: print(f"step {done} of {total}: {text}", flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    said = TextColumn("{task.description}")
    columns = TextColumn(label), BarColumn(), MofNCompleteColumn(), said, TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("building", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


def write_json(file: str | None, content: Any) -> None:
    """What a command has printed, as a file too; nothing where none is wanted."""
    if file is None:
        return
    import json

    try:
        Path(file).write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise FateError(f"{file}: cannot be written ({error.strerror}); what it was to hold is printed above") from None


def parse_classes(text: str) -> list[str]:
    """``"car,pedestrian"`` → ``["car", "pedestrian"]``."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise typer.BadParameter(f"--classes {text}: expected different names, such as car,pedestrian")
    return names
