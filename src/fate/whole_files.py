"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fate.errors import FateError


def write_whole(path: Path, data: bytes) -> None:
    """Write a file beside its name, then rename it: a reader sees the old one or the new one, never half of one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    except OSError as error:
        raise FateError(
            f"{path}: cannot be written ({error.strerror or error}); make room or choose another place"
        ) from None
    finally:
        with suppress(OSError):  # where nothing can be written, nothing can be removed
            draft.unlink(missing_ok=True)
