"""Exports of labelling programs: the same boxes from every format, and problems with their places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fate.boxes.cvat import encode_guess
from fate.boxes.importing import ExportError, read_export
from fate.boxes.labels import Labels
from fate.errors import FateError, FormatError
from tests.damage import damaged

SENSOR = (240, 304)
#: Frames 0 to 9 at 10 Hz, with the time 0 of the recording at 5 s.
TABLE = "frame,file,t_us\n" + "".join(f"{n},{n:06d}.png,{5_100_000 + n * 100_000}\n" for n in range(10))
META = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta>
    <task>
      <id>12</id>
      <name>drive</name>
      <size>10</size>
      <mode>MODE</mode>
      <overlap>5</overlap>
      <bugtracker></bugtracker>
      <created>2026-11-02 09:12:44.180000+00:00</created>
      <updated>2026-11-02 09:31:02.901000+00:00</updated>
      <subset>default</subset>
      <start_frame>0</start_frame>
      <stop_frame>9</stop_frame>
      <frame_filter></frame_filter>
      <segments>
        <segment><id>12</id><start>0</start><stop>9</stop><url>http://localhost:8080/api/jobs/12</url></segment>
      </segments>
      <owner><username>ann</username><email></email></owner>
      <assignee></assignee>
      <labels>
        <label><name>van</name><color>#ff00cc</color><type>any</type><attributes></attributes></label>
        <label><name>dog</name><color>#00ffcc</color><type>any</type><attributes></attributes></label>
      </labels>
      <original_size><width>304</width><height>240</height></original_size>
      <source>frames</source>
    </task>
    <dumped>2026-11-02 09:31:30.100000+00:00</dumped>
  </meta>
"""


def corners_at(frame: int) -> tuple[float, float, float, float]:
    """The van moves 2 pixels a frame to the right; it is visible in frames 1 to 5."""
    return 8.0 + 2 * frame, 20.0, 48.0 + 2 * frame, 60.5


def expected(tracks: bool = True) -> Labels:
    """The van in frames 1 to 5, and a dog in frame 7; all ten frames are labelled."""
    boxes = np.array([*(corners_at(frame) for frame in range(1, 6)), (100, 100, 120.25, 130)], np.float32)
    times = 5_100_000 + 100_000 * np.array([1, 2, 3, 4, 5, 7])
    track = [0, 0, 0, 0, 0, 1] if tracks else [-1] * 6
    every = 5_100_000 + 100_000 * np.arange(10)
    return Labels(times, *boxes.T, [0] * 5 + [1], track, labelled_us=every, classes=("van", "dog"), sensor=SENSOR)


def video_box(frame: int, box: Any, outside: int = 0, keyframe: int = 1) -> str:
    x1, y1, x2, y2 = box
    return (
        f'    <box frame="{frame}" keyframe="{keyframe}" outside="{outside}" occluded="0" xtl="{x1:.2f}"'
        f' ytl="{y1:.2f}" xbr="{x2:.2f}" ybr="{y2:.2f}" z_order="0">\n    </box>\n'
    )


def cvat_video(*, every_frame: bool = True) -> str:
    frames = range(1, 6) if every_frame else (1, 5)
    van = "".join(video_box(frame, corners_at(frame), keyframe=frame in (1, 5)) for frame in frames)
    van += video_box(6, corners_at(5), outside=1)
    dog = (100, 100, 120.25, 130)
    lone = video_box(7, dog) + video_box(8, dog, outside=1)  # a shape without a track, as CVAT writes it
    return (
        META.replace("MODE", "interpolation")
        + f'  <track id="0" label="van" source="manual">\n{van}  </track>\n'
        + f'  <track id="1" label="dog" source="manual">\n{lone}  </track>\n</annotations>\n'
    )


def boxes_of(frame: int) -> list[tuple[str, tuple[float, ...]]]:
    return ([("van", corners_at(frame))] if 1 <= frame <= 5 else []) + (
        [("dog", (100, 100, 120.25, 130))] if frame == 7 else []
    )


