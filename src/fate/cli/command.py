"""Adds commands to the command line, with ``--quiet``, ``--verbose``, examples, and errors that name the value."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from fate.cli.terminal import VERBOSITY, with_options

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
_NUMBER = re.compile(r"[\d.]+(,[\d.]+)*,?")


class Command(TyperCommand):
    """A command whose errors name the value that was given, and whose ``--hz`` takes several numbers if it may.

    ``--hz 40 80 100``, ``--hz 40,80,100`` and ``--hz 40 --hz 80 --hz 100`` then mean the same.
    """

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the command line, and name the value that an option or argument refuses."""
        if any(parameter.name == "hz" and getattr(parameter, "multiple", False) for parameter in self.params):
            args = spread(args)
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = with_options(error.message.removeprefix("Value error, "))
            _, sentence, expected = error.message.partition("Input should be ")
            if sentence and error.param is not None:
                values = self.make_parser(ctx).parse_args(args=given)[0]
                number = "a number " if expected.startswith(("greater", "less")) else ""
                error.message = f"{values.get(error.param.name)} was given; expected {number}{expected.split(',')[0]}"
            raise


def spread(args: Sequence[str]) -> list[str]:
    """Repeat ``--hz`` before each number that follows it.

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


def help_text(text: str) -> str:
    """Return the help of a command in which paragraphs that are indented, its examples, are never wrapped.

    A wrapped example cannot be copied into a shell.
    """
    paragraphs = text.rstrip().split("\n\n")
    return "\n\n".join(f"\b\n{part}" if part.startswith("  ") else part for part in paragraphs)


def add_command(app: typer.Typer, function: Callable[..., None], help: str, short: str) -> None:
    """Add a function and its help to a group of commands, with ``--quiet`` and ``--verbose``, which it does not see."""
    signature = inspect.signature(function, eval_str=True)
    added = [
        inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
        inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=Verbose),
    ]
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:  # **options: Unpack[SomeTypedDict]: an option for each key
            for name, hint in get_type_hints(get_args(parameter.annotation)[0], include_extras=True).items():
                default = False if get_args(hint)[0] is bool else None
                parameters.append(inspect.Parameter(name, parameter.KEYWORD_ONLY, default=default, annotation=hint))
        else:
            parameters.append(parameter)
    parameters += added

    @functools.wraps(function)
    def run(*args: Any, quiet: bool = False, verbose: int = 0, **options: Any) -> None:
        VERBOSITY.set(quiet=quiet or None, verbose=verbose or None)  # None keeps what was given before the command
        function(*args, **options)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(function.__name__.replace("_", "-"), help=help_text(help), short_help=short, cls=Command)(run)
