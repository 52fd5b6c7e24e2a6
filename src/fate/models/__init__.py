"""The detectors: encoder, backbone with memory, neck and head, and how they join."""
