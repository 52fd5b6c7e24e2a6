"""The paper's tables as declared in studies.yaml: the rows, how each is trained, and the published numbers.

A row has a *recipe*: a model, a strategy, and the recipes it depends on (weights to start from, labels of phase 1).
Recipes that two rows share are trained once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fate.errors import FateError
from fate.rates import PAPER_RATES
from fate.text import suggest_name
from fate.yaml_files import load_yaml

_DECLARED = load_yaml(Path(__file__).with_name("studies.yaml"))
#: Size → role → model and options, for the paper's datasets and for simulated drives.
SIZES: Mapping[str, Mapping[str, dict[str, Any]]] = _DECLARED["sizes"]
#: Row of the study of labels → rate → published figures on Gen1: ``table.FIGURES`` of cars, then of pedestrians.
PUBLISHED_LABELS: Mapping[str, Mapping[float, list[float]]] = _DECLARED["labels"]


@dataclass(frozen=True)
class Recipe:
    """The training of one detector."""

    role: str  #: a key of ``SIZES``
    strategy: str = "supervised"  #: a key of ``strategies.STRATEGIES``
    encoder_options: tuple[tuple[str, Any], ...] = ()  #: arguments of Pillar Encoding
    start: Recipe | None = None  #: the recipe whose weights it starts from
    labels: Recipe | None = None  #: the recipe whose dense labels it is trained with

    @property
    def slug(self) -> str:
        """A name for its folder; equal recipes have equal names."""
        parts = [self.role, self.strategy.replace("_", "-")]
        parts += [f"{name}-{value}".lower() for name, value in self.encoder_options]
        if self.start is None and self.strategy != "supervised":
            parts.append("fresh")
        if self.labels is not None and self.labels.role != self.role:
            parts.append(f"labels-of-{self.labels.role}")
        return "_".join(parts)

    def played_by(self, instead: Mapping[str, str]) -> Recipe:
        """The same recipe with other detectors in some roles."""
        start, labels = (other and other.played_by(instead) for other in (self.start, self.labels))
        return replace(self, role=instead.get(self.role, self.role), start=start, labels=labels)

    def needed(self) -> tuple[Recipe, ...]:
        """This recipe and all recipes it depends on."""
        return (self, *(one for other in (self.start, self.labels) if other is not None for one in other.needed()))


@dataclass(frozen=True)
class Row:
    """A line of a table; ``published`` has AP50:95 in percent by dataset and rate."""

    name: str
    recipe: Recipe
    published: Mapping[str, Mapping[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A table of the paper."""

    name: str
    title: str
    rows: tuple[Row, ...]
    rates: tuple[float, ...] = PAPER_RATES
    kind: str = "rates"  #: "rates": AP by rate; "labels": the quality of dense labels
    #: Roles that small studies replace by others, which train faster: role → role.
    small: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """How large a study is: sizes of models, and settings of its runs."""

    sizes: str  #: a key of ``SIZES``
    settings: Mapping[str, Mapping[str, Any]]  #: settings of every run
    #: Changes to them for runs that start from the weights of another run.
    later: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rates: Sequence[float] = PAPER_RATES  #: rates of the dense labels in Hz
    lr_factor: Mapping[str, float] = field(default_factory=dict)  #: factor of the learning rate, by role


SCALES: Mapping[str, Scale] = {name: Scale(**scale) for name, scale in _DECLARED["scales"].items()}


def _recipe(role: str, strategy: str = "supervised", options: Mapping[str, Any] | None = None) -> Recipe:
    """Every strategy starts from the supervised detector; FAT takes its dense labels from the one without options."""
    given = tuple(sorted((options or {}).items()))
    if strategy == "supervised":
        return Recipe(role, encoder_options=given)
    start, labels = Recipe(role, encoder_options=given), Recipe(role) if strategy == "fat" else None
    return Recipe(role, strategy, given, start, labels)


def _study(
    name: str, title: str, rows: Sequence[Mapping[str, Any]], rates: Sequence[float] = PAPER_RATES, **more: Any
) -> Study:
    rates, made = tuple(float(hz) for hz in rates), []
    for row in rows:
        recipe = _recipe(row["role"], row.get("strategy", "supervised"), row.get("options"))
        published = {
            kind: dict(zip(PAPER_RATES if len(row[kind]) == len(PAPER_RATES) else rates, row[kind], strict=True))
            for kind in ("gen1", "1mpx")
            if kind in row
        }
        made.append(Row(row["name"], recipe, published))
    return Study(name, title, tuple(made), rates, **more)


STUDIES: Mapping[str, Study] = {study["name"]: _study(**study) for study in _DECLARED["studies"]}


def check_request(
    name: str,
    scale: str | None = None,
    seeds: int = 1,
    only: Sequence[int] = (),
    rows: Sequence[str] = (),
    jobs: int = 1,
) -> Study:
    """The study of this name; refuses arguments of ``study`` that are wrong, before anything is opened."""
    if name not in STUDIES:
        raise FateError(f"study {name!r} was given; there are {', '.join(STUDIES)}{suggest_name(name, STUDIES)}")
    if scale is not None and scale not in SCALES:
        raise FateError(f"scale {scale!r} was given; there are {', '.join(SCALES)}")
    known = [row.name for row in STUDIES[name].rows]
    unknown = next((row for row in rows if row not in known), None)
    if unknown is not None:
        raise FateError(f"row {unknown!r} was given; {name} has {', '.join(known)}{suggest_name(unknown, known)}")
    if any(seed not in range(seeds) for seed in only):
        raise FateError(f"seed {max(only)} was given; there are {seeds}, from 0 to {seeds - 1}: give seeds too")
    if jobs < 1:
        raise FateError(f"jobs={jobs} was given; expected 1 or more")
    return STUDIES[name]
