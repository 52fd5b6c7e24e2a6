"""``fate study``: the paper's tables, by one command each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fate.cli import arguments as args
from fate.cli.device import check_device
from fate.cli.terminal import note

SHORT_HELP = "Run a study of the paper and write its table."
HELP = """Run one study of the paper: train the detectors that are missing, make dense labels, evaluate at every
rate, and write the table (Markdown, CSV, JSON) and a picture of it. For Gen1 and 1Mpx the published numbers stand
next to the measured ones. The same command continues a stopped study; cells that were not run are marked.

Studies: frequency, components, components-s, components-e, strategies, moments, pillar-size, channels, labels,
smoke. The study smoke takes a few minutes on a CPU and simulates its own drives.

Example:

  fate study smoke

  fate study components --dataset sim --seeds 3 --device cuda --jobs 6 --out studies
"""


def study(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="Name of the study.")],
    dataset: Annotated[
        str | None,
        typer.Option(help="Folder or YAML file of a dataset, or sim for 300 simulated drives; smoke needs none."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for runs and tables.")] = Path("studies"),
    scale: Annotated[
        str | None, typer.Option(help="Size of the runs: paper, sim or smoke; the default depends on the dataset.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds of each run.")] = 1,
    seed: Annotated[list[int] | None, typer.Option(help="Run only this seed; repeat the option for more.")] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Run only this row of the table; repeat the option for more.")
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute: auto takes a CUDA GPU if there is one.")
    ] = "auto",
    workers: Annotated[int, typer.Option(help="Number of processes that load data for each run.")] = 4,
    jobs: Annotated[
        int,
        typer.Option(
            help="Runs at the same time; small detectors share a GPU well. The study labels runs one at a time."
        ),
    ] = 1,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Setting of fate train for every run; repeat the option for more."
        ),
    ] = None,
) -> None:
    from fate.errors import FateError
    from fate.workflows.studies.declared import find_study

    with args.bad_usage():
        find_study(name)
        args.check_count("--seeds", seeds, 1)
        args.check_count("--jobs", jobs, 1)
        args.check_count("--workers", workers, 0)
        if not all(0 <= one < seeds for one in seed or ()):
            raise FateError(f"--seed {max(seed or [0])} was given with --seeds {seeds}; expected 0 to {seeds - 1}")
        check_device(device, numbered=False)
        if dataset is None and name != "smoke":
            raise FateError(f"{name} needs --dataset: a folder, or sim for simulated drives")
    args.check_inputs(None if dataset in ("sim", "smoke") else dataset)
    from fate.workflows.commands import study as run
    from fate.workflows.studies.study import check_request

    with args.bad_usage():
        check_request(name, scale, seeds, seed or (), row or (), jobs)
    result = run(
        name, dataset, out, scale=scale, seeds=seeds, only=seed or (), rows=row or (), device=device, workers=workers,
        jobs=jobs, settings=setting or (), progress=lambda done, total=1.0, text="", part="", /: note(text),
    )  # fmt: skip
    print(f"\n{result.text()}\nwritten: {out / name}.md, .csv, .json")
