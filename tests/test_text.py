"""Numbers, plurals and file names as plain text."""

from __future__ import annotations

import math

import pytest

from fate.text import duration, encodable, frequency, grouped, plural, significant


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 frames"), (1, "1 frame"), (2, "2 frames"), (12345, "12 345 frames")]
)
def test_a_count_agrees_with_its_noun(count: int, text: str) -> None:
    assert plural(count, "frame") == text


def test_an_irregular_plural_is_given() -> None:
    assert plural(3, "box", "boxes") == "3 boxes"
    assert plural(1, "box", "boxes") == "1 box"


@pytest.mark.parametrize("value", [1e-9, 3.2e-5, 0.00999, 0.0996, 0.5, 0.999, 1.0, 9.96, 99.6, 1234.5, 4270.312, 7e15])
def test_numbers_are_never_scientific_and_keep_two_digits(value: float) -> None:
    text = significant(value)
    assert "e" not in text
    assert float(text.replace(" ", "")) == pytest.approx(value, rel=0.051)
    assert float(significant(-value).replace(" ", "")) == -float(text.replace(" ", ""))


def test_numbers_that_are_none() -> None:
    assert (significant(0), significant(math.nan), significant(math.inf)) == ("0", "nan", "inf")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2e-5, "20 µs"), (0.048, "48 ms"), (0.9996, "1.0 s"), (1.27, "1.3 s"), (59.7, "60 s"), (119.9, "120 s"),
     (125, "2 min 5 s"), (7199.7, "2 h 0 min"), (10_000, "2 h 47 min")],
)  # fmt: skip
def test_times_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_is_rare_is_told_by_the_time_between() -> None:
    assert frequency(0.3, "window") == "one window every 3.3 s"
    assert frequency(1.0, "window") == "1.0 window per second"
    assert frequency(250.4, "window") == "250 windows per second"
    assert frequency(0.0, "box", "boxes") == "no boxes"


def test_any_file_name_can_be_encoded() -> None:
    name = b"caf\xc3\xa9 \xff\x80.dat".decode("utf-8", "surrogateescape")
    assert encodable(name) == "café \\xff\\x80.dat"
    assert encodable("\ud800").encode("utf-8") == b"\\ud800"
    assert grouped(-1234567) == "-1 234 567"
