"""Arrays inside an NPZ archive, read by position without loading them.

An NPZ is a ZIP with one ``name.npy`` per array. Stored members are read in place; deflated ones are inflated once,
in pieces, into a temporary file without a name, which disappears with the process. Deflate shrinks at most about
1032 times, so a member that claims to be larger than that is a trap and is refused before anything is inflated.
"""

from __future__ import annotations

import struct
import tempfile
import threading
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from fate.errors import FormatError
from fate.formats.source import ByteFile
from fate.formats.tables.stored_array import StoredArray

HEAD_BYTES = 64 * 1024  # of a deflated member, kept in memory: its header, and small arrays whole
PIECE_BYTES = 1 << 20
MAX_DEFLATE_RATIO = 1032
LOCAL_HEADER = struct.Struct("<4s22xHH")
ENCRYPTED = 0x1

# what a damaged archive raises in zipfile and zlib
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,  # includes NotImplementedError
    ValueError,
    LookupError,
    OverflowError,
)


class Member(ABC):
    """One member of an archive: its bytes by position, and a check of them."""

    size: int

    @abstractmethod
    def read(self, position: int, num_bytes: int) -> bytes:
        """Up to ``num_bytes`` from ``position``; fewer only at the end."""

    @abstractmethod
    def verify(self) -> None:
        """Compare the bytes with their checksum."""

    def close(self) -> None:  # noqa: B027  (a stored member holds nothing)
        """Let go of what is held beside the archive."""


class StoredMember(Member):
    """A member that is not compressed: a stretch of the file."""

    def __init__(self, path: Path, file: ByteFile, info: zipfile.ZipInfo) -> None:
        self._path, self._file, self._info, self.size = path, file, info, info.file_size
        local = file.read(info.header_offset, LOCAL_HEADER.size)
        if len(local) < LOCAL_HEADER.size or local[:4] != b"PK\x03\x04" or info.compress_size != info.file_size:
            raise _damaged(path, info)
        _, name_bytes, extra_bytes = LOCAL_HEADER.unpack(local)
        self._start = info.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
        if self._start + self.size > file.size:
            raise _damaged(path, info)

    def read(self, position: int, num_bytes: int) -> bytes:
        return self._file.read(self._start + position, max(0, min(num_bytes, self.size - position)))

    def verify(self) -> None:
        checksum = 0
        for position in range(0, self.size, PIECE_BYTES):
            checksum = zlib.crc32(self.read(position, PIECE_BYTES), checksum)
        if checksum != self._info.CRC:
            raise _damaged(self._path, self._info)


class DeflatedMember(Member):
    """A compressed member: inflated on first use beyond its head."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._path, self._archive, self._info, self.size = path, archive, info, info.file_size
        self._lock = threading.Lock()
        self._copy: ByteFile | None = None
        if self.size > MAX_DEFLATE_RATIO * (info.compress_size + 1):
            raise FormatError(
                f"{path}: {info.filename} claims to grow from {info.compress_size} to {self.size} bytes, more than"
                " deflate can; the file is damaged or a trap"
            )
        self._head = next(self._inflate(HEAD_BYTES), b"")

    def read(self, position: int, num_bytes: int) -> bytes:
        num_bytes = max(0, min(num_bytes, self.size - position))
        if position + num_bytes <= len(self._head):
            return self._head[position : position + num_bytes]
        return self._inflated().read(position, num_bytes)

    def verify(self) -> None:
        if len(self._head) < self.size:
            self._inflated()  # zipfile compares the checksum at the end
        elif zlib.crc32(self._head) != self._info.CRC:
            raise _damaged(self._path, self._info)

    def close(self) -> None:
        if self._copy is not None:
            self._copy.close()

    def _inflated(self) -> ByteFile:
        with self._lock:
            if self._copy is None:
                try:
                    self._copy = _temporary_copy(self._path, self._inflate(PIECE_BYTES))
                except OSError as error:
                    raise FormatError(
                        f"{self._path}: {self._info.filename} needs {self.size} bytes of temporary space in"
                        f" {tempfile.gettempdir()} ({error.strerror or error}); make room or set TMPDIR"
                    ) from None
                if self._copy.size != self.size:
                    raise _damaged(self._path, self._info)
            return self._copy

    def _inflate(self, piece_bytes: int) -> Iterator[bytes]:
        try:
            with self._archive.open(self._info) as stream:  # gives at most the size that the directory claims
                while piece := stream.read(piece_bytes):
                    yield piece
        except _DAMAGE:
            raise _damaged(self._path, self._info) from None


def _temporary_copy(path: Path, pieces: Iterator[bytes]) -> ByteFile:
    """Pieces of bytes in a file without a name, to be read by position."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (closed with the ByteFile)
    try:
        for piece in pieces:
            done = 0
            while done < len(piece):
                done += file.write(piece[done:]) or 0
        return ByteFile(path, cast(BinaryIO, file))
    except BaseException:
        file.close()
        raise


