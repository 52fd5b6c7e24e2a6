"""``fate label-kit``; ``help.yaml`` explains it."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from typer import Option

from fate.cli import arguments as args
from fate.cli.device import Device, pick_device
from fate.cli.terminal import note
from fate.quantities import parse_duration
from fate.text import plural


def label_kit(
    file: str,
    folder: str,
    hz: float = Option(10.0, min=0.1, max=1000),
    window: Any = Option("50ms", parser=parse_duration),
    model: Annotated[str | None, Option(autocompletion=args.complete_bundled)] = None,
    threshold: float | None = Option(None, min=0, max=1),
    classes: Any = Option(None, parser=args.parse_names),
    palette: str = "dark",
    start: args.Time = None,
    end: args.Time = None,
    device: Device = "auto",
    **reading: Unpack[args.Reading],
) -> None:
    args.check_part(start, end)
    args.check_inputs(file)
    if model is not None:
        from fate.inference.loading import find_weights

        find_weights(model)
    with args.opened(file, reading) as recording:
        from fate.workflows.label_kit import GUESS
        from fate.workflows.label_kit import label_kit as make_kit

        first, last = args.times_in(recording, start, end)
        with args.progress_bar("drawing") as update:
            done = make_kit(
                recording, folder, hz, window_us=window, model=model, threshold=threshold, classes=classes,
                palette=palette, start_us=first, end_us=last, progress=update,
                device="cpu" if model is None else pick_device(device),
            )  # fmt: skip
    print(f"{folder}: {plural(done.num_frames, 'picture')} in frames, and their times in frames.csv")
    if done.num_guessed is not None:
        print(f"{folder}/{GUESS}: {plural(done.num_guessed, 'box', 'boxes')} as a first guess, to correct in CVAT")
    note(f"next: label the pictures as {folder}/README.txt explains")
