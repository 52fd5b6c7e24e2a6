"""Prediction files of every kind give the same predictions; shards join; what does not fit is refused or reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fate import FateError, write_labels
from fate.boxes import predictions as predictions_module
from fate.boxes.labels import Labels
from fate.boxes.predictions import (
    Predictions,
    fit_predictions,
    merge_predictions,
    read_box_archive,
    read_predictions,
    write_predictions,
)
from fate.boxes.prophesee import encode
from tests.damage import replace_member

CLASSES = ("car", "pedestrian")


def some_labels(seed: int, named: bool = True) -> Labels:
    """A few boxes of whole pixels at some of ten times."""
    random = np.random.default_rng(seed)
    times = np.sort(random.choice(np.arange(1, 11) * 50_000, 7))
    corner, size = random.integers(0, 100, (7, 2)), random.integers(1, 50, (7, 2))
    return Labels(
        times, *corner.T, *(corner + size).T, random.integers(0, 2, 7), score=random.uniform(0, 1, 7),
        labelled_us=np.arange(1, 11) * 50_000 if named else None,
        classes=CLASSES if named else None, sensor=(240, 304) if named else None,
    )  # fmt: skip


@pytest.fixture
def tables() -> dict[str, Labels]:
    return {"test/drive_1": some_labels(1), "test/drive_2": some_labels(2), "nothing": Labels.empty(
        [50_000, 100_000], classes=CLASSES, sensor=(240, 304))}  # fmt: skip


def test_our_file_gives_back_every_table_and_fact(tmp_path: Path, tables: dict[str, Labels]) -> None:
    write_predictions(tmp_path / "p.npz", tables, {"hz": 200, "model": "fate-s", "é": [1, None]})
    back = read_predictions(tmp_path / "p.npz")
    assert dict(back) == tables
    assert back.facts == {"hz": 200, "model": "fate-s", "é": [1, None]}
    assert [file.name for file in tmp_path.iterdir()] == ["p.npz"]


def test_no_recordings_at_all_are_written_and_read(tmp_path: Path) -> None:
    write_predictions(tmp_path / "p.npz", {})
    assert dict(read_predictions(tmp_path / "p.npz")) == {}


def test_facts_are_kept_when_what_was_read_is_written_again(tmp_path: Path, tables: dict[str, Labels]) -> None:
    write_predictions(tmp_path / "a.npz", tables, {"hz": 20})
    write_predictions(tmp_path / "b.npz", read_predictions(tmp_path / "a.npz"), {"merged": True})
    assert read_predictions(tmp_path / "b.npz").facts == {"hz": 20, "merged": True}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, tables: dict[str, Labels]) -> None:
    write_predictions(tmp_path / "p.npz", tables)
    before = (tmp_path / "p.npz").read_bytes()
    with pytest.raises(FateError, match="JSON"):
        write_predictions(tmp_path / "p.npz", tables, {"model": object()})
    with pytest.raises(FateError, match="share them"):
        write_predictions(tmp_path / "p.npz", {**tables, "other": some_labels(3, named=False)})
    assert (tmp_path / "p.npz").read_bytes() == before
    with pytest.raises(FateError, match=r"\.npz"):
        write_predictions(tmp_path / "p.json", tables)
    with pytest.raises(FateError, match="does not exist; make it first"):
        write_predictions(tmp_path / "none" / "p.npz", tables)


@pytest.mark.parametrize("damage", ["cut", "rows", "names"])
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path: Path, tables: dict[str, Labels], damage: str) -> None:
    path = tmp_path / "p.npz"
    write_predictions(path, tables)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:2000])
    else:
        arrays = dict(np.load(path))
        arrays["rows" if damage == "rows" else "recordings"] = (
            arrays["rows"][::-1] if damage == "rows" else np.array(["a", "a", "b"])
        )
        np.savez(path, **arrays)
    with pytest.raises(FateError) as error:
        read_predictions(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("member", ["format", "facts", "recordings", "rows", "x1", "labelled_us", "classes", "sensor"])
def test_a_member_that_is_no_array_is_refused_with_its_name(
    tmp_path: Path, tables: dict[str, Labels], member: str
) -> None:
    path = tmp_path / "p.npz"
    write_predictions(path, tables)
    replace_member(path, f"{member}.npy", b"xx")
    with pytest.raises(FateError, match=member) as error:
        read_predictions(path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("member", ["classes", "sensor"])
def test_a_single_value_in_place_of_a_list_is_refused(tmp_path: Path, tables: dict[str, Labels], member: str) -> None:
    path = tmp_path / "p.npz"
    write_predictions(path, tables)
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, member: np.array(3)})
    with pytest.raises(FateError, match=member):
        read_predictions(path)


def test_any_changed_byte_is_refused_or_harmless(tmp_path: Path, tables: dict[str, Labels]) -> None:
    path = tmp_path / "p.npz"
    write_predictions(path, tables)
    data = path.read_bytes()
    for place in range(0, len(data), 17):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            read_predictions(path)
        except FateError as error:
            assert str(error).startswith(str(path))


def test_a_folder_of_label_files_is_named_after_them(tmp_path: Path) -> None:
    folder = tmp_path / "test"
    folder.mkdir()
    write_labels(folder / "drive_1_bbox.npy", some_labels(1, named=False))
    write_labels(folder / "drive_2.npz", some_labels(2))
    (tmp_path / "notes.txt").write_text("not a prediction")
    back = read_predictions(tmp_path)
    assert set(back) == {"test/drive_1", "test/drive_2"}
    assert back["test/drive_2"] == some_labels(2)
    assert "do not tell when nothing was found" in back.notes[0]
    assert back["test/drive_1"].boxes.tolist() == some_labels(1).boxes.tolist()


def test_prophesee_boxes_keep_times_without_boxes_where_a_sidecar_lists_them(tmp_path: Path) -> None:
    write_labels(tmp_path / "drive_bbox.npy", some_labels(4))
    back = read_predictions(tmp_path, classes=CLASSES)
    assert set(back) == {"drive"}
    np.testing.assert_array_equal(back["drive"].labelled_us, some_labels(4).labelled_us)
    assert not any("nothing was found" in note for note in back.notes)
    assert back["drive"].classes == CLASSES
    assert dict(read_predictions(tmp_path / "drive_bbox.npy", classes=CLASSES)) == dict(back)


def archive(path: Path, **tables: Any) -> None:
    import io

    arrays = {}
    for name, labels in tables.items():
        arrays[f"{name}|dt"] = arrays[f"{name}|gt"] = np.load(io.BytesIO(encode(labels)))
    np.savez(path, **arrays)


def test_an_archive_of_prophesee_arrays_is_read_as_labels_or_as_it_is(tmp_path: Path) -> None:
    archive(tmp_path / "a.npz", one=some_labels(1, named=False), two=some_labels(2, named=False))
    back = read_predictions(tmp_path / "a.npz")
    assert dict(back) == {"one": some_labels(1, named=False), "two": some_labels(2, named=False)}
    truth, found = read_box_archive(tmp_path / "a.npz")
    assert list(truth) == list(found) == ["one", "two"]
    assert truth["one"].dtype.names[0] == "t"
    with pytest.raises(FateError, match="no such file"):
        read_box_archive(tmp_path / "b.npz")
    whole = (tmp_path / "a.npz").read_bytes()
    replace_member(tmp_path / "a.npz", "one|gt.npy", whole)
    with pytest.raises(FateError, match=r"one\|gt"):
        read_box_archive(tmp_path / "a.npz")
    np.savez(tmp_path / "c.npz", x=np.zeros(3))
    with pytest.raises(FateError, match=r"\|gt"):
        read_box_archive(tmp_path / "c.npz")


def coco(tables: dict[str, Labels], **keys: str) -> dict[str, Any]:
    """One COCO document; ``keys`` names the fields of recording and time."""
    images, results = [], []
    for name, labels in tables.items():
        for t in labels.labelled_us.tolist():
            image = {"id": len(images) + 1, "width": 304, "height": 240, keys.get("time", "t_us"): t}
            if "recording" in keys:
                image[keys["recording"]] = name
            else:
                image["file_name"] = f"{name}/{t:09d}.png"
            for row in np.flatnonzero(labels.t_us == t).tolist():
                x1, y1, x2, y2 = labels.boxes[row].tolist()
                results.append({"image_id": image["id"], "category_id": int(labels.class_id[row]) * 7 + 3,
                                "bbox": [x1, y1, x2 - x1, y2 - y1], "score": float(labels.score[row])})  # fmt: skip
            images.append(image)
    categories = [{"id": index * 7 + 3, "name": name} for index, name in enumerate(CLASSES)]
    return {"images": images, "annotations": results, "categories": categories, "info": {"model": "theirs"}}


@pytest.mark.parametrize(
    "keys", [{}, {"recording": "recording"}, {"recording": "video", "time": "timestamp_us"}, {"time": "timestamp"}]
)
def test_coco_results_name_recording_and_time_in_several_ways(
    tmp_path: Path, tables: dict[str, Labels], keys: dict[str, str]
) -> None:
    (tmp_path / "r.json").write_text(json.dumps(coco(tables, **keys)))
    back = read_predictions(tmp_path / "r.json")
    assert dict(back) == tables
    assert back.facts == {"model": "theirs"}


def test_a_plain_list_of_coco_results_takes_its_images_from_another_file(
    tmp_path: Path, tables: dict[str, Labels]
) -> None:
    document = coco(tables)
    (tmp_path / "results.json").write_text(json.dumps(document["annotations"]))
    (tmp_path / "truth.json").write_text(json.dumps({**document, "annotations": []}))
    assert dict(read_predictions(tmp_path / "results.json", images=tmp_path / "truth.json")) == tables
    with pytest.raises(FateError, match="images="):
        read_predictions(tmp_path / "results.json")


def test_coco_images_without_a_recording_belong_to_that_of_the_file(tmp_path: Path) -> None:
    document = coco({"x": some_labels(1)})
    for image in document["images"]:
        image["file_name"] = Path(image["file_name"]).name
    (tmp_path / "drive_7_predictions.json").write_text(json.dumps(document))
    assert set(read_predictions(tmp_path / "drive_7_predictions.json")) == {"drive_7"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["images"][0].pop("t_us"), "image 1 .*t_us"),
        (lambda d: d["images"][0].update(t_us=0.5), "t_us of image 1 is 0.5"),
        (lambda d: d["images"][1].update(t_us=d["images"][0]["t_us"]), "images 1 and 2 .*50000"),
        (lambda d: d["images"][1].update(id=1), "occurs twice"),
        (lambda d: d["annotations"][0].update(image_id=99), "image 99, which is not listed"),
        (lambda d: d["annotations"][0].update(category_id=99), "category 99, which is not listed"),
        (lambda d: d["annotations"][0].update(bbox=[1, 2, 3]), r"bbox \[1, 2, 3\]"),
        (lambda d: d["annotations"][0].update(bbox=[1, 2, -3, 4]), "result 0 .*-3"),
        (lambda d: d["annotations"][0].update(bbox=[1, 2, float("nan"), 4]), "finite"),
        (lambda d: d["annotations"][0].pop("score"), "score of result 0"),
        (lambda d: d["annotations"][0].update(score=7), "0 to 1"),
        (lambda d: d.pop("categories"), "categories"),
        (lambda d: d["categories"][1].update(id=3), "category id 3"),
        (lambda d: d.update(annotations=[5]), "list of objects"),
    ],
)
def test_bad_coco_results_are_refused_with_their_place(tmp_path: Path, change: Any, words: str) -> None:
    document = coco({"drive": some_labels(1)})
    change(document)
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(FateError, match=words) as error:
        read_predictions(tmp_path / "r.json")
    assert str(error.value).startswith(str(tmp_path / "r.json"))


def test_what_is_no_prediction_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FateError, match="no such file or folder"):
        read_predictions(tmp_path / "none.npz")
    with pytest.raises(FateError, match="the folder holds no"):
        read_predictions(tmp_path)
    for name, data in {"a.npz": b"PKrubbish", "b.npy": b"rubbish", "c.json": b"{", "d.json": b"[1]"}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FateError, match=name):
            read_predictions(tmp_path / name)
    write_labels(tmp_path / "e.npz", some_labels(1))
    with pytest.raises(FateError, match="COCO results alone"):
        read_predictions(tmp_path / "e.npz", images=tmp_path / "c.json")


def test_shards_of_recordings_and_of_times_join_to_the_whole(tables: dict[str, Labels]) -> None:
    whole = Predictions(tables, {"hz": 20})
    parts = [
        Predictions({name: labels.between(0, 250_000) for name, labels in tables.items()}, {"hz": 20, "shard": "0/3"}),
        Predictions({"test/drive_1": tables["test/drive_1"].between(250_000, 10**9)}, {"hz": 20, "shard": "1/3"}),
        Predictions({"test/drive_2": tables["test/drive_2"].between(250_000, 10**9)}, {"hz": 20, "shard": "2/3"}),
    ]
    merged = merge_predictions(parts)
    assert dict(merged) == dict(whole)
    assert merged.facts == whole.facts
    assert merged.notes == ()


def test_shards_that_overlap_or_disagree_are_named(tables: dict[str, Labels]) -> None:
    with pytest.raises(FateError, match="predictions of nothing come in 2 parts"):
        merge_predictions([{"nothing": tables["nothing"]}, {"nothing": tables["nothing"]}])
    merged = merge_predictions([Predictions({}, {"model": "a"}), Predictions({}, {"model": "b"})])
    assert merged.facts == {}
    assert merged.notes == ("parts differ in model: a, b",)
    with pytest.raises(FateError, match="at least one part"):
        merge_predictions([])


def test_names_fit_a_dataset_by_their_last_part_and_the_rest_is_reported() -> None:
    spans = {"test/drive_1": (0, 400_000), "test/drive_2": None, "val/twin": None, "test/twin": None}
    given = {"drive_1": some_labels(1), "test/drive_2": some_labels(2), "twin": some_labels(3), "gone": some_labels(4)}
    fitted = fit_predictions(given, spans)
    assert set(fitted) == {"test/drive_1", "test/drive_2"}
    assert fitted["test/drive_2"] == given["test/drive_2"]
    assert fitted["test/drive_1"].labelled_us.max() < 500_000
    assert fitted.notes == (
        "2 recordings that the dataset does not have were left out: twin, gone",
        "1 times outside the recordings were left out",
    )


def test_predictions_that_do_not_fit_at_all_are_refused() -> None:
    with pytest.raises(FateError, match="none of them is among"):
        fit_predictions({"a": some_labels(1)}, {"b": None})
    with pytest.raises(FateError, match="outside their recordings"):
        fit_predictions({"a": some_labels(1)}, {"a": (10**12, 2 * 10**12)})
    with pytest.raises(FateError, match="twice"):
        fit_predictions({"x/a": some_labels(1), "y/a": some_labels(2)}, {"z/a": None})


def test_a_folder_that_cannot_be_listed_is_refused(
    tmp_path: Path, lock_folder: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_labels(tmp_path / name / "drive.npz", some_labels(1))
    assert sorted(read_predictions(tmp_path)) == ["a/drive", "b/drive"]
    monkeypatch.setattr(predictions_module, "MAX_ENTRIES", 3)
    with pytest.raises(FateError, match="more than 3 files"):
        read_predictions(tmp_path)
    monkeypatch.setattr(predictions_module, "MAX_ENTRIES", 4)
    lock_folder(tmp_path / "b")
    with pytest.raises(FateError, match="b: .*[Pp]ermission denied"):
        read_predictions(tmp_path)
