"""Run a command in this process: a fresh interpreter takes most of a second, and compiles loops again."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from fate.cli.main import main


@contextmanager
def _streams(encoding: str) -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2))
    with patch.object(sys, "stdout", out), patch.object(sys, "stderr", err), warnings.catch_warnings():
        yield out, err


def fate(*arguments: str | Path, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    """The exit code, output and errors of ``fate ARGUMENTS``, on streams of this encoding."""
    words = [str(argument) for argument in arguments]
    code: object = 0
    with _streams(encoding) as streams, patch.object(sys, "argv", ["fate", *words]):
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            gc.unfreeze()
        texts = [stream.buffer.getvalue().decode(encoding) for stream in streams]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(words, int(str(code or 0)), *texts)
