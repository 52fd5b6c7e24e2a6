"""``fate simulate``: a labelled dataset of simulated drives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fate.cli import arguments as args

if TYPE_CHECKING:
    from fate.simulation.manifest import Manifest

HELP = """Make a dataset of simulated drives, in the layout of the public ones: events in DIR/train, val and test, boxes
at the rate of the public labels and, exact, at 200 Hz, a manifest, and a preview video for each split.
Run it again to go on where it was stopped; a larger --recordings adds to what is there.

Example:

  fate simulate drives --recordings 12 --seconds 10

  fate simulate crossing --at-rest 1 --recordings 20 --seconds 5

  fate simulate night-and-day --profile 1mpx --recordings 100 --seconds 60 --seed 7 --device cuda
"""


def simulate(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new or empty folder, or a dataset to go on with.")],
    recordings: Annotated[int, typer.Option(help="How many, in all splits together.")] = 12,
    seconds: Annotated[float, typer.Option(help="Length of each; from 1 on, each has labels.")] = 10.0,
    profile: Annotated[
        str, typer.Option(help="gen1 (304×240, cars and pedestrians) or 1mpx (1280×720, two-wheelers too).")
    ] = "gen1",
    seed: Annotated[int, typer.Option(help="Another seed gives other drives.")] = 0,
    at_rest: Annotated[
        float, typer.Option(help="Share of the recordings whose camera stands beside the street, 0 to 1.")
    ] = 0.0,
    device: Annotated[str, typer.Option(help="cpu, or cuda for many recordings side by side.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads; all cores by default.")] = None,
    no_preview: Annotated[bool, typer.Option("--no-preview", help="Make no videos.")] = False,
) -> None:
    from fate.simulation.request import Request, check_device

    with args.bad_usage():
        Request(profile, seed, seconds, recordings, at_rest=at_rest)
        check_device(device, threads)

    from fate.simulation.dataset import simulate as make

    with args.progress_bar("simulating") as update:
        done = make(
            folder,
            recordings,
            seconds,
            profile,
            seed,
            device=device,
            threads=threads,
            preview=not no_preview,
            at_rest=at_rest,
            progress=update,
        )
    print(_summary(folder, done))


def _summary(folder: str, done: Manifest) -> str:
    at_rest = ["at rest"] if done.request.at_rest else []
    of_events = ("seconds", "Mev", "Mev/s", "ON share")
    header = ("split", "recordings", *at_rest, *of_events, *done.classes, "boxes at 200 Hz", "MB")
    splits = [split for split in ("train", "val", "test") if done.totals(split)["recordings"]]
    rows = [header, *(_row(done, split) for split in splits), _row(done, None)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    previews = ", ".join(f"{split}/preview.mp4" for split in done.previews) or "no previews"
    return "\n".join(
        [*lines, "", f"{folder}: manifest.json, {previews}", f"Look at it beside real data: fate inspect {folder}"]
    )


def _row(done: Manifest, split: str | None) -> tuple[str, ...]:
    total = done.totals(split)
    events, seconds = total["events"], total["seconds"]
    still = sum(entry.at_rest for entry in done.recordings if split in (None, entry.split))
    return (
        split or "all",
        _number(total["recordings"]),
        *([_number(still)] if done.request.at_rest else []),
        f"{seconds:g}",
        f"{events / 1e6:.2f}",
        f"{events / seconds / 1e6:.2f}" if seconds else "",
        f"{100 * total['on_events'] / events:.0f} %" if events else "",
        *(_number(total["boxes"][name]) for name in done.classes),
        _number(sum(total["truth_boxes"].values())),
        f"{total['bytes'] / 1e6:.1f}",
    )


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")
