"""``fate bench``: measurements, each beside its peers in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fate.formats.bench import DecodeBench, Measurement

app = typer.Typer(help="Measure speed and memory, beside other programs in the same run.", no_args_is_help=True)

HELP = """How fast recordings are read: whole, by windows of 5 and 50 ms in a row, and at random times.
Without FILES, recordings are made up and measured. Other decoders are measured if installed.

Example:

  fate bench decode drive.raw night.dat --against evt3,faery

  fate bench decode --events 20000000 --json decode.json
"""


@app.callback()
def _group() -> None:
    pass


@app.command("decode", help=HELP)
def decode(
    files: Annotated[list[str] | None, typer.Argument(metavar="[FILES]", help="Recordings to measure.")] = None,
    against: Annotated[
        str, typer.Option(help="Peers to measure if installed, comma-separated; empty for none.")
    ] = "evt3,faery,expelliarmus,searchsorted,searchsorted-typed",
    events: Annotated[int, typer.Option(help="Events in the made-up files.")] = 20_000_000,
    repeats: Annotated[int, typer.Option(help="Whole-file reads; the median counts.")] = 3,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all numbers here too.")] = None,
) -> None:
    from rich.console import Console

    from fate.cli.arguments import write_json
    from fate.formats.bench import bench_decode

    console = Console(stderr=True)
    peers = [name for name in against.split(",") if name]
    with console.status("starting") as status:
        result = bench_decode(files or (), against=peers, num_events=events, repeats=repeats, progress=status.update)
    print(_table(result))
    write_json(json_file, result.to_dict())


SIMULATE_HELP = """How fast the simulator is, without writing files: seconds of recording per second, boxes at 200 Hz
included; and the pixel model alone on frames in memory, beside eventcv's if that is installed.

Example:

  fate bench simulate

  fate bench simulate --device cuda --recordings 240 --seconds 20
"""


@app.command("simulate", help=SIMULATE_HELP)
def simulate(
    recordings: Annotated[int, typer.Option(help="How many.")] = 4,
    seconds: Annotated[float, typer.Option(help="Length of each.")] = 5.0,
    profile: Annotated[str, typer.Option(help="gen1 or 1mpx.")] = "gen1",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads or processes; all cores by default.")] = None,
) -> None:
    from fate.cli.arguments import bad_usage, progress_bar
    from fate.simulation.request import Request, check_device

    with bad_usage():  # before torch is loaded, which takes seconds
        Request(profile, 0, seconds, recordings)
        check_device(device, threads)

    from fate.simulation.bench import bench_simulate

    with progress_bar("simulating") as update:
        result = bench_simulate(recordings, seconds, profile, device, threads, update)
    print(f"{result.device}, {result.cores} cores; {recordings} recordings of {seconds:g} s, {profile}")
    both = f"{result.real_time:.2f} × real time in all, {result.real_time_running:.2f} × after the first events"
    print(f"{both} (they came after {result.first_piece_s:.1f} s of {result.wall_s:.1f} s)")
    print(f"{result.events / 1e6:.1f} million events, {result.boxes} boxes at 200 Hz")
    for name, speed in result.frames_per_s.items():
        print(f"pixel model of {name} on frames in memory: {speed:.0f} frames/s")


#: What ``fate bench encode`` can measure beside ours.
PEERS = ("dense", "dense-compiled", "histogram", "evrt-histogram")

ENCODE_HELP = """How long Pillar Encoding takes from events to image, and what memory, beside the paper's dense tensor
(plain and compiled) and the histograms of RVT and EvRT-DETR. Windows come from FILE, or from a simulated drive.

Example:

  fate bench encode --profile gen1

  fate bench encode drive.raw --device cuda --windows 5,50 --json encode.json
