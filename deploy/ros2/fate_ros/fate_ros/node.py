"""The ROS 2 node: subscribes to packets of events and publishes detections."""

from __future__ import annotations

import importlib
import threading
from typing import Any

import rclpy
from event_camera_msgs.msg import EventPacket
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from vision_msgs.msg import Detection2DArray

from fate import FateError, load_detector
from fate_ros.messages import MESSAGE_TYPES
from fate_ros.pipeline import PARAMETERS, TopicSource, detect_packets, open_live


def message_classes() -> dict[str, Any]:
    """The classes of ROS of all messages that are made."""
    names = [name.split("/") for name in MESSAGE_TYPES]
    return {
        f"{package}/msg/{name}": getattr(importlib.import_module(f"{package}.msg"), name) for package, _, name in names
    }


class DetectorNode(Node):
    """Topics: ``events`` (event_camera_msgs/EventPacket) in, ``detections`` (vision_msgs/Detection2DArray) out."""

    def __init__(self) -> None:
        super().__init__("fate_detector")
        self.given = {name: self.declare_parameter(name, value).value for name, value in PARAMETERS.items()}
        self._detector = load_detector(self.given["model"], self.given["device"])
        self._source: TopicSource | None = None
        self._worker: threading.Thread | None = None
        self._boxes = self.create_publisher(Detection2DArray, "detections", 10)
        # cameras send without waiting; a packet that is lost is counted by its number
        quality = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=1000, reliability=ReliabilityPolicy.BEST_EFFORT)
        self.create_subscription(EventPacket, "events", self._receive, quality)
        self.get_logger().info(f"{self._detector} waits for packets")

    def _receive(self, message: Any) -> None:
        if self._source is not None:
            self._source.put(message)
            return
        self._source = TopicSource(message)
        self._worker = threading.Thread(target=self._detect, name="fate-detector", daemon=True)
        self._worker.start()

    def _detect(self) -> None:
        assert self._source is not None
        try:
            with open_live(self._source, self._detector, self.given) as live:
                detect_packets(live, self._source, message_classes(), self._boxes.publish)
        except FateError as error:
            self.get_logger().fatal(str(error))
            rclpy.shutdown()
            return
        self.get_logger().info(f"{live.ended}; {live.counts.to_dict()}; {live.source_counts}")

    def stop(self) -> None:
        """Detect the packets that wait, and end."""
        if self._source is not None and self._worker is not None:
            self._source.end()
            self._worker.join(5)


def main() -> None:
    """Run the node until Ctrl-C."""
    rclpy.init()
    try:
        node = DetectorNode()
    except FateError as error:
        raise SystemExit(f"error: {error}") from None
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        node.stop()
        node.destroy_node()
        rclpy.try_shutdown()
