"""What ``fate bench detect`` measures and refuses."""

from __future__ import annotations

import numpy as np
import pytest

from fate.bench.detect import bench_detect, check_request
from fate.errors import FateError
from fate.events.events import Events


@pytest.fixture
def events() -> Events:
    random = np.random.default_rng(1)
    t = np.sort(random.integers(0, 200_000, 4_000))
    return Events(t, *(random.integers(0, top, len(t)) for top in (48, 40, 2)), (40, 48))


@pytest.mark.slow
def test_every_model_rate_and_way_has_its_row_with_all_stages(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fate.bench.detect.CALLS", 3)
    monkeypatch.setattr("fate.bench.detect.FIRST_CALLS", 1)
    result = bench_detect(events, ["fate-s-nano"], hz=(20, 100))
    rows = [(m.model, m.hz, m.way, m.precision) for m in result.measurements]
    assert rows == [("fate-s-nano", hz, way, "float32") for hz in (20, 100) for way in ("eager", "streaming")]
    for row in result.measurements:
        assert set(row.ms) == {"decode", "encode", "model", "post"}
        assert all(value > 0 for value in row.ms.values())
        assert row.p50_ms <= row.p99_ms
    text = result.table()
    assert text.count("| fate-s-nano |") == 4
    assert "48×40, one stream" in text


@pytest.mark.parametrize(
    ("models", "device", "ways", "precision", "words"),
    [
        (["fate-s-nan"], "cpu", ["eager"], None, "did you mean 'fate-s-nano'"),
        (["FATE-S"], "cpu", ["eager"], None, "did you mean 'fate-s'"),
        (["fate-s"], "cpu", ["compiled"], None, "'compiled' was asked for on cpu"),
        (["fate-s"], "cpu", [], None, "no way to run was given"),
        (["fate-s"], "cpu", ["eager"], "tf32", "precision 'tf32' was given for cpu"),
        (["fate-s"], "cpu", ["eager"], "bfloat16", "precision 'bfloat16' was given for cpu"),
        (["fate-s"], "cpu", ["openvino", "eager"], "bfloat16", "for cpu and openvino; expected float32"),
        (["fate-s"], "cpu", ["openvino-bf16"], "float32", "for cpu and openvino-bf16; expected bfloat16"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_work(
    models: list[str], device: str, ways: list[str], precision: str | None, words: str
) -> None:
    with pytest.raises(FateError, match=words):
        check_request(models, device, ways, precision)
