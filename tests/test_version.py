"""The commit of the code that runs: right in a checkout of its own, and nothing rather than another project's."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

import fate
from fate.version import full_version, git_hash

ROOT = Path(__file__).parents[1]
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


@pytest.mark.parametrize(
    ("record", "commit", "version"),
    [
        ({"git": "8d94418" + "0" * 33, "dirty": False}, "8d94418" + "0" * 33, "+g8d94418"),
        ({"git": "8d94418" + "0" * 33, "dirty": True}, "8d94418" + "0" * 33 + "-dirty", "+g8d94418.dirty"),
        ({"git": None, "dirty": False}, None, ""),
        ([], None, ""),
    ],
)
def test_an_installed_package_tells_the_commit_that_it_was_built_from(
    checkout: Path, record: object, commit: str | None, version: str
) -> None:
    installed = checkout / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "build.json").write_text(json.dumps(record))
    assert git_hash(installed) == commit
    assert full_version(installed) == fate.__version__ + version


def test_a_wheel_and_a_source_archive_carry_the_commit(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed on this machine")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    project = tmp_path / "project"
    package = project / "src" / "fate"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version.py").write_text('__version__ = "0.1.0"\n')
    (package / "configs").mkdir()
    (package / "configs" / "one.yaml").write_text("data: {path: x}\n")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project)
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "--message", "first")
    commit = git(project, "rev-parse", "HEAD")
    (wheel,) = WheelBuilder(str(project)).build(directory=str(tmp_path / "wheel"))
    (archive,) = SdistBuilder(str(project)).build(directory=str(tmp_path / "sdist"))
    assert git(project, "status", "--porcelain") == ""
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    (again,) = WheelBuilder(str(tmp_path / "unpacked" / "fate_events-0.1.0")).build(directory=str(tmp_path / "again"))
    for built in (wheel, again):
        with zipfile.ZipFile(built) as content:
            assert json.loads(content.read("fate/build.json")) == {"version": "0.1.0", "git": commit, "dirty": False}
            assert "fate/configs/one.yaml" in content.namelist()
