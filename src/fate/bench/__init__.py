"""Benchmarks: one file per benchmark, each compared with a peer in the same run."""
