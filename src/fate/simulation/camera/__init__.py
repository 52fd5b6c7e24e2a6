"""From brightness to events: the pixel model, its noise, recording on CPU and GPU."""
