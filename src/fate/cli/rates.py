"""Several rates behind one option: ``--hz 40 80 100 200``, ``--hz 40,80`` and ``--hz 40 --hz 80`` mean the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer

from fate.cli.command import Command
from fate.errors import FateError

_NUMBER = re.compile(r"[\d.]+(,[\d.]+)*,?")


class SeveralRates(Command):
    """A command whose option ``--hz`` takes all numbers that follow it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the command line; each number after ``--hz`` becomes its own option."""
        return super().parse_args(ctx, spread(args))


def spread(args: Sequence[str]) -> list[str]:
    """``--hz 40 80`` → ``--hz 40 --hz 80``.

    >>> spread(["m.safetensors", "drives", "--hz", "40", "80", "--out", "dense"])
    ['m.safetensors', 'drives', '--hz', '40', '--hz', '80', '--out', 'dense']
    """
    made: list[str] = []
    follows = False
    for index, arg in enumerate(args):
        number = _NUMBER.fullmatch(arg) is not None
        if follows and number and args[index - 1] != "--hz":
            made.append("--hz")
        made.append(arg)
        follows = arg == "--hz" or (follows and number)
    return made


def parse_rates(given: Sequence[str] | None, default: Sequence[float]) -> tuple[float, ...]:
    """The rates of all options ``--hz``, or the default without any."""
    words = [word for text in given or () for word in text.split(",") if word.strip()]
    if not words:
        return tuple(default)
    try:
        rates = tuple(float(word) for word in words)
    except ValueError:
        rates = (0.0,)
    if not all(1 <= rate <= 1000 for rate in rates):
        raise FateError(f"--hz {' '.join(words)} was given; expected rates of 1 to 1000, such as --hz 40 80 100 200")
    return rates
