"""Messages of the package in the words of the command line.

Errors and warnings are written for Python, with its arguments: ``pass sensor=(height, width)``. Whoever runs a command
has options instead: ``pass --sensor WIDTHxHEIGHT``. Commands print every message through :func:`with_options`.
"""

from __future__ import annotations

import re

#: Arguments that the command line has under another name, or as a flag.
OTHER_NAMES = {
    'out_of_bounds="drop"': "--drop-out-of-bounds",
    'unsorted="sort"': "--sort",
    "format=NAME": "--to NAME",
    "label_tolerance_us=5000": "--label-tolerance 5ms",
    "sensor=(height, width)": "--sensor WIDTHxHEIGHT",
}
#: Arguments that are options of the same name.
SAME_NAMES = (
    "against", "allow_missing", "columns", "device", "format", "fresh", "hz", "images", "jobs", "kind", "model",
    "opset", "out", "palette", "roi", "sensor", "steps", "streams", "strict", "threads", "time_unit", "zero_time",
)  # fmt: skip

_OTHER = re.compile("|".join(re.escape(argument) for argument in OTHER_NAMES))
# not behind a dot or a slash: run.device=cpu is a setting of a configuration, a/out=b a path
_SAME = re.compile(rf"""(?<![\w./=-])({"|".join(SAME_NAMES)})=("[^"]*"|'[^']*'|\([^()]*\)|[\w.]*\w)""")


def with_options(message: str) -> str:
    """The message with options of commands in place of Python arguments.

    Example:
        >>> with_options('a.csv: pass columns="txyp" or sensor=(260, 346); run.device=cpu')
        'a.csv: pass --columns txyp or --sensor 346x260; run.device=cpu'
    """
    return _SAME.sub(_option, _OTHER.sub(lambda found: OTHER_NAMES[found[0]], message))


def _option(found: re.Match[str]) -> str:
    name, value = found[1], found[2].strip("\"'")
    if value == "True":
        return f"--{name.replace('_', '-')}"
    if value.startswith("("):
        parts = [part.strip() for part in value[1:-1].split(",") if part.strip()]
        value = "x".join(reversed(parts)) if name == "sensor" else (" " if name == "hz" else ",").join(parts)
    return f"--{name.replace('_', '-')} {value}"
