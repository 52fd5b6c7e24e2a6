"""What ``deploy/`` holds: the ROS 2 package with messages of ``rosbags``, the compose file, and the sender of words."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import fate
from fate.cli.main import app
from fate.errors import FateError
from fate.events.events import Events
from fate.inference.sources import TcpSource
from fate.inference.stream import StreamingDetector
from tests.conftest import make_events
from tests.inference.streams import SENSOR, drive, evt3_words, small_detector

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
PACKAGE = DEPLOY / "ros2" / "fate_ros"
typesys = pytest.importorskip("rosbags.typesys")
sys.path.insert(0, str(PACKAGE))

from fate_ros.messages import MESSAGE_TYPES, PacketDecoder, make_detections  # noqa: E402
from fate_ros.pipeline import PARAMETERS, TopicSource, detect_packets, open_live  # noqa: E402

PACKET_TYPE = "event_camera_msgs/msg/EventPacket"
#: The definitions of vision_msgs 4 and event_camera_msgs, which rosbags does not bring.
DEFINITIONS = {
    PACKET_TYPE: "std_msgs/Header header\nuint32 height\nuint32 width\nuint64 seq\nuint64 time_base\nstring encoding\n"
    "bool is_bigendian\nuint8[] events",
    "vision_msgs/msg/Point2D": "float64 x\nfloat64 y",
    "vision_msgs/msg/Pose2D": "vision_msgs/Point2D position\nfloat64 theta",
    "vision_msgs/msg/BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y",
    "vision_msgs/msg/ObjectHypothesis": "string class_id\nfloat64 score",
    "vision_msgs/msg/ObjectHypothesisWithPose": "vision_msgs/ObjectHypothesis hypothesis\n"
    "geometry_msgs/PoseWithCovariance pose",
    "vision_msgs/msg/Detection2D": "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
    "vision_msgs/BoundingBox2D bbox\nstring id",
    "vision_msgs/msg/Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections",
}


@pytest.fixture(scope="module")
def store() -> Any:
    types = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    for name, text in DEFINITIONS.items():
        types.register(typesys.get_types_from_msg(text, name))
    return types


def packets(store: Any, events: Events, size: int = 600, encoding: str = "evt3", stamp_s: int = 7) -> list[Any]:
    """Packets as a driver sends them, cut anywhere between two words; each has the time of its first event as stamp."""
    words = evt3_words(events)
    decoder = fate.decoder_for("evt3", events.sensor)
    found = []
    for seq, first in enumerate(range(0, len(words), size)):
        piece = decoder.feed(words[first : first + size])
        t_us = int(piece.t_us[0]) if len(piece) else 0
        stamp = store.types["builtin_interfaces/msg/Time"](
            sec=stamp_s + t_us // 1_000_000, nanosec=t_us % 1_000_000 * 1000
        )
        found.append(
            store.types[PACKET_TYPE](
                header=store.types["std_msgs/msg/Header"](stamp=stamp, frame_id="camera"), height=events.sensor.height,
                width=events.sensor.width, seq=seq, time_base=0, encoding=encoding, is_bigendian=False,
                events=np.frombuffer(words[first : first + size], np.uint8),
            )
        )  # fmt: skip
    return found


# ---- the ROS 2 package ----------------------------------------------------------------------------------------------


def test_packets_become_the_events_that_they_were_made_of(store: Any) -> None:
    events = make_events(3000, tuple(SENSOR), start=5000)
    decode = PacketDecoder()
    assert Events.concatenate([decode(message) for message in packets(store, events)]) == events
    assert decode.sensor == SENSOR
    assert decode.frame_id == "camera"
    assert decode.stamp_ns(1_234_567) == 7_000_000_000 + 1_234_567_000
    assert not decode.counts


def test_lost_packets_are_counted_and_other_cameras_refused(store: Any) -> None:
    messages = packets(store, make_events(3000, tuple(SENSOR), start=5000), size=300)
    decode = PacketDecoder()
    for message in (messages[0], messages[1], messages[4], messages[6]):
        decode(message)
    assert decode.counts["lost packets"] == 3
    other = packets(store, make_events(10, (48, 64)))[0]
    with pytest.raises(FateError, match="64×48.*64×64.*topic"):
        decode(other)
    with pytest.raises(FateError, match="'jpeg'.*evt3"):
        PacketDecoder()(packets(store, make_events(10, tuple(SENSOR)), encoding="jpeg")[0])


def test_a_frame_becomes_a_message_that_ros_can_serialise(store: Any) -> None:
    detector = StreamingDetector(small_detector())
    frame = next(iter(detector.stream(drive(100_000), 20, threshold=0.05, track=True)))
    assert len(frame) > 1
    made = make_detections(frame, 1_500_000_042, "camera", {name: store.types[name] for name in MESSAGE_TYPES})
    name = "vision_msgs/msg/Detection2DArray"
    read = store.deserialize_cdr(store.serialize_cdr(made, name), name)
    assert (read.header.stamp.sec, read.header.stamp.nanosec, read.header.frame_id) == (1, 500_000_042, "camera")
    corners = [
        (box.center.position.x - box.size_x / 2, box.center.position.y - box.size_y / 2,
         box.center.position.x + box.size_x / 2, box.center.position.y + box.size_y / 2)
        for box in (detection.bbox for detection in read.detections)
    ]  # fmt: skip
    assert np.allclose(corners, frame.boxes, atol=1e-4)
    kinds = [detection.results[0].hypothesis for detection in read.detections]
    assert [kind.class_id for kind in kinds] == [frame.classes[index] for index in frame.class_ids]
    assert np.allclose([kind.score for kind in kinds], frame.scores)
    assert frame.track_ids is not None
    assert [detection.id for detection in read.detections] == [str(track) for track in frame.track_ids]


def test_packets_of_a_topic_become_the_detections_of_a_stream(store: Any) -> None:
    detector, events = StreamingDetector(small_detector()), drive(300_000)
    messages = packets(store, events)
    source = TopicSource(messages[0])
    for message in messages[1:]:
        source.put(message)
    source.end()
    parameters = {**PARAMETERS, "hz": 20.0, "threshold": 0.05, "window": "50ms", "filters": "refractory:1ms"}
    published: list[Any] = []
    with open_live(source, detector, parameters) as live:
        detect_packets(live, source, store.types, published.append)
    expected = list(detector.stream(events, 20, threshold=0.05, filters="refractory:1ms"))
    done = live.counts.windows
    assert done + live.counts.windows_dropped == len(expected)
    assert len(published) == done
    stamps = [message.header.stamp.sec * 10**9 + message.header.stamp.nanosec for message in published]
    assert set(stamps) <= {7 * 10**9 + 1000 * frame.t_us for frame in expected}


def test_wrong_parameters_are_refused(store: Any) -> None:
    source = TopicSource(packets(store, drive(10_000))[0])
    detector = StreamingDetector(small_detector())
    for wrong in ({"threshold": 1.5}, {"window": "50"}, {"filters": "blur:3"}, {"hz": 0.0}):
        with pytest.raises(FateError, match=str(next(iter(wrong.values())))):
            open_live(source, detector, {**PARAMETERS, **wrong})


def test_a_topic_that_is_too_fast_drops_the_oldest_packets(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fate_ros.pipeline.MOST_PACKETS", 4)
    messages = packets(store, drive(300_000), size=300)
    source = TopicSource(messages[0])
    for message in messages[1:8]:
        source.put(message)
    assert source.counts["packets dropped because the detector was busy"] == 3


def test_the_package_is_complete_and_its_readme_lists_every_parameter() -> None:
    manifest = ElementTree.parse(PACKAGE / "package.xml").getroot()
    assert manifest.findtext("name") == "fate_ros"
    assert manifest.findtext("export/build_type") == "ament_python"
    needed = {each.text for each in manifest.findall("exec_depend")}
    assert {name.split("/")[0] for name in (*MESSAGE_TYPES, PACKET_TYPE)} <= needed
    assert (PACKAGE / "resource" / "fate_ros").is_file()
    readme = (PACKAGE / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in readme for name in PARAMETERS)
    for file in PACKAGE.rglob("*.py"):
        compile(file.read_text(encoding="utf-8"), str(file), "exec")


# ---- the container --------------------------------------------------------------------------------------------------


def test_the_compose_file_runs_a_command_that_exists_in_an_image_that_is_built() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["detector"]
    assert (DEPLOY / service["build"]["context"] / "Dockerfile").is_file()
    command, *words = service["command"]
    assert all(isinstance(word, str) for word in service["command"])  # compose refuses numbers
    text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert all(word in text for word in words if word.startswith("--"))
    assert words[0].startswith("tcp:")
    assert service["network_mode"] == "host"  # the socket is bound to 127.0.0.1


def test_words_of_a_file_reach_the_detector_over_tcp(tmp_path: Path) -> None:
    events = make_events(5000, tuple(SENSOR), start=5000)
    fate.write_events(tmp_path / "drive.raw", events)
    source = TcpSource(0, SENSOR)
    sent: list[Any] = []
    program = [
        sys.executable,
        str(DEPLOY / "camera_to_tcp.py"),
        str(tmp_path / "drive.raw"),
        "--port",
        str(source.port),
    ]
    thread = threading.Thread(target=lambda: sent.append(subprocess.run(program, check=False, timeout=60)))
    thread.start()
    found = Events.concatenate([Events.empty(SENSOR), *source])
    thread.join(60)
    assert sent[0].returncode == 0
    assert found == events
