"""Pascal VOC annotations: what is read, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fate.boxes.label_files import read_labels, write_labels
from fate.boxes.labels import Labels
from fate.errors import FormatError

HEAD = "<annotation>\n<filename>a.jpg</filename>\n<size><width>346</width><height>260</height><depth>1</depth></size>\n"


def person(x1: object = 41, y1: object = 122, x2: object = 73, y2: object = 210, name: str = "person") -> str:
    box = f"<xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
    return f"<object><name>{name}</name><difficult>0</difficult>\n<bndbox>{box}</bndbox></object>\n"


def write(folder: Path, *objects: str, head: str = HEAD) -> Path:
    path = folder / "frame.xml"
    path.write_text(head + "".join(objects) + "</annotation>\n", "utf-8")
    return path


def test_boxes_names_sensor_and_the_time_of_the_caller_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, person(), person(1.5, 2, 30, 40.25, name=" car "))
    labels = read_labels(path, t_us=40_000)
    expected = Labels(
        [40_000, 40_000], [41, 1.5], [122, 2], [73, 30], [210, 40.25], class_id=[1, 0], classes=["car", "person"],
        sensor=(260, 346),
    )  # fmt: skip
    assert labels == expected
    write_labels(tmp_path / "frame.npz", labels)
    assert read_labels(tmp_path / "frame.npz") == labels


def test_given_classes_are_the_order_of_ids_so_that_files_can_be_merged(tmp_path: Path) -> None:
    names = ("person", "car", "dog")
    first = read_labels(write(tmp_path, person()), t_us=0, classes=names)
    second = read_labels(write(tmp_path, person(name="dog")), t_us=1, classes=names)
    assert Labels.concatenate([first, second]).class_id.tolist() == [0, 2]


def test_an_annotation_without_objects_is_a_labelled_time(tmp_path: Path) -> None:
    labels = read_labels(write(tmp_path), t_us=7)
    assert len(labels) == 0
    assert labels.is_labelled(7)


def test_parts_of_objects_are_not_objects_and_a_size_of_zero_is_unknown(tmp_path: Path) -> None:
    part = person().replace("</object>", "<part><name>head</name><bndbox><xmin>50</xmin></bndbox></part></object>")
    head = "<annotation><size><width>0</width><height>0</height></size>\n"
    labels = read_labels(write(tmp_path, part, head=head), t_us=0)
    assert labels.classes == ("person",)
    assert labels.sensor is None


@pytest.mark.parametrize(
    ("content", "line", "fault"),
    [
        (person(x1="left"), 5, "<xmin> is 'left'; expected a number"),
        (person(x1="nan"), 5, "expected a number"),
        (person(x1=80), 5, "expected xmin ≤ xmax"),
        (person().replace("<ymax>210</ymax>", ""), 5, "<bndbox> has 0 <ymax>"),
        (person(name=""), 4, "<name> is empty"),
        (person() + "<object>", 6, "mismatched tag"),
        ("<size/>", 1, "<annotation> has 2 <size>"),
        ("<a>" * 40, 4, "more than 32 levels"),
    ],
)
def test_errors_name_the_file_and_the_line(tmp_path: Path, content: str, line: int, fault: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(FormatError) as error:
        read_labels(path, t_us=0)
    assert str(error.value).startswith(f"{path}: line {line}: ")
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<html></html>", "line 1: begins with <html>"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]>\n<annotation>&b;</annotation>", "line 1: declares a document type"),
        ("<?xml version='1.0' encoding='nonsense'?><annotation/>", "encoding"),
        ("<annotation", "line 1: is not valid XML"),
    ],
)
def test_other_documents_are_refused(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "other.xml").write_text(text)
    with pytest.raises(FormatError, match=fault):
        read_labels(tmp_path / "other.xml", t_us=0)


def test_the_time_is_needed_for_voc_and_refused_for_files_with_times(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="labelled time as t_us"):
        read_labels(write(tmp_path, person()))
    write_labels(tmp_path / "a.npz", Labels.empty([3]))
    with pytest.raises(FormatError, match="times of its own"):
        read_labels(tmp_path / "a.npz", t_us=3)


def test_a_class_that_is_not_among_the_given_ones_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="line 4: the class 'person' is not among car"):
        read_labels(write(tmp_path, person()), t_us=0, classes=["car"])
