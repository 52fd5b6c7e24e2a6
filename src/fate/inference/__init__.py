"""From recordings to detections: one window after another, live sources, export."""
