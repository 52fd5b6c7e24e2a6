"""Events from video: frames as linear light, the light between two frames, pixels, and the boxes of tracks."""
