"""What every command has: the options ``--quiet`` and ``--verbose``, help with examples, errors that name the value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

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


class Command(TyperCommand):
    """A command whose errors name the value that was given: typer says only what it should have been."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the command line, and name the value that an option or argument refuses."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            _, sentence, expected = error.message.partition("Input should be ")
            if sentence and error.param is not None:
                values = self.make_parser(ctx).parse_args(args=given)[0]
                number = "a number " if expected.startswith(("greater", "less")) else ""
                error.message = f"{values.get(error.param.name)} was given; expected {number}{expected.split(',')[0]}"
            raise


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
