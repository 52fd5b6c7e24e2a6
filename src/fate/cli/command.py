"""Adds commands to the command line, with ``--quiet``, ``--verbose``, examples, and errors that name the value."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo, ParameterInfo

from fate.cli.terminal import VERBOSITY, with_options

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only results, warnings and errors.")]
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


def add_command(
    app: typer.Typer, function: Callable[..., None], help: str, short: str, options: Mapping[str, str]
) -> None:
    """Add a function to a group of commands, with ``--quiet`` and ``--verbose``, which the function does not see.

    Args:
        app: the group of commands.
        function: a parameter without a default becomes an argument, any other an option, unless it says otherwise.
            ``**options: Unpack[SomeTypedDict]`` becomes an option for each key.
        help: the help of the command.
        short: its line in the list of commands.
        options: the help of its parameters, by keys that ``help.yaml`` explains.
    """
    keys = {key.split()[0]: key for key in options}
    parameters = []
    for parameter in _parameters(function):
        hint, default = parameter.annotation, parameter.default
        notes = getattr(hint, "__metadata__", ())  # of Annotated
        kind = hint.__origin__ if notes else hint
        info = next((each for each in (default, *notes) if isinstance(each, ParameterInfo)), None)
        if info is None:
            info = typer.Argument() if default is parameter.empty else typer.Option()
        if info is not default:
            info = copy(info)  # several commands share it
            hint = Annotated[kind, info]
        if info.help is None:
            _, *words = keys[parameter.name].split()
            info.help = options[keys[parameter.name]]
            info.metavar = next((word for word in words if not word.startswith("-")), None)
            written = tuple(word for word in words if word.startswith("-"))
            if isinstance(info, OptionInfo):  # typer would add --no-NAME; older versions would use the metavar
                written = written or (f"--{parameter.name.replace('_', '-')}",)
            info.param_decls = written or info.param_decls
        parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hint))

    @functools.wraps(function)
    def run(quiet: bool = False, verbose: int = 0, **values: Any) -> None:
        VERBOSITY.set(quiet=quiet or None, verbose=verbose or None)  # None keeps what was given before the command
        function(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(function.__name__.replace("_", "-"), help=help_text(help), short_help=short, cls=Command)(run)


def _parameters(function: Callable[..., None]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a function, each key of its ``**options``, ``quiet`` and ``verbose``."""
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            yield parameter
            continue
        for name, hint in get_type_hints(get_args(parameter.annotation)[0], include_extras=True).items():
            default = False if hint is bool else None
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
    yield inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    yield inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=Verbose)
