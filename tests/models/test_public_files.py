"""Files of other projects: tensors come out whole, and nothing in a file is ever run."""

from __future__ import annotations

import contextlib
import enum
import io
import operator
import os
import pathlib
import pickle
import subprocess
import sys
import types
import warnings
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from fate.errors import FateError
from fate.models.checkpoints import public_files
from fate.models.checkpoints.public_files import kind_of, read_tensors

SHARED = torch.arange(6.0)
TENSORS = {
    "plain": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
    "half": torch.ones(2, dtype=torch.float16),
    "turned": torch.arange(6.0).view(2, 3).T,
    "first": SHARED[:4],
    "last": SHARED[2:],
    "counter": torch.tensor(7),
    "nothing": torch.zeros(0, 3),
    "complex": torch.tensor([1 + 2j]),
    "flag": torch.tensor([True, False]),
    "repeated": torch.tensor(2.0).expand(5),
}


def same(found: dict[str, Tensor], expected: dict[str, Tensor] = TENSORS, prefix: str = "") -> None:
    assert found.keys() == {prefix + name for name in expected}
    for name, value in expected.items():
        assert found[prefix + name].dtype == value.dtype
        assert torch.equal(found[prefix + name], value), name
        assert not found[prefix + name].requires_grad


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda tensors: tensors,
        lambda tensors: {"state_dict": OrderedDict(tensors), "epoch": 3},
        lambda tensors: {"model": tensors, "optimizer": [1, 2.0, "x"]},
        lambda tensors: {"state_dict": {"ema": {**tensors, "version": 2}}},
    ],
)
def test_named_tensors_are_found_wherever_projects_put_them(
    tmp_path: Path, wrapped: Callable[[dict[str, Tensor]], Any], legacy: bool
) -> None:
    torch.save(wrapped(TENSORS), tmp_path / "file.pth", _use_new_zipfile_serialization=not legacy)
    same(read_tensors(tmp_path / "file.pth"))


def test_safetensors_and_folders_are_read(tmp_path: Path) -> None:
    plain = {name: value.clone().contiguous() for name, value in TENSORS.items()}
    save_file(plain, tmp_path / "model.safetensors")
    same(read_tensors(tmp_path / "model.safetensors"))
    same(read_tensors(tmp_path))
    torch.save(TENSORS, tmp_path / "net_ema_backbone.pth")
    torch.save({"state": 1}, tmp_path / "opt_main.pth")
    same(read_tensors(tmp_path), prefix="net_ema_backbone.pth::")


@pytest.mark.parametrize("start", [b"\x80\x02", b"\x80\x04", b"PK"])
def test_a_safetensors_file_is_known_whatever_the_length_of_its_header(tmp_path: Path, start: bytes) -> None:
    wanted = int.from_bytes(start, "little")  # the length that looks like another kind of file
    path = tmp_path / "file.safetensors"
    save_file({"a": torch.ones(2)}, path, metadata={"note": ""})
    missing = wanted - int.from_bytes(path.read_bytes()[:8], "little")
    save_file({"a": torch.ones(2)}, path, metadata={"note": "x" * missing})
    assert path.read_bytes()[:2] == start
    assert kind_of(path) == "safetensors"
    same(read_tensors(path), {"a": torch.ones(2)})


@pytest.fixture
def foreign() -> Iterator[types.ModuleType]:
    """A package that is there when a checkpoint is written and not when it is read."""
    module = types.ModuleType("strange_package")

    class DictConfig:
        def __init__(self) -> None:
            self.content = {"lr": 1e-3, "nested": [1, 2]}

    class AttributeDict(dict[str, Any]):
        pass

    class ListConfig(list[Any]):
        pass

    class Colour(enum.Enum):
        RED = 1

    class Reduced:
        def __reduce__(self) -> tuple[Any, ...]:
            return module.make, ("x", 2), {"state": 1}

    class Scheduler:
        @staticmethod
        def anneal(x: float) -> float:
            return x

    for made in (DictConfig, AttributeDict, ListConfig, Colour, Reduced, Scheduler):
        made.__module__, made.__qualname__ = module.__name__, made.__name__
        setattr(module, made.__name__, made)
    Scheduler.anneal.__module__, Scheduler.anneal.__qualname__ = module.__name__, "Scheduler.anneal"
    make: Any = lambda *_: DictConfig()  # noqa: E731
    make.__module__, make.__qualname__ = module.__name__, "make"
    vars(module)["make"] = make
    sys.modules[module.__name__] = module
    yield module
    sys.modules.pop(module.__name__, None)


