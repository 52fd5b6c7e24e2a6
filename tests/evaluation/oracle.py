"""Outside opinions: the rules of Prophesee's toolbox, written as plain loops, and pycocotools for the figures."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

BOX = np.dtype(
    {
        "names": ["t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence"],
        "formats": ["<i8", "<f4", "<f4", "<f4", "<f4", "<u4", "<u4", "<f4"],
        "offsets": [0, 8, 12, 16, 20, 24, 28, 32],
        "itemsize": 40,
    }
)


def boxes(random: np.random.Generator, times: Sequence[int], most: int, classes: int, whole: bool = False) -> Any:
    """Up to ``most`` boxes of a few classes at each time, some at the limits of size, some exactly alike."""
    rows = []
    for t in times:
        for _ in range(int(random.integers(0, most + 1))):
            x, y = random.uniform(0, 250), random.uniform(0, 150)
            w, h = random.choice([10, 20, 30, 32, 96, random.uniform(5, 130)], 2)
            if whole:
                x, y, w, h = (float(np.rint(value)) for value in (x, y, w, h))
            rows.append((t, x, y, w, h, random.integers(0, classes), 0, np.round(random.uniform(0, 1), 1)))
    return np.array(rows, BOX)


def moved(random: np.random.Generator, truth: Any, jitter: float, times: Sequence[int]) -> Any:
    """Predictions near the truth, at other times, in order of time."""
    found = np.repeat(truth, 2)
    for name in "xywh":
        found[name] += random.normal(0, jitter, len(found)).astype(np.float32)
    found["w"], found["h"] = np.maximum(found["w"], 1), np.maximum(found["h"], 1)
    found["t"] += random.choice(times, len(found))
    found["class_confidence"] = np.round(random.uniform(0, 1, len(found)), 2)
    return found[np.argsort(found["t"], kind="stable")]


def toolbox_frames(truth: Any, found: Any, tolerance: int, diagonal: float, side: float, skip: int = 500_000) -> Any:
    """Filter both, then for every time of truth what is there and what was found within the tolerance."""

    def kept(table: Any) -> Any:
        width, height = table["w"], table["h"]
        large = (width**2 + height**2 >= diagonal**2) & (width >= side) & (height >= side)
        return table[(table["t"] > skip) & large]

    truth, found = kept(truth), kept(found)
    return [
        (truth[truth["t"] == t], found[(found["t"] >= t - tolerance) & (found["t"] <= t + tolerance)])
        for t in np.unique(truth["t"])
    ]


def coco_evaluation(frames: Sequence[tuple[Any, Any]], classes: int, most: int = 100) -> COCOeval:
    """pycocotools on frames of structured arrays, as the toolbox hands them over."""
    annotations, results = [], []
    for number, (truth, found) in enumerate(frames, 1):
        for row in truth:
            box = [row[name] for name in "xywh"]
            annotations.append(
                {"id": len(annotations) + 1, "image_id": number, "category_id": int(row["class_id"]) + 1, "bbox": box,
                 "area": float(row["w"] * row["h"]), "iscrowd": 0}
            )  # fmt: skip
        results += [
            {"image_id": number, "category_id": int(row["class_id"]) + 1, "bbox": [row[name] for name in "xywh"],
             "score": float(row["class_confidence"])}
            for row in found
        ]  # fmt: skip
    known = COCO()
    known.dataset = {
        "info": {},
        "images": [{"id": number + 1, "width": 304, "height": 240} for number in range(len(frames))],
        "annotations": annotations,
        "categories": [{"id": number + 1, "name": str(number)} for number in range(classes)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        known.createIndex()
        if results:
            answers = known.loadRes(results)
        else:  # loadRes fails on an empty list
            answers = COCO()
            answers.dataset = {**known.dataset, "annotations": []}
            answers.createIndex()
        evaluation = COCOeval(known, answers, "bbox")
        evaluation.params.maxDets = [1, 10, most]
        evaluation.params.imgIds = list(range(1, len(frames) + 1))
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation


def coco_figures(evaluation: COCOeval, place: int | None = None) -> dict[str, float | None]:
    """The figures by our names, of all classes or of one; None where COCO has -1."""
    classes = slice(None) if place is None else slice(place, place + 1)
    precision = evaluation.eval["precision"][:, :, classes]
    recall = evaluation.eval["recall"][:, classes]
    most = evaluation.params.maxDets[-1]

    def mean(values: Any) -> float | None:
        return float(values[values > -1].mean()) if (values > -1).any() else None

    figures = {"AP50:95": mean(precision[..., 0, -1]), "AP50": mean(precision[0, ..., 0, -1])}
    figures["AP75"] = mean(precision[5, ..., 0, -1])
    for size, name in enumerate(("small", "medium", "large"), 1):
        figures[f"AP50:95 {name}"] = mean(precision[..., size, -1])
        figures[f"AR{most} {name}"] = mean(recall[..., size, -1])
    for limit, number in enumerate((1, 10, most)):
        figures[f"AR{number}"] = mean(recall[..., 0, limit])
    return figures
