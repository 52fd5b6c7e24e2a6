"""Detects objects in the packets of an event camera and publishes their boxes."""
