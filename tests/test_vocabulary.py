"""Code and documentation use the vocabulary of the field: no name, text or page contains a retired word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "fate"

#: Retired phrase -> what to write.
PHRASES = {
    r"\bbeg[iu]ns? anew\b": "the state is reset",
    r"\btold\b": "given, printed or logged",
    r"\bwhere there (is|are) none\b": "if there is none",
    r"\bas of ``": "same arguments as, with a list of them",
    r"\blikewise\b": "a complete sentence",
    r"\bfor people\b": "human-readable",
    r"\blooks? at (one another|each other)\b": "self-attention or cross-attention",
    r"\bknows? (the past|each other)\b": "recurrent features or fused features",
    r"\bvouch(es)?\b": "confirmed track",
    r"\bone behind the other\b": "concatenated",
    r"\bheld against\b": "compared with",
    r"\bfor want of\b": "because ... is missing",
    r"\bsooner\b": "faster or earlier",
    r"\bcrank\b": "a plain verb",
    r"\ban earlier commit\b": "the current figure",
    r"\bthe aim was\b": "the current figure",
}
#: Parts of names, between underscores or capitals, that are retired.
NAME_PARTS = {
    *("told", "anew", "vouches", "vouched", "sought", "mine", "bent", "sure"),
    *("place", "places", "wanted", "joined", "mixed", "sent", "likewise", "sooner"),
}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """The syntax tree of a file."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, and of every other text that is long enough to be a sentence."""
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of every function, class, argument and variable."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


#: A lane is a part of a road, and a thread of a GPU; it is not a row of a batch.
LANES_ALLOWED = ("simulation/art/", "encoding/kernels/")


def retired_phrases(text: str) -> list[str]:
    """Retired phrases in a text, each with what to write instead."""
    return [f"{found[0]!r}: write {say}" for bad, say in PHRASES.items() if (found := re.search(bad, text, re.I))]


def retired_parts(name: str) -> set[str]:
    """Retired parts of a name, such as ``told`` of ``is_told`` and of ``ToldCount``."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)} & NAME_PARTS


def test_no_docstring_message_or_help_text_uses_a_retired_phrase() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in texts(path)
        for fault in retired_phrases(text)
    ]
    assert found == []


def test_lanes_are_those_of_roads_and_gpus() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.relative_to(SOURCE).as_posix().startswith(LANES_ALLOWED)
        for line, text in (*texts(path), *names(path))
        if re.search(r"(^|[^a-z])lanes?([^a-z]|$)", text, re.I)
    ]
    assert found == []


def test_no_name_uses_a_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, name in names(path)
        if retired_parts(name)
    ]
    assert found == []


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "src/fate/cli/help.yaml",
        *(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")),
    ],
)
def test_no_page_uses_a_retired_phrase(page: str) -> None:
    assert retired_phrases((ROOT / page).read_text(encoding="utf-8")) == []


def test_the_check_finds_retired_words() -> None:
    assert retired_phrases("The memory begins anew.") == ["'begins anew': write the state is reset"]
    assert retired_phrases("The state is reset in explanation.") == []
    assert retired_parts("is_told") == retired_parts("ToldCount") == {"told"}
    assert retired_parts("stolden") == set()
