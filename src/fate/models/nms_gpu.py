"""The best proposals of a head in two kernels on a GPU.

``nms.best_proposals`` and ``nms.best_classes`` sort all predictions by some twenty kernels. Here, every prediction
counts those that are better, which gives its rank: Q² comparisons are few for 1 680 predictions of a small frame.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from fate.models.outputs import Outputs

#: Predictions of a program, and those that it compares them with at once.
OWN, OTHERS = 32, 256
#: Columns of a proposal: box, confidence, score, class, objectness.
COLUMNS = 8


def best_rows(outputs: Outputs, confidence: float, most: int) -> Tensor:
    """The best proposals of each window, best first: [N, at most ``most``, 8].

    The columns are x1, y1, x2, y2, confidence (-1 if below the threshold), score, class and objectness, see
    ``nms.Candidates``.
    """
    boxes, logits, objectness = outputs.boxes, outputs.class_logits, cast(Tensor, outputs.objectness)
    windows, count, classes = logits.shape
    rows = torch.empty(windows, count, COLUMNS, device=boxes.device)
    best = torch.empty(windows, min(most, count), COLUMNS, device=boxes.device)
    grid = (triton.cdiv(count, OWN), windows)
    with _on(boxes.device):
        _describe[grid](
            boxes, logits, objectness, rows, confidence, count, classes, *boxes.stride(), *logits.stride(),
            *objectness.stride(), OWN=OWN,
        )  # fmt: skip
        _order[grid](rows, best, count, best.shape[1], OWN=OWN, OTHERS=OTHERS)
    return best


def best_pairs(outputs: Outputs, confidence: float, most: int) -> Tensor:
    """The best (query, class) pairs of each window of a head without objectness: [N, at most ``most``, 8].

    The columns are those of ``best_rows``; the score takes the place of objectness. Pairs below the threshold, of
    confidence -1, come last in the order of their queries.
    """
    boxes, logits = outputs.boxes, outputs.class_logits
    windows, count, classes = logits.shape
    pairs = count * classes
    rows = torch.empty(windows, pairs, COLUMNS, device=boxes.device)
    best = torch.empty(windows, min(most, pairs), COLUMNS, device=boxes.device)
    grid = (triton.cdiv(pairs, OWN), windows)
    with _on(boxes.device):
        _describe_pairs[grid](
            boxes, logits, rows, confidence, pairs, classes, *boxes.stride(), *logits.stride(), OWN=OWN
        )  # fmt: skip
        _order[grid](rows, best, pairs, best.shape[1], OWN=OWN, OTHERS=OTHERS)
    return best


def _on(device: torch.device) -> AbstractContextManager[object]:
    """A context in which kernels run on the GPU of the tensors (Triton's interpreter has no GPU)."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@triton.jit
def _describe_pairs(
    boxes, logits, rows, confidence, pairs, classes, box_n, box_q, box_c, logit_n, logit_q, logit_c, OWN: tl.constexpr
):
    window = tl.program_id(1)
    index = tl.program_id(0) * OWN + tl.arange(0, OWN)
    inside = index < pairs
    query, number = index // classes, index % classes
    logit = tl.load(logits + window * logit_n + query * logit_q + number * logit_c, mask=inside, other=0.0)
    score = tl.sigmoid(logit.to(tl.float32))
    to = rows + (window * pairs + index) * 8
    box = boxes + window * box_n + query * box_q
    for side in tl.static_range(4):
        tl.store(to + side, tl.load(box + side * box_c, mask=inside, other=0.0).to(tl.float32), mask=inside)
    tl.store(to + 4, tl.where(score >= confidence, score, -1.0), mask=inside)
    tl.store(to + 5, score, mask=inside)
    tl.store(to + 6, number.to(tl.float32), mask=inside)
    tl.store(to + 7, score, mask=inside)


@triton.jit
def _describe(
    boxes, logits, objectness, rows, confidence, count, classes, box_n, box_q, box_c, logit_n, logit_q, logit_c,
    object_n, object_q, OWN: tl.constexpr,
):  # fmt: skip
    window = tl.program_id(1)
    index = tl.program_id(0) * OWN + tl.arange(0, OWN)
    inside = index < count
    own = logits + window * logit_n + index * logit_q
    best = tl.load(own, mask=inside, other=0.0).to(tl.float32)
    chosen = tl.zeros((OWN,), tl.int32)
    for number in range(1, classes):
        logit = tl.load(own + number * logit_c, mask=inside, other=0.0).to(tl.float32)
        chosen = tl.where(logit > best, number, chosen)
        best = tl.maximum(best, logit)
    score = tl.sigmoid(best)
    there = tl.load(objectness + window * object_n + index * object_q, mask=inside, other=0.0).to(tl.float32)
    there = tl.sigmoid(there)
    product = there * score
    to = rows + (window * count + index) * 8
    box = boxes + window * box_n + index * box_q
    for side in tl.static_range(4):
        tl.store(to + side, tl.load(box + side * box_c, mask=inside, other=0.0).to(tl.float32), mask=inside)
    tl.store(to + 4, tl.where(product >= confidence, product, -1.0), mask=inside)
    tl.store(to + 5, score, mask=inside)
    tl.store(to + 6, chosen.to(tl.float32), mask=inside)
    tl.store(to + 7, there, mask=inside)


@triton.jit
def _order(rows, best, count, most, OWN: tl.constexpr, OTHERS: tl.constexpr):
    """Copy each row to its rank in the result; rows of equal confidence keep their order."""
    window = tl.program_id(1)
    first = rows + window * count * 8
    index = tl.program_id(0) * OWN + tl.arange(0, OWN)
    inside = index < count
    own = tl.load(first + index * 8 + 4, mask=inside, other=0.0)
    rank = tl.zeros((OWN,), tl.int32)
    for start in range(0, count, OTHERS):
        other = start + tl.arange(0, OTHERS)
        value = tl.load(first + other * 8 + 4, mask=other < count, other=-2.0)
        equal = (value[None, :] == own[:, None]) & (other[None, :] < index[:, None])
        rank += tl.sum(((value[None, :] > own[:, None]) | equal).to(tl.int32), 1)
    column = tl.arange(0, 8)
    chosen = (inside & (rank < most))[:, None] & (column[None, :] < 8)
    row = tl.load(first + index[:, None] * 8 + column[None, :], mask=chosen, other=0.0)
    tl.store(best + (window * most + rank)[:, None] * 8 + column[None, :], row, mask=chosen)
