"""Help texts: short lines that are not cut off, whole phrases for options, examples that can be copied."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fate.cli.main import app
from fate.evaluation.protocols import NAMES

GROUP: Any = get_command(app)
BENCH: Any = GROUP.commands["bench"]
COMMANDS: dict[str, Any] = {
    **{name: command for name, command in GROUP.commands.items() if name != "bench"},
    **{f"bench {name}": command for name, command in BENCH.commands.items()},
}


def shown(*arguments: str, columns: int = 80) -> str:
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": str(columns)}, terminal_width=columns)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(("group", "commands"), [((), GROUP.commands), (("bench",), BENCH.commands)])
def test_every_command_has_a_whole_line_in_the_list(group: tuple[str, ...], commands: dict[str, Any]) -> None:
    listed = shown(*group).split("Commands:\n")[1].splitlines()
    lines = {line.split()[0]: line for line in listed[: len(commands)]}
    assert set(lines) == set(commands)
    for line in lines.values():
        assert len(line) <= 80
        assert line.endswith(".")
        assert not line.endswith("..")


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_explained_by_whole_phrases(name: str) -> None:
    for parameter in COMMANDS[name].params:
        text = getattr(parameter, "help", None)
        assert text, f"{name}: {parameter.name} has no help"
        assert text[0].isupper(), text
        assert text.endswith("."), text
        assert len(text.split()) >= 3, text
        assert text.split()[0] not in ("Of", "Likewise.", "As", "Such"), text


@pytest.mark.parametrize("name", [*COMMANDS, "bench"])
def test_examples_are_on_lines_of_their_own_that_can_be_copied(name: str) -> None:
    text = shown(*name.split())
    assert "Example" in text
    examples = [line.strip() for line in text.splitlines() if line.strip().startswith(f"fate {name}")]
    assert examples
    source = (BENCH if name == "bench" else COMMANDS[name]).help
    assert all(example in source for example in examples)
    assert not [line for line in text.splitlines() if line.strip().startswith("--") and line.startswith("    -")]


def test_the_help_of_protocols_names_them_all() -> None:
    (protocol,) = (each for each in COMMANDS["evaluate"].params if each.name == "protocol")
    assert all(name in protocol.help for name in (*NAMES, "custom"))


@pytest.mark.parametrize("name", COMMANDS)
def test_devices_are_chosen_alike(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if parameter.name == "device":
            # training takes it from its configuration, where it is auto as well
            assert parameter.default == (None if name == "train" else "auto")
