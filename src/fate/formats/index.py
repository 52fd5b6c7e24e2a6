"""The time index of a recording: one bookmark per block, kept between runs in a cache folder.

Building it is one pass over the file; with it, reading a window costs only the blocks it touches.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.npz import DAMAGE
from fate.errors import FateError, warn
from fate.events.events import Sensor
from fate.files import user_cache
from fate.formats.decoder import Columns, Tally, allocate_columns, check
from fate.formats.source import RUN_BLOCKS, THREADS, Bookmark, EvenBlocks, Source, Tail
from fate.progress import Progress
from fate.whole_files import write_whole

VERSION = 6  # raise it when the meaning of anything stored changes: old cache files are then ignored
ARRAYS = ("positions", "states", "first", "t_min", "t_max")
MAX_STORED = 10_000  # indexes kept in the cache folder
DIGEST_BYTES = 32  # of SHA-256, before the archive: edited values must not be taken for times of the recording


@dataclass(frozen=True)
class Index:
    """Blocks of a recording, in file order, and what the pass over the file found."""

    positions: NDArray[np.int64]  # [blocks + 1] where each block starts; the last is the end
    states: NDArray[np.int64]  # [blocks, S] the decoder's state at each start
    first: NDArray[np.int64]  # [blocks + 1] number of kept events before each block
    t_min: NDArray[np.int64]  # [blocks] µs; a block without events repeats the last time before it
    t_max: NDArray[np.int64]  # [blocks] µs
    tally: Tally
    skipped: dict[str, int]
    tail: Tail

    @property
    def num_blocks(self) -> int:
        return len(self.t_min)

    @property
    def num_events(self) -> int:
        """Events kept (inside the sensor)."""
        return int(self.first[-1])

    def bookmark(self, block: int) -> Bookmark:
        return Bookmark(int(self.positions[block]), self.states[block])

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Earliest and latest time of blocks ``first`` to ``last`` (not included), which hold events."""
        if last == first + 1:
            return int(self.t_min[first]), int(self.t_max[first])
        filled = np.flatnonzero(np.diff(self.first[first : last + 1])) + first
        return int(self.t_min[filled].min()), int(self.t_max[filled].max())

    def blocks_between(self, start_us: int, end_us: int) -> Sequence[int]:
        """Return the blocks that may hold events of ``[start_us, end_us)``; they are adjacent unless times go back."""
        if self.tally.back:
            found: list[int] = np.flatnonzero((self.t_max >= start_us) & (self.t_min < end_us)).tolist()
            return found
        return range(int(self.t_max.searchsorted(start_us)), int(self.t_min.searchsorted(end_us)))

    def likely_events(self, start_us: int, end_us: int) -> float:
        """Estimate the events in ``[start_us, end_us)``, as if each block's events were evenly spread over its time."""
        blocks = np.array(self.blocks_between(start_us, end_us), np.intp)
        t_min, t_max = self.t_min[blocks], self.t_max[blocks] + 1
        overlap = np.minimum(t_max, end_us) - np.maximum(t_min, start_us)
        return float((np.diff(self.first)[blocks] * (overlap / (t_max - t_min))).sum())


def build_index(
    source: Source, sensor: Sensor | None, progress: Progress | None = None, keep: bool = False
) -> tuple[Index, Columns | None]:
    """Walk over ``source`` once; events outside ``sensor`` are counted and left out of the block counts.

    With ``keep``, the events are returned too, in file order, if their number can be limited before.
    """
    if even := source.even_blocks():
        out = allocate_columns(even.num_events) if keep else None
        if index := _index_evenly(source, even, sensor, out):
            return index, out
    most = source.most_events() if keep else None
    tally, whole, filled = Tally(), allocate_columns(most or 0), 0  # memory that stays unused is not taken
    positions: list[int] = []
    states: list[NDArray[np.int64]] = []
    counts: list[int] = [0]
    spans: list[tuple[int, int]] = []
    for bookmark, columns in source.scan():
        kept = check(columns, sensor, tally)
        positions.append(bookmark.position)
        states.append(bookmark.state)
        counts.append(len(kept.t))
        if most is not None:
            for target, column in zip(whole, kept, strict=True):
                target[filled : filled + len(column)] = column
            filled += len(kept.t)
        spans.append(tally.block if len(kept.t) else (tally.last_t, tally.last_t))
        if progress:
            progress(bookmark.position, max(source.size, bookmark.position))
    end, skipped, tail = source.found
    t_min, t_max = np.array(spans, np.int64).reshape(-1, 2).T.copy()
    table = np.array(states, np.int64).reshape(len(states), len(states[0]) if states else 0)
    first = np.cumsum(counts, dtype=np.int64)
    return Index(
        np.array([*positions, end], np.int64), table, first, t_min, t_max, tally, skipped, tail
    ), None if most is None else whole.slice(0, filled)


