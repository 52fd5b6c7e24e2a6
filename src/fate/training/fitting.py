"""The largest batch that fits in memory, and settings with which the batch of a configuration fits.

The memory of a training step grows linearly with the number of clips in a batch, so two small batches predict all
others. If the batch does not fit, more blocks run again in the backward pass (activation checkpointing), which changes
no result. If it still does not fit, it becomes several smaller batches whose gradients are accumulated. The optimiser
step then sees as many clips as before, but BatchNorm sees fewer at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, get_args

from fate.errors import FateError
from fate.training.config import Checkpointing, TrainConfig

#: Peak memory in GB of a training step with this activation checkpointing and number of clips; infinite if it failed.
MemoryOf = Callable[[Checkpointing, int], float]


class Fit(NamedTuple):
    """Settings that fit in memory."""

    config: TrainConfig
    largest: int  #: most clips in a batch that fit with the same activation checkpointing


def predict_memory(measured: Mapping[int, float], clips: int) -> float:
    """Peak memory in GB for a number of clips, from measurements in GB by number of clips."""
    least, most = min(measured), max(measured)
    growth = (measured[most] - measured[least]) / max(most - least, 1)
    return measured[most] + growth * (clips - most)


def largest_batch(measured: Mapping[int, float], limit_gb: float) -> int:
    """The largest number of clips that fits; 0 if none does."""
    least, most = min(measured), max(measured)
    growth = (measured[most] - measured[least]) / max(most - least, 1)
    if not math.isfinite(measured[most]):
        return least if measured[least] <= limit_gb else 0
    if growth <= 0:
        return most if measured[most] <= limit_gb else 0
    return max(math.floor(most + (limit_gb - measured[most]) / growth), 0)


def find_fit(config: TrainConfig, memory_of: MemoryOf, counts: tuple[int, int], limit_gb: float) -> Fit:
    """Find settings with which a configuration fits in memory; they are the given ones if these fit.

    Args:
        config: the given settings.
        memory_of: measures the peak memory of a training step.
        counts: numbers of clips to measure, the smaller first.
        limit_gb: memory that a step may use.
    """
    choices: tuple[Checkpointing, ...] = get_args(Checkpointing)
    largest = 0
    for choice in choices[choices.index(config.run.activation_checkpointing) :]:
        largest = largest_batch({count: memory_of(choice, count) for count in counts}, limit_gb)
        if largest >= config.batch_size:
            return Fit(_changed(config, choice, 1), largest)
    random, streams = config.data.random, config.data.streams
    for parts in range(2, math.gcd(random, streams) + 1):
        if random % parts == streams % parts == 0 and config.batch_size // parts <= largest:
            return Fit(_changed(config, "all", parts), largest)
    raise FateError(
        f"a batch of {random} random clips and {streams} streams of {config.data.steps} windows does not fit in"
        f" {limit_gb:.0f} GB, and no equal parts of it do (about {largest} clips would); use shorter clips"
        " (data.steps), or numbers of clips with more common divisors (data.random and data.streams)"
    )


def _changed(config: TrainConfig, choice: Checkpointing, parts: int) -> TrainConfig:
    """The same optimiser step with other activation checkpointing, in batches ``parts`` times smaller."""
    data, run = config.data, config.run
    smaller = {"random": data.random // parts, "streams": data.streams // parts}
    other = {"activation_checkpointing": choice, "accumulate": run.accumulate * parts}
    return config.model_copy(update={"data": data.model_copy(update=smaller), "run": run.model_copy(update=other)})


def changed_settings(given: TrainConfig, found: TrainConfig) -> str:
    """The settings of ``found`` that differ, as ``fate train`` takes them."""
    pairs = [(section, getattr(given, section), getattr(found, section)) for section in ("data", "run")]
    return " ".join(
        f"{section}.{name}={getattr(after, name)}"
        for section, before, after in pairs
        for name in type(before).model_fields
        if getattr(before, name) != getattr(after, name)
    )
