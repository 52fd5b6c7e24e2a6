"""Pillar Encoding, one function in four versions: the paper's text, torch segments, numba and Triton."""
