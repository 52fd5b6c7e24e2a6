"""``fate study``; ``help.yaml`` explains it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Option

from fate.cli import arguments as args
from fate.cli.device import pick_device
from fate.cli.terminal import note
from fate.errors import FateError


def study(
    name: str | None = Argument(None),
    dataset: str | None = None,
    out: Path = Path("studies"),
    scale: str | None = None,
    seeds: int = Option(1, min=1),
    seed: list[int] | None = None,
    row: list[str] | None = None,
    device: str = Option("auto", parser=args.choice("auto", "cpu", "cuda")),
    devices: args.Devices = None,
    slurm: args.Slurm = None,
    workers: args.Workers = 4,
    jobs: int = Option(1, min=1),
    setting: list[str] | None = None,
    weights: list[str] | None = None,
    clips: str | None = None,
    score: args.Score = "product",
    allow_missing: bool = False,
    dry_run: bool = False,
    list_all: bool = False,
) -> None:
    from fate.workflows.studies.declared import REAL, StudyOptions, list_studies

    if list_all:
        print(list_studies())
        return
    if name == REAL:
        others = {
            "--dataset": dataset, "--scale": scale, "--seeds": seeds != 1, "--seed": seed, "--row": row,
            "--devices": devices, "--slurm": slurm, "--jobs": jobs != 1, "--set": setting,
            "--score": score != "product", "--allow-missing": allow_missing, "--dry-run": dry_run,
            "--workers": workers != 4,
        }  # fmt: skip
        _real(clips, weights or [], out, device, [option for option, given in others.items() if given])
        return
    spread = args.spread_options(devices, slurm, device)
    with args.bad_usage():
        if name is None:
            raise FateError("STUDY is missing; give the name of a study, such as smoke; --list prints all")
        if clips is not None:
            raise FateError(f"--clips was given for {name}; it is for the study {REAL}; leave it out")
        given = args.parse_pairs("--weights", weights, "CONFIG=FILE, such as rvt-b=rvt-b-gen1.safetensors")
        chosen: dict[str, Any] = {
            "scale": scale, "seeds": seeds, "only": seed or (), "rows": row or (), "settings": setting or (),
            "weights": given, "score": score, "device": device, "allow_missing": allow_missing,
            "workers": workers, "jobs": jobs, **spread,
        }  # fmt: skip
        StudyOptions(name, **chosen)
        if dataset is None and name != "smoke":
            raise FateError(f"{name} needs --dataset: a folder, or sim for simulated drives")
    args.check_inputs(None if dataset in ("sim", "smoke") else dataset)

    from fate.workflows.studies.study import plan_study
    from fate.workflows.studies.study import study as run

    if dry_run:
        print(plan_study(name, dataset, out, **chosen))
        return
    result = run(name, dataset, out, progress=lambda done, total=1.0, text="", part="", /: note(text), **chosen)
    print(f"\n{result.text()}\nwritten: {out / name}.md, .csv, .json")


def _real(clips: str | None, weights: list[str], out: Path, device: str, others: list[str]) -> None:
    """Measure weights on clips of real cameras; ``others`` are options that were given and have no use here."""
    from fate.inference.loading import find_weights

    with args.bad_usage():
        if clips is None:
            raise FateError("real needs --clips: a YAML file that lists clips of real cameras")
        if others:
            raise FateError(f"{others[0]} was given for real, which takes --clips, --weights, --out and --device")
        for each in weights:
            find_weights(each)
    args.check_inputs(clips)

    from fate.workflows.studies.real_clips import study_clips

    done = study_clips(
        clips, weights, out, device=pick_device(device),
        progress=lambda done, total=1.0, text="", part="", /: note(f"{done:g} of {total:g}: {text}"),
    )  # fmt: skip
    print(f"\n{done.table()}\nwritten: {out / 'real.md'}, {out / 'real.json'}")
