"""README, CITATION.cff, CONTRIBUTING.md, the glossary and the Dockerfile agree with each other and with the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
ARXIV = "2606.17334"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_readme_citation_and_package_name_the_same_paper() -> None:
    paper = yaml.safe_load(read("CITATION.cff"))["preferred-citation"]
    names = [author["family-names"] for author in paper["authors"]]
    assert ARXIV in paper["url"]
    assert paper["title"] in read("README.md")
    assert f"https://arxiv.org/abs/{ARXIV}" in read("README.md")
    bibtex = re.search(r"```bibtex\n(.*?)```", read("README.md"), re.S)
    assert bibtex
    assert all(name in bibtex[1] for name in (*names, ARXIV))
    assert ARXIV in tomllib.loads(read("pyproject.toml"))["project"]["urls"]["Paper"]


def test_contributing_names_every_package_and_only_files_that_exist() -> None:
    text = read("CONTRIBUTING.md")
    packages = {file.parent.name for file in (ROOT / "src" / "fate").glob("*/__init__.py")}
    table = set(re.findall(r"^\| *\d* *\| `(\w+)/`", text, re.M))
    assert table == packages
    named = re.findall(r"`((?:tests|scripts|configs|docs|\w+)/[\w./]*\.(?:py|md))`", text)
    places = (ROOT, ROOT / "src" / "fate")
    missing = [name for name in named if not any((place / name).exists() for place in places) and "yours" not in name]
    assert len(named) > 10
    assert missing == []


@pytest.mark.parametrize(
    "term",
    ["event", "window", "hop", "rate", "canonical rate", "pillar", "state", "AP50:95", "PE", "FAT", "Gen1", "1Mpx",
     "RVT", "EVT2.1", "EVT3", "EvRT-DETR", "S5-ViT", "CUDA graph", "dense tensor", "DSEC"],
)  # fmt: skip
def test_the_glossary_explains_the_terms_of_the_readme(term: str) -> None:
    rows = re.findall(r"^\| ([^|]+) \| \S", read("docs/explanation/glossary.md"), re.M)
    assert any(term in re.split(r",\s*|[()]|\s\(", row) or term in re.findall(r"\(([^)]*)\)", row) for row in rows)


def test_the_install_page_has_every_system_with_its_disk_size_and_the_readme_leads_there() -> None:
    page = read("docs/start/install.md")
    sections = re.findall(r"^## (.+)$", page, re.M)
    for system in ("CPU only", "CUDA", "Windows", "macOS", "Jetson", "Docker"):
        assert any(system in section for section in sections), system
    sizes = re.findall(r"^\|.*\| ([\d.]+) GB \|$", page, re.M)
    assert len(sizes) >= 2
    assert "(docs/start/install.md)" in read("README.md")


def test_the_dockerfile_copies_only_what_is_there_and_not_ignored() -> None:
    allowed = [line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")]
    assert all((ROOT / name).exists() for name in allowed)
    copied = re.findall(r"^COPY (\S+)", read("Dockerfile"), re.M)
    assert copied
    assert all(name == "." or name in allowed for name in copied)
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert {project["readme"], *project["license-files"], "pyproject.toml", "src"} <= set(allowed)
