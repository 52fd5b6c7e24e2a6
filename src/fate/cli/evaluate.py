"""``fate evaluate``; ``help.yaml`` explains it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from typer import Option

from fate.cli import arguments as args
from fate.cli.device import Device, pick_device
from fate.cli.terminal import note
from fate.errors import FateWarning
from fate.quantities import parse_duration
from fate.text import plural


def evaluate(
    what: str,
    dataset: str,
    hz: list[str] | None = None,
    window: args.Window = None,
    split: str | None = None,
    protocol: str | None = None,
    label_tolerance: Any = Option(None, parser=parse_duration),
    score: args.Score = "product",
    max_overlap: float | None = Option(None, min=0, max=1),
    device: Device = "auto",
    precision: args.Precision = None,
    backend: args.Backend = "torch",
    devices: args.Devices = None,
    slurm: args.Slurm = None,
    streams: int | None = Option(None, min=1),
    workers: args.Workers = 0,
    shard: args.Shard = "1/1",
    predictions: str | None = None,
    images: str | None = None,
    record: bool = False,
    calibrate: bool = False,
    report: str | None = None,
    groups: str | None = None,
    json_file: str | None = None,
    kind: str | None = None,
) -> None:
    from fate.evaluation.protocols import named_protocol
    from fate.inference.loading import find_weights, means_a_model

    spread = args.spread_options(devices, slurm, device, shard)
    with args.bad_usage():
        rates = args.parse_rates(hz)
        if protocol is not None:
            named_protocol(protocol)
    args.check_outputs({"--json": json_file, "--report": report}, what, images, datasets=(dataset,))
    for file in Path(predictions).glob("*hz*.npz") if predictions is not None else ():
        args.refuse_file_of_dataset("--predictions", file, dataset, (".npz",))
    is_model = means_a_model(what)
    if is_model or not (Path(what).suffix or os.path.lexists(what)):
        find_weights(what)  # which lists the bundled names
    args.check_inputs(dataset, images, None if is_model else what, None if groups in ("sensor", "scene") else groups)
    from fate.data.opening import as_dataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)  # the faults below include what is left out
        opened = as_dataset(dataset, split, kind=kind, usual="test").checked()
    for fault in opened.faults:
        args.printer(json_file)(f"dataset: {fault}")
    used = f"split {', '.join(opened.splits)}" if opened.splits else "no splits"
    note(f"dataset: {used}, {plural(len(opened.labelled), 'labelled recording')}")
    chosen = pick_device(device) if devices is None else device

    from fate.view.evaluation_pictures import save_with_picture
    from fate.workflows.commands import evaluate as run
    from fate.workflows.spread import beside

    near = None if predictions is not None or json_file in (None, "-") else beside(str(json_file))

    with args.progress_bar("evaluating") as progress:
        done = run(
            what, opened, rates or None, protocol=protocol, label_tolerance_us=label_tolerance, window_us=window,
            images=images, shard=shard, predictions_to=predictions, progress=progress, device=chosen,
            streams=streams, workers=workers, score=score, max_overlap=max_overlap, record=record, calibrate=calibrate,
            report=report, groups=groups, job_folder=near, precision=precision, backend=backend, say=note, **spread,
        )  # fmt: skip
    args.write_and_print(done.table(), json_file, lambda path: save_with_picture(done, path))
