"""Ctrl-C and SIGTERM as a wish to stop, so that a live run ends in order and all its files are completed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: The signals, what they are called, and what they do unless the program has asked for something else.
_SIGNALS: dict[signal.Signals, tuple[str, Any]] = {
    signal.SIGINT: ("Ctrl-C", signal.default_int_handler),
    signal.SIGTERM: ("SIGTERM", signal.SIG_DFL),
}


class Stop:
    """Keeps the wish to stop, and passes it on."""

    def __init__(self) -> None:
        self.reason = ""  #: which signal came; empty until then
        self._told: Callable[[str], object] | None = None

    def call(self, told: Callable[[str], object]) -> None:
        """Call ``told`` with the reason when a signal comes, or now if one has come.

        Args:
            told: runs inside the signal handler, so it must be quick and take no lock.
        """
        self._told = told
        if self.reason:
            told(self.reason)

    def ask(self, reason: str) -> None:
        """Ask for the end; a second time it is not waited for."""
        if self.reason:
            raise KeyboardInterrupt
        self.reason = reason
        if self._told is not None:
            self._told(reason)


@contextmanager
def stopping_gracefully() -> Iterator[Stop]:
    """Take Ctrl-C and SIGTERM as a wish to stop while the block runs; a second signal interrupts at once.

    Handlers that the program has set itself are left alone, and so is everything outside the main thread, where signals
    do not arrive.

    Example:
        >>> with stopping_gracefully() as stop, detector.live(source, hz=50) as live:   # doctest: +SKIP
        ...     stop.call(live.stop)
        ...     for frame in live:
        ...         print(frame.t_us, frame.boxes)
    """
    stop, before = Stop(), {}
    if threading.current_thread() is threading.main_thread():
        for number, (name, usual) in _SIGNALS.items():
            if signal.getsignal(number) is usual or signal.getsignal(number) == usual:

                def ask(_: int, frame: FrameType | None, name: str = name) -> None:
                    stop.ask(f"it was stopped ({name})")

                before[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
