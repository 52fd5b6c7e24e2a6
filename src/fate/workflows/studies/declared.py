"""The paper's tables as declarations: the rows, how each is trained, and the published numbers.

A row has a *recipe*: a model, a strategy, and the recipes it depends on (weights to start from, labels of phase 1).
Recipes that two rows share are trained once. Recipes name a role instead of a model, so that one declaration serves
Gen1 with the paper's sizes and simulated drives with small models: ``SIZES`` has the model of each role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fate.errors import FateError
from fate.rates import PAPER_RATES
from fate.text import suggest_name

_PAPER = {
    "rvt": "rvt-b",
    "get": "get-b",
    "s5": "s5-vit-b",
    "evrt": "evrt-detr-b",
    "fate-s": "fate-s",
    "fate-e": "fate-e",
}
#: Role → model and options, for the paper's datasets and for simulated drives.
SIZES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "paper": {role: {"name": name} for role, name in _PAPER.items()},
    "small": {
        "rvt": {"name": "rvt-s", "options": {"dims": [16, 32, 64, 128], "bottlenecks": 1}},
        "get": {"name": "get-b", "options": {"channels": 16, "groups": 4, "depths": [1, 1, 2, 1]}},
        "s5": {"name": "s5-vit-nano"},
        "evrt": {"name": "evrt-detr-tiny"},
        "fate-s": {"name": "fate-s-nano"},
        "fate-e": {"name": "fate-e-tiny"},
    },
}


@dataclass(frozen=True)
class Recipe:
    """How one detector is trained.

    Attributes:
        role: a key of ``SIZES``.
        strategy: a key of ``strategies.STRATEGIES``.
        encoder_options: arguments of Pillar Encoding.
        start: the recipe whose weights it starts from.
        labels: the recipe whose dense labels it is trained with.
    """

    role: str
    strategy: str = "supervised"
    encoder_options: tuple[tuple[str, Any], ...] = ()
    start: Recipe | None = None
    labels: Recipe | None = None

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


def _row(
    name: str,
    recipe: Recipe,
    gen1: Sequence[float] = (),
    mpx: Sequence[float] = (),
    rates: Sequence[float] = PAPER_RATES,
) -> Row:
    """A row with its published numbers at these rates."""
    published = {"gen1": gen1, "1mpx": mpx}
    return Row(
        name, recipe, {kind: dict(zip(rates, values, strict=True)) for kind, values in published.items() if values}
    )


def _fat(role: str, **changes: Any) -> Recipe:
    """FAT, started from the supervised detector that also makes the dense labels."""
    base, options = Recipe(role), tuple(sorted(changes.items()))
    return Recipe(role, "fat", options, Recipe(role, encoder_options=options), base)


def _after(strategy: str) -> Recipe:
    return Recipe("fate-e", strategy, start=Recipe("fate-e"))


def _pe(name: str, gen1: Sequence[float], **options: Any) -> Row:
    return _row(name, Recipe("fate-e", encoder_options=tuple(sorted(options.items()))), gen1, rates=_SENSITIVITY)


_SENSITIVITY = (20.0, 100.0, 200.0)
_INSTEAD = {"fate-e": "fate-s"}

_RVT = _row("RVT", Recipe("rvt"), (47.20, 35.13, 21.98, 18.61, 8.35), (47.40, 42.51, 33.20, 30.29, 16.36))
_GET = _row("GET", Recipe("get"), (47.90, 34.15, 19.97, 15.13, 5.35), (48.40, 40.51, 30.30, 28.11, 15.44))
_COMPONENTS_S = (
    _row("S5-ViT", Recipe("s5"), (47.40, 46.44, 45.08, 42.49, 39.84), (47.20, 46.49, 46.11, 45.80, 39.70)),
    _row("S5-ViT + PE", Recipe("fate-s"), (47.70, 46.10, 45.52, 43.08, 39.30)),
    _row("S5-ViT + FAT", _fat("s5"), (48.08, 46.78, 46.50, 43.24, 40.38)),
    _row("S5-ViT + PE + FAT", _fat("fate-s"), (48.20, 46.90, 47.02, 43.18, 40.80), (48.80, 48.26, 47.30, 46.14, 40.20)),
)
_COMPONENTS_E = (
    _row("EvRT-DETR", Recipe("evrt"), (52.70, 50.60, 45.00, 42.20, 32.00), (50.40, 48.20, 43.10, 41.00, 33.40)),
    _row("EvRT-DETR + PE", Recipe("fate-e"), (51.94, 50.31, 46.06, 44.10, 36.40)),
    _row("EvRT-DETR + FAT", _fat("evrt"), (52.36, 51.24, 48.50, 46.48, 41.10)),
    _row(
        "EvRT-DETR + PE + FAT", _fat("fate-e"), (53.14, 51.60, 48.40, 46.80, 42.38), (51.04, 48.90, 46.32, 45.77, 40.54)
    ),
)
_FREQUENCY = (
    _RVT,
    _GET,
    _COMPONENTS_S[0],
    _COMPONENTS_E[0],
    replace(_COMPONENTS_S[3], name="FATE-S (PE + FAT + S5-ViT)"),
    replace(_COMPONENTS_E[3], name="FATE-E (PE + FAT + EvRT-DETR)"),
)
_STRATEGIES = (
    replace(_COMPONENTS_E[1], name="PE, 20 Hz"),
    _row("multi-frequency", _after("multi_frequency"), (49.24, 47.06, 45.70, 43.12, 40.48)),
    _row("consistency only", _after("consistency"), (48.90, 47.85, 45.40, 43.80, 41.10)),
    _row("naive interpolation", _after("interpolation"), (51.18, 49.37, 47.21, 45.41, 41.64)),
    _row("FAT", _fat("fate-e"), (53.14, 51.60, 48.40, 46.80, 42.38), (51.04, 48.90, 46.32, 45.77, 40.54)),
)
_MOMENTS = (
    _pe("K = 2", (46.32, 38.20, 29.90), moments=2),
    _pe("K = 3", (51.94, 44.10, 36.40)),
    _pe("K = 4", (50.71, 42.82, 34.88), moments=4),
    _pe("K = 5", (49.80, 43.50, 33.60), moments=5),
    _pe("max pooling", (46.10, 38.90, 29.40), pooling="max"),
    _pe("uniform weights", (51.63, 43.70, 35.60), weighting="uniform"),
)
_PILLARS = tuple(
    _row(f"{side} × {side}", _fat("fate-e", **({} if side == 2 else {"pillar": side})), (value,), rates=(100.0,))
    for side, value in ((8, 43.18), (4, 45.73), (2, 46.80), (1, 46.09))
)
_CHANNELS = tuple(  # every row says how many: small detectors have fewer by themselves
    _row(f"C = {width}", _fat("fate-e", channels=width), values, rates=_SENSITIVITY)
    for width, values in (
        (32, (52.48, 45.71, 40.64)),
        (48, (52.86, 46.22, 41.72)),
        (64, (53.14, 46.80, 42.38)),
        (80, (53.08, 46.69, 42.21)),
        (96, (52.97, 46.41, 41.95)),
    )
)
_SMOKE = (_COMPONENTS_S[1], _COMPONENTS_S[3])
_LABELS = (Row("PE + S5-ViT", Recipe("fate-s")), Row("PE + EvRT-DETR", Recipe("fate-e")))
_LABELS_TITLE = "Quality of dense labels by rate (label-quality table, and its precision–recall figure)"

STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        Study("frequency", "AP50:95 by rate (tables 1 and 2)", _FREQUENCY),
        Study("components", "What PE and FAT add to both detectors (table 3)", (*_COMPONENTS_S, *_COMPONENTS_E)),
        Study("components-s", "What PE and FAT add to S5-ViT (table 3)", _COMPONENTS_S),
        Study("components-e", "What PE and FAT add to EvRT-DETR (table 3)", _COMPONENTS_E),
        Study("smoke", "The smallest study there is: whether the chain holds", _SMOKE, (20.0, 200.0)),
        Study("strategies", "FAT against ablated strategies", _STRATEGIES, small=_INSTEAD),
        Study("moments", "Moments and pooling of Pillar Encoding (table 4)", _MOMENTS, _SENSITIVITY, small=_INSTEAD),
        Study("pillar-size", "Pillar size at 100 Hz (table 5)", _PILLARS, (100.0,), small=_INSTEAD),
        Study("channels", "Channels of Pillar Encoding (table 8)", _CHANNELS, _SENSITIVITY, small=_INSTEAD),
        Study("labels", _LABELS_TITLE, _LABELS, kind="labels"),
    )
}


def find_study(name: str) -> Study:
    """The study of this name; an unknown name is refused with the known ones."""
    if name not in STUDIES:
        raise FateError(f"study {name!r} was given; there are {', '.join(STUDIES)}{suggest_name(name, STUDIES)}")
    return STUDIES[name]
