"""The operations of ``reference.py`` as Triton kernels, which need Triton and a GPU (or Triton's interpreter)."""

from fate.models.fused.attention_gpu import after_attention, attention, normed_attention
from fate.models.fused.maps_gpu import conv, predict
from fate.models.fused.memory_gpu import conv_lstm, s5_block, s5_output, s5_update
from fate.models.fused.products_gpu import linear, normed_linear

__all__ = [
    "after_attention",
    "attention",
    "conv",
    "conv_lstm",
    "linear",
    "normed_attention",
    "normed_linear",
    "predict",
    "s5_block",
    "s5_output",
    "s5_update",
]
