"""The layout of the package: imports point to lower layers, and no file imports itself through others."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"

#: Packages from the lowest layer to the highest. A file imports from lower layers and from its own package.
SPINE = (
    ("events",),
    ("boxes",),
    ("formats", "encoding"),
    ("data", "models"),
    ("inference",),
    ("evaluation", "densify"),
    ("training",),
)
TOOLS = (("view", "simulation", "inspection", "bench"),)
LAYERS = (*SPINE, *TOOLS, ("workflows",), ("cli",))
HEIGHT = {package: height for height, layer in enumerate(LAYERS, start=1) for package in layer}


def modules(source: Path) -> dict[str, Path]:
    """All modules of the package by name."""
    found = {}
    for path in sorted((source / "fate").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(source: Path) -> dict[str, set[str]]:
    """The modules of the package that each module imports: at the top, inside functions and for type checkers."""
    known = modules(source)
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                given = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                home = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
                home = ".".join(part for part in (home, node.module) if part)
                full = [f"{home}.{alias.name}" for alias in node.names]
                given = [each if each in known else home for each in full]
            else:
                continue
            found[name] |= {each for each in given if each.split(".")[0] == "fate"} - {name}
    return found


def height(name: str) -> int:
    """The layer of a module. Modules directly in the package are below all layers; the package itself and
    ``python -m fate`` are above."""
    if name in ("fate", "fate.__main__"):
        return len(LAYERS) + 1
    package = name.split(".")[1]
    return HEIGHT.get(package, 0)


def wrong_imports(source: Path) -> list[str]:
    """Imports that do not point to a lower layer or into the same package."""
    wrong = []
    for name, imported in imports(source).items():
        for other in sorted(imported):
            same = name.split(".")[:2] == other.split(".")[:2] or (height(name) == height(other) == 0)
            if name != "fate" and not same and height(other) >= height(name):
                wrong.append(f"{name} imports {other}")
    return wrong


def find_cycle(source: Path) -> list[str]:
    """Files that import each other in a circle; empty if there are none."""
    graph = {name: found for name, found in imports(source).items() if name != "fate"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_package_has_a_layer() -> None:
    packages = {path.parent.name for path in (SOURCE / "fate").glob("*/__init__.py")}
    assert packages == set(HEIGHT)


def test_every_folder_of_sources_is_a_package() -> None:
    folders = {path.parent for path in (SOURCE / "fate").rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_git_ignores_no_source_file() -> None:
    root = SOURCE.parent
    if not (root / ".git").exists():
        pytest.skip("this is not a checkout of the repository")
    command = ["git", "ls-files", "--others", "--ignored", "--exclude-standard", "--", "src/*.py", "tests/*.py"]
    ignored = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert ignored.split() == []


def test_imports_point_to_lower_layers() -> None:
    assert wrong_imports(SOURCE) == []


def test_no_file_imports_itself_through_others() -> None:
    assert find_cycle(SOURCE) == []


def test_no_package_holds_more_than_a_fifth_of_the_lines() -> None:
    lines: dict[str, int] = {}
    for name, path in modules(SOURCE).items():
        package = name.split(".")[1] if "." in name else "fate"
        lines[package] = lines.get(package, 0) + len(path.read_text(encoding="utf-8").splitlines())
    total = sum(lines.values())
    assert {package: share for package, share in lines.items() if share > 0.2 * total} == {}


def write(folder: Path, files: dict[str, str]) -> Path:
    """A small source tree."""
    for name, text in {"__init__.py": "", **files}.items():
        path = folder / "fate" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    return folder


def test_the_check_sees_imports_that_point_upwards(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        {
            "events/events.py": "def read():\n    from fate.formats import opening\n",
            "formats/opening.py": "",
            "models/zoo.py": "import fate\n",
            "training/loop.py": "import fate.view.page\n",
            "view/page.py": "",
        },
    )
    assert wrong_imports(source) == [
        "fate.events.events imports fate.formats.opening",
        "fate.models.zoo imports fate",
        "fate.training.loop imports fate.view.page",
    ]


def test_the_check_sees_cycles_inside_a_package_and_through_types(tmp_path: Path) -> None:
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fate.data.loading import load\n"
    source = write(tmp_path, {"data/loading.py": "from . import batches\n", "data/batches.py": types})
    assert set(find_cycle(source)) == {"fate.data.loading", "fate.data.batches"}
