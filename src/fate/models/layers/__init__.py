"""Building blocks that several detectors share."""
