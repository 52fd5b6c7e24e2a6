"""Training: strategies, mean teacher, curriculum, the loop and its run directory."""
