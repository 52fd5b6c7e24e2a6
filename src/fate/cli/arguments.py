"""Options that several commands share, and how their values are written on the command line."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fate.cli.terminal import VERBOSITY, note, on_terminal
from fate.cli.wording import with_options
from fate.errors import FateError, FateWarning
from fate.text import duration
from fate.whole_files import find_target, is_standard_output, write_whole

if TYPE_CHECKING:
    from fate.formats.recording import Recording


def complete_bundled(incomplete: str) -> list[str]:
    """Return the names with bundled weights that begin like this, for shell completion."""
    from fate.inference.loading import bundled_weights

    return [name for name in bundled_weights() if name.startswith(incomplete)]


def complete_names(incomplete: str) -> list[str]:
    """Return the names of all detectors that begin like this, for shell completion."""
    from fate.models.table import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


Sensor = Annotated[
    str | None,
    typer.Option("--sensor", metavar="WIDTHxHEIGHT", help="Sensor size in pixels, if the file does not say it."),
]
Format = Annotated[str | None, typer.Option("--format", help="Format of the file, if its content does not show it.")]
Columns = Annotated[
    str | None, typer.Option("--columns", help="Order of the columns in a table without a header, such as txyp.")
]
TimeUnit = Annotated[str | None, typer.Option("--time-unit", help="Unit of the times in a table: s, ms, us or ns.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse a file whose end is cut off.")]
Drop = Annotated[
    bool,
    typer.Option("--drop-out-of-bounds", help="Drop and count events outside the sensor instead of refusing the file."),
]
Sort = Annotated[bool, typer.Option("--sort", help="Sort events whose times go back instead of refusing the file.")]
Model = Annotated[
    str,
    typer.Option(
        metavar="NAME|PATH",
        help="A bundled name (see fate models) or a .safetensors file.",
        autocompletion=complete_bundled,
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Do not store the time index in the cache folder.")]
JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write all numbers as JSON to this file; - is standard output."),
]


FORMATS = (
    "dat",
    "evt2",
    "evt21",
    "evt3",
    "hdf5",
    "aedat2",
    "aedat3",
    "aedat4",
    "es",
    "bin",
    "npy",
    "npz",
    "csv",
    "ros",
)
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


def check_outputs(
    outputs: dict[str, str | None],
    *sources: str | None,
    datasets: Iterable[str | None] = (),
    binary: Container[str] = (),
    seeks: Container[str] = (),
) -> None:
    """Refuse files that cannot be written, before minutes of work and not after.

    Args:
        outputs: the file of each option, or None where it was not given; ``-`` is standard output.
        sources: files that are read, and folders whose files are all read; no output may replace them.
        datasets: datasets that are read; no output may replace their files, but earlier reports beside these.
        binary: options whose files are not text, and cannot go to standard output.
        seeks: of those, options whose files cannot be written into a device or a pipe.
    """
    places: dict[str, str] = {}
    for option, file in outputs.items():
        if file is None:
            continue
        try:
            target = find_target(file, text=option not in binary, seeks=option in seeks)
        except FateError as error:
            raise FateError(f"{option} {error}") from None
        if target.kind == "file":
            if any(_is_within(target.path, source) for source in sources if source):
                raise typer.BadParameter(f"{option} {file}: would replace what is read; give another file")
            for dataset in datasets:
                refuse_file_of_dataset(option, target.path, dataset)
        if target.kind == "device" and not target.is_standard_output:
            continue  # such as /dev/null, which may take several
        place = "standard output" if target.is_standard_output else str(target.path)
        same = next((other for other in places if places[other] == place), None)
        if same:
            what = place if target.is_standard_output else f"the file {file}"
            raise typer.BadParameter(f"{same} and {option} both name {what}; give one of them another file")
        places[option] = place


def refuse_file_of_dataset(
    option: str, file: Path, dataset: str | None, written: tuple[str, ...] = (".json", ".html", ".htm")
) -> None:
    """Refuse an output that would replace a file of a dataset that is read.

    A new file is allowed anywhere. An existing file in the folder of the dataset may be replaced only if it can be an
    earlier output: it has one of the usual suffixes, and is neither the manifest nor a recording nor labels.

    Args:
        option: that names the output.
        file: the output.
        dataset: a folder, a YAML file or one recording; None where none is read.
        written: the usual suffixes of this output.
    """
    place = Path(os.path.realpath(file))
    if not dataset or not place.is_file():
        return
    inside = _is_within(place, dataset)
    held = inside and place.suffix.lower() not in written
    if not held:
        from fate.inspection.reports import holds_file

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FateWarning)  # the command itself opens the dataset and warns
                held = holds_file(dataset, place)
        except FateError:
            held = inside  # what cannot be listed is not replaced
    if held:
        raise typer.BadParameter(
            f"{option} {file}: would replace what is read, a file of the dataset {dataset}; give another file"
        )


def _is_within(file: Path, source: str) -> bool:
    """Whether a file is the source or, if it exists, lies in it."""
    place = os.path.realpath(source)
    return str(file) == place or (file.is_file() and file.is_relative_to(place))


def printer(*files: str | None) -> Callable[[str], None]:
    """How a command prints for its reader: on standard error where one of its files goes to standard output.

    Args:
        files: the files of the command's options, None for those not given.
    """
    taken = any(is_standard_output(file) for file in files)
    return lambda text: print(text, file=sys.stderr if taken else sys.stdout, flush=True)


def write_and_print(text: str, file: str | None, write: Callable[[str], object]) -> None:
    """Write the file, then print the text, so that a terminal that fails does not cost the file.

    Args:
        text: the results in words and tables, printed also where the file cannot be written.
        file: of the option ``--json``, or None.
        write: writes the file of this name.
    """
    say = printer(file)
    try:
        if file is not None:
            write(file)
    finally:
        say(text)


class Time(NamedTuple):
    """A time in µs, on the recording's clock or counted from its first event."""

    us: int
    from_start: bool

    def at(self, start_us: int) -> int:
        """On the recording's clock, given its first event."""
        return self.us + (start_us if self.from_start else 0)