def _index_evenly(source: Source, even: EvenBlocks, sensor: Sensor | None, out: Columns | None) -> Index | None:
    """Build the index in several threads; return None if an event breaks a rule, which needs the pass in order."""
    blocks = len(even.positions) - 1
    t_min, t_max = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
    first = np.minimum(np.arange(blocks + 1, dtype=np.int64) * even.rows, even.num_events)

    def survey(begin: int) -> Tally | None:
        end = min(begin + RUN_BLOCKS, blocks)
        tally = Tally()
        start = Bookmark(int(even.positions[begin]), even.state)
        columns = check(source.decode(start, int(even.positions[end])), sensor, tally)
        if tally.outside or tally.back or tally.bad_polarity or tally.t_max > even.last_us:
            return None
        t_min[begin:end] = columns.t[:: even.rows]
        t_max[begin:end] = columns.t[first[begin + 1 : end + 1] - first[begin] - 1]
        if out:
            for target, column in zip(out, columns, strict=True):
                target[first[begin] : first[end]] = column
        return tally

    whole = Tally()
    with ThreadPoolExecutor(THREADS) as pool:
        for tally in pool.map(survey, range(0, blocks, RUN_BLOCKS)):
            if tally is None or tally.t_min < whole.last_t:
                pool.shutdown(cancel_futures=True)
                return None
            whole.add_times(tally.t_min, tally.t_max, tally.last_t)
            whole.events, whole.on = whole.events + tally.events, whole.on + tally.on
            whole.x_max, whole.y_max = max(whole.x_max, tally.x_max), max(whole.y_max, tally.y_max)
    states = np.broadcast_to(even.state, (blocks, len(even.state)))
    return Index(even.positions, states, first, t_min, t_max, whole, {}, source.found.tail)


def cache_folder() -> Path:
    """Return the folder of stored indexes: in ``$FATE_CACHE_DIR``, else in the user's cache folder."""
    return user_cache("index")


def cache_path(path: Path, options: dict[str, Any]) -> Path | None:
    """Return the cache file for the present state of a file or of a folder of files: any change gives another name."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        stats = [(file.name, file.stat()) for file in files]
        folder = cache_folder()
        whole = str(path.resolve())
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return None
    states = [[name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for name, s in stats]
    key = json.dumps([VERSION, whole, states, options], sort_keys=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"


def load_index(file: Path) -> Index | None:
    """Return a stored index, or None if the file does not exist or is damaged (the index is then built again)."""
    try:
        content = file.read_bytes()
        if hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
            return None
        with np.load(io.BytesIO(content[DIGEST_BYTES:]), allow_pickle=False) as stored:
            facts, arrays = json.loads(str(stored["meta"])), {name: stored[name] for name in ARRAYS}
        tally: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in facts["tally"].items()}
        return Index(**arrays, tally=Tally(**tally), skipped=facts["skipped"], tail=Tail(*facts["tail"]))
    except DAMAGE:
        return None


def store_index(file: Path, index: Index) -> None:
    """Store an index, and keep only the newest: recordings that moved or changed leave theirs behind.

    Warn if that fails (disk full, no permission).
    """
    meta = json.dumps({"tally": asdict(index.tally), "skipped": index.skipped, "tail": index.tail})
    packed = io.BytesIO()
    np.savez(packed, meta=meta, **{name: getattr(index, name) for name in ARRAYS})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, hashlib.sha256(packed.getvalue()).digest() + packed.getvalue())
        stored = list(file.parent.glob("*.npz"))
        if len(stored) > MAX_STORED:
            stored.sort(key=lambda each: each.stat().st_mtime)
            for old in stored[: len(stored) // 2]:
                old.unlink(missing_ok=True)
    except (OSError, FateError) as error:
        warn(
            f"the time index could not be kept in {file.parent} ({error}); it will be built again next time (set"
            " FATE_CACHE_DIR to a folder that can be written)"
        )
