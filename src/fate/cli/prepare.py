"""``fate prepare``: check a public dataset, make its time indexes, write a manifest."""

from __future__ import annotations

from typing import Annotated

import typer

from fate.cli import arguments as args

HELP = """Go through a public dataset once: check every file (sizes, hashes, boxes against events), make the time
indexes that reading uses, and write DST/manifest.json. Nothing is converted or copied: SRC stays as it is, and DST
holds only the manifest. What is missing or broken is named on the screen and in the manifest, and the command exits
with 1 unless --allow-missing is given; the rest can be used. Run it again to check what has changed. Datasets can be
used without this command; it finds faults before training does.

gen1 and 1mpx are folders train, val and test with _td.dat and _bbox.npy files, rvt is RVT's preprocessed layout.

Example:

  fate prepare gen1 /data/gen1 gen1-prepared

  fate prepare 1mpx /data/1mpx 1mpx-prepared --no-hash --workers 8
"""

KINDS = ("gen1", "1mpx", "rvt")


def prepare(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="gen1, 1mpx or rvt.")],
    source: Annotated[str, typer.Argument(metavar="SRC", help="The folder of the dataset.")],
    target: Annotated[
        str, typer.Argument(metavar="DST", help="A folder for the manifest; commands take it as dataset.")
    ],
    no_hash: Annotated[bool, typer.Option("--no-hash", help="Take no SHA-256 of the files.")] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Accept a dataset that is incomplete: exit with 0.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Recordings to go through side by side; up to 4 by default.")
    ] = None,
) -> None:
    args.choice("KIND", kind, KINDS)

    from fate.data.prepare import prepare as go_through
    from fate.errors import FateError

    with args.progress_bar("preparing") as update:
        done = go_through(kind, source, target, workers=workers, hashed=not no_hash, progress=update)
    print(done.text(), flush=True)
    if done.missing and not allow_missing:
        raise FateError(
            f"{source}: the dataset is incomplete: {done.missing[0]} (faults in all: {len(done.missing)}); get what is"
            " missing and run this again, or accept it with --allow-missing"
        )
