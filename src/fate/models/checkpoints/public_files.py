"""Read the tensors of files of other projects without executing anything in them.

A PyTorch checkpoint is a pickle: a program that can import and call any code. It is read with torch's ``weights_only``
reader, which calls only what tensors need and refuses a file with any other name. But Lightning checkpoints, as RVT and
S5-ViT publish them, often hold configurations and schedulers as objects of other packages. So the names are collected
first, without executing the program, and the reader gets an empty class for each of them, which stores nothing and does
nothing. The same pass refuses values that are nested so deeply that Python's ``hash`` would overflow the stack.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from fate.errors import FateError
from fate.files import open_regular

#: Type of a file by its first bytes.
Kind = Literal["safetensors", "zip", "pickle", "unknown"]
LONGEST_HEADER = 100_000_000  #: largest header of a safetensors file in bytes
OLD_PROGRAMS = 5  #: pickles at the beginning of a file in torch's format from before zip files
#: Largest depth of nested tuples, and largest number of values in one, which computing its hash visits.
DEEPEST_TUPLE, LARGEST_TUPLE = 100, 1_000_000
MOST_NAMES = 1_000  #: classes and functions of other packages; a checkpoint has a few dozen
#: Keys under which projects store the state_dict, from the outside to the inside.
HOMES = ("state_dict", "model", "ema")


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint by name: a PyTorch or Lightning file, safetensors, or a folder of such files.

    In a folder of EvRT-DETR, names begin with the name of their file: ``net_backbone.pth::_net.conv1…``. In a folder of
    transformers, ``model.safetensors`` is read.
    """
    source = Path(path)
    if source.is_dir():
        return _tensors_of_folder(source)
    kind = kind_of(source)
    if kind == "safetensors":
        try:
            return dict(load_file(source))
        except Exception as error:  # a damaged header can cause any error
            raise FateError(
                f"{source}: not a whole safetensors file ({_line(error)}); copy or download it again"
            ) from None
    if kind == "unknown":
        raise FateError(f"{source}: neither a PyTorch checkpoint nor a safetensors file")
    return _named_tensors(source, _unpickled(source, kind))


def kind_of(path: str | Path, expected: str = "a checkpoint") -> Kind:
    """The type of a file by its first bytes.

    A safetensors file begins with eight bytes for the length of its header, which may equal the start of a pickle or of
    a zip file, and a brace, which no pickle or zip file has there.
    """
    try:
        with open_regular(path, expected) as file:
            start = file.read(9)
    except OSError as error:
        raise FateError(f"{path}: cannot be read ({error.strerror}); expected {expected}") from None
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
    """The content of a PyTorch file, with a ``_Shell``, a dict or a list in place of objects of other packages."""
    try:
        names = _survey_archive(source) if kind == "zip" else _survey_old_file(source)
        stand_ins: list[Any] = [(stand_in, name) for name, stand_in in names.items()]  # torch's own names come first
        with warnings.catch_warnings(), torch.serialization.safe_globals(stand_ins):
            warnings.simplefilter("ignore")  # the errors below say the same
            return torch.load(source, map_location="cpu", weights_only=True)
    except FateError:
        raise
    except pickle.UnpicklingError as error:
        raise FateError(
            f"{source}: holds more than tensors, and some of it only its own code could read ({_line(error)}); where"
            " you trust it, load it with that code and save its state_dict alone"
        ) from None
    except Exception as error:  # a damaged file can cause any error inside torch
        raise FateError(f"{source}: damaged ({_line(error)}); copy or download it again") from None


class _Shell:
    """Replaces an object of another package; ignores all arguments and state."""

    def __new__(cls, *_: Any, **__: Any) -> _Shell:
        return super().__new__(cls)

    def __setstate__(self, _: Any) -> None:
        pass


class _DictShell:
    """Replaces a class of dictionaries by dict, since the reader fills no others."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return {}


class _ListShell:
    """Replaces a class of lists by list."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return []


def _survey_archive(source: Path) -> dict[str, type]:
    """The names in the pickle of a zip file of torch."""
    with zipfile.ZipFile(source) as archive:
        files = archive.namelist()
        programs = [name for name in files if name.rpartition("/")[2] == "data.pkl"]
        if not programs:
            raise FateError(f"{source}: an archive of files; unpack it and give the checkpoint inside")
        if any(name.rpartition("/")[2] == "constants.pkl" for name in files):
            raise FateError(f"{source}: a TorchScript archive, which is a program; give the checkpoint behind it")
        # A small compressed file could expand to any size.
        if len(programs) > 1 or any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ValueError("torch writes one program and no compressed files")
        with archive.open(programs[0]) as program:
            return _survey(source, io.BytesIO(program.read()))


