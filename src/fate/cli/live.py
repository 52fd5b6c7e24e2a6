"""``fate live``; ``help.yaml`` explains it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Unpack

import typer
from typer import Option

from fate.cli import arguments as args
from fate.cli.detect import check_live_source, check_window, load_and_note, print_summary
from fate.cli.device import Device
from fate.cli.terminal import SOURCE_FAILED, note
from fate.errors import FateError


def live(
    source: str,
    hz: Any = Option("auto", parser=args.parse_rate_or_auto),
    window: args.Window = None,
    model: args.Model = "fate-s-nano",
    threshold: float | None = Option(None, min=0, max=1),
    filters: args.Filters = None,
    bias: args.Biases = None,
    camera_roi: args.CameraRoi = None,
    loop: bool = False,
    reconnect: bool = False,
    jsonl_file: str | None = None,
    csv_file: str | None = None,
    rotate: Any = Option(None, parser=args.parse_size),
    host: str = "127.0.0.1",
    port: int = Option(8200, min=0, max=65535),
    no_browser: bool = False,
    device: Device = "auto",
    precision: args.Precision = None,
    backend: args.Backend = "torch",
    **reading: Unpack[args.Reading],
) -> None:
    from fate.events.filters import check_filters
    from fate.inference.loading import find_weights
    from fate.inference.sources import is_live, open_source

    is_file = not is_live(source)
    with args.bad_usage():
        check_window(hz, window)
        check_filters(filters or (), reading.get("sensor"))
        camera = args.camera_options(source, bias, camera_roi)
        if not is_file:
            check_live_source(source, {"loop": loop, **reading}, reconnect)
        elif reconnect:
            raise FateError(f"--reconnect was given for the file {source}; it is for tcp:PORT and cameras")
    outputs = {"--jsonl": jsonl_file, "--csv": csv_file}
    args.check_outputs(outputs, source, lines=tuple(outputs))
    if is_file:
        args.check_inputs(source)
    find_weights(model)
    from fate.workflows.live_page.page_process import LivePage, name_of, open_browser

    name = name_of(source)
    with ExitStack() as closing:
        opened: Any = None
        if is_file:
            opened = closing.enter_context(args.opened(source, reading))
            with args.bad_usage():
                check_filters(filters or (), opened.sensor)
        page = closing.enter_context(LivePage(name, host, port))
        note(f"page: {page.url}")
        page.show("loading", model=model)
        is_shown = not no_browser and open_browser(page.url)
        detector = load_and_note(model, device, backend, precision)
        from fate.workflows.live_page.running import show_live

        if not is_file:
            note(f"waiting for events from {name}; Ctrl-C stops")
            opened = open_source(source, reading.get("sensor"), reading.get("format"), reconnect, **camera)
        done = show_live(
            page, opened, detector, hz, window_us=window, threshold=threshold, filters=filters or (), loop=loop,
            name=source, wait_for_viewer=is_shown, on_timing=lambda text: note(f"note: {text}"), jsonl=jsonl_file,
            csv=csv_file, rotate_bytes=rotate,
        )  # fmt: skip
    print_summary(done, outputs)
    if done.summary["source_failed"]:
        raise typer.Exit(SOURCE_FAILED)
