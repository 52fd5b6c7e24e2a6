"""Backbone and hybrid encoder against the RT-DETR of ``transformers`` under the same weights, on well-scaled numbers.

``transformers`` counts the positions of AIFI along the rows, the public EvRT-DETR down the columns: they agree where a
map is square, and there they are compared. Other maps: test_hybrid_encoder.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import RTDetrConfig, RTDetrResNetConfig
from transformers.models.rt_detr.modeling_rt_detr import RTDetrHybridEncoder
from transformers.models.rt_detr.modeling_rt_detr_resnet import RTDetrResNetBackbone

from fate.models.backbones.presnet import BLOCKS, PResNet
from fate.models.checkpoints.importing import TRANSFORMERS
from fate.models.necks.hybrid_encoder import HybridEncoder
from tests.models.conftest import rename_entries


def well_scaled(module: nn.Module) -> nn.Module:
    """In double precision and evaluation, every parameter drawn so that numbers keep their size from layer to layer."""
    module.double().eval()
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if name.endswith("running_var"):
                value.uniform_(0.5, 2.0)
            elif value.is_floating_point():
                value.normal_(0.0, 0.2 if value.ndim == 1 else (2.0 / value[0].numel()) ** 0.5)
                if name.endswith("weight") and value.ndim == 1:
                    value.add_(0.8)
    return module


def joined(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the numbered parts of a matrix put together."""
    whole = {name: value for name, value in weights.items() if "#" not in name}
    for name in {name.split("#")[0] for name in weights if "#" in name}:
        whole[name] = torch.cat([weights[f"{name}#{part}"] for part in range(3)])
    return whole


def agree(ours: list[Tensor], theirs: list[Tensor], atol: float) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert other.std() > 0.01  # the numbers have not died on the way
        torch.testing.assert_close(mine, other, rtol=0, atol=atol)


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize("size", [(64, 96), (70, 50)])
def test_backbone_computes_what_the_backbone_of_transformers_does(depth: int, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    widths, bottleneck = (8, 12, 16, 24), depth == 50
    config = RTDetrResNetConfig(
        num_channels=5,
        embedding_size=widths[0],
        hidden_sizes=[4 * width if bottleneck else width for width in widths],
        depths=list(BLOCKS[depth]),
        layer_type="bottleneck" if bottleneck else "basic",
        out_indices=[2, 3, 4],
    )
    theirs = well_scaled(RTDetrResNetBackbone(config))
    ours = PResNet(5, depth, widths=widths).double().eval()
    ours.load_state_dict(rename_entries(theirs.state_dict(), TRANSFORMERS["backbone"]))
    images = torch.randn(2, 5, *size, dtype=torch.float64)
    with torch.no_grad():
        agree(ours(images)[0], list(theirs(images).feature_maps), atol=1e-10)


@pytest.mark.parametrize("expansion", [1.0, 0.5])
def test_hybrid_encoder_computes_what_the_one_of_transformers_does(expansion: float) -> None:
    torch.manual_seed(0)
    channels, width = (6, 10, 14), 32
    config = RTDetrConfig(
        encoder_in_channels=list(channels),
        encoder_hidden_dim=width,
        encoder_attention_heads=4,
        encoder_ffn_dim=48,
        hidden_expansion=expansion,
    )
    projections = nn.ModuleList(
        nn.Sequential(nn.Conv2d(of, width, 1, bias=False), nn.BatchNorm2d(width)) for of in channels
    )
    encoder = RTDetrHybridEncoder(config)
    theirs = well_scaled(nn.ModuleDict({"encoder_input_proj": projections, "encoder": encoder}))
    ours = HybridEncoder(channels, width, heads=4, feedforward=48, expansion=expansion).double().eval()
    ours.load_state_dict(joined(rename_entries(theirs.state_dict(), TRANSFORMERS["neck"])))
    features = [
        torch.randn(2, of, side, side, dtype=torch.float64) for of, side in zip(channels, (24, 12, 6), strict=True)
    ]
    with torch.no_grad():
        projected = [project(maps) for project, maps in zip(projections, features, strict=True)]
        expected = encoder(projected).last_hidden_state
        agree(
            ours(features), list(expected), atol=1e-6
        )  # the table of positions is float32 here, as in the public code


def test_names_of_older_transformers_files_become_the_same() -> None:
    pairs = [
        ("encoder.encoder.0.layers.0.self_attn.q_proj.weight", "encoder.aifi.0.layers.0.self_attn.q_proj.weight"),
        ("encoder.encoder.0.layers.0.self_attn.out_proj.bias", "encoder.aifi.0.layers.0.self_attn.o_proj.bias"),
        ("encoder.encoder.0.layers.0.fc2.weight", "encoder.aifi.0.layers.0.mlp.fc2.weight"),
        (
            "encoder.encoder.0.layers.0.final_layer_norm.bias",
            "encoder.aifi.0.layers.0.final_layer_norm.bias",
        ),
    ]
    known = HybridEncoder((4, 4, 4), 8).state_dict()
    for old, new in pairs:
        (name,) = rename_entries({old: 0}, TRANSFORMERS["neck"])
        assert name in rename_entries({new: 0}, TRANSFORMERS["neck"])
        assert name.split("#")[0] in known
