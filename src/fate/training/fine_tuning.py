"""Fine-tuning: the settings of a run that starts from trained weights, chosen by the dataset and the machine.

``fate train DATASET --model NAME`` needs no configuration. Weights of a detector of any classes and any sensor are the
start: all layers are loaded except those that belong to a class, of which the rows of classes with the same name are
kept. Every setting can be changed behind the dataset, as with a configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from fate.boxes.dense_labels import open_dense_labels
from fate.data.class_maps import plain
from fate.data.opening import open_dataset
from fate.errors import list_names
from fate.inference.loading import find_weights
from fate.models.checkpoints import read_card
from fate.rates import PAPER_RATES
from fate.text import plural
from fate.training.config import EXACT, TrainConfig, make_config

#: Clips in a batch, windows in a clip, steps for each labelled time, and fewest and most steps; by device.
AMOUNTS = {"cpu": (4, 5, 8, 150, 1500), "cuda": (32, 10, 20, 500, 6000)}
#: Epochs of a run, and epochs between two validations.
EPOCHS, VALIDATE_EVERY = 10, 2
#: Highest learning rate; DETR heads need a lower one. The backbone learns more slowly, because it knows most already.
LR = {"fate-e": 2e-4, "evrt": 2e-4}
USUAL_LR = 5e-4
BACKBONE_LR = 0.2


class FineTuning(NamedTuple):
    """What a run begins with."""

    config: TrainConfig
    about: tuple[str, ...]  #: sentences: the weights, the dataset, and the settings that were chosen


def fine_tuning(
    dataset: str | PathLike[str],
    model: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    epochs: int | None = None,
    batch: int | None = None,
    freeze: Literal["none", "backbone"] = "none",
    device: str = "auto",
) -> FineTuning:
    """The configuration of a run that adapts trained weights to a dataset.

    Args:
        dataset: folder or YAML file with labelled recordings in the splits train and val.
        model: a bundled name, or a ``.safetensors`` file.
        overrides: settings, as ``"key.sub=value"``; they replace those that are chosen here. With
            ``"strategy.labels=DIR"``, a folder of ``fate densify``, training uses its labels at its rates.
        epochs: number of epochs; the steps of an epoch depend on the number of labelled times.
        batch: clips in a batch; 4 on a CPU and 32 on a GPU unless given.
        freeze: "backbone" trains neck and head only, which is faster and needs few labels.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
    """
    weights = find_weights(model)
    card = read_card(weights)
    opened = open_dataset(dataset, "train").checked()
    opened.refuse_without_classes()
    times = sum(len(recording.labels.labelled_us) for recording in opened.labelled)
    opened.refuse_without_labels("training needs some in the split train")
    where = "cuda" if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()) else "cpu"
    usual_batch, windows, per_time, fewest, most = AMOUNTS[where]
    clips = batch or usual_batch
    total = min(max(per_time * times, fewest), most)
    name = card["model"]["name"]
    lr = next((rate for start, rate in LR.items() if name.startswith(start)), USUAL_LR)
    described = {key: card["model"][key] for key in ("name", "encoder", "encoder_options", "stem", "options")}
    tree: dict[str, Any] = {
        "model": {**described, "weights": str(weights), "transfer": True},
        "data": {
            "path": fspath(dataset), "steps": windows, "random": clips - clips // 2, "streams": clips // 2,
            "augmentation": "rvt", "workers": 0 if where == "cpu" else 4,
        },
        "strategy": {"decay": 0.99, "decay_warmup": total // 4},
        "optimiser": {
            "lr": lr, "warmup": 0.1, "backbone_lr": BACKBONE_LR, "only": "head" if freeze == "backbone" else "all"
        },
        "run": {
            "epochs": epochs or EPOCHS, "epoch_steps": -(-total // EPOCHS), "validate_every": VALIDATE_EVERY,
            "validate_hz": [20], "validate_recordings": 8 if where == "cpu" else 32, "device": device,
        },
    }  # fmt: skip
    dense = make_config(tree, overrides, f"{fspath(dataset)} with {fspath(model)}").strategy.labels
    if dense is not None:  # labels at every window of their rates; the first rate is the canonical one
        rates = PAPER_RATES if dense == EXACT else sorted({PAPER_RATES[0], *open_dense_labels(dense).rates})
        tree["strategy"] |= {"name": "fat", "rates": list(rates)}
    config = make_config(tree, overrides, f"{fspath(dataset)} with {fspath(model)}")
    shared = [each for each in opened.classes if plain(each) in {*map(plain, card["model"]["classes"])}]
    fresh = [each for each in opened.classes if each not in shared]
    of_length = ("length_affine", "image_history")
    gains_length = any(config.model.options.get(name) and not described["options"].get(name) for name in of_length)
    optimiser = config.optimiser
    backbone = "backbone frozen" if optimiser.only == "head" else f"backbone × {optimiser.backbone_lr:g}"
    about: tuple[str, ...] = (
        f"starts from {Path(fspath(model)).stem}"
        + (f"; keeps the layers of the classes {list_names(shared)}" if shared else "")
        + (f"; new layers for the classes {list_names(fresh)}" if fresh else "")
        + ("; parameters for the length of windows are new" if gains_length else ""),
        f"{plural(times, 'labelled time')} in {plural(len(opened.labelled), 'recording')} of {opened.sensor} pixels",
        f"{config.steps} steps of {config.batch_size} clips of {config.data.steps} windows;"
        f" learning rate {optimiser.lr:g}, {backbone}",
    )
    if dense is not None:
        listed = ", ".join(f"{hz:g}" for hz in config.rates)
        about += (f"strategy {config.strategy.name} with the dense labels of {dense}, at {listed} Hz",)
    return FineTuning(config, about)