def cvat_images() -> str:
    lines = []
    for frame in range(10):
        lines.append(f'  <image id="{frame}" name="{frame:06d}.png" width="304" height="240">\n')
        for name, (x1, y1, x2, y2) in boxes_of(frame):
            box = f'xtl="{x1:.2f}" ytl="{y1:.2f}" xbr="{x2:.2f}" ybr="{y2:.2f}"'
            lines.append(f'    <box label="{name}" source="manual" occluded="0" {box} z_order="0">\n    </box>\n')
        lines.append("  </image>\n")
    return META.replace("MODE", "annotation") + "".join(lines) + "</annotations>\n"


def cvat_coco() -> dict[str, Any]:
    images, annotations = [], []
    for frame in range(10):
        file = {"license": 0, "file_name": f"{frame:06d}.png", "flickr_url": "", "coco_url": "", "date_captured": 0}
        images.append({"id": frame + 1, "width": 304, "height": 240, **file})
        for name, (x1, y1, x2, y2) in boxes_of(frame):
            track = {"track_id": 0, "keyframe": True} if name == "van" else {"track_id": 1, "keyframe": True}
            annotations.append({
                "id": len(annotations) + 1, "image_id": frame + 1, "category_id": 1 if name == "van" else 2,
                "segmentation": [], "area": (x2 - x1) * (y2 - y1), "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0,
                "attributes": {"occluded": False, "rotation": 0.0, **track},
            })  # fmt: skip
    categories = [{"id": n + 1, "name": name, "supercategory": ""} for n, name in enumerate(("van", "dog"))]
    return {"licenses": [], "info": {}, "categories": categories, "images": images, "annotations": annotations}


def mot() -> str:
    lines = []
    for frame in range(10):
        for name, (x1, y1, x2, y2) in boxes_of(frame):
            number = ("van", "dog").index(name)
            lines.append(f"{frame + 1},{number},{x1},{y1},{x2 - x1},{y2 - y1},1,{number + 1},1.0\n")
    return "".join(lines)


def percent(box: Any) -> dict[str, float]:
    x1, y1, x2, y2 = box
    sides = {"x": x1 / 3.04, "y": y1 / 2.4, "width": (x2 - x1) / 3.04, "height": (y2 - y1) / 2.4}
    return {**sides, "rotation": 0}


def studio_pictures() -> list[Any]:
    tasks = []
    for frame in range(10):
        results = [
            {
                "original_width": 304,
                "original_height": 240,
                "image_rotation": 0,
                "id": f"r{n}",
                "from_name": "label",
                "to_name": "image",
                "type": "rectanglelabels",
                "origin": "manual",
                "value": {**percent(box), "rectanglelabels": [name]},
            }
            for n, (name, box) in enumerate(boxes_of(frame))
        ]
        annotation = {"id": frame, "completed_by": 1, "result": results, "was_cancelled": False, "ground_truth": False}
        data = {"image": f"/data/upload/3/8f2c3d1a-{frame:06d}.png"}
        tasks.append({"id": 40 + frame, "annotations": [annotation], "predictions": [], "data": data, "project": 3})
    return tasks


def studio_video() -> list[Any]:
    def region(name: str, keys: list[dict[str, Any]]) -> dict[str, Any]:
        value = {"framesCount": 10, "duration": 1.0, "sequence": keys, "labels": [name]}
        return {"value": value, "id": name, "from_name": "box", "to_name": "video", "type": "videorectangle"}

    van = [
        {"frame": 2, "enabled": True, "time": 0.1, **percent(corners_at(1))},
        {"frame": 6, "enabled": False, "time": 0.5, **percent(corners_at(5))},
    ]
    dog = [{"frame": 8, "enabled": False, "time": 0.7, **percent((100, 100, 120.25, 130))}]
    annotation = {"id": 1, "result": [region("van", van), region("dog", dog)], "was_cancelled": False}
    return [{"id": 9, "data": {"video": "/data/upload/3/kit.mp4"}, "annotations": [annotation], "predictions": []}]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "frames.csv"
    path.write_text(TABLE)
    return path


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def close(found: Labels, wanted: Labels) -> bool:
    """Whether two tables are the same up to the rounding of percents."""
    same = np.array_equal(found.t_us, wanted.t_us) and np.array_equal(found.labelled_us, wanted.labelled_us)
    names = [[labels.classes[n] for n in labels.class_id] for labels in (found, wanted) if labels.classes]
    return same and names[0] == names[1] and bool(np.allclose(found.boxes, wanted.boxes, atol=1e-3))


