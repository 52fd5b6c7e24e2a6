"""``fate study``; ``help.yaml`` explains it."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from fate.cli import arguments as args
from fate.cli.terminal import note
from fate.errors import FateError


def study(
    name: str = Argument(..., metavar="STUDY", help="Name of the study."),
    dataset: str | None = Option(
        None, help="Folder or YAML file of a dataset, or sim for 300 simulated drives; smoke needs none."
    ),
    out: Path = Option(Path("studies"), metavar="DIR", help="Folder for runs and tables."),
    scale: str | None = Option(None, help="Size of the runs: paper, sim or smoke; the default depends on the dataset."),
    seeds: int = Option(1, min=1, help="Number of seeds of each run."),
    seed: list[int] | None = Option(None, help="Run only this seed; repeat the option for more."),
    row: list[str] | None = Option(None, help="Run only this row of the table; repeat the option for more."),
    device: str = Option(
        "auto",
        metavar="auto|cpu|cuda",
        parser=args.choice("auto", "cpu", "cuda"),
        help="Where to compute: auto takes a CUDA GPU if there is one; CUDA_VISIBLE_DEVICES selects one of several.",
    ),
    workers: int = Option(4, min=0, help="Number of processes that load data for each run."),
    jobs: int = Option(
        1, min=1, help="Runs at the same time; small detectors share a GPU well. The study labels runs one at a time."
    ),
    setting: list[str] | None = Option(
        None, "--set", metavar="KEY=VALUE", help="Setting of fate train for every run; repeat the option for more."
    ),
) -> None:
    from fate.workflows.studies.declared import check_request

    with args.bad_usage():
        check_request(name, scale, seeds, seed or (), row or (), jobs)
        if dataset is None and name != "smoke":
            raise FateError(f"{name} needs --dataset: a folder, or sim for simulated drives")
    args.check_inputs(None if dataset in ("sim", "smoke") else dataset)

    from fate.workflows.studies.study import study as run

    result = run(
        name, dataset, out, scale=scale, seeds=seeds, only=seed or (), rows=row or (), device=device, workers=workers,
        jobs=jobs, settings=setting or (), progress=lambda done, total=1.0, text="", part="", /: note(text),
    )  # fmt: skip
    print(f"\n{result.text()}\nwritten: {out / name}.md, .csv, .json")
