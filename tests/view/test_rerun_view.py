"""The rerun viewer: without it a sentence, with it a file that holds every event and box."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from fate import FateError
from fate.errors import MissingDependencyError
from fate.view.rerun_view import TELEMETRY, Shown, show_recording
from tests.view.recorded import drive, frame, steady

RECORDING = steady(0.3)
FRAMES = drive(RECORDING, hz=100)
needs_rerun = pytest.mark.skipif(
    importlib.util.find_spec("rerun") is None, reason="needs rerun-sdk, the extra 'rerun'; it is not installed"
)


class Calls:
    """Stands in for the SDK: keeps what is logged, so that the numbers can be checked without the viewer."""

    def __init__(self) -> None:
        self.logged: list[tuple[float, str, object]] = []
        self.saved: Path | None = None
        self.spawned = False
        self.now = 0.0
        self.ViewCoordinates = self

    RDF = "RDF"
    VisibleTimeRange = AnnotationContext = Points3D = Boxes2D = LineStrips3D = SegmentationImage = SeriesLines = (
        Scalars
    ) = staticmethod(lambda *values, **named: (values, named))

    class TimeRangeBoundary:
        @staticmethod
        def cursor_relative(*, seconds: float) -> float:
            return seconds

    def RecordingStream(self, name: str) -> Calls:
        return self

    def save(self, path: Path, default_blueprint: object) -> None:
        self.saved = path
        path.write_bytes(b"events")

    def spawn(self, default_blueprint: object) -> None:
        self.spawned = True

    def set_time(self, timeline: str, *, duration: float) -> None:
        self.now = duration

    def log(self, path: str, content: object, static: bool = False) -> None:
        self.logged.append((self.now, path, content))

    def flush(self) -> None:
        return

    disconnect = flush

    def at(self, path: str) -> list[tuple[float, tuple[object, ...], dict[str, object]]]:
        return [(time, *content) for time, each, content in self.logged if each == path]  # type: ignore[misc]


class Views:
    """Stands in for the SDK's module of layouts."""

    def __getattr__(self, name: str) -> object:
        return lambda *parts, **named: (name, parts, named)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made = Calls()
    modules = {"rerun": made, "rerun.blueprint": Views()}
    monkeypatch.setattr("fate.view.rerun_view.import_module", modules.__getitem__)
    return made


def test_without_the_package_the_pip_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(MissingDependencyError, match="pip install rerun-sdk"):
        show_recording(RECORDING)
    assert "rerun analytics disable" in TELEMETRY


def test_every_event_is_a_point_at_its_place_and_time(calls: Calls) -> None:
    shown = show_recording(RECORDING, FRAMES)
    assert calls.spawned
    points = np.concatenate([np.asarray(values[0]) for _, values, _ in calls.at("cloud/events")])
    events = RECORDING.events
    assert shown == Shown(len(events), 0, len(FRAMES), sum(len(each.boxes) for each in FRAMES))
    assert np.array_equal(points[:, 0], events.x)
    assert np.array_equal(points[:, 1], events.y)
    assert np.allclose(points[:, 2], (events.t_us - RECORDING.start_us) * 1e-6 * 2 * 64, rtol=1e-5)


def test_a_cloud_that_is_too_large_is_thinned_and_counted_while_rates_stay_whole(calls: Calls) -> None:
    shown = show_recording(RECORDING, max_events=1000, step_us=10_000)
    assert shown.events <= 1000
    assert shown.events + shown.events_left_out == len(RECORDING.events)
    rates = [values[0][0] for _, values, _ in calls.at("rate/events")]  # type: ignore[index]
    assert sum(rates) * 0.01 == pytest.approx(len(RECORDING.events), rel=0.01)


def test_boxes_carry_class_track_and_score_and_none_clears_them(calls: Calls) -> None:
    start = RECORDING.start_us
    frames = [
        frame(start, [[1, 2, 5, 8], [3, 3, 9, 9]], class_ids=[1, 0], scores=[0.75, 0.2], tracks=[4, -1]),
        frame(start + 100_000, []),
    ]
    show_recording(RECORDING, frames, classes=["car", "bus"], threshold=0.5)
    (first, _, boxes), (second, _, cleared) = calls.at("picture/boxes")
    assert (first, second) == (0, pytest.approx(0.1))
    assert boxes["labels"] == ["#4 bus 0.75"]
    assert np.asarray(boxes["mins"]).tolist() == [[1, 2]]
    assert np.asarray(boxes["sizes"]).tolist() == [[4, 6]]
    assert len(np.asarray(cleared["mins"])) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"save": "view.mp4"}, r"end in \.rrd"),
        ({"save": "no/such/folder/view.rrd"}, "does not exist"),
        ({"start_us": 5, "end_us": 5}, "end after it starts"),
        ({"step_us": 0}, "at least 1"),
    ],
)
def test_impossible_wishes_are_refused_in_a_sentence(calls: Calls, options: dict[str, object], words: str) -> None:
    with pytest.raises(FateError, match=words):
        show_recording(RECORDING, **options)  # type: ignore[arg-type]


def test_a_file_is_written_whole_or_not_at_all(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    show_recording(RECORDING, save=tmp_path / "view.rrd")
    assert [each.name for each in tmp_path.iterdir()] == ["view.rrd"]

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calls, "log", fail)
    with pytest.raises(KeyboardInterrupt):
        show_recording(RECORDING, save=tmp_path / "other.rrd")
    assert [each.name for each in tmp_path.iterdir()] == ["view.rrd"]


@needs_rerun
def test_the_sdk_takes_it_and_writes_a_file(tmp_path: Path) -> None:
    shown = show_recording(RECORDING, FRAMES, classes=["car", "pedestrian"], save=tmp_path / "view.rrd")
    assert shown.events == len(RECORDING.events)
    content = (tmp_path / "view.rrd").read_bytes()
    assert content.startswith(b"RRF")
    for path in (b"cloud/events", b"picture/boxes", b"rate/events", b"pedestrian"):
        assert path in content
