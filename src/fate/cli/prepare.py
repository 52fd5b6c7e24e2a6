"""``fate prepare``; ``help.yaml`` explains it."""

from __future__ import annotations

from typing import Any

from typer import Argument, Option

from fate.cli import arguments as args
from fate.errors import FateError

KINDS = ("gen1", "1mpx", "rvt")


def prepare(
    kind: Any = Argument(
        ..., metavar="KIND", parser=args.choice(*KINDS), help="Kind of the dataset: gen1, 1mpx or rvt."
    ),
    source: str = Argument(..., metavar="SRC", help="Folder of the dataset."),
    target: str = Argument(..., metavar="DST", help="Folder for the manifest; other commands accept it as DATASET."),
    no_hash: bool = Option(False, "--no-hash", help="Do not compute the SHA-256 of the files."),
    allow_missing: bool = Option(False, "--allow-missing", help="Accept an incomplete dataset: exit with 0."),
    workers: int | None = Option(
        None, min=1, max=256, help="Recordings to check at the same time; the default is up to 4."
    ),
) -> None:
    from fate.inspection.prepare import prepare as go_through

    with args.progress_bar("preparing") as update:
        done = go_through(kind, source, target, workers=workers, hashed=not no_hash, progress=update)
    print(done.text(), flush=True)
    if done.missing and not allow_missing:
        raise FateError(
            f"{source}: the dataset is incomplete: {done.missing[0]} (faults in all: {len(done.missing)}); get what is"
            " missing and run this again, or accept it with --allow-missing"
        )
