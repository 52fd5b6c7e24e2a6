"""``fate import-checkpoint``: the weights of a public detector as a file of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fate.cli import arguments as args

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fate.models.official import Imported

#: What weights of RT-DETR on COCO can go into.
MODELS = ("evrt-detr-b", "fate-e", "evrt-detr-s")
#: Names shown of entries that are not used.
SHOWN = 5

HELP = """Turn a checkpoint of a public project into a file of FATE's own: RVT and ssms_event_cameras (S5-ViT), one
.ckpt file; EvRT-DETR, its folder of net_*.pth files; RT-DETR on COCO in the layout of transformers, one file, of which
the parts that fit are taken and the others begin anew. Nothing in a checkpoint is run.

Example:

  fate import-checkpoint gen1_base.ckpt s5-vit-b.safetensors

  fate import-checkpoint rtdetr_r50vd/model.safetensors start.safetensors --model fate-e --classes car,pedestrian
"""


def import_checkpoint(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A checkpoint: a file, or EvRT-DETR's folder.")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="A .safetensors file; replaced if it exists.")],
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,…", help="Names of the classes in their order; those of Gen1 or 1Mpx by default."
        ),
    ] = None,
    sensor: Annotated[
        str | None,
        typer.Option(metavar="WIDTHxHEIGHT", help="Sensor size; Gen1's, or half of 1Mpx's, with their classes."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help=f"What weights of RT-DETR on COCO go into: {', '.join(MODELS)}.")
    ] = None,
) -> None:
    names = args.parse_classes(classes) if classes is not None else None
    size = args.parse_sensor(sensor) if sensor is not None else None
    chosen = args.choice("--model", model, MODELS)
    if not target.endswith(".safetensors"):
        raise typer.BadParameter(f"OUT {target}: expected a name that ends in .safetensors")
    args.check_outputs({"OUT": target}, source, binary=("OUT",))

    from fate.models.official import import_checkpoint as read

    found = read(source, target, classes=names, sensor=size, model=chosen)
    print(_summary(found, target))


def _summary(found: Imported, target: str) -> str:
    detector = found.detector
    number = sum(parameter.numel() for parameter in detector.parameters())
    unused = ", ".join([*found.unused[:SHOWN], *(["…"] if len(found.unused) > SHOWN else [])])
    rows = [
        ("layout", found.layout),
        ("model", f"{detector.description['name']}, {number / 1e6:.2f} M parameters"),
        ("classes", ", ".join(detector.classes)),
        ("sensor", f"{detector.sensor.width}×{detector.sensor.height}"),
        ("taken", _tensors(found.taken)),
        ("fresh", ", ".join(_modules(found.fresh, detector.state_dict())) or "nothing"),
        ("unused", f"{_tensors(len(found.unused))} ({unused})" if unused else "nothing"),
        ("written", target),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _tensors(number: int) -> str:
    return f"{number} tensor{'' if number == 1 else 's'}"


def _modules(fresh: Sequence[str], every: Iterable[str]) -> list[str]:
    """Names of entries, or of a module where all it has is among them, with how many it has."""
    kept = set(every) - set(fresh)
    found: dict[str, int] = {}
    for name in fresh:
        steps = name.split(".")
        places = (".".join(steps[:depth]) for depth in range(1, len(steps) + 1))
        place = next(place for place in places if not any(other.startswith(f"{place}.") for other in kept))
        found[place] = found.get(place, 0) + 1
    return [f"{place} ({number})" if place not in fresh else place for place, number in found.items()]
