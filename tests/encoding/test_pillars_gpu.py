"""Pillar Encoding on a GPU: values, gradients and choices are those of the CPU, to the bit the same each time.

The comparisons also run without a GPU where Triton is installed and told to interpret: ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

pytest.importorskip("triton", reason="Pillar Encoding on a GPU is written in Triton, which is not installed here")

from fate.encoding import pillars
from fate.encoding.batch import EventBatch
from fate.encoding.kernels import cpu_kernels, torch_kernels, triton_kernels
from fate.encoding.pillars import PillarEncoder
from fate.encoding.spec import PillarSpec
from fate.encoding.window_length import WindowLength
from fate.errors import FateError
from tests.encoding.conftest import (
    SENSOR,
    Outcome,
    batch_of,
    crowded,
    errors,
    expected,
    make_encoder,
    outcome,
    special_batches,
    window_of,
)
from tests.gpu import DEVICE, HAS_GPU, INTERPRETED, needs_gpu, needs_triton

modes = pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])

SPECIAL = special_batches()
CAPS: list[dict[str, int | None]] = [
    {"max_events": None, "max_pillars": None},
    {"max_events": 3, "max_pillars": 20},
    {"max_events": 32, "max_pillars": 150},
]
CONFIGS: list[dict[str, Any]] = [
    {},
    {"center_offsets": True},
    *CAPS,
    {"moments": 1, "pillar": 1, **CAPS[2]},
    {"moments": 2, "pillar": 3, "center_offsets": True, **CAPS[1]},
    {"moments": 4, "pillar": 4, "weighting": "uniform", **CAPS[0]},
    {"moments": 5, "pillar": 8, "center_offsets": True, **CAPS[1]},
    {"moments": 8, "pillar": 2, **CAPS[0]},
    {"channels": 3, **CAPS[1]},
    {"channels": 33, **CAPS[1]},
    {"channels": 64, "center_offsets": True, **CAPS[2]},
    {"pooling": "max", "pillar": 3, **CAPS[2]},
]


@pytest.fixture(autouse=True)
def triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter the kernels for GPUs work on the CPU's memory, with fewer programs."""
    if INTERPRETED:
        monkeypatch.setattr(triton_kernels, "SUM_PROGRAMS", 4)
        monkeypatch.setattr(triton_kernels, "CAP_PROGRAMS", 4)
        monkeypatch.setattr(triton_kernels, "CELLS", 8)
        use(triton_kernels, monkeypatch)


