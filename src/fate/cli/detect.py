"""``fate detect``: boxes from any recording, at any rate."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from fate.cli import arguments as args
from fate.cli.wording import with_options

HELP = """Find objects in recordings at any rate, from 1 to 1000 Hz, and show them: on a video, on a page with the video
and plots, as JSON, CSV or COCO.

Example:

  fate detect drive.raw --hz 200 --save drive.mp4 --slow 4

  fate detect drive.raw --hz 100 --track --report drive.html --json drive.json

  fate detect drive.raw --model trained-at-20hz.safetensors --hz 200 --window 50ms --save drive.mp4

  fate detect *.dat --model fate-s.safetensors --csv boxes.csv --start +2s --end +4s

Live: a file at its own speed, standard input (words of EVT3 as they come), a socket on this machine, or a camera.
Windows that cannot be detected in time are dropped and counted; on a CPU fate-s-nano keeps up best. Ctrl-C ends, and
what was found is kept.

  fate detect drive.raw --realtime --hz 50 --model fate-s-nano

  camera-program | fate detect - --hz 50 --model fate-s-nano

  fate detect tcp:9000 --sensor 640x480        (or udp:9000, or camera)
"""


def detect(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Recordings of any format.")],
    hz: Annotated[float, typer.Option(help="Windows a second.")] = 200.0,
    window: Annotated[
        str | None, typer.Option(help="How long each is, such as 50ms; 1 / HZ unless given. Longer ones overlap.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME|PATH", help="A bundled name, or a .safetensors file.")
    ] = "fate-s-tiny",
    save: Annotated[str | None, typer.Option(metavar="OUT.mp4", help="A video with the boxes.")] = None,
    report: Annotated[str | None, typer.Option(metavar="OUT.html", help="A page: video, rate, boxes, latency.")] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="All frames and the summary.")] = None,
    csv_file: Annotated[str | None, typer.Option("--csv", metavar="FILE", help="A row for each box.")] = None,
    coco_file: Annotated[str | None, typer.Option("--coco", metavar="FILE", help="COCO's JSON, with times.")] = None,
    realtime: Annotated[bool, typer.Option("--realtime", help="Play files at their own speed, as if live.")] = False,
    track: Annotated[bool, typer.Option("--track", help="Number the objects.")] = False,
    threshold: Annotated[float, typer.Option(help="Least score of a box.")] = 0.4,
    acc: Annotated[str, typer.Option(help="Events of this time are drawn, such as 50ms.")] = "50ms",
    fps: Annotated[float, typer.Option(help="Pictures a second of video.")] = 25.0,
    slow: Annotated[float, typer.Option(help="Times slower than the recording.")] = 1.0,
    palette: Annotated[str, typer.Option(help="dark, light, gray, coolwarm, cvd or red-blue.")] = "dark",
    start: Annotated[str | None, typer.Option(help="Such as 2s, or +2s from the first event.")] = None,
    end: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    sensor: args.Sensor = None,
    format: args.Format = None,
    columns: args.Columns = None,
    time_unit: args.TimeUnit = None,
    drop: args.Drop = False,
    sort: args.Sort = False,
) -> None:
    options = args.open_options(sensor, format, columns, time_unit, False, drop, sort, False)
    outputs = {"--save": save, "--report": report, "--json": json_file, "--csv": csv_file, "--coco": coco_file}
    begin = args.parse_time(start, "--start") if start is not None else None
    stop = args.parse_time(end, "--end") if end is not None else None
    args.check_order(begin, stop)
    from fate.errors import FateError
    from fate.runtime.detecting_live import is_live

    with args.bad_usage():
        shown = _look(acc, fps, slow, palette)
        _check(hz, threshold, device)
        span = _span(window, hz)
    live = any(is_live(file) for file in files)
    _check_names(files, outputs)
    with args.bad_usage():
        if (live or realtime) and (save or report or len(files) > 1):
            raise FateError("one live source at a time, and --save and --report need a file, without --realtime")
    if live:
        unused = {"--start": begin, "--end": stop, "--columns": columns, "--time-unit": time_unit,
                  "--drop-out-of-bounds": drop or None, "--sort": sort or None}  # fmt: skip
        _refuse_for_live(files[0], unused, options["sensor"])
    if live or realtime:
        _live(files[0], outputs, model, device, hz, span, threshold, track, options, (begin, stop), show_live=live)
        return

    from fate.runtime.detecting import Look
    from fate.runtime.loading import load_detector

    asked = {"hz": hz, "window_us": span, "threshold": threshold, "track": track, "look": Look(**shown)}
    _files(files, outputs, load_detector(model, device), options, (begin, stop), asked)


def _files(
    files: list[str], outputs: dict[str, str | None], detector: Any, options: dict[str, Any], part: tuple[Any, Any],
    asked: dict[str, Any],
) -> None:  # fmt: skip
    """One after another; what is wrong with one does not keep the others from being detected."""
    from fate.errors import FateError
    from fate.runtime.detecting import detect as run

    failed = 0
    for file in files:
        given = {name: _named(value, file, files) for name, value in outputs.items()}
        try:
            with args.opened(file, options) as recording, args.task_bar() as show:
                first, last = (None if at is None else at.at(recording.start_us) for at in part)
                done = run(
                    recording, detector, show=show, start_us=first, end_us=last, save=given["--save"],
                    report=given["--report"], **asked,
                )  # fmt: skip
        except FateError as error:
            if len(files) == 1:
                raise
            failed += 1
            print(f"error: {with_options(str(error))}", file=sys.stderr)
            continue
        if len(files) > 1:
            print(f"{file}:")
        print("\n".join(done.lines()))
        _write(done, given)
    if failed:
        print(f"error: {failed} of {len(files)} files could not be detected, see above", file=sys.stderr)
        raise typer.Exit(1)


def _live(
    file: str, outputs: dict[str, str | None], model: str, device: str, hz: float, span: int | None, threshold: float,
    track: bool, options: dict[str, Any], part: tuple[Any, Any], show_live: bool,
) -> None:  # fmt: skip
    from fate.runtime.detecting import part_of
    from fate.runtime.detecting_live import detect_live, open_source, play
    from fate.runtime.loading import load_detector

    detector = load_detector(model, device)
    with ExitStack() as closing, args.task_bar() as show:
        if show_live:
            source = open_source(file, options["sensor"], options["format"])
            print(f"waiting for events from {file}; Ctrl-C ends, and what was found is kept", file=sys.stderr)
        else:
            recording = closing.enter_context(args.opened(file, options))
            asked = (None if time is None else time.at(recording.start_us) for time in part)
            source = play(recording, hz, *part_of(recording, *asked))

        def tell(frame: Any) -> None:
            if show is not None:
                show("live", 0, None, f"{frame.t_us / 1e6:.2f} s, {len(frame.boxes)} boxes, {frame.total_ms:.1f} ms")

        done = detect_live(
            source, detector, hz, window_us=span, name=file, threshold=threshold, track=track, on_frame=tell
        )
    print("\n".join(done.lines()))
    _write(done, outputs)


def _check_names(files: list[str], outputs: dict[str, str | None]) -> None:
    """Refuse names of outputs that cannot be, before anything is done."""
    from fate.errors import FateError

    with args.bad_usage():
        for option, suffixes in {"--save": (".mp4",), "--report": (".html", ".htm")}.items():
            name = outputs[option]
            if name is not None and not name.lower().endswith(suffixes):
                raise FateError(f"{option} {name}: expected a name that ends in {suffixes[0]}")
        taken: dict[str, str] = {}
        for file in files:
            for name in (_named(value, file, files) for value in outputs.values() if value is not None):
                if name is not None and taken.setdefault(name, file) != file:
                    raise FateError(f"{taken[name]} and {file} would both be written to {name}; detect them one by one")
    for file in files:
        args.check_outputs({option: _named(value, file, files) for option, value in outputs.items()}, file)


def _refuse_for_live(source: str, unused: dict[str, Any], sensor: Any) -> None:
    from fate.errors import FateError
    from fate.runtime.detecting_live import check_source

    with args.bad_usage():
        given = [option for option, value in unused.items() if value is not None]
        if given:
            raise FateError(f"{given[0]} was given for a live source; it is for files")
        check_source(source, sensor)


def _write(done: Any, given: dict[str, str | None]) -> None:
    """The files that were asked for."""
    writers = {"--json": done.log.write_json, "--csv": done.log.write_csv, "--coco": done.log.write_coco}
    for name, write in writers.items():
        target = given[name]
        if target is not None:
            write(target)
    written = [path for path in given.values() if path is not None]
    if written:
        print(f"written: {', '.join(written)}")


def _look(acc: str, fps: float, slow: float, palette: str) -> dict[str, Any]:
    from fate.errors import FateError
    from fate.view.drawing import PALETTES

    acc_us = args.parse_duration(acc, "--acc")
    if not 1 <= fps <= 240:
        raise FateError(f"--fps {fps:g} was given; expected 1 to 240 pictures a second")
    if not 0.01 <= slow <= 10_000:
        raise FateError(f"--slow {slow:g} was given; expected 0.01 to 10000 times slower")
    if palette not in PALETTES:
        raise FateError(f"--palette {palette} was given; there are {', '.join(PALETTES)}")
    return {"acc_us": acc_us, "fps": fps, "slow": slow, "palette": palette}


def _span(window: str | None, hz: float) -> int | None:
    """µs of --window."""
    from fate.errors import FateError

    span = None if window is None else args.parse_duration(window, "--window")
    if span is not None and not 1e6 / hz <= span + 1 <= 1e6:  # 1 / hz may be a fraction of a µs longer
        raise FateError(f"--window {window} was given with --hz {hz:g}; expected {1000 / hz:g}ms or longer, up to 1s")
    return span


def _check(hz: float, threshold: float, device: str) -> None:
    from fate.errors import FateError

    if not 1 <= hz <= 1000:
        raise FateError(f"--hz {hz:g} was given; expected a rate from 1 to 1000")
    if not 0 <= threshold <= 1:
        raise FateError(f"--threshold {threshold:g} was given; expected a score from 0 to 1")
    if device not in ("cpu", "cuda"):
        raise FateError(f"--device {device} was given; expected cpu or cuda")


def _named(output: str | None, file: str, files: list[str]) -> str | None:
    """Of several recordings each gets outputs of its own: out.mp4 becomes out_drive.mp4."""
    if output is None or len(files) == 1:
        return output
    from pathlib import Path

    place = Path(output)
    return str(place.with_name(f"{place.stem}_{Path(file).stem}{place.suffix}"))
