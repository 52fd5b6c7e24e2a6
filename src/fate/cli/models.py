"""``fate models``: the detectors that can be built by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fate.cli import arguments as args

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from fate.models.catalogue import Entry

HELP = """The detectors by name: parameters, GFLOPs per window, encoder, whether trained weights come with the package,
and what each is.

Example:

  fate models

  fate models --sensor 1280x720 --classes pedestrian,two-wheeler,car --json models.json
"""


def models(
    sensor: Annotated[str, typer.Option(metavar="WIDTHxHEIGHT", help="Sensor the detectors are for.")] = "304x240",
    classes: Annotated[str, typer.Option(help="What they detect, comma-separated.")] = "car,pedestrian",
    json_file: args.JsonFile = None,
) -> None:
    size = args.parse_sensor(sensor)
    names = args.parse_classes(classes)
    args.check_outputs({"--json": json_file}, "")

    from fate.models.catalogue import list_models
    from fate.runtime.loading import DEFAULT_DETECTOR, bundled_weights

    bundled = bundled_weights()
    with args.progress_bar("counting") as update:
        entries = list_models(names, size, update)
    lines = [
        _table(entries, bundled),
        f"\nFor a sensor of {size[1]}×{size[0]} pixels and the classes {', '.join(names)}.",
        "GFLOPs: one window, without its encoder; a multiplication and its addition count as two.",
    ]
    if bundled:
        names_there = " or ".join(sorted(bundled, key=lambda name: name != DEFAULT_DETECTOR))
        lines.append(
            f"bundled: trained, and in the package: fate detect FILE --model {names_there}; the first unless given."
        )
    described = [{**entry.to_dict(), "bundled": entry.name in bundled} for entry in entries]
    content = {"sensor": list(size), "classes": names, "models": described}
    args.write_and_print("\n".join(lines), json_file, lambda file: args.write_json(file, content))


def _table(entries: Sequence[Entry], bundled: Container[str]) -> str:
    rows = [("name", "parameters", "GFLOPs", "encoder", "weights", "what it is")]
    for entry in entries:
        parameters = f"{entry.parameters:,}".replace(",", " ")
        weights = "bundled" if entry.name in bundled else "–"
        rows.append((entry.name, parameters, f"{entry.gflops:.2f}", entry.encoder, weights, entry.about))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        f"{name:<{widths[0]}}  {parameters:>{widths[1]}}  {gflops:>{widths[2]}}  {encoder:<{widths[3]}}"
        f"  {weights:<{widths[4]}}  {about}"
        for name, parameters, gflops, encoder, weights, about in rows
    )