"""


@app.command("encode", help=ENCODE_HELP)
def encode(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="A recording; its first seconds are used.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    profile: Annotated[str, typer.Option(help="Of the simulated drive: gen1 or 1mpx.")] = "gen1",
    windows: Annotated[str, typer.Option(help="Lengths in ms, comma-separated.")] = "5,10,25,50",
    batches: Annotated[str, typer.Option(help="Windows to a call, comma-separated.")] = "1,32",
    against: Annotated[str, typer.Option(help="Peers, comma-separated; empty for none.")] = ",".join(PEERS),
    seed: Annotated[int, typer.Option(help="Of the simulated drive.")] = 2,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all numbers here too.")] = None,
) -> None:
    from rich.console import Console

    from fate.cli.arguments import bad_usage, check_outputs, write_json
    from fate.errors import FateError
    from fate.simulation.request import PROFILES, check_device, check_number

    with bad_usage():
        check_device(device, None)
        lengths, sizes = _numbers("--windows", windows, least=0.001), _numbers("--batches", batches, least=1)
        if any(size != int(size) for size in sizes):
            raise FateError(f"--batches {batches!r} was given; expected whole numbers, comma-separated")
        if profile not in PROFILES:
            raise FateError(f"there is no profile {profile!r}; give one of {', '.join(PROFILES)}")
        check_number("the seed", seed, 0)
        drive_s = 1.6 if profile == "gen1" else 0.4
        if file is None and max(lengths) > 1000 * drive_s:
            raise FateError(f"--windows {windows!r} was given; the simulated drive lasts {1000 * drive_s:g} ms")
        names = [name.strip() for name in against.split(",") if name.strip()]
        unknown = [name for name in names if name not in PEERS]
        if unknown:
            raise FateError(f"--against {unknown[0]!r} was given; choose among {', '.join(PEERS)}")
    check_outputs({"--json": json_file}, file or "")

    from fate.encoding.bench import bench_encode, encode_table

    with Console(stderr=True).status("starting") as status:
        if file is None:
            from fate.simulation.bench import drive_events

            status.update(f"simulating a {profile} drive")
            events = drive_events(profile, drive_s, seed)
        else:
            from fate.formats.opening import open_recording

            with open_recording(file) as recording:
                events = recording.read(recording.start_us, recording.start_us + 1_600_000)
        result = bench_encode(events, device, lengths, [int(n) for n in sizes], ["pillars", *names], status.update)
    print(encode_table(result))
    write_json(json_file, result.to_dict())


DATA_HELP = """How fast windows of events come off the disk, by rate and number of workers, beside blosc-compressed
histograms in RVT's layout of the same recordings. Without DATASET a few Gen1-like drives are simulated first.

Example:

  fate bench data drives --hz 20,200 --workers 0,2

  fate bench data --json data.json
"""


@app.command("data", help=DATA_HELP)
def data(
    dataset: Annotated[
        str | None, typer.Argument(metavar="[DATASET]", help="Folder or YAML file of a dataset.")
    ] = None,
    hz: Annotated[str, typer.Option(help="Rates, comma-separated.")] = "20,200",
    workers: Annotated[str, typer.Option(help="Processes, comma-separated.")] = "0,1,2",
    seconds: Annotated[float, typer.Option(help="Of each measurement.")] = 5.0,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all numbers here too.")] = None,
) -> None:
    import tempfile

    from rich.console import Console

    from fate.cli.arguments import bad_usage, check_outputs, write_json
    from fate.errors import FateError

    with bad_usage():
        rates, counts = _numbers("--hz", hz, least=1), _numbers("--workers", workers, least=0)
        if any(count != int(count) for count in counts):
            raise FateError(f"--workers {workers!r} was given; expected whole numbers, comma-separated")
        if not 0.1 <= seconds <= 3600:
            raise FateError(f"--seconds {seconds:g} was given; expected 0.1 to 3600")
    check_outputs({"--json": json_file}, dataset or "")

    from fate.data.bench import bench_data, data_table
    from fate.data.dataset import open_dataset

    with tempfile.TemporaryDirectory() as folder, Console(stderr=True).status("starting") as status:
        if dataset is None:
            from fate.simulation.dataset import simulate as simulated

            status.update("simulating drives")
            dataset = f"{folder}/drives"
            simulated(dataset, recordings=3, seconds=4.0, preview=False)
        result = bench_data(
            open_dataset(dataset), folder, rates, [int(count) for count in counts], seconds, status.update
        )
    print(data_table(result))
    write_json(json_file, result.to_dict())


DETECT_HELP = """How long detectors take from events to boxes, one window after another, stage by stage: decoding the
file, encoding, the model, and post-processing. Weights are fresh; they do not matter for time.

Example:

  fate bench detect fate-s-nano fate-s-tiny --hz 20,200

  fate bench detect fate-s s5-vit-b --device cuda --run eager,streaming,compiled
