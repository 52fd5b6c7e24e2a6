"""What a dataset is like: statistics, comparison with the public datasets, checks before training."""
