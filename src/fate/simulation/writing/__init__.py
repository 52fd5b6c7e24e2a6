"""Simulated datasets on disk: requests, recordings, manifest, previews."""
