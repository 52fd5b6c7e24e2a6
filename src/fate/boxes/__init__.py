"""Boxes: labels, predictions and detections as one table, their files, overlap and tracking."""
