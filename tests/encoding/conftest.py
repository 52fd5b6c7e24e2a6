"""What the tests of batches and of Pillar Encoding share: crowded windows, special ones, and the float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from fate.encoding.batch import EventBatch
from fate.encoding.kernels import reference
from fate.encoding.pillars import PillarEncoder
from fate.encoding.spec import PillarStats
from fate.events.events import Events
from fate.events.window import Window

SENSOR = (23, 31)  # no pillar of 2, 3, 4 or 8 pixels divides it
Row = tuple[int, int, int, int]  # t, x, y, p
Pair = tuple[Window, Events]


def window_of(
    rows: Sequence[Row], duration_us: int = 1000, start_us: int = 0, sensor: tuple[int, int] = SENSOR
) -> Pair:
    """One window of events (µs since its start, x, y, p), sorted by time."""
    table = np.array(sorted(rows, key=lambda row: row[0]), np.int64).reshape(-1, 4)
    window = Window(start_us, start_us + duration_us)
    return window, Events(table[:, 0] + start_us, table[:, 1], table[:, 2], table[:, 3], sensor)


def batch_of(*rows: Sequence[Row], duration_us: int = 1000, sensor: tuple[int, int] = SENSOR) -> EventBatch:
    """A batch of such windows, one behind the other."""
    pairs = [window_of(part, duration_us, number * duration_us, sensor) for number, part in enumerate(rows)]
    return EventBatch.from_windows(pairs)


def crowded_windows(
    seed: int = 0, windows: int = 3, events: int = 500, sensor: tuple[int, int] = SENSOR, clusters: int = 4
) -> list[Pair]:
    """Windows of 5 to 50 ms with events in clusters, many at one time, some twice; the second window is empty."""
    random = np.random.default_rng(seed)
    height, width = sensor
    pairs = []
    for number in range(windows):
        count = 0 if number == 1 else int(random.integers(events // 2, events + 1))
        duration, start = int(random.integers(5_000, 50_001)), int(random.integers(-(2**40), 2**40))
        middles = random.uniform(0, 1, (clusters, 2)) * (width, height)
        around = middles[random.integers(0, clusters, count)] + random.normal(0, 3, (count, 2))
        x, y = np.clip(around, 0, (width - 1, height - 1)).astype(int).T
        t = np.sort(random.integers(0, duration // 7, count)) * 7
        p = random.integers(0, 2, count)
        twice = np.sort(np.concatenate([np.arange(count), random.integers(0, max(count, 1), count // 10)]))
        columns = [column[twice] for column in (t + start, x, y, p)]
        pairs.append((Window(start, start + duration), Events(*columns, sensor)))
    return pairs


def crowded(
    seed: int = 0, windows: int = 3, events: int = 500, sensor: tuple[int, int] = SENSOR, clusters: int = 4
) -> EventBatch:
    """The same as a batch."""
    return EventBatch.from_windows(crowded_windows(seed, windows, events, sensor, clusters))


def special_batches() -> dict[str, EventBatch]:
    """What is rare in random windows and common in real ones."""
    random = np.random.default_rng(5)
    last = [
        (10 * i, x, y, i % 2) for i, (x, y) in enumerate([(30, 22), (30, 0), (0, 22), (30, 21), (29, 22), (30, 22)])
    ]
    pillar = [(int(t), 4 + i % 2, 8 + i // 2 % 2, i // 4 % 2) for i, t in enumerate(random.integers(0, 1000, 300))]
    spread = [(i, x, y, (x + y) % 2) for i, (y, x) in enumerate(np.ndindex(*SENSOR))]
    return {
        "no event": batch_of([]),
        "no event in three windows": batch_of([], [], []),
        "one event": batch_of([(999, 30, 22, 1)]),
        "one event at the start": batch_of([(0, 0, 0, 0)]),
        "one event in each of two windows": batch_of([(5, 3, 3, 1)], [], [(900, 3, 3, 0)]),
        "all at one time": batch_of([(500, int(x), int(x) % 23, int(x) % 2) for x in random.integers(0, 31, 40)]),
        "the same event again and again": batch_of([(500, 7, 7, 1)] * 50),
        "duplicates among others": batch_of(
            [(100, 7, 7, 1)] * 5 + [(200, 7, 7, 0)] * 3 + [(300, 6, 6, 1), (100, 8, 2, 0)]
        ),
        "one pillar holds everything": batch_of(pillar),
        "every pixel once": batch_of(spread),
        "last row and column": batch_of(last),
        "a window of one µs": batch_of([(0, 3, 3, 0), (0, 3, 3, 1), (0, 9, 3, 1)], duration_us=1),
        "two events one µs apart in half an hour": batch_of(
            [(2**30, 3, 3, 0), (2**30 + 1, 2, 3, 1)], duration_us=2**31 - 1
        ),
    }  # fmt: skip


@st.composite
def rows_of_events(draw: st.DrawFn, sensor: tuple[int, int] = SENSOR, max_size: int = 40) -> list[Row]:
    """Any events of a window of 1000 µs: none, ties, duplicates, crowds in a corner."""
    height, width = draw(st.sampled_from([sensor, (3, 3)]))
    times = st.integers(0, 999) | st.sampled_from([0, 1, 500, 500, 999])
    row = st.tuples(times, st.integers(0, width - 1), st.integers(0, height - 1), st.integers(0, 1))
    return sorted(draw(st.lists(row, max_size=max_size)), key=lambda one: one[0])


def make_encoder(sensor: tuple[int, int] = SENSOR, channels: int = 5, seed: int = 1, **options: Any) -> PillarEncoder:
    """An encoder in which no parameter and no running statistic stands at its simple beginning; in evaluation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = PillarEncoder(sensor, channels=channels, **options).eval()
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
            for name in ("running_mean", "running_var"):
                getattr(encoder.norm, name).copy_(torch.rand(channels) + 0.2)
    return encoder