class Archive:
    """The arrays of one NPZ file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = ByteFile(path, can_grow=False)
        self.size = self._file.size
        self._members: dict[str, Member] = {}
        try:
            self._zip = zipfile.ZipFile(path)
            infos = self._zip.infolist()
        except OSError:
            self._file.close()
            raise
        except _DAMAGE:
            self._file.close()
            raise FormatError(
                f"{path}: has no readable table of contents, which a ZIP keeps at its end; it is cut short or damaged,"
                " copy it again"
            ) from None
        self._infos = {info.filename[:-4]: info for info in infos if info.filename.endswith(".npy")}

    def keys(self) -> list[str]:
        """Names of the arrays."""
        return list(self._infos)

    def member(self, key: str) -> Member:
        """The bytes of one array, header included."""
        if key not in self._members:
            info = self._infos[key]
            if info.flag_bits & ENCRYPTED:
                raise FormatError(f"{self._path}: {info.filename} is encrypted; save it without a password")
            if info.compress_type == zipfile.ZIP_STORED:
                self._members[key] = StoredMember(self._path, self._file, info)
            elif info.compress_type == zipfile.ZIP_DEFLATED:
                self._members[key] = DeflatedMember(self._path, self._zip, info)
            else:
                raise FormatError(
                    f"{self._path}: {info.filename} is compressed by method {info.compress_type}; expected none or"
                    " deflate, as numpy.savez and savez_compressed write"
                )
        return self._members[key]

    def header(self, key: str) -> StoredArray | None:
        """What array ``key`` is, or None where that cannot be read."""
        try:
            return StoredArray(self._path, self.member(key))
        except FormatError:
            return None

    def text(self, key: str) -> str | None:
        """The text of a small array ``key``, where there is one."""
        value = self._small(key, "U")
        return None if value is None else str(value.ravel()[0])

    def integers(self, key: str) -> list[int] | None:
        """The integers of a small array ``key``, where there is one."""
        value = self._small(key, "iu")
        return None if value is None else [int(number) for number in value.ravel()]

    def _small(self, key: str, kinds: str) -> Any:
        if key not in self._infos:
            return None
        array = self.header(key)
        if array is None or array.dtype.kind not in kinds or not 0 < array.num_bytes <= 1024:
            return None
        member = self.member(key)
        member.verify()
        values = member.read(array.start, array.num_bytes)
        if len(values) < array.num_bytes:
            raise _damaged(self._path, self._infos[key])
        return np.frombuffer(values, array.dtype)

    def close(self) -> None:
        """Let go of the file and of the temporary copies."""
        for member in self._members.values():
            member.close()
        self._zip.close()
        self._file.close()


def _damaged(path: Path, info: zipfile.ZipInfo) -> FormatError:
    return FormatError(f"{path}: {info.filename} is damaged (not the bytes of its checksum or size); copy it again")
