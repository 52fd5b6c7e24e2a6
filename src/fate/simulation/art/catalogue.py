"""Which styles of a thing there are, and which of them are never used in training.

A detector that has memorised our shapes would look good on any split drawn from the same shapes. So some styles of
every kind are held out: training draws from the common ones only; validation and test draw from all, and half of
their draws are held-out styles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

import numpy as np

from fate.errors import FateError

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

Style = TypeVar("Style")


@dataclass(frozen=True)
class Catalogue(Generic[Style]):
    """The styles of one kind of thing, by name."""

    kind: str  #: used in error messages
    common: Mapping[str, Style]  #: for every split
    held_out: Mapping[str, Style]  #: for validation and test only

    @property
    def names(self) -> tuple[str, ...]:
        """All styles, the held-out ones last."""
        return (*self.common, *self.held_out)

    def choose(self, rng: np.random.Generator, split: Split = "train") -> str:
        """The name of one style for a split; in validation and test a held-out one half of the time."""
        if split not in SPLITS:
            raise FateError(f"There is no split {split!r}; give one of {', '.join(SPLITS)}.")
        held_out = split != "train" and rng.random() < 0.5
        styles = tuple(self.held_out if held_out else self.common)
        return styles[int(rng.integers(len(styles)))]

    def get(self, name: str) -> Style:
        """The style of a name."""
        if name not in self.names:
            raise FateError(f"There is no {self.kind} {name!r}; give one of {', '.join(self.names)}.")
        return self.common[name] if name in self.common else self.held_out[name]
