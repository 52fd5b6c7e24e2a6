"""``fate prepare``: check a public dataset, make its time indexes, write a manifest."""

from __future__ import annotations

from typing import Annotated

import typer

from fate.cli import arguments as args

SHORT_HELP = "Check and index a public dataset before training."
HELP = """Go through a public dataset once: check every file (size, hash, boxes against events), make the time
indexes that reading uses, and write DST/manifest.json. Nothing is converted or copied: SRC stays as it is, and DST
holds only the manifest. Missing and broken files are listed on the screen and in the manifest, and the command exits
with 1 unless --allow-missing is given; the other files can be used. Run the command again to check files that have
changed. Datasets also work without this command; it finds faults before training does.

KIND is gen1 or 1mpx (folders train, val and test with _td.dat and _bbox.npy files) or rvt (the preprocessed layout
of RVT).

Example:

  fate prepare gen1 /data/gen1 gen1-prepared

  fate prepare 1mpx /data/1mpx 1mpx-prepared --no-hash --workers 8
"""

KINDS = ("gen1", "1mpx", "rvt")


def prepare(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of the dataset: gen1, 1mpx or rvt.")],
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder of the dataset.")],
    target: Annotated[
        str, typer.Argument(metavar="DST", help="Folder for the manifest; other commands accept it as DATASET.")
    ],
    no_hash: Annotated[bool, typer.Option("--no-hash", help="Do not compute the SHA-256 of the files.")] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Accept an incomplete dataset: exit with 0.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Recordings to check at the same time; the default is up to 4.")
    ] = None,
) -> None:
    args.choice("KIND", kind, KINDS)

    from fate.errors import FateError
    from fate.inspection.prepare import prepare as go_through

    with args.progress_bar("preparing") as update:
        done = go_through(kind, source, target, workers=workers, hashed=not no_hash, progress=update)
    print(done.text(), flush=True)
    if done.missing and not allow_missing:
        raise FateError(
            f"{source}: the dataset is incomplete: {done.missing[0]} (faults in all: {len(done.missing)}); get what is"
            " missing and run this again, or accept it with --allow-missing"
        )
