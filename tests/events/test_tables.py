"""Events from and to tables of other libraries."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fate import Events, FateError, FateWarning, MissingDependencyError
from tests.conftest import make_events

#: As metavision_sdk_base.EventCD, tonic.io.events_struct and dv.EventStore.numpy() are.
DTYPES: dict[Any, list[tuple[str, str]]] = {
    "metavision": [("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")],
    "tonic": [("x", "<i2"), ("y", "<i2"), ("t", "<i8"), ("p", "?")],
    "dv": [("timestamp", "<i8"), ("x", "<i2"), ("y", "<i2"), ("polarity", "i1")],
}


@pytest.mark.parametrize("library", DTYPES)
def test_events_go_to_a_library_and_come_back(library: Any) -> None:
    events = make_events(300)
    array = events.to_structured(library)
    assert array.dtype == np.dtype(DTYPES[library])
    assert Events.from_structured(array, events.sensor) == events
    first = dict(zip(array.dtype.names, array[0].tolist(), strict=True))
    assert (first["x"], first["y"]) == (events.x[0], events.y[0])
    assert first.get("t", first.get("timestamp")) == events.t_us[0]
    assert first.get("p", first.get("polarity")) == events.p[0]
    assert len(Events.empty((48, 64)).to_structured(library)) == 0


def test_off_may_be_minus_one_and_the_array_is_not_changed() -> None:
    array = np.array([(1, 2, -1, 5), (3, 4, 1, 6)], DTYPES["metavision"])
    assert Events.from_structured(array, (48, 64)).p.tolist() == [0, 1]
    assert array["p"].tolist() == [-1, 1]


def test_an_unknown_sensor_is_guessed_with_a_warning_that_names_the_argument() -> None:
    array = np.array([(300, 200, 1, 5)], DTYPES["metavision"])
    with pytest.warns(FateWarning, match=r"304×240.*sensor=\(height, width\)"):
        assert Events.from_structured(array).sensor == (240, 304)
    for bad in (array[:0], np.array([(5000, 200, 1, 5)], DTYPES["metavision"])):
        with pytest.raises(FateError, match=r"sensor=\(height, width\)"):
            Events.from_structured(bad)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 4), np.int64),
        np.zeros(3, [("x", "<u2"), ("y", "<u2"), ("t", "<i8")]),
        np.zeros((2, 2), DTYPES["tonic"]),
    ],
)
def test_what_is_no_table_of_events_is_refused(array: Any) -> None:
    with pytest.raises(FateError, match="t, x, y and p"):
        Events.from_structured(array, (48, 64))


def test_broken_events_of_an_array_are_refused() -> None:
    with pytest.raises(FateError, match="earlier than the one before"):
        Events.from_structured(np.array([(1, 2, 0, 9), (1, 2, 0, 8)], DTYPES["metavision"]), (48, 64))
    with pytest.raises(FateError, match="polarity 3"):
        Events.from_structured(np.array([(1, 2, 3, 9)], DTYPES["metavision"]), (48, 64))


def test_a_library_that_cannot_hold_a_value_or_is_unknown_is_named() -> None:
    with pytest.raises(FateError, match=r"40000.*tonic"):
        Events([1], [40_000], [0], [1], (10, 50_000)).to_structured("tonic")
    with pytest.raises(FateError, match="metavision, tonic, dv"):
        make_events(3).to_structured("jaer")  # type: ignore[arg-type]


def test_pandas_gets_the_four_columns_and_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    events = make_events(5)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    columns = events.to_pandas()
    assert {name: values.tolist() for name, values in columns.items()} == {
        name: getattr(events, name).tolist() for name in ("t_us", "x", "y", "p")
    }
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        events.to_pandas()


def test_torch_gets_integer_columns_that_index_an_image_and_are_copies() -> None:
    events = make_events(5)
    columns = events.to_torch()
    assert {name: column.tolist() for name, column in columns.items()} == {
        name: getattr(events, name).tolist() for name in ("t_us", "x", "y", "p")
    }
    assert {str(column.dtype) for column in columns.values()} == {"torch.int64"}
    columns["x"].zero_()
    assert events == make_events(5)
    assert Events.empty((4, 4)).to_torch()["t_us"].shape == (0,)
