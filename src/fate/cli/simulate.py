"""``fate simulate``; ``help.yaml`` explains it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from typer import Option

from fate.cli import arguments as args
from fate.cli.device import Device, pick_device
from fate.errors import FateError
from fate.text import format_table, grouped, plural

if TYPE_CHECKING:
    from fate.simulation.writing.manifest import Manifest


def simulate(
    folder: str,
    recordings: int = 12,
    seconds: float | None = None,
    profile: str = "gen1",
    seed: int = 0,
    at_rest: float = 0.0,
    device: Device = "auto",
    threads: int | None = Option(None, min=1),
    no_preview: bool = False,
    shard: args.Shard = "1/1",
    devices: args.Devices = None,
    slurm: args.Slurm = None,
    video: list[str] | None = None,
    labels: list[str] | None = None,
    sensor: args.Sensor = None,
    camera: str = "gen1",
    split: str = Option("test", parser=args.choice("train", "val", "test")),
) -> None:
    if video:
        with args.bad_usage():
            if device not in ("auto", "cpu") or devices is not None or shard != (1, 1):
                raise FateError(
                    "--video was given with another device; videos are converted on the CPU of this machine"
                )
        _simulate_video(
            folder, video, labels or [], camera=camera, sensor=sensor, split=split, seed=seed, seconds=seconds,
            threads=threads, preview=not no_preview,
        )  # fmt: skip
        return
    with args.bad_usage():
        if labels or sensor is not None:
            raise FateError(f"{'--labels' if labels else '--sensor'} was given; it goes with --video")
    seconds = 10.0 if seconds is None else seconds

    from fate.simulation.writing.manifest import load_manifest
    from fate.simulation.writing.request import Request, check_folder

    spread = args.spread_options(devices, slurm, device, shard)
    with args.bad_usage():
        Request(profile, seed, seconds, recordings, at_rest=at_rest)
    check_folder(folder)
    # CPU and GPU draw different noise: auto continues a dataset on the device on which it was begun. Without triton,
    # which the simulator needs on a GPU, auto is the CPU, and torch need not be loaded.
    begun = load_manifest(folder) if device == "auto" else None
    begun_on_cpu = begun is not None and any(entry.device == "cpu" for entry in begun.recordings)
    on_cpu = device == "cpu" or (device == "auto" and (begun_on_cpu or find_spec("triton") is None))
    chosen = "cpu" if on_cpu or devices is not None else pick_device(device, announce=False)

    from fate.workflows.simulate import simulate as make

    with args.progress_bar("simulating") as update:
        done = make(
            folder, recordings, seconds, profile, seed, device=chosen, threads=threads, preview=not no_preview,
            at_rest=at_rest, shard=shard, progress=update, **spread,
        )  # fmt: skip
    if shard != (1, 1):
        print(
            f"{folder}: shard {shard[0]}/{shard[1]} has {plural(len(done.recordings), 'recording')}; when all shards"
            " are done, run the command without --shard to bring them together"
        )
        return
    print(_summary(folder, done, ", ".join(dict.fromkeys(entry.device for entry in done.recordings))))


def _simulate_video(folder: str, videos: list[str], labels: list[str], **options: Any) -> None:
    """Make a dataset from videos; a whole number is a webcam."""
    from fate.simulation.camera.camera_model import camera_preset
    from fate.simulation.writing.request import check_folder

    with args.bad_usage():
        camera_preset(options["camera"])
    check_folder(folder)
    args.check_inputs(*(each for each in (*videos, *labels) if not each.isdecimal()))

    from fate.workflows.simulate_video import simulate_video

    sources = [int(each) if each.isdecimal() else each for each in videos]
    with args.progress_bar("simulating") as update:
        done = simulate_video(folder, sources, labels, **options, progress=update)
    print(_summary(folder, done, "cpu"))


def _summary(folder: str, done: Manifest, device: str) -> str:
    at_rest = ["at rest"] if getattr(done.request, "at_rest", 0) else []
    of_events = ("seconds", "Mev", "Mev/s", "ON share")
    header = ("split", "recordings", *at_rest, *of_events, *done.classes, "boxes at 200 Hz", "MB")
    splits = [split for split in ("train", "val", "test") if done.totals(split)["recordings"]]
    rows = [header, *(_row(done, split) for split in splits), _row(done, None)]
    previews = ", ".join(f"{split}/preview.mp4" for split in done.previews) or "no previews"
    return "\n".join(
        [
            format_table(rows),
            "",
            f"{folder}: manifest.json, {previews}; simulated on the device {device}",
            f"Compare it with real data: fate inspect {folder}",
        ]
    )


def _row(done: Manifest, split: str | None) -> tuple[str, ...]:
    total = done.totals(split)
    events, seconds = total["events"], total["seconds"]
    still = sum(entry.at_rest for entry in done.recordings if split in (None, entry.split))
    return (
        split or "all",
        grouped(total["recordings"]),
        *([grouped(still)] if getattr(done.request, "at_rest", 0) else []),
        f"{seconds:g}",
        f"{events / 1e6:.2f}",
        f"{events / seconds / 1e6:.2f}" if seconds else "",
        f"{100 * total['on_events'] / events:.0f} %" if events else "",
        *(grouped(total["boxes"][name]) for name in done.classes),
        grouped(sum(total["truth_boxes"].values())),
        f"{total['bytes'] / 1e6:.1f}",
    )
