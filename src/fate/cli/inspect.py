"""``fate inspect``; ``help.yaml`` explains it."""

from __future__ import annotations

from typing import Any, Unpack

from typer import Option

from fate.cli import arguments as args
from fate.whole_files import is_standard_output


def inspect(
    dataset: str,
    split: Any = Option(None, parser=args.choice("train", "val", "test")),
    report: str | None = None,
    json_file: str | None = None,
    windows: int = Option(200, min=1),
    **reading: Unpack[args.Reading],
) -> None:
    from fate.view.page import check_page_name

    args.check_inputs(dataset)
    args.check_outputs({"--report": report, "--json": json_file}, datasets=(dataset,))
    if report is not None and not is_standard_output(report):
        check_page_name(report)

    from fate.inspection.inspect import inspect as look
    from fate.workflows.inspection_page import write_inspection_page

    with args.progress_bar("inspecting") as update:
        found = look(dataset, split=split, windows=windows, progress=update, **args.open_options(reading))
    say = args.printer(report, json_file)
    try:
        if json_file is not None:
            args.write_json(json_file, found.to_dict())
        if report is not None:
            write_inspection_page(found, report)
    finally:
        say(found.text())
    if report is not None:
        say(f"\npage written to {report}")
