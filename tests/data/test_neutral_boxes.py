"""Neutral boxes from label files to training targets: no class of the dataset, and treated like other boxes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fate
from fate import Labels, open_dataset, write_events, write_labels
from fate.boxes.labels import LabelSource
from fate.data.class_maps import class_map
from fate.data.event_dataset import EventDataset
from fate.data.transforms import Augmentation
from fate.densify.interpolation import interpolate
from fate.training.strategies import make_targets
from tests.conftest import make_events

SENSOR = (240, 304)
NAMES = ("van", "bike", "neutral")


def table(classes: tuple[str, ...] | None, ids: tuple[int, ...] = (2, 0, 1, 2)) -> Labels:
    """Boxes at 1 s whose left edges are 10, 20, …"""
    left = 10 * np.arange(1, len(ids) + 1)
    return Labels(np.full(len(ids), 1_000_000), left, left, left + 40, left + 30, ids, np.arange(len(ids)),
                  classes=classes, sensor=SENSOR)  # fmt: skip


def folder(path: Path, labels: Labels, suffix: str) -> Path:
    path.mkdir()
    write_events(path / "a_td.dat", make_events(2000, SENSOR))
    write_labels(path / f"a{suffix}", labels)
    return path


def test_objects_are_the_rows_that_are_not_neutral() -> None:
    labels = table(NAMES)
    assert labels.is_neutral.tolist() == [True, False, False, True]
    assert labels.objects == Labels(
        labels.t_us[1:3], *labels.boxes[1:3].T, [0, 1], [1, 2], classes=NAMES[:2], sensor=SENSOR
    )
    first = table(("neutral", "van", "bike"))
    assert first.objects.classes == first.classes  # ids stay what they are
    assert first.objects.class_id.tolist() == [2, 1, 2]


@pytest.mark.parametrize("classes", [None, ("van", "bike", "other")])
def test_without_the_name_no_row_is_neutral(classes: tuple[str, ...] | None) -> None:
    labels = table(classes)
    assert not labels.is_neutral.any()
    assert labels.objects is labels


def test_neutral_is_no_class_of_a_dataset_but_its_boxes_are_there(tmp_path: Path) -> None:
    by_name = open_dataset(folder(tmp_path / "names", table(NAMES), ".npz"), sensor=SENSOR)
    by_id = folder(tmp_path / "ids", table(None), "_bbox.npy")
    listed = open_dataset(by_id, classes=list(NAMES), kind="own")
    mapped = open_dataset(by_id, classes={"van": 0, "bike": 1, "Neutral": 2}, kind="own")
    for dataset in (by_name, listed, mapped):
        assert dataset.classes == ("van", "bike")
        assert not dataset.faults
        labels = dataset.recordings[0].labels
        assert labels.classes == NAMES
        assert labels.class_id.tolist() == [2, 0, 1, 2]
        assert labels.objects.classes == dataset.classes


def test_a_selection_of_classes_keeps_neutral_boxes(tmp_path: Path) -> None:
    where = folder(tmp_path / "a", table(NAMES), ".npz")
    for chosen in (["bike"], ["bike", "neutral"]):
        dataset = open_dataset(where, classes=chosen)
        labels = dataset.recordings[0].labels
        assert dataset.classes == ("bike",)
        assert labels.is_neutral.tolist() == [True, False, True]
        assert labels.x1.tolist() == [10, 30, 40]


def test_several_ids_may_be_neutral() -> None:
    found, unknown = class_map({"car": 2, "neutral": (3, 4)}).ids_of(table(None, (4, 2, 3, 0)))
    assert (found.tolist(), unknown) == ([1, 0, 1, -1], {})


def test_datasets_without_neutral_boxes_have_no_such_name(tmp_path: Path) -> None:
    labels = table(("van", "bike"), (0, 1))
    dataset = open_dataset(folder(tmp_path / "a", labels, ".npz"))
    assert dataset.recordings[0].labels.classes == dataset.classes == ("van", "bike")
    assert dataset.recordings[0].labels == labels


def test_items_for_other_trainers_have_no_neutral_boxes(tmp_path: Path) -> None:
    _, labels = EventDataset(folder(tmp_path / "a", table(NAMES), ".npz"))[0]
    assert (labels.class_id.tolist(), labels.classes) == ([0, 1], ("van", "bike"))


def test_augmentation_moves_neutral_boxes_like_others() -> None:
    labels, same = table(NAMES), table(("van", "bike", "drone"))
    kept = []
    for seed in range(20):
        transform = Augmentation.paper().draw(np.random.default_rng(seed), SENSOR)
        moved, expected = transform.labels(labels), transform.labels(same)
        assert np.array_equal(moved.boxes, expected.boxes)
        assert np.array_equal(moved.class_id, expected.class_id)
        kept.append(int(moved.is_neutral.sum()))
    assert {0, 2} <= set(kept)


def test_interpolation_keeps_neutral_boxes() -> None:
    first = table(NAMES)
    later = Labels(first.t_us + 100_000, *(first.boxes + 10).T, first.class_id, first.track_id, classes=NAMES,
                   sensor=SENSOR)  # fmt: skip
    between = interpolate(Labels.concatenate([first, later]), [1_050_000])
    assert between.select(between.is_neutral).x1.tolist() == [15, 45]


def test_targets_have_neutral_boxes_apart() -> None:
    labels = table(NAMES)
    made = Labels(labels.t_us, *labels.boxes.T, labels.class_id, labels.track_id, np.full(4, 0.5),
                  np.full(4, LabelSource.TRACKED), classes=NAMES)  # fmt: skip
    targets, plain = make_targets(made), make_targets(labels.objects)
    assert targets is not None
    assert plain is not None
    assert torch.equal(targets.neutral, torch.from_numpy(labels.boxes[[0, 3]]))
    assert torch.equal(targets.boxes, plain.boxes)
    assert torch.equal(targets.class_ids, plain.class_ids)
    assert targets.weights.tolist() == [0.5, 0.5]
    assert plain.neutral.shape == (0, 4)


def test_coco_and_other_files_hold_neutral_boxes(tmp_path: Path) -> None:
    for name in ("a.json", "a.npz"):
        write_labels(tmp_path / name, table(NAMES))
        assert fate.read_labels(tmp_path / name).is_neutral.tolist() == [True, False, False, True]
