"""What a training run is: a small tree of frozen values with the paper's defaults, from YAML and ``key.sub=value``.

    model: {name: fate-s}
    data: {path: gen1, steps: 21}
    strategy: {name: fat, labels: dense/gen1}

Every field has a default from the paper's appendix or, where it is silent, from the detector's own publication; its
description says which. An unknown key is refused with the nearest known one.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fate.errors import FateError
from fate.files import check_regular
from fate.yaml_files import load_yaml, parse_yaml, plain_tree

StrategyName = Literal["supervised", "multi_frequency", "consistency", "interpolation", "fat", "any_rate"]
STRATEGIES: tuple[str, ...] = get_args(StrategyName)
#: The rates of the paper's tables.
RATES = (20.0, 40.0, 80.0, 100.0, 200.0)

#: Files in a row, each of which names the next as its base.
MAX_BASES = 16

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=1, le=1000)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelConfig(_Frozen):
    """Which detector."""

    name: str = Field("fate-s", description="a name of fate models")
    encoder: str | None = Field(None, description="another encoder than the model's own")
    encoder_options: dict[str, Any] = Field({}, description="ablations of Pillar Encoding: moments, pooling, pillar, …")
    stem: Literal["native", "upsample"] = Field("native", description="how a coarse image meets the backbone")
    options: dict[str, Any] = Field({}, description="of the model's family: official_state, remember, …")
    weights: str | None = Field(None, description="a .safetensors file to start from; none: fresh weights")


class DataConfig(_Frozen):
    """Which windows are learned from."""

    path: str = Field(description="a dataset: folder or YAML")
    train: str = Field("train", description="split to learn from")
    validate_on: str = Field("val", alias="validate", description="split that says when a model is best")
    steps: Positive = Field(21, description="windows in a clip; the paper: 21 on Gen1, 10 on 1Mpx")
    random: Count = Field(16, description="clips of a batch from anywhere, with fresh memory; half of the paper's 32")
    streams: Count = Field(16, description="clips of a batch that go on where the last one ended, memory carried")
    rate_clips: Positive = Field(20, description="clips after which a stream draws a new rate")
    augmentation: Literal["paper", "rvt", "none"] = Field("paper", description="fate.events.transforms")
    workers: Count = Field(4, description="processes that load")
    resident_gb: float = Field(
        8.0, ge=0, description="a training set of at most so many GB is kept on the GPU (13 bytes an event); 0: none"
    )


class StrategyConfig(_Frozen):
    """What is learned from them: Frequency-Aware Training, or one of its ablations."""

    name: StrategyName = "supervised"
    rates: tuple[Rate, ...] = Field(RATES, description="F of the curriculum, in rising order; the first is canonical")
    labels: str | None = Field(None, description="folder written by fate densify; fat needs it")
    decay: float = Field(0.9999, ge=0, lt=1, description="γ of the mean teacher")
    decay_warmup: Count = Field(0, description="steps over which γ rises from 0; the paper has none")
    consistency_weight: float = Field(1.0, ge=0, description="of KL + L1 beside the detection loss")
    consistency_score: float = Field(
        0.3, ge=0, le=1, description="least score of a teacher's prediction to be followed"
    )
    warmup_windows: Count = Field(4, description="canonical windows before the clip that warm the teacher's memory")


class OptimiserConfig(_Frozen):
    """How weights move."""

    lr: float = Field(2e-4, gt=0, description="peak of OneCycle")
    weight_decay: float = Field(1e-4, ge=0, description="AdamW; the paper (the public peers: 0)")
    warmup: float = Field(0.005, gt=0, lt=1, description="share of the steps in which the rate rises")
    start_divisor: float = Field(20.0, ge=1, description="the first rate is lr / this (RVT)")
    end_divisor: float = Field(10_000.0, ge=1, description="the last rate is lr / this (RVT)")
    clip_norm: float = Field(5.0, gt=0, description="largest norm of the gradient")
    only: Literal["all", "memory"] = Field("all", description='"memory": EvRT-DETR\'s published second stage')


class RunConfig(_Frozen):
    """How long, how often, on what."""

    epochs: Positive = Field(400, description="R of the curriculum; the paper: 400")
    epoch_steps: Positive = Field(1000, description="optimiser steps in an epoch (EvRT-DETR)")
    accumulate: Positive = Field(1, description="batches to an optimiser step")
    precision: Literal["auto", "float32", "bf16"] = Field(
        "auto", description="auto: bf16 on a GPU, which keeps encoder, S5 and losses in float32; float32 on a CPU"
    )
    compile: bool = Field(False, description="torch.compile for backbone and neck; pays on a GPU after minutes")
    graphs: bool = Field(True, description="on one GPU, backbone and neck as CUDA graphs: the same, with less waiting")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: Positive = Field(1, description="GPUs (or CPU processes) of each machine")
    nodes: Positive = Field(1, description="machines")
    seed: Count = 0
    validate_every: Positive = Field(10, description="epochs between validations")
    validate_hz: tuple[Rate, ...] = Field((20.0, 200.0), description="rates validated at; best is their mean AP50:95")
    validate_recordings: Count = Field(0, description="how many recordings at most; 0: all")
    save_every: Positive = Field(500, description="steps between checkpoints")
    log_every: Positive = Field(20, description="steps between lines of metrics.jsonl")


class TrainConfig(_Frozen):
    """One experiment."""

    model: ModelConfig = ModelConfig()  # type: ignore[call-arg]
    data: DataConfig
    strategy: StrategyConfig = StrategyConfig()  # type: ignore[call-arg]
    optimiser: OptimiserConfig = OptimiserConfig()  # type: ignore[call-arg]
    run: RunConfig = RunConfig()  # type: ignore[call-arg]

    @property
    def steps(self) -> int:
        """Optimiser steps in all."""
        return self.run.epochs * self.run.epoch_steps

    @property
    def lanes(self) -> int:
        """Clips in a batch, over all processes."""
        return self.data.random + self.data.streams

    def halves(self, device: str) -> bool:
        """Whether bf16 is used there; many CPUs only imitate it, and take many times as long."""
        return self.run.precision == "bf16" or (self.run.precision == "auto" and device == "cuda")

    def to_yaml(self) -> str:
        """Every field, defaults included."""
        return str(yaml.safe_dump(self.model_dump(mode="json", by_alias=True), sort_keys=False))

    def fingerprint(self) -> str:
        """The same for configurations that train the same: what only says where and how often is left out."""
        content = self.model_dump(mode="json", by_alias=True)
        for name in ("workers", "resident_gb"):
            content["data"].pop(name)
        for name in content["run"].copy():
            if name in ("device", "graphs", "save_every", "log_every") or name.startswith("validate_"):
                content["run"].pop(name)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def read_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """A configuration from a YAML file, changed by ``key.sub=value`` texts; values are YAML too.

    A file may name another one beside it, ``base: fate-e.yaml``, and give only what differs. Other relative paths are
    meant from the working directory, as on the command line.
    """
    return make_config(_read(Path(path), ()), overrides, str(path))


def _read(source: Path, before: tuple[Path, ...]) -> dict[str, Any]:
    """The content of a file on top of that of its base; ``before`` are the files that led here."""
    if len(before) > MAX_BASES:
        raise FateError(f"{source}: is the base of {len(before)} files in a row; expected at most {MAX_BASES}")
    check_regular(source, "a YAML file with the settings of a run, such as those in configs/")
    if source.resolve() in before:
        raise FateError(f"{source}: is its own base; expected another file")
    content = load_yaml(source, "a YAML file with the settings of a run, such as those in configs/")
    if content is not None and not isinstance(content, dict):
        raise FateError(f"{source}: holds a {type(content).__name__}; expected keys such as model, data and strategy")
    own = dict(content or {})
    base = own.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str):
        raise FateError(f"{source}: base = {str(base)[:80]!r} was given; expected the name of another YAML file")
    return _merged(_read(source.parent / base, (*before, source.resolve())), own)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Sections key by key; what is above wins."""
    both = {name: _merged(below[name], above[name]) for name in below.keys() & above.keys()
            if isinstance(below[name], dict) and isinstance(above[name], dict)}  # fmt: skip
    return {**below, **above, **both}