"""


@app.command("detect", help=DETECT_HELP)
def detect(
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODELS]", help="Names; see fate models.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    profile: Annotated[str, typer.Option(help="Of the simulated drive: gen1 or 1mpx.")] = "gen1",
    hz: Annotated[str, typer.Option(help="Rates, comma-separated.")] = "20,200",
    run: Annotated[
        str, typer.Option(help="eager, streaming, compiled (on a GPU); comma-separated.")
    ] = "eager,streaming",
    precision: Annotated[str | None, typer.Option(help="Of the streaming step: float32, tf32 or bfloat16.")] = None,
    seed: Annotated[int, typer.Option(help="Of the simulated drive.")] = 2,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all numbers here too.")] = None,
) -> None:
    from rich.console import Console

    from fate.cli.arguments import bad_usage, check_outputs, write_json
    from fate.errors import FateError
    from fate.simulation.request import PROFILES, check_device, check_number

    with bad_usage():
        check_device(device, None)
        rates = _numbers("--hz", hz, least=1)
        if profile not in PROFILES:
            raise FateError(f"there is no profile {profile!r}; give one of {', '.join(PROFILES)}")
        check_number("the seed", seed, 0)
    check_outputs({"--json": json_file}, "")

    from fate.runtime.bench import DEFAULT_MODELS, bench_detect, check_request, detect_table

    ways = [way.strip() for way in run.split(",") if way.strip()]
    with bad_usage():
        check_request(models or DEFAULT_MODELS, device, ways, precision)
    with Console(stderr=True).status(f"simulating a {profile} drive") as status:
        from fate.simulation.bench import drive_events

        events = drive_events(profile, 1.6 if profile == "gen1" else 0.4, seed)
        result = bench_detect(events, models or DEFAULT_MODELS, device, rates, ways, precision, status.update)
    print(detect_table(result))
    write_json(json_file, result.to_dict())


def _numbers(name: str, text: str, least: float) -> list[float]:
    """Numbers of at least ``least`` from a comma-separated list."""
    from fate.errors import FateError

    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(least <= value < 1e6 for value in values):
        raise FateError(f"{name} {text!r} was given; expected numbers of at least {least:g}, comma-separated")
    return values


def _table(result: DecodeBench) -> str:
    names = {
        "index": "time index",
        "whole": "whole file",
        "indexed": "whole file, index kept",
        "window:5000": "5 ms windows",
    }
    names |= {"window:50000": "50 ms windows", "seek:5000": "5 ms at random times"}
    lines = [
        f"Machine: {result.machine}",
        "",
        "| file | format | reader | what | Mev/s | p50 ms | p99 ms | peak MB | fate is |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    ours = {(m.file, m.mode): m for m in result.measurements if m.reader == "fate"}
    for m in result.measurements:
        quantiles = [f"{q:.3f}" if q is not None else "" for q in (m.p50_ms, m.p99_ms)]
        ratio = "" if m.reader == "fate" else f"{_speed(ours[m.file, m.mode]) / _speed(m):.2f} ×"
        peak = "" if m.peak_mb is None else f"{m.peak_mb:.0f}"
        lines.append(
            f"| {m.file} | {m.format} | {m.reader} | {names.get(m.mode, m.mode)} | {m.mev_per_s:.1f} |"
            f" {quantiles[0]} | {quantiles[1]} | {peak} | {ratio} |"
        )
    if result.missing:
        lines += ["", f"Not installed, so not measured: {', '.join(result.missing)}"]
    return "\n".join(lines)


def _speed(m: Measurement) -> float:
    """Events a second; for single windows, windows a second."""
    return 1 / m.p50_ms if m.mode.startswith("seek") and m.p50_ms else m.mev_per_s


TRAIN_HELP = """How fast detectors train: windows a second, all that a step does included (loading, encoding, forward,
backward, optimiser, teacher), the share of time spent waiting for data, and memory.

Example:

  fate bench train drives fate-s-nano fate-s-tiny --clips 10,21 --batch 64 --device cuda --compile
"""


@app.command("train", help=TRAIN_HELP)
def train(
    dataset: Annotated[str, typer.Argument(help="Folder or YAML file of a dataset.")],
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODELS]", help="Names; see fate models.")] = None,
    clips: Annotated[str, typer.Option(help="Windows in a clip, comma-separated.")] = "10,21",
    batch: Annotated[int, typer.Option(help="Clips in a batch, half of them streams.")] = 16,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    precision: Annotated[str, typer.Option(help="float32, bf16, or auto: bf16 on a GPU.")] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile for backbone and neck.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Every kernel from Python, every event from disk, also on a GPU.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Processes that load.")] = 4,
    augmentation: Annotated[str, typer.Option(help="paper, rvt or none.")] = "rvt",
    strategy: Annotated[
        str, typer.Option(help="supervised, multi_frequency, consistency or interpolation.")
    ] = "supervised",
    seconds: Annotated[float, typer.Option(help="Of each measurement.")] = 10.0,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all numbers here too.")] = None,
) -> None:
    from rich.console import Console

    from fate.cli.arguments import bad_usage, write_json
    from fate.errors import FateError

    with bad_usage():
        lengths = [int(text) for text in clips.split(",") if text.isdigit()]
        if not lengths or len(lengths) != len(clips.split(",")) or min(lengths) < 1:
            raise FateError(f"--clips {clips} was given; expected whole numbers, such as 10,21")
        if batch < 2 or precision not in ("auto", "float32", "bf16") or strategy == "fat":
            raise FateError(
                f"--batch {batch}, --precision {precision} and --strategy {strategy} were given; expected 2 or more;"
                " auto, float32 or bf16; and a strategy that needs no dense labels"
            )
    from fate.training.bench import bench_train

    with Console(stderr=True).status("starting") as status:
        result = bench_train(
            dataset, models or ("fate-s-nano", "fate-s-tiny"), lengths, batch, device=device, precision=precision,
            compiled=compiled, plain=plain, workers=workers, augmentation=augmentation, strategy=strategy,
            seconds=seconds, progress=status.update,
        )  # fmt: skip
    print(result.table())
    write_json(json_file, result.to_dict())