# ---- every format gives the boxes that were drawn -----------------------------------------------------------


@pytest.mark.parametrize("every_frame", [True, False])
def test_a_video_export_of_cvat_is_read_with_or_without_the_frames_between_keyframes(
    tmp_path: Path, table: Path, every_frame: bool
) -> None:
    path = write(tmp_path, "annotations.xml", cvat_video(every_frame=every_frame))
    assert read_export(path, frames=table, sensor=SENSOR).labels == expected()


def test_the_export_of_a_job_has_its_size_beside_the_job(tmp_path: Path, table: Path) -> None:
    size = "<original_size><width>304</width><height>240</height></original_size>"
    text = (
        cvat_video(every_frame=True).replace(size, "").replace("task>", "job>").replace("</dumped>", f"</dumped>{size}")
    )
    assert text.count("<job>") == 1
    path = write(tmp_path, "annotations.xml", text)
    assert read_export(path, frames=table).labels == expected()
    with pytest.raises(ExportError, match="304×240"):
        read_export(path, frames=table, sensor=(480, 640))


def test_boxes_are_interpolated_at_the_frames_of_the_task_alone(tmp_path: Path) -> None:
    text = cvat_video(every_frame=False).replace("<frame_filter></frame_filter>", "<frame_filter>step=2</frame_filter>")
    text = text.replace("<start_frame>0<", "<start_frame>1<")
    labels = read_export(write(tmp_path, "a.xml", text), fps=10).labels
    assert labels.labelled_us.tolist() == [100_000, 300_000, 500_000, 700_000, 900_000]
    assert labels.t_us.tolist() == [100_000, 300_000, 500_000, 700_000]


def test_an_image_export_of_cvat_is_read(tmp_path: Path, table: Path) -> None:
    done = read_export(write(tmp_path, "annotations.xml", cvat_images()), frames=table)
    assert done.labels == expected(tracks=False)
    assert any("4 frames without boxes" in note for note in done.notes)


def test_a_coco_export_of_cvat_is_read_with_its_tracks(tmp_path: Path, table: Path) -> None:
    assert read_export(write(tmp_path, "instances.json", cvat_coco()), frames=table).labels == expected()


def test_mot_text_with_the_names_of_cvat_is_read_and_lists_no_empty_frames(tmp_path: Path, table: Path) -> None:
    write(tmp_path, "labels.txt", "van\ndog\n")
    labels = read_export(write(tmp_path, "gt.txt", mot()), frames=table, sensor=SENSOR).labels
    wanted = expected()
    assert labels.t_us.tolist() == wanted.t_us.tolist() == np.sort(labels.t_us).tolist()
    assert np.array_equal(labels.boxes, wanted.boxes)
    assert np.array_equal(labels.track_id, wanted.track_id)
    assert len(labels.labelled_us) == 6


def test_pictures_and_videos_of_label_studio_are_read(tmp_path: Path, table: Path) -> None:
    pictures = read_export(write(tmp_path, "p.json", studio_pictures()), frames=table).labels
    video = read_export(write(tmp_path, "v.json", studio_video()), frames=table, sensor=SENSOR).labels
    assert close(pictures, expected())
    assert close(video, expected())
    assert video.track_id.tolist() == [0, 0, 0, 0, 0, 1]


def test_an_object_of_a_label_studio_video_that_is_not_disabled_stays_to_the_end(tmp_path: Path, table: Path) -> None:
    content = studio_video()
    region = content[0]["annotations"][0]["result"][1]
    region["value"]["sequence"][0]["enabled"] = True
    labels = read_export(write(tmp_path, "v.json", content), frames=table, sensor=SENSOR).labels
    dog = labels.select(labels.track_id == 1)
    assert dog.t_us.tolist() == expected().labelled_us[7:].tolist()
    assert np.ptp(dog.boxes, axis=0).max() < 1e-4


