"""What every command has: the options ``--quiet`` and ``--verbose``, after the command as well as before it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from fate.cli.terminal import VERBOSITY

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print no progress and no notes.")]
Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        show_default=False,
        help="Print log lines, and the traceback of an error; -vv prints more.",
    ),
]


def help_text(text: str) -> str:
    """Return the help of a command in which paragraphs that are indented, its examples, are never wrapped.

    A wrapped example cannot be copied into a shell.
    """
    return "\n\n".join(f"\b\n{part}" if part.startswith("  ") else part for part in text.split("\n\n"))


def with_verbosity(function: Callable[..., None]) -> Callable[..., None]:
    """Give the function of a command the options ``--quiet`` and ``--verbose``, which it does not see itself."""
    signature = inspect.signature(function, eval_str=True)
    added = [
        inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
        inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=Verbose),
    ]
    parameters = [*signature.parameters.values(), *added]

    @functools.wraps(function)
    def run(*args: Any, quiet: bool = False, verbose: int = 0, **options: Any) -> None:
        VERBOSITY.set(quiet=quiet or None, verbose=verbose or None)  # None keeps what was given before the command
        function(*args, **options)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
