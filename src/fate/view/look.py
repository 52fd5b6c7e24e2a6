"""How a video shows a recording."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """How a video shows a recording."""

    acc_us: int = 50_000  #: events of this time before each picture are shown, µs
    fps: float = 25.0  #: pictures per second of video
    slow: float = 1.0  #: how many times slower than the recording the video runs
    palette: str = "dark"  #: a name of ``fate.boxes.drawing.PALETTES``