def parse_time(text: str, option: str) -> Time:
    """``1500us``, ``1.5ms``, ``2s`` or ``0``; with ``+`` in front, from the first event."""
    match = re.fullmatch(r"(\+?)(-?\d{1,18}(?:\.\d{1,9})?)\s*(us|µs|ms|s)?", text.strip())
    if not match or (match[3] is None and float(match[2]) != 0):  # 2 could mean 2 s or 2 µs
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
    if text.strip().endswith("s"):
        time = parse_time(text, option)
        if time.us >= 1 and not time.from_start:
            return time.us
    raise FateError(f"{option} {text} was given; expected a time with its unit, such as 50ms")


def check_order(start: Time | None, end: Time | None) -> None:
    """The end must come after the start, where that can be told."""
    if start and end and start.from_start == end.from_start and end.us <= start.us:
        raise typer.BadParameter("--end: the end must come after the start")


def check_inputs(*files: str | os.PathLike[str] | None) -> None:
    """Refuse files and folders that are not there, before torch is loaded and before any work."""
    for file in files:
        if file is not None and not os.path.lexists(file):
            raise FateError(f"{os.fspath(file) or '(empty name)'}: no such file or folder; check the name")


def check_name(name: str) -> None:
    """Refuse a name of no detector, without loading torch."""
    from fate.models.table import NAMES, nearest

    if name not in NAMES:
        raise FateError(f"model {name!r} was given; there are {', '.join(NAMES)}{nearest(name, NAMES)}")


def check_count(option: str, value: int, least: int) -> None:
    """Refuse a number below the least one that makes sense."""
    if value < least:
        raise FateError(f"{option} {value} was given; expected {least} or more")


def parse_shard(text: str) -> tuple[int, int]:
    """``"1/4"`` → ``(1, 4)``."""
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or not 1 <= int(parts[0]) <= int(parts[1]):
        raise FateError(f"--shard {text} was given; expected I/N with I from 1 to N, such as 1/4")
    return int(parts[0]), int(parts[1])


@contextmanager
def opened(file: str, options: dict[str, Any]) -> Iterator[Recording]:
    """A recording with its time index, which must have events; bar and sentences as for every command."""
    from fate.formats.opening import open_recording

    with open_recording(file, **options) as recording:
        with progress_bar("indexing") as update:
            recording.index(update)
        recording.refuse_empty()
        yield recording


