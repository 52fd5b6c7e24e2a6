"""Read and write :class:`Labels`: this file handles paths and files, one module per format the bytes.

===========  =========================  ======================================================
format       on disk                    module
===========  =========================  ======================================================
prophesee    ``*_bbox.npy``             :mod:`fate.boxes.prophesee` (+ ``_times.npy`` beside it)
coco         ``*.json``                 :mod:`fate.boxes.coco`
yolo         a folder of ``*.txt``      :mod:`fate.boxes.yolo`
npz          ``*.npz``                  :mod:`fate.boxes.npz`
voc          ``*.xml``, read only       :mod:`fate.boxes.voc` (one file per labelled time)
===========  =========================  ======================================================
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fate.boxes import coco, npz, prophesee, voc, yolo
from fate.boxes.labels import Labels
from fate.errors import FateError, FormatError
from fate.files import check_regular
from fate.whole_files import write_whole

#: Formats that :func:`write_labels` writes.
FORMATS = ("prophesee", "coco", "yolo", "npz")

MAX_LABEL_BYTES = 2 << 30

_BY_SUFFIX = {".npy": "prophesee", ".json": "coco", ".npz": "npz", "": "yolo"}
_MAGIC = {b"\x93NUMPY": "prophesee", b"PK": "npz", b"{": "coco", b"[": "coco", b"<": "voc"}


@contextmanager
def naming_errors(path: Path, expected: str, kind: type[FateError] | None = None) -> Iterator[None]:
    """Put the path before every error that does not begin with it; faults of the system become errors of FATE.

    Args:
        path: the file or folder.
        expected: what it should be, such as "labels".
        kind: the type of the errors; by default each error keeps its own.
    """
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FateError(f"{path}: {reason}; expected {expected}; check the path") from error
    except FateError as error:
        named = str(error).startswith((f"{path}:", f"{path}{os.sep}"))
        raise (kind or type(error))(str(error) if named else f"{path}: {error}") from error


def read_labels(
    path: str | os.PathLike[str],
    *,
    sensor: tuple[int, int] | None = None,
    classes: Sequence[str] | None = None,
    t_us: int | None = None,
) -> Labels:
    """Read labels from a file, or from a folder of YOLO text; recognised by content first, by suffix second.

    Args:
        path: the file or folder. If it cannot be read, the error begins with the path.
        sensor: (height, width) in pixels, for files without it; refused if the file has another one.
        classes: names of the class ids, for files without them; refused if the file has others. For Pascal VOC, which
            has names without ids, all names in the order of their ids.
        t_us: the labelled time in µs of a Pascal VOC file, which has none; refused for other files.
    """
    Labels.empty(classes=classes, sensor=sensor)  # a wrong argument is not an error of the file
    source = Path(path)
    with naming_errors(source, "labels", FormatError):
        labels = _decode(source, sensor, classes, t_us)
        for name, given in (("sensor", sensor), ("classes", classes)):
            known = getattr(labels, name)
            if given is not None and known is not None and tuple(given) != known:
                raise FormatError(f"the file has {name} {known}; {given} was given; leave the argument out")
        names = labels.classes if classes is None else tuple(classes)
        return replace(labels, sensor=sensor or labels.sensor, classes=names)


def write_labels(
    path: str | os.PathLike[str],
    labels: Labels,
    *,
    sensor: tuple[int, int] | None = None,
    format: str | None = None,
    dialect: str | None = None,
) -> None:
    """Write labels for :func:`read_labels`; a reader sees the old file or the new one, never half of one.

    Args:
        path: the file or folder; with ``format="coco"``, which is text, ``"-"`` is standard output.
        labels: the table.
        sensor: (height, width), for labels without it.
        format: one of ``FORMATS``, by default from the suffix (none: a YOLO folder).
        dialect: the field names of Prophesee boxes: "t" (default) or "ts".
    """
    target = Path(path)
    with naming_errors(target, "a place for labels"):
        chosen = format or ("yolo" if target.is_dir() else _BY_SUFFIX.get(target.suffix.lower(), "unknown"))
        if chosen not in FORMATS:
            raise FateError(
                f"has suffix {target.suffix!r} and the format {chosen!r}; labels are .npy, .json, .npz, or a folder "
                f"without suffix; rename it (in Python, the argument format may be {', '.join(FORMATS)})"
            )
        if dialect is not None and chosen != "prophesee":
            raise FateError(f"got dialect {dialect!r}; {chosen} has no dialects; leave it out")
        if sensor is not None:
            known = labels.sensor
            labels = replace(labels, sensor=sensor)
            if known not in (None, labels.sensor):
                raise FateError(f"got sensor {sensor}; the labels have {known}; leave the argument out")
        times = None
        if chosen == "yolo":
            _write_folder(target, yolo.encode(labels))
            return
        if chosen == "prophesee":
            content, times = prophesee.encode(labels, dialect or "t"), prophesee.encode_times(labels)
            sidecar = times_path(target)
            if sidecar.exists():
                prophesee.decode_times(_content(sidecar))  # refuses to replace a file that is not a sidecar
        else:
            content = coco.encode(labels) if chosen == "coco" else npz.encode_labels(labels)
    if times is not None:
        write_whole(times_path(target), times)
    write_whole(path, content, text=chosen == "coco")
    if chosen == "prophesee" and times is None:  # an old sidecar would add times that these labels do not have
        times_path(target).unlink(missing_ok=True)


def recognise(data: bytes) -> str | None:
    """Recognise the format of a label file by its first bytes (64 suffice); return None if it is unknown."""
    head = data[:64].removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def _decode(path: Path, sensor: tuple[int, int] | None, classes: Sequence[str] | None, t_us: int | None) -> Labels:
    data = b"" if path.is_dir() else _content(path)
    chosen = recognise(data)
    if chosen == "voc":
        if t_us is None:
            raise FormatError(
                "is a Pascal VOC annotation, which has no time; give read_labels the labelled time as t_us"
            )
        return voc.decode(data, t_us, classes)
    if t_us is not None:
        raise FormatError(f"has times of its own; t_us={t_us} was given; leave the argument out")
    if path.is_dir():
        files: dict[str, str] = {}
        for entry in sorted(path.iterdir()):
            if entry.suffix == ".txt" or entry.name == yolo.META_FILE:  # others (pictures, say) are not labels
                try:
                    files[entry.name] = _content(entry).decode("utf-8")
                except UnicodeDecodeError as error:
                    raise FormatError(f"{entry.name} is not UTF-8 ({error}); get it again") from error
        return yolo.decode(files, sensor, classes)
    if chosen == "npz":
        return npz.decode_labels(io.BytesIO(data))
    if chosen == "coco":
        return coco.decode(data, name=str(path))
    if chosen == "prophesee":
        sidecar = times_path(path)
        return prophesee.decode(data, _content(sidecar) if sidecar.exists() else None, name=str(path))
    raise FormatError(
        f"starts with {data[:8]!r}, unlike labels, which are Prophesee npy, COCO json, a folder of YOLO txt, npz, or "
        "Pascal VOC xml; give one of these"
    )


def _content(path: Path) -> bytes:
    """Read a regular file of a size that labels may have."""
    size = check_regular(path, "labels").st_size
    if size > MAX_LABEL_BYTES:
        raise FormatError(f"has {size} bytes; label files have at most {MAX_LABEL_BYTES}; give labels, not a recording")
    return path.read_bytes()


def times_path(path: Path) -> Path:
    """``drive_bbox.npy`` to ``drive_bbox_times.npy``: the sidecar with all labelled times."""
    return path.with_name(f"{path.stem}_times.npy")


def _write_folder(path: Path, files: dict[str, str]) -> None:
    """Write a new folder beside the target, then swap; only a folder that FATE wrote is replaced."""
    if path.is_symlink():
        path = path.resolve()
    if path.exists() and not path.is_dir():
        raise FateError("is a file; YOLO labels are a folder; choose another name")
    old_names = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
    meta = path / yolo.META_FILE
    foreign = yolo.foreign_files(old_names, meta.read_text("utf-8", "replace") if meta.is_file() else "")
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
            os.replace(retired, path)  # the swap failed: restore the old labels
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)