def lightning(module: Any) -> dict[str, Any]:
    """A checkpoint of Lightning with what trainers leave in it."""
    return {
        "state_dict": OrderedDict(TENSORS, trained=nn.Parameter(torch.ones(2))),
        "hyper_parameters": module.DictConfig(),
        "hparams_type": module.DictConfig,
        "callbacks": {"best": Path("a/b.ckpt"), "score": np.float64(0.5), "windows": pathlib.PurePosixPath("c")},
        "lr_schedulers": [{"anneal": module.Scheduler.anneal, "colour": module.Colour.RED}],
        "loops": module.AttributeDict(epoch=module.ListConfig([1, module.Reduced()]), seen={1, 2}),
        "defaults": defaultdict(list, {"x": [1]}),
        "epoch": 12,
    }


def test_a_checkpoint_with_objects_of_other_packages_is_read_and_nothing_is_imported(
    tmp_path: Path, foreign: types.ModuleType
) -> None:
    torch.save(lightning(foreign), tmp_path / "file.ckpt")
    del sys.modules[foreign.__name__]
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "file.ckpt", weights_only=True)
    same(read_tensors(tmp_path / "file.ckpt"), {**TENSORS, "trained": torch.ones(2)})
    assert foreign.__name__ not in sys.modules


def test_a_file_of_the_old_kind_with_other_objects_is_read_too(tmp_path: Path, foreign: types.ModuleType) -> None:
    torch.save(lightning(foreign), tmp_path / "file.ckpt", _use_new_zipfile_serialization=False)
    del sys.modules[foreign.__name__]
    same(read_tensors(tmp_path / "file.ckpt"), {**TENSORS, "trained": torch.ones(2)})
    assert foreign.__name__ not in sys.modules


def test_the_names_that_a_file_used_are_not_known_to_torch_afterwards(
    tmp_path: Path, foreign: types.ModuleType
) -> None:
    torch.save(lightning(foreign), tmp_path / "file.ckpt")
    before = set(torch.serialization.get_safe_globals())  # torch keeps them in no order
    read_tensors(tmp_path / "file.ckpt")
    assert set(torch.serialization.get_safe_globals()) == before


def test_what_only_its_own_code_could_read_is_refused_with_what_to_do(
    tmp_path: Path, foreign: types.ModuleType
) -> None:
    class Odd(dict[str, Any]):
        """Items and attributes, which torch's reader does not fill both."""

    Odd.__module__, Odd.__qualname__ = foreign.__name__, "Odd"
    vars(foreign)["Odd"] = Odd
    odd = Odd(a=1)
    odd.note = 2  # type: ignore[attr-defined]
    torch.save({"state_dict": TENSORS, "settings": odd}, tmp_path / "file.ckpt")
    with pytest.raises(FateError, match="more than tensors.*save its state_dict alone") as caught:
        read_tensors(tmp_path / "file.ckpt")
    assert "weights_only" not in str(caught.value)


