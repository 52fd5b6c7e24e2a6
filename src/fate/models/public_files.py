"""Tensors out of the files that other projects write, without running anything that is in them.

A PyTorch checkpoint is a pickle: a program that may import and call whatever its author wrote. torch's own
``weights_only`` reader runs only what tensors need, and everything is read with it first. Lightning checkpoints, which
RVT and S5-ViT publish, often hold configurations and schedulers as objects of other packages too, and that reader
refuses them whole. Such a file is read once more by ``_ShellUnpickler``, which puts tensors together by itself and
an empty shell, which keeps nothing and does nothing, in the place of everything else.
"""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from fate.errors import FateError

#: What a file is by its first bytes.
Kind = Literal["safetensors", "zip", "pickle", "unknown"]
#: Bytes of the longest header that a safetensors file may have.
LONGEST_HEADER = 100_000_000
#: What the numbers of a tensor are, by the class that a pickle names for them.
STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
#: Where projects put the state_dict, from the outside to the inside.
HOMES = ("state_dict", "model", "ema")


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name: a PyTorch file, a Lightning one, safetensors, or a folder of such files.

    Of a folder as EvRT-DETR writes it, names begin with that of their file: ``net_backbone.pth::_net.conv1…``. Of one
    as transformers writes it, ``model.safetensors`` is read.
    """
    source = Path(path)
    if source.is_dir():
        return _tensors_of_folder(source)
    kind = kind_of(source)
    if kind == "safetensors":
        try:
            return dict(load_file(source))
        except Exception as error:  # whatever a damaged header makes of it
            raise FateError(
                f"{source}: not a whole safetensors file ({_line(error)}); copy or download it again"
            ) from None
    if kind == "unknown":
        raise FateError(f"{source}: neither a PyTorch checkpoint nor a safetensors file")
    return _named_tensors(source, _unpickled(source, kind))


def kind_of(path: str | Path) -> Kind:
    """What a file is, by its first bytes.

    A safetensors file begins with the length of its header as eight bytes, which can look like the start of a pickle
    or of a zip file; the brace that follows cannot.
    """
    try:
        with Path(path).open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise FateError(f"{path}: cannot be read ({error.strerror})") from None
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= LONGEST_HEADER:
        return "safetensors"
    if start.startswith(b"PK\x03\x04"):
        return "zip"
    return "pickle" if start.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")) else "unknown"


def _tensors_of_folder(folder: Path) -> dict[str, Tensor]:
    try:
        names = sorted(file.name for file in folder.iterdir())
    except OSError as error:
        raise FateError(f"{folder}: cannot be read ({error.strerror})") from None
    parts = [name for name in names if name.startswith("net_") and name.endswith(".pth")]
    if parts:
        return {f"{part}::{name}": value for part in parts for name, value in read_tensors(folder / part).items()}
    if "model.safetensors" in names:
        return read_tensors(folder / "model.safetensors")
    raise FateError(
        f"{folder}: a folder without net_*.pth and without model.safetensors; expected a checkpoint of EvRT-DETR, or of"
        " RT-DETR in the layout of transformers"
    )


def _unpickled(source: Path, kind: Kind) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what the errors below say in one sentence
            return torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # mostly for objects of other packages
        if kind == "pickle":
            raise FateError(
                f"{source}: a PyTorch file of the old kind that holds more than tensors ({_line(error)}); where you"
                " trust it, load it and save its state_dict alone"
            ) from None
    except Exception as error:  # a damaged file fails in any place inside torch, and in any way
        if kind == "zip" and _is_other_archive(source):
            raise FateError(f"{source}: an archive of files; unpack it and give the checkpoint inside") from None
        raise FateError(f"{source}: damaged ({_line(error)}); copy or download it again") from None
    try:
        return _read_with_shells(source)
    except Exception as error:
        raise FateError(
            f"{source}: damaged, or its tensors are such as only its own code could read ({_line(error)})"
        ) from None


def _is_other_archive(source: Path) -> bool:
    """Whether a zip file is whole and was not written by torch."""
    try:
        with zipfile.ZipFile(source) as archive:
            return not any(name.endswith("data.pkl") for name in archive.namelist())
    except Exception:  # a damaged one fails in many ways
        return False


def _read_with_shells(source: Path) -> Any:
    with zipfile.ZipFile(source) as archive:
        (program,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = program.removesuffix("data.pkl")
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ValueError("torch writes no compressed files")  # and a small one could swell without end
        if f"{folder}byteorder" in archive.namelist() and archive.read(f"{folder}byteorder") != b"little":
            raise ValueError("bytes in another order")
        return _ShellUnpickler(archive, folder).load()


class _Shell:
    """Stands for an object of another package: takes any arguments and any state, and forgets them."""

    def __new__(cls, *_: Any, **__: Any) -> _Shell:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> _Shell:
        return self

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def append(self, _: Any) -> None:
        pass

    def extend(self, _: Any) -> None:
        pass

    def add(self, _: Any) -> None:
        pass


class _ShellUnpickler(pickle.Unpickler):
    """Reads ``data.pkl`` of a checkpoint; the numbers of each tensor lie beside it, in a file of their own.

    A pickle can call, and set attributes of, whatever ``find_class`` gives it. So that is never an object that others
    use: methods and types here, and torch's dtypes, none of which can be changed.
    """

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{folder}data.pkl")))
        self._archive, self._folder = archive, folder
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return self._parameter
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        return _Shell

    def persistent_load(self, pid: Any) -> Tensor:
        """All numbers of a storage [numbers]."""
        _, dtype, key, _, count = pid
        if key not in self._storages:
            content = bytearray(self._archive.read(f"{self._folder}data/{key}"))
            numbers = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
            if len(numbers) != count:
                raise ValueError(f"{len(numbers)} numbers instead of {count}")
            self._storages[key] = numbers
        return self._storages[key]

    def _tensor(self, storage: Tensor, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> Tensor:
        return storage.as_strided(size, stride, offset)  # which refuses to leave the storage

    def _parameter(self, tensor: Tensor, *_: Any) -> Tensor:
        return tensor


def _named_tensors(source: Path, content: Any) -> dict[str, Tensor]:
    """The state_dict, wherever projects put it."""
    for key in HOMES:
        inner = content.get(key) if isinstance(content, Mapping) else None
        if isinstance(inner, Mapping):
            content = inner
    if not isinstance(content, Mapping):
        held = "an object of another package" if isinstance(content, _Shell) else f"a {type(content).__name__}"
        raise FateError(f"{source}: holds {held}; expected named tensors, or a state_dict of them")
    tensors = {str(name): value.detach() for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise FateError(f"{source}: holds no tensors; expected a checkpoint of a public detector")
    for name, value in tensors.items():
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise FateError(f"{source}: {name} is not a plain tensor; expected numbers, one after the other")
    return tensors


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
