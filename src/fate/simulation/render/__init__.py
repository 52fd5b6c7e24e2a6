"""From a scene to the brightness of each pixel, and exact boxes."""
