"""What a teacher sees beside a clip: the canonical windows of 50 ms over the same time, and some before to warm up on.

A student at rate f is held against a teacher at 20 Hz at the times at which windows of both end. The canonical grid is
that of :class:`fate.data.clips.Grid` at 20 Hz: 40, 80, 100 and 200 Hz meet it at all of its ends, a rate that is no
multiple of 20 Hz meets it now and then.

All lanes have equally many canonical windows and end with the last one that the clip has seen to its end. A lane that
needs fewer than another has more to warm up on: windows of the recording, not filling, since an empty window changes a
memory too. Before a recording's start there is nothing, which is what a detector at rest sees.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fate.data.clips import CANONICAL_HZ, Clip
from fate.events.window import window_us

CANONICAL_US = window_us(CANONICAL_HZ)


def canonical_numbers(clip: Clip, steps: int) -> range:
    """Numbers of the last ``steps`` canonical windows that end no later than the clip; below 0 they lie before the
    recording's start."""
    end = _last(clip) + 1
    return range(end - steps, end)


def canonical_steps(clips: Sequence[Clip], warmup: int) -> int:
    """T': canonical windows that end within the longest of the clips, and ``warmup`` before.

    Clips at the canonical rate are not counted: their student sees what the teacher would. 0 where there are no others.
    """
    others = [clip for clip in clips if _learns(clip)]
    within = [_last(clip) - (clip.first * window_us(clip.hz) // CANONICAL_US - 1) for clip in others]
    return max(warmup + max(within), 1) if within else 0


def _learns(clip: Clip) -> bool:
    """Whether a teacher at the canonical rate has something to say to this clip."""
    return not clip.is_empty and clip.hz != CANONICAL_HZ


def _last(clip: Clip) -> int:
    """The number of the last canonical window that ends no later than the clip."""
    return (clip.first + clip.steps) * window_us(clip.hz) // CANONICAL_US - 1


def shared_rows(
    student_us: NDArray[np.int64], teacher_us: NDArray[np.int64], clips: Sequence[Clip]
) -> NDArray[np.int64]:
    """[M, 2] rows of windows of student and teacher that end together, in the order of the student's.

    Args:
        student_us: [T, B] ends of windows.
        teacher_us: [T', B] likewise.
        clips: of the B lanes.
    """
    pairs = [np.zeros((0, 2), np.int64)]
    for lane, clip in enumerate(clips):
        if not _learns(clip):
            continue
        ends = student_us[: clip.steps, lane]  # behind them there is filling
        _, student, teacher = np.intersect1d(ends, teacher_us[:, lane], assume_unique=True, return_indices=True)
        pairs.append(np.stack([student, teacher], axis=1).astype(np.int64) * len(clips) + lane)
    rows = np.concatenate(pairs)
    return rows[np.argsort(rows[:, 0])]
