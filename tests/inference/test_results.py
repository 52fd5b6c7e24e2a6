"""Detection in one call, pictures of frames, and boxes as tables of other libraries."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

import fate
from fate.boxes.drawing import PALETTES, class_colour
from fate.inference.results import DetectionResult
from fate.inference.stream import StreamingDetector
from tests.inference.streams import SENSOR, drive, same, small_detector

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def detector() -> StreamingDetector:
    return StreamingDetector(small_detector())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results") / "drive.npz"
    fate.write_events(path, drive())
    return path


@pytest.fixture(scope="module")
def result(detector: StreamingDetector, file: Path) -> DetectionResult:
    """Eight frames with boxes."""
    return detector.detect(file, hz=20, track=True, threshold=0.05, most=5)


def test_paths_events_and_recordings_give_the_frames_of_a_stream(detector: StreamingDetector, file: Path) -> None:
    expected = list(detector.stream(file, hz=20, clip_windows=16))
    with fate.open_recording(file) as recording:
        found = [detector.detect(file, 20), detector(drive(), 20), detector.detect(recording, 20), detector(file, 20)]
    assert len(expected) == 8
    for each in found:
        assert len(each) == 8
        assert all(same(one, other) for one, other in zip(each, expected, strict=True))
    assert (found[0].log.recording, found[1].log.recording) == ("drive.npz", "events")


def test_it_is_what_the_function_of_the_command_detects(detector: StreamingDetector, file: Path) -> None:
    theirs = fate.detect(file, detector, 20)
    assert isinstance(theirs, DetectionResult)
    ours = detector.detect(file, 20, start_us=None)
    assert all(same(one, other) for one, other in zip(ours, theirs, strict=True))
    assert "8 frames at 20 Hz" in repr(ours)


def test_a_part_can_be_given_and_what_is_no_recording_is_refused(detector: StreamingDetector, file: Path) -> None:
    assert [frame.t_us for frame in detector.detect(file, 20, start_us=101_000, end_us=200_000)] == [151_000, 201_000]
    assert len(detector(fate.Events.empty(SENSOR))) == 0
    with pytest.raises(fate.FateError, match=r"900000.*400978"):
        detector(drive(), 20, start_us=900_000)
    with pytest.raises(fate.FateError, match=r"ndarray.*Events.from_structured"):
        detector(drive().to_structured())  # type: ignore[arg-type]


def test_a_picture_shows_the_events_and_the_boxes_of_its_window(result: DetectionResult) -> None:
    frame = next(each for each in result if len(each))
    picture = frame.draw(acc_us=50_000)
    assert (picture.shape, picture.dtype) == ((*SENSOR, 3), np.uint8)
    x1, y1, x2, _ = np.clip(frame.boxes[0].round().astype(int), 0, 63)
    assert class_colour(int(frame.class_ids[0])) in {tuple(each) for each in picture[y1, x1:x2].tolist()}
    events = drive().between(frame.t_us - 50_000, frame.t_us)
    plain = result[0].draw(fate.Events.empty(SENSOR))
    assert PALETTES["light"].background in {tuple(each) for each in frame.draw(palette="light")[-1].tolist()}
    assert np.array_equal(picture, frame.draw(events))
    assert plain.shape == picture.shape
    assert frame.draw(factor=3).shape == (3 * SENSOR[0], 3 * SENSOR[1], 3)
    assert len(frame.events()) == frame.num_events


def test_a_notebook_shows_a_frame_and_matplotlib_has_pixels_of_the_sensor(result: DetectionResult) -> None:
    shown = Image.open(io.BytesIO(result[2]._repr_png_() or b""))
    assert shown.size == (640, 640)  # enlarged by a whole factor
    axes = result[2].plot()
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, SENSOR[1]), (SENSOR[0], 0))
    assert result[3].plot(axes) is axes


def test_frames_find_their_events_again_after_the_file_was_closed_and_in_another_process(
    detector: StreamingDetector, file: Path, result: DetectionResult
) -> None:
    again = pickle.loads(pickle.dumps(result[1]))
    assert np.array_equal(again.draw(), result[1].draw())
    stream = detector.open_stream(SENSOR, 20)
    frames = [*stream.feed(drive()), *stream.close()]
    assert len(frames[1].events()) == frames[1].num_events == result[1].num_events
    alone = fate.StreamFrame(1, *(getattr(frames[0], name) for name in ("boxes", "scores", "class_ids")), None,
                             frames[0].window, 0, {})  # fmt: skip
    assert alone._repr_png_() is None
    with pytest.raises(fate.FateError, match=r"frame.draw\(events\)"):
        alone.draw()


def test_pandas_has_a_row_for_each_box(result: DetectionResult, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    table = result.to_pandas()
    assert list(table.columns) == ["t_us", "x1", "y1", "x2", "y2", "class", "score", "track"]
    assert len(table) == sum(len(frame) for frame in result) > 0
    frame = next(each for each in result if len(each))
    rows = table[table.t_us == frame.t_us]
    assert np.array_equal(rows[["x1", "y1", "x2", "y2"]].to_numpy(np.float32), frame.boxes)
    assert rows["class"].tolist() == [frame.classes[each] for each in frame.class_ids]
    assert np.array_equal(rows.track, np.asarray(frame.track_ids))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fate.MissingDependencyError, match="pip install pandas"):
        result.to_pandas()


def test_supervision_has_detections_for_each_window(result: DetectionResult, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("supervision")
    found = result.to_supervision()
    assert [len(each) for each in found] == [len(frame) for frame in result]
    index = next(number for number, frame in enumerate(result) if len(frame))
    assert np.array_equal(found[index].xyxy, result[index].boxes)
    assert np.array_equal(found[index].confidence, result[index].scores)
    assert found[index].metadata["t_us"] == result[index].t_us
    assert set(found[index].data["class_name"]) <= {"car", "pedestrian"}
    assert all(each.tracker_id is not None for each in found)
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(fate.MissingDependencyError, match="pip install supervision"):
        result.to_supervision()
