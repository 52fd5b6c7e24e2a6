"""Self-attention of tokens that have a place: where they are counts for who looks at whom, not for what is seen.

RT-DETR uses it twice: among the cells of its coarsest map (``necks.hybrid_encoder``), and among the queries of its
decoder (``heads.rtdetr``).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError


class PlacedAttention(nn.Module):
    """Tokens [N, L, C] attend to one another."""

    def __init__(self, width: int, heads: int) -> None:
        """Args:
        width: C.
        heads: of the attention.
        """
        super().__init__()
        if width % heads:
            raise FateError(f"width {width} was given with {heads} heads; expected a multiple of the heads")
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.query_key_value.weight)  # all three as one matrix, like nn.MultiheadAttention
        nn.init.zeros_(self.query_key_value.bias)
        nn.init.zeros_(self.output.bias)

    def forward(self, tokens: Tensor, positions: Tensor, visible: Tensor | None = None) -> Tensor:
        """[N, L, C] what each token gathers.

        Args:
            tokens: [N, L, C]; N may be 0.
            positions: [N, L, C] or [L, C], added to what queries and keys are made of.
            visible: [L, L] whether the token of the row may look at that of the column; None: all at all.
        """
        width = tokens.shape[2]
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        placed = functional.linear(tokens + positions, weight[: 2 * width], bias[: 2 * width])
        value = functional.linear(tokens, weight[2 * width :], bias[2 * width :])
        query, key, value = (
            part.view(*part.shape[:2], self.heads, width // self.heads).transpose(1, 2)
            for part in (*placed.chunk(2, dim=2), value)
        )
        seen = value  # right for no windows, which the kernels of a GPU do not take
        if len(tokens):
            seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        result: Tensor = self.output(seen.transpose(1, 2).flatten(2))
        return result
