"""``fate densify``: labels at every rate from sparse ones, and how good they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fate.data.dataset import Dataset
    from fate.densify.making import Densified

HELP = """Make labels at every time of several rates: the detector looks at dense times, its boxes are tracked, short
tracks go, gaps are filled, and the labels that are there stay as they are. Run it again to go on where it was stopped,
or with further rates; shards may run at once, on several machines.

With --check, compare labels with the exact boxes of a simulated set, and with naive interpolation: precision, recall
and overlap by class and rate; with --json a picture too. Of a recorded set, labels of windows next to an annotated time
are held against its boxes; fairest where they were made --without-truth.

Example:

  fate densify fate-s.safetensors gen1 --hz 40 80 100 200 --out gen1-dense --device cuda

  fate densify fate-s.safetensors gen1 --out gen1-dense --shard 1/4

  fate densify --check drives --labels drives-dense --json quality.json
"""


def densify(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A bundled name, or a .safetensors file.")
    ] = None,
    dataset: Annotated[str | None, typer.Argument(metavar="DATASET", help="Folder or YAML file of a dataset.")] = None,
    hz: Annotated[
        list[str] | None, typer.Option(metavar="RATES", help="40 80 100 200 unless given; checks take all there are.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the labels: new, or one to go on with.")
    ] = None,
    check: Annotated[
        str | None, typer.Option(metavar="TRUTH", help="Check labels against the boxes of this set.")
    ] = None,
    labels: Annotated[str | None, typer.Option(metavar="DIR", help="The labels to check.")] = None,
    split: Annotated[str | None, typer.Option(help="train, val, test or all; train where there is one.")] = None,
    shard: Annotated[str, typer.Option(metavar="I/N", help="Only every N-th recording, from the I-th on.")] = "1/1",
    track_score: Annotated[float, typer.Option(help="Detections of this score enter the tracker.")] = 0.3,
    sure: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=SCORE", help="Score that makes a label; car=0.6, pedestrian=0.3, others 0.5."),
    ] = None,
    without_truth: Annotated[
        bool, typer.Option("--without-truth", help="Do not let the sparse labels guide the tracks.")
    ] = False,
    as_detected: Annotated[
        bool,
        typer.Option("--as-detected", help="Keep boxes as they were detected: no smoothing along tracks, no bending."),
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    lanes: Annotated[int, typer.Option(help="Windows side by side, about.")] = 64,
    workers: Annotated[int, typer.Option(help="Processes that load.")] = 0,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Figures of a check; a picture is written beside it.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Of the dataset: gen1, 1mpx, sim or own.")] = None,
) -> None:
    from fate.cli.arguments import bad_usage, check_outputs
    from fate.errors import FateError

    if check is not None:
        with bad_usage():
            if model is not None or labels is None or out is not None:
                raise FateError("--check TRUTH goes with --labels DIR and without MODEL, DATASET and --out")
        check_outputs({"--json": json_file}, labels or "")
        _check(check, labels or "", hz, split, kind, json_file)
        return
    with bad_usage():
        if model is None or dataset is None or out is None:
            raise FateError("expected MODEL DATASET --out DIR, or --check TRUTH --labels DIR")
        if labels is not None or json_file is not None:
            raise FateError("--labels and --json go with --check; labels are made in --out")
        if lanes < 1 or workers < 0 or device not in ("cpu", "cuda"):
            raise FateError(
                f"--lanes {lanes}, --workers {workers} and --device {device} were given; expected 1 or more, 0 or more,"
                " and cpu or cuda"
            )
    tracking = (track_score, sure, not without_truth, as_detected)
    _make(model or "", dataset or "", out or "", hz, split, kind, shard, tracking, device, lanes, workers)


def _make(
    model: str, dataset: str, out: str, hz: list[str] | None, split: str | None, kind: str | None, shard: str,
    tracking: tuple[float, list[str] | None, bool, bool], device: str, lanes: int, workers: int,
) -> None:  # fmt: skip
    from dataclasses import replace

    from fate.cli.arguments import bad_usage, progress_bar
    from fate.cli.rates import parse_rates
    from fate.densify.tracklets import THRESHOLDS, TrackletOptions
    from fate.errors import FateError

    score, sure, with_truth, as_detected = tracking
    with bad_usage():
        part = _shard(shard)
        rates = parse_rates(hz, (40, 80, 100, 200))
        chosen = TrackletOptions(score, {**THRESHOLDS, **_thresholds(sure)}, with_truth=with_truth)
        options = replace(chosen, smooth_us=0, bend=False) if as_detected else chosen

    from fate.densify.making import densify as run
    from fate.runtime.adapting import fit_dataset
    from fate.runtime.loading import load_trained

    opened = _opened(dataset, split, kind)
    with bad_usage():
        unknown = [name for name in _thresholds(sure) if name not in opened.classes]
        if unknown:
            raise FateError(f"--sure {unknown[0]}=…: {dataset} has {', '.join(opened.classes)}; expected one of these")
    detector, note = fit_dataset(load_trained(model), opened.sensor, opened.name)
    if note:
        print(f"note: {note}", flush=True)
    with progress_bar("densifying") as update:
        done = run(
            detector, opened, out, rates, options=options, shard=part, device=device, lanes=lanes, workers=workers,
            progress=None if update is None else lambda share: update(share, 1.0),
        )  # fmt: skip
    print(_summary(out, done))


def _check(
    truth: str, labels: str, hz: list[str] | None, split: str | None, kind: str | None, json_file: str | None
) -> None:
    from fate.cli.arguments import bad_usage, progress_bar
    from fate.cli.rates import parse_rates
    from fate.densify.checking import check_labels

    with bad_usage():
        rates = parse_rates(hz, ())
    with progress_bar("checking") as update:
        told = None if update is None else lambda share: update(share, 1.0)
        done = check_labels(labels, _opened(truth, split, kind), rates or None, progress=told)
    print(done.table())
    if json_file:
        done.save(json_file)


def _opened(path: str, split: str | None, kind: str | None) -> Dataset:
    """The part that training draws on, unless another was asked for."""
    from fate.data.dataset import as_dataset

    return as_dataset(path, split, kind=kind, usual="train")


def _summary(out: str, done: Densified) -> str:
    lines = [f"{out}: {done.recordings} recordings, {done.skipped} of them done before, {done.windows} windows seen"]
    lines += [
        f"{hz:g} Hz: {counts['times']} times, {counts['ground_truth']} boxes of the truth, {counts['tracked']} tracked,"
        f" {counts['interpolated']} interpolated"
        for hz, counts in sorted(done.boxes.items())
    ]
    return "\n".join(lines)


def _shard(text: str) -> tuple[int, int]:
    from fate.errors import FateError

    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or not 1 <= int(parts[0]) <= int(parts[1]):
        raise FateError(f"--shard {text} was given; expected I/N with I from 1 to N, such as 1/4")
    return int(parts[0]), int(parts[1])


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
            raise FateError(f"--sure {text} was given; expected CLASS=SCORE, such as car=0.6")
    return found
