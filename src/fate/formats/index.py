"""The time index of a recording: one bookmark per block, kept between runs in a cache folder.

Building it is one pass over the file; with it, reading a window costs only the blocks it touches.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.npz import DAMAGE
from fate.errors import FateError, warn
from fate.events.events import Sensor
from fate.files import user_cache
from fate.formats.decoder import Columns, Tally, allocate_columns, check, copy_columns
from fate.formats.source import Bookmark, Run, Source, Tail
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
    most = source.most_events() if keep else None
    whole, filled = allocate_columns(sum(most or ())), 0
    slots = None if most is None else [whole.slice(*ends) for ends in pairwise(accumulate(most, initial=0))]
    tally = Tally()
    blocks: list[Bookmark] = []
    counts: list[int] = [0]
    spans: list[tuple[int, int]] = []
    for run in source.runs(sensor, slots):
        for columns in _check_run(run, sensor, tally, counts, spans):
            if slots is not None:
                copy_columns(columns, whole.slice(filled, filled + len(columns.t)))
                filled += len(columns.t)
        blocks += run.blocks
        if progress and blocks:
            progress(blocks[-1].position, max(source.size, blocks[-1].position))
    end, skipped, tail = source.found
    t_min, t_max = np.array(spans, np.int64).reshape(-1, 2).T.copy()
    states = np.array([block.state for block in blocks], np.int64).reshape(len(blocks), -1 if blocks else 0)
    positions = np.array([*(block.position for block in blocks), end], np.int64)
    first = np.cumsum(counts, dtype=np.int64)
    index = Index(positions, states, first, t_min, t_max, tally, skipped, tail)
    return index, None if slots is None else whole.slice(0, filled)


def _check_run(
    run: Run, sensor: Sensor | None, tally: Tally, counts: list[int], spans: list[tuple[int, int]]
) -> Iterator[Columns]:
    """Yield the events to keep; append number of events and span of time of each block, and extend ``tally``."""
    found = run.tally
    if found and found.is_clean and (not found.events or found.t_min >= tally.last_t):
        low = high = tally.last_t
        for first, last in pairwise(run.ends):
            low, high = (int(run.columns.t[first]), int(run.columns.t[last - 1])) if last > first else (high, high)
            counts.append(last - first)
            spans.append((low, high))
        tally.add_clean(found)
        yield run.columns
        return
    for first, last in pairwise(run.ends):  # block by block, to tell which event is the first to break a rule
        kept = check(run.columns.slice(first, last), sensor, tally)
        counts.append(len(kept.t))
        spans.append(tally.block if len(kept.t) else (tally.last_t, tally.last_t))
        yield kept


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
