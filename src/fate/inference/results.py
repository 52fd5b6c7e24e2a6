"""What detection in a recording returns: its frames, and all boxes as tables of other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fate.boxes.detection_files import CSV_COLUMNS, DetectionLog
from fate.boxes.detections import class_name
from fate.boxes.labels import Labels
from fate.errors import import_optional
from fate.inference.stream_types import StreamFrame


@dataclass(frozen=True)
class DetectionResult:
    """The frames of a recording, one per window; ``len``, ``for`` and ``result[index]`` give them."""

    log: DetectionLog  #: the frames, and how they were made: recording, sensor, classes, rate
    frames: list[StreamFrame]  #: in order of time

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[StreamFrame]:
        return iter(self.frames)

    def __getitem__(self, index: int) -> StreamFrame:
        return self.frames[index]

    def __repr__(self) -> str:
        boxes = sum(len(frame) for frame in self.frames)
        return f"{type(self).__name__}({self.log.recording!r}, {len(self)} frames at {self.log.hz:g} Hz, {boxes} boxes)"

    def labels(self) -> Labels:
        """Return all boxes as one table; the time of every frame is labelled, including frames without boxes."""
        return self.log.labels()

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each box. Needs ``pip install pandas``.

        Its columns are those of ``fate detect --csv``: ``t_us`` (end of the window, µs), ``x1``, ``y1``, ``x2``, ``y2``
        (pixels of the sensor), ``class`` (name), ``score`` and ``track`` (-1 for a box without a track).
        """
        pandas = import_optional("pandas", "to_pandas")
        table = self.labels()
        names = [class_name(int(each), self.log.classes) for each in table.class_id]
        columns = (table.t_us, *table.boxes.T, names, table.score, table.track_id)
        return pandas.DataFrame(dict(zip(CSV_COLUMNS, columns, strict=True)))

    def to_supervision(self) -> list[Any]:
        """Return one ``supervision.Detections`` per frame, in the same order. Needs ``pip install supervision``.

        ``data["class_name"]`` has the names of the classes; ``tracker_id`` is None unless objects were tracked.
        """
        supervision = import_optional("supervision", "to_supervision")
        classes = self.log.classes
        return [
            supervision.Detections(
                xyxy=np.asarray(frame.boxes, np.float32).reshape(-1, 4),
                confidence=np.asarray(frame.scores, np.float32),
                class_id=np.asarray(frame.class_ids, np.int64),
                tracker_id=None if frame.track_ids is None else np.asarray(frame.track_ids, np.int64),
                data={"class_name": np.array([class_name(int(each), classes) for each in frame.class_ids], str)},
                metadata={"t_us": frame.t_us},
            )
            for frame in self.frames
        ]
