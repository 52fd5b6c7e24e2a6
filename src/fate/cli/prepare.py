"""``fate prepare``; ``help.yaml`` explains it."""

from __future__ import annotations

from typer import Argument, Option

from fate.cli import arguments as args
from fate.errors import FateError

KINDS = ("gen1", "1mpx", "rvt")


def prepare(
    kind: str = Argument(parser=args.choice(*KINDS)),
    source: str = Argument(),
    target: str = Argument(),
    no_hash: bool = False,
    compact: bool = False,
    allow_missing: bool = False,
    workers: int | None = Option(None, min=1, max=256),
) -> None:
    from fate.inspection.prepare import prepare as go_through

    with args.progress_bar("preparing") as update, args.progress_bar("writing compact files") as written:
        done = go_through(
            kind, source, target, workers=workers, hashed=not no_hash, compact=compact, progress=update,
            compacting=written,
        )  # fmt: skip
    print(done.text(), flush=True)
    if done.missing and not allow_missing:
        raise FateError(
            f"{source}: the dataset is incomplete: {done.missing[0]} (faults in all: {len(done.missing)}); get what is"
            " missing and run this again, or accept it with --allow-missing"
        )
