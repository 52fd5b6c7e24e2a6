"""RT-DETR in the layout of ``transformers``: what fits is taken, the rest begins anew and is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrModel, RTDetrResNetConfig

from fate.errors import FateError
from fate.models.boxes import cxcywh_from_xyxy
from fate.models.checkpoints import load_model
from fate.models.checkpoints.importing import Imported, import_checkpoint, rename_transformers

Entries = dict[str, Tensor]
SENSOR = (150, 160)  # of a frame that is padded to a square, where positions agree
#: How each RT-DETR on the hub differs from the one of depth 50.
SHALLOW: dict[str, Any] = {"encoder_in_channels": [128, 256, 512], "hidden_expansion": 0.5}
SIZES: dict[int, tuple[list[int], dict[str, Any]]] = {
    18: ([2, 2, 2, 2], {**SHALLOW, "decoder_layers": 3}),
    34: ([3, 4, 6, 3], {**SHALLOW, "decoder_layers": 4}),
    50: ([3, 4, 6, 3], {}),
    101: ([3, 4, 23, 3], {}),
}


def config_of(depth: int, labels: int = 80, channels: int = 3) -> RTDetrConfig:
    blocks, options = SIZES[depth]
    sizes, kind = ([256, 512, 1024, 2048], "bottleneck") if depth >= 50 else ([64, 128, 256, 512], "basic")
    backbone = RTDetrResNetConfig(
        num_channels=channels, hidden_sizes=sizes, depths=blocks, layer_type=kind, out_indices=[2, 3, 4]
    )
    return RTDetrConfig(backbone_config=backbone, num_labels=labels, anchor_image_size=None, **options)


@cache
def numbered(depth: int) -> Entries:
    """Names and shapes of a whole model, each entry filled with a number of its own."""
    with torch.device("meta"):
        model = RTDetrForObjectDetection(config_of(depth))
    return {
        name: torch.tensor(number, dtype=value.dtype).expand(value.shape)
        for number, (name, value) in enumerate(model.state_dict().items())
    }


def as_before_version_5(entries: Entries) -> Entries:
    """By the names of the files on the hub, the decoder's heads twice."""
    old = {}
    for name, value in entries.items():
        key = name.replace("o_proj", "out_proj").replace(".mlp.fc", ".fc").replace("encoder.aifi", "encoder.encoder")
        old[key] = value
        if re.match(r"model\.decoder\.(class|bbox)_embed\.", key):
            old[key.removeprefix("model.decoder.")] = value
    return old


def heads_at_the_top(entries: Entries) -> Entries:
    """As files in which the second name of a tensor was dropped."""
    dropped = ("model.decoder.class_embed.", "model.decoder.bbox_embed.")
    return {name: value for name, value in as_before_version_5(entries).items() if not name.startswith(dropped)}


def imported(entries: Entries, folder: Path, **options: Any) -> Imported:
    torch.save(entries, folder / "pytorch_model.bin")
    given: dict[str, Any] = {"classes": ("car", "pedestrian"), **options}
    return import_checkpoint(folder / "pytorch_model.bin", **given)


def is_fresh(name: str) -> bool:
    parts = ("memory.", "encoder.", "backbone.stem.0.conv.", "head.cell_scores.", "head.scores.", "head.denoising_")
    return name.startswith(parts)


def numbers_of(value: Tensor) -> list[int]:
    """What an entry is filled with: one number, or three where it was joined."""
    found = [part.unique() for part in (value.chunk(3) if value.ndim and len(value) % 3 == 0 else [value])]
    assert all(len(part) == 1 for part in found)
    return sorted({int(part) for part in found})


@pytest.mark.parametrize(
    ("depth", "model", "layout"),
    [
        pytest.param(50, None, dict, marks=pytest.mark.slow),
        pytest.param(50, "fate-e", as_before_version_5, marks=pytest.mark.slow),
        (18, None, heads_at_the_top),
    ],
)
def test_every_entry_but_those_of_colours_and_classes_is_taken(
    tmp_path: Path, depth: int, model: str | None, layout: Callable[[Entries], Entries]
) -> None:
    entries = numbered(depth)
    found = imported(layout(entries), tmp_path, model=model)
    assert found.detector.description["name"] == (model or {50: "evrt-detr-b", 18: "evrt-detr-s"}[depth])
    assert found.detector.sensor == (240, 304)
    own = found.detector.state_dict()
    assert found.fresh == tuple(name for name in own if is_fresh(name))
    class_layers = r"denoising_class_embed|enc_score_head|decoder\.class_embed|^class_embed"
    of_colours = "model.backbone.model.embedder.embedder.0.convolution.weight"
    assert of_colours in found.unused
    assert all(re.search(class_layers, name) for name in found.unused if name != of_colours)
    taken = [n for n, name in enumerate(entries) if name != of_colours and not re.search(class_layers, name)]
    counters = [name for name in own if name.endswith("num_batches_tracked")]
    ours = [n for name, value in own.items() if not is_fresh(name) and name not in counters for n in numbers_of(value)]
    assert sorted(ours) == [n for n in taken if not list(entries)[n].endswith("num_batches_tracked")]
    assert (found.layout, found.detector.training) == ("RT-DETR in transformers", False)
    assert found.taken + len(found.fresh) + sum(name.startswith("backbone") for name in counters) == len(own)


