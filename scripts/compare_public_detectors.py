"""Time of a window on a GPU: FATE's streaming step beside the public code of RVT, S5-ViT and EvRT-DETR, in one run.

    python scripts/compare_public_detectors.py --peers PEERS --size gen1 1mpx --limit 170 --json compared.json

Every participant starts with a window's events on the GPU and ends with boxes on the CPU, for one stream. Weights are
fresh. A public detector runs as its authors wrote it: ``StackedHistogram`` (10 bins, at most 10 events) in tensor
operations, padding, network with recurrent state, and NMS with their thresholds or the 300 best queries. Its modes:

- ``eager``: called from Python.
- ``graphs``: the network without ``torch.compile``, captured as one CUDA graph that also keeps the state.
- ``compile``: the network by ``torch.compile`` in its default mode.
- ``compile-graphs``: the compiled network, captured as one CUDA graph that also keeps the state.
- ``reduce-overhead``: the network by ``torch.compile`` with its own CUDA graphs; the state is cloned between calls.

``:float16`` behind a mode adds autocast, for example ``compile-graphs:float16``; otherwise matrix products are in TF32.
At ``1mpx``, events have half the resolution, so that the frame is the 384 × 640 of the public code. EvRT-DETR gets the
same histogram as the others. Its anchors are moved to the GPU first (the public code copies them in each call), its
choice of the best queries belongs to the network, and its mask for new recordings is left out. FATE runs by
``compile_for_streaming`` without ``torch.compile``. Weights are fresh, so RVT and S5-ViT have hardly any box.

Participants are built and compiled side by side, each group of modes in its own process. Those that are not ready
after ``--limit`` seconds are left out. The others are then measured in turns, while all others wait. The table gives
p50 and p99 of all calls, the lowest and highest median of a round, how long the representation takes alone, and how
many times as long as FATE's step the public detector's best mode takes.

``--peers`` names a folder with the sources as their repositories have them: ``rvt`` (github.com/uzh-rpg/RVT, commit
b80f568), ``ssms`` (folder RVT of github.com/uzh-rpg/ssms_event_cameras, 7c871b5) and ``evrt``
(github.com/realtime-intelligence/evrt-detr, 02811f1). A subfolder ``site`` may contain packages that they need: einops,
omegaconf with antlr4; ``stubs`` those to use if torchvision is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from fate.encoding.batch import EventBatch
from fate.events.events import Events
from fate.events.window import Window
from fate.inference.streaming_step import PRECISIONS, compile_for_streaming
from fate.models.zoo import build_model

WINDOW_US = 50_000
#: The public detector that each of ours is compared with.
PEER_OF = {
    "rvt-b": "RVT-B",
    "fate-s": "S5-ViT-B",
    "s5-vit-b": "S5-ViT-B",
    "fate-e": "EvRT-DETR-B",
    "evrt-detr-b": "EvRT-DETR-B",
}
#: Modes of a public detector; those of a group are built one after the other in the same process.
GROUPS = (("eager", "graphs"), ("compile", "compile-graphs"), ("reduce-overhead",))
MODES = tuple(mode for group in GROUPS for mode in group)
CONFIDENCE, OVERLAP, QUERIES = 0.1, 0.45, 300  # of the public code
#: Windows that are not measured, at the start of each turn; at most as many as are measured.
FIRST_CALLS = 10
#: Seconds that a process may build beyond the limit if one of its modes is ready.
GRACE_S = 20


@dataclass(frozen=True)
class Size:
    """A sensor, the padded frame of the public detectors, and how much happens."""

    sensor: tuple[int, int]
    frame: tuple[int, int]
    events: int  #: in a window, about
    classes: tuple[str, ...]
    dataset: str  #: in the public code's configuration


SIZES = {
    "gen1": Size((240, 304), (256, 320), 36_000, ("car", "pedestrian"), "gen1"),
    "1mpx": Size((360, 640), (384, 640), 180_000, ("pedestrian", "two-wheeler", "car"), "gen4"),
}


@dataclass(frozen=True)
class Task:
    """What one process builds and measures."""

    name: str  #: of a public detector or of ours
    size: str
    modes: tuple[str, ...]  #: or precisions, for ours
    device: str
    peers: str
    limit_s: float


@dataclass
class Found:
    """Measurements of a participant in one mode."""

    name: str
    size: str
    mode: str
    build_s: float
    parameters: int
    boxes: float  #: of a window, mean of the first ones
    difference: float | None  #: from the scores of the eager network, largest, over their range; None for ours
    representation_ms: float | None = None  #: median of the representation alone; None for ours
    rounds: list[list[float]] = field(default_factory=list)  #: milliseconds of each call

    @property
    def p50(self) -> float:
        """Median of all calls in ms."""
        return float(np.median(np.concatenate(self.rounds)))

    @property
    def p99(self) -> float:
        """99th percentile of all calls in ms."""
        return float(np.quantile(np.concatenate(self.rounds), 0.99))

    @property
    def medians(self) -> list[float]:
        """Median of each round in ms."""
        return [float(np.median(each)) for each in self.rounds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="folder with rvt, ssms and evrt")
    parser.add_argument("--detectors", nargs="+", default=list(PEER_OF), choices=list(PEER_OF))
    parser.add_argument("--size", nargs="+", default=["gen1"], choices=list(SIZES))
    parser.add_argument("--modes", nargs="+", default=list(MODES), metavar="MODE", help=", ".join(MODES))
    parser.add_argument("--precisions", nargs="+", default=["tf32", "float16"], help="of ours")
    parser.add_argument("--windows", type=int, default=80, help="calls of a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--limit", type=float, default=600, help="seconds for building")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if unknown := [mode for mode in options.modes if mode.removesuffix(":float16") not in MODES]:
        parser.error(f"--modes {' '.join(unknown)} was given; expected some of {', '.join(MODES)}, also with :float16")
    if options.device == "cpu" and set(options.modes) - {"eager", "compile"}:
        parser.error("--device cpu has only --modes eager compile; CUDA graphs need a GPU")
    if min(options.rounds, options.windows) < 1:
        parser.error(f"--rounds {options.rounds} --windows {options.windows} was given; expected 1 or more of each")
    if unknown := sorted(set(options.precisions) - set(PRECISIONS)):
        parser.error(f"--precisions {' '.join(unknown)} was given; expected some of {', '.join(PRECISIONS)}")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json} was given; the folder {options.json.parent} does not exist, make it first")
    precisions = options.precisions if options.device == "cuda" else ["float32"]
    tasks = make_tasks(options, precisions)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(2, (os.cpu_count() or 2) // 4)))
    start = time.perf_counter()
    about = {"torch": torch.__version__, "device": describe(options.device), "options": vars(options)}
    print(f"{about['device']}, torch {torch.__version__}, {len(tasks)} processes", flush=True)
    found, missing = run(tasks, options.limit, options.rounds, options.windows)
    for size in options.size:
        print_table(size, [each for each in found if each.size == size])
    for line in missing:
        print("left out:", line)
    print(f"{time.perf_counter() - start:.0f} s in total")
    if options.json is not None:
        rows = [{**asdict(each), "p50": each.p50, "p99": each.p99, "medians": each.medians} for each in found]
        content = {**about, "found": rows, "left_out": missing}
        options.json.write_text(json.dumps(content, default=str, indent=1))


def make_tasks(options: argparse.Namespace, precisions: Sequence[str]) -> list[Task]:
    """One process for each of our detectors, and for each group of modes of a public one."""
    tasks = []
    common = (options.device, str(options.peers.resolve()), options.limit)
    for size in options.size:
        for peer in dict.fromkeys(PEER_OF[name] for name in options.detectors):
            for suffix in ("", ":float16"):
                groups = [[mode + suffix for mode in group if mode + suffix in options.modes] for group in GROUPS]
                tasks += [Task(peer, size, tuple(group), *common) for group in groups if group]
        tasks += [Task(name, size, tuple(precisions), *common) for name in options.detectors]
    return tasks


def describe(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU, {os.cpu_count()} cores"


def run(tasks: Sequence[Task], limit_s: float, rounds: int, windows: int) -> tuple[list[Found], list[str]]:
    """Build all participants side by side, then measure them in turns; also returns what was left out, and why."""
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, tuple[Task, Any]] = {}
    for task in tasks:
        here, there = context.Pipe()
        process = context.Process(target=work, args=(there, task))
        process.start()
        there.close()
        workers[here] = (task, process)
    try:
        ready, missing = await_ready(workers, time.monotonic() + limit_s)
        for number in range(rounds + 1):  # the last one is for the representations alone
            print(f"round {number + 1} of {rounds}" if number < rounds else "representations", flush=True)
            for line, found in list(ready):
                try:
                    line.send((found.mode, windows if number < rounds else 0))
                    answer = line.recv()
                except (EOFError, OSError):
                    missing.append(f"{found.name} {found.size} {found.mode}: its process ended while it was measured")
                    ready.remove((line, found))
                    continue
                if number < rounds:
                    found.rounds.append(answer)
                else:
                    found.representation_ms = answer
    finally:
        for line, (_, process) in workers.items():
            with contextlib.suppress(OSError):
                line.send(None)
            process.join(5)
            process.kill()
    return [found for _, found in ready], missing


def await_ready(
    workers: dict[Connection, tuple[Task, Any]], deadline: float
) -> tuple[list[tuple[Connection, Found]], list[str]]:
    """Wait until all participants are built or the deadline has passed; end the processes that are still building."""
    ready: list[tuple[Connection, Found]] = []
    missing: list[str] = []
    building = {line: list(task.modes) for line, (task, _) in workers.items()}
    while building:
        started = any(line in building for line, _ in ready)  # its other mode needs no compilation
        if time.monotonic() > deadline + (GRACE_S if started else 0):
            break
        for line in wait(list(building), timeout=1):
            assert isinstance(line, Connection)
            task = workers[line][0]
            try:
                message = line.recv()
            except EOFError:
                missing.append(f"{task.name} {task.size} {', '.join(building.pop(line))}: its process ended")
                continue
            if isinstance(message, Found):
                print(f"{message.name} {message.size} {message.mode}: ready, {message.build_s:.0f} s", flush=True)
                ready.append((line, message))
                building[line].remove(message.mode)
            else:
                mode, reason = message
                missing.append(f"{task.name} {task.size} {mode}: {reason}")
                print(missing[-1], flush=True)
                building[line].remove(mode)
            if not building[line]:
                del building[line]
    for line in building:
        task, process = workers[line]
        process.kill()
        missing.append(f"{task.name} {task.size} {', '.join(task.modes)}: not built in {task.limit_s:.0f} s")
    return [(line, found) for line, found in ready if line not in building], missing


def print_table(size: str, found: Sequence[Found]) -> None:
    """A table in Markdown; each of ours follows the public detector that it is compared with."""
    given = SIZES[size]
    print(f"\n{size}: {given.sensor[1]} × {given.sensor[0]}, {WINDOW_US // 1000} ms, about {given.events} events\n")
    print("| detector | mode | p50 ms | p99 ms | medians of rounds | representation alone | best public / this |")
    print("|---|---|---|---|---|---|---|")
    for peer in dict.fromkeys(PEER_OF.values()):
        public = [each for each in found if each.name == peer]
        best = min((each.p50 for each in public), default=None)
        for each in public + [each for each in found if PEER_OF.get(each.name) == peer]:
            alone = "" if each.representation_ms is None else f"{each.representation_ms:.2f}"
            ratio = "" if best is None else f"{best / each.p50:.2f} ×"
            spread = f"{min(each.medians):.2f} to {max(each.medians):.2f}"
            print(f"| {each.name} | {each.mode} | {each.p50:.2f} | {each.p99:.2f} | {spread} | {alone} | {ratio} |")
    print()
    for each in found:
        apart = "" if each.difference is None else f", {each.difference:.1g} of the scores' range from eager"
        print(f"{each.name} {each.mode}: {each.parameters} parameters, {each.boxes:.1f} boxes a window{apart}")


# ---------------------------------------------------------------------------------------------- in a process of its own


class Participant:
    """Calls a detector with one window after another; each call ends with boxes on the CPU."""

    def __init__(self, call: Callable[[EventBatch], int], found: Found, alone: Callable[[EventBatch], object] | None):
        self.call, self.found, self.alone = call, found, alone


def work(line: Connection, task: Task) -> None:
    """Build the modes of a task, then measure whichever is asked for until the process is ended."""
    start = time.monotonic()
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    batches = [random_batch(SIZES[task.size], seed).to(task.device) for seed in range(8)]
    built: dict[str, Participant] = {}
    shared: dict[str, Any] = {}
    for mode in task.modes:
        if time.monotonic() - start > task.limit_s:
            line.send((mode, "not built in time"))
            continue
        before = time.perf_counter()
        try:
            with torch.inference_mode():
                make = build_ours if task.name in PEER_OF else build_public
                built[mode] = make(task, mode, batches, shared)
                counts = [built[mode].call(batch) for batch in batches[: 3 if task.device == "cpu" else None]]
            built[mode].found.boxes = float(np.mean(counts))
            built[mode].found.build_s = time.perf_counter() - before
            line.send(built[mode].found)
        except Exception as error:  # another participant may still work
            where = traceback.extract_tb(error.__traceback__)[-1]
            line.send((mode, f"{type(error).__name__}: {str(error)[:800]} ({where.filename}:{where.lineno})"))
    with torch.inference_mode():
        while (request := line.recv()) is not None:
            mode, windows = request
            if windows:
                line.send(measure(built[mode].call, batches, windows, task.device))
            else:
                alone = built[mode].alone
                times = [] if alone is None else measure(alone, batches, 20, task.device)
                line.send(float(np.median(times)) if times else None)


def measure(
    call: Callable[[EventBatch], object], batches: Sequence[EventBatch], count: int, device: str
) -> list[float]:
    """Milliseconds of each call; the GPU has nothing else to do before and after it."""
    spent = []
    first = min(FIRST_CALLS, count)
    for index in range(first + count):
        synchronize(device)
        begin = time.perf_counter()
        call(batches[index % len(batches)])
        synchronize(device)
        spent.append(1e3 * (time.perf_counter() - begin))
    return spent[first:]


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def random_batch(size: Size, seed: int) -> EventBatch:
    """A window with events at random places and times; their number varies by 5 %."""
    draw = np.random.default_rng(seed)
    count = int(size.events * draw.uniform(0.95, 1.05))
    columns = (
        np.sort(draw.integers(0, WINDOW_US, count)),
        draw.integers(0, size.sensor[1], count),
        draw.integers(0, size.sensor[0], count),
        draw.integers(0, 2, count),
    )
    return EventBatch.from_windows([(Window(0, WINDOW_US), Events(*columns, sensor=size.sensor))])


def build_ours(task: Task, precision: str, batches: Sequence[EventBatch], shared: dict[str, Any]) -> Participant:
    """FATE's streaming step."""
    size = SIZES[task.size]
    if not shared:
        torch.manual_seed(0)
        shared["detector"] = build_model(task.name, size.classes, size.sensor).eval().to(task.device)
    detector = shared["detector"]
    step = compile_for_streaming(detector, task.device, precision=precision)  # type: ignore[arg-type]
    for batch in batches:
        step(batch)
    parameters = sum(each.numel() for each in detector.parameters())
    return Participant(
        lambda batch: len(step(batch)[0].boxes), Found(task.name, task.size, precision, 0, parameters, 0, None), None
    )