def use(version: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoders take this version; of max pooling there is none in Triton."""

    def kernel_for(device: torch.device, dtype: torch.dtype, spec: PillarSpec, _: int | None = None) -> ModuleType:
        return torch_kernels if dtype == torch.float64 or spec.pooling == "max" else version

    monkeypatch.setattr(pillars, "kernel_for", kernel_for)


def on_device(encoder: PillarEncoder, batch: EventBatch, draw: int = 0) -> Outcome:
    return outcome(encoder.to(DEVICE), batch.to(DEVICE), draw)


@needs_triton
@modes
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_values_and_gradients_are_those_of_the_reference(
    config: dict[str, Any], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = crowded(seed=CONFIGS.index(config), events=500 if HAS_GPU else 150)
    encoder = make_encoder(**config)
    encoder.train(training)
    wanted = expected(encoder, batch)
    got = on_device(encoder, batch)
    assert got.image.device.type == DEVICE.type
    assert got.stats == wanted.stats
    found = errors(got, wanted, training)
    assert max(found.values()) < 1e-5, found
    use(torch_kernels, monkeypatch)
    plain = on_device(encoder, batch)
    assert plain.stats == wanted.stats
    found = errors(got, plain, training)
    assert max(found.values()) < 1e-5, found


@needs_triton
@modes
@pytest.mark.parametrize("options", [{}, {"max_events": 2, "max_pillars": 4, "center_offsets": True}], ids=str)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_windows_are_finite_and_right(name: str, options: dict[str, Any], training: bool) -> None:
    encoder = make_encoder(**options)
    encoder.train(training)
    wanted, got = expected(encoder, SPECIAL[name]), on_device(encoder, SPECIAL[name])
    assert got.stats == wanted.stats
    assert got.image.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in got.gradients.values())
    # in training a batch without any spread is divided by BatchNorm's eps: 300 times the rounding
    atol = 2e-4 if training else 2e-6
    torch.testing.assert_close(got.image.double().cpu(), wanted.image, rtol=1e-5, atol=atol)


@needs_triton
@modes
@pytest.mark.parametrize("most", [5, 31, 128, 129, 900])
def test_a_pillar_of_many_events_keeps_those_that_the_cpu_keeps(most: int, training: bool) -> None:
    """More events in a pillar than a program takes at a time, many of them at one time or twice."""
    random = np.random.default_rng(2)
    t = random.integers(0, 300, 1000 if HAS_GPU else 300)
    rows = [(int(now), 4 + i % 2, 8 + i // 2 % 2, i // 4 % 2) for i, now in enumerate(t)] + [(7, 9, 9, 1)] * 3
    encoder = make_encoder(max_events=most)
    encoder.train(training)
    wanted, got = expected(encoder, batch_of(rows)), on_device(encoder, batch_of(rows))
    assert got.stats == wanted.stats
    found = errors(got, wanted, training)
    assert found["image"] < 1e-5, found
    # events of one pillar hardly differ: what BatchNorm divides by is a small difference of sums in float32
    assert max(found.values()) < (1e-4 if training else 1e-5), found


@needs_triton
@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**62 - 1])
def test_one_seed_keeps_the_same_events_on_every_device(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = crowded(seed=3, windows=4, events=800 if HAS_GPU else 200)
    here = make_encoder(max_events=2, max_pillars=30)
    here.seed = seed
    got = on_device(here, batch)
    use(cpu_kernels, monkeypatch)
    there = make_encoder(max_events=2, max_pillars=30)
    there.seed = seed
    wanted = outcome(there, batch)
    assert got.stats == wanted.stats
    assert wanted.stats.pillars_dropped > 0
    assert wanted.stats.events_dropped > 0
    assert torch.equal((got.image.cpu() != 0).any(1), (wanted.image != 0).any(1))
    assert errors(got, wanted, training=False)["image"] < 1e-5


@needs_triton
@modes
def test_the_same_call_gives_the_same_bits(training: bool) -> None:
    sensor = (120, 160) if HAS_GPU else SENSOR
    batch = crowded(windows=4, events=20_000 if HAS_GPU else 300, sensor=sensor, clusters=100)
    made = []
    for _ in range(3):
        encoder = make_encoder(sensor, channels=16, max_pillars=2000)
        encoder.train(training)
        made.append((on_device(encoder, batch), encoder.norm.running_var))
    for got, running in made[1:]:
        assert torch.equal(got.image, made[0][0].image)
        assert all(torch.equal(part, made[0][0].gradients[name]) for name, part in got.gradients.items())
        assert got.stats == made[0][0].stats
        assert torch.equal(running, made[0][1])


@needs_triton
def test_a_batch_of_many_is_many_batches_of_one() -> None:
    random = np.random.default_rng(1)
    pairs = [
        window_of([tuple(random.integers(0, (1000, *SENSOR[::-1], 2)).tolist()) for _ in range(150)], start_us=start)
        for start in (0, 10**6, -5)
    ]
    encoder = make_encoder(max_events=2, max_pillars=50).to(DEVICE)
    together = encoder(EventBatch.from_windows(pairs, DEVICE))
    for number, pair in enumerate(pairs):
        assert torch.equal(encoder(EventBatch.from_windows([pair], DEVICE))[0], together[number])


def with_unused_capacity(batch: EventBatch, capacity: int) -> EventBatch:
    """The batch with a spare window of events outside the frame."""
    windows, events = len(batch), batch.num_events
    room = EventBatch.of_counts([capacity] + [0] * windows, batch.sensor, batch.device, has_spare=True)
    for name in ("x", "y", "p", "t_us"):
        getattr(room, name).fill_(77)
        getattr(room, name)[:events].copy_(getattr(batch, name))
    for name in ("start_us", "duration_us"):
        getattr(room, name)[:windows].copy_(getattr(batch, name))
    room.offsets[: windows + 1].copy_(batch.offsets)
    return room


@needs_triton
@pytest.mark.parametrize("config", [*CAPS[:2], {"max_events": 1, "max_pillars": 1}], ids=str)
@pytest.mark.parametrize("name", ["no event in three windows", "duplicates among others", "crowded"])
def test_unused_capacity_is_not_touched(name: str, config: dict[str, Any]) -> None:
    batch = (crowded(events=150) if name == "crowded" else SPECIAL[name]).to(DEVICE)
    encoder = make_encoder(**config).to(DEVICE)
    expected_image, stats = encoder(batch), encoder.last_stats
    image = encoder(with_unused_capacity(batch, 1000))
    assert torch.equal(image, expected_image)
    assert encoder.last_stats == stats
    with_length = WindowLength(encoder)
    assert torch.equal(with_length(with_unused_capacity(batch, 1000)), with_length(batch))


@needs_triton
@modes
def test_events_of_equal_times_may_have_any_order(training: bool) -> None:
    random = np.random.default_rng(4)
    rows = [tuple(random.integers(0, (12, 8, 8, 2)).tolist()) for _ in range(150)]
    outcomes = []
    for _ in range(2):
        encoder = make_encoder(max_events=6, max_pillars=12)
        encoder.train(training)
        outcomes.append(on_device(encoder, batch_of(rows)))
        random.shuffle(rows)
    assert outcomes[0].stats.events_dropped > 0
    assert outcomes[0].stats == outcomes[1].stats
    assert torch.equal(outcomes[0].image, outcomes[1].image)
    assert all(torch.equal(part, outcomes[1].gradients[name]) for name, part in outcomes[0].gradients.items())


@needs_triton
@pytest.mark.parametrize("most", [1, 41, 42])
def test_of_thousands_of_pillars_those_stay_that_the_cpu_keeps(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pillars have priorities with equal first bits, also at the limit."""
    if INTERPRETED:
        monkeypatch.setattr(triton_kernels, "EVENTS", 2048)
    sensor = (80, 100)
    batch = EventBatch.from_windows(
        [
            window_of([(i, i % 100, i // 100 % 80, i % 2) for i in range(events)], 10_000, 10**6 * events, sensor)
            for events in (6_000, 30, 8_001)
        ]
    )
    encoder = make_encoder(sensor, pillar=1, max_pillars=most).to(DEVICE)
    with torch.no_grad():
        image, stats = encoder(batch.to(DEVICE)).cpu(), encoder.last_stats
        use(cpu_kernels, monkeypatch)
        wanted = encoder.cpu()(batch)
    assert stats == encoder.last_stats
    assert torch.equal((image != 0).any(1), (wanted != 0).any(1))
    torch.testing.assert_close(image, wanted, rtol=1e-5, atol=1e-5)


@needs_triton
def test_a_parameter_that_is_no_number_is_seen_in_its_channel() -> None:
    batch = crowded().to(DEVICE)
    occupied = (make_encoder().to(DEVICE)(batch) != 0).any(1)
    for name, _ in make_encoder().named_parameters():
        encoder = make_encoder().to(DEVICE)
        with torch.no_grad():
            encoder.get_parameter(name)[2] = float("nan")
        image = encoder(batch).detach()
        assert image[:, 2][occupied].isnan().all(), name
        assert image[:, [0, 1, 3, 4]].isfinite().all(), name


@needs_triton
def test_without_gradients_the_image_is_the_same() -> None:
    encoder, batch = make_encoder().to(DEVICE), crowded(events=200).to(DEVICE)
    image = encoder(batch).detach()
    with torch.no_grad():
        torch.testing.assert_close(encoder(batch), image, rtol=1e-6, atol=1e-6)


@needs_triton
@pytest.mark.parametrize("pooling", ["legendre", "max"])
def test_with_batchnorm_folded_once_the_image_is_the_same(pooling: str) -> None:
    encoder, batch = make_encoder(pooling=pooling).to(DEVICE), crowded(events=150).to(DEVICE)
    with torch.no_grad():
        image = encoder(batch)
        encoder.fold_norm_()
        torch.testing.assert_close(encoder(batch), image, rtol=1e-5, atol=1e-5)


@needs_triton
def test_the_image_has_its_channels_last_in_memory() -> None:
    image = make_encoder().to(DEVICE)(crowded().to(DEVICE))
    assert image.shape == (3, 5, 12, 16)
    assert image.is_contiguous(memory_format=torch.channels_last)


# --- on a GPU alone ---


@needs_gpu
@modes
def test_a_large_batch_agrees_with_the_cpu(training: bool) -> None:
    """More cells than there are programs that sum, and windows of several hundred thousand events."""
    sensor = (360, 640)
    batch = crowded(windows=6, events=200_000, sensor=sensor, clusters=300)
    encoder, other = (make_encoder(sensor, channels=64, max_pillars=12_000) for _ in range(2))
    encoder.train(training)
    other.train(training)
    wanted, got = outcome(other.double(), batch), on_device(encoder, batch)
    assert got.stats == wanted.stats
    assert got.stats.pillars_dropped > 0
    found = errors(got, wanted, training)
    # Of 77 million hidden values some lie so near to 0 that float32 has them on the other side of the ReLU, where their
    # gradient ends: with the same numbers the CPU's own float32 differs from its float64 by 4e-5 in these three, the
    # GPU's by 1.6e-4.
    through_relu = {name: found.pop(name) for name in ("linear.weight", "norm.weight", "norm.bias")}
    assert max(found.values()) < 1e-5, found
    assert max(through_relu.values()) < 5e-4, through_relu
    for name in ("running_mean", "running_var"):
        ours, theirs = (getattr(one.norm, name).double().cpu() for one in (encoder, other))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@needs_gpu
@pytest.mark.parametrize(
    "config", [{}, {"max_events": 3, "max_pillars": 20}, {"max_events": None, "max_pillars": None}]
)
def test_a_captured_graph_gives_the_eager_image(config: dict[str, Any]) -> None:
    encoder, batch = make_encoder(**config).cuda(), crowded().to("cuda")
    with torch.no_grad():
        eager = encoder(batch)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            encoder(batch)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            image = encoder(batch)
        image.zero_()
        graph.replay()
        assert torch.equal(image, eager)
        other = [part.flip(0) for part in (batch.x.clone(), batch.y.clone())]  # other events of the same number
        batch.x.copy_(other[0])
        batch.y.copy_(other[1])
        graph.replay()
        again = image.clone()
        assert not torch.equal(again, eager)
        assert torch.equal(again, encoder(batch))


@needs_gpu
def test_float64_on_a_gpu_is_float64() -> None:
    encoder = make_encoder(center_offsets=True, max_pillars=50).double()
    wanted, got = expected(encoder, crowded()), on_device(encoder, crowded())
    assert got.image.dtype == torch.float64
    assert got.stats == wanted.stats
    assert max(errors(got, wanted, training=False).values()) < 1e-11


@needs_gpu
@modes
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_autocast_keeps_the_moments_in_float32(kind: torch.dtype, training: bool) -> None:
    wanted = on_device(make_encoder().train(training), crowded())
    with torch.autocast("cuda", dtype=kind):
        got = on_device(make_encoder().train(training), crowded())
    assert got.image.dtype == torch.float32
    assert torch.equal(got.image, wanted.image)
    assert all(torch.equal(got.gradients[name], part) for name, part in wanted.gradients.items())


class Windows(IterableDataset[EventBatch]):
    def __iter__(self) -> Iterator[EventBatch]:
        for seed in range(3):
            yield crowded(seed)


@needs_gpu
def test_a_pinned_batch_comes_to_the_gpu_whole() -> None:
    encoder = make_encoder().cuda()
    for seed, batch in enumerate(DataLoader(Windows(), batch_size=None, num_workers=1, pin_memory=True)):
        assert batch.block.is_pinned()
        moved = batch.to("cuda", non_blocking=True)
        assert moved.device.type == "cuda"
        assert torch.equal(encoder(moved), encoder(crowded(seed).to("cuda")))


@needs_gpu
def test_nothing_waits_for_the_gpu_in_a_call() -> None:
    encoder, batch = make_encoder().cuda(), crowded().to("cuda")
    before = torch.cuda.get_sync_debug_mode()
    for training in (False, True):
        encoder.train(training)
        torch.manual_seed(0)  # training draws the seed of the sampling
        expected_image = encoder(batch)
        expected_image.sum().backward()
        torch.cuda.synchronize()
        torch.manual_seed(0)
        torch.cuda.set_sync_debug_mode("error")  # an operation that waits for the GPU raises an error
        try:
            image = encoder(batch)
            image.sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode(before)
        assert torch.equal(image, expected_image)


@needs_gpu
def test_events_on_another_device_are_refused() -> None:
    with pytest.raises(FateError, match="events are on cpu, the encoder on cuda:0"):
        make_encoder().cuda()(crowded())
    with pytest.raises(FateError, match="events are on cuda:0, the encoder on cpu"):
        make_encoder()(crowded().to("cuda"))
