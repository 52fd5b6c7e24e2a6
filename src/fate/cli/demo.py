"""``fate demo``: the main job on what is in the box."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fate.cli import arguments as args
from fate.cli.device import Device, check_device, pick_device
from fate.cli.terminal import note

SHORT_HELP = "Simulate a drive and detect objects at 20 and 200 Hz."
HELP = """Simulate a short drive, detect objects in it at 20 Hz and at 200 Hz, and write a video of both side by
side and a report page. It needs no data and no network.

Example:

  fate demo

  fate demo --out rain --seed 12 --seconds 6 --model runs/mine/best.safetensors
"""


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for everything that is written.")] = Path(
        "fate-demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the drive; another seed gives another drive.")] = 13,
    seconds: Annotated[float, typer.Option(help="Length of the drive in seconds, 1 to 60.")] = 3.0,
    model: args.Model = "fate-s-tiny",
    device: Device = "auto",
) -> None:
    from fate.cli.wording import with_options
    from fate.errors import FateError
    from fate.inference.loading import find_weights
    from fate.simulation.writing.request import check_number, check_place

    with args.bad_usage():
        if not 1 <= seconds <= 60:
            raise FateError(f"--seconds {seconds:g} was given; expected 1 to 60")
        check_number("the seed", seed, 0)
        check_device(device)
    check_place(out)
    find_weights(model)
    chosen = pick_device(device)

    from fate.workflows.demo import demo as run

    note("simulating a drive; the first time on a machine, compiling takes a minute or two")
    with args.progress_bar() as progress:
        done = run(out, seed=seed, seconds=seconds, model=model, device=chosen, progress=progress)
    print(with_options("\n".join(done.lines())))
