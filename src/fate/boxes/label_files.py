"""Read and write :class:`Labels` in four formats: this file owns the disk, a codec per format the bytes.

===========  =========================  ======================================================
format       on disk                    codec
===========  =========================  ======================================================
prophesee    ``*_bbox.npy``             :mod:`fate.boxes.label_prophesee` (+ ``_times.npy`` beside it)
coco         ``*.json``                 :mod:`fate.boxes.label_coco`
yolo         a folder of ``*.txt``      :mod:`fate.boxes.label_yolo`
npz          ``*.npz``                  :mod:`fate.boxes.label_npz`
===========  =========================  ======================================================
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fate.boxes import label_coco, label_npz, label_prophesee, label_yolo
from fate.boxes.labels import Labels
from fate.errors import FateError, FormatError
from fate.whole_files import write_whole

FORMATS = ("prophesee", "coco", "yolo", "npz")

MAX_LABEL_BYTES = 2 << 30

_BY_SUFFIX = {".npy": "prophesee", ".json": "coco", ".npz": "npz", "": "yolo"}
_MAGIC = {b"\x93NUMPY": "prophesee", b"PK": "npz", b"{": "coco", b"[": "coco"}


def read_labels(
    path: str | os.PathLike[str],
    *,
    sensor: tuple[int, int] | None = None,
    classes: Sequence[str] | None = None,
) -> Labels:
    """Labels from a file, or from a folder of YOLO text; recognised by content first, by suffix second.

    ``sensor`` (height, width) in pixels and ``classes`` fill in what the file does not know; it is an error
    if the file knows otherwise. What cannot be read raises :class:`FateError` with the path first.
    """
    Labels.empty(classes=classes, sensor=sensor)  # a bad argument is not the fault of the file
    source = Path(path)
    try:
        labels = _decode(source, sensor, classes)
        for name, given in (("sensor", sensor), ("classes", classes)):
            known = getattr(labels, name)
            if given is not None and known is not None and tuple(given) != known:
                raise FormatError(f"the file has {name} {known}; {given} was given; leave the argument out")
        names = labels.classes if classes is None else tuple(classes)
        return replace(labels, sensor=sensor or labels.sensor, classes=names)
    except OSError as error:
        raise _unreachable(source, error) from error
    except FateError as error:
        raise FormatError(f"{source}: {error}") from error


def write_labels(
    path: str | os.PathLike[str],
    labels: Labels,
    *,
    sensor: tuple[int, int] | None = None,
    format: str | None = None,
    dialect: str | None = None,
) -> None:
    """Write labels so that :func:`read_labels` gives them back; a reader never sees half of a file.

    COCO is text, so the path ``"-"`` with ``format="coco"`` is standard output.

    ``format`` is one of ``FORMATS``, by default from the suffix (none: a YOLO folder). ``sensor`` (height,
    width) fills in what the labels do not know. ``dialect`` "t" (default) or "ts" names the fields of
    Prophesee boxes.
    """
    target = Path(path)
    try:
        chosen = format or _format_of(target)
        if chosen not in FORMATS:
            raise FateError(f"got format {chosen!r}; formats are {', '.join(FORMATS)}; choose one")
        if dialect is not None and chosen != "prophesee":
            raise FateError(f"got dialect {dialect!r}; {chosen} has no dialects; leave it out")
        if sensor is not None:
            known = labels.sensor
            labels = replace(labels, sensor=sensor)
            if known not in (None, labels.sensor):
                raise FateError(f"got sensor {sensor}; the labels have {known}; leave the argument out")
        if chosen == "yolo":
            _write_folder(target, label_yolo.encode(labels))
            files: dict[str | os.PathLike[str], bytes | None] = {}
        elif chosen == "prophesee":
            files = _prophesee_files(target, labels, dialect or "t")
        else:
            data = label_coco.encode(labels) if chosen == "coco" else label_npz.encode(labels)
            files = {path: data}
    except OSError as error:
        raise _unreachable(target, error) from error
    except FateError as error:
        raise type(error)(f"{target}: {error}") from error
    for file, content in files.items():
        if content is None:
            Path(file).unlink(missing_ok=True)
        else:
            write_whole(file, content, text=chosen == "coco")


def _decode(path: Path, sensor: tuple[int, int] | None, classes: Sequence[str] | None) -> Labels:
    if path.is_dir():
        return label_yolo.decode(_read_folder(path), sensor, classes)
    data = _content(path)
    head = data[:64].removeprefix(b"\xef\xbb\xbf").lstrip()
    chosen = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    if chosen is None:
        raise FormatError(
            f"starts with {data[:8]!r}, not like the {_claimed(path)}; labels are Prophesee npy, COCO json, "
            "a folder of YOLO txt, or npz; give one of these"
        )
    if chosen == "npz":
        return label_npz.decode(data)
    if chosen == "coco":
        return label_coco.decode(data, name=str(path))
    sidecar = _times_path(path)
    times = _content(sidecar) if sidecar.exists() else None
    return label_prophesee.decode(data, times, name=str(path))


def _content(path: Path) -> bytes:
    """All bytes of a regular file of a size that labels may have."""
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise FormatError("is a device or a pipe; labels are a file or a folder; copy it into a file first")
    if state.st_size > MAX_LABEL_BYTES:
        raise FormatError(
            f"has {state.st_size} bytes; label files have at most {MAX_LABEL_BYTES}; give the labels, not a recording"
        )
    return path.read_bytes()


def _claimed(path: Path) -> str:
    """What the suffix promises, to tell a damaged file from an unknown one."""
    kind = _BY_SUFFIX.get(path.suffix.lower())
    if path.suffix.lower() == ".txt":
        return "folder of txt files that YOLO labels are"
    return f"{kind} file its suffix promises" if path.suffix and kind else "label files FATE knows"


def _format_of(path: Path) -> str:
    """The format that the name asks for; a folder is YOLO whatever its name."""
    if path.is_dir():
        return "yolo"
    try:
        return _BY_SUFFIX[path.suffix.lower()]
    except KeyError:
        raise FateError(
            f"has suffix {path.suffix!r}; labels are .npy, .json, .npz, or a folder without suffix; "
            f"rename it or pass format= one of {', '.join(FORMATS)}"
        ) from None


def _unreachable(path: Path, error: OSError) -> FateError:
    reason = error.strerror or str(error)
    return FateError(f"{path}: {reason.lower()}; expected labels or a place for them; check the path")


def _times_path(path: Path) -> Path:
    """``drive_bbox.npy`` to ``drive_bbox_times.npy``: the sidecar with all labelled times."""
    return path.with_name(f"{path.stem}_times.npy")


def _prophesee_files(path: Path, labels: Labels, dialect: str) -> dict[str | os.PathLike[str], bytes | None]:
    """The bytes of the two files, in the order to write them; None for a sidecar that must not stay."""
    boxes, times = label_prophesee.encode(labels, dialect), label_prophesee.encode_times(labels)
    sidecar = _times_path(path)
    if sidecar.exists():
        label_prophesee.decode_times(_content(sidecar))  # refuses to replace a file that is not a sidecar
    if times is not None:
        return {sidecar: times, path: boxes}
    return {path: boxes, sidecar: None}  # a stale one would add labelled times that these labels do not have


def _read_folder(path: Path) -> dict[str, str]:
    """The text of every ``.txt`` file and of ``fate.json``; other files (pictures, say) are not labels."""
    files: dict[str, str] = {}
    for entry in sorted(path.iterdir()):
        if entry.suffix == ".txt" or entry.name == label_yolo.META_FILE:
            try:
                files[entry.name] = _content(entry).decode("utf-8")
            except UnicodeDecodeError as error:
                raise FormatError(f"{entry.name} is not UTF-8 ({error}); get it again") from error
    return files


def _write_folder(path: Path, files: dict[str, str]) -> None:
    """Write a new folder beside the target, then swap; only a folder that we wrote is ever replaced."""
    if path.is_symlink():
        path = path.resolve()
    if path.exists() and not path.is_dir():
        raise FateError("is a file; YOLO labels are a folder; choose another name")
    old_names = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
    meta = path / label_yolo.META_FILE
    mark = meta.read_text("utf-8", "replace") if meta.is_file() else ""
    foreign = label_yolo.foreign_files(old_names, mark)
    if foreign:
        raise FateError(
            f"the folder holds {foreign[0]!r}, which FATE did not write as YOLO labels; a folder of labels "
            "holds nothing else; choose an empty or new folder"
        )
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    retired = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        draft.mkdir()
        for name, text in files.items():
            (draft / name).write_text(text, "utf-8", newline="\n")
        if path.exists():
            os.replace(path, retired)
        os.replace(draft, path)
    finally:
        if retired.exists() and not path.exists():
            os.replace(retired, path)  # the swap failed half way: give the old labels back
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)
