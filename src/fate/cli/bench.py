"""``fate bench``: measurements, each compared with peers in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fate.cli import arguments as args
from fate.cli.command import Command, help_text, with_verbosity
from fate.cli.device import Device, check_device, pick_device
from fate.errors import FateError

if TYPE_CHECKING:
    from fate.bench.harness import BenchResult

SHORT_HELP = "Measure speed and memory, compared with other programs."
app = typer.Typer(
    help=help_text("""Measure speed and memory, and compare with other programs in the same run.

Example:

  fate bench detect fate-s-nano --hz 20,200
"""),
    no_args_is_help=True,
)

#: Encoders that ``fate bench encode`` compares with ours; repeated here because torch takes seconds to load.
ENCODER_PEERS = ("dense", "dense-compiled", "histogram", "evrt-histogram")
#: Seconds of the simulated drive by camera.
DRIVE_S = {"gen1": 1.6, "1mpx": 0.4}

Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="MODEL", help="Names of detectors; see fate models.", autocompletion=args.complete_names),
]
Profile = Annotated[str, typer.Option(help="Camera of the simulated drive: gen1 or 1mpx.")]
Rates = Annotated[str, typer.Option(help="Rates in Hz, comma-separated.")]
Seconds = Annotated[float, typer.Option(help="Length of each measurement in seconds.")]
Seed = Annotated[int, typer.Option(help="Seed of the simulated drive.")]


@app.callback()
def _group() -> None:
    pass


DECODE_HELP = """Measure how fast recordings are read: as a whole, in consecutive windows of 5 and 50 ms, and at random
times. Without FILE, recordings are generated. Other decoders are measured if they are installed.

Example:

  fate bench decode drive.raw night.dat --against evt3,faery

  fate bench decode --events 20000000 --json decode.json
"""


@app.command("decode", help=help_text(DECODE_HELP), short_help="Measure how fast recordings are read.", cls=Command)
@with_verbosity
def decode(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Recordings to measure; without any, recordings are generated."),
    ] = None,
    against: Annotated[
        str, typer.Option(help="Other decoders to measure if they are installed, comma-separated; empty for none.")
    ] = "evt3,faery,expelliarmus,searchsorted,searchsorted-typed",
    events: Annotated[int, typer.Option(help="Number of events in each generated recording.")] = 20_000_000,
    repeats: Annotated[int, typer.Option(help="How often each whole file is read; the median is reported.")] = 3,
    json_file: args.JsonFile = None,
) -> None:
    with args.bad_usage():
        args.check_count("--events", events, 1)
        args.check_count("--repeats", repeats, 1)
    args.check_inputs(*(files or ()))
    args.check_outputs({"--json": json_file}, *(files or ()))

    from fate.bench.decode import bench_decode

    with args.status("starting") as show:
        peers = _names(against)
        result = bench_decode(files or (), against=peers, num_events=events, repeats=repeats, progress=show)
    _print(result, json_file)


SIMULATE_HELP = """Measure how many seconds of recording the simulator makes per second, including the boxes at
200 Hz but without writing files, and how fast the pixel model alone is on frames in memory. The pixel model of eventcv
is measured too if it is installed.

Example:

  fate bench simulate

  fate bench simulate --device cuda --recordings 240 --seconds 20
"""


@app.command("simulate", help=help_text(SIMULATE_HELP), short_help="Measure how fast the simulator is.", cls=Command)
@with_verbosity
def simulate(
    recordings: Annotated[int, typer.Option(help="Number of recordings.")] = 4,
    seconds: Annotated[float, typer.Option(help="Length of each recording in seconds.")] = 5.0,
    profile: Annotated[str, typer.Option(help="Camera: gen1 (304×240) or 1mpx (1280×720).")] = "gen1",
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option(help="Number of CPU threads or processes; the default is all processors.")
    ] = None,
) -> None:
    from fate.simulation.writing.request import Request, check_number

    with args.bad_usage():  # before torch is loaded, which takes seconds
        Request(profile, 0, seconds, recordings)
        check_device(device)
        if threads is not None:
            check_number("the number of threads", threads, 1)
    chosen = pick_device(device)

    from fate.bench.simulate import bench_simulate

    with args.progress_bar("simulating") as update:
        result = bench_simulate(recordings, seconds, profile, chosen, threads, update)
    _print(result, None)


ENCODE_HELP = """Measure time and memory of Pillar Encoding, from events to image, and compare it with the dense
tensor of the paper (plain and compiled) and the histograms of RVT and EvRT-DETR. The windows come from FILE or from a
simulated drive.

Example:

  fate bench encode --profile gen1

  fate bench encode drive.raw --device cuda --windows 5,50 --json encode.json
