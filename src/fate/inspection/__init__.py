"""Statistics of a dataset, comparison with the public datasets, and checks before training."""
