"""Which code is running: its version, and the commit that it was built from or that its checkout holds."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

__version__ = "0.1.0"

#: The folder of the package.
PACKAGE = Path(__file__).parent
#: Written into wheels and source archives by hatch_build.py; a checkout has none.
RECORD = "build.json"


@cache
def git_hash(package: Path = PACKAGE) -> str | None:
    """The commit, 40 digits, followed by "-dirty" if files differed from it; None if the commit is not known.

    An installed package contains a record of its build. Without this record the package must be tracked by git: it may
    be installed inside the checkout of another project, whose commit has nothing to do with it.
    """
    record = package / RECORD
    if record.exists():
        try:
            built = json.loads(record.read_text(encoding="utf-8"))
            commit = built["git"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None if commit is None else f"{commit}{'-dirty' if built.get('dirty') else ''}"
    if _git("ls-files", "--error-unmatch", "__init__.py", folder=package) is None:
        return None
    return _git("describe", "--always", "--exclude=*", "--abbrev=40", "--dirty", folder=package)


def full_version(package: Path = PACKAGE) -> str:
    """The version with the commit behind it, ``"0.1.0+g8d94418"``, so that two builds can be distinguished.

    ``.dirty`` follows if files differed from the commit; without a commit it is the version alone.
    """
    commit = git_hash(package)
    if commit is None:
        return __version__
    plain, _, changed = commit.partition("-")
    return f"{__version__}+g{plain[:7]}{'.dirty' if changed else ''}"


def _git(*arguments: str, folder: Path) -> str | None:
    """The output of a git command, one line; None if git is missing or the command fails."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # reading must not write to the checkout
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
