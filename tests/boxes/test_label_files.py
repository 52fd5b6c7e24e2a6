"""Properties of the label files: exact round trips, honest errors."""

from __future__ import annotations

import io
import json
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fate.boxes.label_files import read_labels, write_labels
from fate.boxes.labels import Labels
from fate.errors import FateError, FateWarning, FormatError
from tests.damage import replace_member

REAL = Path(__file__).parents[3] / "shared" / "realdata"
NAMES = {"prophesee": "drive_bbox.npy", "coco": "drive.json", "yolo": "drive", "npz": "drive.npz"}
QUICK = settings(max_examples=60, deadline=None)

PIXELS = st.floats(-500, 2000, width=32)  # partly outside the frame, and down to the smallest float32
ANYTHING = st.floats(-(2.0**126), 2.0**126, width=32)


@st.composite
def some_labels(draw: st.DrawFn, pixels: st.SearchStrategy[float] = PIXELS) -> Labels:
    """Labels with empty times, tracks, scores and sources, with or without class names."""
    labelled = sorted(draw(st.sets(st.integers(-(10**6), 10**12) | st.integers(0, 100), max_size=6)))
    names = draw(st.none() | st.just(("car", "person à vélo", "two wheeler")))
    n = draw(st.integers(0, 8)) if labelled else 0

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=n, max_size=n))

    spans = [np.sort(np.array(column(st.tuples(pixels, pixels)), np.float32).reshape(-1, 2)) for _ in "xy"]
    return Labels(
        sorted(column(st.sampled_from(labelled or [0]))),
        x1=spans[0][:, 0],
        y1=spans[1][:, 0],
        x2=spans[0][:, 1],
        y2=spans[1][:, 1],
        class_id=column(st.integers(0, 2)),
        track_id=column(st.just(-1) | st.integers(0, 2**32 - 2)),
        score=column(st.just(1.0) | st.floats(0, 1, width=32)),
        source=column(st.integers(0, 2)),
        labelled_us=labelled,
        classes=names,
        sensor=draw(st.sampled_from([(260, 346), (720, 1280), (1, 7)])),
    )


def round_trip(labels: Labels, format: str, **options: Any) -> Labels:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAMES[format]
        write_labels(path, labels, **options)
        if format == "prophesee":  # knows neither
            return read_labels(path, sensor=labels.sensor, classes=labels.classes)
        return read_labels(path)


def example(**changes: Any) -> Labels:
    """Two boxes at 0 us, none at 40 ms."""
    base: dict[str, Any] = {"labelled_us": [0, 40_000], "classes": ["car", "bus"], "sensor": (260, 346)}
    box: dict[str, Any] = {
        "x1": [-3.3, 5],
        "y1": [0.1, 5],
        "x2": [10, 400.7],
        "y2": [9, 5],
        "class_id": [0, 1],
    }
    return Labels(**(base | box | {"t_us": [0, 0]} | changes))


@pytest.mark.parametrize("format", ["coco", "yolo", "npz"])
@QUICK
@given(labels=some_labels() | some_labels(ANYTHING))
def test_every_format_gives_back_exactly_what_was_written(format: str, labels: Labels) -> None:
    back = round_trip(labels, format)
    assert back == labels


@QUICK
@given(dialect=st.sampled_from(["t", "ts"]), labels=some_labels() | some_labels(ANYTHING))
def test_prophesee_is_exact_but_for_one_ulp_where_no_float32_size_is(dialect: str, labels: Labels) -> None:
    back = round_trip(labels, "prophesee", dialect=dialect)
    for low, high in (("x1", "x2"), ("y1", "y2")):
        near, far, got = getattr(labels, low), getattr(labels, high), getattr(back, high)
        inexact = np.flatnonzero(got != far)
        size = far[inexact] - near[inexact]
        ulp = np.spacing(np.maximum(np.abs(far[inexact]), size))
        assert (np.abs(got[inexact] - far[inexact]) <= ulp).all()
        for row, guess in zip(inexact, size, strict=True):
            around = [guess, *(np.nextafter(guess, np.float32(end)) for end in (0, np.inf))]
            assert all(near[row] + candidate != far[row] for candidate in around)
    rows = {name: getattr(labels, name) for name in ("t_us", "class_id", "track_id", "score", "source")}
    boxes = {name: getattr(back, name) for name in ("x1", "y1", "x2", "y2")}
    facts: dict[str, Any] = {
        "labelled_us": labels.labelled_us,
        "classes": labels.classes,
        "sensor": labels.sensor,
    }
    assert back == Labels(**rows, **boxes, **facts)
    assert np.array_equal(back.x1, labels.x1)
    assert np.array_equal(back.y1, labels.y1)
    assert round_trip(back, "prophesee") == round_trip(round_trip(back, "prophesee"), "prophesee")


