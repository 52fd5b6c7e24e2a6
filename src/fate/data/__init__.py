"""Datasets: opening them in place, clips, batches and augmentation."""
