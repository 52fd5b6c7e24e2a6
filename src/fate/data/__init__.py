"""Datasets: where their recordings and labels lie, and what they are like."""

from fate.data.inspection import Inspection, inspect
from fate.data.layout import Entry, Layout, find_recordings

__all__ = ["Entry", "Inspection", "Layout", "find_recordings", "inspect"]
