"""The configuration of a training run: frozen values with the paper's defaults, from YAML and ``key.sub=value``.

    model: {name: fate-s}
    data: {path: gen1, steps: 21}
    strategy: {name: fat, labels: dense/gen1}

Every field has a default from the paper's appendix or, if it gives none, from the detector's own publication; its
description says which. An unknown key is refused with the nearest known one. The configurations in the package have
names, ``sim/fate-s-nano-20hz`` or ``fate-s-nano-20hz`` as it is unique, so that ``fate train NAME`` works from any
folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fate.errors import FateError
from fate.files import check_regular
from fate.rates import PAPER_RATES
from fate.text import nearest_name
from fate.training.settings import Accepts, list_settings
from fate.yaml_files import load_yaml, parse_yaml, plain_tree

StrategyName = Literal["supervised", "multi_frequency", "consistency", "interpolation", "fat", "any_rate"]
#: Which blocks run again in the backward pass: none, those of a DETR head, or those of backbone, neck and head.
Checkpointing = Literal["none", "head", "all"]

#: The value of ``strategy.labels`` that means the exact boxes of simulated recordings.
EXACT = "truth"
#: Where the configurations of the package lie, one folder for each dataset.
FOLDER = Path(__file__).parent.parent / "configs"
EXPECTED = "a YAML file with the settings of a run, or a name that fate train --list prints"
#: What people write for a number and YAML takes for a text: 1e-4.
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)e[-+]?\d+", re.IGNORECASE)
#: Files in a row, each of which names the next as its base.
MAX_BASES = 16

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=1, le=1000)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class ModelConfig(_Frozen):
    """The detector."""

    name: str = Field("fate-s", description="name of the detector; fate models lists all names")
    encoder: str | None = Field(None, description="another encoder for the model; null uses the model's own encoder")
    encoder_options: dict[str, Any] = Field(
        {}, description="arguments of the encoder, such as moments, pooling, pillar and channels"
    )
    stem: Literal["native", "upsample"] = Field(
        "native",
        description="for large pillars: native reduces the stride of the stem, upsample enlarges the image",
    )
    options: dict[str, Any] = Field(
        {}, description="arguments of the model family, such as dims, depth, layers and queries"
    )
    weights: str | None = Field(None, description="a .safetensors file to start from; null starts from random weights")
    transfer: bool = Field(
        False,
        description="weights may be those of other classes or of another sensor; layers of new classes start at random,"
        " and parameters for the length of windows as in a new detector",
    )


class DataConfig(_Frozen):
    """The dataset, and the clips of a batch."""

    path: str = Field(description="the dataset: a folder or a YAML file")
    train: str = Field("train", description="the split for training")
    validate_on: str = Field(
        "val", alias="validate", description="the split for validation, which selects the best weights"
    )
    steps: Positive = Field(21, description="windows per clip; the paper uses 21 on Gen1 and 10 on 1Mpx")
    random: Count = Field(
        16, description="clips per batch that start at a random time with a new state; half of the paper's batch of 32"
    )
    streams: Count = Field(
        16,
        description="clips per batch that continue the previous batch and keep their state; the other half of the 32",
    )
    rate_clips: Positive = Field(20, description="number of clips after which a stream draws a new rate")
    augmentation: Literal["paper", "rvt", "none"] = Field(
        "paper", description="random changes of events and boxes: as in the paper, as in RVT, or none"
    )
    workers: Count = Field(4, description="processes that load data; with 0, the training process loads the data")
    resident_gb: float = Field(
        8.0,
        ge=0,
        description="a training set of up to this many GB is kept in GPU memory (13 bytes per event); 0 disables this",
    )


class StrategyConfig(_Frozen):
    """The training strategy: Frequency-Aware Training, or one of its ablations."""

    name: StrategyName = Field(
        "supervised", description="the training strategy; docs/guides/training.md of the repository compares them"
    )
    rates: tuple[Rate, ...] = Field(
        PAPER_RATES,
        description="rates in Hz in ascending order; the first is the canonical rate; the five rates of the paper",
    )
    labels: str | None = Field(
        None,
        description="labels of fat and any_rate: a folder of fate densify, or truth: exact boxes of simulated data",
    )
    first_alpha: float = Field(
        0.0,
        ge=0,
        le=1,
        description="α of the curriculum in the first epoch: 0 begins at the canonical rate alone, as in the paper; 1"
        " draws all rates from the start, for weights that were trained at all rates before",
    )
    last_alpha: float = Field(
        1.0,
        ge=0,
        le=1,
        description="α of the curriculum at the end; with 1, as in the paper, the canonical rate has a share of 7 %"
        " then; with 0.5 it has 30 %, with 0.25 it has 53 %",
    )
    hop_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="any_rate: share of clips whose windows are as long as the hop; of the others, two thirds have 50"
        " ms, and a third lies between",
    )
    decay: float = Field(0.9999, ge=0, lt=1, description="γ, the decay of the mean teacher; as in the paper")
    decay_warmup: Count = Field(0, description="steps over which γ rises from 0; the paper has no warm-up")
    consistency_weight: float = Field(
        1.0,
        ge=0,
        description="weight of the consistency loss (KL + L1) relative to the detection loss; 0 trains without it",
    )
    consistency_score: float = Field(
        0.3, ge=0, le=1, description="the student learns from predictions of the teacher with at least this score"
    )
    warmup_windows: Count = Field(
        4, description="canonical windows before a clip with which the teacher builds its state"
    )


class OptimiserConfig(_Frozen):
    """AdamW and its schedule."""

    lr: float = Field(2e-4, gt=0, description="highest learning rate of the OneCycle schedule; as in the paper")
    weight_decay: float = Field(
        1e-4, ge=0, description="weight decay of AdamW; as in the paper (the public code of other detectors uses 0)"
    )
    warmup: float = Field(
        0.005, gt=0, lt=1, description="share of the steps in which the learning rate rises; as in the paper"
    )
    start_divisor: float = Field(
        20.0, ge=1, description="the first learning rate is lr divided by this number; as in RVT"
    )
    end_divisor: float = Field(
        10_000.0, ge=1, description="the last learning rate is lr divided by this number; as in RVT"
    )
    clip_norm: float = Field(
        5.0, gt=0, description="the norm of the gradient is limited to this value; as in the paper"
    )
    clip_value: float | None = Field(
        None, gt=0, description="each number of the gradient is limited to this value instead of the norm; RVT has 1"
    )
    only: Literal["all", "head", "memory"] = Field(
        "all",
        description="the weights that are trained; head: neck and head; memory: EvRT-DETR's second stage as published",
    )
    backbone_lr: float = Field(
        1.0, gt=0, description="learning rate of encoder and backbone relative to lr; fine-tuning uses 0.2"
    )


class RunConfig(_Frozen):
    """Length of the run, device, validation and checkpoints."""

    epochs: Positive = Field(400, description="length of the run in epochs, R of the curriculum; as in the paper")
    epoch_steps: Positive = Field(1000, description="optimiser steps per epoch; as in EvRT-DETR")
    accumulate: Positive = Field(1, description="batches per optimiser step")
    activation_checkpointing: Checkpointing = Field(
        "none",
        description="save memory: blocks of a DETR head (head), or of backbone, neck and head (all), run again in the"
        " backward pass; slower, with the same result",
    )
    precision: Literal["auto", "float32", "bf16"] = Field(
        "auto", description="auto uses bf16 on a GPU (float32 for encoder, S5 and losses) and float32 on a CPU"
    )
    compile: bool = Field(
        False,
        description="use torch.compile for backbone and neck; it takes minutes, then steps on a GPU are faster",
    )
    graphs: bool = Field(
        True, description="run backbone and neck as CUDA graphs on a single GPU; faster, with the same result"
    )
    device: Annotated[str, Accepts("auto, cpu, cuda or cuda:N, such as cuda:1")] = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$",
        description="auto uses a GPU if there is one, otherwise the CPU",
    )
    devices: Positive = Field(1, description="number of GPUs (or CPU processes) per machine")
    nodes: Positive = Field(1, description="number of machines that train together")
    seed: Count = Field(0, description="seed of all random numbers; another seed is another run")
    validate_every: Positive = Field(10, description="number of epochs between two validations")
    validate_hz: tuple[Rate, ...] = Field(
        (20.0, 200.0),
        description="rates in Hz for validation; the best weights have the highest mean AP50:95 over these rates",
    )
    validate_recordings: Count = Field(
        32, description="largest number of recordings for validation, spread evenly over the split; 0 uses all"
    )
    save_every: Positive = Field(500, description="number of steps between two checkpoints")
    log_every: Positive = Field(20, description="number of steps between two lines of metrics.jsonl")
    loggers: tuple[Literal["csv", "tensorboard", "wandb", "mlflow"], ...] = Field(
        (), description="further loggers, such as [csv, tensorboard]; all but csv need the package of their name"
    )

    @property
    def gpu(self) -> int | None:
        """The number N of a GPU that was named as ``cuda:N``."""
        _, colon, number = self.device.partition(":")
        return int(number) if colon else None


class TrainConfig(_Frozen):
    """One experiment."""

    model: ModelConfig = ModelConfig()  # type: ignore[call-arg]
    data: DataConfig
    strategy: StrategyConfig = StrategyConfig()  # type: ignore[call-arg]
    optimiser: OptimiserConfig = OptimiserConfig()  # type: ignore[call-arg]
    run: RunConfig = RunConfig()  # type: ignore[call-arg]

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates of the clips in Hz: all of the strategy, but only the first for supervised training."""
        return self.strategy.rates[:1] if self.strategy.name == "supervised" else self.strategy.rates

    @property
    def steps(self) -> int:
        """Optimiser steps in all."""
        return self.run.epochs * self.run.epoch_steps

    @property
    def batch_size(self) -> int:
        """Clips in a batch, over all processes."""
        return self.data.random + self.data.streams

    def halves(self, device: str) -> bool:
        """Whether training on this device uses bf16; most CPUs emulate it, which is many times slower."""
        return self.run.precision == "bf16" or (self.run.precision == "auto" and device == "cuda")

    def to_yaml(self) -> str:
        """Every field, defaults included."""
        return str(yaml.safe_dump(self.model_dump(mode="json", by_alias=True), sort_keys=False))

    def fingerprint(self) -> str:
        """A hash of all fields that affect the trained weights."""
        others = {
            "device",
            "graphs",
            "activation_checkpointing",
            "save_every",
            "log_every",
            "loggers",
            "validate_every",
            "validate_hz",
            "validate_recordings",
        }
        without = {"data": {"workers", "resident_gb"}, "run": others}
        content = self.model_dump(mode="json", by_alias=True, exclude=without)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class NamedConfig(NamedTuple):
    """A configuration in the package."""

    name: str  #: folder and stem, such as ``"gen1/fate-e"``
    file: Path
    about: str  #: the first comment of the file


