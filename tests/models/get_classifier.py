"""The public classifier of GET, made of the backbone's blocks, to compare them with the public code."""

from __future__ import annotations

from torch import Tensor, nn

from fate.models.backbones.get import GET
from fate.models.checkpoints.importing import Rules

#: Names in the files of the public classifier and here.
RULES: Rules = (
    (r"^channel_embed\.", "embedding."),
    (r"^head\.", "classes."),
    (r"^layers\.(\d+)\.downsample\.channelexpand\.", r"aggregations.\1."),
    (r"^layers\.", "stages."),
    (r"\.attn_spatial\.", ".window_attention."),
    (r"\.attn_temporal\.", ".group_attention."),
    (r"\.logit_scale$", ".log_scale"),
    (r"\.([qv])_i_bias$", r".\1_bias"),
    (r"\.(qkv|proj|cpb_mlp)_i\.", r".\1."),
    (r"\.proj\.", ".projection."),
    (r"\.cpb_mlp\.0\.", ".position_bias.hidden."),
    (r"\.cpb_mlp\.2\.", ".position_bias.heads."),
    (r"\.norm1\.", ".window_norm."),
    (r"\.norm2\.", ".group_norm."),
    (r"\.norm3\.", ".mlp_norm."),
    (r"\.fc1\.", ".widen."),
    (r"\.fc2\.", ".narrow."),
)
#: Substrings of names in GET's files that hold no learned value; these tables are computed here.
IGNORED = ("relative_coords_table", "relative_position_index")


class GetClassifier(nn.Module):
    """Token maps [N, 768 or 1536, H, W] (24 or 48 groups of tokens) to class logits [N, classes]."""

    def __init__(self, in_channels: int, classes: int, groups: int = 12) -> None:
        super().__init__()
        backbone = GET(in_channels, 1, channels=48, groups=groups, depths=(2, 2, 8, 1))
        self.stages, self.aggregations = backbone.stages[:3], backbone.aggregations[:2]
        self.embedding = backbone.embedding
        self.norm = nn.LayerNorm(192, eps=1e-6)
        self.classes = nn.Linear(192, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.stages[0](self.embedding(images))
        for stage, aggregation in zip(self.stages[1:], self.aggregations, strict=True):
            tokens = stage(aggregation(tokens))
        logits: Tensor = self.classes(self.norm(tokens).mean(dim=(1, 2)))
        return logits
