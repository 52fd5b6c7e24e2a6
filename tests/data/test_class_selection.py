"""Classes are chosen by name, whatever the dataset: the boxes of a class keep their size under any selection."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import fate
from fate import FateError, Labels, open_dataset, write_events, write_labels
from fate.evaluation.evaluate import evaluate
from tests.conftest import make_events

GEN1, MPX, OTHER = (240, 304), (720, 1280), (200, 300)
TIME = 1_000_000
NAMES = ("van", "bike", "drone")
MPX_NAMES = ("pedestrian", "two wheeler", "car", "truck", "bus", "traffic sign", "traffic light")


def width(number: int) -> float:
    """The width in pixels that boxes of a class id have in the label files."""
    return 20.0 + 10 * number


def sized(ids: list[int], sensor: tuple[int, int], **facts: Any) -> Labels:
    """A box for each id, as wide as :func:`width` says."""
    n = len(ids)
    right = [8 + width(number) for number in ids]
    return Labels([TIME] * n, [8] * n, [8] * n, right, [40] * n, ids, sensor=sensor, **facts)


def widths(dataset: fate.Dataset) -> dict[str, float]:
    """Width in camera pixels of the boxes of each class, by its name."""
    found: dict[str, float] = {}
    for recording in dataset:
        labels = recording.labels
        for name, x1, x2 in zip(
            (dataset.classes[number] for number in labels.class_id), labels.x1, labels.x2, strict=True
        ):
            found[name] = float(x2 - x1) * dataset.downscale
    return found


def public(folder: Path, sensor: tuple[int, int], number: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_events(folder / "a_td.dat", make_events(2000, sensor))
    write_labels(folder / "a_bbox.npy", sized(list(range(number)), sensor))
    return folder


def gen1(folder: Path) -> Path:
    return public(folder, GEN1, 2)


def mpx(folder: Path) -> Path:
    return public(folder, MPX, 7)


def listed(folder: Path) -> Path:
    public(folder, OTHER, 3)
    (folder / "classes.txt").write_text("\n".join(NAMES))
    return folder


def described(folder: Path) -> Path:
    public(folder / "data", OTHER, 3)
    text = f"classes: [{', '.join(NAMES)}]\nrecordings: [{{events: data/a_td.dat, labels: data/a_bbox.npy}}]\n"
    (folder / "mine.yaml").write_text(text)
    return folder / "mine.yaml"


def by_ids(folder: Path) -> Path:
    """A YAML that maps names to ids, in another order than the ids."""
    path = described(folder)
    path.write_text(path.read_text().replace("[van, bike, drone]", "{drone: 2, van: 0, bike: 1}"))
    return path


def named(folder: Path) -> Path:
    """Label files that have the names themselves, two of them in another order."""
    for file, order in (("a", (0, 1, 2)), ("b", (2, 0, 1))):
        public(folder, OTHER, 3)
        write_events(folder / f"{file}.h5", make_events(2000, OTHER))
        labels = sized(list(order), OTHER)
        ids = [order.index(number) for number in order]
        write_labels(
            folder / f"{file}.json", replace(labels, class_id=ids, classes=tuple(NAMES[number] for number in order))
        )
    for file in folder.glob("a_*"):
        file.unlink()
    return folder


def histograms(folder: Path) -> Path:
    home = folder / "val" / "s" / "event_representations_v2" / "stacked_histogram_dt=50_nbins=10"
    home.mkdir(parents=True)
    ends = 100_000 + 50_000 * np.arange(4, dtype=np.int64)
    with h5py.File(home / "event_representations.h5", "w") as file:
        file.create_dataset("data", data=np.zeros((4, 20, *GEN1), np.uint8), chunks=(1, 20, *GEN1))
    np.save(home / "timestamps_us.npy", ends)
    np.save(home / "objframe_idx_2_repr_idx.npy", np.array([3]))
    labels = folder / "val" / "s" / "labels_v2"
    labels.mkdir()
    np.save(labels / "timestamps_us.npy", ends[3:])
    dtype = [("t", "<i8"), ("x", "<f4"), ("y", "<f4"), ("w", "<f4"), ("h", "<f4"), ("class_id", "<u4")]
    rows = np.zeros(2, [*dtype, ("class_confidence", "<f4")])
    rows["t"], rows["w"], rows["h"], rows["class_id"] = ends[3], [width(0), width(1)], 30, [0, 1]
    np.savez(labels / "labels.npz", labels=rows, objframe_idx_2_label_idx=np.array([0]))
    return folder


def simulated(folder: Path) -> Path:
    """The manifest of a simulated dataset beside boxes of known sizes."""
    public(folder / "train", GEN1, 2)
    write_labels(folder / "train" / "a_truth.npz", sized([0, 1], GEN1, classes=("car", "pedestrian"), track_id=[0, 1]))
    document = {
        "format": "fate-simulated-dataset",
        "schema": 1,
        "classes": ["car", "pedestrian"],
        "sensor": {"height": 240, "width": 304},
        "arguments": {"profile": "gen1"},
        "recordings": [],
        "previews": {},
    }
    (folder / "manifest.json").write_text(json.dumps(document))
    return folder


def prepared(folder: Path) -> Path:
    fate.prepare("gen1", gen1(folder / "source"), folder / "prepared")
    return folder / "prepared"


KINDS: list[tuple[Callable[[Path], Path], tuple[str, ...]]] = [
    (gen1, ("car", "pedestrian")),
    (mpx, MPX_NAMES),
    (listed, NAMES),
    (described, NAMES),
    (by_ids, NAMES),
    (named, NAMES),
    (histograms, ("car", "pedestrian")),
    (simulated, ("car", "pedestrian")),
    (prepared, ("car", "pedestrian")),
]


@pytest.mark.parametrize(("make", "names"), KINDS, ids=[make.__name__ for make, _ in KINDS])
def test_names_choose_classes_and_their_order_gives_the_ids(
    tmp_path: Path, make: Callable[[Path], Path], names: tuple[str, ...]
) -> None:
    path = make(tmp_path / "set")
    expected = {name: width(number) for number, name in enumerate(names)}
    for wanted in (names, names[::-1], names[1:], names[-1:], (names[1], names[0])):
        dataset = open_dataset(path, classes=wanted)
        assert dataset.classes == wanted
        assert widths(dataset) == {name: expected[name] for name in wanted}
        assert dataset.checked().faults == open_dataset(path).checked().faults  # what is left out is no fault


@pytest.mark.parametrize(("make", "names"), KINDS, ids=[make.__name__ for make, _ in KINDS])
def test_an_unknown_name_is_refused_with_the_nearest_and_the_list(
    tmp_path: Path, make: Callable[[Path], Path], names: tuple[str, ...]
) -> None:
    path = make(tmp_path / "set")
    with pytest.raises(FateError) as caught:
        open_dataset(path, classes=(names[0], f"{names[1]}s"))
    message = str(caught.value)
    assert message.startswith(str(path))
    assert f"{names[1]}s" in message
    assert f"did you mean {names[1]!r}?" in message
    assert all(name in message for name in names)


def test_a_name_that_only_a_later_label_file_has_is_found(tmp_path: Path) -> None:
    for number in range(12):
        write_events(tmp_path / f"r{number:02d}.h5", make_events(500, OTHER))
        ids, names = ([0, 1], ("van", "drone")) if number == 7 else ([0], ("van",))
        labels = sized([0, 2] if number == 7 else [0], OTHER)
        write_labels(tmp_path / f"r{number:02d}.npz", replace(labels, class_id=ids, classes=names))
    assert widths(open_dataset(tmp_path, classes=("drone",))) == {"drone": width(2)}


def test_ids_of_a_mapping_are_the_category_ids_of_a_coco_file(tmp_path: Path) -> None:
    write_events(tmp_path / "a.h5", make_events(500, OTHER))
    categories = [{"id": 7, "name": "drone"}, {"id": 1, "name": "van"}, {"id": 2, "name": "bike"}]
    boxes = [
        {"id": n, "image_id": 0, "category_id": identity, "bbox": [8, 8, width(place), 30]}
        for n, (place, identity) in enumerate(((2, 7), (0, 1), (1, 2)))
    ]
    image = {"id": 0, "t_us": TIME, "width": OTHER[1], "height": OTHER[0]}
    (tmp_path / "a.json").write_text(json.dumps({"images": [image], "categories": categories, "annotations": boxes}))
    assert widths(open_dataset(tmp_path, classes={"wheels": (1, 2), "wings": 7})) == {
        "wheels": width(1),
        "wings": width(2),
    }
    assert widths(open_dataset(tmp_path, classes={"van": 1})) == {"van": width(0)}
    assert widths(open_dataset(tmp_path, classes=("bike", "van"))) == {"bike": width(1), "van": width(0)}


def test_predictions_and_exact_boxes_are_matched_by_name_under_any_selection(tmp_path: Path) -> None:
    path = simulated(tmp_path / "set")
    found = {"a": sized([0, 1], GEN1, classes=("car", "pedestrian"))}
    fate.boxes.predictions.write_predictions(tmp_path / "p.npz", found, {"hz": 20})
    for wanted in (("car", "pedestrian"), ("pedestrian", "car"), ("pedestrian",), {"walker": 1}, {"any": (0, 1)}):
        dataset = open_dataset(path, classes=wanted)  # type: ignore[arg-type]
        if isinstance(wanted, dict):
            renamed = sized([0, 1], GEN1, classes=("walker", "any"))
            renamed = replace(renamed, class_id=[0 if "walker" in wanted else 1] * 2)
            fate.boxes.predictions.write_predictions(tmp_path / "p.npz", {"a": renamed}, {"hz": 20})
        done = evaluate(tmp_path / "p.npz", dataset, (20,))
        scores = done.rates[0].scores
        assert scores["AP50"] == pytest.approx(1.0)
        assert scores.counts.truth == (1 if len(wanted) == 1 and "any" not in wanted else 2)


def test_class_ids_without_names_say_what_they_were_read_as(tmp_path: Path) -> None:
    path = gen1(tmp_path / "set")
    write_labels(tmp_path / "a_bbox.npy", sized([0, 1], GEN1))
    done = evaluate(tmp_path / "a_bbox.npy", open_dataset(path), (20,))
    assert done.rates[0].scores["AP50"] == pytest.approx(1.0)
    assert any("0 car, 1 pedestrian" in note for note in done.notes)


def test_names_of_predictions_may_be_spelled_otherwise(tmp_path: Path) -> None:
    path = listed(tmp_path / "set")
    write_labels(tmp_path / "a.npz", sized([0, 1, 2], OTHER, classes=("VAN", "Bike", "drone")))
    scores = evaluate(tmp_path / "a.npz", open_dataset(path), (20,)).rates[0].scores
    assert scores["AP50"] == pytest.approx(1.0)
    assert scores.counts.predictions_by_class == dict.fromkeys(NAMES, 1)


def with_names(folder: Path, names: tuple[str, ...], classes: str) -> Path:
    """A dataset of one recording whose label file has names; its boxes have the ids 0 and 1."""
    folder.mkdir(parents=True)
    write_events(folder / "a.h5", make_events(2000, OTHER))
    write_labels(folder / "a_bbox.npz", sized([0, 1], OTHER, classes=names))
    path = folder / "set.yaml"
    path.write_text(f"name: set\nclasses: {classes}\nrecordings: {{train: .}}\n")
    return path


def test_ids_that_contradict_the_names_of_a_label_file_are_refused(tmp_path: Path) -> None:
    path = with_names(tmp_path / "set", ("van", "dog"), "{van: 0, cyclist: 1, dog: 2}")
    dataset = open_dataset(path).checked()
    assert not dataset.labelled
    assert any("a_bbox.npz" in fault and "dog" in fault and "[van, cyclist, dog]" in fault for fault in dataset.faults)


def test_a_name_of_the_dataset_with_an_id_that_it_does_not_have_is_refused(tmp_path: Path) -> None:
    dataset = open_dataset(with_names(tmp_path / "set", ("van", "dog"), "{van: 0, dog: 5}")).checked()
    assert not dataset.labelled
    assert any("dog" in fault and "[van, dog]" in fault for fault in dataset.faults)


def test_several_ids_of_a_class_may_have_several_names(tmp_path: Path) -> None:
    dataset = open_dataset(with_names(tmp_path / "set", ("van", "truck"), "{van: [0, 1]}")).checked()
    assert dataset.faults == ()
    assert len(dataset.recordings[0].labels) == 2


def test_a_name_that_becomes_another_by_its_id_is_reported(tmp_path: Path) -> None:
    dataset = open_dataset(with_names(tmp_path / "set", ("van", "dgo"), "{van: 0, dog: 1}")).checked()
    assert widths(dataset) == {"van": width(0), "dog": width(1)}
    assert any("dgo counts as dog" in fault for fault in dataset.faults)
    assert {finding.kind for finding in dataset.findings} == {"renamed"}  # nothing is lacking


def test_a_dataset_with_names_of_its_own_has_no_fault(tmp_path: Path) -> None:
    dataset = open_dataset(with_names(tmp_path / "set", ("car", "truck"), "{vehicle: [0, 1]}")).checked()
    assert dataset.faults == ()
    assert len(dataset.recordings[0].labels) == 2


def test_a_second_label_file_is_named(tmp_path: Path) -> None:
    folder = public(tmp_path / "set", OTHER, 2)
    write_labels(folder / "a_bbox.npz", sized([0, 1], OTHER, classes=("van", "bike")))
    with pytest.warns(fate.FateWarning, match=r"a_bbox\.npy is used, and .*a_bbox\.npz is not"):
        open_dataset(folder, classes=("van", "bike"))
