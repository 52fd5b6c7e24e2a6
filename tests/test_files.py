"""Files that a user names: regular ones are read, everything else is refused without waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fate.errors import FateError
from fate.files import MissingFileError, check_regular, open_regular, read_bytes, read_text


def special_files(folder: Path) -> list[str]:
    """Names that cannot be read to an end: a pipe that nobody writes to, devices, a folder."""
    pipe = folder / "pipe"
    if not pipe.exists():
        os.mkfifo(pipe)
    return [str(pipe), "/dev/zero", "/dev/null", str(folder)]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("read", [check_regular, open_regular, read_bytes, read_text])
def test_refuses_what_is_not_a_regular_file(tmp_path: Path, number: int, read: object) -> None:
    name = special_files(tmp_path)[number]
    with pytest.raises(FateError, match="expected") as caught:
        read(name)  # type: ignore[operator]
    assert str(caught.value).startswith(f"{name}: is a")


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "n" * 300])
def test_a_name_that_no_file_can_have_gives_one_sentence(name: str) -> None:
    with pytest.raises(FateError, match="cannot be read"):
        read_bytes(name)


def test_a_missing_file_has_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"missing\.yaml.*no such file"):
        read_text(tmp_path / "missing.yaml")


def test_reads_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "eight.txt"
    file.write_bytes(b"12345678")
    assert read_bytes(file, limit=8) == b"12345678"
    with pytest.raises(FateError, match="more than 7 bytes"):
        read_bytes(file, limit=7)


def test_text_is_utf8_with_or_without_a_mark(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(b"\xef\xbb\xbf\xc3\xa9")
    assert read_text(file) == "é"
    file.write_bytes(b"ab\xff")
    with pytest.raises(FateError, match="not UTF-8 at byte 2"):
        read_text(file)
