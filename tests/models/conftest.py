"""Known outputs of the public detectors, and the weights that made them.

The folder lies beside a checkout of the project; where it does not, the tests that need it are skipped.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.models.checkpoints.importing import Rules, rename

Value = TypeVar("Value")
FOLDER = Path(__file__).parents[3] / "shared" / "reference"


def rename_entries(entries: Mapping[str, Value], rules: Rules, prefix: str = "") -> dict[str, Value]:
    """The entries below a prefix, which is removed, by our names."""
    return {rename(key.removeprefix(prefix), rules): value for key, value in entries.items() if key.startswith(prefix)}


@pytest.fixture(scope="session")
def reference_folder() -> Path:
    """Where known outputs of the public models lie."""
    if not (FOLDER / "golden_rule.py").exists():
        pytest.skip("the known outputs of the public models are not beside this checkout")
    return FOLDER


@pytest.fixture(scope="session")
def golden_rule(reference_folder: Path) -> ModuleType:
    """The rule by which the weights and inputs were drawn."""
    spec = importlib.util.spec_from_file_location("golden_rule", reference_folder / "golden_rule.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def golden(reference_folder: Path) -> Callable[[str], dict[str, NDArray[np.generic]]]:
    """``golden("rvt_b")``: the arrays of one file."""

    def load(name: str) -> dict[str, NDArray[np.generic]]:
        with np.load(reference_folder / f"golden_{name}.npz") as file:
            return dict(file)

    return load


@pytest.fixture(scope="session")
def golden_weights(reference_folder: Path, golden_rule: ModuleType) -> Callable[..., dict[str, Tensor]]:
    """``golden_weights("rvt_b_gen1", "mdl.fpn.")``: the weights under a prefix, which is taken off.

    Entries that keep their own value (counters, tables) are left out, but for counters of BatchNorm, which are 0.
    """

    def load(keys: str, prefix: str = "") -> dict[str, Tensor]:
        weights = {}
        for line in (reference_folder / f"keys_{keys}.txt").read_text().splitlines():
            key, rest = line.split(" ", 1)
            shape, dtype = rest.rsplit(" ", 1)
            if not key.startswith(prefix):
                continue
            if key.endswith("num_batches_tracked"):
                weights[key.removeprefix(prefix)] = torch.tensor(0)
            elif dtype.startswith("float"):
                drawn = golden_rule.value(key, ast.literal_eval(shape))
                if drawn is not None:
                    weights[key.removeprefix(prefix)] = torch.from_numpy(drawn)
        return weights

    return load


@pytest.fixture(scope="session")
def close_to_golden(golden_rule: ModuleType) -> Callable[..., None]:
    """``close_to_golden(tensor, arrays, "t0_fpn0", atol=1e-6)``: compares what the file holds of a tensor."""

    def check(value: Tensor, arrays: dict[str, NDArray[np.generic]], name: str, atol: float) -> None:
        given, stored = value.detach().numpy(), arrays[name]
        whole = arrays.get(f"{name}__shape", np.array(stored.shape))  # also given of arrays that are stored whole
        assert given.shape == tuple(whole)
        if given.shape != stored.shape:
            given = golden_rule.subsample(given)
        np.testing.assert_allclose(given, stored, rtol=0, atol=atol, err_msg=name)

    return check


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models are quickest on one thread; afterwards there are as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
