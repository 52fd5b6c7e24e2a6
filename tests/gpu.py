"""Where the tests of kernels run: on a GPU, or on a CPU where Triton is told to interpret (``TRITON_INTERPRET=1``).

The interpreter of Triton 3.6 needs numpy below 2.4.
"""

from __future__ import annotations

import os

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
INTERPRETED = not HAS_GPU and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="torch sees no CUDA GPU on this machine")
needs_triton = pytest.mark.skipif(
    not HAS_GPU and not INTERPRETED, reason="torch sees no CUDA GPU on this machine, and TRITON_INTERPRET is not set"
)
