"""Readers and writers of event files.

``opening.py`` finds the format, ``recording.py`` reads by time, ``saving.py`` writes; one file per format family holds
what is particular to it.
"""