def build_public(task: Task, mode: str, batches: Sequence[EventBatch], shared: dict[str, Any]) -> Participant:
    """A public detector in one mode."""
    size = SIZES[task.size]
    mode, _, autocast = mode.partition(":")
    if not shared:
        torch.manual_seed(0)
        shared["network"], shared["histogram"] = PUBLIC[task.name](Path(task.peers), size, task.device)
        shared["network"].eval().to(task.device)
        shared["network"].autocast = torch.float16 if autocast else None
    network: PublicNetwork = shared["network"]
    histogram: Any = shared["histogram"]

    def represent(batch: EventBatch) -> Tensor:
        image: Tensor = histogram.construct(x=batch.x, y=batch.y, pol=batch.p, time=batch.t_us)
        return image

    images = [represent(batch) for batch in batches[:3]]
    eager = Eager(network, None)
    for image in images:
        eager(image)
    state = tree_map(torch.clone, eager.state)  # that of S5-ViT is complex after the first window
    runner = make_runner(network, mode, images[0], state, shared)
    apart = 0.0
    eager.state = tree_map(torch.clone, state)
    runner.start(state)
    for image in images:
        expected = network.scores(eager(image)).clone()
        difference = (network.scores(runner(image)) - expected).abs().max() / (expected.max() - expected.min())
        apart = max(apart, float(difference))

    def call(batch: EventBatch) -> int:
        return len(network.finish(runner(represent(batch))))

    parameters = sum(each.numel() for each in network.parameters())
    name = mode + (":float16" if autocast else "")
    return Participant(call, Found(task.name, task.size, name, 0, parameters, 0, apart), represent)


