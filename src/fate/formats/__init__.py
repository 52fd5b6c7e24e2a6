"""Readers and writers of event files.

``opening.py`` finds the format, ``recording.py`` reads by time, ``saving.py`` writes; one file per format family holds
what is particular to it.
"""

from fate.formats.converting import convert
from fate.formats.opening import decoder_for, open_recording
from fate.formats.recording import Recording
from fate.formats.saving import open_writer, write_events
from fate.formats.summary import info

__all__ = ["Recording", "convert", "decoder_for", "info", "open_recording", "open_writer", "write_events"]
