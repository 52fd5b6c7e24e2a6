"""``fate compare``; ``help.yaml`` explains it."""

from __future__ import annotations

from typing import Any, Unpack

from typer import Option

from fate.cli import arguments as args
from fate.cli.device import Device, pick_device
from fate.errors import FateError
from fate.quantities import parse_duration, parse_time


def compare(
    file: str,
    model: list[str] = Option(["fate-s-tiny"], autocompletion=args.complete_bundled),
    hz: list[str] | None = None,
    save: str = Option(...),
    at: list[str] | None = None,
    labels: str | None = None,
    window: args.Window = None,
    threshold: float | None = Option(None, min=0, max=1),
    acc: Any = Option("50ms", parser=parse_duration),
    slow: float = Option(1.0, min=0.01, max=10_000),
    palette: str = "dark",
    start: args.Time = None,
    end: args.Time = None,
    device: Device = "auto",
    **reading: Unpack[args.Reading],
) -> None:
    args.check_part(start, end)
    from fate.boxes.drawing import PALETTES

    with args.bad_usage():
        rates = args.parse_rates(hz, (200.0,))
        times = [parse_time(text) for text in at or ()]
        if palette not in PALETTES:
            raise FateError(f"--palette {palette} was given; there are {', '.join(PALETTES)}")
        args.check_outputs({"--save": save}, file, labels, binary=("--save",), seeks=("--save",))
    args.check_inputs(file, labels)
    from fate.view.look import Look
    from fate.workflows.compare import compare as run

    with args.opened(file, reading) as recording:
        first, last = args.times_in(recording, start, end)
        rows = [row for row in args.times_in(recording, *times) if row is not None]
        with args.progress_bar("comparing") as progress:
            done = run(
                recording, model, save, hz=rates, times_us=rows, labels=labels, window_us=window, threshold=threshold,
                start_us=first, end_us=last, device=pick_device(device), look=Look(acc, slow=slow, palette=palette),
                progress=progress,
            )  # fmt: skip
    for caption, result in done.runs.items():
        print(f"{caption}: {', '.join(f'{count} {name}' for name, count in result.summary['boxes'].items())}")
    print(f"written: {done.path}")
