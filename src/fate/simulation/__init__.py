"""A driving scene seen by an event camera: labelled recordings with exact boxes at any time.

``camera.py`` is the pixel (parameters and the readable model), ``noise.py`` what a sensor adds to the signal; the
scene, its renderer and the dataset writer stand beside them.
"""
