"""Which styles of a thing there are, and which of them are never used in training.

A detector that has memorised our shapes would look good on any split drawn from the same shapes. So some styles of
every labelled kind and of house fronts are held out: training draws from the common ones only; validation and test
draw from all, and half of their draws are held-out styles. The styles themselves are in ``styles.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
from pydantic import TypeAdapter

from fate.yaml_files import load_yaml

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

Style = TypeVar("Style")


_STYLES: dict[str, dict[str, dict[str, Any]]] = load_yaml(Path(__file__).with_name("styles.yaml"))


@dataclass(frozen=True)
class Catalogue(Generic[Style]):
    """The styles of one kind of thing, by name."""

    common: Mapping[str, Style]  #: for every split
    held_out: Mapping[str, Style]  #: for validation and test only

    @staticmethod
    def load(kind: str, style: type[Style]) -> Catalogue[Style]:
        """A section of ``styles.yaml``, whose entries are of the dataclass ``style``."""
        read = TypeAdapter(style).validate_python
        common, held_out = ({name: read(each) for name, each in part.items()} for part in _STYLES[kind].values())
        return Catalogue(common, held_out)

    @property
    def styles(self) -> dict[str, Style]:
        """All styles, the held-out ones last."""
        return {**self.common, **self.held_out}

    def choose(self, rng: np.random.Generator, split: Split) -> str:
        """The name of one style for a split; in validation and test a held-out one half of the time."""
        held_out = split != "train" and rng.random() < 0.5
        return choose(rng, self.held_out if held_out else self.common)


def choose(rng: np.random.Generator, styles: Mapping[str, Any]) -> str:
    """One of the names."""
    return list(styles)[int(rng.integers(len(styles)))]
