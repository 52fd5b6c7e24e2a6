"""The torch dataset of events and boxes."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

import fate
from tests.data.test_rvt_layout import write_sequence
from tests.training.conftest import SENSOR, drive, write_drives


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drives(tmp_path_factory.mktemp("items"))


def test_an_item_is_the_events_before_a_labelled_time_and_the_boxes_at_it(drives: Path) -> None:
    dataset = fate.EventDataset(drives, window_us=30_000)  # the train split: drives 0 and 1
    known = [drive(number) for number in (0, 1)]
    assert len(dataset) == sum(len(labels.labelled_us) for _, labels in known)
    assert (dataset.classes, dataset.sensor) == (("square",), SENSOR)
    items = list(dataset)
    expected = [(events, labels, int(t)) for events, labels in known for t in labels.labelled_us]
    for (events, boxes), (all_events, labels, time) in zip(items, expected, strict=True):
        assert events == all_events.between(time - 30_000, time)
        assert boxes.labelled_us.tolist() == [time]
        assert np.array_equal(boxes.boxes, labels.at(time).boxes)
    assert dataset[-1][0] == items[-1][0]
    with pytest.raises(IndexError, match=str(len(dataset))):
        dataset[len(dataset)]


def test_a_time_that_is_labelled_empty_is_an_item(tmp_path: Path) -> None:
    events, _ = drive(0)
    fate.write_events(tmp_path / "a.npz", events)
    empty = fate.Labels([], [], [], [], [], [], labelled_us=[50_000], classes=("square",), sensor=SENSOR)
    fate.write_labels(tmp_path / "a_labels.npz", empty)
    entry = "recordings: [{events: a.npz, labels: a_labels.npz}]"
    (tmp_path / "d.yaml").write_text(f"classes: [square]\nsensor: 76x60\n{entry}\n")
    ((seen, boxes),) = fate.EventDataset(tmp_path / "d.yaml")
    assert len(seen) == len(events.between(0, 50_000))
    assert len(boxes) == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_give_the_same_items(drives: Path, method: str) -> None:
    dataset = fate.EventDataset(drives, "all")
    first = dataset[0]  # a file is open when workers start
    loader = DataLoader(dataset, 4, num_workers=2, collate_fn=dataset.collate, multiprocessing_context=method)
    found = [item for events, boxes in loader for item in zip(events, boxes, strict=True)]
    assert len(found) == len(dataset)
    for (events, boxes), (theirs, their_boxes) in zip(found, dataset, strict=True):
        assert events == theirs
        assert boxes == their_boxes
    assert pickle.loads(pickle.dumps(dataset))[0][0] == first[0]


def test_what_has_no_events_or_labels_is_refused(drives: Path, tmp_path: Path) -> None:
    with pytest.raises(fate.FateError, match=r"window_us=0"):
        fate.EventDataset(drives, window_us=0)
    write_sequence(tmp_path / "rvt/gen1/val/sequence")
    with pytest.raises(fate.FateError, match="histograms"):
        fate.EventDataset(tmp_path / "rvt/gen1")
    fate.write_events(tmp_path / "alone.npz", drive(0)[0])
    with pytest.raises(fate.FateError, match="no recording has labels"):
        fate.EventDataset(fate.open_dataset(tmp_path / "alone.npz", classes=["car"], sensor=SENSOR))
