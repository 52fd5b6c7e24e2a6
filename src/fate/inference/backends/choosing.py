"""Prepares a detector for a backend, and measures which of the installed ones is the fastest here.

    faster = run_in(detector, "auto", say=print)

The graph of a detector is exported once and kept in the user's cache folder, as is the result of the measurement: both
belong to the weights, the sensor, the code of FATE and the versions of the packages, the measurement to the machine and
its threads too.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fate.errors import FateError, warn
from fate.files import user_cache
from fate.inference.backends.bfloat16 import refuse_detector
from fate.inference.backends.graph_detector import GraphDetector
from fate.inference.backends.lean_detector import LeanDetector
from fate.inference.backends.sessions import BF16, Backend, check_backend, installed_backends, open_session
from fate.inference.graph_check import clip, compare, compare_detectors, refuse_above
from fate.inference.lean_graph import LeanGraph, can_be_lean
from fate.inference.step_graph import StepGraph, described
from fate.inference.streaming_step import compile_for_streaming
from fate.models.detector import Detector
from fate.models.layers.image_history import ImageHistory
from fate.version import __version__
from fate.whole_files import write_whole

#: Called with a line about the work.
Say = Callable[[str], object]
#: Windows of a clip, the rate of the windows that are measured, rounds that are measured, and rounds before them.
CLIP, HZ, ROUNDS, FIRST_ROUNDS = 16, 200.0, 8, 2
#: Graphs, and measurements, that are kept.
MOST_FILES = 50
#: Operators of the graphs; both runtimes have them. With 20, GELU is one operation.
OPSET = 20


def run_in(
    detector: Detector,
    backend: Backend,
    device: str | torch.device = "cpu",
    *,
    clips: bool = False,
    say: Say | None = None,
) -> Detector:
    """The detector, which is not changed, for a backend; itself for torch, and always on a GPU with "auto".

    Args:
        detector: with weights. An exported one stays in the runtime that it was opened with.
        backend: "torch", "onnxruntime", "openvino" or "openvino-bf16", or "auto" for the fastest of the first three by
            measurement.
        device: where the encoder runs.
        clips: whether windows are detected 16 at a time, as those of files are; torch is faster then. For "auto".
        say: called with what is prepared and what was chosen.
    """
    check_backend(backend, device)
    if isinstance(detector, GraphDetector) or backend == "torch" or torch.device(device).type == "cuda":
        return detector
    if backend == BF16:
        refuse_detector(detector)
    if backend == "auto":
        backend = choose(detector, clips, say)
    return detector if backend == "torch" else _in_graph(detector, backend, say)


def choose(detector: Detector, clips: bool = False, say: Say | None = None) -> Backend:
    """The fastest installed backend for a detector, measured once on this machine."""
    backends = installed_backends()
    file = user_cache("backends") / f"{_key(detector, clips, *_machine())}.json"
    try:
        measured: dict[Backend, float] = {
            name: float(ms) for name, ms in json.loads(file.read_text(encoding="utf-8")).items()
        }
        known = set(measured) == set(backends)
    except (OSError, ValueError, TypeError, AttributeError):  # there is none, or it is damaged
        known = False
    if not known:
        if len(backends) == 1:
            return "torch"
        measured = measure(detector, backends, clips, say)
        _keep(file, json.dumps(measured).encode())
    best = min(measured, key=lambda name: measured[name])
    if say is not None:
        times = ", ".join(f"{name} {ms:.1f}" for name, ms in sorted(measured.items(), key=lambda each: each[1]))
        how = "in clips of 16, " if clips else ""
        say(f"backend: {best} (ms a window, {how}measured on this machine: {times})")
    return best


def graph_file(detector: Detector, say: Say | None = None) -> Path:
    """The graph of a detector for one stream, in the user's cache folder, lean if possible; it agrees with PyTorch.

    It takes completed images if the detector has a history of images.
    """
    is_lean = can_be_lean(detector)
    file = user_cache("graphs") / f"{_key(detector, *['lean'] * is_lean)}.onnx"
    if file.exists():
        return file
    if say is not None:
        say(f"exporting the detector for {detector.sensor} once, which takes some ten seconds; kept in {file.parent}")
    exact = copy.deepcopy(detector).cpu().float().eval()
    step = LeanGraph(exact) if is_lean else StepGraph(exact.behind_history(), 1)
    content = described(step, exact, OPSET).SerializeToString()
    batches = clip(None, exact.sensor, HZ, 10, 1)
    with TemporaryDirectory() as folder:
        draft = Path(folder) / file.name
        draft.write_bytes(content)
        if isinstance(step, LeanGraph):
            lean = LeanDetector(open_session(draft, "onnxruntime"), exact)
            without_kernel_(exact)
            refuse_above(compare_detectors(lean, exact, batches, LeanDetector.as_in_torch))
        else:
            history = copy.deepcopy(exact.history)
            without_kernel_(exact)
            refuse_above(compare(draft, step, exact, batches, history=history))
    if not _keep(file, content):
        raise FateError(f"{file}: an exported detector must be kept there; set FATE_CACHE_DIR to a folder with space")
    return file


def without_kernel_(detector: Detector) -> None:
    """Let the history of images run in PyTorch, so that its kernel is compared with that."""
    if isinstance(detector.history, ImageHistory):
        detector.history.compiled = False


def _in_graph(detector: Detector, backend: Backend, say: Say | None) -> GraphDetector:
    session = open_session(graph_file(detector, say), backend)
    if can_be_lean(detector):
        return LeanDetector(session, detector)
    encoder, history = copy.deepcopy((detector.encoder, detector.history))
    pairs = session.facts["state_pairs"]
    return GraphDetector(session, encoder, detector.frame, detector.classes, detector.description, pairs, history)


def measure(
    detector: Detector, backends: Sequence[Backend], clips: bool = False, say: Say | None = None
) -> dict[Backend, float]:
    """Milliseconds a window in each backend, in turns: the median, from events to boxes."""
    windows = CLIP if clips else 1
    run = {name: compile_for_streaming(run_in(detector, name, say=say)) for name in backends}
    spent: dict[Backend, list[float]] = {name: [] for name in backends}
    for batch in clip(
        None, detector.sensor, HZ, ROUNDS + FIRST_ROUNDS, windows
    ):  # as many windows in each as a call takes
        for name, step in run.items():
            began = time.perf_counter()
            step(batch, windows)
            spent[name].append((time.perf_counter() - began) / windows)
    return {name: 1000 * float(np.median(times[FIRST_ROUNDS:])) for name, times in spent.items()}


def _machine() -> tuple[str, ...]:
    return (
        platform.node(),
        platform.machine(),
        platform.processor(),
        str(os.cpu_count()),
        str(torch.get_num_threads()),
    )


def _key(detector: Detector, *more: object) -> str:
    """A name for what was made of a detector: any change of weights, sensor or versions gives another one."""
    digest = hashlib.sha256()
    for name, value in detector.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    packages = ("torch", "onnx", "onnxscript", "onnxruntime", "openvino")
    versions = [__version__, *(version(name) for name in packages if find_spec(name) is not None)]
    facts = [type(detector.encoder).__name__, detector.description, list(detector.sensor), versions, *map(str, more)]
    digest.update(json.dumps(facts, sort_keys=True).encode())
    digest.update(hash_of_code())
    return digest.hexdigest()[:32]


@cache
def hash_of_code() -> bytes:
    """A hash of the package, which decides what a graph computes and how fast it is called."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[2].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


def _keep(file: Path, content: bytes) -> bool:
    """Write a file of the cache, and remove the oldest ones of its kind; warn if that fails."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)
        stored = sorted(file.parent.glob(f"*{file.suffix}"), key=lambda each: each.stat().st_mtime)
        for old in stored[:-MOST_FILES]:
            old.unlink(missing_ok=True)
    except (OSError, FateError) as error:
        warn(f"{file}: could not be kept ({error}); it is made again next time (set FATE_CACHE_DIR to another folder)")
        return False
    return True
