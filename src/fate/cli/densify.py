"""``fate densify``; ``help.yaml`` explains it."""

from __future__ import annotations

import os
from dataclasses import replace

from typer import Argument, BadParameter, Option

from fate.cli import arguments as args
from fate.cli.device import Device, pick_device
from fate.rates import PAPER_RATES
from fate.text import plural


def densify(
    model: str | None = Argument(None, autocompletion=args.complete_bundled),
    dataset: str | None = Argument(None),
    hz: list[str] | None = None,
    out: str | None = None,
    check: str | None = None,
    labels: str | None = None,
    sample: int | None = Option(None, min=1),
    split: str | None = None,
    shard: args.Shard = "1/1",
    track_score: float = 0.3,
    output_threshold: list[str] | None = None,
    without_truth: bool = False,
    as_detected: bool = False,
    as_paper: bool = False,
    device: Device = "auto",
    devices: args.Devices = None,
    slurm: args.Slurm = None,
    batch: int = Option(64, min=1),
    workers: args.Workers = 0,
    json_file: str | None = None,
    kind: str | None = None,
    sensor: args.Sensor = None,
) -> None:
    spread = args.spread_options(devices, slurm, device, shard)
    if check is not None:
        if model is not None or labels is None or out is not None or devices is not None:
            raise BadParameter("--check TRUTH goes with --labels DIR and without MODEL, DATASET, --out and --devices")
        _check(check, labels, hz, split, kind, sample, json_file)
        return
    if model is None or dataset is None or out is None:
        raise BadParameter("expected MODEL DATASET --out DIR, or --check TRUTH --labels DIR")
    if labels is not None or json_file is not None or sample is not None:
        raise BadParameter("--labels, --sample and --json go with --check; labels are made in --out")

    if as_paper and (without_truth or as_detected or track_score != 0.3):
        raise BadParameter("--as-paper cannot be combined with --without-truth, --as-detected and --track-score")

    from fate.densify.tracklets import THRESHOLDS, TrackletOptions, paper_options

    with args.bad_usage():
        rates = args.parse_rates(hz, PAPER_RATES[1:])
        thresholds = args.parse_pairs("--output-threshold", output_threshold, "CLASS=SCORE, such as car=0.6", float)
        options = TrackletOptions(track_score, {**THRESHOLDS, **thresholds}, with_truth=not without_truth)
        if as_detected:
            options = replace(options, smooth_us=0, bend=False)
        if as_paper:
            options = paper_options({**THRESHOLDS, **thresholds})

    from fate.data.opening import as_dataset
    from fate.inference.loading import as_detector, find_weights

    find_weights(model)
    args.check_inputs(dataset)
    opened = as_dataset(dataset, split, kind=kind, usual="train", sensor=sensor)
    chosen = pick_device(device) if devices is None else device

    from fate.workflows.commands import densify as run

    detector = as_detector(model)
    unknown = [name for name in thresholds if name not in detector.classes]
    if unknown:
        raise BadParameter(
            f"--output-threshold {unknown[0]}=…: {model} has {', '.join(detector.classes)}; expected one of these"
        )
    with args.progress_bar("densifying") as update:
        done = run(
            detector if devices is None else model, opened, out, rates, options=options, shard=shard, device=chosen,
            batch_size=batch, workers=workers, progress=update, **spread,
        )  # fmt: skip
    print(
        f"{out}: {plural(done.recordings, 'recording')}, {done.skipped} of them done before,"
        f" {plural(done.windows, 'window')} detected"
    )
    for rate, counts in sorted(done.boxes.items()):
        made = f"{counts['tracked']} tracked, {counts['interpolated']} interpolated"
        truth = plural(counts["ground_truth"], "box", "boxes")
        print(f"{rate:g} Hz: {plural(counts['times'], 'time')}, {truth} of the truth, {made}")


def _check(
    truth: str, labels: str, hz: list[str] | None, split: str | None, kind: str | None, sample: int | None,
    json_file: str | None,
) -> None:  # fmt: skip
    read = [os.path.join(labels, part) for part in ("manifest.json", "labels", "predictions")]
    args.check_outputs({"--json": json_file}, *read, datasets=(truth,))
    with args.bad_usage():
        rates = args.parse_rates(hz)
    args.check_inputs(truth, labels)

    from fate.workflows.check_labels import check_labels

    with args.progress_bar("checking") as update:
        done = check_labels(labels, truth, rates or None, split=split, kind=kind, sample=sample, progress=update)
    args.write_and_print(done.table(), json_file, done.save)
