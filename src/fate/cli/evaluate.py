"""``fate evaluate``; ``help.yaml`` explains it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from typer import Argument, Option

from fate.cli import arguments as args
from fate.cli.device import Device, pick_device
from fate.errors import FateWarning


def evaluate(
    what: str = Argument(
        ..., metavar="MODEL|PREDICTIONS", help=f"{args.MODEL_HELP.replace(' or', ',').rstrip('.')}, or predictions."
    ),
    dataset: str = Argument(..., metavar="DATASET", help=args.DATASET_HELP),
    hz: list[str] | None = Option(
        None,
        metavar="RATES",
        help="Rates in Hz; the default is 20 40 80 100 200, 20 for histograms of RVT, and for predictions the"
        " rates in their files.",
    ),
    window: args.Window = None,
    split: str | None = Option(
        None, help="Split of the dataset: train, val, test or all; the default is test if there is one, otherwise all."
    ),
    protocol: str | None = Option(
        None,
        help="Rules of the evaluation: gen1, 1mpx, sim, or custom (no limits on box size); the default is that of"
        " the dataset.",
    ),
    label_tolerance: Any = Option(
        None,
        metavar="TIME",
        parser=args.parse_duration,
        help="Labels further than this from the end of every window are not used; the default is 2ms.",
    ),
    score: Any = Option(
        "product",
        metavar="product|class",
        parser=args.choice("product", "class"),
        help="Score that ranks boxes: product (objectness times class), or class alone as in the public RVT code.",
    ),
    max_overlap: float | None = Option(
        None,
        min=0,
        max=1,
        help="IoU above which the weaker of two boxes of a class is dropped; by default 0.45 for YOLOX heads and"
        " none for DETR heads, as published (fate detect uses 0.45 for all).",
    ),
    device: Device = "auto",
    streams: int = Option(8, min=1, help="Recordings detected at the same time."),
    workers: args.Workers = 0,
    shard: args.Shard = "1/1",
    predictions: str | None = Option(
        None, metavar="FOLDER", help="Write the predictions to this folder, one file per rate."
    ),
    images: str | None = Option(
        None, metavar="FILE", help="COCO file with the images that a plain list of COCO results refers to."
    ),
    json_file: args.JsonAndPicture = None,
    kind: args.Kind = None,
) -> None:
    from fate.evaluation.protocols import named_protocol
    from fate.inference.loading import find_weights, means_a_model

    with args.bad_usage():
        rates = args.parse_rates(hz)
        if protocol is not None:
            named_protocol(protocol)
    args.check_outputs({"--json": json_file}, what, images, datasets=(dataset,))
    for file in Path(predictions).glob("*hz*.npz") if predictions is not None else ():
        args.refuse_file_of_dataset("--predictions", file, dataset, (".npz",))
    is_model = means_a_model(what)
    if is_model or not (Path(what).suffix or os.path.lexists(what)):
        find_weights(what)  # which lists the bundled names
    args.check_inputs(dataset, images, None if is_model else what)
    from fate.data.opening import as_dataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)  # the faults below include what is left out
        opened = as_dataset(dataset, split, kind=kind, usual="test").checked()
    for fault in opened.faults:
        args.printer(json_file)(f"dataset: {fault}")
    chosen = pick_device(device)

    from fate.view.evaluation_pictures import save_with_picture
    from fate.workflows.commands import evaluate as run

    with args.progress_bar("evaluating") as progress:
        done = run(
            what, opened, rates or None, protocol=protocol, label_tolerance_us=label_tolerance, window_us=window,
            images=images, shard=shard, predictions_to=predictions, progress=progress, device=chosen,
            streams=streams, workers=workers, score=score, max_overlap=max_overlap,
        )  # fmt: skip
    args.write_and_print(done.table(), json_file, lambda path: save_with_picture(done, path))
