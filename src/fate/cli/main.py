"""The command ``fate``: one small file per subcommand; each parses, calls one function below and prints.

Nothing heavy is imported here: ``fate --help`` answers at once.
"""

from __future__ import annotations

import gc
import sys
import warnings
from typing import Any

import typer

from fate.cli import (
    bench,
    convert,
    demo,
    densify,
    detect,
    evaluate,
    export,
    import_checkpoint,
    info,
    inspect,
    models,
    prepare,
    simulate,
    study,
    train,
    view,
)
from fate.cli.rates import SeveralRates
from fate.errors import FateError, FateWarning

app = typer.Typer(
    name="fate",
    help="Object detection with event cameras at any rate from 20 to 200 Hz.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", help=demo.HELP)(demo.demo)
app.command("detect", help=detect.HELP)(detect.detect)
app.command("view", help=view.HELP)(view.view)
app.command("info", help=info.HELP)(info.info)
app.command("convert", help=convert.HELP)(convert.convert)
app.command("inspect", help=inspect.HELP)(inspect.inspect)
app.command("prepare", help=prepare.HELP)(prepare.prepare)
app.command("train", help=train.HELP)(train.train)
app.command("study", help=study.HELP)(study.study)
app.command("densify", help=densify.HELP, cls=SeveralRates)(densify.densify)
app.command("evaluate", help=evaluate.HELP, cls=SeveralRates)(evaluate.evaluate)
app.command("simulate", help=simulate.HELP)(simulate.simulate)
app.command("models", help=models.HELP)(models.models)
app.command("import-checkpoint", help=import_checkpoint.HELP)(import_checkpoint.import_checkpoint)
app.command("export", help=export.HELP)(export.export)
app.add_typer(bench.app, name="bench")


def _version(show: bool) -> None:
    if show:
        from fate.code_version import full_version

        print(f"fate {full_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass


def main() -> None:
    """Run the command line: bad input is one sentence and exit code 1, bad usage exit code 2."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, FateWarning):
            print(f"warning: {message}", file=sys.stderr)
        else:
            usual(message, category, *rest, **more)

    warnings.showwarning = show
    warnings.simplefilter("always", FateWarning)
    try:
        app()
    except FateError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # `fate info … | head`
        sys.stderr.close()
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    finally:
        gc.freeze()  # otherwise Python visits every object of torch before it ends, which takes a minute under load


if __name__ == "__main__":
    main()
