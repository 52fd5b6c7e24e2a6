"""The names of live sources: standard input (``-``), ``tcp:PORT`` and ``camera``.

They are checked before torch is loaded, which takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fate.errors import FateError

PORT = re.compile(r"tcp:([0-9]{1,5})")


def is_live(name: str) -> bool:
    """Whether a name means a live source and not a file."""
    return name == "-" or name == "camera" or name.startswith("camera:") or PORT.fullmatch(name) is not None


def check_source(name: str, sensor: Sequence[int] | None) -> None:
    """Refuse a source that cannot be opened; ``sensor`` is (height, width) if it was given."""
    port = PORT.fullmatch(name)
    if port is not None and not 0 < int(port[1]) < 1 << 16:
        raise FateError(f"{name}: there is no such port; expected tcp:1 to tcp:65535")
    if port is not None and sensor is None:
        raise FateError(f"{name}: a socket does not say how large the sensor is; give sensor=(height, width)")
