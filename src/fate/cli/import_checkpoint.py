"""``fate import-checkpoint``; ``help.yaml`` explains it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import typer
from typer import Option

from fate.cli import arguments as args
from fate.text import format_table, plural

#: Detectors that can receive the weights of RT-DETR on COCO.
MODELS = ("evrt-detr-b", "fate-e", "evrt-detr-s")
#: Names shown of entries that are not used.
SHOWN = 5


def import_checkpoint(
    source: str,
    target: str,
    classes: Any = Option(None, parser=args.parse_names),
    sensor: args.Sensor = None,
    model: str | None = Option(None, parser=args.choice(*MODELS)),
) -> None:
    if not target.endswith(".safetensors"):
        raise typer.BadParameter(f"OUT {target}: expected a name that ends in .safetensors")
    args.check_outputs({"OUT": target}, source, binary=("OUT",))
    args.check_inputs(source)

    from fate.models.checkpoints.importing import import_checkpoint as read

    found = read(source, target, classes=classes, sensor=sensor, model=model)
    detector = found.detector
    number = sum(parameter.numel() for parameter in detector.parameters())
    fresh = Counter(".".join(name.split(".")[:2]) for name in found.fresh)  # by module, two levels deep
    unused = ", ".join([*found.unused[:SHOWN], *(["…"] if len(found.unused) > SHOWN else [])])
    rows = [
        ("layout", found.layout),
        ("model", f"{detector.description['name']}, {number / 1e6:.2f} M parameters"),
        ("classes", ", ".join(detector.classes)),
        ("sensor", f"{detector.sensor.width}×{detector.sensor.height}"),
        ("taken", plural(found.taken, "tensor")),
        ("fresh", ", ".join(f"{module} ({count})" for module, count in fresh.items()) or "nothing"),
        ("unused", f"{plural(len(found.unused), 'tensor')} ({unused})" if unused else "nothing"),
        ("written", target),
    ]
    print(format_table(rows, left=(0, 1)))
