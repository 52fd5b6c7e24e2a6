"""``fate record``; ``help.yaml`` explains it."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Unpack

import typer
from typer import Option

from fate.cli import arguments as args
from fate.cli.detect import check_live_source, check_window, choose_and_note, load_and_note
from fate.cli.device import Device
from fate.cli.terminal import SOURCE_FAILED, note
from fate.errors import FateError
from fate.text import plural


def record(
    source: str,
    target: str,
    model: Annotated[str | None, Option(autocompletion=args.complete_bundled)] = None,
    hz: Any = Option("200", parser=args.parse_rate_or_auto),
    window: args.Window = None,
    threshold: float | None = Option(None, min=0, max=1),
    track: bool = False,
    reconnect: bool = False,
    bias: args.Biases = None,
    camera_roi: args.CameraRoi = None,
    device: Device = "auto",
    **reading: Unpack[args.Reading],
) -> None:
    from fate.inference.loading import find_weights
    from fate.inference.sources import is_live, open_source, play

    live = is_live(source)
    with args.bad_usage():
        check_window(hz, window)
        camera = args.camera_options(source, bias, camera_roi)
        if live:
            check_live_source(source, reading, reconnect)
        elif reconnect:
            raise FateError(f"--reconnect was given for the file {source}; it is for tcp:PORT and cameras")
        if model is None and (hz != 200 or window or track or threshold is not None):
            raise FateError("options of detection were given without a detector; give --model NAME")
    if not live:
        args.check_inputs(source)
    args.check_outputs({"OUT": target}, source, binary=("OUT",), seeks=("OUT",))
    if model is not None:
        find_weights(model)
    with ExitStack() as closing, args.progress_bar("recording") as progress:
        detector = None if model is None else load_and_note(model, device)
        from fate.workflows.record import record as run

        if live:
            note(f"waiting for events from {'standard input' if source == '-' else source}; Ctrl-C stops")
            opened: Any = open_source(source, reading.get("sensor"), reading.get("format"), reconnect, **camera)
        else:
            opened = play(closing.enter_context(args.opened(source, reading)))
        asked: dict[str, Any] = {}
        if detector is not None:
            asked = choose_and_note(detector, opened.sensor, hz, window, in_time=True)

        named = 1  # files that the user knows

        def show(state: Any, frame: Any) -> None:
            nonlocal named
            for file in state.files[named:]:
                note(f"note: the source came back or its time went back; recording continues in {file}")
            named = max(named, len(state.files))
            if progress is not None:
                boxes = "" if frame is None else f", {plural(len(frame.boxes), 'box', 'boxes')} in the last window"
                progress(0, None, f"{state.events / 1e6:.1f} million events, {state.bytes / 1e6:.1f} MB{boxes}")

        done = run(opened, target, detector, threshold=threshold, track=track, on_state=show, **asked)
    lines = done.lines()
    if done.detected is not None:
        files = list(map(str, done.state.files))
        words = ["fate", "detect", *files, "--model", str(model), "--hz", f"{asked['hz']:g}"]
        words += ["--window", f"{done.detected.log.facts['window_us']}us", *(["--track"] if track else [])]
        words += ["--clip-windows", "1", *([] if threshold is None else ["--threshold", f"{threshold:g}"])]
        what = "boxes of all windows" if done.detected.summary["dropped"]["windows_dropped"] else "the same boxes"
        lines.append(f"written: {', '.join([*files, str(Path(target).with_suffix('.jsonl'))])}")
        lines += [f"{what}: {shlex.join(words)}"] if files else []
    print("\n".join(lines), flush=True)
    if done.state.failed:
        raise FateError(done.state.failed)
    if done.source_failed:
        raise typer.Exit(SOURCE_FAILED)