def make_config(
    content: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "configuration"
) -> TrainConfig:
    """A checked configuration; an error names the key, what was given and what was expected."""
    tree: dict[str, Any] = plain_tree(content, source)
    for text in overrides:
        _override(tree, text)
    try:
        config = TrainConfig.model_validate(tree)
    except ValidationError as error:
        raise FateError(f"{source}: {'; '.join(_sentence(each) for each in error.errors()[:3])}") from None
    _check(config, source)
    return config


def _override(tree: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise FateError(f"{text!r} was given; expected key.sub=value, such as optimiser.lr=1e-4")
    place = tree
    for name in names[:-1]:
        below = place.setdefault(name, {})
        if not isinstance(below, dict):
            raise FateError(f"{text!r} was given, but {name} is a single value; expected {name}=value")
        place = below
    try:
        parsed = parse_yaml(value, text)
    except FateError:
        raise FateError(f"{text!r} was given; expected a value as in YAML, such as 1e-4, true or [20, 200]") from None
    place[names[-1]] = float(parsed) if isinstance(parsed, str) and _is_number(parsed) else parsed


def _is_number(text: str) -> bool:
    """YAML takes 1e-4 for a text; people do not."""
    try:
        float(text)
    except ValueError:
        return False
    return "e" in text.lower() and any(sign.isdigit() for sign in text)


def _sentence(error: Any) -> str:
    """One of pydantic's findings in our words."""
    place = [str(part) for part in error["loc"]]
    key = ".".join(place)
    if error["type"] == "extra_forbidden":
        known = sorted(_fields(place[:-1]))
        near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.4)
        hint = f"; did you mean {'.'.join([*place[:-1], near[0]])!r}?" if near else ""
        return f"unknown key {key!r}; known are {', '.join(known)}{hint}"
    if error["type"] == "missing":
        return f"{key!r} is missing; give it in the file or as {key}=value"
    said = error["msg"].removeprefix("Input should be ").removeprefix("Input ")
    return f"{key} = {error['input']!r} was given; expected {said}"