def test_local_storage_names_its_pictures_and_an_empty_video_is_a_problem(tmp_path: Path, table: Path) -> None:
    content = studio_pictures()
    for frame, task in enumerate(content):
        task["data"] = {"image": f"/data/local-files/?d=my%20kit/frames/{frame:06d}.png"}
    assert close(read_export(write(tmp_path, "p.json", content), frames=table).labels, expected())
    content = studio_video()
    content[0]["annotations"][0]["result"] = []
    with pytest.raises(ExportError, match=r"task 9.*number of frames"):
        read_export(write(tmp_path, "v.json", content), frames=table, sensor=SENSOR)


def test_class_numbers_of_mot_are_those_of_the_given_classes(tmp_path: Path) -> None:
    path = write(tmp_path, "gt.txt", "1,1,10,10,20,20,1,1,1\n2,1,10,10,20,20,1,2,1\n")
    ours = read_export(path, fps=10, sensor=SENSOR, classes=["car", "pedestrian"])
    assert (ours.labels.class_id.tolist(), ours.notes) == ([0, 1], ())
    theirs = read_export(path, fps=10, sensor=SENSOR)
    assert theirs.labels.classes is not None
    assert "pedestrian" in theirs.labels.classes
    assert "MOT16" in theirs.notes[0]


def test_two_images_of_one_id_are_a_problem_and_an_unknown_size_is_none(tmp_path: Path, table: Path) -> None:
    content = cvat_coco()
    content["images"][1]["id"] = content["images"][0]["id"]
    with pytest.raises(ExportError, match=r"image 1 has the id .* of another image"):
        read_export(write(tmp_path, "c.json", content), frames=table)
    content = cvat_coco()
    for image in content["images"]:
        image |= {"width": 0, "height": 0}
    assert read_export(write(tmp_path, "d.json", content), frames=table, sensor=SENSOR).labels == expected()


def test_a_folder_of_pascal_voc_is_read(tmp_path: Path, table: Path) -> None:
    folder = tmp_path / "voc" / "Annotations"
    folder.mkdir(parents=True)
    for frame in range(10):
        objects = "".join(
            f"<object><name>{name}</name><bndbox><xmin>{b[0]}</xmin><ymin>{b[1]}</ymin><xmax>{b[2]}</xmax><ymax>{b[3]}"
            "</ymax></bndbox></object>"
            for name, b in boxes_of(frame)
        )
        size = "<size><width>304</width><height>240</height></size>"
        text = f"<annotation><filename>{frame:06d}.png</filename>{size}{objects}</annotation>"
        write(folder, f"{frame:06d}.xml", text)
    labels = read_export(tmp_path / "voc", frames=table, classes=["van", "dog"]).labels
    assert labels == expected(tracks=False)


def test_a_constant_rate_counts_from_the_time_of_frame_0(tmp_path: Path) -> None:
    path = write(tmp_path, "a.xml", cvat_video())
    labels = read_export(path, fps=30, start_us=7).labels
    assert labels.labelled_us.tolist() == [7 + round(n * 1e6 / 30) for n in range(10)]
    by_name = read_export(write(tmp_path, "b.xml", cvat_images()), fps=30, start_us=7).labels
    assert by_name.labelled_us.tolist() == labels.labelled_us.tolist()


def test_frames_that_nobody_looked_at_can_be_left_out(tmp_path: Path, table: Path) -> None:
    done = read_export(write(tmp_path, "a.xml", cvat_video()), frames=table, skip_empty=True)
    assert done.labels.labelled_us.tolist() == np.unique(expected().t_us).tolist()
    assert any("4 frames" in note for note in done.notes)


