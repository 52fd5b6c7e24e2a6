"""What does not fit together in the files of one recording: sensors, clocks, lengths, labels beside exact boxes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import Labels
from fate.data.findings import CUT_SHORT_US, LOOK_BACK_US
from fate.formats.recording import Recording

SAME_BOX_PX = 0.05  # label files round: the public ones hold a corner and a size


def misfits(name: str, recording: Recording, labels: Labels, truth: Labels | None) -> tuple[str, ...]:
    """A sentence for everything that does not fit.

    Args:
        name: of the recording, to begin the sentences with.
        recording: open, with at least one event.
        labels: what its label file holds.
        truth: exact boxes beside them, if there are any.
    """
    tables = [labels] if truth is None else [labels, truth]
    notes = _sensors(recording, tables) + _times(recording, tables)
    if truth is not None and truth is not labels:
        notes += _disagreement(labels, truth)
    return tuple(f"{name}: {note}" for note in notes)


def _sensors(recording: Recording, tables: list[Labels]) -> list[str]:
    sizes = {table.sensor for table in tables if table.sensor is not None} - {tuple(recording.sensor)}
    return [
        f"labels are of a {width}×{height} sensor, events of a {recording.sensor} one"
        for height, width in sorted(sizes)
    ]


def _times(recording: Recording, tables: list[Labels]) -> list[str]:
    times = np.concatenate([table.labelled_us for table in tables])
    if not len(times):
        return []
    start, end = recording.start_us, recording.end_us
    first, last = int(times.min()), int(times.max())
    if last < start - LOOK_BACK_US or first > end + CUT_SHORT_US:
        return [
            f"labels run from {first / 1e6:.3f} to {last / 1e6:.3f} s, events from {start / 1e6:.3f} to"
            f" {end / 1e6:.3f} s; they are on different clocks"
        ]
    if last > end + LOOK_BACK_US:
        return [
            f"the recording ends at {end / 1e6:.3f} s, and the last label is at {last / 1e6:.3f} s; the recording may"
            " be cut short"
        ]
    return []


def _disagreement(labels: Labels, truth: Labels) -> list[str]:
    """Times that both tables know and where they hold other boxes: one of the two was changed."""
    shared = np.intersect1d(labels.labelled_us, truth.labelled_us)
    tracks = bool((labels.track_id >= 0).all())  # some label files have none
    mine, exact = (_rows_at(table, shared, tracks) for table in (labels, truth))
    differ = _numbers_at(mine, shared) != _numbers_at(exact, shared)
    bad = shared[differ]
    # with equal numbers at every time that is left, sorted rows stand beside each other
    mine, exact = (rows[~np.isin(rows[:, 0], bad)] for rows in (mine, exact))
    bad = np.union1d(bad, mine[(np.abs(mine - exact) > SAME_BOX_PX).any(axis=1), 0])
    if not len(bad):
        return []
    return [
        f"at {len(bad)} of {len(shared)} times the label file and the exact boxes beside it differ, first at"
        f" {bad[0] / 1e6:.3f} s; speeds and faults are those of the exact boxes"
    ]


def _rows_at(labels: Labels, times: NDArray[np.int64], tracks: bool) -> NDArray[np.float64]:
    """Rows at these times, sorted: [N, 7] time, track (0 where tracks do not count), class and box."""
    track = labels.track_id if tracks else np.zeros(len(labels))
    rows = np.column_stack([labels.t_us, track, labels.class_id, labels.boxes]).astype(np.float64)
    rows = rows[np.isin(labels.t_us, times)]
    return rows[np.lexsort((rows[:, 4], rows[:, 3], rows[:, 2], rows[:, 1], rows[:, 0]))]


def _numbers_at(rows: NDArray[np.float64], times: NDArray[np.int64]) -> NDArray[np.intp]:
    """How many of the sorted rows each time has."""
    return np.searchsorted(rows[:, 0], times, "right") - np.searchsorted(rows[:, 0], times, "left")
