"""Examples in docstrings run and give what they say; the documents name commands and files that exist."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import fate
from fate.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
#: Modules that need something not every machine has: a ROS reader, and triton, which is there only beside a GPU.
TRITON = (
    ".recorder_gpu",
    ".pixels_gpu",
    ".triton_kernels",
    ".triton_loops",
    ".unpacking_gpu",
    ".scan_gpu",
    ".norm_gpu",
    ".batch_norm_gpu",
    ".matching_gpu",
    ".deformable_gpu",
    ".fusing_gpu",
    ".products_gpu",
    ".attention_gpu",
    ".memory_gpu",
    ".maps_gpu",
    ".decoder_gpu",
    ".cells_gpu",
    ".history_gpu",
    ".nms_gpu",
    ".fused.kernels",
)
ELSEWHERE = ("__main__", ".bags") if find_spec("triton") else ("__main__", ".bags", *TRITON)
MODULES = [
    module.name for module in pkgutil.walk_packages(fate.__path__, "fate.") if not module.name.endswith(ELSEWHERE)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_some_docstrings_have_examples() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src" / "fate").rglob("*.py"))
    assert sum(bool(re.search(r"^ +>>> (?!.*\+SKIP)", text, re.M)) for text in sources) >= 3


PAGES = ["README.md", "CONTRIBUTING.md", *(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_between_documents_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert missing == []


def test_every_command_is_documented_and_every_documented_one_exists() -> None:
    group: Any = get_command(app)
    there = {(name,) for name in group.commands if name != "bench"}
    there |= {("bench", name) for name in group.commands["bench"].commands}
    named: dict[str, set[tuple[str, ...]]] = {}
    for page in ("README.md", *(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))):
        lines = re.findall(r"^fate (bench )?([a-z-]+)", (ROOT / page).read_text(), re.M)
        named[page] = {("bench", name) if bench else (name,) for bench, name in lines}
    assert named["docs/reference/commands.md"] == there
    assert set().union(*named.values()) <= there


@pytest.mark.parametrize("page", PAGES)
def test_documented_options_exist(page: str) -> None:
    group: Any = get_command(app)
    unknown = []
    for line in re.findall(r"(?:^|`)fate ((?:bench )?[a-z-]+ [^`#\n]*)", (ROOT / page).read_text(), re.M):
        words = line.split()
        command = group.commands.get(words[0])
        if words[0] == "bench":
            command = command.commands.get(words[1])
        if command is None:
            continue
        known = {option for parameter in command.params for option in parameter.opts} | {"-q", "-v", "-h", "--help"}
        unknown += [f"fate {line}: {word}" for word in words if re.match(r"--?[a-z]", word) and word not in known]
    assert unknown == []