def test_boxes_are_cut_at_the_edge_on_request_and_counted(tmp_path: Path, table: Path) -> None:
    text = cvat_video().replace('xtl="10.00"', 'xtl="-3.00"')
    path = write(tmp_path, "a.xml", text)
    with pytest.raises(ExportError, match=r"line 33.*-3 20 50 60.5.*frame 1.*304×240.*clip=True"):
        read_export(path, frames=table)
    done = read_export(path, frames=table, clip=True)
    assert done.labels.x1.min() == 0
    assert any("1 box cut" in note for note in done.notes)


# ---- problems ------------------------------------------------------------------------------------------------


def test_all_problems_are_reported_with_their_lines_and_nothing_is_read(tmp_path: Path, table: Path) -> None:
    text = cvat_video().replace('label="dog"', 'label="dgo"').replace('xtl="12.00"', 'xtl="twelve"')
    text = text.replace('xtl="14.00"', 'xtl="-14.00"').replace('frame="8"', 'frame="7"')
    text = text.replace("<stop_frame>9<", "<stop_frame>10<")
    with pytest.raises(ExportError) as caught:
        read_export(write(tmp_path, "a.xml", text), frames=table)
    assert str(caught.value).startswith(str(tmp_path / "a.xml"))
    lines = text.splitlines()

    def line_of(part: str) -> int:
        return next(number for number, line in enumerate(lines, start=1) if part in line)

    dog, problems = line_of('xtl="100.00"'), caught.value.problems
    wanted = [
        (f"line {line_of('twelve')}:", "'twelve'"),
        (f"line {line_of('-14.00')}:", "over the edge"),
        (f"line {dog + 2}:", "frame 7 already"),
        (f"line {dog}:", "did you mean 'dog'"),
        ("line 5:", "1 frame (10) without a time"),
    ]
    for place, words in wanted:
        assert any(place in each and words in each for each in problems), (place, words, problems)
    assert len(problems) == len(wanted)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('xbr="50.00"', 'xbr="9.00"', "no area"),
        ('xtl="10.00"', 'xtl="1e400"', "1e400"),
        ('frame="1"', 'frame="99999999999"', "99999999999"),
        ('frame="1"', 'frame="1.5"', "1.5"),
        (' label="van"', "", "no label"),
        ('occluded="0"', 'occluded="0" rotation="12.5"', "12.5"),
        ("<stop_frame>9<", "<stop_frame>1e15<", "1e15"),
        ("<width>304<", "<width>1280<", "1280×240"),
        ("</track>", '<polygon frame="2" points="1,2;3,4;5,6"/></track>', "<polygon>"),
        ('id="1"', 'id="-4"', "-4"),
    ],
)
def test_each_wrong_value_names_its_line_and_what_was_given(
    tmp_path: Path, table: Path, old: str, new: str, words: str
) -> None:
    text = cvat_video().replace(old, new, 1)
    assert text != cvat_video()
    with pytest.raises(FormatError) as caught:
        read_export(write(tmp_path, "a.xml", text), frames=table, sensor=SENSOR)
    assert words in str(caught.value)
    assert "line " in str(caught.value) or "recording" in str(caught.value)


def test_two_tasks_are_not_one_recording(tmp_path: Path, table: Path) -> None:
    text = cvat_video().replace("</task>", "</task><task><id>13</id></task>")
    with pytest.raises(FormatError, match=r"line \d+.*task"):
        read_export(write(tmp_path, "a.xml", text), frames=table)