"""


@app.command("encode", help=help_text(ENCODE_HELP), short_help="Measure how fast events become an image.", cls=Command)
@with_verbosity
def encode(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="Recording whose first 1.6 seconds are used; without one, a drive is simulated."
        ),
    ] = None,
    device: Device = "auto",
    profile: Profile = "gen1",
    windows: Annotated[str, typer.Option(help="Window lengths in ms, comma-separated.")] = "5,10,25,50",
    batches: Annotated[str, typer.Option(help="Numbers of windows per call, comma-separated.")] = "1,32",
    against: Annotated[
        str, typer.Option(help="Other encoders to measure, comma-separated; empty for none.")
    ] = ",".join(ENCODER_PEERS),
    seed: Seed = 2,
    json_file: args.JsonFile = None,
) -> None:
    with args.bad_usage():
        check_device(device)
        lengths, sizes = _numbers("--windows", windows, least=0.001), _whole_numbers("--batches", batches, least=1)
        _check_drive(profile, seed)
        if file is None and max(lengths) > 1000 * DRIVE_S[profile]:
            raise FateError(
                f"--windows {windows!r} was given; the simulated drive lasts {1000 * DRIVE_S[profile]:g} ms"
            )
        unknown = [name for name in _names(against) if name not in ENCODER_PEERS]
        if unknown:
            raise FateError(f"--against {unknown[0]!r} was given; choose among {', '.join(ENCODER_PEERS)}")
    args.check_outputs({"--json": json_file}, file)
    args.check_inputs(file)
    chosen = pick_device(device)

    from fate.bench.encode import bench_encode
    from fate.bench.simulate import drive_events
    from fate.formats.opening import open_recording

    with args.status("starting") as show:
        if file is None:
            show(f"simulating a {profile} drive")
            events = drive_events(profile, DRIVE_S[profile], seed)
        else:
            with open_recording(file) as recording:
                events = recording.read(recording.start_us, recording.start_us + 1_600_000)
        result = bench_encode(events, chosen, lengths, sizes, ["pillars", *_names(against)], show)
    _print(result, json_file)


DATA_HELP = """Measure how fast windows of events are loaded from disk, by rate and number of loading processes, and
compare with blosc-compressed histograms of the same recordings in the layout of RVT. Without DATASET, a few drives are
simulated first.

Example:

  fate bench data drives --hz 20,200 --workers 0,2

  fate bench data --json data.json
"""


@app.command(
    "data", help=help_text(DATA_HELP), short_help="Measure how fast windows are loaded from disk.", cls=Command
)
@with_verbosity
def data(
    dataset: Annotated[str | None, typer.Argument(metavar="DATASET", help="Folder or YAML file of a dataset.")] = None,
    hz: Rates = "20,200",
    workers: Annotated[str, typer.Option(help="Numbers of loading processes, comma-separated.")] = "0,1,2",
    seconds: Seconds = 5.0,
    json_file: args.JsonFile = None,
) -> None:
    with args.bad_usage():
        rates, counts = _numbers("--hz", hz, least=1), _whole_numbers("--workers", workers, least=0)
        if not 0.1 <= seconds <= 3600:
            raise FateError(f"--seconds {seconds:g} was given; expected 0.1 to 3600")
    args.check_outputs({"--json": json_file}, datasets=(dataset,))
    args.check_inputs(dataset)

    import tempfile

    from fate.bench.data_loading import bench_data
    from fate.data.dataset import open_dataset
    from fate.simulation.writing.dataset import simulate as simulate_drives

    with tempfile.TemporaryDirectory() as folder, args.status("starting") as show:
        if dataset is None:
            show("simulating drives")
            dataset = f"{folder}/drives"
            simulate_drives(dataset, recordings=3, seconds=4.0, preview=False)
        result = bench_data(open_dataset(dataset), folder, rates, counts, seconds, show)
    _print(result, json_file)


DETECT_HELP = """Measure how long detectors take from events to boxes, window by window and stage by stage: decoding
the file, encoding, the model, and post-processing. The weights are fresh, since they do not change the time.

Example:

  fate bench detect fate-s-nano fate-s-tiny --hz 20,200

  fate bench detect fate-s s5-vit-b --device cuda --run eager,streaming,compiled
