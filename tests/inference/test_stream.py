"""The streaming detector: the same boxes as an evaluation, however events come; other sensors; track ids."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fate
from fate.boxes.tracking import Tracker
from fate.data.opening import open_dataset
from fate.errors import FateError, FateWarning
from fate.events.events import Events, Sensor
from fate.events.merging import divisor_for
from fate.inference import loading
from fate.inference.adapting import adapt, fit_dataset
from fate.inference.running import predict
from fate.inference.sources import FileSource
from fate.inference.stream import StreamingDetector
from fate.inference.stream_types import StreamFrame
from fate.inference.window_detector import LEAST_OVERLAP, UNSEEN_US
from fate.models.boxes import iou
from fate.models.checkpoints import add_facts, save_model
from fate.models.outputs import Outputs
from fate.models.zoo import build_model
from tests.conftest import REAL, real_recordings
from tests.inference.streams import SENSOR, drive, pieces, same, small_detector


@pytest.fixture(scope="module")
def detector() -> StreamingDetector:
    return StreamingDetector(small_detector())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drives")
    (folder / "classes.txt").write_text("car\npedestrian\n")
    fate.write_events(folder / "drive.npz", drive(150_000))
    times = np.array([100_000])  # a dataset needs a label
    side = np.array([10.0], np.float32)
    boxes = fate.Labels(times, side, side, side + 9, side + 9, [0], classes=("car", "pedestrian"), sensor=SENSOR)
    fate.write_labels(folder / "drive_bbox.npz", boxes)
    return folder


def close(boxes: np.ndarray, others: np.ndarray, tolerance: float) -> bool:
    """Each of the boxes is one of the others: ties may come in another order."""
    return len(boxes) == len(others) and all(np.abs(others - box).max(1).min() < tolerance for box in boxes)


@pytest.mark.parametrize("name", ["fate-s-nano", "fate-e-tiny"])
@pytest.mark.parametrize(("hz", "window_us"), [(20, None), (200, None), (33.3, None), (100, 35_000)])
def test_a_stream_sees_what_an_evaluation_sees(folder: Path, name: str, hz: float, window_us: int | None) -> None:
    model = small_detector(name)
    dataset = open_dataset(folder, kind="own")
    threshold = 0.05 if name.endswith("nano") else 0.01
    options = {"confidence": threshold, "window_us": window_us, "max_overlap": 0.45, "steps": 1}
    run = predict(model, dataset.recordings, hz, score="product", **options)
    expected = next(iter(run.predictions.values()))
    stream = StreamingDetector(model).stream(
        folder / "drive.npz", hz, threshold=threshold, window_us=window_us, stale_us=None
    )
    frames = list(stream)
    assert [frame.t_us for frame in frames] == expected.labelled_us.tolist()
    assert sum(len(frame) for frame in frames) > len(frames) / 2
    for frame in frames:
        rows = expected.t_us == frame.t_us
        truth = np.stack([expected.x1, expected.y1, expected.x2, expected.y2, 50 * expected.score], 1)[rows]
        assert close(np.column_stack([frame.boxes, 50 * frame.scores]), truth, 0.05)
        assert sorted(frame.class_ids) == sorted(expected.class_id[rows])


@pytest.mark.parametrize(("name", "window_us"), [("fate-s-nano", None), ("fate-s-nano", 30_000), ("fate-e-tiny", None)])
def test_clips_give_the_boxes_of_single_windows(folder: Path, name: str, window_us: int | None) -> None:
    detector = StreamingDetector(small_detector(name))
    options: dict[str, Any] = {"threshold": 0.05 if name.endswith("nano") else 0.01, "window_us": window_us}
    single, clips = (
        list(detector.stream(folder / "drive.npz", 100, clip_windows=count, **options)) for count in (1, 7)
    )
    assert [frame.window for frame in single] == [frame.window for frame in clips]
    for alone, together in zip(single, clips, strict=True):
        assert close(
            np.column_stack([together.boxes, 50 * together.scores]),
            np.column_stack([alone.boxes, 50 * alone.scores]),
            0.05,
        )
    assert sum(len(frame) for frame in single) > len(single) / 2


def test_a_clip_ends_before_a_restart(detector: StreamingDetector, tmp_path: Path) -> None:
    parts = [drive(30_000), drive(30_000, start_us=7_200_000_500)]
    fate.write_events(tmp_path / "gap.npz", Events.concatenate(parts))
    single, clips = (list(detector.stream(tmp_path / "gap.npz", 100, threshold=0.05, clip_windows=n)) for n in (1, 16))
    assert [frame.restarted for frame in clips] == [frame.restarted for frame in single]
    assert [len(frame) for frame in clips] == [len(frame) for frame in single]


@pytest.fixture(scope="module")
def frames_of_the_file(detector: StreamingDetector, folder: Path) -> dict[float, list[StreamFrame]]:
    return {
        hz: list(detector.stream(folder / "drive.npz", hz, end_us=61_000, threshold=0.05, track=True))
        for hz in (37.0, 200.0)
    }


@settings(max_examples=12)
@given(st.lists(st.integers(0, 600), max_size=30), st.sampled_from([37.0, 200.0]))
def test_events_in_random_pieces_give_the_frames_of_the_file(
    detector: StreamingDetector, frames_of_the_file: dict[float, list[StreamFrame]], cuts: list[int], hz: float
) -> None:
    whole = frames_of_the_file[hz]
    stream = detector.open_stream(SENSOR, hz, threshold=0.05, track=True)
    events = drive(150_000).between(0, whole[-1].window.end_us)
    fed = [frame for piece in pieces(events, [c for c in cuts if c < len(events)]) for frame in stream.feed(piece)]
    fed += stream.close()
    assert len(fed) == len(whole)
    assert all(same(a, b) for a, b in zip(fed, whole, strict=True))
    assert stream.counts.events == len(events)


def test_memory_is_carried_from_window_to_window_and_begins_anew_after_a_jump_back(
    detector: StreamingDetector,
) -> None:
    events = drive(100_000)
    stream = detector.open_stream(SENSOR, 100, threshold=0.05, max_back_us=20_000)
    first = stream.feed(events)
    again = stream.feed(events) + stream.close()  # the same once more: time goes back by 0.1 s
    flushed, again = again[0], again[1:]
    assert "back" in again[0].restarted
    assert all(np.array_equal(a.boxes, b.boxes) for a, b in zip(first, again, strict=False))
    assert np.array_equal(flushed.boxes, again[-1].boxes)
    fresh = detector.open_stream(SENSOR, 100, threshold=0.05).feed(events[len(events) // 2 :])
    assert not np.array_equal(fresh[0].scores, first[len(first) - len(fresh)].scores)


def test_a_silence_of_hours_in_a_recording_is_skipped_as_it_is_in_a_stream(
    detector: StreamingDetector, tmp_path: Path
) -> None:
    parts = [drive(30_000), drive(30_000, start_us=7_200_000_500)]
    fate.write_events(tmp_path / "gap.npz", Events.concatenate(parts))
    pulled = detector.stream(tmp_path / "gap.npz", 100, threshold=0.05)
    frames = list(pulled)
    stream = detector.open_stream(SENSOR, 100, threshold=0.05)
    pushed = [frame for part in parts for frame in stream.feed(part)] + stream.close()
    assert len(frames) == len(pushed) < 10
    assert all(same(a, b) for a, b in zip(frames, pushed, strict=True))
    assert pulled.counts == stream.counts
    assert pulled.counts.windows + pulled.counts.skipped_windows == len(pulled)


def test_a_clock_closes_windows_and_their_frames_come(detector: StreamingDetector) -> None:
    stream = detector.open_stream(SENSOR, 100, start_us=0)
    stream.feed(drive(4000, start_us=0))
    assert [frame.num_events for frame in stream.tick(30_000)] == [40, 0, 0]


@pytest.mark.parametrize("hz", [1, 7.5, 1000])
def test_any_rate_from_1_to_1000_hz_is_served(detector: StreamingDetector, folder: Path, hz: float) -> None:
    frames = list(detector.stream(folder / "drive.npz", hz, end_us=31_000))
    assert {frame.window.duration_us for frame in frames} == {round(1e6 / hz)}
    assert set(frames[0].ms) == {"decode", "encode", "model", "post"}
    assert all(spent > 0 for spent in frames[-1].ms.values())


@pytest.mark.parametrize("given", [{"hz": 0.5}, {"hz": 1001}, {"threshold": 1.5}, {"most": 0}, {"threads": 0}])
def test_what_a_stream_cannot_do_is_refused(detector: StreamingDetector, given: dict[str, float]) -> None:
    with pytest.raises(FateError, match="expected"):
        detector.open_stream(SENSOR, **given)  # type: ignore[arg-type]


# ---- another sensor -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fate-s-nano", "s5-vit-tiny", "rvt-s", "get-b", "fate-e-tiny"])
def test_the_weights_of_every_family_fit_other_sensors(name: str) -> None:
    with torch.device("meta"):
        model = build_model(name, ("car",), (240, 304))
        shapes = {key: value.shape for key, value in model.state_dict().items()}
        other = build_model(name, ("car",), (720, 1280))
    assert {key: value.shape for key, value in other.state_dict().items()} == shapes


@given(st.integers(16, 2000), st.integers(16, 2000))
def test_no_other_divisor_comes_nearer_to_the_trained_size(height: int, width: int) -> None:
    sensor, trained = Sensor(height, width), Sensor(240, 304)
    ratio = np.hypot(height, width) / np.hypot(240, 304)
    distances = np.abs(np.log(ratio / np.arange(1, 12)))
    assert distances[divisor_for(sensor, trained) - 1] == pytest.approx(distances.min())


def test_a_twice_as_large_sensor_gives_the_same_boxes_twice_as_large(detector: StreamingDetector) -> None:
    events = drive(100_000)
    repeated = [np.repeat(column, 3) for column in (events.t_us, 2 * events.x + 1, 2 * events.y, events.p)]
    large = Events(*repeated, (128, 128))  # a merged pixel fires after three events
    with pytest.warns(FateWarning, match="128×128, each 2×2 pixels as one"):
        big = detector.open_stream((128, 128), 100, threshold=0.05, stale_us=None)
    plain = detector.open_stream(SENSOR, 100, threshold=0.05, stale_us=None)
    for a, b in zip(plain.feed(events), big.feed(large), strict=True):
        assert np.allclose(2 * a.boxes, b.boxes)
        assert np.array_equal(a.scores, b.scores)


def test_all_events_are_kept_if_the_training_kept_them_too() -> None:
    assert adapt(small_detector(), Sensor(128, 128), downscale=2).needed == 1
    assert adapt(small_detector(), Sensor(256, 256), downscale=2).needed == 12


def test_what_was_done_for_another_sensor_is_said_once() -> None:
    detector = StreamingDetector(small_detector())
    with pytest.warns(FateWarning, match="trained on a 64×64 sensor and runs on one of 50×40"):
        stream = detector.open_stream((40, 50), 100)
    assert stream.adaptation.divisor == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detector.open_stream((40, 50), 100)
        assert detector.open_stream(SENSOR, 100).adaptation.describe() == ""


def test_nothing_is_said_about_a_sensor_of_the_training(tmp_path: Path) -> None:
    file = tmp_path / "many.safetensors"
    save_model(small_detector(), file)
    add_facts(file, {"training": {"sensors": [[64, 64], [40, 50]]}})
    many = fate.load_detector(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        many.open_stream((40, 50), 20)
    with pytest.warns(FateWarning, match="44×40"):
        many.open_stream((40, 44), 20)


def test_boxes_stay_on_a_sensor_whose_sides_the_divisor_does_not_divide() -> None:
    adaptation = adapt(small_detector(), Sensor(127, 131))
    assert adaptation.model.sensor == (64, 66)
    corner = np.array([[120, 120, 132, 128]], np.float32) / 2
    assert adaptation.boxes(corner).tolist() == [[120, 120, 131, 127]]
    assert adaptation.needed == 3
    edge = adaptation.merger()(Events([0, 1, 2], [130] * 3, [126] * 3, [1] * 3, (127, 131)))
    assert (edge.t_us.tolist(), edge.x.tolist(), edge.y.tolist()) == ([2], [65], [63])


@pytest.mark.parametrize("entry", real_recordings())
def test_every_real_recording_is_streamed_whatever_its_sensor(entry: dict[str, object]) -> None:
    detector = StreamingDetector(small_detector(sensor=(240, 304)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)
        options = {"columns": "txyp"} if str(entry["file"]).endswith(".npy") else {}
        with fate.open_recording(REAL / str(entry["file"]), **options) as recording:
            stop = min(recording.end_us, recording.start_us + 60_000)
            frames = list(detector.stream(recording, 100, threshold=0.01, end_us=stop))
            expected = len(recording.read(recording.start_us, frames[-1].window.end_us))
            height, width = recording.sensor
    assert sum(frame.num_events for frame in frames) == expected
    boxes = np.concatenate([frame.boxes for frame in frames])
    assert len(boxes)
    assert (boxes >= 0).all()
    assert (boxes <= np.array([width, height, width, height])).all()


# ---- track ids ------------------------------------------------------------------------------------------------------


def test_tracking_adds_ids_and_changes_nothing_else(detector: StreamingDetector, folder: Path) -> None:
    plain = detector.stream(folder / "drive.npz", 100, threshold=0.05, end_us=100_000)
    tracked = detector.stream(folder / "drive.npz", 100, threshold=0.05, end_us=100_000, track=True)
    seen: set[int] = set()
    for a, b in zip(plain, tracked, strict=True):
        assert np.array_equal(a.boxes, b.boxes)
        assert a.track_ids is None
        assert b.track_ids is not None
        assert len(set(b.track_ids)) == len(b)
        assert (b.track_ids >= 0).all()
        seen |= set(b.track_ids.tolist())
    assert 0 < len(seen) < tracked.counts.boxes


def test_an_id_survives_a_short_gap_and_a_weak_moment() -> None:
    ids = Tracker(LEAST_OVERLAP, UNSEEN_US, 0.4)
    box = np.array([[10, 10, 30, 40]], np.float64)
    found = []
    for number in range(20):
        gone, weak = number in (5, 6, 7), number in (10, 11)
        rows = slice(0, 0) if gone else slice(None)
        moved = box + number
        scores = np.array([0.25 if weak else 0.8])
        found += ids.step(20_000 * number, moved[rows], scores[rows], np.zeros(1, np.int64)[rows]).tolist()
    assert set(found) == {0}
    assert len(found) == 17


def test_an_object_that_was_hidden_for_less_than_half_a_second_keeps_its_id() -> None:
    ids = Tracker(LEAST_OVERLAP, UNSEEN_US, 0.4)
    sure, car = np.array([0.8]), np.zeros(1, np.int64)
    for number in range(10):
        assert ids.step(25_000 * number, np.array([[2.0 * number, 10, 40 + 2 * number, 30]]), sure, car) == [0]
    for number in range(10, 25):  # 400 ms behind another car
        ids.step(25_000 * number, np.zeros((0, 4)), sure[:0], car[:0])
    assert ids.step(625_000, np.array([[50.0, 10, 90, 30]]), sure, car) == [0]


@pytest.mark.slow
def test_three_cars_of_a_real_street_are_three_tracks_with_a_detr_head() -> None:
    clip = REAL / "aedat4" / "davis346_traffic.aedat4"
    if not clip.is_file():
        pytest.skip("the real recordings are not here")
    street = fate.load_detector("fate-e-tiny")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)
        frames = list(street.stream(clip, 40, track=True, threshold=0.5))
    tracks = np.concatenate([frame.track_ids for frame in frames if frame.track_ids is not None])
    lengths = np.unique(tracks, return_counts=True)[1]
    assert np.count_nonzero(lengths > 5) == 3  # false boxes make short ones
    assert lengths[lengths > 5].sum() >= 0.95 * len(tracks)
    assert len(tracks) > 100
    for frame in frames:
        assert most_overlap(frame) <= 0.45


def most_overlap(frame: StreamFrame) -> float:
    """The largest IoU of two boxes of a class; 0 if there are no two."""
    boxes, kinds = torch.from_numpy(np.ascontiguousarray(frame.boxes)), frame.class_ids
    pairs = np.triu(kinds[:, None] == kinds, 1)
    return float(iou(boxes[:, None], boxes[None]).numpy()[pairs].max(initial=0.0))


def every_query_twice(_: object, __: object, result: tuple[Outputs, object]) -> tuple[Outputs, object]:
    """Predictions of a head that repeats each object one pixel to the right."""
    outputs, state = result
    moved = outputs.boxes + torch.tensor([1.0, 0.0, 1.0, 0.0])
    boxes, logits = torch.cat([outputs.boxes, moved], 1), torch.cat([outputs.class_logits, outputs.class_logits], 1)
    return Outputs(boxes, logits, None), state


@pytest.mark.parametrize("how", ["stream", "open_stream", "live"])
def test_every_kind_of_stream_suppresses_duplicates_of_detr_heads_unless_told_otherwise(folder: Path, how: str) -> None:
    model = small_detector("fate-e-tiny", layers=1, queries=30, widths=(8, 16, 16, 16), hidden=32, feedforward=32)
    model.register_forward_hook(every_query_twice)
    detr = StreamingDetector(model)

    def frames(**options: float) -> list[StreamFrame]:
        given = {"hz": 50, "threshold": 0.01, **options}
        if how == "stream":
            return list(detr.stream(folder / "drive.npz", **given))
        if how == "open_stream":
            stream = detr.open_stream(SENSOR, **given)
            return [*stream.feed(drive(150_000)), *stream.close()]
        with detr.live(FileSource(folder / "drive.npz"), waiting=100, budget_ms=1e6, **given) as live:
            return list(live)

    assert max(most_overlap(frame) for frame in frames(max_overlap=1.0)) > 0.6
    suppressed = frames()
    assert any(len(frame) for frame in suppressed)
    assert max(most_overlap(frame) for frame in suppressed) <= 0.451  # boxes may be scaled back to the sensor


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan"), "much"])
def test_an_overlap_that_is_no_share_is_refused(detector: StreamingDetector, wrong: float) -> None:
    with pytest.raises(FateError, match=r"max_overlap=.*from 0 to 1"):
        detector.open_stream(SENSOR, max_overlap=wrong)


# ---- names and paths ------------------------------------------------------------------------------------------------


def test_a_path_and_a_bundled_name_give_a_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "WEIGHTS", tmp_path)
    fate.save_model(small_detector(), tmp_path / "fate-s-nano.safetensors")
    for named in ("fate-s-nano", tmp_path / "fate-s-nano.safetensors"):
        detector = fate.load_detector(named)
        assert (detector.name, detector.classes, detector.sensor) == ("fate-s-nano", ("car", "pedestrian"), SENSOR)
        assert len(detector.open_stream(SENSOR, 100, threshold=0.05).feed(drive(20_000))) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("fate-s", "there are fate-s-nano; train one"),
        ("fate-s-nanno", "did you mean 'fate-s-nano'"),
        ("nowhere/model.safetensors", "no such file"),
    ],
)
def test_a_name_without_weights_is_answered_with_those_there_are(
    given: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "WEIGHTS", tmp_path)
    (tmp_path / "fate-s-nano.safetensors").touch()
    with pytest.raises(FateError, match=said):
        fate.load_detector(given)


def test_what_is_a_models_name_and_what_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "WEIGHTS", tmp_path / "weights")
    (tmp_path / "weights").mkdir()
    fate.save_model(small_detector(), tmp_path / "weights" / "mine.safetensors")
    monkeypatch.chdir(tmp_path)
    assert [loading.means_a_model(text) for text in ("mine", "fate-s", "boxes", "mine.npz")] == [
        True,
        True,
        False,
        False,
    ]
    for folder in ("mine", "fate-s"):
        (tmp_path / folder).mkdir()
    # what is bundled goes first; a folder of predictions may be called as a model is that has no weights
    assert [loading.means_a_model(text) for text in ("mine", "fate-s", "./mine")] == [True, False, False]
    assert loading.load_trained("mine").classes == ("car", "pedestrian")


def test_a_detector_for_a_dataset_is_built_for_its_size_or_asks_for_a_smaller_one() -> None:
    detector = small_detector()
    assert fit_dataset(detector, Sensor(*SENSOR), "drives") == (detector, "")
    near = Sensor(SENSOR[0] + 6, SENSOR[1] + 10)
    fitted, note = fit_dataset(detector, near, "drives")
    assert fitted.sensor == near
    assert all(torch.equal(value, detector.state_dict()[name]) for name, value in fitted.state_dict().items())
    assert f"trained on a {Sensor(*SENSOR)} sensor and runs on one of {near}" in note
    assert not fit_dataset(detector, near, "drives", known=[near])[1]  # the training had this sensor too
    with pytest.raises(FateError, match="drives is of a .* write downscale: 3 into a YAML"):
        fit_dataset(detector, Sensor(3 * SENSOR[0], 3 * SENSOR[1]), "drives")
