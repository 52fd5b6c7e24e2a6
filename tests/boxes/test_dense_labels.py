"""Folders of dense labels: what they hold, what they lack, and what they refuse."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from fate.boxes.dense_labels import (
    begin_dense_labels,
    find_difference,
    label_file,
    open_dense_labels,
    prediction_file,
    write_in_folder,
)
from fate.errors import FateError
from tests.densify.standin import CLASSES, sparse, straight_truth

FACTS: dict[str, Any] = {
    "model": {"name": "fate-s", "classes": CLASSES, "weights": "abc"},
    "dataset": {"name": "drives", "classes": CLASSES, "sensor": (240, 304)},
    "options": {"track_score": 0.3, "thresholds": {"car": 0.6}},
    "fate": "1",
}


def test_labels_come_back_as_they_were_written(tmp_path: Path) -> None:
    store = begin_dense_labels(tmp_path / "dense", FACTS, (80, 200))
    labels = sparse(straight_truth())
    write_in_folder(label_file(store.root, "train/drive_1", 80), labels)
    write_in_folder(prediction_file(store.root, "train/drive_1", 50_000), labels)
    opened = open_dense_labels(tmp_path / "dense")
    assert opened.rates == (80, 200)
    assert opened.classes == CLASSES
    assert opened.labels("train/drive_1", 80) == labels
    assert opened.predictions("train/drive_1", 50_000) == labels
    assert opened.predictions("train/drive_1", 66_666) is None
    assert opened.has("train/drive_1", 80)
    assert not opened.has("train/drive_1", 200)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    store = begin_dense_labels(tmp_path / "dense", FACTS, (80, 200))
    with pytest.raises(FateError, match=r"at 100 Hz \(its rates are 80, 200\); run fate densify --hz 100"):
        store.labels("drive", 100)
    with pytest.raises(FateError, match="has no labels of drive at 200 Hz .*run fate densify --hz 200"):
        store.labels("drive", 200)
    with pytest.raises(FateError, match=r"has no manifest\.json"):
        open_dense_labels(tmp_path)


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("model", {"weights": "def"}, 'model.weights was "abc" and is "def"'),
        ("options", {"thresholds": {"car": 0.5}}, "options.thresholds.car was 0.6 and is 0.5"),
        ("dataset", {"name": "gen1"}, 'dataset.name was "drives" and is "gen1"'),
    ],
)
def test_another_model_dataset_or_option_is_refused_with_what_differs(
    tmp_path: Path, part: str, change: dict[str, Any], words: str
) -> None:
    begin_dense_labels(tmp_path, FACTS, (80,))
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(FateError, match=words):
        begin_dense_labels(tmp_path, {**FACTS, part: {**FACTS[part], **change}}, (80,))
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_rates_add_up_and_the_first_version_stays(tmp_path: Path) -> None:
    begin_dense_labels(tmp_path, FACTS, (80,))
    assert begin_dense_labels(tmp_path, {**FACTS, "fate": "2"}, (200, 40)).rates == (40, 80, 200)
    assert json.loads((tmp_path / "manifest.json").read_text())["fate"] == "1"


def _begin_at_once(folder: Path, thresholds: tuple[float, float], rates: tuple[float, float]) -> list[str]:
    """Two processes begin one folder at the same moment; the errors of those that were refused."""
    context = multiprocessing.get_context("fork")
    barrier, refused = context.Barrier(2), context.SimpleQueue()

    def begin(threshold: float, hz: float) -> None:
        barrier.wait()
        try:
            begin_dense_labels(folder, {**FACTS, "options": {"track_score": threshold}}, (hz,))
            refused.put("")
        except FateError as error:
            refused.put(str(error))

    both = [context.Process(target=begin, args=each) for each in zip(thresholds, rates, strict=True)]
    for each in both:
        each.start()
    answers = [refused.get() for _ in both]
    for each in both:
        each.join()
    return [answer for answer in answers if answer]


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that fork")
def test_two_runs_that_begin_at_once_keep_all_rates_and_one_set_of_options(tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path / f"rates{number}"
        assert _begin_at_once(folder, (0.3, 0.3), (40, 80)) == []
        assert open_dense_labels(folder).rates == (40, 80)
        (error,) = _begin_at_once(tmp_path / f"options{number}", (0.3, 0.4), (40, 80))
        assert f"options{number}: was begun with other settings" in error
        assert len(open_dense_labels(tmp_path / f"options{number}").rates) == 1


def test_predictions_of_the_same_times_are_replaced_and_others_kept(tmp_path: Path) -> None:
    store = begin_dense_labels(tmp_path / "dense", FACTS, (80,))
    labels = straight_truth()
    middle, end = int(labels.labelled_us[len(labels.labelled_us) // 2]), int(labels.labelled_us[-1]) + 1
    early, late = labels.between(0, middle), labels.between(middle, end)
    assert store.add_predictions("drive", 50_000, early) == early
    assert store.add_predictions("drive", 50_000, late) == labels
    assert store.add_predictions("drive", 50_000, early) == labels
    assert store.predictions("drive", 50_000) == labels


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"mine")
    with pytest.raises(FateError, match="holds files and no manifest"):
        begin_dense_labels(tmp_path, FACTS, (80,))
    (tmp_path / "manifest.json").write_text('{"format": "fate-dataset"}')
    with pytest.raises(FateError, match="is no manifest of dense labels"):
        begin_dense_labels(tmp_path, FACTS, (80,))
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(FateError, match="not whole JSON.*expected the manifest of fate densify"):
        open_dense_labels(tmp_path)
    with pytest.raises(FateError, match="file exists; expected a folder"):
        begin_dense_labels(tmp_path / "photo.jpg", FACTS, (80,))


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "", "a/../../b"])
def test_names_stay_inside_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(FateError, match="expected a name inside the dataset"):
        label_file(tmp_path, name, 80)


def test_differences_are_found_at_any_depth() -> None:
    assert find_difference({"a": [1, 2]}, {"a": [1, 2]}, "x") is None
    assert find_difference({"a": {"b": 1}}, {"a": {}}, "x") == "x.a.b was 1 and is null"