@pytest.mark.parametrize("format", NAMES)
@pytest.mark.parametrize("times", [[], [0], [3, 70_000]])
def test_no_boxes_round_trips_in_every_format(format: str, times: list[int]) -> None:
    labels = Labels.empty(times, classes=["car"], sensor=(260, 346))
    assert round_trip(labels, format) == labels


@pytest.mark.parametrize("format", NAMES)
def test_writing_over_old_labels_leaves_only_the_new_and_no_drafts(tmp_path: Path, format: str) -> None:
    path = tmp_path / NAMES[format]
    write_labels(path, example())
    write_labels(path, example().between(0, 1))
    assert read_labels(path, classes=["car", "bus"], sensor=(260, 346)) == example().between(0, 1)
    assert [entry.name for entry in tmp_path.iterdir()] == [NAMES[format]]


def test_prophesee_rows_have_40_bytes_and_the_published_fields(tmp_path: Path) -> None:
    write_labels(tmp_path / "a_bbox.npy", example(source=[0, 2], track_id=[-1, 5]))
    table = np.load(tmp_path / "a_bbox.npy")
    assert table.dtype.itemsize == 40
    assert table.dtype.fields["source"][1] == 36
    assert table["track_id"].tolist() == [0xFFFFFFFF, 5]
    write_labels(tmp_path / "a_bbox.npy", example(labelled_us=[0]))
    table = np.load(tmp_path / "a_bbox.npy")
    names = ["t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence"]
    formats = ["<i8", "<f4", "<f4", "<f4", "<f4", "<u4", "<u4", "<f4"]
    offsets = [0, 8, 12, 16, 20, 24, 28, 32]
    assert table.dtype == np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": 40})
    assert not (tmp_path / "a_bbox_times.npy").exists()


def test_prophesee_with_other_field_order_and_integer_types_is_read_by_name(tmp_path: Path) -> None:
    fields = [("x", "f8"), ("ts", ">u8"), ("y", "f4"), ("w", "i2"), ("h", "f4"), ("class_id", "u1")]
    np.save(tmp_path / "a.npy", np.array([(1.5, 7, 2, 3, 4, 9)], fields))
    assert read_labels(tmp_path / "a.npy") == Labels([7], [1.5], [2], [4.5], [6], [9])


def test_prophesee_out_of_order_is_sorted_with_a_warning_and_unknown_fields_are_told(tmp_path: Path) -> None:
    fields = [(name, "f4") for name in "xywh"] + [("t", "i8"), ("class_id", "u1"), ("invalid", "?")]
    np.save(tmp_path / "a.npy", np.array([(1, 1, 1, 1, 9, 0, 0), (2, 2, 2, 2, 3, 0, 0)], fields))
    with pytest.warns(FateWarning) as caught:
        labels = read_labels(tmp_path / "a.npy")
    assert labels.t_us.tolist() == [3, 9]
    assert labels.x1.tolist() == [2, 1]
    told = " ".join(str(warning.message) for warning in caught)
    assert "a.npy: sorted 2 boxes" in told
    assert "a.npy: ignored the unknown fields invalid" in told


@pytest.mark.parametrize(("name", "bad"), [("w", -1), ("h", np.nan), ("x", np.inf), ("class_confidence", 2)])
def test_prophesee_names_the_first_bad_row(tmp_path: Path, name: str, bad: float) -> None:
    write_labels(tmp_path / "a.npy", example(labelled_us=[0]))
    table = np.load(tmp_path / "a.npy")
    table[name][1] = bad
    np.save(tmp_path / "a.npy", table)
    with pytest.raises(FormatError, match=r"a\.npy: row 1 has "):
        read_labels(tmp_path / "a.npy")


