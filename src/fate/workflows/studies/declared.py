"""The paper's tables as declared in studies.yaml: the rows, the configuration of each, and the published numbers.

A row is trained as its configuration file says (``fate/configs``), and ``fate train`` with this file trains the same. A
configuration may start from the weights of another one (``model.weights: runs/NAME/best.safetensors``) and learn from
the dense labels of another one (``strategy.labels: dense/NAME``, or ``dense/NAME-as-paper`` for phase 1 exactly as in
the paper). Rows that share a configuration train it once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fate.errors import FateError
from fate.rates import PAPER_RATES
from fate.text import suggest_name
from fate.training.config import FOLDER, TrainConfig, list_configs, read_config
from fate.yaml_files import load_yaml

if TYPE_CHECKING:
    from fate.models.nms import Score

_DECLARED = load_yaml(Path(__file__).with_name("studies.yaml"))
#: Published figures on Gen1 by row of the study of labels and rate: ``table.FIGURES`` for cars, then for pedestrians.
PUBLISHED_LABELS: Mapping[str, Mapping[float, list[float]]] = _DECLARED["labels"]
#: Settings that the scale "smoke" changes in every configuration.
SMOKE: tuple[str, ...] = tuple(_DECLARED["smoke"])
#: "paper": the configurations for Gen1 or 1Mpx; "sim": those for simulated drives; "smoke": the same with few steps.
SCALES = ("paper", "sim", "smoke")
#: The study that trains nothing and measures weights on clips of real cameras; see ``real_clips.py``.
REAL = "real"


class Recipe(NamedTuple):
    """How one detector is trained: a configuration file, and the configurations it depends on."""

    name: str  #: such as ``"gen1/fate-e"``
    config: TrainConfig  #: as in the file
    start: str | None  #: name of the configuration whose weights it starts from
    labels: str | None  #: name of the configuration whose dense labels it is trained with
    as_paper: bool = False  #: whether these labels are made exactly as in the paper

    def needed(self) -> tuple[str, ...]:
        """The names of this configuration and of all configurations it depends on."""
        others = [read_recipe(other) for other in (self.start, self.labels) if other is not None]
        return tuple(dict.fromkeys((self.name, *(name for other in others for name in other.needed()))))


@cache
def read_recipe(name: str) -> Recipe:
    """The recipe in a configuration of the package, such as ``"gen1/fate-e"``."""
    config = read_config(name)
    folder = name.partition("/")[0]
    start = re.fullmatch(r"runs/([\w-]+)/best\.safetensors", config.model.weights or "")
    labels = re.fullmatch(r"dense/([\w-]+?)(-as-paper)?", config.strategy.labels or "")
    return Recipe(
        name,
        config,
        start and f"{folder}/{start[1]}",
        labels and f"{folder}/{labels[1]}",
        as_paper=bool(labels and labels[2]),
    )


@dataclass(frozen=True)
class Row:
    """A line of a table; ``published`` has AP in percent by dataset, metric and rate."""

    name: str
    config: str  #: name of its configuration for Gen1 and 1Mpx
    sim: str  #: name of its configuration for simulated drives
    published: Mapping[str, Mapping[str, Mapping[float, float]]] = field(default_factory=dict)
    parameters: float | None = None  #: published number of parameters in millions
    latency_ms: float | None = None  #: published latency of a window on an NVIDIA T4

    def recipe(self, folder: str) -> Recipe:
        """Return the recipe of this row in a folder of configurations: gen1, 1mpx or sim."""
        name = f"{folder}/{self.sim if folder == 'sim' else self.config}"
        if name not in {config.name for config in list_configs()}:
            raise FateError(
                f"the row {self.name!r} has no configuration for {folder} ({name}); run other rows, or another study"
            )
        return read_recipe(name)


@dataclass(frozen=True)
class Study:
    """A table of the paper."""

    name: str
    title: str
    rows: tuple[Row, ...]
    rates: tuple[float, ...] = PAPER_RATES
    kind: str = "rates"  #: "rates": AP by rate; "efficiency": latency too; "labels": the quality of dense labels


#: Dataset, metric and key of further published figures of a row.
_MORE_METRICS = (("gen1", "AP50", "AP50"), ("gen1", "AP75", "AP75"))


def _study(
    name: str, title: str, rows: Sequence[Mapping[str, Any]], rates: Sequence[float] = PAPER_RATES, **more: Any
) -> Study:
    rates, made = tuple(float(hz) for hz in rates), []
    for row in rows:
        published: dict[str, dict[str, Mapping[float, float]]] = {}
        for kind, metric, key in (*((kind, "AP50:95", kind) for kind in ("gen1", "1mpx")), *_MORE_METRICS):
            if key in row:
                known = PAPER_RATES if len(row[key]) == len(PAPER_RATES) else rates
                published.setdefault(kind, {})[metric] = dict(zip(known, row[key], strict=True))
        made.append(Row(row["name"], row["config"], row["sim"], published, row.get("parameters"), row.get("latency")))
    return Study(name, title, tuple(made), rates, **more)


STUDIES: Mapping[str, Study] = {study["name"]: _study(**study) for study in _DECLARED["studies"]}


@dataclass(frozen=True)
class StudyOptions:
    """The options of :func:`fate.study`, which explains them; wrong ones are refused before anything is opened."""

    name: str
    scale: str | None = None
    seeds: int = 1
    only: Sequence[int] = ()
    rows: Sequence[str] = ()
    device: str = "auto"
    workers: int = 4
    jobs: int = 1
    devices: str | None = None
    slurm: Mapping[str, Any] | None = None
    settings: Sequence[str] = ()
    weights: Mapping[str, str | os.PathLike[str]] | None = None
    score: Score = "product"
    allow_missing: bool = False

    def __post_init__(self) -> None:
        name, only = self.name, self.only
        if name not in STUDIES:
            known = (*STUDIES, REAL)
            raise FateError(f"study {name!r} was given; there are {', '.join(known)}{suggest_name(name, known)}")
        if self.scale is not None and self.scale not in SCALES:
            raise FateError(f"scale {self.scale!r} was given; there are {', '.join(SCALES)}")
        rows = [row.name for row in self.study.rows]
        unknown = next((row for row in self.rows if row not in rows), None)
        if unknown is not None:
            raise FateError(f"row {unknown!r} was given; {name} has {', '.join(rows)}{suggest_name(unknown, rows)}")
        if any(seed not in range(self.seeds) for seed in only):
            raise FateError(f"seed {max(only)} was given; seeds are counted from 0: give seeds={max(only) + 1} too")
        if self.jobs < 1:
            raise FateError(f"jobs={self.jobs} was given; expected 1 or more")
        if self.devices is not None and self.study.kind == "labels":
            raise FateError(f"{name} was given with several devices; it runs one detector at a time: give one device")

    @property
    def study(self) -> Study:
        """The study of this name."""
        return STUDIES[self.name]

    def is_requested(self, row: str, seed: int) -> bool:
        """Whether this row and seed are to be run now."""
        return (not self.rows or row in self.rows) and (not self.only or seed in self.only)

    def recipes(self, kind: str) -> tuple[dict[str, str], tuple[str, ...]]:
        """The name of the recipe of each row for a kind of dataset, and settings that change all of them."""
        scale = self.scale or ("smoke" if self.name == "smoke" else "paper" if kind in ("gen1", "1mpx") else "sim")
        folder = "sim" if scale != "paper" else kind if kind in ("gen1", "1mpx") else "gen1"
        shown = [row for row in self.study.rows if folder != "1mpx" or not self.rows or row.name in self.rows]
        return {row.name: row.recipe(folder).name for row in shown}, SMOKE if scale == "smoke" else ()


def list_studies() -> str:
    """Human-readable list of all studies, their rows and configurations."""
    lines = []
    for study in STUDIES.values():
        lines.append(f"{study.name}: {study.title}")
        for row in study.rows:
            on_1mpx = f", 1mpx/{row.config}" if (FOLDER / "1mpx" / f"{row.config}.yaml").exists() else ""
            lines.append(f"  {row.name}: gen1/{row.config}{on_1mpx}, sim/{row.sim}")
    return "\n".join([*lines, f"{REAL}: Weights on clips of real cameras"])
