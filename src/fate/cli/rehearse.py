"""``fate rehearse``; ``help.yaml`` explains it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Option

from fate.cli import arguments as args
from fate.cli.device import Device
from fate.cli.terminal import note


def rehearse(
    dataset: Any = Argument(parser=args.choice("gen1", "1mpx")),
    model: Any = Option("fate-s", parser=args.choice("fate-s", "fate-e")),
    out: Path | None = None,
    recordings: int = Option(12, min=6),
    seconds: float = Option(60.0, min=1.0),
    steps: int = Option(200, min=20),
    device: Device = "auto",
    workers: int = Option(8, min=0),
    setting: list[str] | None = None,
) -> None:
    from fate.workflows.rehearsal import RehearsalRequest
    from fate.workflows.rehearsal import rehearse as run

    request = RehearsalRequest(dataset, model, recordings, seconds, steps, device, workers, tuple(setting or ()))
    folder = out or Path("rehearsals") / f"{dataset}-{model}"
    result = run(request, folder, lambda done, total=1.0, text="", part="", /: note(text))
    print(f"\n{result.table()}\n\nfaults that were named before training:")
    for fault in result.faults:
        print(f"  {fault}")
    print(f"measurements: {folder / 'rehearsal.json'}")
