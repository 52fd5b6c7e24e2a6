"""Public checkpoints become detectors of ours: each entry in its place, or the file is refused with names."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fate
from fate.errors import FateError
from fate.models.checkpoints import load_model, read_card
from fate.models.checkpoints.importing import RVT, import_checkpoint, rename
from fate.models.detector import Detector
from fate.models.zoo import build_model

Entries = dict[str, Tensor]
#: Entries of a public file that are tables, not weights.
TABLES = ("net_encoder.pth::pos_embed2",)


@pytest.fixture(scope="module")
def numbered(reference_folder: Path) -> Callable[[str], Entries]:
    """``numbered("rvt_b_gen1")``: every entry of a public checkpoint, filled with a number of its own."""

    def load(keys: str) -> Entries:
        entries = {}
        for number, line in enumerate((reference_folder / f"keys_{keys}.txt").read_text().splitlines()):
            key, rest = line.split(" ", 1)
            shape, dtype = rest.rsplit(" ", 1)
            entries[key] = torch.tensor(number, dtype=getattr(torch, dtype)).expand(ast.literal_eval(shape))
        return entries

    return load


def write(entries: Entries, path: Path) -> Path:
    """In the container of its project."""
    if any("::" in name for name in entries):
        path.mkdir()
        for file in {name.split("::")[0] for name in entries}:
            torch.save({k.split("::")[1]: v for k, v in entries.items() if k.startswith(f"{file}::")}, path / file)
        (path / "config.json").write_text("{}")
    else:
        torch.save({"state_dict": entries, "hyper_parameters": {"lr": 2e-4}, "epoch": 3}, path)
    return path


def number_of(value: Tensor) -> int:
    """The number an entry was filled with."""
    number = int(value.flatten()[0])
    assert bool((value == number).all())
    return number


@pytest.mark.parametrize(
    ("keys", "model", "layout", "count"),
    [
        ("rvt_b", "rvt-b", "RVT", 424),
        ("s5vit_b", "s5-vit-b", "ssms_event_cameras", 460),
        ("evrtdetr_b", "evrt-detr-b", "EvRT-DETR", 842),
    ],
)
@pytest.mark.parametrize(
    ("data", "classes", "sensor", "parameters"),
    [
        ("gen1", ("car", "pedestrian"), (240, 304), {"rvt_b": 18_536_469, "s5vit_b": 18_192_149}),
        pytest.param(
            *("gen4", ("pedestrian", "two wheeler", "car"), (360, 640), {"rvt_b": 18_536_856, "s5vit_b": 18_192_536}),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_public_entry_becomes_one_of_ours(
    tmp_path: Path,
    numbered: Callable[[str], Entries],
    keys: str,
    model: str,
    layout: str,
    count: int,
    data: str,
    classes: tuple[str, ...],
    sensor: tuple[int, int],
    parameters: dict[str, int],
) -> None:
    entries = numbered(f"{keys}_{data}")
    found = import_checkpoint(write(entries, tmp_path / "public"))
    assert (found.layout, found.taken, found.fresh) == (layout, count, ())
    assert found.unused == tuple(name for name in entries if name in TABLES)
    description = found.detector.description
    assert (description["name"], tuple(description["classes"]), tuple(description["sensor"])) == (
        model,
        classes,
        sensor,
    )
    ours = sorted(number_of(value) for value in found.detector.state_dict().values())
    assert ours == [number for number, name in enumerate(entries) if name not in TABLES]
    assert not found.detector.training
    evrt = 57_147_754 if data == "gen1" else 57_149_809
    assert sum(parameter.numel() for parameter in found.detector.parameters()) == parameters.get(keys, evrt)


def test_what_is_written_is_the_same_detector_and_says_where_it_comes_from(
    tmp_path: Path, numbered: Callable[[str], Entries]
) -> None:
    source, target = write(numbered("s5vit_b_gen1"), tmp_path / "gen1_base.ckpt"), tmp_path / "ours.safetensors"
    found = fate.import_checkpoint(source, target, classes=("bus", "dog"), sensor=(128, 160))
    again = load_model(target)
    assert again.description == found.detector.description
    assert again.classes == ("bus", "dog")
    assert again.sensor == (128, 160)
    assert again.description["options"] == {"official_state": True}
    for (name, mine), other in zip(again.state_dict().items(), found.detector.state_dict().values(), strict=True):
        assert torch.equal(mine, other), name
    origin = {"from": "gen1_base.ckpt", "layout": "ssms_event_cameras", "fresh": []}
    assert read_card(target)["imported"] == origin


def test_the_small_size_is_known_by_its_shapes(tmp_path: Path, numbered: Callable[[str], Entries]) -> None:
    def smaller(side: int) -> int:
        return side * 3 // 4 if side % 32 == 0 else side

    for keys, model in (("rvt_b_gen1", "rvt-s"), ("s5vit_b_gen1", "s5-vit-s")):
        small = {
            name: value.flatten()[:1].view(()).expand([smaller(side) for side in value.shape])
            for name, value in numbered(keys).items()
            if ".m.1." not in name  # one bottleneck fewer
        }
        found = import_checkpoint(write(small, tmp_path / model))
        assert found.detector.description["name"] == model


def test_averaged_weights_are_taken_before_the_others(tmp_path: Path, numbered: Callable[[str], Entries]) -> None:
    entries = numbered("evrtdetr_b_gen1")
    of_frames = {name: value for name, value in entries.items() if "temp_enc" not in name}
    averaged = {
        name.replace("net_", "net_ema_"): (value.flatten()[0] + 10_000).expand(value.shape)
        for name, value in of_frames.items()
    }
    found = import_checkpoint(write({**of_frames, **averaged}, tmp_path / "frames"))
    assert found.detector.memory is None  # the first of the two stages of training has none
    assert found.detector.description["options"] == {"remember": False}
    assert min(number_of(value) for value in found.detector.state_dict().values()) >= 10_000
    assert set(found.unused) == {*of_frames, "net_ema_encoder.pth::pos_embed2"}


def test_a_mismatch_lists_what_is_missing_unexpected_and_of_another_shape(
    tmp_path: Path, numbered: Callable[[str], Entries]
) -> None:
    entries = numbered("rvt_b_gen1")
    del entries["mdl.backbone.stages.1.lstm.conv1x1.bias"]
    entries["mdl.fpn.extra.weight"] = torch.zeros(3)
    entries["mdl.yolox_head.reg_preds.2.bias"] = torch.zeros(5)
    with pytest.raises(FateError) as raised:
        import_checkpoint(write(entries, tmp_path / "public"), tmp_path / "ours.safetensors")
    words = str(raised.value)
    assert "1 missing (backbone.stages.1.memory.gates.bias)" in words
    assert "1 unexpected (neck.extra.weight)" in words
    assert "1 of another shape (head.box_predictions.2.bias (5,) instead of (4,))" in words
    assert not (tmp_path / "ours.safetensors").exists()


def without(*parts: str) -> Callable[[Entries], Entries]:
    return lambda entries: {name: value for name, value in entries.items() if not any(part in name for part in parts)}


def narrow(entries: Entries) -> Entries:
    return {name: value[:24] if value.shape[:1] == (64,) else value for name, value in entries.items()}


def diverged(entries: Entries) -> Entries:
    return {**entries, "mdl.fpn.C3_n4.conv1.bn.bias": torch.full((256,), torch.nan)}


def of_seven_classes(entries: Entries) -> Entries:
    heads = {name: value[:1] for name, value in entries.items() if "cls_preds" in name}
    return {**entries, **{name: value.expand(7, *value.shape[1:]) for name, value in heads.items()}}


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda entries: {"a.weight": torch.ones(2)}, {}, "a.weight"),
        (lambda entries: entries, {"classes": ["car"]}, "has 2 classes; 1 were given (car)"),
        (lambda entries: entries, {"classes": "car"}, "has 2 classes; 1 were given (car)"),
        (lambda entries: entries, {"classes": []}, "has 2 classes; 0 were given (no names)"),
        (lambda entries: entries, {"classes": ["bus", "dog"]}, "(bus, dog)"),
        (lambda entries: entries, {"model": "fate-s"}, "holds rvt-b, but fate-s"),
        (without("yolox_head"), {}, "head.class_predictions.0.weight was not found"),
        (without("stages.0.downsample"), {}, "backbone.stages.0.downsample.conv.weight was not found"),
        (narrow, {}, "its first stage has 24 channels; expected 64 (base), 48 (small) or 32 (tiny)"),
        (diverged, {}, "neck.mix_32.narrow.norm.bias holds numbers that are not finite"),
        (of_seven_classes, {}, "has 7 classes"),
    ],
)
def test_what_cannot_be_imported_is_refused_in_one_sentence(
    tmp_path: Path,
    numbered: Callable[[str], Entries],
    change: Callable[[Entries], Entries],
    options: dict[str, Any],
    words: str,
) -> None:
    source = write(change(numbered("rvt_b_gen1")), tmp_path / "public")
    with pytest.raises(FateError) as raised:
        import_checkpoint(source, tmp_path / "ours.safetensors", **options)
    assert words in str(raised.value)
    assert str(raised.value).startswith(f"{source}: ")
    assert not (tmp_path / "ours.safetensors").exists()


def test_classes_and_sensor_of_another_dataset_can_be_given(tmp_path: Path, numbered: Callable[[str], Entries]) -> None:
    seven = of_seven_classes(numbered("rvt_b_gen1"))
    names = [f"class {number}" for number in range(7)]
    found = import_checkpoint(write(seven, tmp_path / "public"), classes=names, sensor=(480, 640))
    assert found.detector.classes == tuple(names)
    assert found.detector.sensor == (480, 640)


def test_rvt_tiny_has_one_head_in_its_first_stage(tmp_path: Path, reference_folder: Path) -> None:
    tiny = build_model("rvt-s", ("car", "pedestrian"), (240, 304), dims=(32, 64, 128, 256), head_dim=32)
    back = {value: key for key, value in _public_names(tiny, reference_folder).items()}
    path = tmp_path / "rvt-t.ckpt"
    torch.save({"state_dict": {back[name]: value for name, value in tiny.state_dict().items()}}, path)
    imported = import_checkpoint(path).detector
    assert imported.backbone.stages[0].window.attention.head_dim == 32  # type: ignore[union-attr,index]
    assert all(torch.equal(value, imported.state_dict()[name]) for name, value in tiny.state_dict().items())


def _public_names(detector: Detector, folder: Path) -> dict[str, str]:
    """The public RVT-B names, which all sizes share but for the count of bottlenecks, by ours."""
    names = [line.split(" ")[0] for line in (folder / "keys_rvt_b_gen1.txt").read_text().splitlines()]
    parts = (("mdl.backbone.", "backbone"), ("mdl.fpn.", "neck"), ("mdl.yolox_head.", "head"))
    ours = {
        name: f"{part}.{rename(name.removeprefix(prefix), RVT[part])}"
        for prefix, part in parts
        for name in names
        if name.startswith(prefix)
    }
    return {public: own for public, own in ours.items() if own in detector.state_dict()}
