"""FAT phase 1: a detector sweeps over dense times, its boxes become tracks, tracks become labels at every rate."""
