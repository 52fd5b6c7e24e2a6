"""Pictures of events and boxes, videos, report pages, and the 3-D viewer."""

from fate.boxes.detections import DetectionFrame, frames_from_labels
from fate.boxes.drawing import PALETTES, Palette, draw_boxes, draw_events, enlarge, enlargement, side_by_side
from fate.callable_package import make_callable
from fate.view.page import render_page, write_page
from fate.view.rendering import EventSurface, VideoClock, render_comparison, render_video
from fate.view.report import measure_event_rate, write_report
from fate.view.rerun_view import show_recording
from fate.view.video import VideoWriter

__all__ = [
    "PALETTES",
    "DetectionFrame",
    "EventSurface",
    "Palette",
    "VideoClock",
    "VideoWriter",
    "draw_boxes",
    "draw_events",
    "enlarge",
    "enlargement",
    "frames_from_labels",
    "measure_event_rate",
    "render_comparison",
    "render_page",
    "render_video",
    "show_recording",
    "side_by_side",
    "write_page",
    "write_report",
]

make_callable(__name__, "fate.view.rerun_view:show_recording")
