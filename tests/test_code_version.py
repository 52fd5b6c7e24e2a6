"""The commit of the code that runs: right in a checkout of its own, and nothing rather than another project's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fate.code_version import git_hash

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed on this machine")


def git(folder: Path, *arguments: str) -> str:
    """What git says in a folder, as somebody whose settings do not matter."""
    who = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of one commit with a package in it."""
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """What was found before is looked for again."""
    git_hash.cache_clear()


def test_a_package_in_its_checkout_has_the_commit_even_with_tags(checkout: Path) -> None:
    git(checkout, "tag", "--annotate", "v1", "--message", "one")
    assert git_hash(checkout / "src" / "package") == git(checkout, "rev-parse", "HEAD")


def test_changes_that_no_commit_holds_are_told(checkout: Path) -> None:
    package = checkout / "src" / "package"
    (package / "__init__.py").write_text("1\n")
    assert git_hash(package) == git(checkout, "rev-parse", "HEAD") + "-dirty"


def test_a_package_installed_inside_another_projects_checkout_has_none(checkout: Path) -> None:
    installed = checkout / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert git_hash(installed) is None


def test_outside_of_any_checkout_there_is_none(tmp_path: Path) -> None:
    assert git_hash(tmp_path) is None
