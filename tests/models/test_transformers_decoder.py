"""Decoder, denoising, matcher and loss against the RT-DETR of ``transformers``, on well-scaled numbers.

Under the same weights, and in training under the same seed, everything is compared: outputs of every layer, the
encoder's proposals, noisy queries, matches, loss terms. Gradients are not: ``transformers`` cuts them between layers
where the public EvRT-DETR lets a layer's boxes reach the box head before.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig
from transformers.loss.loss_rt_detr import RTDetrHungarianMatcher

from fate.models.boxes import cxcywh_from_xyxy
from fate.models.checkpoints.importing import TRANSFORMERS, rename
from fate.models.heads.matching import match
from fate.models.heads.rtdetr import RtDetrHead
from fate.models.outputs import FlatTargets, Targets
from tests.models.conftest import rename_entries

WIDTH, CLASSES, LAYERS = 32, 3, 3
#: Cells of a frame of 128 × 160 pixels, and of one so wide that some cells lie in its margin.
FRAMES = {"ordinary": [(16, 20), (8, 10), (4, 5)], "wide": [(4, 64), (2, 32), (1, 16)]}


def other(queries: int, denoising: int = 100) -> RTDetrForObjectDetection:
    """The model of ``transformers``; nothing before its decoder is used."""
    backbone = RTDetrResNetConfig(
        embedding_size=4, hidden_sizes=[4, 4, 4, 4], depths=[1, 1, 1, 1], layer_type="basic", out_indices=[2, 3, 4]
    )
    config = RTDetrConfig(
        backbone_config=backbone,
        d_model=WIDTH,
        encoder_hidden_dim=WIDTH,
        encoder_in_channels=[4, 4, 4],
        encoder_ffn_dim=8,
        decoder_in_channels=[WIDTH] * 3,
        decoder_layers=LAYERS,
        decoder_attention_heads=4,
        decoder_ffn_dim=48,
        num_queries=queries,
        num_denoising=denoising,
        num_labels=CLASSES,
        anchor_image_size=None,
        attn_implementation="eager",  # its float32 mask goes wrong in fused attention beside float64
    )
    model = RTDetrForObjectDetection(config).double()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith("running_var"):
                value.uniform_(0.5, 2.0)
            elif value.is_floating_point():
                value.normal_(0.0, 0.2 if value.ndim == 1 else value[0].numel() ** -0.5)
                if name.endswith("weight") and value.ndim == 1:
                    value.add_(1.0)
    return model


def ours(model: RTDetrForObjectDetection, queries: int) -> RtDetrHead:
    """Our head with the same weights."""
    named = rename_entries(model.state_dict(), TRANSFORMERS["head"], "model.")
    wanted = RtDetrHead((WIDTH,) * 3, CLASSES, WIDTH, queries, LAYERS, heads=4, feedforward=48).double()
    whole: dict[str, Tensor] = {}
    for name in wanted.state_dict():
        parts = [named[f"{name}#{part}"] for part in range(3)] if f"{name}#0" in named else [named[name]]
        whole[name] = torch.cat(parts) if len(parts) > 1 else parts[0]
    wanted.load_state_dict(whole)
    return wanted


def features_of(frame: str, windows: int) -> list[Tensor]:
    return [torch.randn(windows, WIDTH, *size).double() for size in FRAMES[frame]]


def targets_of(frame: str, *counts: int) -> tuple[list[Targets], list[dict[str, Tensor]]]:
    """The same boxes as both want them."""
    rows, columns = FRAMES[frame][0]
    sides = torch.tensor([columns, rows, columns, rows]) * 8
    here, there = [], []
    for count in counts:
        corner = torch.rand(count, 2) * 0.6
        boxes = torch.cat([corner, corner + torch.rand(count, 2) * 0.3 + 0.03], dim=1)
        class_ids = torch.randint(CLASSES, (count,))
        here.append(Targets.of(boxes * sides, class_ids))
        there.append({"class_labels": class_ids, "boxes": cxcywh_from_xyxy(here[-1].boxes / sides).double()})
    return here, there


@pytest.mark.parametrize("frame", FRAMES)
def test_evaluation_gives_the_same_predictions(frame: str) -> None:
    torch.manual_seed(0)
    model = other(queries=50).eval()
    head, features = ours(model, queries=50).eval(), features_of(frame, 2)
    rows, columns = FRAMES[frame][0]
    with torch.no_grad():
        expected = model(pixel_values=None, inputs_embeds=features[0], encoder_outputs=(features,))
        outputs = head(features)
    assert bool(head.valid.all()) == (frame == "ordinary")
    assert expected.logits.std() > 0.1
    boxes = cxcywh_from_xyxy(outputs.boxes) / (torch.tensor([columns, rows, columns, rows]) * 8)
    torch.testing.assert_close(outputs.class_logits, expected.logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(boxes, expected.pred_boxes, rtol=0, atol=1e-5)


@pytest.mark.parametrize("counts", [(3, 1), (0, 2), (30, 5)])
@pytest.mark.parametrize("frame", FRAMES)
def test_training_gives_the_same_layers_proposals_noise_and_losses(frame: str, counts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = other(queries=50).train()
    head, features = ours(model, queries=50).train(), features_of(frame, len(counts))
    here, there = targets_of(frame, *counts)
    torch.manual_seed(1)
    expected = model(pixel_values=None, inputs_embeds=features[0], encoder_outputs=(features,), labels=there)
    torch.manual_seed(1)
    outputs = head(features, here)
    kept = outputs.training

    noisy = kept.denoising.logits.shape[2]
    assert noisy == expected.denoising_meta_values["dn_num_split"][0]
    for mine, theirs, atol in (
        ([kept.denoising.logits, kept.layers.logits], expected.intermediate_logits, 1e-4),
        ([kept.denoising.boxes, kept.layers.boxes], expected.intermediate_reference_points, 1e-5),
    ):
        torch.testing.assert_close(torch.cat(mine, dim=2), theirs.transpose(0, 1), rtol=0, atol=atol)
    torch.testing.assert_close(kept.encoder.logits[0], expected.enc_topk_logits, rtol=0, atol=1e-6)
    torch.testing.assert_close(kept.encoder.boxes[0], expected.enc_topk_bboxes, rtol=0, atol=1e-6)

    terms = head.loss(outputs, here)
    suffixes = {"": [""], "_aux": [f"_aux_{layer}" for layer in range(LAYERS - 1)], "_encoder": [f"_aux_{LAYERS - 1}"]}
    suffixes["_denoising"] = [f"_dn_{layer}" for layer in range(LAYERS)]
    for name, public in (("class", "vfl"), ("box", "bbox"), ("giou", "giou")):
        for group, layers in suffixes.items():
            value = sum(float(expected.loss_dict[f"loss_{public}{layer}"]) for layer in layers)
            assert terms[name + group].item() == pytest.approx(value, rel=1e-4, abs=1e-5), name + group


def test_matches_are_the_same() -> None:
    torch.manual_seed(0)
    matcher = RTDetrHungarianMatcher(RTDetrConfig(num_labels=CLASSES))
    here, there = targets_of("ordinary", 4, 0, 9)
    flat = FlatTargets.of(here, (128, 160), CLASSES, torch.device("cpu"))
    logits, boxes = torch.randn(5, 3, 40, CLASSES) * 2, torch.rand(5, 3, 40, 4) * 0.6 + 0.1
    found = match(logits, boxes, flat)
    labels = [{name: value.float() if name == "boxes" else value for name, value in of.items()} for of in there]
    for layer in range(5):
        expected = matcher({"logits": logits[layer], "pred_boxes": boxes[layer]}, labels)
        for window, pairs in enumerate(expected):
            own = found.window[layer] == window
            assert found.query[layer, own].tolist() == pairs[0].tolist()
            assert flat.box_index[found.target[layer, own]].tolist() == pairs[1].tolist()


def test_names_of_older_transformers_files_become_the_same() -> None:
    for old, new in (
        ("decoder.layers.1.self_attn.out_proj.bias", "decoder.layers.1.self_attn.o_proj.bias"),
        ("decoder.layers.1.fc2.weight", "decoder.layers.1.mlp.fc2.weight"),
    ):
        assert rename(old, TRANSFORMERS["head"]) == rename(new, TRANSFORMERS["head"])
