"""List the detectors by name: parameters, GFLOPs per window, encoder, whether trained weights come with the
package, and what each one is.

Example:

  fate models

  fate models --sensor 1280x720 --classes pedestrian,two-wheeler,car --json models.json
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer import Option

from fate.cli import arguments as args
from fate.text import format_table, grouped

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from fate.models.table import Entry


def models(
    sensor: Any = Option("304x240", metavar="WIDTHxHEIGHT", parser=args.parse_sensor, help="Sensor size in pixels."),
    classes: Any = Option(
        "car,pedestrian", metavar="NAMES", parser=args.parse_names, help="Names of the classes, comma-separated."
    ),
    json_file: args.JsonFile = None,
) -> None:
    args.check_outputs({"--json": json_file})

    from fate.inference.loading import DEFAULT_DETECTOR, bundled_weights

    bundled = bundled_weights()
    entries = _entries(classes, sensor)
    lines = [
        _table(entries, bundled),
        f"\nFor a sensor of {sensor[1]}×{sensor[0]} pixels and the classes {', '.join(classes)}.",
        "GFLOPs: one window, without the encoder; a multiplication and its addition count as two.",
    ]
    if bundled:
        names_there = " or ".join(sorted(bundled, key=lambda name: name != DEFAULT_DETECTOR))
        lines.append(
            f"bundled: the package has trained weights: fate detect FILE --model {names_there} (default: the first)."
        )
    described = [{**entry.to_dict(), "bundled": entry.name in bundled} for entry in entries]
    content = {"sensor": list(sensor), "classes": classes, "models": described}
    args.write_and_print("\n".join(lines), json_file, lambda file: args.write_json(file, content))


def _entries(names: Sequence[str], size: tuple[int, int]) -> Sequence[Entry]:
    """Return the stored table for the usual sensor and classes; for others the detectors are built and counted."""
    from fate.models.table import CLASSES, MODELS, SENSOR

    if (tuple(names), size) == (CLASSES, SENSOR):
        return list(MODELS.values())
    from fate.models.zoo import list_models

    with args.progress_bar("counting") as update:
        return list_models(names, size, update)


def _table(entries: Sequence[Entry], bundled: Container[str]) -> str:
    rows = [("name", "parameters", "GFLOPs", "encoder", "weights", "what it is")]
    for entry in entries:
        parameters = grouped(entry.parameters)
        weights = "bundled" if entry.name in bundled else "–"
        rows.append((entry.name, parameters, f"{entry.gflops:.2f}", entry.encoder, weights, entry.about))
    return format_table(rows, left=(0, 3, 4, 5))