def make_runner(network: PublicNetwork, mode: str, image: Tensor, state: Any, shared: dict[str, Any]) -> Eager:
    """A network with its state in one of the modes."""
    if mode == "eager":
        return Eager(network, state)
    if mode == "graphs":
        return Captured(network, image, state)
    if mode == "reduce-overhead":
        return OwnGraphs(torch.compile(network, mode="reduce-overhead", dynamic=False), state)
    if "compiled" not in shared:
        shared["compiled"] = torch.compile(network, dynamic=False)
    compiled = shared["compiled"]
    return Eager(compiled, state) if mode == "compile" else Captured(compiled, image, state)


class Eager:
    """``outputs = runner(image)``; the state is kept."""

    def __init__(self, network: Callable[[Tensor, Any], Any], state: Any) -> None:
        self.network, self.state = network, state

    def start(self, state: Any) -> None:
        """Set the state."""
        self.state = tree_map(torch.clone, state)

    def __call__(self, image: Tensor) -> Any:
        outputs, self.state = self.network(image, self.state)
        return outputs


class OwnGraphs(Eager):
    """A network compiled with CUDA graphs, whose outputs are valid until the next call."""

    def __call__(self, image: Tensor) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        outputs, state = self.network(image, self.state)
        self.state = tree_map(torch.clone, state)
        return outputs


