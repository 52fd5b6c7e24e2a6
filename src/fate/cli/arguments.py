"""Options that several commands share, and how their values are written on the command line."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer
from typer import Option

from fate.cli.terminal import VERBOSITY, note, with_options
from fate.errors import FateError, FateWarning
from fate.progress import Progress, ProgressLines
from fate.quantities import ClockTime, parse_duration, parse_roi, parse_time
from fate.whole_files import find_target, is_standard_output, write_whole

if TYPE_CHECKING:
    from fate.formats.recording import Recording


def complete_bundled(incomplete: str) -> list[str]:
    """Return the names with bundled weights that begin like this, for shell completion."""
    from fate.inference.loading import bundled_weights

    return [name for name in bundled_weights() if name.startswith(incomplete)]


# ---- parsers of values: typer turns the error of one into bad usage that names the option ------------------------


def choice(*known: str) -> Callable[[str], str]:
    """Return a parser that refuses a value which is not one of ``known``."""

    def parse(text: str) -> str:
        if text not in known:
            raise FateError(f"{text} was given; expected one of {', '.join(known)}")
        return text

    return parse


def parse_sensor(text: str) -> tuple[int, int]:
    """``"1280x720"`` → ``(720, 1280)``."""
    match = re.fullmatch(r"(\d{1,5})[x×](\d{1,5})", text.strip())
    if not match or not (0 < int(match[1]) <= 65_536 and 0 < int(match[2]) <= 65_536):
        raise FateError(f"{text} was given; expected WIDTHxHEIGHT in pixels, such as 1280x720")
    return int(match[2]), int(match[1])


def parse_columns(text: str) -> str:
    """Refuse an order of columns that is not a permutation of ``txyp``."""
    if sorted(text) != sorted("txyp"):
        raise FateError(f"{text} was given; expected each of t, x, y, p once, such as txyp")
    return text


def parse_size(text: str) -> int:
    """Bytes of ``100MB``, ``1.5GB`` or ``500kB``; a megabyte is a million bytes."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s*([kMG]?)B", text.strip(), re.IGNORECASE)
    size = round(float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[match[2].lower()]) if match else 0
    if size < 1:
        raise FateError(f"{text} was given; expected a size with its unit, such as 100MB or 1GB")
    return size


def parse_shard(text: str) -> tuple[int, int]:
    """``"1/4"`` → ``(1, 4)``."""
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or not 1 <= int(parts[0]) <= int(parts[1]):
        raise FateError(f"{text} was given; expected I/N with I from 1 to N, such as 1/4")
    return int(parts[0]), int(parts[1])


def parse_devices(text: str) -> str:
    """Refuse a text that names no devices."""
    from fate.workflows.spread import check_devices

    return check_devices(text)