def test_a_sidecar_must_list_every_box_time_and_is_never_taken_from_another_tool(tmp_path: Path) -> None:
    write_labels(tmp_path / "a.npy", example())
    np.save(tmp_path / "a_times.npy", np.array([40_000]))
    with pytest.raises(FormatError, match=r"has boxes at 0 us, a time its _times\.npy sidecar does not list"):
        read_labels(tmp_path / "a.npy")
    np.save(tmp_path / "a_times.npy", np.array([0.5]))
    with pytest.raises(FateError, match=r"sidecar holds an array of shape .* float64"):
        write_labels(tmp_path / "a.npy", example())
    assert np.load(tmp_path / "a_times.npy").tolist() == [0.5]


def test_prophesee_refuses_tracks_and_sizes_it_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(FateError, match="row 1 has track_id 4294967295"):
        write_labels(tmp_path / "a.npy", example(track_id=[0, 2**32 - 1]))
    with pytest.raises(FateError, match="row 0 spans x1"):
        write_labels(tmp_path / "a.npy", example(x1=[-3e38, 0], x2=[3e38, 1]))
    assert not list(tmp_path.iterdir())


def coco(**changes: Any) -> dict[str, Any]:
    return {
        "images": [{"id": 8, "t_us": 50}, {"id": "b", "timestamp": 20.0}],
        "annotations": [{"image_id": 8, "category_id": 17, "bbox": [1, 2, 3, 4]}],
        "categories": [{"id": 3, "name": "car"}, {"id": 17, "name": "bus"}],
    } | changes


def test_coco_of_other_tools_is_read_with_positions_as_class_ids(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(coco()))
    expected = Labels([50], [1], [2], [4], [6], [1], labelled_us=[20, 50], classes=["car", "bus"])
    assert read_labels(tmp_path / "a.json") == expected
    (tmp_path / "no_suffix").write_text("\ufeff \n" + json.dumps(coco()), "utf-8")
    assert read_labels(tmp_path / "no_suffix") == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": [{"id": 8}]}, "image 8 .*t_us"),
        ({"images": [{"id": 8, "t": 0.5}]}, "t of image 8 is 0.5; expected a whole number"),
        ({"images": [{"id": 8, "t": 5}, {"id": 9, "t": 5}]}, "images 8 and 9 both have time 5 us"),
        ({"images": [{"id": 8, "t": 5}, {"id": 8, "t": 6}]}, "image id 8 occurs twice"),
        ({"images": [{"id": [], "t": 5}]}, "image 0 has id"),
        ({"images": 3}, "no list of objects 'images'"),
        ({"annotations": [{"image_id": 1, "category_id": 3}]}, "annotation 0 names image 1"),
        ({"annotations": [{"image_id": 8, "category_id": 1}]}, "annotation 0 names category 1"),
        ({"annotations": [{"image_id": 8, "category_id": 3}]}, "annotation 0 has bbox None"),
        ({"annotations": [{"image_id": 8, "category_id": 3, "bbox": [0, 0, -1, 1]}]}, "0 has bbox .*-1"),
        ({"annotations": [{"image_id": 8, "category_id": 3, "bbox": [0, 0, 10**400, 1]}]}, "finite number"),
        (
            {"annotations": [{"image_id": 8, "category_id": 3, "bbox": [0, 0, 1, "1"]}]},
            "bbox of annotation 0",
        ),
        ({"categories": [{"id": 3}, {"id": 17}]}, "class 0 is named None"),
        ({"info": {"format": "fate-labels", "sensor": 5}}, "sensor 5 was given"),
    ],
)
def test_a_wrong_coco_entry_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps(coco(**changes)))
    with pytest.raises(FormatError, match=rf"a\.json: .*{message}"):
        read_labels(tmp_path / "a.json")


