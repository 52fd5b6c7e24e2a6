"""The configurations in the package, by name: ``sim/fate-s-nano-20hz``, or ``fate-s-nano-20hz`` as it is unique.

They lie in ``fate/configs``, one folder for each dataset, so that ``fate train NAME`` works from any folder.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import NamedTuple

from fate.errors import FateError
from fate.text import nearest_name

#: Where the configurations of the package lie.
FOLDER = Path(__file__).parent.parent / "configs"


class NamedConfig(NamedTuple):
    """A configuration in the package."""

    name: str  #: folder and stem, such as ``"gen1/fate-e"``
    file: Path
    about: str  #: the first comment of the file


def list_configs() -> list[NamedConfig]:
    """All configurations of the package, sorted by name."""
    found = []
    for file in sorted(FOLDER.glob("*/*.yaml")):
        first = file.read_text(encoding="utf-8").split("\n", 1)[0]
        about = first.removeprefix("#").strip() if first.startswith("#") else ""
        found.append(NamedConfig(f"{file.parent.name}/{file.stem}", file, about))
    return found


def find_config(given: str | PathLike[str]) -> Path:
    """The file of a configuration.

    Args:
        given: a name from :func:`list_configs`, its last part if only one configuration has it, or the path of a YAML
            file. A name wins over a file that is called the same; write ``./NAME`` for the file.

    Raises:
        FateError: no file or configuration is called that, or several configurations are.
    """
    known = {config.name: config.file for config in list_configs()}
    text = str(given)
    if text in known:
        return known[text]
    same = [name for name in known if name.split("/")[1] == text]
    if len(same) == 1:
        return known[same[0]]
    if same:
        raise FateError(f"{text}: {len(same)} configurations have this name; give {' or '.join(same)}")
    path = Path(given)
    if path.exists() or path.is_symlink():
        return path
    wanted = text.removeprefix("configs/").removesuffix(".yaml")
    short = {name if "/" in wanted else name.split("/")[1]: name for name in reversed(known)}
    near = nearest_name(wanted, short)
    hint = f"; did you mean {short[near]}?" if near is not None else ""
    raise FateError(
        f"{text}: no such configuration; expected a name that fate train --list prints, or a YAML file{hint}"
    )
