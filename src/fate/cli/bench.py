"""``fate bench``: measurements, each compared with peers in the same run; ``help.yaml`` explains them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from fate.cli import arguments as args
from fate.cli.device import Device, pick_device
from fate.cli.terminal import note
from fate.errors import FateError
from fate.text import suggest_name

if TYPE_CHECKING:
    from fate.bench.harness import BenchResult

#: Encoders that ``fate bench encode`` compares with ours; repeated here because torch takes seconds to load.
ENCODER_PEERS = ("dense", "dense-compiled", "histogram", "evrt-histogram")
#: Seconds of the simulated drive by camera.
DRIVE_S = {"gen1": 1.6, "1mpx": 0.4}


def names(text: str, parse: Callable[[str], str] = str) -> list[str]:
    """Return the names of a comma-separated list, each parsed by ``parse``."""
    return [parse(name.strip()) for name in text.split(",") if name.strip()]


def numbers(least: float, kind: Callable[[float], float] = float) -> Callable[[str], list[Any]]:
    """Return a parser of comma-separated numbers, each at least ``least``; with ``kind=int``, of whole numbers."""

    def parse(text: str) -> list[Any]:
        try:
            values = [float(part) for part in text.split(",")]
        except ValueError:
            values = []
        if not values or not all(least <= value < 1e6 and value == kind(value) for value in values):
            what = "whole numbers" if kind is int else "numbers"
            raise FateError(f"{text!r} was given; expected {what} of at least {least:g}, comma-separated")
        return [kind(value) for value in values]

    return parse


def complete_names(incomplete: str) -> list[str]:
    """Return the names of all detectors that begin like this, for shell completion."""
    from fate.models.table import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


Models = Annotated[list[str] | None, Argument(autocompletion=complete_names)]
Profile = Annotated[str, Option(parser=args.choice(*DRIVE_S))]
Rates = Annotated[Any, Option(parser=numbers(1))]
Seconds = Annotated[float, Option(min=0.1, max=3600)]
Seed = Annotated[int, Option(min=0)]


def decode(
    files: list[str] | None = Argument(None),
    against: Any = Option("evt3,faery,expelliarmus,searchsorted,searchsorted-typed", parser=names),
    events: int = Option(20_000_000, min=1),
    repeats: int = Option(3, min=1),
    json_file: str | None = None,
) -> None:
    args.check_inputs(*(files or ()))
    args.check_outputs({"--json": json_file}, *(files or ()))

    from fate.bench.decode import bench_decode

    result = bench_decode(files or (), against=against, num_events=events, repeats=repeats, progress=note)
    _print(result, json_file)


def simulate(
    recordings: int = 4,
    seconds: float = 5.0,
    profile: str = "gen1",
    device: Device = "auto",
    threads: int | None = Option(None, min=1),
) -> None:
    from fate.simulation.writing.request import Request

    with args.bad_usage():  # before torch is loaded, which takes seconds
        Request(profile, 0, seconds, recordings)
    chosen = pick_device(device)

    from fate.workflows.bench_simulate import bench_simulate

    with args.progress_bar("simulating") as update:
        result = bench_simulate(recordings, seconds, profile, chosen, threads, update)
    _print(result, None)


def encode(
    file: str | None = Argument(None),
    device: Device = "auto",
    profile: Profile = "gen1",
    windows: Any = Option("5,10,25,50", parser=numbers(0.001)),
    batches: Any = Option("1,32", parser=numbers(1, int)),
    against: Any = Option(",".join(ENCODER_PEERS), parser=lambda text: names(text, args.choice(*ENCODER_PEERS))),
    seed: Seed = 2,
    json_file: str | None = None,
) -> None:
    if file is None and max(windows) > 1000 * DRIVE_S[profile]:
        raise typer.BadParameter(
            f"--windows {max(windows):g} was given; the simulated drive lasts {1000 * DRIVE_S[profile]:g} ms"
        )
    args.check_outputs({"--json": json_file}, file)
    args.check_inputs(file)
    chosen = pick_device(device)

    from fate.bench.encode import bench_encode
    from fate.formats.opening import open_recording
    from fate.workflows.bench_simulate import drive_events

    if file is None:
        note(f"simulating a {profile} drive")
        events = drive_events(profile, DRIVE_S[profile], seed)
    else:
        with open_recording(file) as recording:
            events = recording.read(recording.start_us, recording.start_us + 1_600_000)
    result = bench_encode(events, chosen, windows, batches, ["pillars", *against], note)
    _print(result, json_file)


def data(
    dataset: str | None = Argument(None),
    hz: Rates = "20,200",
    workers: Any = Option("0,1,2", parser=numbers(0, int)),
    seconds: Seconds = 5.0,
    json_file: str | None = None,
) -> None:
    args.check_outputs({"--json": json_file}, datasets=(dataset,))
    args.check_inputs(dataset)

    from fate.bench.data_loading import bench_data
    from fate.data.opening import open_dataset
    from fate.workflows.simulate import simulate as simulate_drives

    with tempfile.TemporaryDirectory() as folder:
        if dataset is None:
            note("simulating drives")
            dataset = f"{folder}/drives"
            simulate_drives(dataset, recordings=3, seconds=4.0, preview=False)
        result = bench_data(open_dataset(dataset), folder, hz, workers, seconds, note)
    _print(result, json_file)


def detect(
    models: Models = None,
    device: Device = "auto",
    profile: Profile = "gen1",
    hz: Rates = "20,200",
    run: Any = Option("eager,streaming", parser=names),
    precision: str | None = None,
    seed: Seed = 2,
    json_file: str | None = None,
) -> None:
    _check_models(models)
    args.check_outputs({"--json": json_file})
    chosen = pick_device(device)

    from fate.bench.detect import DEFAULT_MODELS, bench_detect, check_request
    from fate.workflows.bench_simulate import drive_events

    with args.bad_usage():
        check_request(models or DEFAULT_MODELS, chosen, run, precision)
    note(f"simulating a {profile} drive")
    events = drive_events(profile, DRIVE_S[profile], seed)
    result = bench_detect(events, models or DEFAULT_MODELS, chosen, hz, run, precision, note)
    _print(result, json_file)


def train(
    dataset: str,
    models: Models = None,
    clips: Any = Option("10,21", parser=numbers(1, int)),
    batch: int = Option(16, min=2),
    device: Device = "auto",
    precision: str = Option("auto", parser=args.choice("auto", "float32", "bf16")),
    compiled: bool = False,
    plain: bool = False,
    workers: int = 4,
    augmentation: str = "rvt",
    strategy: str = "supervised",
    seconds: Seconds = 10.0,
    json_file: str | None = None,
) -> None:
    if strategy == "fat":
        raise typer.BadParameter("--strategy fat was given; expected a strategy that needs no dense labels")
    _check_models(models)
    args.check_inputs(dataset)
    args.check_outputs({"--json": json_file}, datasets=(dataset,))
    chosen = pick_device(device)

    from fate.bench.train import bench_train

    result = bench_train(
        dataset, models or ("fate-s-nano", "fate-s-tiny"), clips, batch, device=chosen, precision=precision,
        compiled=compiled, plain=plain, workers=workers, augmentation=augmentation, strategy=strategy,
        seconds=seconds, progress=note,
    )  # fmt: skip
    _print(result, json_file)


def _check_models(models: list[str] | None) -> None:
    """Refuse an unknown name of a detector, without loading torch."""
    from fate.models.table import NAMES

    for name in models or ():
        if name not in NAMES:
            raise typer.BadParameter(
                f"model {name!r} was given; there are {', '.join(NAMES)}{suggest_name(name, NAMES)}"
            )


def _print(result: BenchResult, json_file: str | None) -> None:
    """Write all numbers to the file of ``--json``, if it is given, and print the table."""
    args.write_and_print(result.table(), json_file, lambda file: args.write_json(file, result.to_dict()))
