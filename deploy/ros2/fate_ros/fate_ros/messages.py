"""Converts messages: ``event_camera_msgs/EventPacket`` to events, and frames to ``vision_msgs/Detection2DArray``.

Nothing here imports ROS. Messages are any objects with the fields of their types, so that the tests use those of the
package ``rosbags``; the classes of messages to make are given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fate import Events, FateError, FormatError, Sensor, StreamFrame
from fate.formats.decoder import Decoder
from fate.formats.ros.bags import DECODERS
from fate.formats.ros.messages import BasedDecoder

#: Messages that a frame is made of; :func:`make_detections` takes their classes by these names.
MESSAGE_TYPES = (
    "builtin_interfaces/msg/Time",
    "std_msgs/msg/Header",
    "geometry_msgs/msg/Point",
    "geometry_msgs/msg/Quaternion",
    "geometry_msgs/msg/Pose",
    "geometry_msgs/msg/PoseWithCovariance",
    "vision_msgs/msg/Point2D",
    "vision_msgs/msg/Pose2D",
    "vision_msgs/msg/BoundingBox2D",
    "vision_msgs/msg/ObjectHypothesis",
    "vision_msgs/msg/ObjectHypothesisWithPose",
    "vision_msgs/msg/Detection2D",
    "vision_msgs/msg/Detection2DArray",
)


class PacketDecoder:
    """Events of the packets of one camera, one after another; what cannot be decoded is counted."""

    def __init__(self) -> None:
        self.sensor: Sensor | None = None  #: of the first packet
        self.frame_id = ""  #: of the last packet
        self.counts: Counter[str] = Counter()
        self._decoder: Decoder | None = None
        self._encoding = ""
        self._next_seq: int | None = None
        self._clock = (0, 0)  # time of the first event of the last packet, µs of the camera, and its stamp, ns

    def __call__(self, message: Any) -> Events:
        """The events of the next packet; none if it is refused."""
        sensor = Sensor.of((message.height, message.width))
        if self._decoder is None:
            self._decoder = self._make_decoder(message.encoding, sensor)
            self._encoding, self.sensor = message.encoding, sensor
        if sensor != self.sensor or message.encoding != self._encoding:
            raise FateError(
                f"a packet of a {sensor} sensor in {message.encoding} followed those of a {self.sensor} one in"
                f" {self._encoding}; give each camera a topic and a node of its own"
            )
        if self._next_seq is not None and message.seq > self._next_seq:
            self.counts["lost packets"] += message.seq - self._next_seq
        self._next_seq = message.seq + 1
        if isinstance(self._decoder, BasedDecoder):
            self._decoder.start_message(message.time_base)
        try:
            events = self._decoder.feed(bytes(message.events))
        except FormatError:  # time went back; the next packet begins at a new time
            self.counts["refused packets"] += 1
            return Events.empty(sensor)
        self.frame_id = message.header.frame_id
        if len(events):
            stamp = message.header.stamp
            self._clock = int(events.t_us[0]), stamp.sec * 1_000_000_000 + stamp.nanosec
        return events

    def stamp_ns(self, t_us: int) -> int:
        """A time of the camera in ns of ROS: the stamp of a packet is the time of its first event."""
        first_us, stamp_ns = self._clock
        return max(0, stamp_ns + 1000 * (t_us - first_us))

    @staticmethod
    def _make_decoder(encoding: str, sensor: Sensor) -> Decoder:
        if encoding not in DECODERS:
            raise FateError(f"packets in {encoding!r} came; expected one of {', '.join(DECODERS)}")
        return DECODERS[encoding][0](sensor, out_of_bounds="drop")


def make_detections(frame: StreamFrame, stamp_ns: int, frame_id: str, types: Mapping[str, Any]) -> Any:
    """The message ``vision_msgs/Detection2DArray`` of a frame.

    Args:
        frame: the detections of one window; boxes are in pixels of the camera.
        stamp_ns: time of the window's end.
        frame_id: of the camera.
        types: the class of each of ``MESSAGE_TYPES``.
    """

    def make(name: str, **fields: Any) -> Any:
        return types[name](**fields)

    stamp = make("builtin_interfaces/msg/Time", sec=stamp_ns // 1_000_000_000, nanosec=stamp_ns % 1_000_000_000)
    header = make("std_msgs/msg/Header", stamp=stamp, frame_id=frame_id)
    point = make("geometry_msgs/msg/Point", x=0.0, y=0.0, z=0.0)
    turn = make("geometry_msgs/msg/Quaternion", x=0.0, y=0.0, z=0.0, w=1.0)
    nowhere = make(  # a box says nothing about the pose of its object
        "geometry_msgs/msg/PoseWithCovariance",
        pose=make("geometry_msgs/msg/Pose", position=point, orientation=turn),
        covariance=np.zeros(36),
    )
    detections = []
    tracks = [""] * len(frame) if frame.track_ids is None else map(str, frame.track_ids.tolist())
    columns = (frame.boxes.tolist(), frame.scores.tolist(), frame.class_ids.tolist(), tracks)
    for (x1, y1, x2, y2), score, class_id, track in zip(*columns, strict=True):
        kind = make("vision_msgs/msg/ObjectHypothesis", class_id=frame.classes[class_id], score=score)
        centre = make("vision_msgs/msg/Point2D", x=(x1 + x2) / 2, y=(y1 + y2) / 2)
        pose = make("vision_msgs/msg/Pose2D", position=centre, theta=0.0)
        box = make("vision_msgs/msg/BoundingBox2D", center=pose, size_x=x2 - x1, size_y=y2 - y1)
        result = make("vision_msgs/msg/ObjectHypothesisWithPose", hypothesis=kind, pose=nowhere)
        detections.append(make("vision_msgs/msg/Detection2D", header=header, results=[result], bbox=box, id=track))
    return make("vision_msgs/msg/Detection2DArray", header=header, detections=detections)