"""


@app.command(
    "detect", help=help_text(DETECT_HELP), short_help="Measure the latency of detectors, stage by stage.", cls=Command
)
@with_verbosity
def detect(
    models: Models = None,
    device: Device = "auto",
    profile: Profile = "gen1",
    hz: Rates = "20,200",
    run: Annotated[
        str, typer.Option(help="Ways to run, comma-separated: eager, streaming, compiled (GPU only).")
    ] = "eager,streaming",
    precision: Annotated[
        str | None, typer.Option(help="Precision of the streaming step: float32, tf32 or bfloat16.")
    ] = None,
    seed: Seed = 2,
    json_file: args.JsonFile = None,
) -> None:
    with args.bad_usage():
        check_device(device)
        rates = _numbers("--hz", hz, least=1)
        _check_drive(profile, seed)
        for name in models or ():
            args.check_name(name)
    args.check_outputs({"--json": json_file})
    chosen = pick_device(device)

    from fate.bench.detect import DEFAULT_MODELS, bench_detect, check_request
    from fate.bench.simulate import drive_events

    names, ways = models or DEFAULT_MODELS, _names(run)
    with args.bad_usage():
        check_request(names, chosen, ways, precision)
    with args.status(f"simulating a {profile} drive") as show:
        events = drive_events(profile, DRIVE_S[profile], seed)
        result = bench_detect(events, names, chosen, rates, ways, precision, show)
    _print(result, json_file)


TRAIN_HELP = """Measure how fast detectors train: windows per second of a whole step (loading, encoding, forward,
backward, optimiser, teacher), the share of time spent waiting for data, and memory.

Example:

  fate bench train drives fate-s-nano fate-s-tiny --clips 10,21 --batch 64 --device cuda --compile
"""


@app.command("train", help=help_text(TRAIN_HELP), short_help="Measure how fast detectors train.", cls=Command)
@with_verbosity
def train(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Folder or YAML file of a dataset.")],
    models: Models = None,
    clips: Annotated[str, typer.Option(help="Numbers of windows in a clip, comma-separated.")] = "10,21",
    batch: Annotated[int, typer.Option(help="Number of clips in a batch; half of them continue a stream.")] = 16,
    device: Device = "auto",
    precision: Annotated[
        str, typer.Option(help="Precision of training: float32, bf16, or auto (bf16 on a GPU).")
    ] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="Compile backbone and neck with torch.compile.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Switch off CUDA graphs and events kept in GPU memory.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Number of processes that load data.")] = 4,
    augmentation: Annotated[str, typer.Option(help="Augmentation of the data: paper, rvt or none.")] = "rvt",
    strategy: Annotated[
        str, typer.Option(help="Training strategy: supervised, multi_frequency, consistency or interpolation.")
    ] = "supervised",
    seconds: Seconds = 10.0,
    json_file: args.JsonFile = None,
) -> None:
    with args.bad_usage():
        lengths = _whole_numbers("--clips", clips, least=1)
        if batch < 2 or precision not in ("auto", "float32", "bf16") or strategy == "fat":
            raise FateError(
                f"--batch {batch}, --precision {precision} and --strategy {strategy} were given; expected 2 or more;"
                " auto, float32 or bf16; and a strategy that needs no dense labels"
            )
        check_device(device)
        for name in models or ():
            args.check_name(name)
    args.check_inputs(dataset)
    args.check_outputs({"--json": json_file}, datasets=(dataset,))
    chosen = pick_device(device)

    from fate.bench.train import bench_train

    with args.status("starting") as show:
        result = bench_train(
            dataset, models or ("fate-s-nano", "fate-s-tiny"), lengths, batch, device=chosen, precision=precision,
            compiled=compiled, plain=plain, workers=workers, augmentation=augmentation, strategy=strategy,
            seconds=seconds, progress=show,
        )  # fmt: skip
    _print(result, json_file)


def _print(result: BenchResult, json_file: str | None) -> None:
    """Write all numbers to the file of ``--json``, if it is given, and print the table."""
    args.write_and_print(result.table(), json_file, lambda file: args.write_json(file, result.to_dict()))


def _names(text: str) -> list[str]:
    """Return the names of a comma-separated list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(option: str, text: str, least: float, kind: str = "numbers") -> list[float]:
    """Return the numbers of a comma-separated list; each must be at least ``least``."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(least <= value < 1e6 for value in values):
        raise FateError(f"{option} {text!r} was given; expected {kind} of at least {least:g}, comma-separated")
    return values


def _whole_numbers(option: str, text: str, least: int) -> list[int]:
    """Return the whole numbers of a comma-separated list; each must be at least ``least``."""
    values = _numbers(option, text, least, "whole numbers")
    if any(value != int(value) for value in values):
        raise FateError(f"{option} {text!r} was given; expected whole numbers of at least {least}, comma-separated")
    return [int(value) for value in values]


def _check_drive(profile: str, seed: int) -> None:
    """Refuse a simulated drive of an unknown camera or with a negative seed."""
    from fate.simulation.writing.request import check_number

    if profile not in DRIVE_S:
        raise FateError(f"there is no profile {profile!r}; give one of {', '.join(DRIVE_S)}")
    check_number("the seed", seed, 0)
