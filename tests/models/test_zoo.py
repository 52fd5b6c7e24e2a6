"""The detectors by name: their sizes to the parameter, twins, options, and what is not there."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from fate.errors import FateError
from fate.models.zoo import ENCODERS, MODELS, build_model, rebuild
from tests.models.small_detectors import CLASSES, FAMILIES, SENSOR

pytestmark = pytest.mark.usefixtures("one_thread")
GEN1, MPX = (240, 304), (360, 640)
MPX_CLASSES = ("pedestrian", "two-wheeler", "car")
#: Parameters for Gen1 (two classes) and 1Mpx (three): those of the public models, and of the paper's two.
PUBLISHED = {
    "rvt-b": (18_536_469, 18_536_856),
    "rvt-s": (9_870_165, 9_870_456),
    "s5-vit-b": (18_192_149, 18_192_536),
    "s5-vit-s": (9_677_205, 9_677_496),
    "evrt-detr-b": (57_147_754, 57_149_809),
    "evrt-detr-s": (34_447_736, 34_449_020),
    "fate-s": (18_331_029, 18_331_416),
    "fate-e": (57_161_322, 57_163_377),
}


def parameters(name: str, classes: tuple[str, ...] = CLASSES, sensor: tuple[int, int] = GEN1, **options: Any) -> int:
    """How many a model has; without numbers in them, to save time."""
    with torch.device("meta"):
        detector = build_model(name, classes, sensor, **options)
    return sum(parameter.numel() for parameter in detector.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name: str) -> None:
    gen1, mpx = PUBLISHED[name]
    assert parameters(name) == gen1
    assert parameters(name, MPX_CLASSES, MPX) == mpx


@pytest.mark.parametrize("name", ["fate-s", "fate-e"])
def test_offsets_from_the_centre_cost_two_numbers_a_channel(name: str) -> None:
    assert parameters(name, encoder_options={"center_offsets": True}) == PUBLISHED[name][0] + 128


@pytest.mark.parametrize("name", ["fate-s", "fate-e"])
def test_stems_have_the_same_parameters(name: str) -> None:
    assert parameters(name, stem="native") == parameters(name, stem="upsample")


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("get-b", 21_850_000, 21_950_000),
        *((name, 3_000_000, 6_000_000) for name in MODELS if name.endswith("-tiny")),
        *((name, 800_000, 1_200_000) for name in MODELS if name.endswith("-nano")),
    ],
)
def test_models_without_a_published_count_are_of_the_size_they_are_called(name: str, least: int, most: int) -> None:
    assert least <= parameters(name) <= most


@pytest.mark.parametrize(
    ("ours", "twin"),
    [
        ("fate-s", "s5-vit-b"),
        ("fate-e", "evrt-detr-b"),
        ("fate-s-tiny", "s5-vit-tiny"),
        ("fate-e-tiny", "evrt-detr-tiny"),
        ("fate-s-nano", "s5-vit-nano"),
    ],
)
def test_twins_differ_in_encoder_and_first_convolution_alone(ours: str, twin: str) -> None:
    with torch.device("meta"):
        shapes, of_twin = (
            {key: value.shape for key, value in build_model(name, CLASSES, GEN1).named_parameters()}
            for name in (ours, twin)
        )
    shapes = {name: shape for name, shape in shapes.items() if not name.startswith("encoder.")}
    assert shapes.keys() == of_twin.keys()
    different = [name for name in shapes if shapes[name] != of_twin[name]]
    assert len(different) == 1
    assert shapes[different[0]][0] == of_twin[different[0]][0]  # other channels in, as many out
    kernels = shapes[different[0]][2:], of_twin[different[0]][2:]
    # Small ones have 3 cells of two pixels or 7 pixels, as few as overlapping neighbours allow; else the same kernel.
    assert kernels == (((3, 3), (7, 7)) if ours in ("fate-s-tiny", "fate-s-nano") else (kernels[1], kernels[1]))


def test_every_model_says_what_it_is() -> None:
    assert all(model.about and model.encoder in ENCODERS for model in MODELS.values())
    assert {"rvt-b", "rvt-s", "s5-vit-b", "s5-vit-s", "evrt-detr-b", "evrt-detr-s", "get-b", "fate-s", "fate-e",
            "fate-s-tiny", "fate-e-tiny", "fate-s-nano"} <= MODELS.keys()  # fmt: skip


def test_a_model_without_numbers_has_the_shapes_of_one_with_numbers() -> None:
    with torch.device("meta"):
        shapes = build_model("fate-s-nano", CLASSES, SENSOR).state_dict()
    real = build_model("fate-s-nano", CLASSES, SENSOR).state_dict()
    assert {name: value.shape for name, value in shapes.items()} == {name: value.shape for name, value in real.items()}
    assert not any(value.is_meta for value in real.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_description_builds_the_same_detector_again(family: str) -> None:
    name, options = FAMILIES[family]
    detector = build_model(
        name, CLASSES, SENSOR, encoder="pillars", encoder_options={"channels": 8, "pillar": 4}, stem="upsample",
        **options,
    )  # fmt: skip
    description = json.loads(json.dumps(detector.description))  # as a file keeps it
    again = rebuild(description)
    assert json.dumps(again.description) == json.dumps(detector.description)
    assert again.frame == detector.frame
    assert again.classes == detector.classes
    assert repr(again) == repr(detector)
    assert {name: value.shape for name, value in again.state_dict().items()} == {
        name: value.shape for name, value in detector.state_dict().items()
    }


def test_another_encoder_brings_its_own_options() -> None:
    assert build_model("fate-s-nano", CLASSES, SENSOR).encoder.channels == 16
    assert build_model("fate-s-nano", CLASSES, SENSOR, encoder_options={"pillar": 4}).encoder.channels == 16
    voxels = build_model("fate-s-nano", CLASSES, SENSOR, encoder="voxel", encoder_options={"bins": 9})
    assert voxels.encoder.channels == 9
    assert voxels.description["encoder_options"] == {"bins": 9}


def test_one_class_may_be_given_by_its_name() -> None:
    assert build_model("s5-vit-nano", "car", SENSOR).classes == ("car",)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "fate-x"}, r"model 'fate-x' was asked for; there are .*; did you mean 'fate-[se]'\?$"),
        ({"name": "rvtb"}, r"did you mean 'rvt-b'\?$"),
        ({"name": "S5_ViT_B"}, r"model 'S5_ViT_B' was asked for"),
        ({"name": "@"}, r"there are fate-s, .*nano$"),
        ({"encoder": "pilars"}, r"encoder 'pilars' was asked for; there are .*; did you mean 'pillars'\?$"),
        ({"encoder": "time_surface"}, r"did you mean 'time-surface'\?$"),
        ({"dim": (1, 2)}, r"dim=\(1, 2\) was given; s5-vit-nano takes dims, .*; did you mean 'dims'\?$"),
        ({"queries": 5}, "queries=5 was given; s5-vit-nano takes"),
        ({"encoder": "voxel", "encoder_options": {"bin": 3}}, r"bin=3 was given; voxel takes .*did you mean 'bins'\?$"),
        ({"encoder": "pillars", "encoder_options": {"pilar": 3}}, r"pillars takes .*did you mean 'pillar'\?$"),
        ({"encoder": "pillars", "encoder_options": {"pillar": 3}}, "cells of 3 pixels"),
        ({"encoder": "pillars", "encoder_options": {"sensor": (1, 1)}}, r"sensor=\(1, 1\) was given"),
        ({"classes": ()}, "expected at least one"),
        ({"classes": ("car", "car")}, "each with a name of its own"),
        ({"classes": ("car", "")}, "each with a name of its own"),
        ({"classes": ("car", 1)}, "each with a name of its own"),
        ({"classes": 2}, "classes 2 were given"),
        ({"sensor": (240,)}, "sensor"),
        ({"sensor": (0, 304)}, "sensor"),
        ({"sensor": "304x240"}, "sensor"),
        ({"stem": "resize"}, "stem='resize' was given"),
        ({"dims": (8, 16)}, "dims="),
        ({"memory": "gru"}, "memory='gru'"),
        ({"name": "rvt-s", "official_state": True}, "official_state=True was given .* it belongs to S5"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused_in_a_sentence(changed: dict[str, Any], said: str) -> None:
    request: dict[str, Any] = {"name": "s5-vit-nano", "classes": CLASSES, "sensor": SENSOR, **changed}
    with pytest.raises(FateError, match=said):
        build_model(**request)
