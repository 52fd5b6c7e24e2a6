"""``fate export``: a detector as an ONNX file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fate.cli import arguments as args

if TYPE_CHECKING:
    from fate.runtime.export import Exported

HELP = """Write one step of a detector as ONNX: a window of each stream and the memory in, boxes, scores and the next
memory out. The file is compared with PyTorch on a recording, step by step; it is only kept if they agree.

Example:

  fate export fate-s-nano nano.onnx

  fate export fate-s.safetensors fate-s.onnx

  fate export fate-e.safetensors fate-e.onnx --with-encoder --recording drive.raw --hz 100
"""


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A .safetensors file, or a model's name: bundled weights, or fresh where none are."
        ),
    ],
    out: Annotated[str, typer.Argument(metavar="OUT.onnx", help="The file; replaced if it exists.")],
    streams: Annotated[int, typer.Option(min=1, help="Windows in a step, one of each stream.")] = 1,
    with_encoder: Annotated[
        bool, typer.Option("--with-encoder", help="Begin with events, not with the encoder's image (pillars only).")
    ] = False,
    recording: Annotated[
        str | None, typer.Option(metavar="FILE", help="What to compare on; a simulated drive by default.")
    ] = None,
    hz: Annotated[float, typer.Option(help="Windows a second of the comparison; the file takes any rate.")] = 20.0,
    steps: Annotated[int, typer.Option(min=20, help="Windows of each stream to compare.")] = 20,
    opset: Annotated[int, typer.Option(min=18, max=23, help="Version of ONNX's operators.")] = 18,
    sensor: Annotated[
        str | None, typer.Option(metavar="WIDTHxHEIGHT", help="Of fresh weights; 304x240 by default.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Of fresh weights, comma-separated; car,pedestrian by default.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Fresh weights of a name that has bundled ones.")] = False,
) -> None:
    size = args.parse_sensor(sensor) if sensor is not None else None
    names = args.parse_classes(classes) if classes is not None else None
    with args.bad_usage():
        from fate.events.window import window_us

        window_us(hz)
    for source in (model, *([recording] if recording else [])):
        args.check_outputs({"OUT": out}, source, binary=("OUT",), seeks=("OUT",))

    from fate.runtime.export import export as write

    with args.progress_bar("comparing") as update:
        done = write(
            model,
            out,
            streams=streams,
            with_encoder=with_encoder,
            recording=recording,
            hz=hz,
            steps=steps,
            opset=opset,
            sensor=size,
            classes=names,
            fresh=fresh,
            progress=update,
        )
    print(_summary(done, recording or "a simulated drive"))


def _summary(done: Exported, clip: str) -> str:
    from fate.runtime.export_check import TOLERANCES

    lines = [f"{done.path}: {done.path.stat().st_size / 1e6:.1f} MB, opset {done.opset}", f"weights: {done.weights}"]
    for title, values in (("in ", done.inputs), ("out", done.outputs)):
        names = [f"{name} [{', '.join(map(str, shape))}]" for name, shape in values.items()]
        lines += [f"  {title if number == 0 else '   '}  {name}" for number, name in enumerate(names)]
    lines.append(f"largest differences from PyTorch over {done.steps} windows at {done.hz:g} Hz of {clip}:")
    units = {"boxes": "pixels", "scores": "", "states": "", "choice": "logits"}
    for name, value in done.differences._asdict().items():
        if name != "choice" or "objectness" not in done.outputs:
            lines.append(f"  {name:<7} {value:.1e} {units[name]:<6}  (allowed: {getattr(TOLERANCES, name):g})")
    return "\n".join(lines)
