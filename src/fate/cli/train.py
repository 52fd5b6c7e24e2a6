"""``fate train``: train a detector, or go on training it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

SHORT_HELP = "Train a detector, or continue a stopped training."
HELP = """Train a detector from a configuration: supervised, or with Frequency-Aware Training and its ablations.

CONFIG is a YAML file such as those in configs/. Settings after it, written key.sub=value, replace values of the
file and defaults. A run has one folder: the same command continues a stopped run, and other settings for it are
refused.

Example:

  fate train configs/sim/fate-s-nano.yaml data.path=drives

  fate train configs/gen1/fate-s.yaml data.path=gen1 strategy.labels=dense/gen1 --out runs/fate-s

  fate train configs/gen1/fate-s.yaml data.path=gen1 --dry-run

  torchrun --nproc-per-node 4 -m fate.cli train configs/gen1/fate-s.yaml data.path=gen1 run.devices=4
"""


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file with the configuration.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings that replace those of CONFIG.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; the default is runs/ and the name of CONFIG.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything, try one step, print what to expect, and stop.")
    ] = False,
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
