"""One interface for the runtimes that run exported graphs on a CPU.

    session = open_session("nano.onnx", "onnxruntime")
    outputs = session({"image": image, ...})          # arrays by name

Both runtimes compute in float32, also where a processor could do so in 16 bits: boxes must not depend on it. Only
"openvino-bf16" computes in bfloat16, on processors with instructions for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from fate.errors import PACKAGES, FateError, missing_packages
from fate.inference.backends.bfloat16 import refuse_processor

#: Where the part of a detector behind its encoder runs; "auto" is the fastest by measurement, in float32.
Backend = Literal["auto", "torch", "onnxruntime", "openvino", "openvino-bf16"]
#: The backend in bfloat16.
BF16: Backend = "openvino-bf16"
#: Suffixes of the files that ``fate export`` writes, and the runtimes that read them, the usual one first.
GRAPH_FILES: dict[str, tuple[Backend, ...]] = {
    ".onnx": ("onnxruntime", "openvino", BF16),
    ".xml": ("openvino", BF16),
}
#: How names of FATE's facts begin in the metadata of a file.
PREFIX = "fate."
#: The input with the image of the encoder [B, C, H, W].
IMAGE = "image"


class Session(Protocol):
    """A graph in a runtime, for one thread at a time."""

    backend: Backend
    inputs: dict[str, tuple[int, ...]]  #: shapes by name
    outputs: tuple[str, ...]
    facts: dict[str, Any]  #: what ``fate export`` has written about the detector, without ``PREFIX``

    def __call__(self, feed: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Outputs by name; they stay valid after the next call."""


def open_session(path: str | Path, backend: Backend) -> Session:
    """Open a graph in a backend other than torch, with as many threads as torch has."""
    require_packages(backend, (_package(backend),))
    if backend == BF16:
        refuse_processor()
    return OnnxRuntimeSession(path) if backend == "onnxruntime" else OpenVinoSession(path, backend)


def check_backend(backend: str, device: str | torch.device = "cpu") -> None:
    """Refuse an unknown backend, one that is not installed, and one that cannot use the device."""
    if backend not in get_args(Backend):
        raise FateError(f"backend={backend!r} was given; expected one of {', '.join(get_args(Backend))}")
    if backend in ("auto", "torch"):
        return
    if torch.device(device).type != "cpu":
        raise FateError(f"backend={backend} was given for the device {device}; it runs on the CPU: give device=cpu")
    require_packages(backend, (_package(backend), *PACKAGES["export"]))
    if backend == BF16:
        refuse_processor()


def _package(backend: str) -> str:
    return backend.removesuffix("-bf16")


def installed_backends() -> list[Backend]:
    """Backends for float32 that can run weights here: others than torch need their package and those of export."""
    exporting = all(find_spec(name) is not None for name in PACKAGES["export"])
    exact: tuple[Backend, ...] = ("onnxruntime", "openvino")
    return ["torch", *(name for name in exact if exporting and find_spec(name) is not None)]


def require_packages(backend: str, packages: tuple[str, ...]) -> None:
    """Raise an error with the pip line if packages are missing."""
    missing = [name for name in dict.fromkeys(packages) if find_spec(name) is None]
    if missing:
        raise missing_packages(f"backend={backend}", missing)


class OnnxRuntimeSession:
    """A graph in ONNX Runtime."""

    backend: Backend = "onnxruntime"

    def __init__(self, path: str | Path) -> None:
        import onnxruntime  # noqa: PLC0415  (an optional package)

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        # Otherwise its threads keep the processors busy between two windows, when the encoder needs them.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        with _readable(path):
            # A sum and the norm that follows take longer as one operation.
            self._session: Any = onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
            )
        self.inputs = {value.name: tuple(value.shape) for value in self._session.get_inputs()}
        self.outputs = tuple(value.name for value in self._session.get_outputs())
        self.facts = parsed(path, self._session.get_modelmeta().custom_metadata_map)

    def __call__(self, feed: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        given = {name: np.ascontiguousarray(value) for name, value in feed.items()}
        return dict(zip(self.outputs, self._session.run(self.outputs, given), strict=True))


class OpenVinoSession:
    """A graph in OpenVINO.

    Images are given to it with channels last in memory, as the encoder stores them and as its convolutions read them.
    It reads inputs where they are, and writes outputs to new arrays, so that the next state is not copied twice.
    """

    def __init__(self, path: str | Path, backend: Backend = "openvino", also: Sequence[str] = ()) -> None:
        """``also``: names of values inside the graph that become outputs, too."""
        import openvino  # noqa: PLC0415  (an optional package)

        self.backend: Backend = backend

        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if backend == BF16 else "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        with _readable(path):
            model = openvino.Core().read_model(path)
            if also:
                model.add_outputs(list(also))
            self.inputs = {value.any_name: tuple(value.shape) for value in model.inputs}
            self.outputs = tuple(value.any_name for value in model.outputs)
            given = model.get_rt_info(["framework"]).value if model.has_rt_info(["framework"]) else {}
            layouts = openvino.preprocess.PrePostProcessor(model)
            if IMAGE in self.inputs:
                layouts.input(IMAGE).tensor().set_layout(openvino.Layout("NHWC"))
                layouts.input(IMAGE).model().set_layout(openvino.Layout("NCHW"))
            self._request: Any = openvino.compile_model(layouts.build(), "CPU", settings).create_infer_request()
            self._outputs = [
                (value.any_name, tuple(value.shape), value.element_type.to_dtype())
                for value in self._request.model_outputs
            ]
        self._tensor, self._given = openvino.Tensor, dict[str, NDArray[Any]]()
        self.facts = parsed(
            path, {name: value if isinstance(value, str) else value.astype(str) for name, value in given.items()}
        )

    def __call__(self, feed: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        for number, (name, shape) in enumerate(self.inputs.items()):
            value = feed[name]
            if value is self._given.get(name):
                continue
            if value.shape != shape:  # or a smaller one would be repeated
                raise FateError(f"{name} of shape {value.shape} was given to a graph; expected {shape}")
            data = value.transpose(0, 2, 3, 1) if name == IMAGE else value
            if not (data.flags.c_contiguous and data.flags.writeable):
                data = data.copy()
            self._request.set_input_tensor(number, self._tensor(data, shared_memory=True))
            self._given[name] = data
        found = {}
        for number, (name, shape, kind) in enumerate(self._outputs):
            found[name] = np.empty(shape, kind)
            self._request.set_output_tensor(number, self._tensor(found[name], shared_memory=True))
        self._request.infer()
        return found


def parsed(path: str | Path, metadata: dict[str, str]) -> dict[str, Any]:
    """FATE's facts of a file by name; a file of another program has none."""
    try:
        return {
            name.removeprefix(PREFIX): json.loads(text) for name, text in metadata.items() if name.startswith(PREFIX)
        }
    except ValueError:
        raise FateError(f"{path}: its description is damaged; export the detector again (fate export)") from None


@contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    """Turn what a runtime raises about a file into one sentence; both have classes of their own for all faults."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise FateError(f"{path}: cannot be run ({reason}); export the detector again (fate export)") from None
