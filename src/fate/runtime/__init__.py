"""Detectors at work: how fast they are, and how they leave the house as graphs for other runtimes."""
