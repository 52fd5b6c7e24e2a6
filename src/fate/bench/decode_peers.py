"""Other decoders, measured beside ours when they are installed. None of them is a dependency."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fate.formats.prophesee.header import parse_header

Whole = Callable[[str], int]
Windows = Callable[[str, int], Iterator[int]]
Seek = Callable[[str], Callable[[int, int], int]]


@dataclass(frozen=True)
class Peer:
    """One other decoder. Each function returns numbers of events, so that results are compared, not only times.

    Args:
        formats: the ones it reads correctly enough to be compared with.
        whole: read a whole file.
        windows: read windows of so many µs from the start on.
        seek: open a file; the function returned reads ``[start_us, end_us)``.
    """

    package: str | None
    formats: tuple[str, ...]
    whole: Whole | None = None
    windows: Windows | None = None
    seek: Seek | None = None

    def installed(self) -> bool:
        """Whether it can be measured here."""
        return self.package is None or importlib.util.find_spec(self.package) is not None


def _evt3_whole(path: str) -> int:
    import evt3  # noqa: PLC0415

    events = evt3.decode_file(path)
    return sum(map(len, (events.x, events.y, events.polarity, events.timestamp))) // 4


def _faery_whole(path: str) -> int:
    import faery  # noqa: PLC0415

    return len(faery.events_stream_from_file(path).to_array())


def _expelliarmus_encoding(path: str) -> str:
    name = parse_header(Path(path).read_bytes()[:65536]).event_format()
    return name or "dat"


def _expelliarmus_whole(path: str) -> int:
    from expelliarmus import Wizard  # noqa: PLC0415

    return len(Wizard(encoding=_expelliarmus_encoding(path)).read(path))


def _expelliarmus_windows(path: str, duration_us: int) -> Iterator[int]:
    from expelliarmus import Wizard  # noqa: PLC0415

    wizard = Wizard(encoding=_expelliarmus_encoding(path))
    wizard.set_file(path)
    wizard.set_time_window(duration_us)
    for window in wizard.read_time_window():
        yield len(window)


def _searchsorted_seek(path: str, key: type = int) -> Callable[[int, int], int]:
    """What one writes by hand for DAT: map the file, ``np.searchsorted`` on its time field, unpack the rows. A plain
    integer makes numpy convert the whole column first."""
    start = parse_header(Path(path).read_bytes()[:65536]).num_bytes + 2
    table = np.memmap(path, np.dtype([("t", "<u4"), ("address", "<u4")]), "r", start)

    def read(start_us: int, end_us: int) -> int:
        first = np.searchsorted(table["t"], key(start_us))
        last = np.searchsorted(table["t"], key(end_us))
        rows = table[first:last]
        address = rows["address"]
        x, y, p = address & 0x3FFF, (address >> 14) & 0x3FFF, address >> 28
        return min(len(rows["t"].astype(np.int64)), len(x), len(y), len(p))

    return read


def _typed_searchsorted_seek(path: str) -> Callable[[int, int], int]:
    """The same by someone who knows to give the key the type of the column."""
    return _searchsorted_seek(path, np.uint32)


PEERS: dict[str, Peer] = {
    "evt3": Peer("evt3", ("evt3",), whole=_evt3_whole),
    "faery": Peer("faery", ("dat", "evt2", "evt3"), whole=_faery_whole),
    "expelliarmus": Peer("expelliarmus", ("dat", "evt2"), whole=_expelliarmus_whole, windows=_expelliarmus_windows),
    "searchsorted": Peer(None, ("dat",), seek=_searchsorted_seek),
    "searchsorted-typed": Peer(None, ("dat",), seek=_typed_searchsorted_seek),
}
