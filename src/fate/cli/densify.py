"""``fate densify``: labels at every rate from sparse ones, and how good they are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from fate.cli import arguments as args
from fate.cli.device import Device, check_device, pick_device
from fate.rates import PAPER_RATES
from fate.text import plural

if TYPE_CHECKING:
    from fate.data.dataset import Dataset
    from fate.densify.making import Densified

SHORT_HELP = "Make labels at high rates from sparse labels."
HELP = """Make labels at every time of several rates: the detector runs at these times, its boxes are tracked, short
tracks are removed, gaps are filled, and existing labels are kept. Run the command again to continue where it was
stopped, or to add rates. Shards can run at the same time on several machines.

With --check, compare labels with the exact boxes of a simulated dataset and with plain interpolation: precision,
recall and overlap by class and rate; --json also writes a picture. For a recorded dataset, labels near an annotated
time are compared with its boxes; make them --without-truth for a fair comparison.

Example:

  fate densify fate-s.safetensors gen1 --hz 40 80 100 200 --out gen1-dense --device cuda

  fate densify fate-s.safetensors gen1 --out gen1-dense --shard 1/4

  fate densify --check drives --labels drives-dense --json quality.json
"""

Rates = Annotated[
    list[str] | None,
    typer.Option(
        "--hz",
        metavar="RATES",
        help="Rates of the labels in Hz; the default is 40 80 100 200, and for --check all rates of the labels.",
    ),
]
OutputThreshold = Annotated[
    list[str] | None,
    typer.Option(
        "--output-threshold",
        metavar="CLASS=SCORE",
        help="Lowest score of a label of this class; the default is car=0.6, pedestrian=0.3, others 0.5.",
    ),
]


def densify(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A bundled name (see fate models) or a .safetensors file.",
            autocompletion=args.complete_bundled,
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Argument(metavar="DATASET", help="Folder or YAML file of a dataset.")] = None,
    hz: Rates = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder for the labels; labels that are already there are continued."),
    ] = None,
    check: Annotated[
        str | None, typer.Option(metavar="TRUTH", help="Compare labels with the boxes of this dataset.")
    ] = None,
    labels: Annotated[str | None, typer.Option(metavar="DIR", help="Folder of the labels to check.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Split of the dataset: train, val, test or all; the default is train if there is one."),
    ] = None,
    shard: args.Shard = "1/1",
    track_score: Annotated[float, typer.Option(help="Lowest score of a detection that the tracker uses.")] = 0.3,
    output_threshold: OutputThreshold = None,
    without_truth: Annotated[
        bool, typer.Option("--without-truth", help="Do not use the existing labels to guide the tracks.")
    ] = False,
    as_detected: Annotated[
        bool,
        typer.Option(
            "--as-detected",
            help="Keep boxes as they were detected: no smoothing along tracks, no correction towards existing labels.",
        ),
    ] = False,
    device: Device = "auto",
    batch: Annotated[int, typer.Option(help="About how many windows are detected at the same time.")] = 64,
    workers: args.Workers = 0,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the result of --check as JSON, with a picture next to it; - is standard output.",
        ),
    ] = None,
    kind: args.Kind = None,
    sensor: args.Sensor = None,
) -> None:
    from fate.errors import FateError

    if check is not None:
        with args.bad_usage():
            if model is not None or labels is None or out is not None:
                raise FateError("--check TRUTH goes with --labels DIR and without MODEL, DATASET and --out")
        read = [os.path.join(labels or "", part) for part in ("manifest.json", "labels", "predictions")]
        args.check_outputs({"--json": json_file}, *read, datasets=(check,))
        _check(check, labels or "", hz, split, kind, json_file)
        return
    with args.bad_usage():
        if model is None or dataset is None or out is None:
            raise FateError("expected MODEL DATASET --out DIR, or --check TRUTH --labels DIR")
        if labels is not None or json_file is not None:
            raise FateError("--labels and --json go with --check; labels are made in --out")
        args.check_count("--batch", batch, 1)
        args.check_count("--workers", workers, 0)
        check_device(device)
    tracking = (track_score, output_threshold, not without_truth, as_detected)
    size = None if sensor is None else args.parse_sensor(sensor)
    _make(model or "", dataset or "", out or "", hz, split, kind, size, shard, tracking, device, batch, workers)


def _make(
    model: str, dataset: str, out: str, hz: list[str] | None, split: str | None, kind: str | None,
    size: tuple[int, int] | None, shard: str, tracking: tuple[float, list[str] | None, bool, bool], device: str,
    batch: int, workers: int,
) -> None:  # fmt: skip
    from dataclasses import replace

    from fate.cli.rates import parse_rates
    from fate.densify.tracklets import THRESHOLDS, TrackletOptions
    from fate.errors import FateError

    score, output_threshold, with_truth, as_detected = tracking
    with args.bad_usage():
        part = args.parse_shard(shard)
        rates = parse_rates(hz, PAPER_RATES[1:])
        usual = TrackletOptions(score, {**THRESHOLDS, **_thresholds(output_threshold)}, with_truth=with_truth)
        options = replace(usual, smooth_us=0, bend=False) if as_detected else usual

    from fate.inference.loading import find_weights, load_trained

    find_weights(model)
    opened = _opened(dataset, split, kind, size)
    chosen = pick_device(device)

    from fate.densify.making import densify as run
    from fate.densify.making import with_classes
    from fate.inference.adapting import fit_dataset

    trained = load_trained(model)
    opened = with_classes(opened, trained.classes)
    with args.bad_usage():
        unknown = [name for name in _thresholds(output_threshold) if name not in opened.classes]
        if unknown:
            raise FateError(
                f"--output-threshold {unknown[0]}=…: {dataset} has {', '.join(opened.classes)}; expected one of these"
            )
    detector, note = fit_dataset(trained, opened.sensor, opened.name)
    if note:
        print(f"note: {note}", flush=True)
    with args.progress_bar("densifying") as update:
        done = run(
            detector, opened, out, rates, options=options, shard=part, device=chosen, batch_size=batch, workers=workers,
            progress=update,
        )  # fmt: skip
    print(_summary(out, done))


def _check(
    truth: str, labels: str, hz: list[str] | None, split: str | None, kind: str | None, json_file: str | None
) -> None:
    from fate.cli.rates import parse_rates

    with args.bad_usage():
        rates = parse_rates(hz, ())
    args.check_inputs(truth, labels)

    from fate.workflows.check_labels import check_labels

    with args.progress_bar("checking") as update:
        done = check_labels(labels, _opened(truth, split, kind), rates or None, progress=update)
    args.write_and_print(done.table(), json_file, done.save)


def _opened(path: str, split: str | None, kind: str | None, sensor: tuple[int, int] | None = None) -> Dataset:
    """The part that training draws on, unless another was asked for."""
    from fate.data.dataset import as_dataset

    args.check_inputs(path)
    return as_dataset(path, split, kind=kind, usual="train", sensor=sensor)


def _summary(out: str, done: Densified) -> str:
    done_before = f"{done.skipped} of them done before, {plural(done.windows, 'window')} detected"
    lines = [f"{out}: {plural(done.recordings, 'recording')}, {done_before}"]
    lines += [
        f"{hz:g} Hz: {plural(counts['times'], 'time')}, {plural(counts['ground_truth'], 'box', 'boxes')} of the truth,"
        f" {counts['tracked']} tracked,"
        f" {counts['interpolated']} interpolated"
        for hz, counts in sorted(done.boxes.items())
    ]
    return "\n".join(lines)


def _thresholds(given: list[str] | None) -> dict[str, float]:
    from fate.errors import FateError

    found = {}
    for text in given or ():
        name, _, value = text.rpartition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            name = ""
        if not name.strip():
            raise FateError(f"--output-threshold {text} was given; expected CLASS=SCORE, such as car=0.6")
    return found