def test_plain_yolo_text_needs_only_the_sensor(tmp_path: Path) -> None:
    (tmp_path / "40.txt").write_text("1 0.5 0.5 0.5 1\n\n0 .25 0.5 0.5 1e0 0.75 3\n")
    (tmp_path / "5.txt").write_text("")
    labels = read_labels(tmp_path, sensor=(100, 200), classes=["car", "bus"])
    assert labels.boxes.tolist() == [[50, 0, 150, 100], [0, 0, 100, 100]]
    assert labels.labelled_us.tolist() == [5, 40]
    assert labels.score.tolist() == [1, 0.75]
    assert labels.track_id.tolist() == [-1, 3]
    with pytest.raises(FormatError, match=r"pass sensor=\(height, width\)"):
        read_labels(tmp_path)


BAD_LINES = """
1 2 3
x 0 0 1 1
2 0 0 1 1
0 0 0 -1 1
0 nan 0 1 1
0 1_0 0 1 1
0 0 0 1e99 1
0 0 0 1e9999999 1
0 0 0 1 1 1.5
0 0 0 1 1 1 -2
0 0 0 1 1 1 1 3
0 0 0 1 1 1 1 0 0
"""


@pytest.mark.parametrize("line", BAD_LINES.strip().splitlines())
def test_a_bad_yolo_line_is_named_with_file_and_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "40.txt").write_text(f"0 0.5 0.5 1 1\n{line}\n")
    with pytest.raises(FormatError, match=r"40\.txt line 2 has "):
        read_labels(tmp_path, sensor=(100, 200), classes=["car", "bus"])


def test_yolo_refuses_files_that_are_no_times_and_times_given_twice(tmp_path: Path) -> None:
    (tmp_path / "40.txt").write_text("")
    (tmp_path / "040.txt").write_text("")
    with pytest.raises(FormatError, match=r"holds 040\.txt and 40\.txt"):
        read_labels(tmp_path, sensor=(1, 1))
    (tmp_path / "040.txt").rename(tmp_path / "readme.txt")
    with pytest.raises(FormatError, match=r"holds 'readme\.txt'"):
        read_labels(tmp_path, sensor=(1, 1))
    (tmp_path / "none").mkdir()
    with pytest.raises(FormatError, match=r"has no <t_us>\.txt file"):
        read_labels(tmp_path / "none")


def test_plain_ground_truth_is_plain_yolo(tmp_path: Path) -> None:
    write_labels(tmp_path / "y", Labels([5], [0], [0], [173], [130], [1], sensor=(260, 346)))
    assert (tmp_path / "y" / "0000000000000005.txt").read_text() == "1 0.25 0.25 0.5 0.5\n"


def test_yolo_never_writes_into_a_folder_with_files_of_others(tmp_path: Path) -> None:
    write_labels(tmp_path / "y", example())
    (tmp_path / "y" / "notes.md").write_text("mine")
    with pytest.raises(FateError, match=r"y: the folder holds 'notes\.md', which FATE did not write"):
        write_labels(tmp_path / "y", example())
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "0000000000000005.txt").write_text("")  # looks like ours, but no fate.json says so
    with pytest.raises(FateError, match="which FATE did not write"):
        write_labels(tmp_path / "z", example())


def test_an_argument_that_contradicts_the_file_is_refused(tmp_path: Path) -> None:
    for name in ("a.json", "a.npz", "yolo"):
        write_labels(tmp_path / name, example())
        with pytest.raises(FateError, match="was given; leave the argument out"):
            read_labels(tmp_path / name, sensor=(1, 2))
        with pytest.raises(FateError, match="was given; leave the argument out"):
            read_labels(tmp_path / name, classes=["bus", "car"])
    with pytest.raises(FateError, match="the labels have"):
        write_labels(tmp_path / "b.json", example(), sensor=(1, 2))
    write_labels(tmp_path / "b.json", example(sensor=None), sensor=(1, 2))
    assert read_labels(tmp_path / "b.json").sensor == (1, 2)


def test_content_wins_over_the_suffix(tmp_path: Path) -> None:
    write_labels(tmp_path / "a.json", example(), format="npz")
    assert read_labels(tmp_path / "a.json") == example()


