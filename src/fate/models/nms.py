"""From raw predictions to detections: scores, non-maximum suppression (NMS) and clipping to the sensor.

Heads with objectness (YOLOX) predict many boxes for one object. As in RVT, each box keeps its best class, boxes with
objectness · class below the confidence are dropped, and greedy NMS keeps the best of overlapping boxes of a class. The
reported **score** is the class probability alone, as in the published evaluations; ``score="product"`` reports
objectness · class. Heads without objectness (DETR) learn to predict each object once. As published, they report the
best (query, class) pairs without NMS, unless ``max_overlap`` is given: small models predict some objects twice.

Greedy NMS has one rule: *a box is kept unless it overlaps a better box of its class that is kept*. On the CPU a
compiled loop (``nms_loops``) applies the rule from the best box down. On other devices it is applied to all boxes at
once until nothing changes: every round settles at least one more box, and the result is the same. Boxes of equal score
are ordered by their index in the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from torch import Tensor

from fate.encoding.spec import check_choice
from fate.errors import FateError
from fate.models.boxes import intersection_and_union
from fate.models.nms_loops import Limits, choose_boxes, finish_rows, sigmoids, suppress_boxes
from fate.models.outputs import Outputs

Score = Literal["class", "product"]

MAX_OVERLAP = 0.45  #: default IoU above which the weaker of two boxes of a class is dropped
ROUNDS = 8  #: rounds of NMS between two checks for completion, which wait for a GPU
PAIRS_AT_ONCE = 1 << 24  #: pairs of boxes compared at once; each takes about 40 bytes


class Detections(NamedTuple):
    """M detections of one window, sorted by decreasing confidence: objectness · class, or class without objectness.

    With ``score="class"`` the scores do not include objectness, so they need not decrease.
    """

    boxes: Tensor  #: [M, 4] xyxy, sensor pixels
    scores: Tensor  #: [M] 0 to 1
    class_ids: Tensor  #: [M] int64
    objectness: Tensor | None = None  #: [M] probability; None if the head has no objectness


class Candidates(NamedTuple):
    """K candidates for detections in each of N windows, best first."""

    boxes: Tensor  #: [N, K, 4] xyxy, pixels of the padded frame
    confidences: Tensor  #: [N, K] by which they are sorted; -1 if below the threshold
    scores: Tensor  #: [N, K] class probability
    class_ids: Tensor  #: [N, K] int64
    objectness: Tensor | None  #: [N, K]


def detections(
    outputs: Outputs,
    sensor: Sequence[int],
    *,
    confidence: float = 0.001,
    score: Score = "class",
    max_overlap: float | None = None,
    most: int = 300,
) -> list[Detections]:
    """Detections of each of N windows, on the CPU.

    Args:
        outputs: of any head.
        sensor: (rows, columns) to which boxes are clipped; boxes without area after clipping are dropped.
        confidence: threshold of objectness · class, or of class for heads without objectness.
        score: the score of heads with objectness: "class" as in RVT, or "product", objectness · class.
        max_overlap: IoU, 0 to 1, above which the weaker of two boxes of a class is dropped; 1 keeps all. None for the
            published evaluation: 0.45 for heads with objectness, no NMS for heads without (DETR).
        most: largest number of detections of a window, for heads without objectness.
    """
    check_choice("score", score, get_args(Score))
    if not len(outputs.boxes):
        return []
    if can_loop(outputs):
        return detections_by_loop(outputs, sensor, confidence, score, max_overlap)
    return detections_by_tensors(outputs, sensor, confidence, score, max_overlap, most)


@torch.no_grad()
def detections_by_tensors(
    outputs: Outputs,
    sensor: Sequence[int],
    confidence: float = 0.001,
    score: Score = "class",
    max_overlap: float | None = None,
    most: int = 300,
) -> list[Detections]:
    """``detections`` of any head on any device."""
    if outputs.objectness is None:
        found = best_classes(outputs, confidence, most)
    else:
        found = best_proposals(outputs, confidence)
    return finished(found, kept(found, max_overlap), sensor, score)


def can_loop(outputs: Outputs) -> bool:
    """Whether ``detections_by_loop`` supports these outputs: float32 with objectness, on the CPU."""
    if outputs.objectness is None:
        return False
    tensors = (outputs.boxes, outputs.class_logits, outputs.objectness)
    return all(each.is_cpu and each.dtype == torch.float32 for each in tensors)


def detections_by_loop(
    outputs: Outputs,
    sensor: Sequence[int],
    confidence: float = 0.001,
    score: Score = "class",
    max_overlap: float | None = None,
) -> list[Detections]:
    """``detections_by_tensors`` of heads with objectness on the CPU, with the same result to the bit.

    Few predictions are above the threshold. A compiled loop finds them by their logits, so that all else is computed
    for these only: calling torch for all of them takes ten times as long.
    """
    overlap = MAX_OVERLAP if max_overlap is None else check_max_overlap(max_overlap)
    limits = _limits(float(confidence), overlap, int(sensor[0]), int(sensor[1]))
    tensors = (outputs.boxes, outputs.class_logits, cast(Tensor, outputs.objectness))
    # Each layout in memory would be compiled by itself, which takes seconds.
    columns = (np.ascontiguousarray(each.detach().numpy()) for each in tensors)
    found = [
        choose_boxes(boxes, class_logits, objectness, limits, score == "product")
        for boxes, class_logits, objectness in zip(*columns, strict=True)
    ]
    with torch.inference_mode(False):  # callers may use the detections in training
        return [Detections(*map(torch.from_numpy, arrays)) for arrays in found]


def detections_of_rows(
    rows: Tensor,
    sensor: Sequence[int],
    score: Score = "class",
    max_overlap: float | None = None,
    *,
    objectness: bool = True,
) -> list[Detections]:
    """``detections`` of the best proposals of N windows, on the CPU, by a compiled loop.

    Args:
        rows: [N, K, 8] float32, best first: x1, y1, x2, y2, confidence (-1 below the threshold), score, class,
            objectness.
        sensor, score, max_overlap: as in ``detections``.
        objectness: whether the head has objectness; without it, the last column is ignored.
    """
    published = MAX_OVERLAP if objectness else math.inf
    overlap = published if max_overlap is None else check_max_overlap(max_overlap)
    limits = _limits(0.0, overlap, int(sensor[0]), int(sensor[1]))
    found = [finish_rows(window, limits, score == "product") for window in np.ascontiguousarray(rows.numpy())]
    with torch.inference_mode(False):  # callers may use the detections in training
        return [Detections(*map(torch.from_numpy, arrays if objectness else arrays[:3])) for arrays in found]


@lru_cache(typed=True)
def _limits(confidence: float, overlap: float, height: int, width: int) -> Limits:
    """What the loop needs to know of the options of ``detections``."""
    least = -math.inf  # the smaller of two probabilities is not below their product
    if confidence > 1e-30:
        limit = min(confidence, 1 - 1e-6)
        least = math.log(limit) - math.log1p(-limit) - 0.01  # a margin for rounding
    return np.float32(least), np.float32(confidence), np.float32(overlap), np.float32(width), np.float32(height)


def finished(found: Candidates, keep: Tensor, sensor: Sequence[int], score: Score = "class") -> list[Detections]:
    """Make detections of the candidates that ``keep`` [N, K] selects; other arguments as in ``detections``.

    It uses numpy: a window has a few boxes, for which calling torch takes longer than computing.
    """
    height, width = sensor
    boxes = found.boxes.cpu().numpy()
    clipped = np.empty_like(boxes)
    np.clip(boxes[..., 0::2], 0, width, out=clipped[..., 0::2])
    np.clip(boxes[..., 1::2], 0, height, out=clipped[..., 1::2])
    stays = keep.cpu().numpy() & (clipped[..., 2] > clipped[..., 0]) & (clipped[..., 3] > clipped[..., 1])
    reported = found.confidences if score == "product" else found.scores
    columns = [reported, found.class_ids] + ([] if found.objectness is None else [found.objectness])
    arrays = [clipped, *(column.cpu().numpy() for column in columns)]
    with torch.inference_mode(False):  # callers may use the detections in training
        return [
            Detections(*(torch.from_numpy(array[window][chosen]) for array in arrays))
            for window, chosen in enumerate(stays)
        ]


def best_proposals(outputs: Outputs, confidence: float, most: int | None = None) -> Candidates:
    """Predictions of a head with objectness, each with its best class, sorted by objectness · class.

    ``most`` is K, which a CUDA graph needs to be fixed; None for the largest number above the confidence in a window.
    """
    if outputs.objectness is None:
        raise FateError("outputs without objectness were given; expected those of a YOLOX head")
    logits, class_ids = outputs.class_logits.float().max(-1)
    scores, objectness = sigmoid(logits), sigmoid(outputs.objectness.float())
    products = objectness * scores
    confidences = torch.where(products >= confidence, products, -1.0)
    order = _best_first(confidences, int((confidences >= 0).sum(1).max()) if most is None else most)
    columns = (column.gather(1, order) for column in (confidences, scores, class_ids, objectness))
    return Candidates(outputs.boxes.float().gather(1, order[:, :, None].expand(-1, -1, 4)), *columns)


def sigmoid(logits: Tensor) -> Tensor:
    """``torch.sigmoid``; on the CPU, equal logits have equal results.

    torch computes the last few numbers of a tensor, and numbers that are not contiguous, with another formula.
    """
    if logits.device.type != "cpu":
        return logits.sigmoid()
    return torch.from_numpy(sigmoids(logits.detach().reshape(-1).numpy())).view(logits.shape)


def best_classes(outputs: Outputs, confidence: float, most: int) -> Candidates:
    """The best K = ``most`` (query, class) pairs of a head without objectness, or all if they are fewer."""
    classes = outputs.class_logits.shape[-1]
    scores = outputs.class_logits.float().sigmoid().flatten(1)
    order = _best_first(scores, most)
    query = torch.div(order, classes, rounding_mode="floor")
    scores = scores.gather(1, order)
    boxes = outputs.boxes.float().gather(1, query[:, :, None].expand(-1, -1, 4))
    confidences = torch.where(scores >= confidence, scores, -1.0)
    return Candidates(boxes, confidences, scores, order - query * classes, None)


def kept(candidates: Candidates, max_overlap: float | None) -> Tensor:
    """[N, K] bool: which candidates become detections; ``max_overlap`` as in ``detections``."""
    if max_overlap is None and candidates.objectness is None:
        return candidates.confidences >= 0
    return suppress(candidates, MAX_OVERLAP if max_overlap is None else check_max_overlap(max_overlap))


def check_max_overlap(max_overlap: float) -> float:
    """Return the IoU as a float; refuse anything but a number from 0 to 1."""
    if isinstance(max_overlap, bool) or not isinstance(max_overlap, int | float) or not 0 <= max_overlap <= 1:
        raise FateError(f"max_overlap={max_overlap!r} was given; expected an IoU from 0 to 1 (1 keeps every box)")
    return float(max_overlap)


def suppress(candidates: Candidates, max_overlap: float) -> Tensor:
    """Greedy NMS among boxes of a class: [N, K] bool, which candidates are kept; those of confidence -1 are not."""
    if candidates.boxes.device.type == "cpu":
        return suppress_by_loop(candidates, max_overlap)
    return suppress_by_tensors(candidates, max_overlap)


def suppress_by_tensors(candidates: Candidates, max_overlap: float) -> Tensor:
    """``suppress`` on any device, for as many windows at a time as memory allows."""
    columns = (candidates.boxes, candidates.class_ids, candidates.confidences >= 0)
    step = max(1, PAIRS_AT_ONCE // max(1, candidates.boxes.shape[1] ** 2))
    parts = zip(*(torch.split(column, step) for column in columns), strict=True)
    return torch.cat([_settled(boxes, ids, there, max_overlap) for boxes, ids, there in parts])


def _settled(boxes: Tensor, class_ids: Tensor, there: Tensor, max_overlap: float) -> Tensor:
    """Apply the rule to all boxes at once until nothing changes: [N, K, 4], [N, K] and [N, K] bool → [N, K] bool."""
    common, union = intersection_and_union(boxes[:, :, None], boxes[:, None])  # [N, better, worse]
    same_class = class_ids[:, :, None] == class_ids[:, None]
    beats = ((common > max_overlap * union) & same_class).triu(1).float()
    stays = there
    while True:
        for _ in range(ROUNDS):
            beaten = (stays.float()[:, None] @ beats).squeeze(1) > 0
            before, stays = stays, there & ~beaten
        if torch.equal(stays, before):
            return stays


def suppress_by_loop(candidates: Candidates, max_overlap: float) -> Tensor:
    """``suppress`` on the CPU."""
    corners = np.ascontiguousarray(candidates.boxes.numpy().transpose(0, 2, 1))
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    stays = (candidates.confidences.numpy() >= 0).astype(np.int32)
    suppress_boxes(corners, areas, candidates.class_ids.numpy().astype(np.int32), np.float32(max_overlap), stays)
    return torch.from_numpy(stays.astype(bool))


def _best_first(values: Tensor, most: int) -> Tensor:
    """[N, Q] → [N, at most ``most``] indices of the largest; ties are sorted by index, unlike in ``topk``."""
    return values.sort(dim=1, descending=True, stable=True).indices[:, :most]
