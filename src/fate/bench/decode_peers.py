"""Other decoders, measured if they are installed. None of them is a dependency."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fate.formats.prophesee.header import parse_header


@dataclass(frozen=True)
class Peer:
    """One other decoder. Its functions return numbers of events, so that results can be compared too."""

    package: str | None  #: to import; None if it is part of numpy
    formats: tuple[str, ...]  #: that it reads correctly enough for a comparison
    whole: Callable[[str], int] | None = None  #: reads a whole file
    windows: Callable[[str, int], Iterator[int]] | None = None  #: reads consecutive windows of this many µs
    seek: Callable[[str], Callable[[int, int], int]] | None = None  #: returns a function that reads [start_us, end_us)

    def installed(self) -> bool:
        """Return whether it can be measured here."""
        return self.package is None or importlib.util.find_spec(self.package) is not None


def _evt3_whole(path: str) -> int:
    import evt3  # noqa: PLC0415

    events = evt3.decode_file(path)
    return sum(map(len, (events.x, events.y, events.polarity, events.timestamp))) // 4


def _faery_whole(path: str) -> int:
    import faery  # noqa: PLC0415

    return len(faery.events_stream_from_file(path).to_array())


def _expelliarmus(path: str) -> Any:
    from expelliarmus import Wizard  # noqa: PLC0415

    return Wizard(encoding=parse_header(Path(path).read_bytes()[:65536]).event_format() or "dat")


def _expelliarmus_whole(path: str) -> int:
    return len(_expelliarmus(path).read(path))


def _expelliarmus_windows(path: str, duration_us: int) -> Iterator[int]:
    wizard = _expelliarmus(path)
    wizard.set_file(path)
    wizard.set_time_window(duration_us)
    for window in wizard.read_time_window():
        yield len(window)


def _searchsorted_seek(path: str, key: type = int) -> Callable[[int, int], int]:
    """Map a DAT file, bisect its times with ``np.searchsorted`` and unpack the rows, as one would by hand.

    With a Python integer as key, numpy converts the whole column first.
    """
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


PEERS: dict[str, Peer] = {
    "evt3": Peer("evt3", ("evt3",), whole=_evt3_whole),
    "faery": Peer("faery", ("dat", "evt2", "evt3"), whole=_faery_whole),
    "expelliarmus": Peer("expelliarmus", ("dat", "evt2"), whole=_expelliarmus_whole, windows=_expelliarmus_windows),
    "searchsorted": Peer(None, ("dat",), seek=_searchsorted_seek),
    "searchsorted-typed": Peer(None, ("dat",), seek=partial(_searchsorted_seek, key=np.uint32)),
}
