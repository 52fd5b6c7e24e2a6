"""``fate rehearse``; ``help.yaml`` explains it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Option

from fate.cli import arguments as args
from fate.cli.device import Device
from fate.cli.terminal import note


def rehearse(
    dataset: Any = Argument(metavar="gen1|1mpx", parser=args.choice("gen1", "1mpx"), help="Dataset to rehearse."),
    model: Any = Option(
        "fate-s", metavar="fate-s|fate-e", parser=args.choice("fate-s", "fate-e"), help="Detector to rehearse."
    ),
    out: Path | None = Option(None, metavar="DIR", help="Folder for sample and runs; the default is rehearsals/NAME."),
    recordings: int = Option(12, min=6, help="Number of recordings in the sample."),
    seconds: float = Option(60.0, min=1.0, help="Length of each recording in seconds."),
    steps: int = Option(200, min=20, help="Training steps of each phase."),
    device: Device = "auto",
    workers: int = Option(8, min=0, help="Number of processes that load data."),
    setting: list[str] | None = Option(
        None, "--set", metavar="KEY=VALUE", help="Setting of fate train for both phases; repeat the option for more."
    ),
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
