"""``fate inspect``: what a dataset is like, beside real ones."""

from __future__ import annotations

from typing import Annotated

import typer

from fate.cli import arguments as args

SHORT_HELP = "Measure the events and labels of a dataset."
HELP = """Measure the events and labels of a dataset: event rates, polarity, pillars in windows of 5, 10 and 50 ms, box
sizes and speeds, and boxes that look wrong. Recordings with the sensor of Gen1 or 1Mpx are compared with these real
datasets; for other sensors, only the page (--report) has the comparison. DATASET is
a folder of recordings with labels in any known layout, a YAML file that describes one, or one recording. The files of
a simulated dataset are compared with its manifest; its box speeds and wrong boxes are measured on the exact boxes at
200 Hz.

Example:

  fate inspect gen1 --split test

  fate inspect my-drives --report page.html --json figures.json

  fate inspect dataset.yaml --split train
"""


def inspect(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="A folder of recordings, a YAML file, or one recording.")
    ],
    split: Annotated[str | None, typer.Option(help="Inspect only this split: train, val or test.")] = None,
    report: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write an HTML page with plots and pictures.")
    ] = None,
    json_file: args.JsonFile = None,
    windows: Annotated[
        int, typer.Option(min=1, help="Largest number of windows of each length to measure in each recording.")
    ] = 200,
    sensor: args.Sensor = None,
    drop: args.Drop = False,
    sort: args.Sort = False,
    no_cache: args.NoCache = False,
) -> None:
    chosen = args.choice("--split", split, ("train", "val", "test"))
    options = args.open_options(sensor, None, None, None, False, drop, sort, no_cache)
    args.check_inputs(dataset)
    args.check_outputs({"--report": report, "--json": json_file}, datasets=(dataset,))

    from fate.inspection.inspect import inspect as look

    with args.progress_bar("inspecting") as update:
        found = look(dataset, split=chosen, windows=windows, progress=update, **options)
    say = args.printer(report, json_file)
    try:
        if json_file is not None:
            args.write_json(json_file, found.to_dict())
        if report is not None:
            found.page(report)
    finally:
        say(found.text())
    if report is not None:
        say(f"\npage written to {report}")