def _survey_old_file(source: Path) -> dict[str, type]:
    """The names in the five pickles at the beginning of a file in torch's old format."""
    names: dict[str, type] = {}
    with open_regular(source) as file:
        for _ in range(OLD_PROGRAMS):
            names |= _survey(source, file)
    return names


class _Value(NamedTuple):
    """What the survey knows of a value."""

    depth: int = 0  #: of nested tuples
    size: int = 1  #: number of values in the tuples
    name: str = ""  #: of its class


def _survey(source: Path, program: IO[bytes]) -> dict[str, type]:
    """Collect the names that a pickle looks up, without executing it, with the class that replaces each of them.

    It is ``_DictShell`` if the pickle sets items of the objects, ``_ListShell`` if it appends to them, else ``_Shell``.
    """
    names: dict[str, type] = {}
    stack: list[_Value] = []
    marks: list[int] = []
    memo: dict[Any, _Value] = {}
    for code, argument, _ in pickletools.genops(program):
        if code.name == "MARK":
            marks.append(len(stack))
        elif code.name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif code.name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif code.name == "GLOBAL":
            stack.append(_Value(name=_modern_name(str(argument))))
            names.setdefault(stack[-1].name, _Shell)
            if len(names) > MOST_NAMES:
                raise FateError(f"{source}: names more than {MOST_NAMES} classes and functions; expected a checkpoint")
        else:
            taken = _take(code, stack, marks)
            stack += _results(source, code, taken, names)
    return names


def _take(code: pickletools.OpcodeInfo, stack: list[_Value], marks: list[int]) -> list[_Value]:
    """Take the operands of an instruction from the stack: a fixed number, and for some all above the last mark."""
    number, above = len(code.stack_before), len(stack)
    if pickletools.markobject in code.stack_before:
        number, above = code.stack_before.index(pickletools.markobject), marks.pop()
    if above < number:
        raise ValueError("an instruction without its values")
    taken = stack[above - number :]
    del stack[above - number :]
    return taken


def _results(source: Path, code: pickletools.OpcodeInfo, taken: list[_Value], names: dict[str, type]) -> list[_Value]:
    """The values that an instruction puts on the stack."""
    if code.name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
        made = _Value(1 + max((each.depth for each in taken), default=0), 1 + sum(each.size for each in taken))
        if made.depth > DEEPEST_TUPLE or made.size > LARGEST_TUPLE:
            raise FateError(
                f"{source}: nests tuples more than {DEEPEST_TUPLE} deep, or into more than {LARGEST_TUPLE} values;"
                " expected a checkpoint, whose values are nested a few times"
            )
        return [made]
    if code.name in ("NEWOBJ", "REDUCE"):
        if taken[0].name == "builtins.bytearray":  # a call that torch allows and that could allocate any memory
            raise FateError(f"{source}: makes an array of bytes; expected tensors and plain values")
        return [_Value(name=taken[0].name)]
    if code.name in ("SETITEM", "SETITEMS", "APPEND", "APPENDS", "BUILD"):
        if code.name != "BUILD" and taken[0].name:
            names[taken[0].name] = _DictShell if code.name.startswith("SET") else _ListShell
        return taken[:1]
    return [_Value()] * len(code.stack_after)


def _modern_name(argument: str) -> str:
    """``module.name`` of an instruction; names of Python 2 in old files are translated as torch does."""
    module, name = argument.split(" ", 1)
    if (module, name) in NAME_MAPPING:
        module, name = NAME_MAPPING[module, name]
    return f"{IMPORT_MAPPING.get(module, module)}.{name}"


def _named_tensors(source: Path, content: Any) -> dict[str, Tensor]:
    """The state_dict of a checkpoint, under one of ``HOMES`` or at the top."""
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
    """The first line of an error; from torch's reader only the reason, without its advice to trust the file."""
    lines = str(error).rpartition("WeightsUnpickler error: ")[2].strip().splitlines()
    reasons = [line.strip() for line in lines if line.strip() and "weights_only" not in line]
    return reasons[0][:200] if reasons else type(error).__name__
