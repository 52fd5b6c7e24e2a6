"""``fate export``; ``help.yaml`` explains it."""

from __future__ import annotations

from typing import Any

from typer import Option

from fate.cli import arguments as args


def export(
    model: str,
    out: str,
    streams: int = Option(1, min=1),
    with_encoder: bool = False,
    recording: str | None = None,
    hz: float = 20.0,
    steps: int = Option(20, min=20),
    opset: int = Option(18, min=18, max=23),
    precision: Any = Option("fp32", parser=args.choice("fp32", "fp16", "int8")),
    calibration: list[str] = Option([]),
    sensor: args.Sensor = None,
    classes: Any = Option(None, parser=args.parse_names),
    fresh: bool = False,
) -> None:
    from fate.events.window import window_us
    from fate.inference.loading import find_weights
    from fate.models.table import NAMES

    with args.bad_usage():
        window_us(hz)
    args.check_inputs(recording, *calibration)
    if model not in NAMES:
        find_weights(model)
    args.check_outputs({"OUT": out}, model, recording, *calibration, binary=("OUT",), seeks=("OUT",))

    from fate.inference.export import ALLOWED
    from fate.inference.export import export as write

    with args.progress_bar("exporting") as update:
        done = write(
            model, out, streams=streams, with_encoder=with_encoder, recording=recording, hz=hz, steps=steps,
            opset=opset, precision=precision, calibration=calibration, sensor=sensor, classes=classes, fresh=fresh,
            progress=update,
        )  # fmt: skip
    lines = [
        f"{done.path}: {done.num_bytes / 1e6:.1f} MB, {done.precision}, opset {done.opset}",
        f"for recordings of {done.sensor} pixels; --sensor WIDTHxHEIGHT exports for others",
        f"weights: {done.weights}",
    ]
    for title, values in (("in ", done.inputs), ("out", done.outputs)):
        names = [f"{name} [{', '.join(map(str, shape))}]" for name, shape in values.items()]
        lines += [f"  {title if number == 0 else '   '}  {name}" for number, name in enumerate(names)]
    clip = recording or "moving bars"
    lines.append(f"largest differences from PyTorch over {done.steps} windows at {done.hz:g} Hz of {clip}:")
    allowed = ALLOWED[done.precision]
    units = {"boxes": "pixels", "scores": "", "states": "", "choice": "logits"}
    for name, value in done.differences._asdict().items():
        if name != "choice" or "objectness" not in done.outputs:
            limit = "" if done.precision == "int8" else f"(allowed: {getattr(allowed, name):g})"
            lines.append(f"  {name:<7} {value:.1e} {units[name]:<6}  {limit}".rstrip())
    if done.precision == "int8":
        lines.append(f"int8 changes scores and boxes; measure the loss with labels: fate evaluate {done.path} DATASET")
    if done.trtexec:
        lines.append(f"TensorRT, which was not run here: {done.trtexec}")
    print("\n".join(lines))
