"""Shared pieces of the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fate.cli.terminal import VERBOSITY


@pytest.fixture(autouse=True)
def usual_verbosity() -> Iterator[None]:
    """``-q`` and ``-v`` of one test do not reach the next: commands that run in this process set them for it."""
    VERBOSITY.set(quiet=False, verbose=0)
    yield
    VERBOSITY.set(quiet=False, verbose=0)