def parse_names(text: str) -> list[str]:
    """``"car,pedestrian"`` → ``["car", "pedestrian"]``."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise FateError(f"{text} was given; expected different names, such as car,pedestrian")
    return names


def parse_rate_or_auto(text: str) -> float | str:
    """The rate of a single ``--hz``, or ``auto``."""
    if text.strip() == "auto":
        return "auto"
    rates = parse_rates([text])
    if len(rates) > 1:
        raise FateError(f"--hz {text} was given; expected one rate of 1 to 1000, such as --hz 100, or auto")
    return rates[0]


def parse_rates(given: Sequence[str] | None, default: Sequence[float] = ()) -> tuple[float, ...]:
    """The rates of all options ``--hz``, or the default without any."""
    if not given:
        return tuple(default)
    words = [word for text in given for word in text.split(",") if word.strip()]
    try:
        rates = tuple(float(word) for word in words)
    except ValueError:
        rates = ()
    if not (rates and all(1 <= rate <= 1000 for rate in rates)):
        raise FateError(f"--hz {','.join(given) or repr('')} was given; expected rates of 1 to 1000, such as --hz 100")
    return rates


def parse_pairs(
    option: str, given: Sequence[str] | None, expected: str, convert: Callable[[str], Any] = str
) -> dict[str, Any]:
    """The values of all options ``NAME=VALUE`` by name, each converted by ``convert``."""
    pairs = {}
    for text in given or ():
        name, _, value = (part.strip() for part in text.partition("="))
        try:
            pairs[name] = convert(value)
        except ValueError:
            name = ""
        if not (name and value):
            raise FateError(f"{option} {text} was given; expected {expected}")
    return pairs


def camera_options(source: str, biases: Sequence[str] | None, roi: tuple[int, int, int, int] | None) -> dict[str, Any]:
    """The arguments of a camera source; for any other source these options are refused."""
    given: dict[str, Any] = {}
    if biases:
        given["biases"] = parse_pairs("--bias", biases, "NAME=NUMBER, such as diff_on=40", int)
    if roi is not None:
        given["roi"] = roi
    if given and source.partition(":")[0] != "camera":
        option = "--bias" if biases else "--camera-roi"
        raise FateError(f"{option} was given for {source}; it is for a camera (fate detect camera)")
    return given


def times_in(recording: Recording, *times: ClockTime | None) -> list[int | None]:
    """Times on the clock of a recording, in µs; None for those not given."""
    return [None if time is None else time.at(recording.start_us) for time in times]


def check_part(start: ClockTime | None, end: ClockTime | None) -> None:
    """Refuse an end before the start, if both have the same clock."""
    if start and end and start.from_start == end.from_start and end.us <= start.us:
        raise typer.BadParameter(
            f"--start {start.us / 1e6:g}s --end {end.us / 1e6:g}s was given; the end must come after the start"
        )


# ---- options that several commands have ---------------------------------------------------------------------------

FORMATS = (
    "dat", "evt2", "evt21", "evt3", "hdf5", "aedat2", "aedat3", "aedat4", "es", "bin", "npy", "npz", "csv", "ros",
)  # fmt: skip
WRITABLE = ("dat", "evt2", "evt21", "evt3", "prophesee-hdf5", "rvt-hdf5", "npz", "npy", "csv")

Sensor = Annotated[Any, Option(parser=parse_sensor)]
Model = Annotated[str, Option(autocompletion=complete_bundled)]
Window = Annotated[Any, Option(parser=parse_duration)]
Time = Annotated[Any, Option(parser=parse_time)]
Share = Annotated[float, Option(min=0, max=1)]
Shard = Annotated[Any, Option(parser=parse_shard)]
Devices = Annotated[Any, Option(parser=parse_devices, autocompletion=lambda: ["all", "cpu,cpu", "slurm:"])]
Slurm = Annotated[list[str] | None, Option()]
Score = Annotated[Any, Option(parser=choice("product", "class"))]
Backend = Annotated[Any, Option(parser=choice("torch", "onnxruntime", "openvino", "openvino-bf16", "auto"))]
Precision = Annotated[Any, Option(parser=choice("float32", "tf32", "bfloat16", "float16"))]
Workers = Annotated[int, Option(min=0)]
Filters = Annotated[list[str] | None, Option()]
Biases = Annotated[list[str] | None, Option()]
CameraRoi = Annotated[Any, Option(parser=parse_roi)]


class Reading(TypedDict, total=False):
    """Options for reading files. A command with ``**reading: Unpack[Reading]`` has these options."""

    sensor: Sensor
    format: Annotated[str | None, Option(parser=choice(*FORMATS))]
    columns: Annotated[str | None, Option(parser=parse_columns)]
    time_unit: Annotated[str | None, Option(parser=choice("s", "ms", "us", "ns"))]
    strict: bool
    drop: bool
    sort: bool
    no_cache: bool


def open_options(reading: Reading) -> dict[str, Any]:
    """Convert options of the command line to arguments of :func:`fate.open_recording`."""
    options: dict[str, Any] = {**reading}
    drop, sort, no_cache = (options.pop(name, False) for name in ("drop", "sort", "no_cache"))
    bounds, order = "drop" if drop else "raise", "sort" if sort else "raise"
    return {**options, "out_of_bounds": bounds, "unsorted": order, "cache": not no_cache}


# ---- checks before the work -----------------------------------------------------------------------------------------


@contextmanager
def bad_usage() -> Iterator[None]:
    """Turn a FateError of the block into bad usage: the same message, but exit code 2."""
    try:
        yield
    except FateError as error:
        raise typer.BadParameter(with_options(str(error))) from None


def spread_options(
    devices: str | None, slurm: Sequence[str] | None, device: str = "auto", shard: tuple[int, int] = (1, 1)
) -> dict[str, Any]:
    """The arguments ``devices`` and ``slurm`` of commands that share their work, if these options go together."""
    with bad_usage():
        settings = parse_pairs("--slurm", slurm, "NAME=VALUE, such as partition=gpu")
        if settings and not (devices or "").startswith("slurm:"):
            raise FateError(f"--slurm {slurm and slurm[0]} was given; it goes with --devices slurm:N")
        if devices is not None and (device != "auto" or shard != (1, 1)):
            other = f"--device {device}" if device != "auto" else f"--shard {shard[0]}/{shard[1]}"
            raise FateError(f"--devices {devices} and {other} were given; give one of them")
    return {"devices": devices, "slurm": settings or None}


def check_outputs(
    outputs: dict[str, str | None],
    *sources: str | None,
    datasets: Iterable[str | None] = (),
    binary: Container[str] = (),
    seeks: Container[str] = (),
    lines: Container[str] = (),
) -> None:
    """Refuse files that cannot be written, before minutes of work and not after.

    Args:
        outputs: the file of each option, or None if it was not given; ``-`` is standard output.
        sources: files that are read, and folders whose files are all read; no output may replace them.
        datasets: datasets that are read; outputs may replace earlier reports in them, but no other files.
        binary: options whose files are not text, and cannot go to standard output.
        seeks: options whose writers go back in the file, so that it cannot be a device or a pipe.
        lines: options that are written line by line, so that they may go to a listener, ``tcp:HOST:PORT``.
    """
    taken: dict[str, str] = {}
    for option, file in outputs.items():
        if file is None:
            continue
        try:
            target = find_target(file, text=option not in binary, seeks=option in seeks, lines=option in lines)
        except FateError as error:
            raise FateError(f"{option} {error}") from None
        if target.kind == "file":
            if any(_is_within(target.path, source) for source in sources if source):
                raise typer.BadParameter(f"{option} {file}: would replace what is read; give another file")
            for dataset in datasets:
                refuse_file_of_dataset(option, target.path, dataset)
        if target.kind == "device" and not target.is_standard_output:
            continue  # such as /dev/null, which may take several
        location = target.name if target.kind == "socket" else f"the file {target.path}"
        location = "standard output" if target.is_standard_output else location
        if location in taken:
            raise typer.BadParameter(
                f"{taken[location]} and {option} both name {location}; give one of them another file"
            )
        taken[location] = option


def refuse_file_of_dataset(
    option: str, file: Path, dataset: str | None, written: tuple[str, ...] = (".json", ".html", ".htm")
) -> None:
    """Refuse an output that would replace a file of a dataset that is read.

    A new file is allowed anywhere. An existing file in the folder of the dataset may be replaced only if it can be an
    earlier output: it has one of the suffixes ``written``, and is neither the manifest nor a recording nor labels.
    """
    location = Path(os.path.realpath(file))
    if not dataset or not location.is_file():
        return
    inside = _is_within(location, dataset)
    from fate.inspection.reports import holds_file

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FateWarning)  # the command itself opens the dataset and warns
            held = (inside and location.suffix.lower() not in written) or holds_file(dataset, location)
    except FateError:
        held = inside  # what cannot be listed is not replaced
    if held:
        raise typer.BadParameter(
            f"{option} {file}: would replace what is read, a file of the dataset {dataset}; give another file"
        )


def _is_within(file: Path, source: str) -> bool:
    """Whether a file is the source or, if it exists, lies in it."""
    location = os.path.realpath(source)
    return str(file) == location or (file.is_file() and file.is_relative_to(location))


def printer(*files: str | None) -> Callable[[str], None]:
    """The print function of a command: on standard error if one of its files goes to standard output."""
    taken = any(is_standard_output(file) for file in files)
    return lambda text: print(text, file=sys.stderr if taken else sys.stdout, flush=True)


def write_and_print(text: str, file: str | None, write: Callable[[str], object]) -> None:
    """Write the file of ``--json``, if it is given, then print the text: a terminal that fails does not cost the file.

    The text is printed even if the file cannot be written.
    """
    say = printer(file)
    try:
        if file is not None:
            write(file)
    finally:
        say(text)


def check_inputs(*files: str | os.PathLike[str] | None) -> None:
    """Refuse files and folders that do not exist, before torch is loaded."""
    for file in files:
        if file is not None and not os.path.lexists(file):
            raise FateError(f"{os.fspath(file) or '(empty name)'}: no such file or folder; check the name")


@contextmanager
def opened(file: str, reading: Reading) -> Iterator[Recording]:
    """Open a recording, show the progress of its index, and refuse it if it has no events."""
    from fate.formats.opening import open_recording

    with open_recording(file, **open_options(reading)) as recording:
        with progress_bar("indexing") as update:
            recording.index(update)
        recording.refuse_empty()
        yield recording


@contextmanager
def progress_bar(label: str = "", *, steps: bool = False) -> Iterator[Progress | None]:
    """Show progress as a bar on a terminal, as lines elsewhere; yields None if ``--quiet`` was given.

    ``label`` names work whose reports do not name their part. ``steps`` of a training are lines of standard output.
    """
    if VERBOSITY.quiet:
        yield None
        return
    if not sys.stderr.isatty():

        def print_step(done: float, total: float | None = 1.0, text: str = "", part: str = "", /) -> None:
            print(f"step {done} of {total}: {text}", flush=True)

        yield print_step if steps else ProgressLines(label, note)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    amount = MofNCompleteColumn() if steps else TaskProgressColumn()
    columns = TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total=1.0, text="", part="", /: bar.update(
            task, completed=done, total=total, description=f"{part or label} {text}".strip()
        )


def write_json(file: str, content: Any) -> None:
    """Write plain values as a JSON file; ``-`` is standard output."""
    import json

    text = json.dumps(content, indent=2, ensure_ascii=False)
    write_whole(file, f"{text}\n".encode("utf-8", "backslashreplace"), text=True)