class Captured(Eager):
    """One CUDA graph, from the image to the network's outputs; it also writes the next state into the last one."""

    def __init__(self, network: Callable[[Tensor, Any], Any], image: Tensor, state: Any) -> None:
        super().__init__(network, tree_map(torch.clone, state))
        self.image = image.clone()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.outputs = self._step()

    def _step(self) -> Any:
        outputs, after = self.network(self.image, self.state)
        torch._foreach_copy_(tree_leaves(self.state), tree_leaves(after))
        return outputs

    def start(self, state: Any) -> None:
        """Set the state."""
        torch._foreach_copy_(tree_leaves(self.state), tree_leaves(state))

    def __call__(self, image: Tensor) -> Any:
        self.image.copy_(image)
        self.graph.replay()
        return self.outputs


# ------------------------------------------------------------------------------------------------- the public detectors


class PublicNetwork(nn.Module):
    """``outputs, state = network(image, state)`` with a histogram [20, H, W], uint8."""

    autocast: torch.dtype | None = None

    def __init__(self, frame: tuple[int, int]) -> None:
        super().__init__()
        self.frame = frame

    def forward(self, image: Tensor, state: Any) -> tuple[Any, Any]:
        """Pad, and run the network."""
        height, width = image.shape[-2:]
        padded = functional.pad(image[None].float(), (0, self.frame[1] - width, 0, self.frame[0] - height))
        if self.autocast is None:
            return self.network(padded, state)
        with torch.autocast(image.device.type, dtype=self.autocast):
            return self.network(padded, state)

    def network(self, padded: Tensor, state: Any) -> tuple[Any, Any]:
        """Outputs and the next state of a padded image [1, 20, H, W], float32."""
        raise NotImplementedError

    def scores(self, outputs: Any) -> Tensor:
        """Scores of the outputs, in an order that does not depend on small differences."""
        raise NotImplementedError

    def finish(self, outputs: Any) -> Tensor:
        """Boxes of the outputs on the CPU."""
        raise NotImplementedError


