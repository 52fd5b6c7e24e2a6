"""Loads detectors by name or path, for streams or as they were trained.

torch is loaded only with a detector, because it takes seconds: commands look for the weights before that.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fate.data.box_files import small_sensor
from fate.data.class_maps import PUBLIC
from fate.errors import FateError
from fate.events.events import Sensor
from fate.models.table import NAMES
from fate.text import suggest_name

if TYPE_CHECKING:
    import torch

    from fate.inference.backends.choosing import Say
    from fate.inference.backends.sessions import Backend
    from fate.inference.stream import StreamingDetector
    from fate.inference.stream_types import Accuracy
    from fate.inference.streaming_step import Precision
    from fate.models.detector import Detector

    #: What every function accepts as a detector; see :func:`as_detector`.
    Model: TypeAlias = str | PathLike[str] | Detector | StreamingDetector
else:
    Model = object  # the classes above would load torch

#: Folder of the weights that come with the package.
WEIGHTS = Path(__file__).resolve().parents[1] / "weights"
#: The default detector.
DEFAULT_DETECTOR = "fate-s-tiny"
#: The fastest bundled detector on a CPU, by a factor of about three.
FASTEST_ON_A_CPU = "fate-s-nano"


#: Suffixes of files with weights; ``load_trained`` says what to do with those of other projects.
WEIGHT_FILES = (".safetensors", ".ckpt", ".pth", ".pt")
#: Suffixes of detectors that ``fate export`` has written; they run in another runtime.
EXPORTED_FILES = (".onnx", ".xml")


def choose_device(device: str) -> str:
    """The device that a name means: ``"auto"`` is ``"cuda"`` if torch sees a GPU, otherwise ``"cpu"``."""
    if device != "auto":
        return device
    import torch  # noqa: PLC0415  (it takes seconds to load)

    return "cuda" if torch.cuda.is_available() else "cpu"


def as_detector(model: Model, backend: Backend = "torch") -> Detector:
    """The detector of what functions accept as one: a detector, a streaming one, a bundled name, a file.

    ``backend`` is for exported files; see :func:`load_detector`.
    """
    if isinstance(model, str | PathLike):
        return _load_exported(model, backend)[0] if _is_exported(model) else load_trained(model)
    from fate.inference.stream import StreamingDetector  # noqa: PLC0415  (torch takes seconds to load)

    return model.model if isinstance(model, StreamingDetector) else model


def means_a_model(what: Model) -> bool:
    """Whether ``what`` is or names a detector, rather than a file or folder of predictions."""
    if not isinstance(what, str | PathLike):
        return True
    text = fspath(what)
    is_name = text in bundled_weights() or (text in NAMES and not Path(text).exists())
    return is_name or text.lower().endswith(WEIGHT_FILES + EXPORTED_FILES)


def load_detector(
    name_or_path: Model,
    device: str | torch.device = "cpu",
    precision: Precision | None = None,
    backend: Backend = "torch",
    say: Say | None = None,
) -> StreamingDetector:
    """Load a trained detector.

    Args:
        name_or_path: a name whose weights come with the package, a ``.safetensors`` file, a file that ``fate export``
            wrote (.onnx, .xml), or a detector; what this function has returned is returned as it is.
        device: "cpu" or "cuda".
        precision: of matrix products: "float32", or on a GPU "tf32", "bfloat16" or "float16" (not for GET,
            nor with length_affine); None for the device's default.
        backend: what runs the part behind the encoder on a CPU: "torch", "onnxruntime", "openvino", "openvino-bf16",
            which rounds to bfloat16 (detectors with S5, and processors that compute with it), or "auto" for the
            fastest of the first three that is installed, measured once on this machine. A GPU always uses torch. The
            first use of another backend than torch exports the detector, which takes some ten seconds. An exported
            file runs in ONNX Runtime (.onnx) or OpenVINO (.xml), unless another one that can read it is given.
        say: called with a line about what is prepared and which backend was chosen.

    Example:
        >>> detector = fate.load_detector("fate-s-tiny")                     # doctest: +SKIP
        >>> for frame in detector.stream("drive.raw", hz=200):               # doctest: +SKIP
        ...     print(frame.t_us, frame.boxes, frame.scores, frame.class_ids)
    """
    from fate.inference.stream import StreamingDetector  # noqa: PLC0415  (torch takes seconds to load)

    if isinstance(name_or_path, StreamingDetector):
        return name_or_path
    if not isinstance(name_or_path, str | PathLike):
        return StreamingDetector(name_or_path, device, precision, backend=backend, say=say)
    given = fspath(name_or_path)
    name = given if given in bundled_weights() else Path(given).stem
    from fate.inference.score_calibration import ScoreCalibration  # noqa: PLC0415
    from fate.inference.stream_types import Accuracy  # noqa: PLC0415
    from fate.models.checkpoints import read_card  # noqa: PLC0415

    if _is_exported(given):
        model, card = _load_exported(given, backend)
        backend = "auto"
    else:
        model, card = load_trained(given), read_card(find_weights(given))
    accuracy = [Accuracy(*entry) for entry in card.get("accuracy", ())]
    facts = training_downscale(card), accuracy, ScoreCalibration.of(card), training_sensors(card)
    return StreamingDetector(model, device, precision, name, *facts, backend=backend, say=say)


def training_downscale(card: Mapping[str, Any]) -> int:
    """The downscaling of the recordings that a detector was trained on, by the header of its weights.

    Weights that do not say it, such as those of other projects, have the one that is usual for a sensor of their size.
    """
    stated = (card.get("training") or {}).get("downscale")
    usual = {small_sensor(public.sensor, public.downscale): public.downscale for public in PUBLIC.values()}
    return int(stated or usual.get(Sensor.of(card["model"]["sensor"]), 1))


def training_sensors(card: Mapping[str, Any]) -> tuple[Sensor, ...]:
    """The sensors whose events a detector saw in training, by the header of its weights: at least that of the model."""
    sizes = (card.get("training") or {}).get("sensors", [card["model"]["sensor"]])
    return tuple(Sensor.of(size) for size in sizes)


def known_sensors(model: Model) -> tuple[Sensor, ...]:
    """The sensors whose events a model saw in training, if it says so: weights and loaded weights do."""
    from fate.inference.stream import StreamingDetector  # noqa: PLC0415  (torch takes seconds to load)
    from fate.models.checkpoints import read_card  # noqa: PLC0415

    if isinstance(model, StreamingDetector):
        return tuple(model.sensors)
    if not isinstance(model, str | PathLike) or _is_exported(model):
        return ()
    return training_sensors(read_card(find_weights(model)))


def known_accuracy(model: Model) -> list[Accuracy]:
    """AP by rate and length of windows that a model states, if it does: weights and loaded weights do."""
    from fate.inference.stream import StreamingDetector  # noqa: PLC0415  (torch takes seconds to load)
    from fate.inference.stream_types import Accuracy  # noqa: PLC0415
    from fate.models.checkpoints import read_card  # noqa: PLC0415

    if isinstance(model, StreamingDetector):
        return list(model.accuracy)
    if not isinstance(model, str | PathLike) or _is_exported(model):
        return []
    return [Accuracy(*entry) for entry in read_card(find_weights(model)).get("accuracy", ())]


def load_trained(name_or_path: str | PathLike[str]) -> Detector:
    """The detector of a bundled name or of a ``.safetensors`` file, in evaluation mode, on the CPU.

    A bundled name has priority over a file of the same name; ``./NAME`` is the file.
    """
    path = find_weights(name_or_path)
    if _is_exported(path):
        raise FateError(
            f"{path}: an exported detector was given where weights are needed; give the .safetensors file or the name"
            " that it was exported from"
        )
    from fate.models.checkpoints import load_model  # noqa: PLC0415  (torch takes seconds to load)

    return load_model(path)


def _is_exported(name_or_path: str | PathLike[str]) -> bool:
    return fspath(name_or_path).lower().endswith(EXPORTED_FILES)


def _load_exported(path: str | PathLike[str], backend: Backend = "auto") -> tuple[Detector, dict[str, Any]]:
    """The detector of a file that ``fate export`` wrote, and what the header of its weights said."""
    from fate.inference.backends.graph_detector import read_graph  # noqa: PLC0415  (torch takes seconds to load)

    return read_graph(find_weights(path), "auto" if backend == "torch" else backend)


def find_weights(name_or_path: str | PathLike[str]) -> Path:
    """The file of a bundled name or of a path, without loading torch; anything else is refused."""
    given = fspath(name_or_path)
    bundled = bundled_weights()
    if given in bundled:
        return bundled[given]
    path = Path(given)
    if not path.exists():
        if path.suffix or path.name != given:
            raise FateError(
                f"{given}: there is no such file; expected a bundled name (fate models), a .safetensors file, or a file"
                " that fate export wrote"
            )
        known = given in NAMES
        asked = "weights of this model were asked for" if known else "no weights are bundled under this name"
        near = "" if known else suggest_name(given, [*bundled, *NAMES])
        raise FateError(
            f"{given}: {asked}, and no file has it; there are {', '.join(bundled) or 'none'}; train one (fate train"
            f" --help) and give its .safetensors file{near}"
        )
    return path


def bundled_weights() -> dict[str, Path]:
    """The files of the weights that come with the package, by name."""
    return {file.stem: file for file in sorted(WEIGHTS.glob("*.safetensors"))}
