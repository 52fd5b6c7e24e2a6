"""The time index of a recording: one bookmark per block, kept between runs in a cache folder.

Building it is one pass over the file; with it, reading a window costs only the blocks it touches.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.npz import DAMAGE
from fate.errors import warn
from fate.events.events import Sensor
from fate.formats.columns import Columns, Tally, check
from fate.formats.source import Bookmark, EvenBlocks, Source, Tail
from fate.progress import Progress

VERSION = 4  # raise it when the meaning of anything stored changes: old cache files are then ignored
THREADS = 2
ARRAYS = ("positions", "states", "first", "t_min", "t_max")
MAX_STORED = 10_000  # indexes kept in the cache folder
RUN_BLOCKS = 16  # decoded at a time by one thread


@dataclass(frozen=True)
class Index:
    """Blocks of a recording, in file order, and what the pass over the file found.

    Args:
        positions: [blocks + 1] int64, where each block starts; the last is the end.
        states: [blocks, S] int64, the decoder's state at each start.
        first: [blocks + 1] int64, number of kept events before each block.
        t_min, t_max: [blocks] int64, µs; a block without events repeats the last time before it.
    """

    positions: NDArray[np.int64]
    states: NDArray[np.int64]
    first: NDArray[np.int64]
    t_min: NDArray[np.int64]
    t_max: NDArray[np.int64]
    tally: Tally
    skipped: dict[str, int]
    tail: Tail
    bytes_consumed: int

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
        """Estimate the events in ``[start_us, end_us)``, as if those of a block were evenly spread over its time."""
        blocks = np.array(self.blocks_between(start_us, end_us), np.intp)
        t_min, t_max = self.t_min[blocks], self.t_max[blocks] + 1
        overlap = np.minimum(t_max, end_us) - np.maximum(t_min, start_us)
        return float((np.diff(self.first)[blocks] * (overlap / (t_max - t_min))).sum())


def build_index(
    source: Source, sensor: Sensor | None, progress: Progress | None = None, out: Columns | None = None
) -> tuple[Index, bool]:
    """One pass over ``source``; events outside ``sensor`` are counted and left out of the block counts.

    ``out``, if given, has room for the events of :meth:`Source.even_blocks`; the second value returned says whether
    they are in it.
    """
    if even := source.even_blocks():
        index = _index_evenly(source, even, sensor, out)
        if index:
            return index, out is not None
    return _index_in_order(source, sensor, progress), False


def _index_in_order(source: Source, sensor: Sensor | None, progress: Progress | None) -> Index:
    tally = Tally()
    positions: list[int] = []
    states: list[NDArray[np.int64]] = []
    counts: list[int] = []
    spans: list[tuple[int, int]] = []
    for bookmark, columns in source.scan():
        kept = check(columns, sensor, tally)
        positions.append(bookmark.position)
        states.append(bookmark.state)
        counts.append(len(kept.t))
        spans.append(tally.block if len(kept.t) else (tally.last_t, tally.last_t))
        if progress:
            progress(bookmark.position, max(source.size, bookmark.position))
    span = np.array(spans, np.int64).reshape(-1, 2)
    return Index(
        positions=np.array([*positions, source.end()], np.int64),
        states=np.array(states, np.int64).reshape(len(states), len(states[0]) if states else 0),
        first=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        t_min=np.ascontiguousarray(span[:, 0]),
        t_max=np.ascontiguousarray(span[:, 1]),
        tally=tally,
        skipped=source.skipped(),
        tail=source.tail(),
        bytes_consumed=source.bytes_consumed(),
    )


def _index_evenly(source: Source, even: EvenBlocks, sensor: Sensor | None, out: Columns | None) -> Index | None:
    """Build the index in several threads; return None if an event breaks a rule, which needs the pass in order."""
    blocks = len(even.positions) - 1
    t_min, t_max = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
    counts = np.full(blocks, even.rows, np.int64)
    if blocks:
        counts[-1] = even.num_events - even.rows * (blocks - 1)
    first = np.concatenate(([0], np.cumsum(counts)))

    def survey(begin: int) -> Tally | None:
        end = min(begin + RUN_BLOCKS, blocks)
        tally = Tally()
        start = Bookmark(int(even.positions[begin]), even.state)
        columns = check(source.decode(start, int(even.positions[end])), sensor, tally)
        if tally.outside or tally.back or tally.bad_polarity or tally.t_max > even.last_us:
            return None
        t_min[begin:end] = columns.t[:: even.rows]
        t_max[begin:end] = columns.t[np.minimum(first[begin + 1 : end + 1] - first[begin], len(columns.t)) - 1]
        if out:
            for target, column in zip(out, columns, strict=True):
                target[first[begin] : first[end]] = column
        return tally

    whole = Tally()
    runs = range(0, blocks, RUN_BLOCKS)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(THREADS)) if len(runs) > 1 else None
        for tally in pool.map(survey, runs) if pool else map(survey, runs):
            if tally is None or tally.t_min < whole.last_t:
                if pool:
                    pool.shutdown(cancel_futures=True)
                return None
            whole.add(tally)
    return Index(
        positions=even.positions,
        states=np.broadcast_to(even.state, (blocks, len(even.state))),
        first=first,
        t_min=t_min,
        t_max=t_max,
        tally=whole,
        skipped={},
        tail=source.tail(),
        bytes_consumed=source.bytes_consumed(),
    )


def cache_folder() -> Path:
    """Return the folder of stored indexes: in ``$FATE_CACHE_DIR``, else in the user's cache folder."""
    if folder := os.environ.get("FATE_CACHE_DIR"):
        return Path(folder) / "index"
    base = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fate" / "index"


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
        with np.load(file, allow_pickle=False) as stored:
            text = str(stored["meta"])
            if str(stored["digest"]) != _digest(text, {name: stored[name] for name in ARRAYS}):
                return None
            meta = json.loads(text)
            tally: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in meta["tally"].items()}
            index = Index(
                positions=stored["positions"],
                states=stored["states"],
                first=stored["first"],
                t_min=stored["t_min"],
                t_max=stored["t_max"],
                tally=Tally(**tally),
                skipped=meta["skipped"],
                tail=Tail(*meta["tail"]),
                bytes_consumed=meta["bytes_consumed"],
            )
            return index if _is_whole(index) else None
    except DAMAGE:
        return None


