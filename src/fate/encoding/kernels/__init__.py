"""Pillar Encoding, one function in several versions.

``reference``: the text of the paper. ``torch_kernels``: plain torch. ``cpu_kernels``: numba, with gradients.
``cpu_inference``: numba, without gradients and faster. ``triton_kernels``: GPU. ``inference.pillar_graph``: ONNX.
"""
