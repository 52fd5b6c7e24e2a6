"""YAML of users: a plain tree of a bounded size, or one sentence."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from fate.data.opening import open_dataset
from fate.errors import FateError
from fate.training.config import make_config, read_config
from fate.yaml_files import MAX_DEPTH, load_yaml, parse_yaml

BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED_BOMB = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED = {
    "bomb": BOMB,
    "bomb of merges": MERGED_BOMB,
    "contains itself": "model: &a [*a]\n",
    "date": "run: {name: 2026-11-16}\n",
    "time": "run: {name: 2026-11-16 10:00:00}\n",
    "impossible date": "run: {name: 2026-13-16}\n",
    "set": "run: !!set {a, b}\n",
    "bytes": "run: !!binary aGVsbG8=\n",
    "date as a key": "{2026-11-16: 1}\n",
    "list as a key": "? [1, 2]\n: 3\n",
    "wrong tag": "run: !!bool maybe\n",
    "empty number": 'run: !!int ""\n',
    "deep": "model: " + "[" * 100_000 + "]" * 100_000,
    "deep blocks": "\n".join(" " * i + "k:" for i in range(1_500)),
    "zero byte": 'base: "a\\0b"\n',
    "half a character": 'run: "\\ud800"\n',
    "half a character as a key": '"\\ud800": 1\n',
    "long number": "run: {seed: " + "9" * 5_000 + "}\n",
    "long sexagesimal": "run: {seed: " + "1:" * 50_000 + "1}\n",
    "key twice": "run: {seed: 1}\nrun: {seed: 2}\n",
    "object": "run: !!python/object/apply:os.system [ls]\n",
    "two documents": "a: 1\n---\nb: 2\n",
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("read", [load_yaml, read_config, open_dataset])
def test_dangerous_documents_give_one_short_sentence(tmp_path: Path, kind: str, read: Any) -> None:
    file = tmp_path / "given.yaml"
    file.write_text(REFUSED[kind], "utf-8")
    with pytest.raises(FateError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("read", [load_yaml, read_config])
def test_only_regular_files_are_configurations(tmp_path: Path, read: Any) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for name in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(FateError, match="expected a YAML file"):
            read(name)


def test_aliases_and_merges_of_normal_size_are_read() -> None:
    tree = parse_yaml("a: &a {x: 1, y: [2]}\nb: *a\nc: {<<: *a, x: 3}\n", "text")
    assert tree == {"a": {"x": 1, "y": [2]}, "b": {"x": 1, "y": [2]}, "c": {"x": 3, "y": [2]}}
    tree["a"]["y"].append(5)
    assert tree["b"]["y"] == [2]


def test_depth_up_to_the_limit_is_read() -> None:
    inner = MAX_DEPTH - 1
    assert parse_yaml("[" * inner + "1" + "]" * inner, "text") is not None


def test_a_chain_of_bases_is_bounded_and_named(tmp_path: Path) -> None:
    for number in range(1_200):
        (tmp_path / f"{number}.yaml").write_text(f"base: {number + 1}.yaml\n")
    (tmp_path / "1200.yaml").write_text("data: {path: x}\n")
    with pytest.raises(FateError, match="base of"):
        read_config(tmp_path / "0.yaml")
    assert read_config(tmp_path / "1190.yaml").data.path == "x"


@pytest.mark.parametrize("base", ['"a\\0b"', "[a]", "3", "/dev/zero", "missing.yaml", '"\\ud800"'])
def test_a_base_that_is_no_file_gives_one_sentence(tmp_path: Path, base: str) -> None:
    file = tmp_path / "given.yaml"
    file.write_text(f"base: {base}\ndata: {{path: x}}\n")
    with pytest.raises(FateError):
        read_config(file)


def test_a_setting_of_the_command_line_has_the_same_limits() -> None:
    for value in ("2026-11-16", "&a [*a]", "[" * 5_000, '"\\ud800"', "!!bool maybe"):
        with pytest.raises(FateError):
            make_config({"data": {"path": "x"}}, [f"run.seed={value}"])


def test_values_of_a_program_are_checked_as_those_of_a_file() -> None:
    loop: dict[str, Any] = {}
    loop["data"] = loop
    for content in (loop, {"data": {"path": time}}, {"data": {"path": {1, 2}}}, {("a",): 1}):
        with pytest.raises(FateError):
            make_config(content)
    assert make_config({"data": {"path": "x"}, "run": {"validate_hz": (20, 40)}}).run.validate_hz == (20.0, 40.0)
