"""A camera through its driver, with a simulated device: speed, stalls, lost packets, reconnection, configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("neuromorphic_drivers")  # not for every system

import neuromorphic_drivers as drivers

from fate.boxes.detection_files import read_detections
from fate.cli.main import app
from fate.errors import FateError
from fate.events.events import Events
from fate.inference.sources import CameraSource, open_source
from fate.inference.stream import StreamingDetector
from fate.models.checkpoints import save_model
from tests.inference.simulated_camera import Bus, Camera, Clock, SimulatedDevice
from tests.inference.streams import small_detector

EVK4, DAVIS, DVX = (720, 1280), (260, 346), (480, 640)


def scene(length_us: int, sensor: tuple[int, int] = EVK4, per_s: int = 20_000, gap_us: int = 0) -> Events:
    """Events from time 0 on, all over the sensor; with a gap, none come in the middle for that time."""
    rng = np.random.default_rng(length_us)
    count = length_us * per_s // 1_000_000
    t = np.sort(rng.integers(0, length_us, count))
    t[t > length_us // 2] += gap_us
    x, y, p = (rng.integers(0, high, count) for high in (sensor[1], sensor[0], 2))
    return Events(t, x, y, p, sensor)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Any:
    """Plugs a camera in."""

    def put(camera: Camera) -> Camera:
        monkeypatch.setattr(drivers, "open", Bus(camera, clock).open)
        return camera

    return put


def joined(pieces: list[Events]) -> Events:
    return Events.concatenate(pieces)


def test_the_simulated_device_has_all_methods_of_the_drivers(plug_in: Any) -> None:
    device = drivers.prophesee_evk4.PropheseeEvk4DeviceOptional
    methods = [name for name, value in vars(device).items() if callable(value) and name != "__init__"]
    expected = {name for name in methods if not name.startswith("_") or name in ("__enter__", "__exit__", "__next__")}
    assert {"update_configuration", "biases_bounds", "overflow"} <= expected
    assert all(callable(getattr(SimulatedDevice, name, None)) for name in expected)


def test_a_camera_gives_its_events_at_the_speed_of_the_device(plug_in: Any, clock: Clock) -> None:
    events = scene(500_000)
    plug_in(Camera([events]))
    source = CameraSource(clock=clock)
    assert source.sensor == EVK4
    began, pieces = clock(), []
    for piece in source:
        assert piece.t_us[-1] <= 1e6 * (clock() - began)  # nothing comes before it has happened
        pieces.append(piece)
    assert joined(pieces) == events
    assert len(pieces) > 3
    assert source.counts == {}


def test_a_stall_of_the_camera_loses_nothing(plug_in: Any, clock: Clock) -> None:
    events = scene(400_000, gap_us=3_000_000)
    plug_in(Camera([events]))
    source = CameraSource(clock=clock)
    assert joined(list(source)) == events
    assert source.counts == {}


def test_a_reader_that_is_too_slow_loses_packets_and_all_are_counted(plug_in: Any, clock: Clock) -> None:
    events = scene(3_000_000)
    camera = plug_in(Camera([events], ring_length=40))
    source = CameraSource(clock=clock)
    found = 0
    for piece in source:
        found += len(piece)
        clock.wait(0.5)
    device = camera.opened[0]
    assert device.dropped > 0
    assert source.counts["packets dropped by the driver"] == device.dropped
    assert source.counts["overflows of the driver"] >= 1
    assert found + device.lost_events == len(events)


def test_a_camera_that_is_unplugged_is_opened_again_with_its_settings(plug_in: Any, clock: Clock) -> None:
    sessions = [scene(300_000), scene(200_000), scene(100_000)]
    camera = plug_in(Camera(sessions, away_s=1.0))
    source = CameraSource(biases={"diff_on": 40}, clock=clock)
    found = np.concatenate([piece.t_us for piece in source])
    assert np.array_equal(found, np.concatenate([events.t_us for events in sessions]))
    assert source.counts == {"reconnections of the camera": 2}
    assert [configuration.biases.diff_on for configuration in camera.configurations] == [40, 40, 40]
    assert all(device.is_closed for device in camera.opened)


def test_a_camera_that_does_not_return_is_an_error_with_its_cause(plug_in: Any, clock: Clock) -> None:
    plug_in(Camera([scene(100_000), scene(100_000)], away_s=1e9))
    source = CameraSource(reconnect_s=1.5, clock=clock)
    with pytest.raises(FateError, match=r"disconnected.*1.5 s.*cable"):
        list(source)


def test_another_camera_in_its_place_is_refused(plug_in: Any, clock: Clock) -> None:
    camera = plug_in(Camera([scene(50_000), scene(50_000, DAVIS)], away_s=0))
    pieces = iter(CameraSource(clock=clock))
    next(pieces)
    camera.model = drivers.Name.INIVATION_DAVIS346
    with pytest.raises(FateError, match="346×260.*1280×720"):
        list(pieces)


def test_a_live_run_survives_an_unplugged_camera_and_counts_everything(plug_in: Any, clock: Clock) -> None:
    sessions = [scene(300_000, DAVIS), scene(200_000, DAVIS)]
    plug_in(Camera(sessions, away_s=0.5, model=drivers.Name.INIVATION_DAVIS346))
    detector = StreamingDetector(small_detector())
    with pytest.warns(match="346×260"):
        live = detector.live(CameraSource(clock=clock), 20, budget_ms=1e6, waiting=1000, max_back_us=100_000)
    frames = list(live)
    assert live.ended == "the source ended"
    assert live.counts.restarts == 1
    assert live.counts.events + live.counts.late_events == sum(map(len, sessions))
    assert live.counts.late_events == 0
    assert len(frames) == live.counts.windows >= 10
    assert live.source_counts["reconnections of the camera"] == 1


def test_packets_that_are_not_in_order_are_refused_and_counted(plug_in: Any, clock: Clock) -> None:
    events = scene(100_000)
    plug_in(Camera([events], damage=lambda rows: rows[::-1]))
    source = CameraSource(clock=clock)
    assert {len(piece) for piece in source} == {0}
    assert source.counts["events in refused packets"] == len(events)


def test_without_a_camera_the_error_says_what_to_do(plug_in: Any) -> None:
    plug_in(Camera([]))
    with pytest.raises(FateError, match=r"no device found.*udev"):
        CameraSource()


# ---- biases and region ----------------------------------------------------------------------------------------------


def test_biases_change_and_others_stay_at_the_drivers_default(plug_in: Any) -> None:
    camera = plug_in(Camera([scene(1000, DAVIS)], model=drivers.Name.INIVATION_DAVIS346))
    open_source("camera", biases={"onbn": 200, "refrbp": 99})
    assert camera.configurations == [
        drivers.inivation_davis346.Configuration(biases=drivers.inivation_davis346.Biases(onbn=200, refrbp=99))
    ]


def test_switches_of_a_camera_take_0_and_1(plug_in: Any) -> None:
    camera = plug_in(Camera([scene(1000, DVX)], model=drivers.Name.INIVATION_DVXPLORER))
    camera.sessions *= 2
    CameraSource(biases={"log": 1})
    assert camera.configurations[0].biases.log is True
    with pytest.raises(FateError, match="log=2.*0 to 1"):
        CameraSource(biases={"log": 2})


@pytest.mark.parametrize(
    ("biases", "facts"),
    [
        ({"diff_onn": 4}, ("diff_onn", "Prophesee EVK4", "hpf", "diff_off", "did you mean 'diff_on'")),
        ({"diff_on": 999}, ("diff_on=999", "0 to 255", "Prophesee EVK4")),
    ],
)
def test_wrong_biases_are_refused_with_what_the_camera_takes(plug_in: Any, biases: Any, facts: tuple[str, ...]) -> None:
    camera = plug_in(Camera([scene(1000)]))
    with pytest.raises(FateError) as error:
        CameraSource(biases=biases)
    assert all(fact in str(error.value) for fact in facts)
    assert camera.opened[0].is_closed


def test_a_region_is_a_mask_of_rows_and_columns_or_a_rectangle(plug_in: Any) -> None:
    camera = plug_in(Camera([scene(1000)]))
    CameraSource(roi=(100, 50, 300, 90))
    given = camera.configurations[0]
    off_columns, off_rows = (
        np.unpackbits(np.array(mask, "<u8").view(np.uint8), bitorder="little")[:length].astype(bool)
        for mask, length in ((given.x_mask, 1280), (given.y_mask, 720))
    )
    on = drivers.RowColumnMask(width=1280, height=720, set=False)
    on.x_unpacked, on.y_unpacked = off_columns, off_rows
    expected = np.zeros(EVK4, bool)
    expected[50:90, 100:300] = True
    assert np.array_equal(on.pixels(), expected)  # the picture that the driver's package draws of a mask
    assert not given.mask_intersection_only
    davis = plug_in(Camera([scene(1000, DAVIS)], model=drivers.Name.INIVATION_DAVIS346))
    CameraSource(roi=(10, 20, 110, 70))
    region = davis.configurations[0].region_of_interest
    assert (region.left, region.top, region.width, region.height) == (10, 20, 100, 50)


def test_a_region_that_does_not_fit_or_that_the_driver_lacks_is_refused(plug_in: Any) -> None:
    plug_in(Camera([scene(1000)]))
    with pytest.raises(FateError, match="0,0,1281,720.*1280×720"):
        CameraSource(roi=(0, 0, 1281, 720))
    plug_in(Camera([scene(1000, DVX)], model=drivers.Name.INIVATION_DVXPLORER))
    with pytest.raises(FateError, match="DVXplorer.*roi:1,2,3,4"):
        CameraSource(roi=(1, 2, 3, 4))


def test_a_camera_that_is_unplugged_while_it_is_configured_is_tried_again(
    plug_in: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure, failures = SimulatedDevice.update_configuration, [RuntimeError("USB error: pipe")]
    camera = plug_in(Camera([scene(50_000), scene(60_000), scene(70_000)], away_s=0))
    source = CameraSource(biases={"diff": 3}, clock=clock)

    def fail_once(self: SimulatedDevice, configuration: Any) -> None:
        if failures:
            raise failures.pop()
        configure(self, configuration)

    monkeypatch.setattr(SimulatedDevice, "update_configuration", fail_once)
    assert sum(map(len, source)) == len(camera.sessions[0]) + len(camera.sessions[2])
    assert source.counts == {"reconnections of the camera": 1}


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_detects_from_a_camera_with_biases(plug_in: Any, tmp_path: Path) -> None:
    camera = plug_in(Camera([scene(500_000, DAVIS)], model=drivers.Name.INIVATION_DAVIS346))
    save_model(small_detector(), tmp_path / "nano.safetensors")
    words = ["detect", "camera", "--model", str(tmp_path / "nano.safetensors"), "--hz", "20", "--window", "50ms",
             "--bias", "onbn=77", "--camera-roi", "0,0,200,100", "--json", str(tmp_path / "a.json")]  # fmt: skip
    run = CliRunner().invoke(app, words, catch_exceptions=False)
    assert run.exit_code == 0
    assert camera.configurations[0].biases.onbn == 77
    summary = read_detections(tmp_path / "a.json").facts["summary"]
    assert summary["events"] + summary["dropped"]["events_in_dropped_windows"] == len(camera.sessions[0])


@pytest.mark.parametrize(
    "words", [["--bias", "diff=3"], ["--camera-roi", "0,0,2,2"], ["--bias", "diff=x"], ["--bias", "3"]]
)
def test_options_of_a_camera_are_refused_for_files_and_with_wrong_values(words: list[str]) -> None:
    source = "drive.raw" if words[1] in ("diff=3", "0,0,2,2") else "camera"
    assert CliRunner().invoke(app, ["detect", source, *words]).exit_code == 2
