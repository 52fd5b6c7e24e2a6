"""From packets to detections without ROS: the node gives messages and takes messages."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fate import Events, FateError, StreamingDetector
from fate.inference.live import LiveStream
from fate.inference.sources import LiveSource
from fate.inference.timing import choose_timing
from fate.quantities import parse_duration
from fate_ros.messages import PacketDecoder, make_detections

#: The parameters of the node.
PARAMETERS: dict[str, Any] = {
    "model": "fate-s-nano",  # a bundled name, or a .safetensors file
    "device": "cpu",
    "hz": 50.0,  # detections per second
    "threshold": -1.0,  # lowest score of a box; below 0 for the default of the weights
    "window": "",  # length of a window, such as 50ms; empty for the default of the weights
    "track": False,  # whether each object has an id that it keeps
    "filters": "",  # events to drop first, separated by spaces: hot-pixels background:5ms
}
#: Packets that may wait for the decoder; beyond that the oldest is dropped.
MOST_PACKETS = 1000


class TopicSource(LiveSource):
    """A live source that is given the packets of a topic."""

    def __init__(self, first: Any) -> None:
        """Take the first packet, which gives the size of the sensor."""
        self.packets = PacketDecoder()
        self._events = [self.packets(first)]
        self._waiting: queue.Queue[Any] = queue.Queue(MOST_PACKETS)
        super().__init__(self._events[0].sensor)

    @property
    def counts(self) -> dict[str, int]:
        """Packets that were lost on the way, refused or dropped."""
        return dict(self._counts + self.packets.counts)

    def put(self, message: Any) -> None:
        """Give the next packet; never waits."""
        while True:
            try:
                return self._waiting.put_nowait(message)
            except queue.Full:
                try:
                    self._waiting.get_nowait()
                    self._counts["packets dropped because the detector was busy"] += 1
                except queue.Empty:
                    continue

    def __iter__(self) -> Iterator[Events]:
        yield from self._events
        while not self._closed.is_set():
            try:
                message = self._waiting.get(timeout=0.1)
            except queue.Empty:
                continue
            if message is None:
                return
            yield self.packets(message)

    def end(self) -> None:
        """End after the packets that wait."""
        self.put(None)


def open_live(source: TopicSource, detector: StreamingDetector, parameters: Mapping[str, Any]) -> LiveStream:
    """The live stream of a topic, with the parameters of the node."""
    window, threshold = parameters["window"], parameters["threshold"]
    if threshold > 1:
        raise FateError(f"the parameter threshold is {threshold}; expected a score from 0 to 1, or -1 for the default")
    given_us = parse_duration(window) if window else None
    timing = choose_timing(detector, source.sensor, parameters["hz"], given_us, True)
    return detector.live(
        source, timing.hz, window_us=timing.window_us, threshold=None if threshold < 0 else threshold,
        track=parameters["track"], filters=parameters["filters"].split(),
    )  # fmt: skip


def detect_packets(
    live: LiveStream, source: TopicSource, types: Mapping[str, Any], publish: Callable[[Any], Any]
) -> None:
    """Publish the detections of every window until the source ends; ``types`` are the classes of messages to make."""
    for frame in live:
        publish(make_detections(frame, source.packets.stamp_ns(frame.t_us), source.packets.frame_id, types))
