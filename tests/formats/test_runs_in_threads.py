"""Files that several threads decode from guessed states: the same events and index as one decoder from the start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fate
from fate.events.events import Events, Sensor
from fate.formats.decoder import Decoder
from fate.formats.prophesee.raw import Evt2Decoder, Evt3Decoder, Evt21Decoder
from fate.formats.saving import open_writer
from fate.formats.source import BLOCK_BYTES, RUN_BLOCKS

SENSOR = Sensor(480, 640)
DECODERS: dict[str, type[Decoder]] = {"evt2": Evt2Decoder, "evt21": Evt21Decoder, "evt3": Evt3Decoder}
RUN_BYTES = RUN_BLOCKS * BLOCK_BYTES
EVENT_WORDS = {"evt2": bytes(4), "evt21": b"\x01" + bytes(7), "evt3": b"\x00\x20"}  # an OFF event in column 0


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files have several runs."""
    monkeypatch.setattr("fate.formats.source.LONGER_RUNS", 1)


def compare(path: Path, decoder: Decoder) -> Events:
    """The events of the file, read in one pass and from the index, after comparing them with those of one decoder."""
    data = path.read_bytes()
    start = data.index(b"% end\n") + len(b"% end\n")
    expected = decoder.feed(data[start:])
    with fate.open_recording(path, cache=False) as recording:
        once = recording.read()
        again = recording.read()  # from the index
        half = recording.read((int(once.t_us[0]) + int(once.t_us[-1])) // 2, None)
        assert recording.index().skipped == decoder.skipped()
    for events in (once, again):
        assert events == expected
    assert half == expected.between(int(half.t_us[0]), int(expected.t_us[-1]) + 1)
    return once


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("seconds", [3, 40])  # the counter of EVT3 wraps every 16.8 s
def test_every_run_has_the_events_of_one_decoder(tmp_path: Path, name: str, seconds: int) -> None:
    random = np.random.default_rng(1)
    count = 900_000
    t_us = np.sort(random.integers(0, seconds * 1_000_000, count)) // 50 * 50
    x, y, p = random.integers(0, 640, count), random.integers(0, 480, count), random.integers(0, 2, count)
    order = np.lexsort((x, p, y, t_us))
    events = Events(t_us[order], x[order], y[order], p[order], SENSOR)
    path = tmp_path / "file.raw"
    with open_writer(path, SENSOR, name) as writer:
        writer.write(events)
    assert path.stat().st_size > 3 * RUN_BYTES
    assert compare(path, DECODERS[name](SENSOR)) == events


def test_a_wrong_guess_is_decoded_again(tmp_path: Path) -> None:
    """Row, time and vector base are given once, far before the third run: its block before does not tell them."""
    header = b"% evt 3.0\n% format EVT3;height=480;width=640\n% geometry 640x480\n% end\n"
    first = [0x8001, 0x6005, 0x0007, 0x3010]  # TIME_HIGH 1, TIME_LOW 5, row 7, base 16 (OFF)
    columns = 0x2000 | (np.arange(RUN_BYTES // 2 * 5 // 2) % 640)
    words = np.concatenate([first, columns, [0x5003, 0xA000, 0x6009], columns[:100]]).astype("<u2")
    path = tmp_path / "file.raw"
    path.write_bytes(header + words.tobytes())
    events = compare(path, Evt3Decoder(SENSOR))
    assert len(events) == len(columns) + 2 + 100
    assert set(events.y.tolist()) == {7}
    assert events.x[len(columns) : len(columns) + 2].tolist() == [16, 17]


def test_times_of_dat_files_that_wrap_in_any_run_go_on(tmp_path: Path) -> None:
    records = RUN_BYTES // 8
    t_us = (1 << 32) - 1000 + np.arange(3 * records) * 3000  # the first wrap is in the first run, another one later
    words = np.stack([t_us % (1 << 32), 7 << 14 | np.arange(len(t_us)) % 640], 1).astype("<u4")
    path = tmp_path / "file_td.dat"
    path.write_bytes(b"% Height 480\n% Width 640\n" + bytes([12, 8]) + words.tobytes())
    with fate.open_recording(path, cache=False) as recording:
        once, again = recording.read(), recording.read()
        part = recording.read(int(t_us[2 * records]), int(t_us[2 * records + 10]))
        assert recording.index().skipped == {"time wraps": int(t_us[-1] >> 32)}
    assert once == again
    assert np.array_equal(once.t_us, t_us)
    assert np.array_equal(part.t_us, t_us[2 * records : 2 * records + 10])


@pytest.mark.parametrize("name", DECODERS)
def test_events_that_are_dropped_in_the_first_run_move_all_later_ones(tmp_path: Path, name: str) -> None:
    """Words before the first time are counted as possible events, and events outside the sensor are left out."""
    count = 900_000
    columns = (np.arange(count) * 7 % 640, np.arange(count) * 11 % 480, np.arange(count) % 2)
    events = Events(np.arange(count) * 3, *columns, SENSOR)
    path = tmp_path / "file.raw"
    with open_writer(path, SENSOR, name) as writer:
        writer.write(events)
    small = Sensor(480, 600)
    decoder = DECODERS[name](small, out_of_bounds="drop")
    header, end, data = path.read_bytes().partition(b"% end\n")
    orphans = EVENT_WORDS[name] * (RUN_BYTES // 16)
    path.write_bytes(header.replace(b"640", b"600") + end + orphans + data)
    expected = decoder.feed(orphans + data)
    with (
        pytest.warns(fate.FateWarning, match="dropped"),
        fate.open_recording(path, cache=False, out_of_bounds="drop") as recording,
    ):
        assert recording.read() == expected
        assert recording.read() == expected


def test_an_unfinished_word_at_the_end_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "file.raw"
    words = np.concatenate([[0x8001, 0x6005, 0x0007], 0x2000 | np.zeros(RUN_BYTES, int)]).astype("<u2")
    path.write_bytes(b"% evt 3.0\n% format EVT3;height=480;width=640\n% end\n" + words.tobytes() + b"\x01")
    with pytest.warns(fate.FateWarning, match="last 1 byte"), fate.open_recording(path, cache=False) as recording:
        assert len(recording.read()) == RUN_BYTES