def test_a_frame_outside_the_recording_is_a_problem(tmp_path: Path, table: Path) -> None:
    path = write(tmp_path, "a.xml", cvat_video())
    with pytest.raises(ExportError, match=r"1 frame \(9\) outside.*6000000 µs.*5900000"):
        read_export(path, frames=table, span_us=(0, 5_900_000))
    with pytest.raises(FateError, match="fps"):
        read_export(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("11,0,1,2,3,4,1,5,1", "1 to 2"),
        ("a,0,1,2,3,4,1,1,1", "'a'"),
        ("0,0,1,2,3,4,1,1,1", "'0'"),
        ("3,0,1,2", "4 columns"),
        ("3,0,1,2,1e99,4,1,1,1", "1e99"),
        ("8,1,1,2,3,4,1,2,1", "duplicate"),
        ("12,5,1,2,3,4,1,2,1", "without a time"),
    ],
)
def test_wrong_mot_lines_are_named(tmp_path: Path, table: Path, line: str, words: str) -> None:
    write(tmp_path, "labels.txt", "van\ndog\n")
    path = write(tmp_path, "gt.txt", mot() + line + "\n")
    with pytest.raises(ExportError, match=r"line 7.*" + words):
        read_export(path, frames=table, sensor=SENSOR)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("frame,t_us\n0,1\n", "line 1"),
        ("frame,file,t_us\n0,0.png,1\n0,1.png,2\n", "line 3"),
        ("frame,file,t_us\n0,0.png,1\n1,1.png,1\n", "line 3"),
        ("frame,file,t_us\n0,0.png,1.5\n", "line 2"),
        ("frame,file,t_us\n", "no frames"),
        ("", "no frames"),
    ],
)
def test_a_wrong_time_table_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(FormatError, match=words) as caught:
        read_export(write(tmp_path, "a.xml", cvat_video()), frames=write(tmp_path, "t.csv", text))
    assert "t.csv" in str(caught.value)


# ---- detections are no ground truth --------------------------------------------------------------------------


def test_a_first_guess_is_marked_and_refused_until_a_program_has_exported_it(tmp_path: Path, table: Path) -> None:
    times = {5_100_000 + 100_000 * n: f"{n:06d}.png" for n in range(10)}
    text = encode_guess(expected(), times, "fate-s-tiny").decode()
    with pytest.raises(FormatError, match=r"first guess.*no ground truth"):
        read_export(write(tmp_path, "guess.xml", text), frames=table)
    exported = "\n".join(line for line in text.splitlines() if "first_guess" not in line)
    done = read_export(write(tmp_path, "a.xml", exported), frames=table, classes=["van", "dog"])
    assert done.labels == expected(tracks=False)
    assert any("6 boxes of an automatic source" in note for note in done.notes)


def test_detections_and_predictions_are_refused(tmp_path: Path, table: Path) -> None:
    results = [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.9}]
    with pytest.raises(FormatError, match="ground truth"):
        read_export(write(tmp_path, "r.json", results), frames=table)
    document = cvat_coco()
    document["annotations"][2]["score"] = 0.7
    with pytest.raises(FormatError, match=r"annotation 2.*ground truth"):
        read_export(write(tmp_path, "s.json", document), frames=table)
    tasks = studio_pictures()
    tasks[0]["predictions"] = tasks[1]["annotations"]
    tasks[9]["annotations"] = []
    done = read_export(write(tmp_path, "p.json", tasks), frames=table)
    assert len(done.labels.labelled_us) == 9
    assert sum("1 task" in note for note in done.notes) == 2


# ---- damage --------------------------------------------------------------------------------------------------


def check_damaged(path: Path, table: Path) -> None:
    try:
        read_export(path, frames=table, sensor=SENSOR, clip=True)
    except FateError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)


def test_damaged_xml_is_one_sentence(tmp_path: Path, table: Path) -> None:
    random = np.random.default_rng(3)
    for text in (cvat_video(), cvat_images()):
        data = text.encode()
        for _ in range(40):
            start = int(random.integers(len(data)))
            bad = [data[:start], data[:start] + random.bytes(3) + data[start + 3 :], data[:start] + data[start + 40 :]]
            for each in bad:
                path = tmp_path / "bad.xml"
                path.write_bytes(each)
                check_damaged(path, table)
    for text in ("<annotations>" * 100, '<!DOCTYPE a [<!ENTITY b "c">]><annotations/>', "<annotations/>", "<a/>"):
        check_damaged(write(tmp_path, "bad.xml", text), table)


@pytest.mark.parametrize("make", [cvat_coco, studio_pictures, studio_video])
def test_damaged_json_is_one_sentence(tmp_path: Path, table: Path, make: Any) -> None:
    for text in damaged(make(), 150):
        check_damaged(write(tmp_path, "bad.json", text), table)
