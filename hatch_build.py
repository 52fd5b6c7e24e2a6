"""Writes into every wheel and source archive which commit it was built from.

The record is ``fate/build.json``: {"version": "0.1.0", "git": 40 digits or null, "dirty": whether files differed from
that commit}. ``fate.version`` reads it. A wheel that is built from a source archive, where there is no git, keeps
the record of the archive. Nothing is written into the source tree.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RECORD = "build.json"


class BuildRecord(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the record to a build; an editable install needs none, since it runs in its checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        root = Path(self.root)
        package = root / "src" / "fate"
        if version == "editable" or (package / RECORD).exists():
            return
        folder = Path(tempfile.mkdtemp(prefix="fate-build-"))
        record = folder / RECORD
        record.write_text(json.dumps(describe(package, self.metadata.version)) + "\n", encoding="utf-8")
        inside = f"src/fate/{RECORD}" if self.target_name == "sdist" else f"fate/{RECORD}"
        build_data["force_include"][str(record)] = inside
        self._folder = folder

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling after the archive is written."""
        folder = getattr(self, "_folder", None)
        if folder is not None:
            (folder / RECORD).unlink()
            folder.rmdir()


def describe(package: Path, version: str) -> dict[str, Any]:
    """The version, the commit of the checkout that keeps the package (null without one), and whether files differ."""
    kept = _git("ls-files", "--error-unmatch", "__init__.py", folder=package) is not None
    commit = _git("rev-parse", "HEAD", folder=package) if kept else None
    changed = bool(commit and _git("status", "--porcelain", "--untracked-files=no", folder=package))
    return {"version": version, "git": commit, "dirty": changed}


def _git(*arguments: str, folder: Path) -> str | None:
    """What git prints; None if it is not installed or refuses."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
