"""Open recordings and streams. The content of a file gives its format, or its suffix if the content does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from fate.errors import FateError, FormatError
from fate.events.events import Sensor
from fate.files import open_regular
from fate.formats.decoder import Decoder, OutOfBounds
from fate.formats.prophesee.header import parse_header
from fate.formats.recording import Recording
from fate.formats.saving import import_name
from fate.formats.source import ByteFile, Options, Source

HEAD_BYTES = 64 * 1024

# Format → its module, the function that opens a file, and the decoder of a stream of bytes without a header (a pipe or
# a camera), if there is one. Modules are imported when needed: most users have one kind of file.
FORMATS: dict[str, tuple[str, str, str]] = {
    "dat": ("prophesee.dat", "open_dat", "DatDecoder"),
    "evt2": ("prophesee.raw", "open_raw", "Evt2Decoder"),
    "evt21": ("prophesee.raw", "open_raw", "Evt21Decoder"),
    "evt3": ("prophesee.raw", "open_raw", "Evt3Decoder"),
    "hdf5": ("hdf5.events", "open_hdf5", ""),
    "aedat2": ("inivation.aedat2", "open_aedat2", "Aedat2Decoder"),
    "aedat3": ("inivation.aedat3", "open_aedat3", "Aedat3Decoder"),
    "aedat4": ("inivation.aedat4", "Aedat4Source", ""),
    "es": ("others.event_stream", "open_event_stream", "EventStreamDecoder"),
    "bin": ("others.atis_bin", "open_atis_bin", "AtisBinDecoder"),
    "npy": ("tables.arrays", "open_npy", ""),
    "npz": ("tables.arrays", "open_npz", ""),
    "csv": ("tables.text", "open_text", "TextDecoder"),
    "ros": ("ros.bags", "open_ros", ""),
}

TABLES = ("csv", "npy", "npz")  # formats whose columns may be in any order
COUNTED = ("npy", "npz", "hdf5")  # formats whose header gives the number of events


# first bytes → format
MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"#!AER-DAT4.0", "aedat4"),
    (b"#!AER-DAT3.1", "aedat3"),
    (b"#!AER-DAT", "aedat2"),  # other versions than 2.0 are refused when it is opened
    (b"Event Stream", "es"),
    (b"\x93NUMPY", "npy"),
    (b"PK\x03\x04", "npz"),
    (b"PK\x05\x06", "npz"),
    (b"#ROSBAG V", "ros"),
    (b"SQLite format 3\x00", "ros"),
    (b"\x89MCAP0\r\n", "ros"),
)


class OpenOptions(TypedDict, total=False):
    """The keywords of :func:`open_recording`, for functions that pass them on."""

    sensor: Sequence[int] | None
    format: str | None
    columns: str | None
    time_unit: Literal["s", "ms", "us", "ns"] | None
    strict: bool
    out_of_bounds: OutOfBounds
    unsorted: Literal["raise", "sort"]
    cache: bool


def open_recording(path: str | os.PathLike[str], **options: Unpack[OpenOptions]) -> Recording:
    """Open an event recording of any supported format.

    Args:
        path: the file (for ROS 2, also the folder of a bag).
        options: any of

            * ``sensor``: ``(height, width)``, instead of what the file says or leaves open;
            * ``format``: one of the keys of ``fate.formats.opening.FORMATS``, instead of recognising it;
            * ``columns``: for tables without names (CSV, N×4 arrays), the order of the columns, such as ``"txyp"``;
            * ``time_unit``: for tables, ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``, when times are not µs (or seconds
              written with a decimal point);
            * ``strict``: raise on a truncated tail instead of dropping it with a warning;
            * ``out_of_bounds``: ``"raise"`` (default), or ``"drop"`` and count events outside the sensor;
            * ``unsorted``: ``"raise"`` (default), or ``"sort"`` events by time;
            * ``cache``: keep the time index of large files on disk (default).

    Example:
        >>> recording = fate.open_recording("drive.raw")          # doctest: +SKIP
        >>> events = recording.read(0, 50_000)                    # doctest: +SKIP
    """
    given: dict[str, Any] = {**options}
    if not os.fspath(path):
        raise FateError("an empty name was given; expected the file of a recording")  # Path would make it this folder
    return _open(Path(path), Options(**given))


def as_recording(
    source: str | os.PathLike[str] | Recording, **options: Unpack[OpenOptions]
) -> AbstractContextManager[Recording]:
    """A recording for a ``with`` block, which closes a file that is opened for it, and not a recording that is open."""
    return nullcontext(source) if isinstance(source, Recording) else open_recording(source, **options)


def _open(path: Path, options: Options) -> Recording:
    return Recording(open_source(path, options), options, _open)


def open_source(path: Path, options: Options) -> Source:
    """Open the source for ``path``: check the file, find its format and read its header."""
    if options.format:
        head_of(path)  # refuses a file that does not exist or cannot be read
    name = options.format or recognise(path)
    if name not in FORMATS:
        raise FateError(f"{path}: format {name!r} was asked for; known are {', '.join(FORMATS)}")
    for option, given, takers in (
        ("columns", options.columns, TABLES),
        ("time_unit", options.time_unit, (*TABLES, "hdf5")),
    ):
        if given is not None and name not in takers:
            raise FateError(f"{path}: is read as {name}, which has no use for {option}={given!r}; leave it out")
    module, opener, _ = FORMATS[name]
    open_file: Callable[[Any, Options], Source] = import_name(module, opener)
    try:
        if name == "ros":  # a bag can be a folder of files
            return open_file(path, options)
        file = ByteFile(path, can_grow=name not in COUNTED)
        try:
            return open_file(file, options)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror or error})") from None


def recognise(path: Path) -> str:
    """Return the name of the format of ``path``, by its content first and by its suffix second."""
    head = head_of(path)
    suffix = path.suffix.lower()
    for magic, name in MAGIC:
        if head.startswith(magic):
            return name
    if path.is_dir():
        return "ros"
    header = parse_header(head)
    if header.is_index:
        return "evt3"  # open_raw refuses it with the reason
    named = header.event_format()
    if named in ("evt2", "evt21", "evt3"):
        return named
    if named:
        raise FormatError(
            f"{path}: the header names the format {named!r}; evt2, evt21 and evt3 are known; record in one of those"
        )
    has_dat_words = bool(header.fields.keys() & {"width", "height", "version", "data"})
    follows = head[header.num_bytes : header.num_bytes + 2]
    if header.num_bytes and (suffix == ".dat" or (has_dat_words and follows[1:] == b"\x08")):
        return "dat"
    if _looks_like_text(head):
        return "csv"
    if suffix == ".dat" and head[0] in (0, 12) and head[1:2] == b"\x08":
        return "dat"
    if suffix == ".bin":
        from fate.formats.others.atis_bin import is_atis_bin  # noqa: PLC0415  (most users have no such file)

        if is_atis_bin(head):
            return "bin"
        raise FormatError(
            f"{path}: is not a .bin recording of N-MNIST or N-Caltech101 (5-byte records on 240×180 pixels whose times"
            ' go on); give the recording itself, or pass format="evt3", say, if you know which it is'
        )
    if suffix in (".raw", ".dat") or header.num_bytes:
        raise FormatError(
            f'{path}: has no header that names its format; pass format="evt3" (or evt2, evt21, dat) if you know which'
            " it is"
        )
    raise FormatError(
        f"{path}: is not an event file that is known here; known are DAT, RAW (EVT2, EVT2.1, EVT3), HDF5, AEDAT2,"
        " AEDAT3.1, AEDAT4, ES, BIN (N-MNIST), NPZ, NPY, CSV and ROS bags"
    )


def head_of(path: Path) -> bytes:
    """Return the first bytes of ``path``, none for the folder of a ROS 2 bag; refuse what is no regular file."""
    if os.path.isfile(path / "metadata.yaml"):
        return b""
    with open_regular(path, "a recording") as file:
        head = file.read(HEAD_BYTES)
    if not head:
        raise FormatError(f"{path}: is empty (0 bytes); the recording or the download did not finish")
    return head


def _looks_like_text(head: bytes) -> bool:
    sample = head[:4096]
    if any(byte < 32 and byte not in b"\t\n\r" for byte in sample) or 0x7F in sample:
        return False
    try:
        sample.decode("utf-8")
    except UnicodeDecodeError as error:
        return len(sample) - error.start < 4 and len(head) > len(sample)  # cut inside one character
    return True


def decoder_for(format: str, sensor: Sequence[int], *, out_of_bounds: OutOfBounds = "raise", **options: Any) -> Decoder:
    """Return a decoder for a stream without a header: ``decoder.feed(data)`` gives the events that are complete.

    Args:
        format: a key of ``FORMATS`` that has a decoder.
        sensor: ``(height, width)`` in pixels.
        out_of_bounds: ``"raise"``, or ``"drop"`` and count events outside the sensor.
        options: what the one decoder takes beyond that: ``legacy=True`` for EVT2.1, ``layout="davis"`` and
            ``turned=False`` for AEDAT2, ``atis=True`` for ES.

    Example:
        >>> decoder = decoder_for("evt3", (720, 1280))
        >>> len(decoder.feed(bytes.fromhex("0180 0060 0500 0720")))  # TIME_HIGH, TIME_LOW, ADDR_Y, ADDR_X
        1
    """
    module, _, decoder = FORMATS.get(format, ("", "", ""))
    if not decoder:
        known = ", ".join(name for name, (_, _, decoder) in FORMATS.items() if decoder)
        raise FateError(f"no stream decoder for {format!r}; known are {known}")
    cls: type[Decoder] = import_name(module, decoder)
    try:
        return cls(Sensor.of(sensor), out_of_bounds=out_of_bounds, **options)
    except TypeError:
        raise FateError(f"the {format} decoder takes no {', '.join(options)}; leave it out") from None
