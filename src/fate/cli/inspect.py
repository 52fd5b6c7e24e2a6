"""``fate inspect``: what a dataset is like, beside real ones."""

from __future__ import annotations

from typing import Annotated

import typer

from fate.cli import arguments as args

HELP = """What the events and boxes of a dataset are like, beside the real Gen1 and 1Mpx: rates, polarity, pillars in
windows of 5, 10 and 50 ms, box sizes and speeds, and boxes that look wrong. DATASET is a folder of recordings with
their labels, in any known layout, a YAML file that describes one, or one recording. Files of a simulated dataset are
compared with its manifest, and its speeds and faults are those of its boxes at 200 Hz.

Example:

  fate inspect gen1 --split test

  fate inspect my-drives --report page.html --json figures.json

  fate inspect dataset.yaml --split train
"""


def inspect(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="A folder of recordings, a YAML file, or one recording.")
    ],
    split: Annotated[str | None, typer.Option(help="Only this part: train, val or test.")] = None,
    report: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a page with plots and pictures (HTML).")
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all numbers here too.")] = None,
    windows: Annotated[
        int, typer.Option(min=1, help="Windows of each length to look at in each recording, at most.")
    ] = 200,
    sensor: args.Sensor = None,
    drop: args.Drop = False,
    sort: args.Sort = False,
    no_cache: args.NoCache = False,
) -> None:
    chosen = args.choice("--split", split, ("train", "val", "test"))
    options = args.open_options(sensor, None, None, None, False, drop, sort, no_cache)
    args.check_outputs({"--report": report, "--json": json_file}, dataset)

    from fate.data.inspection import inspect as look

    with args.progress_bar("inspecting") as update:
        found = look(dataset, split=chosen, windows=windows, progress=update, **options)
    print(found.text())
    if report is not None:
        found.page(report)
        print(f"\npage written to {report}")
    args.write_json(json_file, found.to_dict())
