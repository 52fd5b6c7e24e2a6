"""``fate evaluate``: how good a detector is, at every rate."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Annotated

import typer

HELP = """How good a detector is on a dataset at several rates: AP under a printed protocol, the share of it that is
left as windows get shorter, false positives, time a window takes, and on simulated data the time to detection.

MODEL is a bundled name (fate models) or a checkpoint (.safetensors). PREDICTIONS are those of any detector: a file or
folder in FATE's npz, COCO's JSON or Prophesee's box files.

Example:

  fate evaluate fate-s-nano drives --hz 20 200

  fate evaluate fate-s.safetensors drives --hz 20 40 80 100 200 --json result.json

  fate evaluate trained-at-20hz.safetensors drives --hz 200 --window 50ms

  fate evaluate their_boxes.json gen1 --split test --hz 20

  fate evaluate fate-s.safetensors gen1 --shard 1/4 --predictions boxes   (of four, then: fate evaluate boxes gen1)
"""


def evaluate(
    what: Annotated[
        str, typer.Argument(metavar="MODEL|PREDICTIONS", help="A bundled name, a checkpoint, or predictions.")
    ],
    dataset: Annotated[str, typer.Argument(help="Folder or YAML file of a dataset.")],
    hz: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RATES",
            help="20 40 80 100 200 unless given; of RVT's histograms 20; of predictions those that they name.",
        ),
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="Of events, such as 50ms; 1 / Hz unless given. Longer ones overlap.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="train, val or test; test where there is one, else all.")] = None,
    protocol: Annotated[str | None, typer.Option(help="gen1, 1mpx or sim; the dataset's own unless given.")] = None,
    score: Annotated[
        str,
        typer.Option(help="What ranks boxes: product (objectness · class), or class alone, as public RVT code does."),
    ] = "product",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    streams: Annotated[int, typer.Option(help="Recordings side by side.")] = 8,
    workers: Annotated[int, typer.Option(help="Processes that load.")] = 0,
    shard: Annotated[str, typer.Option(metavar="I/N", help="Only every N-th recording, from the I-th on.")] = "1/1",
    predictions: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Keep the predictions, one file a rate.")
    ] = None,
    images: Annotated[
        str | None, typer.Option(metavar="FILE", help="For a plain list of COCO results: the COCO file of its images.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="All figures; a picture of them is written beside it.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Of the dataset: gen1, 1mpx, sim, rvt or own.")] = None,
) -> None:
    from fate.cli.arguments import bad_usage, check_outputs, parse_duration, progress_bar
    from fate.cli.rates import parse_rates
    from fate.errors import FateError, FateWarning

    with bad_usage():
        part = _shard(shard)
        span = None if window is None else parse_duration(window, "--window")
        rates = parse_rates(hz, ())
        if streams < 1 or workers < 0:
            raise FateError(
                f"--streams {streams} and --workers {workers} were given; expected 1 or more, and 0 or more"
            )
        if device not in ("cpu", "cuda"):
            raise FateError(f"--device {device} was given; expected cpu or cuda")
        if score not in ("product", "class"):
            raise FateError(f"--score {score} was given; expected product or class")
    check_outputs({"--json": json_file}, what)

    from fate.data.dataset import as_dataset
    from fate.evaluation.evaluate import evaluate as run
    from fate.evaluation.protocols import named_protocol
    from fate.runtime.adapting import fit_dataset
    from fate.runtime.loading import load_trained, means_a_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)  # of what is left out, which is named below with all other faults
        opened = as_dataset(dataset, split, kind=kind, usual="test").checked()
    for fault in opened.faults:
        print(f"dataset: {fault}", flush=True)
    rules = None if protocol is None else named_protocol(protocol, opened.sensor)
    model, note = fit_dataset(load_trained(what), opened.sensor, opened.name) if means_a_model(what) else (what, "")
    with progress_bar("evaluating") as update:
        done = run(
            model, opened, rates or None, protocol=rules, window_us=span, images=images, shard=part,
            predictions_to=predictions, progress=None if update is None else lambda share: update(share, 1.0),
            device=device, lanes=streams, workers=workers, score=score,
        )  # fmt: skip
    done = replace(done, notes=(note, *done.notes)) if note else done
    print(done.table())
    if json_file:
        done.save(json_file)


def _shard(text: str) -> tuple[int, int]:
    from fate.errors import FateError

    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or not 1 <= int(parts[0]) <= int(parts[1]):
        raise FateError(f"--shard {text} was given; expected I/N, such as 1/4")
    return int(parts[0]), int(parts[1])