class Outcome(NamedTuple):
    """What an encoder made of a batch."""

    image: Tensor
    gradients: dict[str, Tensor]  #: of every parameter, for a fixed gradient of the image
    stats: PillarStats


def image_gradient(shape: torch.Size) -> Tensor:
    """A fixed gradient of an image, float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def outcome(encoder: PillarEncoder, batch: EventBatch, draw: int = 0) -> Outcome:
    """Image and gradients, in the encoder's mode; what training draws, it draws after ``manual_seed(draw)``."""
    encoder.zero_grad(set_to_none=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw)
        image = encoder(batch)
    image.backward(image_gradient(image.shape).to(image))
    gradients = {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}
    assert encoder.last_stats is not None
    return Outcome(image.detach(), gradients, encoder.last_stats)


def drawn_seed(draw: int = 0) -> int:
    """The seed that training draws first after ``manual_seed(draw)``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw)
        return int(torch.randint(2**62, ()))


def expected(encoder: PillarEncoder, batch: EventBatch, draw: int = 0) -> Outcome:
    """The same by the dense reference in float64 on the CPU; an encoder in training keeps its running statistics."""
    given = {name: part.detach().cpu().double().requires_grad_() for name, part in encoder.named_parameters()}
    zeros = torch.zeros(encoder.channels, encoder.spec.moments, dtype=torch.float64)
    names = ("linear.weight", "linear.bias", "norm.weight", "norm.bias")
    parameters = reference.Parameters(
        *(given[name] for name in names), given.get("alpha", zeros), given.get("beta", zeros[:, 0])
    )
    running = None
    if not encoder.training:
        assert encoder.norm.running_mean is not None
        assert encoder.norm.running_var is not None
        running = encoder.norm.running_mean.cpu().double(), encoder.norm.running_var.cpu().double()
    seed = drawn_seed(draw) if encoder.training else encoder.seed
    image, stats = reference.encode(batch.to("cpu"), encoder.spec, seed, parameters, running)
    if image.requires_grad:
        image.backward(image_gradient(image.shape))
    gradients = {name: torch.zeros_like(part) if part.grad is None else part.grad for name, part in given.items()}
    return Outcome(image.detach(), gradients, stats)


def errors(got: Outcome, wanted: Outcome, training: bool) -> dict[str, float]:
    """The largest error of the image and of each gradient, relative to its largest value.

    In training the gradient of the layer's bias is 0 but for rounding; it is measured against that of its weight.
    """

    def error(one: Tensor, other: Tensor, scale: Tensor) -> float:
        return float(
            (one.cpu().double() - other.cpu().double()).abs().max() / scale.double().abs().max().clamp(min=1e-30)
        )

    found = {"image": error(got.image, wanted.image, wanted.image)}
    for name, gradient in wanted.gradients.items():
        of = "linear.weight" if training and name == "linear.bias" else name
        found[name] = error(got.gradients[name], gradient, wanted.gradients[of])
    return found