class ProgressLines:
    """Progress where there is no bar: plain lines on standard error, for log files.

    The time counts from the first call of ``show``. Work of less than two seconds prints nothing. After that a line
    comes when a new part begins, and otherwise at least ten seconds after the last one: when a tenth of the work was
    done since then, or a minute has passed.
    """

    FIRST_S, GAP_S, LONGEST_GAP_S, SHARE = 2.0, 10.0, 60.0, 0.1

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._last_s: float | None = None  # when the last line was printed
        self._last_share = 0.0
        self._what: str | None = None

    def show(self, what: str, done: float, total: float | None, text: str = "") -> None:
        """Print a line if one is due.

        Args:
            what: name of the part of the work, such as "detecting".
            done: how much of it is done.
            total: how much there is; None or 0 if that is not known.
            text: more about it, such as the speed.
        """
        now = self._clock()
        if self._began is None:
            self._began = now
        share = done / total if total else 0.0
        if not self._is_due(now - self._began, what, share):
            return
        self._last_s, self._last_share, self._what = now - self._began, share, what
        parts = [f"{100 * share:.0f} %" if total else "", text, f"after {duration(now - self._began)}"]
        note(f"{what}: {', '.join(part for part in parts if part)}")

    def _is_due(self, now_s: float, what: str, share: float) -> bool:
        if now_s < self.FIRST_S or share >= 1:  # the result says that it is done
            return False
        if self._last_s is None or what != self._what or share < self._last_share:  # it began again: another part
            return True
        since = now_s - self._last_s
        return since >= self.LONGEST_GAP_S or (since >= self.GAP_S and share - self._last_share >= self.SHARE)


@contextmanager
def _bar(columns: Sequence[Any], description: str) -> Iterator[Callable[..., None]]:
    """A progress bar on the terminal, removed at the end: yields ``update(**values)`` of its task."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda **values: bar.update(task, **values)


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float, float | None], None] | None]:
    """Show progress: yields ``update(done, total)``, for a bar on a terminal or lines elsewhere; None if quiet."""
    with task_bar() as show:
        yield None if show is None else lambda done, total: show(label, done, total, "")


@contextmanager
def task_bar() -> Iterator[Callable[[str, float, float | None, str], None] | None]:
    """Show progress of work in several parts: yields ``show(what, done, total, text)``; None if quiet."""
    if VERBOSITY.quiet:
        yield None
        return
    if not on_terminal():
        yield ProgressLines().show
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with _bar(columns, "") as update:
        yield lambda what, done, total, text: update(completed=done, total=total, description=f"{what} {text}".strip())


@contextmanager
def step_bar(label: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show progress of training: yields ``show(done, total, text)``, for a bar on a terminal or a line each time."""
    if VERBOSITY.quiet:
        yield lambda done, total, text: None
        return
    if not on_terminal():
        yield lambda done, total, text: print(f"step {done} of {total}: {text}", flush=True)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    said = TextColumn("{task.description}")
    with _bar(
        (TextColumn(label), BarColumn(), MofNCompleteColumn(), said, TimeRemainingColumn()), "building"
    ) as update:
        yield lambda done, total, text: update(completed=done, total=total, description=text)


@contextmanager
def status(first: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done, where nobody knows how long it takes: yields ``show(text)``."""
    if VERBOSITY.quiet:
        yield lambda text: None
        return
    if not on_terminal():
        note(first)
        yield note
        return
    from rich.console import Console

    with Console(stderr=True).status(first) as shown:
        yield shown.update


def write_json(file: str, content: Any) -> None:
    """Write plain values as a JSON file; ``-`` is standard output."""
    import json

    text = json.dumps(content, indent=2, ensure_ascii=False)
    write_whole(file, f"{text}\n".encode("utf-8", "backslashreplace"), text=True)


def parse_classes(text: str) -> list[str]:
    """``"car,pedestrian"`` → ``["car", "pedestrian"]``."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise typer.BadParameter(f"--classes {text}: expected different names, such as car,pedestrian")
    return names