def _fields(place: Iterable[str]) -> list[str]:
    """The keys at some place of the tree."""
    here: Any = TrainConfig
    for name in place:
        field = next((f for key, f in here.model_fields.items() if name in (key, f.alias)), None)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        here = field.annotation
    return [field.alias or name for name, field in here.model_fields.items()]


def _check(config: TrainConfig, source: str) -> None:
    """What no single field can know."""
    rates = config.strategy.rates
    if not rates or list(rates) != sorted(set(rates)):
        raise FateError(f"{source}: strategy.rates = {list(rates)} was given; expected rates in rising order")
    if not config.run.validate_hz:
        raise FateError(f"{source}: run.validate_hz = [] was given; expected at least one rate, such as [20]")
    if not config.lanes:
        raise FateError(
            f"{source}: data.random = 0 and data.streams = 0 were given; expected at least one clip a batch"
        )
    processes = config.run.devices * config.run.nodes
    for name, lanes in (("random", config.data.random), ("streams", config.data.streams)):
        if lanes % processes:
            raise FateError(
                f"{source}: data.{name} = {lanes} clips cannot be dealt to {processes} processes; expected a multiple"
            )
    if config.strategy.name in ("fat", "any_rate") and config.strategy.labels is None:
        raise FateError(
            f"{source}: strategy.labels is missing; {config.strategy.name} learns from dense labels: make them with"
            " fate densify MODEL DATASET --out DIR and give strategy.labels=DIR"
        )