def list_configs() -> list[NamedConfig]:
    """All configurations of the package, sorted by name; the first line of each file is a comment about it."""
    files = {f"{file.parent.name}/{file.stem}": file for file in sorted(FOLDER.glob("*/*.yaml"))}
    first_lines = (file.read_text(encoding="utf-8").partition("\n")[0] for file in files.values())
    return [NamedConfig(*each, line.lstrip("# ")) for each, line in zip(files.items(), first_lines, strict=True)]


def find_config(given: str | PathLike[str]) -> Path:
    """The file of a configuration.

    ``given`` is a name from :func:`list_configs`, its last part if only one configuration has it, or the path of a YAML
    file. A name wins over a file that is called the same; write ``./NAME`` for the file.
    """
    known = {config.name: config.file for config in list_configs()}
    text = str(given)
    if text in known:
        return known[text]
    same = [name for name in known if name.split("/")[1] == text]
    if len(same) == 1:
        return known[same[0]]
    if same:
        raise FateError(f"{text}: {len(same)} configurations have this name; give {' or '.join(same)}")
    path = Path(given)
    if path.exists() or path.is_symlink():
        return path
    requested = text.removeprefix("configs/").removesuffix(".yaml")
    short = {name if "/" in requested else name.split("/")[1]: name for name in reversed(known)}
    near = nearest_name(requested, short)
    raise FateError(
        f"{text}: no such configuration; expected a name that fate train --list prints, or a YAML file"
        f"{'' if near is None else f'; did you mean {short[near]}?'}"
    )


