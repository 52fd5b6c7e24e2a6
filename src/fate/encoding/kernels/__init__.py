"""Pillar Encoding, one function in four versions: reference, plain torch, numba (CPU) and Triton (GPU)."""
