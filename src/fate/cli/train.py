"""``fate train``: train a detector, or go on training it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

HELP = """Train a detector from a configuration: supervised, or with Frequency-Aware Training and its ablations.

CONFIG is a YAML file, such as those in configs/; every setting in it and every default can be changed behind it as
key.sub=value. A run lives in one folder: the same command goes on where it stopped, other settings are refused.

Example:

  fate train configs/sim/fate-s-nano.yaml data.path=drives

  fate train configs/gen1/fate-s.yaml data.path=gen1 strategy.labels=dense/gen1 --out runs/fate-s

  fate train configs/gen1/fate-s.yaml data.path=gen1 --dry-run   (build everything, try a step, say what to expect)

  torchrun --nproc-per-node 4 -m fate.cli train configs/gen1/fate-s.yaml data.path=gen1 run.devices=4
"""


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.")],
    settings: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME unless given.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Build all, try a step, print the plan, stop.")] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Train although files or boxes of the dataset are missing.")
    ] = False,
) -> None:
    from fate.cli.arguments import step_bar
    from fate.training.config import read_config

    wanted = read_config(config, settings or ())
    if dry_run:
        say = partial(print, file=sys.stderr, flush=True)
        say(f"building {wanted.model.name}, reading {wanted.data.path}")  # before torch, which takes seconds to load
        from fate.training.plan import plan

        planned = plan(wanted, progress=say)
        for line in planned.lines():
            print(line, flush=True)
        planned.faults.refuse(allow_missing)
        return
    from fate.training.loop import train as run
    from fate.training.together import own_rank

    folder = out or Path("runs") / config.stem
    if own_rank() == 0:
        print(f"{folder}: {wanted.steps} steps; log.txt and metrics.jsonl in it say how it goes", file=sys.stderr)
    with step_bar("training") as show:
        done = run(wanted, folder, show=show, allow_missing=allow_missing)
    if own_rank() != 0:  # the first of several processes speaks for all
        return
    if not done.finished:
        print(f"{folder}: stopped at step {done.step} of {wanted.steps}, saved; the same command goes on from there")
        return
    best = folder / "best.safetensors"
    kept = best if best.exists() else folder / "last.safetensors"  # no validation gave a score
    print(f"{folder}: {done.step} steps; the {'best' if kept == best else 'last'} weights are {kept}")
    print(f"next: fate evaluate {kept} {wanted.data.path}")
