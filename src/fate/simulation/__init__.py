"""A driving scene seen by an event camera: labelled recordings with exact boxes at any time.

``art/`` draws a street from a seed, ``render/`` turns it into light and boxes (``scene.py`` is the entry point),
``camera/`` turns light into events (``recorder.py``), and ``writing/`` writes recordings and their manifest.
``workflows/simulate.py`` makes whole datasets.
"""