def test_wrong_places_and_wishes_are_errors_that_name_the_path(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0 0 0 0 0")
    np.savez(tmp_path / "b.npz", x=np.zeros(3))
    np.save(tmp_path / "c.npy", np.zeros(3))
    np.save(tmp_path / "d.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("a.txt", "b.npz", "c.npy", "d.npy", "absent.npy"):
        with pytest.raises(FateError, match=name):
            read_labels(tmp_path / name)
    wishes: list[tuple[str, dict[str, Any]]] = [
        ("a.xml", {}),
        ("a.npz", {"format": "voc"}),
        ("a.npz", {"dialect": "t"}),
        ("a.npy", {"dialect": "x"}),
        ("absent/a.npz", {}),
        ("a.txt", {"format": "yolo"}),
    ]
    for name, wish in wishes:
        with pytest.raises(FateError, match=name):
            write_labels(tmp_path / name, example(), **wish)
    with pytest.raises(FateError, match="the labels have no sensor"):
        write_labels(tmp_path / "y", example(sensor=None))


@pytest.fixture(scope="module")
def written() -> Iterator[dict[str, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        paths = {format: Path(folder) / name for format, name in NAMES.items()}
        for path in paths.values():
            write_labels(path, example(track_id=[1, 2], score=[0.5, 1], source=[0, 1]))
        yield paths


@pytest.mark.parametrize("format", NAMES)
@QUICK
@given(data=st.data())
def test_a_damaged_file_gives_labels_or_a_fate_error_and_nothing_else(
    written: dict[str, Path], format: str, data: st.DataObject
) -> None:
    path = written[format]
    if format == "yolo":
        path = data.draw(st.sampled_from(sorted(path.iterdir())))
    good = path.read_bytes()
    broken = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.just(len(broken)) | st.integers(0, len(broken)))
    message = None
    try:
        path.write_bytes(bytes(broken[:cut]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_labels(written[format])
    except FateError as error:
        message = str(error)
    finally:
        path.write_bytes(good)
    assert message is None or message.startswith(f"{written[format]}: ")


@pytest.mark.skipif(not (REAL / "labels").is_dir(), reason=f"needs the real labels in {REAL}")
def test_the_real_traffic_labels_read_and_round_trip_in_every_format() -> None:
    labels = read_labels(REAL / "labels" / "davis346_traffic_bbox.npy", sensor=(260, 346))
    assert repr(labels) == "Labels(147 boxes at 59 of 59 labelled times, 0.000-2.320 s, 3 tracks)"
    for format in NAMES:
        assert round_trip(labels, format) == labels


@pytest.mark.skipif(not (REAL / "boxes_1mpx").is_dir(), reason=f"needs the real boxes in {REAL}")
def test_real_1mpx_boxes_and_detections_are_written_back_as_the_same_bytes(tmp_path: Path) -> None:
    with np.load(REAL / "boxes_1mpx" / "seed_gen4_1_subset.npz") as archive:
        tables = {key: archive[key] for key in archive.files[:4]}
    for table in tables.values():
        np.save(tmp_path / "a_bbox.npy", table)
        labels = read_labels(tmp_path / "a_bbox.npy")
        assert len(labels) == len(table)
        assert np.array_equal(labels.score, table["class_confidence"])
        write_labels(tmp_path / "b_bbox.npy", labels)
        again = np.load(io.BytesIO((tmp_path / "b_bbox.npy").read_bytes()))
        assert again.dtype == table.dtype
        assert read_labels(tmp_path / "b_bbox.npy") == labels


@pytest.mark.parametrize("member", ["x1", "classes", "sensor"])
def test_a_label_file_with_a_member_that_is_no_array_is_refused_with_its_name(tmp_path: Path, member: str) -> None:
    path = tmp_path / "drive.npz"
    labels = Labels([1000], [1], [2], [8], [9], [0], classes=("car",), sensor=(240, 304))
    write_labels(path, labels)
    replace_member(path, f"{member}.npy", b"xx")
    with pytest.raises(FateError, match=member) as error:
        read_labels(path)
    assert str(error.value).startswith(str(path))
