"""``fate study``: the paper's tables, by one command each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = """Run one of the paper's studies: train what is missing, make dense labels, evaluate at every rate, and write
the table (Markdown, CSV, JSON) and its picture; on Gen1 and 1Mpx the published numbers stand beside. Stopped in the
middle, the same command goes on; a cell that was not run says so.

Studies: frequency, components, components-s, components-e, strategies, moments, pillar-size, channels, labels, smoke.

Example:

  fate study smoke                                            (a few minutes on a CPU, on drives it simulates)

  fate study components --dataset sim --seeds 3 --device cuda --jobs 6 --out studies
"""


def study(
    name: Annotated[str, typer.Argument(help="Which one.")],
    dataset: Annotated[
        str | None, typer.Option(help="Folder or YAML; sim: 300 simulated drives, made once; smoke has its own.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Runs and tables.")] = Path("studies"),
    scale: Annotated[str | None, typer.Option(help="paper, sim or smoke; by the dataset unless given.")] = None,
    seeds: Annotated[int, typer.Option(help="How many.")] = 1,
    seed: Annotated[list[int] | None, typer.Option(help="Only this one now; repeat for more.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Only this row; repeat for more.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that load.")] = 4,
    jobs: Annotated[
        int, typer.Option(help="Runs side by side; small detectors share a GPU well. labels has one at a time.")
    ] = 1,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A change to every run.")
    ] = None,
) -> None:
    from fate.cli.arguments import bad_usage
    from fate.errors import FateError
    from fate.training.studies import study_named

    with bad_usage():
        study_named(name)
        if seeds < 1 or jobs < 1 or workers < 0:
            raise FateError(
                f"--seeds {seeds}, --jobs {jobs} and --workers {workers} were given; expected 1 or more, 1 or more, and"
                " 0 or more"
            )
        if not all(0 <= one < seeds for one in seed or ()):
            raise FateError(f"--seed {max(seed or [0])} was given with --seeds {seeds}; expected 0 to {seeds - 1}")
        if device not in ("cpu", "cuda", "auto"):
            raise FateError(f"--device {device} was given; expected cpu, cuda or auto")
        if dataset is None and name != "smoke":
            raise FateError(f"{name} needs --dataset: a folder, or sim for simulated drives")
    from fate.commands import study as run
    from fate.training.study import check_request

    with bad_usage():
        check_request(name, scale, seeds, seed or (), row or (), jobs)
    result = run(
        name, dataset, out, scale=scale, seeds=seeds, only=seed or (), rows=row or (), device=device, workers=workers,
        jobs=jobs, settings=setting or (), say=lambda text: print(text, flush=True),
    )  # fmt: skip
    print(f"\n{result.text()}\nwritten: {out / name}.md, .csv, .json")
