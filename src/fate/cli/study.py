"""``fate study``; ``help.yaml`` explains it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Option

from fate.cli import arguments as args
from fate.cli.terminal import note
from fate.errors import FateError


def study(
    name: str | None = Argument(None, metavar="STUDY", help="Name of the study."),
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
    weights: list[str] | None = Option(
        None,
        metavar="CONFIG=FILE",
        help="Use these weights, such as an imported public checkpoint, instead of training this configuration; repeat"
        " the option for more.",
    ),
    score: Any = Option(
        "product",
        metavar="product|class",
        parser=args.choice("product", "class"),
        help="Score that ranks boxes: product (objectness times class), or class alone as in published figures of RVT"
        " and S5-ViT.",
    ),
    dry_run: bool = Option(False, "--dry-run", help="Print what is left to train, label and evaluate, and stop."),
    list_: bool = Option(False, "--list", help="Print all studies with their rows and configurations, and stop."),
) -> None:
    from fate.workflows.studies.declared import check_request, list_studies

    if list_:
        print(list_studies())
        return
    with args.bad_usage():
        if name is None:
            raise FateError("STUDY is missing; give the name of a study, such as smoke; --list prints all")
        check_request(name, scale, seeds, seed or (), row or (), jobs)
        given = dict(_parse_weights(text) for text in weights or ())
        if dataset is None and name != "smoke":
            raise FateError(f"{name} needs --dataset: a folder, or sim for simulated drives")
    args.check_inputs(None if dataset in ("sim", "smoke") else dataset)

    from fate.workflows.studies.study import plan_study
    from fate.workflows.studies.study import study as run

    chosen: dict[str, Any] = {"scale": scale, "seeds": seeds, "only": seed or (), "rows": row or ()}
    chosen |= {"settings": setting or (), "weights": given, "score": score}
    if dry_run:
        print(plan_study(name, dataset, out, **chosen))
        return
    result = run(
        name, dataset, out, device=device, workers=workers, jobs=jobs,
        progress=lambda done, total=1.0, text="", part="", /: note(text), **chosen,
    )  # fmt: skip
    print(f"\n{result.text()}\nwritten: {out / name}.md, .csv, .json")


def _parse_weights(text: str) -> tuple[str, str]:
    """``"rvt-b=FILE"`` → ``("rvt-b", "FILE")``."""
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise FateError(f"--weights {text} was given; expected CONFIG=FILE, such as rvt-b=rvt-b-gen1.safetensors")
    return name, file