def test_the_refusal_of_a_hostile_file_does_not_advise_to_trust_it(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return os.system, ("exit 1",)

    torch.save({"state_dict": Hostile()}, tmp_path / "file.pt")
    with pytest.raises(FateError) as caught:
        read_tensors(tmp_path / "file.pt")
    assert "system" in str(caught.value)
    assert "weights_only" not in str(caught.value)


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def attacks(marker: Path) -> dict[str, Any]:
    touch, code = f"touch {marker}", f"open({str(marker)!r}, 'w').close()"
    return {
        "os.system": Evil(os.system, touch),
        "eval": Evil(eval, code),
        "exec": Evil(exec, code),
        "open": Evil(open, str(marker), "w"),
        "nested": Evil(getattr, Evil(eval, "__import__('os')"), "sep"),  # refused or read, but not imported by it
        "called": Evil(operator.call, Evil(getattr, marker, "touch")),
        "in a tensor": Evil(torch._utils._rebuild_tensor_v2, Evil(eval, code), 0, (1,), (1,), False, OrderedDict()),
        "jit": Evil(torch.jit.load, Evil(eval, code)),
    }


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("place", ["beside", "inside", "key", "whole"])
@pytest.mark.parametrize("attack", attacks(Path("marker")))
def test_nothing_in_a_file_is_ever_run(tmp_path: Path, attack: str, place: str, legacy: bool) -> None:
    marker, path = tmp_path / "marker", tmp_path / "file.pth"
    bad = attacks(marker)[attack]
    content: Any = {
        "beside": {"state_dict": TENSORS, "callbacks": bad},
        "inside": {"state_dict": {**TENSORS, "bad": bad}},
        "key": {"state_dict": TENSORS, bad: 1},
        "whole": bad,
    }[place]
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    if attack in ("os.system", "eval", "exec", "called"):  # a reader that trusts the file would have run it
        with contextlib.suppress(TypeError):  # for what it gives has no names
            torch.load(path, weights_only=False)
        assert marker.exists()
        marker.unlink()
    with contextlib.suppress(FateError):
        same(read_tensors(path))
    assert not marker.exists()


def write_archive(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def with_program(path: Path, program: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    """A checkpoint whose pickle is replaced."""
    torch.save({"state_dict": {"a": torch.ones(2)}}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    place = next(name for name in members if name.endswith("data.pkl"))
    write_archive(path, {**members, place: program}, compression)


#: The numbers of the tensor, as torch writes them.
STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"
FOREIGN = b"cstrange_package\nThing\n)\x81"  # an object of another package


@pytest.mark.parametrize(
    "target",
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"ctorch._utils\n_rebuild_parameter\n",
        b"ccollections\nOrderedDict\n",
        b"cstrange_package\nThing\n",
        b"ctorch\nFloatStorage\n",
    ],
)
@pytest.mark.parametrize("state", [b"}X\x08\x00\x00\x00__call__K\x01s", b"(N}X\x08\x00\x00\x00__call__K\x01st"])
def test_a_file_cannot_change_what_others_use(tmp_path: Path, target: bytes, state: bytes) -> None:
    known = [torch._utils._rebuild_tensor_v2, torch._utils._rebuild_parameter, OrderedDict, public_files._Shell]
    before = [(dict(vars(thing)), getattr(thing, "__defaults__", None)) for thing in known]
    with_program(tmp_path / "file.pth", b"\x80\x02" + target + state + b"b.")
    with pytest.raises(FateError):
        read_tensors(tmp_path / "file.pth")
    assert before == [(dict(vars(thing)), getattr(thing, "__defaults__", None)) for thing in known]


@pytest.mark.parametrize("size_stride_offset", [(b"K\x03", b"K\x01", b"K\x00"), (b"K\x02", b"K\x01", b"K\x01"),
                                                (b"K\x02", b"K\x01", b"J\xff\xff\xff\xff")])  # fmt: skip
def test_a_tensor_cannot_reach_beyond_its_numbers(tmp_path: Path, size_stride_offset: tuple[bytes, ...]) -> None:
    size, stride, offset = size_stride_offset
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + offset + size + b"\x85" + stride + b"\x85\x89NtR"
    with_program(tmp_path / "file.pth", b"\x80\x02}K\x01" + FOREIGN + b"sX\x01\x00\x00\x00a" + tensor + b"s.")
    with pytest.raises(FateError, match="damaged"):
        read_tensors(tmp_path / "file.pth")


def test_a_small_file_cannot_swell(tmp_path: Path) -> None:
    with_program(tmp_path / "file.pth", b"\x80\x02}.", zipfile.ZIP_DEFLATED)
    with pytest.raises(FateError, match="no compressed files"):
        read_tensors(tmp_path / "file.pth")


def nested(depth: int) -> bytes:
    """A tuple in a tuple in a tuple …"""
    return b")" + b"\x85" * depth


def doubled(times: int) -> bytes:
    """A tuple that holds the same tuple twice, and so on: few bytes, and 2 ** times values to hash."""
    return b")" + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(times))


BOMBS = {
    "key": b"}" + nested(400_000) + b"K\x01s",
    "foreign key": b"}" + nested(400_000) + FOREIGN + b"s",
    "set": b"c__builtin__\nset\n]" + nested(400_000) + b"a\x85R",
    "foreign set": b"c__builtin__\nfrozenset\n]" + nested(400_000) + b"a\x85R",
    "doubled key": b"}" + doubled(100) + b"K\x01s",
    "bytes": b"c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x00\x20\x85R",
    "lists": b"]" * 400_000 + b"a" * 399_999,
    "dicts": b"}" + b"K\x01}" * 400_000 + b"s" * 400_000,
    "names": b"".join(b"cpackage\nname%d\n0" % i for i in range(5_000)) + b"}",
    "stack": b"\x85.",
    "marks": b"(" * 100_000 + b"t" * 100_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("legacy", [False, True])
def test_nesting_ends_in_a_sentence_and_not_the_process(tmp_path: Path, legacy: bool) -> None:
    """In a process of its own, which such a file could end; its memory is limited."""
    for name, bomb in BOMBS.items():
        program, path = b"\x80\x02" + bomb + b".", tmp_path / f"{name}.pth"
        if not legacy:
            with_program(path, program)
            continue
        torch.save({}, path, _use_new_zipfile_serialization=False)
        content = path.read_bytes()
        assert content.count(b"\x80\x02}q\x00.") == 1
        path.write_bytes(content.replace(b"\x80\x02}q\x00.", program))
    code = """
import resource, sys
from fate.errors import FateError
from fate.models.checkpoints.public_files import read_tensors
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
for path in sys.argv[1:]:
    try:
        print(read_tensors(path))
    except FateError as error:
        print(error)
"""
    paths = [str(tmp_path / f"{name}.pth") for name in BOMBS]
    call = [sys.executable, "-c", code, *paths]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(BOMBS)
    for path, line in zip(paths, lines, strict=True):
        assert line.startswith(f"{path}: ")


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file.ckpt")
    with pytest.raises(FateError, match="a pipe"):
        read_tensors(tmp_path / "file.ckpt")


def an_archive(path: Path) -> None:
    write_archive(path, {"gen1/net_backbone.pth": b"x"})


def compiled(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(nn.Linear(2, 3)), path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.write_bytes(b""), "neither a PyTorch checkpoint nor a safetensors file"),
        (lambda path: path.write_text("mine"), "neither a PyTorch checkpoint nor a safetensors file"),
        (lambda path: path.mkdir(), "a folder without net_*.pth and without model.safetensors"),
        (an_archive, "an archive of files; unpack it"),
        (lambda path: torch.save([torch.ones(2)], path), "holds a list; expected named tensors"),
        (lambda path: torch.save({"a": 1}, path), "holds no tensors"),
        (lambda path: torch.save(nn.Linear(2, 3), path), "holds an object of another package"),
        (lambda path: torch.save({"a": torch.eye(2).to_sparse()}, path), "a is not a plain tensor"),
        (lambda path: torch.save({"a": torch.empty(2, device="meta")}, path), "a is not a plain tensor"),
        (compiled, "a TorchScript archive"),
    ],
)
def test_what_is_no_checkpoint_is_refused_in_one_sentence(
    tmp_path: Path, make: Callable[[Path], Any], words: str
) -> None:
    path = tmp_path / "file.pth"
    make(path)
    with pytest.raises(FateError) as raised:
        read_tensors(path)
    assert words in str(raised.value)
    assert str(raised.value).startswith(f"{path}: ")


def contents(foreign: types.ModuleType) -> dict[str, bytes]:
    """One file of each kind."""
    made = {}
    for kind, content, legacy in (
        ("plain", {"state_dict": TENSORS}, False),
        ("lightning", lightning(foreign), False),
        ("old", TENSORS, True),
    ):
        buffer = io.BytesIO()
        torch.save(content, buffer, _use_new_zipfile_serialization=not legacy)
        made[kind] = buffer.getvalue()
    return made


KINDS = ["plain", "lightning", "old", "safetensors"]


@pytest.fixture
def files(tmp_path: Path, foreign: types.ModuleType) -> dict[str, bytes]:
    save_file({name: value.clone().contiguous() for name, value in TENSORS.items()}, tmp_path / "kept.safetensors")
    made = {**contents(foreign), "safetensors": (tmp_path / "kept.safetensors").read_bytes()}
    del sys.modules[foreign.__name__]
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_is_refused(tmp_path: Path, files: dict[str, bytes], kind: str) -> None:
    path, content = tmp_path / "file.pth", files[kind]
    for length in [1, 2, 8, 9, 30, len(content) // 3, len(content) // 2, len(content) - 100, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(FateError):
            read_tensors(path)


def damaged(data: st.DataObject, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(changed) - 1))
        length = data.draw(st.integers(0, 3))
        changed[where : where + length] = data.draw(st.binary(min_size=length, max_size=length))
    return bytes(changed)


@pytest.mark.parametrize("examples", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [*KINDS, "program"])
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    tmp_path: Path, files: dict[str, bytes], kind: str, examples: int
) -> None:
    path = tmp_path / "file.pth"
    with zipfile.ZipFile(io.BytesIO(files["lightning"])) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    program = next(name for name in members if name.endswith("data.pkl"))

    @settings(max_examples=examples)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        if kind == "program":  # with sums that are right again, so that it is read
            write_archive(path, {**members, program: damaged(data, members[program])})
        else:
            path.write_bytes(damaged(data, files[kind]))
        try:
            found = read_tensors(path)
        except FateError:
            return
        assert all(isinstance(value, Tensor) for value in found.values())

    check()
