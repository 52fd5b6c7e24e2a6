"""Detectors of every family, small enough for tests, and windows of events for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fate.encoding.batch import EventBatch
from fate.models import state as states
from fate.models.detector import Detector
from fate.models.outputs import Outputs, Targets
from fate.models.state import State
from fate.models.zoo import build_model
from tests.encoding.conftest import Pair, crowded_windows

SENSOR = (60, 76)  # padded to 64×96
CLASSES = ("car", "pedestrian")
_DIMS = {"dims": (8, 16, 32, 64), "bottlenecks": 1}
_EVRT = {"depth": 18, "widths": (8, 16, 24, 32), "hidden": 32, "feedforward": 48, "expansion": 0.5}
#: A model of each family and the options that make it small.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "s5": ("s5-vit-b", _DIMS),
    "lstm": ("rvt-b", _DIMS),
    "get": ("get-b", {"channels": 32, "groups": 4, "depths": (1, 1, 1, 1)}),
    "evrt": ("evrt-detr-b", {**_EVRT, "layers": 2, "queries": 20}),
}


def small_detector(
    family: str,
    encoder: str = "pillars",
    encoder_options: Mapping[str, Any] | None = None,
    seed: int = 0,
    sensor: tuple[int, int] = SENSOR,
    **more: Any,
) -> Detector:
    """A detector in evaluation in which nothing stands at its simple beginning; pillars have 8 channels."""
    name, options = FAMILIES[family]
    own = {"channels": 8} if encoder == "pillars" else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        detector = build_model(
            name, CLASSES, sensor, encoder=encoder, encoder_options={**own, **(encoder_options or {})},
            **{**options, **more},
        )  # fmt: skip
        return stirred(detector).eval()


def stirred(detector: Detector) -> Detector:
    """The same with other weights, through which signals and memories pass at full strength: zeros hide mistakes."""
    with torch.no_grad():
        for name, parameter in detector.named_parameters():
            if name.endswith(("eigenvalues", "log_step")):  # of S5; longer steps, so that a few windows are remembered
                parameter.add_(2.0 if name.endswith("log_step") else 0.0)
            elif parameter.ndim > 1:
                gain = 0.2 if "_gate." in name else 1.2  # what is let in by half is seen
                parameter.normal_(std=gain / parameter[0].numel() ** 0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        for module in detector.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(std=0.2)
                module.running_var.uniform_(0.5, 1.5)
    return detector


def some_windows(count: int, seed: int = 0, sensor: tuple[int, int] = SENSOR, events: int = 1500) -> list[Pair]:
    """Windows of 5 to 50 ms; the second is empty."""
    return crowded_windows(seed, count, events, sensor)


def batch_of(pairs: Sequence[Pair]) -> EventBatch:
    """Those windows as a batch."""
    return EventBatch.from_windows(pairs)


def some_targets(boxes: int, seed: int = 0, sensor: tuple[int, int] = SENSOR) -> Targets:
    """Boxes of 4 to 30 pixels that begin inside the frame."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.tensor([sensor[1], sensor[0]])
    corner = torch.rand(boxes, 2, generator=generator) * (size - 30)
    sides = 4 + 26 * torch.rand(boxes, 2, generator=generator)
    return Targets.of(torch.cat([corner, corner + sides], 1), torch.arange(boxes) % len(CLASSES))


def parts_of(outputs: Outputs) -> dict[str, Tensor]:
    """The predictions by name."""
    found = {"boxes": outputs.boxes, "class_logits": outputs.class_logits}
    return found if outputs.objectness is None else {**found, "objectness": outputs.objectness}


def rows(outputs: Outputs, chosen: slice | list[int]) -> Outputs:
    """The predictions of some windows."""
    return Outputs(**{name: part[chosen] for name, part in parts_of(outputs).items()})


def joined(outputs: Sequence[Outputs]) -> Outputs:
    """Those of calls one after another."""
    parts = [parts_of(each) for each in outputs]
    return Outputs(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def difference(got: Outputs, wanted: Outputs) -> float:
    """The largest, relative to how much the numbers of its kind differ among themselves."""
    pairs = zip(parts_of(got).values(), parts_of(wanted).values(), strict=True)
    return max(float((a - b).abs().max() / b.std()) for a, b in pairs)


def state_difference(got: State, wanted: State) -> float:
    """The largest in what is remembered, relative to the largest number of each part."""
    pairs = zip(states.tensors(got), states.tensors(wanted), strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def difference_of_sets(got: Outputs, wanted: Outputs) -> float:
    """The largest of a window's predictions from the most similar one, relative as in ``difference``.

    For heads that choose and order queries by scores: rounding decides between scores that are nearly equal.
    """
    scales = wanted.boxes.std(), wanted.class_logits.std()
    one, other = (
        torch.cat([each.boxes / scales[0], each.class_logits / scales[1]], 2) for each in (got, wanted)
    )  # fmt: skip
    apart = (one[:, :, None] - other[:, None]).abs().amax(-1)  # [N, got, wanted]
    return max(float(apart.amin(1).max()), float(apart.amin(2).max()))
