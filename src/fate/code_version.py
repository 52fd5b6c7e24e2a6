"""Which code is running: the commit of the checkout that the package lies in."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

#: The folder of the package.
PACKAGE = Path(__file__).parent


@cache
def git_hash(package: Path = PACKAGE) -> str | None:
    """The commit, 40 digits, with "-dirty" behind it where files were changed since; None outside a checkout.

    An installed package may lie inside the checkout of another project, whose commit would say nothing of it: the
    package has to be among the files that the checkout keeps.
    """
    if _git("ls-files", "--error-unmatch", "__init__.py", folder=package) is None:
        return None
    return _git("describe", "--always", "--exclude=*", "--abbrev=40", "--dirty", folder=package)


def _git(*arguments: str, folder: Path) -> str | None:
    """What git says, in one line; None where it is missing or refuses."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # looking changes nothing
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
