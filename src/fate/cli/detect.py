"""``fate detect``; ``help.yaml`` explains it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Any, Unpack

import typer
from typer import Option

from fate.cli import arguments as args
from fate.cli.device import Device, pick_device
from fate.cli.terminal import SOURCE_FAILED, note, with_options
from fate.errors import FateError
from fate.quantities import parse_duration
from fate.whole_files import find_target, is_standard_output


def detect(
    files: list[str],
    hz: Any = Option("200", parser=args.parse_rate_or_auto),
    window: args.Window = None,
    model: args.Model = "fate-s-tiny",
    save: str | None = None,
    report: str | None = None,
    json_file: str | None = None,
    jsonl_file: str | None = None,
    csv_file: str | None = None,
    coco_file: str | None = None,
    rotate: Any = Option(None, parser=args.parse_size),
    realtime: bool = False,
    reconnect: bool = False,
    track: bool = False,
    threshold: float | None = Option(None, min=0, max=1),
    max_overlap: args.Share = 0.45,
    keep_stale: bool = False,
    clip_windows: int = Option(16, min=1, max=16),
    filters: args.Filters = None,
    bias: args.Biases = None,
    camera_roi: args.CameraRoi = None,
    acc: Any = Option("50ms", parser=parse_duration),
    fps: float = Option(25.0, min=1, max=240),
    slow: float = Option(1.0, min=0.01, max=10_000),
    palette: str = "dark",
    start: args.Time = None,
    end: args.Time = None,
    device: Device = "auto",
    precision: args.Precision = None,
    backend: args.Backend = "torch",
    **reading: Unpack[args.Reading],
) -> None:
    args.check_part(start, end)
    boxes = {"--json": json_file, "--jsonl": jsonl_file, "--csv": csv_file, "--coco": coco_file}
    outputs = {"--save": save, "--report": report, **boxes}
    from fate.boxes.drawing import PALETTES
    from fate.events.filters import check_filters
    from fate.inference.loading import find_weights
    from fate.inference.sources import is_live
    from fate.view.look import Look

    live = any(is_live(file) for file in files)
    with args.bad_usage():
        if palette not in PALETTES:
            raise FateError(f"--palette {palette} was given; there are {', '.join(PALETTES)}")
        look = Look(acc, fps, slow, palette)
        _refuse_useless(look, rotate, outputs)
        check_window(hz, window)
        check_filters(filters or (), reading.get("sensor"))
        camera = args.camera_options(files[0], bias, camera_roi)
        _check_names(files, outputs)
        if live or realtime:
            if len(files) > 1:
                raise FateError(f"{len(files)} sources were given; a live run takes one, so start a command for each")
            if save or report:
                raise FateError(
                    f"{'--save' if save else '--report'} was given for a live run, which has no end to draw up to; take"
                    " its boxes with --jsonl, --csv or --json, or keep its events in a file (camera-program | tee"
                    " drive.raw | fate detect -) and run fate detect on that"
                )
        if live:
            check_live_source(files[0], {"start": start, "end": end, **reading}, reconnect)
        elif reconnect:
            raise FateError(f"--reconnect was given for the file {files[0]}; it is for tcp:PORT and cameras")
    for file in files:
        named = {option: _named(value, file, files) for option, value in outputs.items()}
        args.check_outputs(named, file, binary=("--save",), seeks=("--save",), lines=("--jsonl", "--csv"))
    if not live and len(files) == 1:  # of several files, the others are still detected
        args.check_inputs(*files)
    find_weights(model)
    load = cache(partial(load_and_note, model, device, backend, precision))
    asked = {"hz": hz, "window_us": window, "threshold": threshold, "track": track, "max_overlap": max_overlap,
             "filters": filters or (), "rotate_bytes": rotate, "clip_windows": clip_windows}  # fmt: skip
    if keep_stale:
        asked["stale_us"] = None
    if live or realtime:
        _live(files[0], live, load, boxes, asked, reading, (start, end), {"reconnect": reconnect, **camera})
    else:
        _files(files, load, outputs, asked, look, reading, (start, end))


def _refuse_useless(look: Any, rotate: int | None, outputs: dict[str, str | None]) -> None:
    """Refuse options of outputs that were not asked for."""
    if rotate is not None and not (outputs["--jsonl"] or outputs["--csv"]):
        raise FateError("--rotate was given without a file that grows; give --jsonl FILE or --csv FILE, too")
    changed = [each.name.removesuffix("_us") for each in fields(look) if getattr(look, each.name) != each.default]
    if changed and not (outputs["--save"] or outputs["--report"]):
        raise FateError(
            f"--{changed[0]} was given without a video or page; give --save FILE.mp4 or --report FILE.html, too"
        )


def check_window(hz: Any, window: int | None) -> None:
    """Refuse windows, in µs, that are shorter than the time between two of them or longer than a second."""
    if window is not None and hz != "auto" and not 1e6 / hz <= window + 1 <= 1e6:  # 1 / hz may be a fraction of a µs
        raise FateError(
            f"--window {window / 1000:g}ms was given with --hz {hz:g}; expected {1000 / hz:g}ms or longer, up to 1s"
        )


def check_live_source(name: str, given: Mapping[str, Any], reconnect: bool = False) -> None:
    """Refuse a live source that cannot be opened, and options, by the names of their parameters, that are for files."""
    from fate.inference.sources import check_source

    for_files = [option for option, value in given.items() if value and option not in ("sensor", "format")]
    if for_files:
        option = for_files[0].replace("_", "-").replace("drop", "drop-out-of-bounds")
        raise FateError(f"--{option} was given for a live source; it is for files")
    check_source(name, given.get("sensor"), reconnect)
    if name.partition(":")[0] == "camera":
        from fate.inference.camera_driver import load_drivers

        load_drivers()  # its package may be missing


def load_and_note(model: str, device: str, backend: Any = "torch", precision: Any = None) -> Any:
    """Load the detector; say what bundled weights were trained on, since they are the first thing that a user tries."""
    from fate.inference.loading import bundled_weights, find_weights, load_detector

    detector = load_detector(model, pick_device(device), precision, backend, note)
    logging.getLogger("fate.cli").info("weights of %s: %s", model, find_weights(model))
    if model in bundled_weights():
        note(
            f"note: {model} was trained on simulated recordings only; expect missed objects and false boxes (fate train"
            " trains a detector on your own recordings)"
        )
    return detector


def _files(
    files: list[str], load: Callable[[], Any], outputs: dict[str, str | None], asked: dict[str, Any],
    look: Any, reading: args.Reading, part: tuple[Any, Any],
) -> None:  # fmt: skip
    """Detect one file after another; after an error the next file follows.

    torch and the detector are loaded when the first recording has been opened, so that a wrong file is refused at once.
    """
    failed, hz, window = 0, asked["hz"], asked["window_us"]
    for file in files:
        named = {option: _named(value, file, files) for option, value in outputs.items()}
        try:
            with args.opened(file, reading) as recording:
                first, last = args.times_in(recording, *part)
                detector = load()
                asked |= choose_and_note(detector, recording.sensor, hz, window)
                from fate.workflows.detect import detect as run

                paths: Any = {option.removeprefix("--"): path for option, path in named.items()}
                with args.progress_bar() as progress:
                    done = run(
                        recording, detector, progress=progress, start_us=first, end_us=last, look=look,
                        **asked, **paths,
                    )  # fmt: skip
        except KeyboardInterrupt:
            given = {option: path for option, path in named.items() if path is not None}
            growing = [given.pop(option) for option in ("--jsonl", "--csv") if option in given]
            so_far = [f"boxes so far are in {', '.join(growing)}"] if growing else []
            missing = [f"not written: {', '.join(given.values())}"] if given else []
            print("; ".join([f"{file}: was not detected to its end", *so_far, *missing]), file=sys.stderr)
            raise
        except FateError as error:
            if len(files) == 1:
                raise
            failed += 1
            print(f"error: {with_options(str(error))}", file=sys.stderr)
            continue
        if len(files) > 1:
            args.printer(*named.values())(f"{file}:")
        print_summary(done, named)
    if failed:
        print(f"error: {failed} of {len(files)} files could not be detected, see above", file=sys.stderr)
        raise typer.Exit(1)


def _live(
    file: str, live: bool, load: Callable[[], Any], outputs: dict[str, str | None], asked: dict[str, Any],
    reading: args.Reading, part: tuple[Any, Any], opening: dict[str, Any],
) -> None:  # fmt: skip
    """Detect a live source or, unless ``live``, a file that is played at its own speed."""
    detector, hz, window = load(), asked["hz"], asked["window_us"]
    from fate.inference.sources import open_source, play
    from fate.inference.stream import part_of
    from fate.text import plural
    from fate.workflows.detect_live import detect_live

    with ExitStack() as closing, args.progress_bar() as progress:
        if live:
            name = "standard input" if file == "-" else file
            note(f"waiting for events from {name}; Ctrl-C stops")
            source = open_source(file, reading.get("sensor"), reading.get("format"), **opening)
            asked |= choose_and_note(detector, source.sensor, hz, window, in_time=True)
        else:
            recording = closing.enter_context(args.opened(file, reading))
            asked |= choose_and_note(detector, recording.sensor, hz, window, in_time=True)
            source = play(recording, asked["hz"], *part_of(recording, *args.times_in(recording, *part)))

        def show(frame: Any) -> None:
            if progress is not None:
                boxes = plural(len(frame.boxes), "box", "boxes")
                progress(0, None, f"{frame.t_us / 1e6:.2f} s, {boxes}, {frame.total_ms:.1f} ms", "live")

        paths: Any = {option.removeprefix("--"): path for option, path in outputs.items()}
        done = detect_live(source, detector, name=file, on_frame=show, **paths, **asked)
    print_summary(done, outputs)
    if done.summary["source_failed"]:
        raise typer.Exit(SOURCE_FAILED)


def choose_and_note(detector: Any, sensor: Any, hz: Any, window: int | None, in_time: bool = False) -> dict[str, Any]:
    """The rate and the length of windows; a note says how they were chosen."""
    from fate.inference.timing import choose_timing

    timing = choose_timing(detector, sensor, hz, window, in_time)
    if timing.reason:
        note(f"note: {timing.reason}")
    return {"hz": timing.hz, "window_us": timing.window_us}


def print_summary(done: Any, outputs: dict[str, str | None]) -> None:
    """Print the summary after all files are written."""
    series = done.summary.get("series", {})
    paths = [path for path in outputs.values() if path not in (None, "-") and not str(path).startswith("tcp:")]
    written = [_range(series.get(path, [path])) for path in paths]
    lines = [*done.lines(), *([f"written: {', '.join(map(str, written))}"] if written else [])]
    args.printer(*outputs.values())("\n".join(lines))


def _range(files: list[str]) -> str:
    """The names of files that belong together: the first and the last."""
    return files[0] if len(files) == 1 else f"{files[0]} to {files[-1]} ({len(files)} files)"


def _check_names(files: list[str], outputs: dict[str, str | None]) -> None:
    """Refuse names of outputs that do not fit their format, or that several recordings would share."""
    for option, suffixes in {"--save": (".mp4",), "--report": (".html", ".htm")}.items():
        name = outputs[option]
        if name is not None and not name.lower().endswith(suffixes):
            raise FateError(f"{option} {name}: expected a name that ends in {suffixes[0]}")
    both = next((name for name in outputs if is_standard_output(outputs[name]) and len(files) > 1), None)
    if both is not None:
        raise FateError(
            f"{both} {outputs[both]}: standard output takes boxes of one recording, and {len(files)} were given;"
            " detect them one by one, or give a file"
        )
    taken: dict[str, str] = {}
    for file in files:
        for value in outputs.values():
            name = _named(value, file, files)
            if name is not None and name != value and taken.setdefault(name, file) != file:
                raise FateError(f"{taken[name]} and {file} would both be written to {name}; detect them one by one")


def _named(output: str | None, file: str, files: list[str]) -> str | None:
    """The output of one of several recordings: out.mp4 becomes out_drive.mp4; a device or ``-`` takes them all."""
    if output is None or len(files) == 1:
        return output
    try:
        if find_target(output, text=True, lines=True).kind != "file":
            return output
    except FateError:  # a path that cannot be written is refused elsewhere
        pass
    path = Path(output)
    return str(path.with_name(f"{path.stem}_{Path(file).stem}{path.suffix}"))
