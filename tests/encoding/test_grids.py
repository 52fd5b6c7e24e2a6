"""What holds for every peer representation: two ways to compute it agree, windows are independent, errors are clear."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fate.encoding import grids
from fate.encoding.batch import EventBatch
from fate.encoding.grids import GRIDS, GridEncoder, StackedHistogram, build_grid
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window

SENSOR = (6, 9)
Row = tuple[int, int, int, int]

#: Every representation with its defaults, and with each argument once at another value.
ENCODERS: dict[str, GridEncoder] = {
    **{name: build_grid(name, SENSOR) for name in GRIDS},
    "histogram, over the window": build_grid("histogram", SENSOR, bins=7, bins_over="window"),
    "histogram, not clipped": build_grid("histogram", SENSOR, bins=1, count_cutoff=None),
    "histogram, not wrapped": build_grid("histogram", SENSOR, bins=3, wrap=False, count_cutoff=None),
    "histogram, halved": build_grid("histogram", SENSOR, bins=2, downsample=2),
    "evrt-histogram, thirds": build_grid("evrt-histogram", SENSOR, bins=2, downsample=3),
    "voxel, one bin": build_grid("voxel", SENSOR, bins=1),
    "voxel, two polarities": build_grid("voxel", SENSOR, bins=4, polarity="separate"),
    "time-surface, fast": build_grid("time-surface", SENSOR, tau_us=0.5),
    "tore, deep": build_grid("tore", SENSOR, depth=5, min_us=3, max_us=2000),
    "group-tokens, pixels": build_grid("group-tokens", SENSOR, groups=2, patch=1),
    "group-tokens, large": build_grid("group-tokens", SENSOR, groups=6, patch=5),
}
#: Sums of whole numbers: no digit may differ. The others take an exponential, a logarithm or an interpolation.
EXACT = [name for name in ENCODERS if not name.startswith(("time-surface", "tore", "evrt-histogram, thirds"))]
few_examples = settings(max_examples=20)  # for each encoder
each_encoder = pytest.mark.parametrize("name", ENCODERS)


def batch_of(windows: Sequence[tuple[int, list[Row]]], sensor: tuple[int, int] = SENSOR) -> EventBatch:
    """A batch of (duration, rows of t, x, y, p) windows; each starts at another time."""
    pairs = []
    for number, (duration, rows) in enumerate(windows):
        table = np.array(sorted(rows, key=lambda row: row[0]), np.int64).reshape(-1, 4)
        start = 1000 * number - 500
        events = Events(table[:, 0] + start, table[:, 1], table[:, 2], table[:, 3], sensor)
        pairs.append((Window(start, start + duration), events))
    return EventBatch.from_windows(pairs)


@st.composite
def windows_of_events(draw: st.DrawFn, max_windows: int = 4) -> list[tuple[int, list[Row]]]:
    """Any windows: empty ones, one event, ties, duplicates in hundreds, events at the borders of frame and window."""
    windows = []
    for _ in range(draw(st.integers(1, max_windows))):
        duration = draw(st.sampled_from([1, 2, 7, 10, 5000, 12_500, 50_000]) | st.integers(1, 3_000_000))
        times = st.sampled_from([0, duration // 2, duration - 1]) | st.integers(0, duration - 1)
        rows = draw(
            st.lists(
                st.tuples(
                    times,
                    st.integers(0, SENSOR[1] - 1),
                    st.integers(0, SENSOR[0] - 1),
                    st.integers(0, 1),
                    st.sampled_from([1, 1, 1, 2, 11, 255, 256, 300]),
                ),
                max_size=12,
            )
        )
        windows.append((duration, [(t, x, y, p) for t, x, y, p, times in rows for _ in range(times)]))
    return windows


def assert_same(name: str, first: torch.Tensor, second: torch.Tensor) -> None:
    assert first.dtype == second.dtype == torch.float32
    if name in EXACT:
        assert torch.equal(first, second)
    else:
        torch.testing.assert_close(first, second, rtol=2e-6, atol=2e-6)


@each_encoder
@few_examples
@given(windows=windows_of_events())
def test_loop_and_tensors_give_the_same_image(name: str, windows: list[tuple[int, list[Row]]]) -> None:
    encoder, batch = ENCODERS[name], batch_of(windows)
    assert_same(name, encoder.encode_cpu(batch), encoder.encode_torch(batch))


@each_encoder
def test_images_have_the_shape_that_the_encoder_tells(name: str) -> None:
    encoder = ENCODERS[name]
    image = encoder(batch_of([(50, [(3, 8, 5, 1)]), (7, [])]))
    assert image.shape == (2, encoder.channels, *encoder.size)
    assert image.dtype == torch.float32
    assert image.is_contiguous()
    for side, frame in zip(encoder.size, SENSOR, strict=True):
        assert frame // encoder.stride <= side <= -(-frame // encoder.stride)
    assert list(encoder.parameters()) == []


@each_encoder
def test_an_empty_window_is_the_value_for_nothing_everywhere(name: str) -> None:
    encoder = ENCODERS[name]
    some = (50_000, [(49_990, 1, 1, 1), (49_999, 7, 5, 0)])
    cases: list[list[tuple[int, list[Row]]]]
    cases = [[(5000, [])], [(5000, []), some], [some, (5000, [])], [(1, []), some, (1, [])]]
    for windows in cases:
        batch = batch_of(windows)
        for image in (encoder.encode_cpu(batch), encoder.encode_torch(batch)):
            for number, (_, rows) in enumerate(windows):
                nothing = torch.full_like(image[number], encoder.empty_value)
                assert torch.equal(image[number], nothing) == (not rows)


@each_encoder
@few_examples
@given(windows=windows_of_events())
def test_a_batch_of_many_is_many_batches_of_one(name: str, windows: list[tuple[int, list[Row]]]) -> None:
    encoder = ENCODERS[name]
    together = encoder(batch_of(windows))
    for number, window in enumerate(windows):
        assert torch.equal(together[number], encoder(batch_of([window]))[0])


@each_encoder
@few_examples
@given(windows=windows_of_events(max_windows=1), seed=st.integers(0, 99))
def test_the_order_of_events_with_equal_times_does_not_matter(
    name: str, windows: list[tuple[int, list[Row]]], seed: int
) -> None:
    ((duration, rows),) = windows
    shuffled = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    encoder = ENCODERS[name]
    assert torch.equal(encoder(batch_of(windows)), encoder(batch_of([(duration, shuffled)])))


@each_encoder
def test_threads_do_not_change_the_image(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, random = ENCODERS[name], np.random.default_rng(5)
    windows = []
    for number in range(7):
        table = random.integers(0, (5000, SENSOR[1], SENSOR[0], 2), (40 * number, 4))
        windows.append((5000, [tuple(row) for row in table.tolist()]))
    batch = batch_of(windows)
    alone = encoder(batch)
    monkeypatch.setattr(grids, "EVENTS_A_THREAD", 1)
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert torch.equal(encoder(batch), alone)


@each_encoder
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_gives_the_same_image_and_can_be_captured_in_a_graph(name: str) -> None:
    random = np.random.default_rng(3)
    table = random.integers(0, (50_000, SENSOR[1], SENSOR[0], 2), (5000, 4))
    crowd = [(7, 4, 3, 1)] * 300
    windows = [(50_000, crowd + [tuple(row) for row in table.tolist()]), (5000, []), (8, crowd)]
    encoder, batch = ENCODERS[name], batch_of(windows)
    there = batch.to("cuda")
    image = encoder(there)
    assert image.device == there.device
    assert_same(name, image.cpu(), encoder(batch))
    assert torch.equal(image, encoder(there))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = encoder(there)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, image)


def test_names_build_their_representations() -> None:
    channels = {name: build_grid(name, (240, 304)).channels for name in GRIDS}
    assert channels == {
        "histogram": 20, "evrt-histogram": 20, "voxel": 5, "time-surface": 2, "tore": 6, "group-tokens": 768,
    }  # fmt: skip
    assert {build_grid(name, (240, 304)).stride for name in GRIDS if name != "group-tokens"} == {1}
    assert build_grid("group-tokens", (240, 304)).size == (60, 76)
    assert build_grid("voxel", [240, 304], bins=9).sensor == (240, 304)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("histograms", {}, "'histograms' was asked for; there are histogram, evrt-histogram, voxel"),
        ("tore", {"tau_us": 3}, "tau_us=3 was given; tore takes depth, min_us, max_us"),
        ("histogram", {"bins": 0}, "bins=0 was given; expected a whole number, 1 or more"),
        ("histogram", {"bins": 2.5}, "bins=2.5 was given"),
        ("histogram", {"count_cutoff": 0}, "count_cutoff=0 was given"),
        ("histogram", {"bins_over": "time"}, "bins_over='time' was given; expected one of 'events', 'window'"),
        ("histogram", {"downsample": 7}, "downsample=7 was given for a 9×6 sensor"),
        ("evrt-histogram", {"bins": -1}, "bins=-1 was given"),
        ("evrt-histogram", {"downsample": 0}, "downsample=0 was given"),
        ("voxel", {"bins": 0}, "bins=0 was given"),
        ("voxel", {"polarity": "both"}, "polarity='both' was given; expected one of 'signed', 'separate'"),
        ("time-surface", {"tau_us": 0}, "tau_us=0 was given; expected a time in µs, more than 0"),
        ("time-surface", {"tau_us": -5.0}, "tau_us=-5.0 was given"),
        ("time-surface", {"tau_us": float("nan")}, "tau_us=nan was given"),
        ("time-surface", {"tau_us": "long"}, "tau_us='long' was given"),
        ("tore", {"depth": 0}, "depth=0 was given"),
        ("tore", {"min_us": 0}, "min_us=0 was given"),
        ("tore", {"min_us": 20, "max_us": 20}, "min_us=20 and max_us=20 were given; expected min_us below max_us"),
        ("group-tokens", {"groups": 5}, "groups=5 was given; expected an even number"),
        ("group-tokens", {"groups": 0}, "groups=0 was given; expected a whole number, 2 or more"),
        ("group-tokens", {"patch": 0}, "patch=0 was given"),
    ],
)
def test_impossible_arguments_are_refused_with_their_value(
    name: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(FateError) as error:
        build_grid(name, SENSOR, **arguments)
    assert message in str(error.value)


@each_encoder
def test_batches_of_another_sensor_are_refused(name: str) -> None:
    with pytest.raises(FateError, match=r"events of a 6×9 sensor were given; this encoder is for 9×6.*sensor=\(9, 6\)"):
        ENCODERS[name](batch_of([(5, [])], sensor=(9, 6)))


def test_anything_but_a_batch_is_refused() -> None:
    with pytest.raises(FateError, match="a list was given; expected an EventBatch"):
        StackedHistogram(SENSOR)([])
    with pytest.raises(FateError, match="sensor 5 was given"):
        StackedHistogram(5)  # type: ignore[arg-type]
