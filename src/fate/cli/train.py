"""``fate train``; ``help.yaml`` explains it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from fate.cli import arguments as args
from fate.cli.device import check_device
from fate.errors import FateError
from fate.processes import own_rank
from fate.text import plural

if TYPE_CHECKING:
    from fate.training.config import TrainConfig


def train(
    config: str | None = Argument(None),
    settings: list[str] | None = Argument(None),
    model: str | None = None,
    epochs: int | None = Option(None, min=1),
    batch: str | None = None,
    freeze: str | None = Option(None, parser=args.choice("none", "backbone")),
    out: Path | None = None,
    device: str | None = Option(None, parser=check_device),
    dry_run: bool = False,
    allow_missing: bool = False,
    list_all: bool = False,
    show_settings: bool = False,
) -> None:
    changes = [*(settings or ()), *([f"run.device={device}"] if device is not None else [])]
    from fate.training.config import TrainConfig, list_configs, read_config

    if list_all:
        configs = list_configs()
        width = max(len(config.name) for config in configs) + 2
        for each in configs:
            print(f"{each.name:<{width}}{each.about}")
        return
    if show_settings:
        from fate.training.settings import settings_yaml

        print(settings_yaml(TrainConfig, read_config(config, changes) if config is not None else None), end="")
        return
    if config is None:
        raise typer.BadParameter("give CONFIG: a name that fate train --list prints, or a YAML file")
    if model is not None:
        requested = _fine_tuning(config, model, changes, epochs, batch, freeze or "none")
    elif epochs is not None or batch is not None or freeze is not None:
        option = next(name for name, value in (("epochs", epochs), ("batch", batch), ("freeze", freeze)) if value)
        raise typer.BadParameter(f"--{option} is for fate train DATASET --model NAME; a CONFIG takes KEY=VALUE")
    else:
        requested = read_config(config, changes)
    if not Path(requested.data.path).exists():
        raise FateError(
            f"{requested.data.path}: no such dataset; give data.path=DATASET, a folder or a YAML file (fate simulate"
            " DIR makes one)"
        )
    if own_rank() == 0:  # before torch, which takes seconds to load
        say(f"building {requested.model.name}, reading {requested.data.path}")
    if not dry_run:
        named = Path(config).stem if model is None else f"{Path(config).stem}-{Path(model).stem}"
        _train(requested, out or Path("runs") / named, allow_missing)
        return
    from fate.training.dry_run import dry_run as try_steps

    def show(done: float, total: float | None = 1.0, text: str = "", part: str = "", /) -> None:
        say(text)

    tried = try_steps(requested, progress=show, allow_missing=allow_missing)
    print("\n".join(tried.lines()), flush=True)


def _fine_tuning(
    dataset: str, model: str, changes: list[str], epochs: int | None, batch: str | None, freeze: Any
) -> TrainConfig:
    """The settings of a run on a dataset that starts from trained weights; they are printed."""
    if batch is not None and batch != "auto" and not batch.isdecimal():
        raise typer.BadParameter(f"--batch {batch} was given; expected a number of clips, or auto")
    args.check_inputs(dataset)
    from fate.inference.loading import find_weights

    find_weights(model)
    from fate.training.fine_tuning import fine_tuning

    device = next((text.partition("=")[2] for text in reversed(changes) if text.startswith("run.device=")), "auto")
    size = None if batch in (None, "auto") else int(str(batch))
    found = fine_tuning(dataset, model, changes, epochs=epochs, batch=size, freeze=freeze, device=device)
    if own_rank() == 0:
        for sentence in found.about:
            say(sentence)
    return found.config


def say(text: str) -> None:
    """Print a line about the training to standard error, also with ``--quiet``."""
    print(text, file=sys.stderr, flush=True)


def _train(requested: TrainConfig, folder: Path, allow_missing: bool) -> None:
    from fate.training.loop import train as run
    from fate.view.evaluation_pictures import draw_samples
    from fate.view.learning_curves import draw_curves

    def begins(step: int, device: str) -> None:
        import torch

        threads = plural(torch.get_num_threads(), "thread")
        say(f"device: cpu, {threads}" if device == "cpu" else f"device: {device} ({torch.cuda.get_device_name()})")
        done = f"continues at step {step} of" if step else "trains"
        say(f"{folder}: {done} {requested.steps} steps; metrics.jsonl and log.txt in it record the progress")

    with args.progress_bar("training", steps=True) as progress:
        done = run(
            requested,
            folder,
            progress=progress,
            begins=begins,
            allow_missing=allow_missing,
            draw_samples=draw_samples,
            draw_curves=draw_curves,
        )
    if own_rank() != 0:  # the first of several processes speaks for all
        return
    if not done.finished:
        print(f"{folder}: stopped at step {done.step} of {requested.steps}, saved; the same command goes on from there")
        return
    kept = done.weights
    print(f"{folder}: {done.step} steps; the {kept.stem} weights are {kept}")
    if done.before is not None and done.best is not None:
        rates = ", ".join(f"{hz:g}" for hz in requested.run.validate_hz)
        print(
            f"AP50:95 on validation data at {rates} Hz: {100 * done.before:.1f} before → {100 * done.best:.1f} after"
            f" ({100 * (done.best - done.before):+.1f})"
        )
    print(f"next: fate evaluate {kept} {requested.data.path}")
