"""Events, windows and labels: small value types whose invariants are checked when they are made."""

from fate.events.events import Events, Sensor
from fate.events.label_files import read_labels, write_labels
from fate.events.labels import Labels, LabelSource
from fate.events.window import Window, window_us

__all__ = ["Events", "LabelSource", "Labels", "Sensor", "Window", "read_labels", "window_us", "write_labels"]
