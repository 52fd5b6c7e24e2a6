"""``fate demo``: the main job on what is in the box."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = """Simulate a drive from a seed, detect objects in it at 20 and at 200 Hz, and write a video of both side by side
and a page. Needs no data and no network.

Example:

  fate demo

  fate demo --out rain --seed 12 --seconds 6 --model runs/mine/best.safetensors
"""


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Everything is written here.")] = Path("fate-demo"),
    seed: Annotated[int, typer.Option(help="Another one gives another drive.")] = 13,
    seconds: Annotated[float, typer.Option(help="Of the drive.")] = 3.0,
    model: Annotated[str, typer.Option(metavar="NAME|PATH", help="A bundled name, or a file.")] = "fate-s-tiny",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    from fate.cli import arguments as args
    from fate.cli.wording import with_options
    from fate.errors import FateError

    with args.bad_usage():
        if not 1 <= seconds <= 60:
            raise FateError(f"--seconds {seconds:g} was given; expected 1 to 60")
        if device not in ("cpu", "cuda"):
            raise FateError(f"--device {device} was given; expected cpu or cuda")
    from fate.runtime.demo import demo as run

    with args.task_bar() as show:
        done = run(out, seed=seed, seconds=seconds, model=model, device=device, show=show)
    print(with_options("\n".join(done.lines())))