def _digest(meta: str, arrays: dict[str, NDArray[np.int64]]) -> str:
    """A checksum of all that is stored, so that edited values are not taken for times of the recording."""
    checksum = hashlib.sha256(meta.encode())
    for name in ARRAYS:
        array = arrays[name]
        checksum.update(f"{name} {array.dtype} {array.shape}".encode())
        checksum.update(np.ascontiguousarray(array).data)
    return checksum.hexdigest()


def _is_whole(index: Index) -> bool:
    """Whether the arrays of a stored index have the types and shapes of one."""
    arrays = (index.positions, index.states, index.first, index.t_min, index.t_max)
    if any(array.dtype != np.int64 or array.ndim != (2 if array is index.states else 1) for array in arrays):
        return False
    blocks = index.num_blocks
    return len(index.positions) == len(index.first) == blocks + 1 and len(index.states) == len(index.t_max) == blocks


def _make_room(folder: Path) -> None:
    """Keep the newest indexes; recordings that moved or changed leave theirs behind."""
    stored = list(folder.glob("*.npz"))
    if len(stored) > MAX_STORED:
        stored.sort(key=lambda file: file.stat().st_mtime)
        for file in stored[: len(stored) // 2]:
            file.unlink(missing_ok=True)


def store_index(file: Path, index: Index) -> None:
    """Store an index; warn if that fails (disk full, no permission)."""
    meta = json.dumps(
        {
            "tally": asdict(index.tally),
            "skipped": index.skipped,
            "tail": list(index.tail),
            "bytes_consumed": index.bytes_consumed,
        }
    )
    arrays = {name: getattr(index, name) for name in ARRAYS}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".tmp", delete=False) as temporary:
            try:
                np.savez(temporary, meta=meta, digest=_digest(meta, arrays), **arrays)
                temporary.close()
                os.replace(temporary.name, file)
                _make_room(file.parent)
            except BaseException:
                temporary.close()
                Path(temporary.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        warn(
            f"the time index could not be kept in {file.parent} ({error.strerror}); it will be built again next"
            " time (set FATE_CACHE_DIR to a folder that can be written)"
        )
