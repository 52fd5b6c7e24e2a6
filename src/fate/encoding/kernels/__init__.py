"""Versions of Pillar Encoding, which all compute the same.

``reference``: Algorithm 1 of the paper. ``torch_kernels``: plain torch. ``cpu_kernels``: numba, with gradients.
``cpu_inference``: numba, faster, without gradients. ``triton_kernels``: GPU. ``inference.pillar_graph``: ONNX.
"""
