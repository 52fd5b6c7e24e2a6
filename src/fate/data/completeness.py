"""Is a dataset complete? What training says about the faults of its data, and when it refuses to start.

A dataset is incomplete where a file is missing, cannot be read or ends early, where labels lie beyond the end of their
recording, and where boxes have a class that nobody named. Boxes that are small, clipped at the frame or look odd, and
recordings that nobody labelled, are reported and leave a dataset complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fate.data.dataset import Dataset
from fate.data.findings import LACKING, sentences
from fate.errors import FateError


@dataclass(frozen=True)
class DataFaults:
    """The faults of the datasets of one run. Made by :func:`data_faults`."""

    path: str  #: of the first dataset
    every: tuple[str, ...]  #: a sentence for each fault
    shown: tuple[str, ...]  #: the same, long lists of one kind cut short
    missing: tuple[str, ...]  #: those that make the data incomplete

    def tell(self, *places: Callable[[str], object]) -> None:
        """Say each fault in each of some places, such as ``print``."""
        for fault in self.shown:
            for place in places:
                place(f"dataset: {fault}")

    def refuse(self, allow_missing: bool) -> None:
        """Raise where the data is incomplete, unless the user accepts that."""
        if self.missing and not allow_missing:
            others = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
            raise FateError(
                f"{self.path}: the data is incomplete: {self.missing[0]}{others}; mend the data, or accept it as it is"
                " with allow_missing=True"
            )

    def to_dict(self) -> dict[str, object]:
        """Plain values, for ``data.json``."""
        return {"complete": not self.missing, "faults": list(self.every), "missing": list(self.missing)}


def data_faults(*datasets: Dataset) -> DataFaults:
    """Gather the faults of some datasets, each sentence once; label files that were not read yet are read."""
    checked = [dataset.checked() for dataset in datasets]
    findings = tuple(dict.fromkeys(finding for dataset in checked for finding in dataset.findings))
    return DataFaults(
        str(datasets[0].root),
        tuple(dict.fromkeys(finding.sentence for finding in findings)),
        sentences(findings),
        tuple(dict.fromkeys(finding.sentence for finding in findings if finding.kind in LACKING)),
    )
