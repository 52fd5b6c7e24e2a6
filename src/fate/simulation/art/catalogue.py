"""Which makes of a thing there are, and which of them training never sees.

A detector that has only learnt our shapes by heart would look good on any split drawn from the same shapes. So some
makes of every kind are held out: training draws from the common ones alone, validation and test from all, and there
every second draw is a held-out one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fate.errors import FateError

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class Catalogue:
    """The makes of one kind of thing.

    Attributes:
        kind: what they are, for messages.
        common: for every split.
        held_out: for validation and test only.
    """

    kind: str
    common: tuple[str, ...]
    held_out: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All makes, the held-out ones last."""
        return self.common + self.held_out

    def for_split(self, split: Split) -> tuple[str, ...]:
        """What a split may show."""
        _check_split(split)
        return self.common if split == "train" else self.names

    def choose(self, rng: np.random.Generator, split: Split) -> str:
        """One make for a split; in validation and test a held-out one half of the time."""
        _check_split(split)
        held_out = split != "train" and bool(self.held_out) and rng.random() < 0.5
        makes = self.held_out if held_out else self.common
        return makes[int(rng.integers(len(makes)))]

    def check(self, name: str) -> str:
        """The name itself, where there is such a make."""
        if name not in self.names:
            raise FateError(f"There is no {self.kind} {name!r}; give one of {', '.join(self.names)}.")
        return name


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise FateError(f"There is no split {split!r}; give one of {', '.join(SPLITS)}.")
