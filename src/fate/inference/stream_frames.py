"""The result of a stream for each window, and what a stream counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fate.boxes.detections import DetectionFrame
from fate.events.window import Window

#: Parts of the time that a window takes.
STAGES = ("decode", "encode", "model", "post")
#: Reasons of restarts that are kept as text; all restarts are counted.
KEPT_REASONS = 20


@dataclass(frozen=True, eq=False)
class StreamFrame(DetectionFrame):
    """The M detections of one window, in order of falling confidence; ``t_us`` is its end."""

    window: Window
    num_events: int  #: in the window
    ms: dict[str, float]  #: time of each of ``STAGES``; on a GPU, encode, model and post are one graph: all "model"
    restarted: str = ""  #: why state and tracks were reset before this window; empty if they were not
    waited_ms: float = 0.0  #: live: from the end of the window to the start of its detection
    late: bool = False  #: live: whether the boxes came after the budget
    age_ms: float | None = None  #: live: from the time of the window's end to its boxes, if the source knows that time

    @property
    def total_ms(self) -> float:
        """From the events of the window to its boxes, without reading or decoding them."""
        return sum(spent for stage, spent in self.ms.items() if stage != "decode")

    @property
    def budget_ms(self) -> float:
        """The length of the window: a detector that takes longer cannot keep up with a live source."""
        return self.window.duration_us / 1000

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass
class StreamCounts:
    """What a stream has received, detected and dropped so far.

    Every window that closed is in ``windows`` or ``windows_dropped``. Every event is in ``events``,
    ``events_in_dropped_windows``, ``late_events`` or ``excess_events``, or in the window that is still open.
    """

    windows: int = 0  #: detected
    empty_windows: int = 0  #: of those, without events
    events: int = 0  #: in detected windows
    boxes: int = 0
    late_events: int = 0  #: dropped because their window had closed
    excess_events: int = 0  #: dropped because their window was full
    restarts: int = 0  #: resets of the state after a jump in time
    restart_reasons: list[str] = field(default_factory=list)  #: of the first ``KEPT_REASONS``
    skipped_windows: int = 0  #: empty windows inside long gaps
    windows_dropped: int = 0  #: live: too old when the detector became free
    events_in_dropped_windows: int = 0
    windows_late: int = 0  #: live: detected, but after the budget
    stalls: int = 0  #: live: times that the source was silent for long

    def restart(self, reason: str) -> str:
        """Count a restart and return its reason."""
        self.restarts += 1
        if len(self.restart_reasons) < KEPT_REASONS:
            self.restart_reasons.append(reason)
        return reason

    def skip(self, gap_us: int, hop_us: int) -> int:
        """Count the whole windows inside a gap and return their number."""
        skipped = gap_us // hop_us
        self.skipped_windows += skipped
        return skipped

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return asdict(self)
