"""From label files to the boxes that models see: frame, classes, clock, and the rules of training."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate import FateError, Labels, Sensor
from fate.data.box_files import Clock, load_boxes
from fate.data.class_maps import class_map
from fate.data.label_rules import RULES, LabelRules, RuledLabels, label_rules

GEN1, MPX = (240, 304), (720, 1280)


@st.composite
def label_tables(draw: st.DrawFn) -> Labels:
    n = draw(st.integers(0, 12))
    numbers = st.floats(-500, 1800, width=32, allow_subnormal=False)  # halving those is not exact
    rows = [draw(st.tuples(numbers, numbers, numbers, numbers, st.integers(0, 8))) for _ in range(n)]
    t = np.sort(np.array([draw(st.integers(0, 5)) for _ in range(n)], np.int64) * 1000)
    x = np.sort(np.array([row[:2] for row in rows], np.float32).reshape(n, 2), axis=1)
    y = np.sort(np.array([row[2:4] for row in rows], np.float32).reshape(n, 2), axis=1)
    return Labels(t, x[:, 0], y[:, 0], x[:, 1], y[:, 1], [row[4] for row in rows])


@given(label_tables(), st.sampled_from([1, 2, 4]))
def test_boxes_lie_in_the_frame_have_known_classes_and_keep_their_times(raw: Labels, downscale: int) -> None:
    made = load_boxes(raw, "file", class_map(None, "1mpx"), Sensor(*MPX), downscale, Clock())
    labels = made.labels
    height, width = 720 // downscale, 1280 // downscale
    assert labels.sensor == (height, width)
    assert (labels.boxes >= 0).all()
    assert (labels.boxes <= [width, height, width, height]).all()
    assert set(labels.class_id.tolist()) <= {0, 1, 2}
    assert np.array_equal(labels.labelled_us, raw.labelled_us)
    inside = (raw.class_id <= 2) & ((raw.boxes >= 0) & (raw.boxes <= [1280, 720, 1280, 720])).all(axis=1)
    kept = {tuple(box) for box in (labels.boxes * downscale).tolist()}
    assert {tuple(box) for box in raw.boxes[inside].tolist()} <= kept
    assert sum(made.unknown.values()) == int((raw.class_id > 6).sum())


@given(label_tables(), st.booleans())
def test_label_rules_are_those_of_rvt(raw: Labels, training: bool) -> None:
    """The oracle follows the published steps on rows of x, y, w, h in float64."""
    split = "train" if training else "val"
    for rules, (height, width), side, diagonal in ((RULES["gen1"], GEN1, 10, 30), (RULES["1mpx"], MPX, 5, 0)):
        expected = []
        for box, time in zip(raw.boxes.astype(np.float64), raw.t_us.tolist(), strict=True):
            x1, x2 = np.clip(box[[0, 2]], 0, width - 1)
            y1, y2 = np.clip(box[[1, 3]], 0, height - 1)
            w, h = x2 - x1, y2 - y1
            wide = training and w > 9 * width // 10
            if w > 0 and h > 0 and min(w, h) >= side and w * w + h * h >= diagonal**2 and not wide:
                expected.append((time, x1, y1, x2, y2))
        found = rules.apply(replace(raw, sensor=(height, width)), split=split)
        assert [(t, *box) for t, box in zip(found.t_us.tolist(), found.boxes.tolist(), strict=True)] == expected
        assert found.labelled_us.tolist() == sorted({row[0] for row in expected})
        scale = 2
        half = load_boxes(raw, "file", class_map([f"c{i}" for i in range(9)]), Sensor(height, width), scale, Clock())
        small = rules.apply(half.labels, split=split, downscale=scale)
        assert np.allclose(small.boxes * scale, found.boxes, atol=1e-4)


def test_rules_keep_times_that_were_empty_and_drop_those_they_empty() -> None:
    labels = Labels([10, 20], [0, 0], [0, 0], [2, 50], [2, 50], [0, 0], labelled_us=[10, 20, 30], sensor=GEN1)
    assert LabelRules(min_side=5).apply(labels).labelled_us.tolist() == [20, 30]
    assert label_rules("gen1") is RULES["gen1"]
    assert label_rules("1mpx") is RULES["1mpx"]
    assert label_rules("sim").apply(labels) == labels
    with pytest.raises(FateError, match="the labels have no sensor"):
        RULES["gen1"].apply(replace(labels, sensor=None))


def test_ruled_labels_are_those_of_a_recording_after_its_rules() -> None:
    raw = Labels([10, 20, 30], [0, 0, 0], [0, 0, 0], [2, 50, 140], [2, 50, 60], [0, 0, 0], sensor=(120, 152))
    recordings = [
        SimpleNamespace(labels=raw, split=split, downscale=2, start_us=0, end_us=40) for split in ("train", "val")
    ]
    of_training, of_validation = (RuledLabels(recordings, RULES["gen1"])(number, 200.0) for number in (0, 1))
    assert of_training.labelled_us.tolist() == [20]
    assert of_validation.labelled_us.tolist() == [20, 30]  # wide boxes go in training alone
    assert of_validation == RULES["gen1"].apply(raw, split="val", downscale=2)


def test_a_label_clock_shifts_and_scales_times() -> None:
    times = np.array([0, 3, 2000], np.int64)
    assert Clock().convert(times).tolist() == [0, 3, 2000]
    assert Clock("ms", 5).convert(times).tolist() == [5, 3005, 2_000_005]
    assert Clock("s").convert(times).tolist() == [0, 3_000_000, 2_000_000_000]
    assert Clock("ns").convert(times).tolist() == [0, 0, 2]
    with pytest.raises(FateError, match="check the unit"):
        Clock("s").convert(np.array([2**61]))