class PublicYolox(PublicNetwork):
    """RVT and S5-ViT. A state is a list with one entry for each stage."""

    def __init__(self, detector: Any, postprocess: Callable[..., Any], size: Size, *, sequences: bool) -> None:
        super().__init__(size.frame)
        self.detector, self.postprocess = detector, postprocess
        self.sequences, self.classes = sequences, len(size.classes)

    def network(self, padded: Tensor, state: Any) -> tuple[Any, Any]:
        """Predictions [1, N, 5 + classes]."""
        if self.sequences:
            features, after = self.detector.backbone(padded[None], state, None, False)
            features = {stage: maps[0] for stage, maps in features.items()}
        else:
            features, after = self.detector.backbone(padded, state, None)
        predictions, _ = self.detector.yolox_head(self.detector.fpn(features))
        return predictions, after

    def scores(self, outputs: Any) -> Tensor:
        """Objectness and probability of each class."""
        found: Tensor = outputs[..., 4:].float()
        return found

    def finish(self, outputs: Any) -> Tensor:
        """NMS on the GPU; rows [N, 7]."""
        (found,) = self.postprocess(outputs, self.classes, CONFIDENCE, OVERLAP)
        return torch.empty(0, 7) if found is None else found.cpu()


class PublicEvrt(PublicNetwork):
    """EvRT-DETR. A state is what its temporal encoder makes of it."""

    def __init__(self, parts: dict[str, Any], size: Size, device: str) -> None:
        super().__init__(size.frame)
        self.parts = nn.ModuleDict(parts)
        self.register_buffer("sizes", torch.tensor([[size.frame[1], size.frame[0]]], device=device))

    def network(self, padded: Tensor, state: Any) -> tuple[Any, Any]:
        """Classes, boxes and scores of the best queries."""
        features = self.parts["encoder"](self.parts["backbone"](padded))
        memory: Any = self.parts["memory"]
        maps, after = memory(features, memory.init_mem(features) if state is None else state)
        return self.parts["post"](self.parts["decoder"](maps), self.sizes), after

    def scores(self, outputs: Any) -> Tensor:
        """Scores, highest first."""
        found: Tensor = outputs[2].float()
        return found

    def finish(self, outputs: Any) -> Tensor:
        """Classes, boxes and scores to the CPU; there is no NMS."""
        boxes: Tensor = [each[0].cpu() for each in outputs][1]
        return boxes


