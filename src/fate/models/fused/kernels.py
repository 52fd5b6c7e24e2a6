"""The operations of ``reference.py`` as Triton kernels, which need Triton and a GPU (or Triton's interpreter)."""

from fate.models.fused.attention_gpu import after_attention, attention, normed_attention
from fate.models.fused.cells_gpu import best_cells, score_cells
from fate.models.fused.decoder_gpu import predict_queries, read_maps, refine_boxes, token_attention
from fate.models.fused.history_gpu import complete_images
from fate.models.fused.maps_gpu import conv, conv_relu, depthwise, predict, separable_block
from fate.models.fused.memory_gpu import conv_lstm, peephole_lstm, s5_block, s5_output, s5_update
from fate.models.fused.products_gpu import linear, normed_linear

__all__ = [
    "after_attention",
    "attention",
    "best_cells",
    "complete_images",
    "conv",
    "conv_lstm",
    "conv_relu",
    "depthwise",
    "linear",
    "normed_attention",
    "normed_linear",
    "peephole_lstm",
    "predict",
    "predict_queries",
    "read_maps",
    "refine_boxes",
    "s5_block",
    "s5_output",
    "s5_update",
    "score_cells",
    "separable_block",
    "token_attention",
]
