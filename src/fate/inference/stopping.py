"""Takes Ctrl-C and SIGTERM as a request to stop, so that a live run ends in order and completes its files."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: The signals, their names, and their default handlers.
_SIGNALS: dict[signal.Signals, tuple[str, Any]] = {
    signal.SIGINT: ("Ctrl-C", signal.default_int_handler),
    signal.SIGTERM: ("SIGTERM", signal.SIG_DFL),
}


class Stop:
    """Keeps a request to stop, and passes it on."""

    def __init__(self) -> None:
        self.reason = ""  #: the signal; empty until one arrives
        self._callback: Callable[[str], object] | None = None

    def call(self, callback: Callable[[str], object]) -> None:
        """Call ``callback`` with the reason when a signal arrives, or now if one has arrived.

        It runs inside the signal handler, so it must be quick and take no lock.
        """
        self._callback = callback
        if self.reason:
            callback(self.reason)

    def ask(self, reason: str) -> None:
        """Request the end; a second request interrupts at once."""
        if self.reason:
            raise KeyboardInterrupt
        self.reason = reason
        if self._callback is not None:
            self._callback(reason)


@contextmanager
def stopping_gracefully() -> Iterator[Stop]:
    """Take Ctrl-C and SIGTERM as a request to stop while the block runs; a second signal interrupts at once.

    Handlers that the program has set itself stay, and so does everything outside the main thread, where signals do not
    arrive. ``docs/guides/streaming.md`` has an example.
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
