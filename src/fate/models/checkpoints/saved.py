"""Weights on disk: one safetensors file with a description of the detector.

The header of the file holds JSON under ``fate``: the arguments that build the detector (name, classes, sensor, encoder,
options) and facts about the weights (canonical rate, version and git hash of the code, protocol, training). Nothing in
a file is ever executed. ``fate import-checkpoint`` reads the files of the public projects.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fate.errors import FateError
from fate.files import MissingFileError
from fate.models.checkpoints.public_files import kind_of
from fate.models.detector import Detector
from fate.models.table import MODELS
from fate.models.zoo import rebuild
from fate.rates import CANONICAL_US
from fate.text import suggest_name
from fate.version import full_version, git_hash
from fate.whole_files import write_whole

FORMAT = 1
SHOWN = 5  #: names listed for each kind of mismatch
LARGE = 4096  #: smallest number of elements of a tensor that ``save_model(dtype=…)`` converts
#: Fields of a detector's description.
FIELDS = ("name", "classes", "sensor", "encoder", "encoder_options", "stem", "options")


def save_model(
    detector: Detector, path: str | Path, dtype: torch.dtype | None = None, facts: Mapping[str, Any] | None = None
) -> None:
    """Write the weights and the description of a detector; an existing file is replaced atomically.

    Args:
        detector: built by ``zoo.build_model``.
        path: ends in ``.safetensors``.
        dtype: type in which weights are stored, such as torch.float16 for small files; None for their own.
        facts: further entries of the header, as JSON values: ``protocol``, ``training`` (a summary), ``git_hash`` (by
            default that of the running code), and others.
    """
    target = Path(path)
    if target.suffix != ".safetensors":
        raise FateError(f"{target}: weights were to be saved under this name; expected one that ends in .safetensors")
    if not detector.description:
        raise FateError("a detector without a description was given; build it with fate.build_model")
    card = {
        "protocol": None,
        "training": None,
        "git_hash": git_hash(),
        **(facts or {}),
        "format": FORMAT,
        "model": detector.description,
        "canonical_hz": 1e6 / CANONICAL_US,
        "version": full_version(),
    }
    try:
        metadata = {"fate": json.dumps(card)}
    except (TypeError, ValueError) as error:
        raise FateError(
            f"{target}: the facts about the weights cannot be written as JSON ({error}); give numbers, texts, lists"
            " and dictionaries"
        ) from None
    if not target.parent.is_dir():
        raise FateError(f"{target}: the folder {target.parent} does not exist; make it first")
    content = save({name: _stored(value, dtype) for name, value in detector.state_dict().items()}, metadata)
    write_whole(target, content)


def read_card(path: str | Path) -> dict[str, Any]:
    """Read the description in the header of a file."""
    source = Path(path)
    try:
        kind = kind_of(source, "a .safetensors file")
    except MissingFileError:
        raise FateError(_missing(source)) from None
    if kind in ("zip", "pickle"):  # never read here
        raise FateError(
            f"{source}: a pickled checkpoint, which could run any code when opened; expected a .safetensors file:"
            f" fate import-checkpoint {source} OUT.safetensors reads the weights of the public projects safely"
        )
    with _opened(source) as file:
        text = (file.metadata() or {}).get("fate")
    if text is None:
        raise FateError(
            f"{source}: a safetensors file without FATE's description; expected one written by fate"
            f" (fate import-checkpoint {source} OUT.safetensors reads the files of other projects)"
        )
    try:
        card: dict[str, Any] = json.loads(text)
        newer = card["format"] > FORMAT
        whole = newer or set(card["model"]) == set(FIELDS)
    except (ValueError, KeyError, TypeError, RecursionError):
        newer = whole = False
    if newer:
        raise FateError(f"{source}: written by a newer FATE ({card.get('version')}); install the newest version")
    if not whole:
        raise FateError(f"{source}: the description in the header is damaged; copy or download the file again")
    return card


def record_accuracy(path: str | Path, measured: Iterable[tuple[float, int, float]]) -> None:
    """Add measurements (rate in Hz, length of windows in µs, AP50:95 in percent) to the header of a file.

    They replace earlier ones of the same rate and length. Streams choose the length of their windows by them.
    """
    kept = {}
    for hz, length_us, ap in (*read_card(path).get("accuracy", ()), *measured):
        kept[float(hz), int(length_us)] = round(float(ap), 2)
    add_facts(path, {"accuracy": [[*where, ap] for where, ap in sorted(kept.items())]})


def add_facts(path: str | Path, facts: Mapping[str, Any]) -> None:
    """Add entries to the header of a file; its weights stay as they are."""
    card = {**read_card(path), **facts}
    with _opened(path) as file:
        entries = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    write_whole(path, save(entries, {"fate": json.dumps(card)}))


def is_own(path: str | Path) -> bool:
    """Whether a file has the header that ``save_model`` writes."""
    if not Path(path).is_file():
        return False
    try:
        with _opened(path) as file:
            return "fate" in (file.metadata() or {})
    except FateError:
        return False


def load_model(path: str | Path) -> Detector:
    """Load the detector of a file, in evaluation mode, on the CPU."""
    card = read_card(path)
    try:
        detector = rebuild(card["model"])
    except FateError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError):
        raise FateError(f"{path}: the description in the header is damaged; copy or download the file again") from None
    with _opened(path) as file:
        entries = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    fill(detector, path, entries)
    return detector.eval()


def check_entries(source: str | Path, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse weights that do not fit; the error lists names that are missing, unexpected, or of another shape."""
    missing, unexpected = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    misshapen = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in sorted(given.keys() & expected.keys())
        if given[name].shape != expected[name].shape
    ]
    parts = [
        f"{len(names)} {kind} ({', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''})"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
        if names
    ]
    if parts:
        raise FateError(f"{source}: the weights do not fit the model: {'; '.join(parts)}")


def fill(detector: Detector, source: str | Path, entries: Mapping[str, Tensor], fresh: Collection[str] = ()) -> None:
    """Load the entries of a file into a detector; all entries of the detector but the ``fresh`` ones are required."""
    own = detector.state_dict()
    check_entries(source, entries, {name: value for name, value in own.items() if name not in fresh})
    for name, value in entries.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise FateError(
                f"{source}: {name} holds numbers that are not finite; the file is damaged, or its training diverged"
            )
    detector.load_state_dict({**own, **entries})


@contextmanager
def _opened(source: str | Path) -> Iterator[Any]:
    """Open a safetensors file."""
    try:
        with safe_open(source, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise FateError(f"{source}: not a whole safetensors file ({error}); copy or download it again") from None


def _stored(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Convert a tensor for saving. Small tensors keep their type: statistics and time constants need all digits."""
    value = value.detach().cpu()
    if dtype is not None and value.is_floating_point() and value.numel() >= LARGE:
        value = value.to(dtype)
    return value.contiguous().clone()


def _missing(source: Path) -> str:
    """The error for a file that does not exist; the name may be meant as the name of a model."""
    name = str(source)
    if name in MODELS:
        return (
            f"{name}: no file has this name; give a .safetensors file, take fate.load_detector({name!r}) where weights"
            f" come with the package, or make a detector with fresh ones: fate.build_model({name!r}, classes, sensor)"
        )
    meant = suggest_name(name, MODELS) if source.name == name and not source.suffix else ""
    return f"{name}: there is no such file, and no model of this name; expected a .safetensors file{meant}"
