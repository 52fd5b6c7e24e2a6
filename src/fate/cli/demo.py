"""``fate demo``; ``help.yaml`` explains it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from fate.cli import arguments as args
from fate.cli.device import Device, pick_device
from fate.cli.terminal import note, with_options


def demo(
    out: Path = Path("fate-demo"),
    seed: int = Option(40, min=0),
    seconds: float = Option(2.0, min=1, max=60),
    model: Annotated[str | None, Option(autocompletion=args.complete_bundled)] = None,
    device: Device = "auto",
) -> None:
    from fate.inference.loading import find_weights
    from fate.simulation.writing.request import check_folder

    check_folder(out)
    if model is not None:
        find_weights(model)
    chosen = pick_device(device)

    from fate.workflows.demo import demo as run

    note("simulating a drive; the first time on a machine, compiling takes half a minute or more")
    with args.progress_bar() as progress:
        done = run(out, seed=seed, seconds=seconds, model=model, device=chosen, progress=progress)
    print(with_options("\n".join(done.lines())))
