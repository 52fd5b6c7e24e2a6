"""What a streaming detector gives, window by window, and what it counts on the way."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.events.window import Window

#: Where the time of a window goes.
STAGES = ("decode", "encode", "model", "post")
#: Reasons for restarts that are kept as sentences; all are counted.
KEPT_REASONS = 20


@dataclass(frozen=True, eq=False)
class StreamFrame:
    """The M objects of one window, by falling confidence."""

    t_us: int  #: when they were there: the end of the window
    boxes: NDArray[np.float32]  #: [M, 4] xyxy, pixels of the recording's sensor
    scores: NDArray[np.float32]  #: [M] 0 to 1
    class_ids: NDArray[np.int64]  #: [M]
    track_ids: NDArray[np.int64] | None  #: [M], the same number for the same object; None without tracking
    window: Window
    num_events: int  #: in the window
    ms: dict[str, float]  #: of each of ``STAGES``; on a GPU encode, model and post are one graph, all under "model"
    restarted: str = ""  #: why memory and tracks began anew with this window; empty where they did not
    waited_ms: float = 0.0  #: live: from the window's closing to the start of its detection
    late: bool = False  #: live: whether the boxes came after the budget
    age_ms: float | None = None  #: live: from the window's end to its boxes, where the source knows when that end was

    @property
    def total_ms(self) -> float:
        """From the window's events to its boxes; reading or decoding them is not in it."""
        return sum(spent for stage, spent in self.ms.items() if stage != "decode")

    @property
    def budget_ms(self) -> float:
        """What a window may take if the next one is to find the detector free: its own length."""
        return self.window.duration_us / 1000

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass
class StreamCounts:
    """What came, what was seen, and what was not. It grows while a stream runs.

    Every window that closed is in ``windows`` or ``windows_dropped``; every event given is in ``events``,
    ``events_in_dropped_windows``, ``late_events`` or ``excess_events``, or in the window that is still open.
    """

    windows: int = 0  #: detected
    empty_windows: int = 0  #: of those, without events
    events: int = 0  #: in detected windows
    boxes: int = 0
    late_events: int = 0  #: of windows that had closed before they came: dropped
    excess_events: int = 0  #: more than a window may hold: dropped
    restarts: int = 0  #: memory began anew after a jump in time
    restart_reasons: list[str] = field(default_factory=list)  #: of the first ``KEPT_REASONS``
    skipped_windows: int = 0  #: inside jumps forward, where nothing can have happened
    windows_dropped: int = 0  #: live: too old when the detector became free
    events_in_dropped_windows: int = 0
    windows_late: int = 0  #: live: detected, but after the budget
    stalls: int = 0  #: live: times that the source was silent for long

    def restart(self, reason: str) -> str:
        """Count one; gives the reason back."""
        self.restarts += 1
        if len(self.restart_reasons) < KEPT_REASONS:
            self.restart_reasons.append(reason)
        return reason

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return asdict(self)
