"""Messages: one line of a length that can be read, whatever a file or its name holds."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from fate.errors import FateError, FateWarning, list_names
from fate.formats.opening import open_recording


def test_a_table_of_thousands_of_columns_gives_a_short_error(tmp_path: Path) -> None:
    names = ["t", "x", "y", "p", *(f"c{number}" for number in range(5_997))]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n1,2,3,1\n")
    with pytest.raises(FateError, match="6001 columns") as caught:
        open_recording(tmp_path / "wide.csv", sensor=(10, 10)).read()
    assert len(str(caught.value)) < 500


def test_long_messages_keep_their_start_and_their_end() -> None:
    for kind in (FateError, FateWarning):
        message = str(kind("drive.raw: " + "x" * 100_000 + "; open it again"))
        assert message.startswith("drive.raw: x")
        assert message.endswith("x; open it again")
        assert len(message) < 3_000


def test_lists_name_the_first_and_count_the_rest() -> None:
    assert list_names("abc", 3) == "a, b, c"
    assert list_names("abcde", 3) == "a, b, c and 2 more"


def test_line_breaks_in_names_are_escaped_in_warnings_as_in_errors(tmp_path: Path) -> None:
    name = "two\nlines\x1b[31m.csv"
    (tmp_path / name).write_text("1,2,3,1\n2,2,3,1\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with open_recording(tmp_path / name) as recording:
            recording.read()
    assert caught
    for warning in caught:
        assert isinstance(warning.message, FateWarning)
        assert str(warning.message).isprintable()
        assert "two\\nlines" in str(warning.message)
