"""Properties of the value type Labels."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from fate.boxes.labels import COLUMNS, Labels, LabelSource
from fate.errors import FateError


def columns(**changes: Any) -> dict[str, Any]:
    """Three boxes at 0, 0 and 50 us; changes replace or add arguments."""
    base: dict[str, Any] = {
        "t_us": [0, 0, 50],
        "x1": [1, 2, 3.5],
        "y1": [1, 2, 3],
        "x2": [11, 2, 9],
        "y2": [5, 2, 9],
        "class_id": [0, 1, 0],
    }
    return base | changes


def make(**changes: Any) -> Labels:
    return Labels(**columns(**changes))


def test_left_out_columns_get_the_documented_defaults() -> None:
    labels = make()
    assert labels.track_id.tolist() == [-1, -1, -1]
    assert labels.score.tolist() == [1, 1, 1]
    assert labels.source.tolist() == [LabelSource.GROUND_TRUTH] * 3
    assert labels.labelled_us.tolist() == [0, 50]
    assert labels.classes is None
    assert labels.sensor is None


def test_every_column_has_its_dtype_and_is_a_read_only_copy() -> None:
    times = np.array([0, 0, 50])
    labels = make(t_us=times)
    times[0] = -9
    assert labels.t_us[0] == 0
    for name in (*COLUMNS, "labelled_us"):
        array = getattr(labels, name)
        assert array.dtype == (np.int64 if name == "labelled_us" else COLUMNS[name].dtype)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        labels.t_us = times  # type: ignore[misc]
    for part in (labels.between(0, 100), labels.at(0), labels.select([True, False, True])):
        assert not part.x1.flags.writeable
        assert not part.labelled_us.flags.writeable


def test_boxes_are_n_by_4_xyxy_and_unpack_into_the_constructor() -> None:
    labels = make()
    assert labels.boxes.shape == (3, 4)
    assert labels.boxes.dtype == np.float32
    assert labels.boxes[2].tolist() == [3.5, 3, 9, 9]
    assert Labels(labels.t_us, *labels.boxes.T, labels.class_id) == labels  # type: ignore[call-arg]
    assert Labels.empty().boxes.shape == (0, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x2": [11, 1, 9]}, "row 1 has x1 2.0 and x2 1.0"),
        ({"y2": [5, 2, 2]}, "row 2 has y1 3.0 and y2 2.0"),
        ({"x1": [1, np.nan, 3]}, "row 1 has x1 nan"),
        ({"y2": [5, 2, np.inf]}, "row 2 has y2 inf"),
        ({"x2": [11, 2, 1e300]}, "row 2 has x2 inf"),
        ({"class_id": [0, -2, 0]}, "row 1 has class_id -2; class ids are 0 or larger"),
        ({"class_id": [0, 2**31, 0]}, "row 1 has class_id 2147483648"),
        ({"classes": ["car"]}, "row 1 has class_id 1; there are 1 classes"),
        ({"track_id": [0, -1, -2]}, "row 2 has track_id -2"),
        ({"score": [0, 0.5, 1.5]}, "row 2 has score 1.5"),
        ({"score": [0, np.nan, 1]}, "row 1 has score nan"),
        ({"source": [0, 3, 0]}, "row 1 has source 3"),
        ({"source": [0, 0, 256]}, "row 2 has source 256"),
        ({"t_us": [0, 50, 0]}, "row 2 has t_us 0 after 50"),
        ({"labelled_us": [0, 49]}, "row 2 has t_us 50; the time of each row is in labelled_us"),
        ({"labelled_us": [0, 50, 50]}, "labelled_us has 50 after 50"),
        ({"t_us": [0.0, 0.0, 50.0]}, "t_us has dtype float64; times are whole microseconds"),
        ({"class_id": [True, False, True]}, "class_id has dtype bool"),
        ({"t_us": np.array([0, 0, 2**63], np.uint64)}, "row 2 has t_us 9223372036854775808"),
        ({"x1": [1, 2]}, "column x1 has 2 rows and t_us has 3"),
        ({"x1": 1}, r"column x1 has shape \(\)"),
        ({"x1": [1, [2], 3]}, "column x1 is no array"),
        ({"x1": ["1", "2", "3"]}, "column x1 has dtype <U1"),
        ({"x1": None}, "column x1 is missing"),
        ({"classes": "car"}, "got classes 'car'"),
        ({"classes": 3}, "got classes 3"),
        ({"classes": ["car", "car"]}, "class 1 is named 'car' like one before"),
        ({"classes": ["car", "a\nb"]}, "class 1 is named"),
        ({"sensor": (240, 0)}, "sensor 240×0 was given"),
        ({"sensor": 240}, "sensor 240 was given"),
        ({"sensor": (240, 304, 3)}, r"sensor \(240, 304, 3\) was given"),
    ],
)
def test_the_constructor_names_the_first_bad_row_and_its_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FateError, match=message):
        make(**changes)


def test_labelled_empty_and_not_labelled_differ() -> None:
    labels = make(labelled_us=[0, 25, 50])
    assert labels != make()
    assert labels.is_labelled(25)
    assert not labels.is_labelled(26)
    empty = labels.at(25)
    assert len(empty) == 0
    assert empty.labelled_us.tolist() == [25]
    with pytest.raises(FateError, match="time 26 us is not labelled"):
        labels.at(26)
    with pytest.raises(FateError, match="no labelled times"):
        Labels.empty().at(0)


def test_at_gives_exactly_the_rows_of_that_time() -> None:
    labels = make(labelled_us=[0, 25, 50])
    assert labels.at(0).x1.tolist() == [1, 2]
    assert labels.at(np.int64(50)).x1.tolist() == [3.5]
    for bad in (0.5, 2**63, "0"):
        with pytest.raises(FateError, match="microseconds"):
            labels.at(bad)  # type: ignore[arg-type]


def test_between_is_half_open_for_rows_and_labelled_times_and_shares_memory() -> None:
    labels = make(labelled_us=[0, 25, 50], classes=["car", "bus"], sensor=(240, 304))
    first = labels.between(0, 50)
    assert first.t_us.tolist() == [0, 0]
    assert first.labelled_us.tolist() == [0, 25]
    assert first.classes == ("car", "bus")
    assert first.sensor == (240, 304)
    assert np.shares_memory(first.x1, labels.x1)
    assert len(labels.between(10, 10).labelled_us) == 0
    with pytest.raises(FateError, match="got start_us 50 after end_us 0"):
        labels.between(50, 0)


def test_cutting_and_concatenating_gives_the_same_labels_in_any_order() -> None:
    labels = make(labelled_us=[0, 25, 50], track_id=[3, 4, 3])
    parts = [labels.between(cut, cut + 20) for cut in (0, 20, 40)]
    assert Labels.concatenate(parts) == labels
    assert Labels.concatenate(parts[::-1]) == labels


def test_concatenate_refuses_what_does_not_fit_together() -> None:
    with pytest.raises(FateError, match="time 0 us is labelled in two parts"):
        Labels.concatenate([make(), make()])
    with pytest.raises(FateError, match=r"part 1 has classes \('car',\); part 0 None"):
        Labels.concatenate([make(), Labels.empty([60], classes=["car"])])
    with pytest.raises(FateError, match="at least one"):
        Labels.concatenate([])


def test_select_keeps_every_labelled_time() -> None:
    labels = make()
    chosen = labels.select(labels.class_id == 1)
    assert len(chosen) == 1
    assert chosen.labelled_us.tolist() == [0, 50]
    for bad in ([True], [0, 1, 1], slice(0, 2)):
        with pytest.raises(FateError, match="one bool for each of 3 rows"):
            labels.select(bad)  # type: ignore[arg-type]


def test_from_unsorted_sorts_stably_and_names_rows_as_given() -> None:
    order = [2, 0, 1]
    shuffled = {name: np.asarray(values)[order] for name, values in columns().items()}
    assert Labels.from_unsorted(shuffled, labelled_us=[50, 0]) == make()
    with pytest.raises(FateError, match=r"row 0 has score 2\.0"):
        Labels.from_unsorted(shuffled | {"score": [2, 1, 1]})
    with pytest.raises(FateError, match="got a column 'colour'"):
        Labels.from_unsorted(shuffled | {"colour": [2, 1, 1]})


def test_no_boxes_is_an_ordinary_case() -> None:
    empty = Labels.empty([5, 7], classes=["car"], sensor=(240, 304))
    assert len(empty) == 0
    assert empty.labelled_us.tolist() == [5, 7]
    assert empty.between(0, 6) == Labels.empty([5], classes=["car"], sensor=(240, 304))
    assert empty.select(np.zeros(0, bool)) == empty
    assert Labels.concatenate([empty, Labels.empty([6], classes=["car"], sensor=(240, 304))]).is_labelled(6)


def test_labels_compare_by_value_and_have_no_hash() -> None:
    assert make() == make()
    assert make() != make(x1=[1, 2, 3])
    assert make() != make(classes=["car", "bus"])
    assert make() != "labels"
    with pytest.raises(TypeError, match="unhashable"):
        hash(make())


def test_dataclasses_replace_changes_a_field_and_checks_it() -> None:
    assert dataclasses.replace(make(), sensor=(240, 304)) == make(sensor=(240, 304))
    with pytest.raises(FateError, match="there are 1 classes"):
        dataclasses.replace(make(), classes=("car",))


def test_repr_tells_the_table_in_one_line() -> None:
    times = {"t_us": [0, 0, 2_320_000], "labelled_us": [0, 9, 2_320_000]}
    labels = make(**times, track_id=[7, 7, 8], classes=["car", "bus"])
    told = "Labels(3 boxes at 2 of 3 labelled times, 0.000-2.320 s, 2 tracks, classes car/bus)"
    assert repr(labels) == told
    assert repr(Labels.empty()) == "Labels(0 boxes, no labelled times)"


def test_labels_survive_pickling_and_stay_read_only() -> None:
    labels = Labels([5], [0], [0], [1], [1], [0], labelled_us=[5, 9], classes=["car"], sensor=(4, 4))
    copy = pickle.loads(pickle.dumps(labels))
    assert copy == labels
    assert not copy.t_us.flags.writeable
