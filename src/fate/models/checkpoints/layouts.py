"""Names of parameters in the public checkpoints and in ours: one table for each public layout.

A rule is a pattern and its replacement, as in ``re.sub``. Every rule whose pattern matches is applied, in the order of
the table. Tables have one entry for each part of our detector; its rules apply to names below the part's prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

#: (pattern, replacement) pairs.
Rules = tuple[tuple[str, str], ...]
Value = TypeVar("Value")


def rename(key: str, rules: Rules) -> str:
    """Apply the rules to one name."""
    for pattern, replacement in rules:
        key = re.sub(pattern, replacement, key)
    return key


def rename_entries(entries: Mapping[str, Value], rules: Rules, prefix: str = "") -> dict[str, Value]:
    """All entries below ``prefix`` (which is removed first), by their new names."""
    return {rename(key.removeprefix(prefix), rules): value for key, value in entries.items() if key.startswith(prefix)}


#: RVT and ssms_event_cameras (S5-ViT).
RVT: dict[str, Rules] = {
    # below mdl.backbone.
    "backbone": (
        (r"\.downsample_cf2cl\.", ".downsample."),
        (r"\.att_blocks\.0\.att_(window|grid)\.", r".\1."),
        (r"\.self_attn\.qkv\.", ".attention.qkv."),
        (r"\.self_attn\.proj\.", ".attention.out."),
        (r"\.ls1\.gamma$", ".attention_scale"),
        (r"\.ls2\.gamma$", ".mlp_scale"),
        (r"\.norm1\.", ".attention_norm."),
        (r"\.norm2\.", ".mlp_norm."),
        (r"\.mlp\.net\.0\.0\.", ".mlp.0."),
        (r"\.mlp\.net\.2\.", ".mlp.2."),
        (r"\.lstm\.conv1x1\.", ".memory.gates."),
        (r"\.s5_block\.s5\.seq\.Lambda$", ".memory.ssm.eigenvalues"),
        (r"\.s5_block\.s5\.seq\.B$", ".memory.ssm.input_matrix"),
        (r"\.s5_block\.s5\.seq\.C$", ".memory.ssm.output_matrix"),
        (r"\.s5_block\.s5\.seq\.D$", ".memory.ssm.feedthrough"),
        (r"\.s5_block\.s5\.seq\.log_step$", ".memory.ssm.log_step"),
        (r"\.s5_block\.attn_norm\.", ".memory.norm."),
        (r"\.s5_block\.ff_norm\.", ".memory.mlp_norm."),
        (r"\.s5_block\.ff_enc\.", ".memory.expand."),
        (r"\.s5_block\.ff_dec\.", ".memory.contract."),
    ),
    # below mdl.fpn.
    "neck": (
        (r"^lateral_conv0\.", "narrow_32."),
        (r"^C3_p4\.", "fuse_16."),
        (r"^reduce_conv1\.", "narrow_16."),
        (r"^C3_p3\.", "fuse_8."),
        (r"^bu_conv2\.", "halve_8."),
        (r"^C3_n3\.", "mix_16."),
        (r"^bu_conv1\.", "halve_16."),
        (r"^C3_n4\.", "mix_32."),
        (r"^((?:fuse|mix)_\d+)\.m\.(\d+)\.conv1\.", r"\1.bottlenecks.\2.0."),
        (r"^((?:fuse|mix)_\d+)\.m\.(\d+)\.conv2\.", r"\1.bottlenecks.\2.1."),
        (r"^((?:fuse|mix)_\d+)\.conv1\.", r"\1.narrow."),
        (r"^((?:fuse|mix)_\d+)\.conv2\.", r"\1.bypass."),
        (r"^((?:fuse|mix)_\d+)\.conv3\.", r"\1.merge."),
        (r"^(.+)\.bn\.", r"\1.norm."),
    ),
    # below mdl.yolox_head.
    "head": (
        (r"^cls_convs\.", "class_towers."),
        (r"^reg_convs\.", "box_towers."),
        (r"^cls_preds\.", "class_predictions."),
        (r"^reg_preds\.", "box_predictions."),
        (r"^obj_preds\.", "object_predictions."),
        (r"^(.+)\.bn\.", r"\1.norm."),
    ),
}

#: EvRT-DETR, a folder of files.
EVRT_DETR: dict[str, Rules] = {
    # below net_backbone.pth::_net.
    "backbone": (
        (r"^conv1\.conv1_1\.", "stem.0."),
        (r"^conv1\.conv1_2\.", "stem.1."),
        (r"^conv1\.conv1_3\.", "stem.2."),
        (r"^res_layers\.(\d)\.blocks\.", r"stages.\1."),
        (r"^(stages\.\d\.\d+)\.branch2a\.", r"\1.branch.0."),
        (r"^(stages\.\d\.\d+)\.branch2b\.", r"\1.branch.1."),
        (r"^(stages\.\d\.\d+)\.branch2c\.", r"\1.branch.2."),
        (
            r"^(stages\.\d\.\d+)\.short\.(conv\.)?(?=conv|norm)",
            r"\1.shortcut.",
        ),  # named twice where pooling comes first
    ),
    # below net_encoder.pth::
    "neck": (
        (r"^input_proj\.(\d)\.0\.", r"projections.\1.conv."),
        (r"^input_proj\.(\d)\.1\.", r"projections.\1.norm."),
        (r"^encoder\.0\.layers\.0\.self_attn\.in_proj_", "attention.query_key_value."),
        (r"^encoder\.0\.layers\.0\.self_attn\.out_proj\.", "attention.output."),
        (r"^encoder\.0\.layers\.0\.linear(\d)\.", r"attention.linear\1."),
        (r"^encoder\.0\.layers\.0\.norm(\d)\.", r"attention.norm\1."),
        (r"^lateral_convs\.", "laterals."),
        (r"^fpn_blocks\.", "top_down."),
        (r"^downsample_convs\.", "downsamples."),
        (r"^pan_blocks\.", "bottom_up."),
        (r"^(top_down|bottom_up)\.(\d)\.bottlenecks\.(\d)\.conv1\.", r"\1.\2.blocks.\3.kernel3."),
        (r"^(top_down|bottom_up)\.(\d)\.bottlenecks\.(\d)\.conv2\.", r"\1.\2.blocks.\3.kernel1."),
        (r"^(top_down|bottom_up)\.(\d)\.conv1\.", r"\1.\2.main."),
        (r"^(top_down|bottom_up)\.(\d)\.conv2\.", r"\1.\2.side."),
        (r"^(top_down|bottom_up)\.(\d)\.conv3\.", r"\1.\2.output."),
    ),
    # below net_decoder.pth::
    "head": (
        (r"^(enc_bbox_head|query_pos_head|dec_bbox_head\.\d+)\.layers\.0\.", r"\1.0."),
        (r"^(enc_bbox_head|query_pos_head|dec_bbox_head\.\d+)\.layers\.1\.", r"\1.2."),  # ReLUs stand between
        (r"^(enc_bbox_head|query_pos_head|dec_bbox_head\.\d+)\.layers\.2\.", r"\1.4."),
        (r"^input_proj\.", "projections."),
        (r"^enc_output\.", "cell_features."),
        (r"^enc_score_head\.", "cell_scores."),
        (r"^enc_bbox_head\.", "cell_boxes."),
        (r"^query_pos_head\.", "positions."),
        (r"^denoising_class_embed\.", "denoising_classes."),
        (r"^dec_score_head\.", "scores."),
        (r"^dec_bbox_head\.", "boxes."),
        (r"^decoder\.layers\.", "layers."),
        (r"^(layers\.\d+)\.self_attn\.in_proj_", r"\1.attention.query_key_value."),
        (r"^(layers\.\d+)\.self_attn\.out_proj\.", r"\1.attention.output."),
        (r"^(layers\.\d+)\.cross_attn\.sampling_offsets\.", r"\1.reading.offsets."),
        (r"^(layers\.\d+)\.cross_attn\.attention_weights\.", r"\1.reading.weights."),
        (r"^(layers\.\d+)\.cross_attn\.value_proj\.", r"\1.reading.values."),
        (r"^(layers\.\d+)\.cross_attn\.output_proj\.", r"\1.reading.output."),
        (r"^(layers\.\d+)\.norm1\.", r"\1.attention_norm."),
        (r"^(layers\.\d+)\.norm2\.", r"\1.reading_norm."),
        (r"^(layers\.\d+)\.norm3\.", r"\1.feedforward_norm."),
        (r"^(layers\.\d+)\.linear1\.", r"\1.feedforward.0."),
        (r"^(layers\.\d+)\.linear2\.", r"\1.feedforward.2."),
    ),
    # below net_temp_enc.pth::
    "memory": (
        (r"^layers\.(\d)\.layers\.0\.", r"cells.\1."),
        (r"^proj_layers\.", "projections."),
        (r"^(cells\.\d)\.cell_state_gate\.", r"\1.candidate."),
        (r"^(cells\.\d\.\w+)\.gate_to_input\.", r"\1.from_input."),
        (r"^(cells\.\d\.\w+)\.gate_to_hidden\.", r"\1.from_hidden."),
        (r"^(cells\.\d\.\w+)\.gate_to_cell$", r"\1.peephole"),
    ),
}
#: Entries of EvRT-DETR's encoder that are no weights: the position table of its one image size.
EVRT_DETR_IGNORED = r"^pos_embed\d$"

#: RT-DETR in transformers, before version 5 and since. Queries, keys and values, three matrices there, are one here:
#: their names end in #0, #1, #2, and they are concatenated along the first axis.
TRANSFORMERS: dict[str, Rules] = {
    # below model.backbone.model.
    "backbone": (
        (r"^embedder\.embedder\.", "stem."),
        (r"^encoder\.stages\.(\d)\.layers\.(\d+)\.layer\.", r"stages.\1.\2.branch."),
        (r"^encoder\.stages\.(\d)\.layers\.(\d+)\.shortcut\.(1\.)?", r"stages.\1.\2.shortcut."),
        (r"^(st.*)\.convolution\.", r"\1.conv."),
        (r"^(st.*)\.normalization\.", r"\1.norm."),
    ),
    # below model.
    "neck": (
        (r"^encoder_input_proj\.", "input_proj."),
        (r"^encoder\.(?:encoder|aifi)\.0\.layers\.0\.self_attn\.q_proj\.(.*)", r"attention.query_key_value.\1#0"),
        (r"^encoder\.(?:encoder|aifi)\.0\.layers\.0\.self_attn\.k_proj\.(.*)", r"attention.query_key_value.\1#1"),
        (r"^encoder\.(?:encoder|aifi)\.0\.layers\.0\.self_attn\.v_proj\.(.*)", r"attention.query_key_value.\1#2"),
        (r"^encoder\.(?:encoder|aifi)\.0\.layers\.0\.self_attn\.(?:out_proj|o_proj)\.", "attention.output."),
        (r"^encoder\.(?:encoder|aifi)\.0\.layers\.0\.self_attn_layer_norm\.", "attention.norm1."),
        (r"^encoder\.(?:encoder|aifi)\.0\.layers\.0\.(?:mlp\.)?fc(\d)\.", r"attention.linear\1."),
        (r"^encoder\.(?:encoder|aifi)\.0\.layers\.0\.final_layer_norm\.", "attention.norm2."),
        (r"^encoder\.", ""),
        *EVRT_DETR["neck"],
    ),
    # below model.
    "head": (
        (r"^decoder_input_proj\.(\d)\.0\.", r"projections.\1.conv."),
        (r"^decoder_input_proj\.(\d)\.1\.", r"projections.\1.norm."),
        (r"^decoder\.query_pos_head\.", "query_pos_head."),
        (r"^decoder\.class_embed\.", "dec_score_head."),
        (r"^decoder\.bbox_embed\.", "dec_bbox_head."),
        (r"^decoder\.(layers\.\d+)\.self_attn\.q_proj\.(.*)", r"\1.attention.query_key_value.\2#0"),
        (r"^decoder\.(layers\.\d+)\.self_attn\.k_proj\.(.*)", r"\1.attention.query_key_value.\2#1"),
        (r"^decoder\.(layers\.\d+)\.self_attn\.v_proj\.(.*)", r"\1.attention.query_key_value.\2#2"),
        (r"^decoder\.(layers\.\d+)\.self_attn\.o_proj\.", r"\1.attention.output."),
        (r"^decoder\.(layers\.\d+)\.encoder_attn\.", r"\1.cross_attn."),
        (r"^decoder\.(layers\.\d+)\.self_attn_layer_norm\.", r"\1.norm1."),
        (r"^decoder\.(layers\.\d+)\.encoder_attn_layer_norm\.", r"\1.norm2."),
        (r"^decoder\.(layers\.\d+)\.final_layer_norm\.", r"\1.norm3."),
        (r"^decoder\.(layers\.\d+)\.(?:mlp\.)?fc(\d)\.", r"\1.linear\2."),
        *EVRT_DETR["head"],
    ),
}
