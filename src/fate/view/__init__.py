"""Pictures of events and boxes, videos, and report pages."""

from fate.view.drawing import draw_boxes, draw_events, enlarge, enlargement, side_by_side
from fate.view.page import Page
from fate.view.video import VideoWriter

__all__ = ["Page", "VideoWriter", "draw_boxes", "draw_events", "enlarge", "enlargement", "side_by_side"]
