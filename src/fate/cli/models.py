"""``fate models``; ``help.yaml`` explains it."""

from __future__ import annotations

from typing import Any

from typer import Option

from fate.cli import arguments as args
from fate.text import format_table, grouped


def models(
    sensor: Any = Option("304x240", parser=args.parse_sensor),
    classes: Any = Option("car,pedestrian", parser=args.parse_names),
    json_file: str | None = None,
) -> None:
    args.check_outputs({"--json": json_file})

    from fate.inference.loading import DEFAULT_DETECTOR, bundled_weights
    from fate.models.table import CLASSES, MODELS, SENSOR

    if (tuple(classes), sensor) == (CLASSES, SENSOR):
        entries = list(MODELS.values())
    else:  # not in the stored table: the detectors are built and counted
        from fate.models.zoo import list_models

        with args.progress_bar("counting") as update:
            entries = list(list_models(classes, sensor, update))
    bundled = bundled_weights()
    rows = [("name", "parameters", "GFLOPs", "encoder", "weights", "what it is")]
    for entry in entries:
        weights = "bundled" if entry.name in bundled else "–"
        numbers = grouped(entry.parameters), f"{entry.gflops:.2f}"
        rows.append((entry.name, *numbers, entry.encoder, weights, entry.about))
    lines = [
        format_table(rows, left=(0, 3, 4, 5)),
        f"\nFor a sensor of {sensor[1]}×{sensor[0]} pixels and the classes {', '.join(classes)}.",
        "GFLOPs: one window, without the encoder; a multiplication and its addition count as two.",
    ]
    if bundled:
        names = " or ".join(sorted(bundled, key=lambda name: name != DEFAULT_DETECTOR))
        lines.append(
            f"bundled: the package has trained weights: fate detect FILE --model {names} (default: the first)."
        )
    described = [{**entry.to_dict(), "bundled": entry.name in bundled} for entry in entries]
    content = {"sensor": list(sensor), "classes": classes, "models": described}
    args.write_and_print("\n".join(lines), json_file, lambda file: args.write_json(file, content))
