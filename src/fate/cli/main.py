"""The command ``fate``: one small file per subcommand; each parses, calls one function below and prints.

Nothing heavy is imported here: ``fate --help`` answers at once.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import typer
import yaml

from fate.cli.command import Quiet, Verbose, add_command, help_text
from fate.cli.terminal import VERBOSITY, finish_output, output_failure, prepare_streams, with_options
from fate.errors import FateError, FateWarning
from fate.text import encodable

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it

app = typer.Typer(
    name="fate",
    help="Object detection with event cameras at any rate from 20 to 200 Hz.",
    epilog="fate COMMAND --help explains a command and shows examples.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


bench_app = typer.Typer(no_args_is_help=True)
_help = yaml.load(  # every start reads this file, and the loader in C is ten times as fast
    Path(__file__).with_name("help.yaml").read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
_shared = _help.pop("shared options")
for _name, _text in _help.items():
    if _name == "bench":
        app.add_typer(bench_app, name="bench", help=help_text(_text["help"]), short_help=_text["short"])
    else:  # a file has one command, a function of its name; bench.py has several
        _group, _, _function = _name.replace("-", "_").rpartition(" ")
        _module = importlib.import_module(f"fate.cli.{_group or _function}")
        _options = _shared | _text.get("options", {})
        add_command(bench_app if _group else app, getattr(_module, _function), _text["help"], _text["short"], _options)


def _version(show: bool) -> None:
    if show:
        from fate.version import full_version

        print(f"fate {full_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_version, is_eager=True
    ),
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    VERBOSITY.set(quiet=quiet, verbose=verbose)
    logging.getLogger("fate.cli").debug("Python %s, command line %s", sys.version.split()[0], sys.argv)


def main() -> None:
    """Run the command line: bad input is one sentence and exit code 1, bad usage exit code 2."""
    prepare_streams()
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, FateWarning):
            print(f"warning: {with_options(str(message))}", file=sys.stderr)
        else:
            usual(message, category, *rest, **more)

    warnings.showwarning = show
    warnings.simplefilter("always", FateWarning)
    code, failure = _run()
    failure = finish_output() or failure
    if failure:
        print(f"error: standard output: cannot be written ({failure}); send it elsewhere", file=sys.stderr)
    sys.exit(code or int(bool(failure)))


def _run() -> tuple[int, str]:
    """Run the command and return its exit code, and why standard output refused text, if it did."""
    try:
        app()
    except SystemExit as end:  # how typer ends every command
        if end.code == INTERRUPTED:  # typer itself says nothing
            print("stopped (Ctrl-C)", file=sys.stderr)
        return (end.code if isinstance(end.code, int) else int(end.code is not None)), ""
    except FateError as error:
        if VERBOSITY.verbose:
            traceback.print_exc()
        print(f"error: {with_options(str(error))}", file=sys.stderr)
        finish_output()  # if standard output is full, this error says so already or comes first
        return 1, ""
    except OSError as error:
        failure = output_failure(error)
        if failure is None and isinstance(error, PermissionError) and error.filename is not None:
            name = os.fsdecode(error.filename)
            print(f"error: {encodable(name)}: cannot be used ({error.strerror}); check its rights", file=sys.stderr)
            return 1, ""
        if failure is None:
            raise
        return 1, failure
    except KeyboardInterrupt:
        print("stopped (Ctrl-C)", file=sys.stderr)
        return INTERRUPTED, ""
    finally:
        gc.freeze()  # else Python visits every object of torch before it ends: half a minute under load
    return 0, ""


if __name__ == "__main__":
    main()