def add_sources(peers: Path, folder: str) -> None:
    """Let the sources of a public detector be imported, and what they need."""
    if not (peers / folder).is_dir():
        raise FileNotFoundError(f"{peers / folder}: there is no such folder; expected the public sources there")
    sys.path[:0] = [str(peers / folder)]
    sys.path.append(str(peers / "site"))
    try:
        importlib.import_module("torchvision")
    except Exception:  # missing, or built for another torch
        for name in [each for each in sys.modules if each.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.path[:0] = [str(peers / "stubs")]


def stacked_histogram(peers: Path, size: Size) -> Any:
    """RVT's representation, which all three detectors use."""
    module = importlib.import_module("data.utils.representations")
    return module.StackedHistogram(bins=10, height=size.sensor[0], width=size.sensor[1], count_cutoff=10)


def public_yolox(peers: Path, size: Size, device: str, *, folder: str) -> tuple[PublicNetwork, Any]:
    """RVT-B or S5-ViT-B, by the public configuration."""
    add_sources(peers, folder)
    omegaconf = importlib.import_module("omegaconf").OmegaConf
    config = peers / folder / "config"
    parts = [config / "model/maxvit_yolox/default.yaml"]
    parts += [config / "experiment" / size.dataset / name for name in ("default.yaml", "base.yaml")]
    model = omegaconf.merge({"name": "rnndet"}, *(omegaconf.load(part).get("model", {}) for part in parts))
    dataset = {"name": size.dataset, "downsample_by_factor_2": size.dataset == "gen4"}
    whole = omegaconf.create({"model": model, "dataset": dataset})
    with contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module("config.modifier").dynamically_modify_train_config(whole)
    if tuple(whole.model.backbone.in_res_hw) != size.frame:
        raise ValueError(f"the public code pads to {whole.model.backbone.in_res_hw}; expected {size.frame}")
    detector = importlib.import_module("models.detection.yolox_extension.models.detector").YoloXDetector(whole.model)
    postprocess = importlib.import_module("models.detection.yolox.utils.boxes").postprocess
    return PublicYolox(detector, postprocess, size, sequences=folder == "ssms"), stacked_histogram(peers, size)


def public_evrt(peers: Path, size: Size, device: str) -> tuple[PublicNetwork, Any]:
    """EvRT-DETR-B, with the options of the public training scripts (PResNet-50)."""
    add_sources(peers, "evrt")
    zoo = "evlearn.bundled.rtdetr_pytorch.zoo.rtdetr."
    maps, strides, frame = [256, 256, 256], [8, 16, 32], list(size.frame)
    backbone = importlib.import_module("evlearn.bundled.rtdetr_pytorch.nn.backbone.presnet").PResNet(
        features_input=20, depth=50, variant="d", num_stages=4, return_idx=[1, 2, 3], act="relu",
        freeze_at=-1, freeze_norm=False, pretrained=False,
    )  # fmt: skip
    encoder = importlib.import_module(zoo + "hybrid_encoder").HybridEncoder(
        in_channels=[512, 1024, 2048], feat_strides=strides, hidden_dim=256, use_encoder_idx=[2], num_encoder_layers=1,
        nhead=8, dim_feedforward=1024, dropout=0.0, enc_act="gelu", pe_temperature=10000, expansion=1.0, depth_mult=1,
        act="silu", eval_spatial_size=frame,
    )  # fmt: skip
    decoder = importlib.import_module(zoo + "rtdetr_decoder").RTDETRTransformer(
        num_classes=len(size.classes), position_embed_type="sine", num_decoder_points=4, nhead=8, dim_feedforward=1024,
        dropout=0.0, activation="relu", label_noise_ratio=0.5, box_noise_scale=1.0, learnt_init_query=False, eps=1e-2,
        aux_loss=True, feat_channels=maps, feat_strides=strides, hidden_dim=256, num_levels=3, num_queries=QUERIES,
        num_decoder_layers=6, num_denoising=100, eval_idx=-1, eval_spatial_size=frame,
    )  # fmt: skip
    memory = importlib.import_module("evlearn.nn.temporal.conv_lstm").TemporalConvLSTM(
        fpn_shapes=[(256, frame[0] // stride, frame[1] // stride) for stride in strides],
        n_layers_list=[1, 1, 1], hidden_features_list=maps, kernel_size_list=[3, 3, 3], rezero=False,
    )  # fmt: skip
    post = importlib.import_module(zoo + "rtdetr_postprocessor").RTDETRPostProcessor(
        num_top_queries=QUERIES, num_classes=len(size.classes), use_focal_loss=True, remap_mscoco_category=False
    )
    decoder.anchors, decoder.valid_mask = decoder.anchors.to(device), decoder.valid_mask.to(device)
    parts = {"backbone": backbone, "encoder": encoder, "memory": memory, "decoder": decoder, "post": post.deploy()}
    network = PublicEvrt(parts, size, device)
    sys.path[:0] = [str(peers / "rvt")]  # EvRT-DETR reads frames that are made by a program on the CPU
    return network, stacked_histogram(peers, size)


PUBLIC: dict[str, Callable[[Path, Size, str], tuple[PublicNetwork, Any]]] = {
    "RVT-B": lambda peers, size, device: public_yolox(peers, size, device, folder="rvt"),
    "S5-ViT-B": lambda peers, size, device: public_yolox(peers, size, device, folder="ssms"),
    "EvRT-DETR-B": public_evrt,
}


if __name__ == "__main__":
    main()