@pytest.mark.slow
def test_a_folder_that_transformers_wrote_gives_its_predictions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = RTDetrForObjectDetection(config_of(18, labels=2, channels=20)).eval()
    with torch.no_grad():
        for name, value in theirs.state_dict().items():
            if name.endswith("running_var"):
                value.uniform_(0.5, 2.0)
            elif value.is_floating_point():
                value.normal_(0.0, 0.1 if value.ndim == 1 else value[0].numel() ** -0.5)
                if name.endswith("weight") and value.ndim == 1:
                    value.add_(1.0)
    theirs.save_pretrained(tmp_path / "public")
    found = import_checkpoint(tmp_path / "public", tmp_path / "ours.safetensors", classes=("a", "b"), sensor=SENSOR)
    detector = load_model(tmp_path / "ours.safetensors")
    same_names = {
        rename_transformers(name): value
        for name, value in theirs.state_dict().items()
        if "#" not in rename_transformers(name)
    }
    fresh = {name: same_names[name] for name in found.fresh if not name.startswith("memory.")}
    detector.load_state_dict({**detector.state_dict(), **fresh})
    detector.memory = None
    images = torch.randn(2, 20, 160, 160)
    with torch.no_grad():
        expected = theirs(images)
        outputs, _ = detector(images)
    assert expected.logits.std() > 0.1
    boxes = cxcywh_from_xyxy(outputs.boxes) / 160
    for mine, other in ((outputs.class_logits, expected.logits), (boxes, expected.pred_boxes)):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-4)


def test_the_same_file_gives_the_same_detector_and_leaves_the_random_numbers_alone(tmp_path: Path) -> None:
    entries = numbered(18)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    first = imported(entries, tmp_path).detector.state_dict()
    assert torch.equal(torch.rand(4), expected)
    second = imported(entries, tmp_path).detector.state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def changed(**changes: Tensor | None) -> Callable[[Entries], Entries]:
    """With some entries replaced, or taken out."""

    def change(entries: Entries) -> Entries:
        both = {**entries, **{name.replace("__", "."): value for name, value in changes.items()}}
        return {name: value for name, value in both.items() if value is not None}

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed(model__enc_output__1__bias=None), "1 missing (head.cell_features.1.bias)"),
        (changed(model__extra__weight=torch.ones(1)), "1 unexpected (head.extra.weight)"),
        (
            changed(model__enc_output__1__bias=torch.ones(3)),
            "1 of another shape (head.cell_features.1.bias (3,) instead of (256,))",
        ),
        (
            changed(model__decoder__layers__1__self_attn__k_proj__bias=None),
            "head.layers.1.attention.query_key_value.bias (512,) instead of (768,)",
        ),
        (
            changed(model__decoder__layers__1__self_attn__k_proj__weight=torch.ones(256, 4)),
            "head.layers.1.attention.query_key_value.weight: queries, keys and values of shapes",
        ),
        (changed(model__enc_output__1__bias=torch.full((256,), torch.inf)), "numbers that are not finite"),
    ],
)
def test_anything_else_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, change: Callable[[Entries], Entries], words: str
) -> None:
    with pytest.raises(FateError) as raised:
        imported(change(numbered(18)), tmp_path)
    assert words in str(raised.value)


def test_a_model_without_heads_is_refused_by_the_names_of_its_boxes(tmp_path: Path) -> None:
    with torch.device("meta"):
        names = RTDetrModel(config_of(18)).state_dict()
    entries = {name: torch.zeros((), dtype=value.dtype).expand(value.shape) for name, value in names.items()}
    with pytest.raises(FateError, match=r"18 missing \(head.boxes.0.0.bias, head.boxes.0.0.weight"):
        imported(entries, tmp_path)


@pytest.mark.parametrize(
    ("depth", "options", "words"),
    [
        (34, {}, "with PResNet-34 was given; expected one of depth 50 (evrt-detr-b, fate-e); 18 (evrt-detr-s)"),
        (101, {}, "an RT-DETR with PResNet-101 was given"),
        (18, {"model": "fate-e"}, "an RT-DETR with PResNet-18 was given for fate-e"),
        (50, {"model": "rvt-b"}, "an RT-DETR with PResNet-50 was given for rvt-b"),
        (18, {"classes": None}, "give their names"),
        (18, {"classes": ("bus",)}, "(bus)"),
    ],
)
def test_other_sizes_and_missing_facts_are_refused(
    tmp_path: Path, depth: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(FateError) as raised:
        imported(numbered(depth), tmp_path, **options)
    assert words in str(raised.value)
