"""The choice of rate and windows: by the header of weights, and by the time that a window takes on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fate.errors import FateError
from fate.inference import timing
from fate.inference.loading import load_detector
from fate.inference.stream import StreamingDetector
from fate.inference.stream_types import Accuracy
from fate.inference.timing import AUTO_RATES, CPU_SHARE, choose_most_accurate_window, choose_timing
from fate.inference.window_detector import WindowDetector
from fate.models.checkpoints import read_card, record_accuracy, save_model
from fate.models.zoo import build_model

SENSOR = (64, 96)
CARD = (Accuracy(20, 50_000, 40.0), Accuracy(200, 5_000, 30.0), Accuracy(200, 50_000, 39.0))


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return build_model("fate-s-nano", ("car",), SENSOR)


def with_card(model: Any, *card: Accuracy) -> StreamingDetector:
    return StreamingDetector(model, accuracy=card)


def test_without_measurements_windows_are_as_long_as_their_distance(model: Any) -> None:
    assert choose_timing(with_card(model), SENSOR, 200) == (200, 5_000, "")
    assert choose_timing(with_card(model, CARD[0]), SENSOR, 200)[:2] == (200, 5_000)


@pytest.mark.parametrize(
    ("hz", "expected_us"),
    [(200, 50_000), (150, 50_000), (20, 50_000), (10, 100_000)],
)
def test_the_most_accurate_length_is_chosen(model: Any, hz: float, expected_us: int) -> None:
    assert choose_timing(with_card(model, *CARD), SENSOR, hz).window_us == expected_us
    assert choose_most_accurate_window(CARD, hz) == expected_us


def test_a_short_length_that_was_not_measured_is_not_chosen(model: Any) -> None:
    """The AP of windows of 50 ms at 20 Hz says nothing about windows of 5 ms."""
    card = (Accuracy(20, 50_000, 44.1), Accuracy(200, 50_000, 44.2))
    chosen = choose_timing(with_card(model, *card), SENSOR, 200)
    assert chosen.window_us == 50_000
    assert "44.2" in chosen.reason
    assert "44.1" not in chosen.reason
    assert choose_timing(with_card(model, *CARD), SENSOR, 50).window_us == 50_000


def test_the_reason_names_what_was_compared(model: Any) -> None:
    reason = choose_timing(with_card(model, *CARD), SENSOR, 200).reason
    assert "windows of 50 ms, one every 5 ms" in reason
    assert "39.0" in reason
    assert "30.0 with 5 ms" in reason


@pytest.mark.parametrize(("hz", "length_us", "expected"), [(1, None, "1000 ms"), (20, 100_000, "100 ms")])
def test_longer_windows_than_any_that_was_measured_are_noted(
    model: Any, hz: float, length_us: int | None, expected: str
) -> None:
    reason = choose_timing(with_card(model, *CARD), SENSOR, hz, length_us).reason
    assert expected in reason
    assert "50 ms" in reason
    assert "20 Hz" in reason


def test_of_equally_accurate_lengths_the_shortest_is_chosen(model: Any) -> None:
    close = (Accuracy(200, 5_000, 38.7), Accuracy(200, 50_000, 39.0))
    assert choose_timing(with_card(model, *close), SENSOR, 200).window_us == 5_000


def test_a_given_length_is_kept(model: Any) -> None:
    assert choose_timing(with_card(model, *CARD), SENSOR, 200, 20_000) == (200, 20_000, "")


def slowed(monkeypatch: pytest.MonkeyPatch, seconds_per_ms: float) -> None:
    """Make every window take a time in proportion to its length."""
    detect = WindowDetector.__call__

    def waiting(self: WindowDetector, *given: Any, **more: Any) -> Any:
        time.sleep(seconds_per_ms * self.options.length_us / 1000)
        return detect(self, *given, **more)

    monkeypatch.setattr(WindowDetector, "__call__", waiting)


@pytest.mark.slow
def test_a_length_that_takes_too_long_is_not_chosen_for_a_camera(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "TIMED", 3)
    slowed(monkeypatch, 0.002)  # a window of 50 ms takes 100 ms
    chosen = choose_timing(with_card(model, *CARD), SENSOR, 200, in_time=True)
    assert chosen.window_us == 5_000
    assert "too long" in chosen.reason
    assert choose_timing(with_card(model, *CARD), SENSOR, 200).window_us == 50_000  # a file can wait


@pytest.mark.slow
def test_auto_finds_a_rate_that_the_machine_sustains(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "TIMED", 3)
    slowed(monkeypatch, 0.001)  # a window of 50 ms takes 50 ms, and a bit
    chosen = choose_timing(with_card(model), SENSOR, "auto", 50_000)
    assert chosen.window_us == 50_000
    assert chosen.hz == AUTO_RATES[6] == 20  # lower rates would leave gaps between windows of 50 ms
    assert "too long even for this rate" in chosen.reason
    monkeypatch.undo()
    monkeypatch.setattr(timing, "TIMED", 3)
    detect = WindowDetector.__call__

    def constant(self: WindowDetector, *given: Any, **more: Any) -> Any:
        time.sleep(0.015)
        return detect(self, *given, **more)

    monkeypatch.setattr(WindowDetector, "__call__", constant)
    hz = choose_timing(with_card(model), SENSOR, "auto").hz
    assert hz in AUTO_RATES
    assert CPU_SHARE / hz > 0.015  # in time at this rate


def test_another_word_is_refused(model: Any) -> None:
    with pytest.raises(FateError, match="expected a number from 1 to 1000, or 'auto'"):
        choose_timing(with_card(model), SENSOR, "fast")


def test_recorded_measurements_come_back_and_weights_stay(model: Any, tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_model(model, file, facts={"training": {"seed": 3}})
    record_accuracy(file, [(20, 50_000, 40.0), (200, 5_000, 10.0)])
    record_accuracy(file, [(200, 5_000, 30.0), (200, 50_000, 39.0)])  # one is measured again
    assert read_card(file)["training"] == {"seed": 3}
    detector = load_detector(file)
    assert detector.accuracy == CARD
    for name, value in detector.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


def test_one_window_that_had_to_wait_does_not_lower_the_rate(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.004, 0.09, *[0.004] * 100])  # seconds of each window; the second had to wait
    now = 0.0

    class Steady(StreamingDetector):
        def window_detector(self, *_: object) -> Any:
            def detect(closed: object) -> None:
                nonlocal now
                now += next(times)

            return detect

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now))
    assert choose_timing(Steady(model), SENSOR, "auto").hz == 100