def read_config(path: str | PathLike[str], overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a configuration by its name or from a YAML file, and change it by texts such as ``optimiser.lr=1e-4``.

    A file may name another one, ``base: fate-e.yaml``, and give only what differs: a file beside it, or a configuration
    of the package by its name. Other relative paths are relative to the working directory, as on the command line.
    """
    return make_config(_read(find_config(path), ()), overrides, str(path))


def _read(source: Path, before: tuple[Path, ...]) -> dict[str, Any]:
    """The content of a file on top of that of its base; ``before`` are the files that led here."""
    if len(before) > MAX_BASES:
        raise FateError(f"{source}: is the base of {len(before)} files in a row; expected at most {MAX_BASES}")
    check_regular(source, EXPECTED)
    if source.resolve() in before:
        raise FateError(f"{source}: is its own base; expected another file")
    content = load_yaml(source, EXPECTED)
    if content is not None and not isinstance(content, dict):
        raise FateError(f"{source}: holds a {type(content).__name__}; expected keys such as model, data and strategy")
    own = dict(content or {})
    base = own.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str) or "\0" in base:
        raise FateError(f"{source}: base = {str(base)[:80]!r} was given; expected the name of another YAML file")
    beside = source.parent / base
    return _merged(_read(beside if beside.exists() else find_config(base), (*before, source.resolve())), own)


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
    section = tree
    for name in names[:-1]:
        below = section.setdefault(name, {})
        if not isinstance(below, dict):
            raise FateError(f"{text!r} was given, but {name} is a single value; expected {name}=value")
        section = below
    try:
        parsed = parse_yaml(value, text)
    except FateError:
        raise FateError(f"{text!r} was given; expected a value as in YAML, such as 1e-4, true or [20, 200]") from None
    section[names[-1]] = float(parsed) if isinstance(parsed, str) and NUMBER.fullmatch(parsed) else parsed


def _sentence(error: Any) -> str:
    """One of pydantic's findings as a sentence: the key, what was given, what is expected, what to do."""
    settings = {setting.key: setting for setting in list_settings(TrainConfig)}
    location = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        known = sorted(_keys_of(settings, ".".join(location[:-1])))
        near = nearest_name(location[-1], known)
        hint = f"; did you mean {'.'.join([*location[:-1], near])!r}?" if near else ""
        return f"unknown key {'.'.join(location)!r}; known are {', '.join(known)}{hint}"
    key, item = ".".join(location[:2]), "".join(f"[{part}]" for part in location[2:])
    keys = _keys_of(settings, key)
    if error["type"] == "missing":
        requested = f"{key}.{keys[0]}" if keys else key
        return f"{requested} is missing; give it in the file, or as {requested}=VALUE behind the configuration"
    text = repr(error["input"])
    given = text if len(text) <= 80 else f"{text[:77]}…"
    if keys:
        value = error["input"] if isinstance(error["input"], str | int | float) else "VALUE"
        return (
            f"{key} = {given} was given, but {key} is a section with the keys {', '.join(keys)}; give one of them, such"
            f" as {key}.{keys[0]}={value}"
        )
    kind = settings[key].kind
    return f"{key}{item} = {given} was given; expected {kind} (fate train --settings explains each setting)"


def _keys_of(settings: Mapping[str, Any], section: str) -> list[str]:
    """The keys of a section, or the sections if it is empty; none for a key that is a single value."""
    start = f"{section}." if section else ""
    found = (key.removeprefix(start).partition(".")[0] for key in settings if key.startswith(start))
    return list(dict.fromkeys(found))


def _check(config: TrainConfig, source: str) -> None:
    """Refuse values that contradict each other."""
    run, data, strategy = config.run, config.data, config.strategy
    processes = run.devices * run.nodes
    faults = {
        f"strategy.rates = {list(strategy.rates)} was given; expected rates in rising order": (
            not strategy.rates or list(strategy.rates) != sorted(set(strategy.rates))
        ),
        "run.validate_hz = [] was given; expected at least one rate, such as [20]": not run.validate_hz,
        "data.random = 0 and data.streams = 0 were given; expected at least one clip a batch": not config.batch_size,
        f"data.random = {data.random} and data.streams = {data.streams} clips were given for {processes} processes;"
        " expected multiples of the number of processes": data.random % processes or data.streams % processes,
        f"run.device = {run.device} names one GPU and {processes} processes were asked for; give run.device=cuda, and"
        " choose GPUs with CUDA_VISIBLE_DEVICES": run.gpu is not None and processes > 1,
        f"strategy.labels is missing; {strategy.name} learns from dense labels: make them with fate densify MODEL"
        " DATASET --out DIR and give strategy.labels=DIR, or give strategy.labels=truth for simulated data": (
            strategy.name in ("fat", "any_rate") and strategy.labels is None
        ),
    }
    for fault, is_there in faults.items():
        if is_there:
            raise FateError(f"{source}: {fault}")
