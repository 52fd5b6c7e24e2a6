"""The numbers of a report page, computed from detections and times; they go into the page as JSON.

Their size is bounded for recordings of any length: curves over time are averaged in bins, latencies are counted in a
histogram, and the list of tracks is limited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fate.boxes.detections import DetectionFrame, FrameLookup, class_name
from fate.errors import FateError
from fate.formats.recording import Recording
from fate.view.rendering import VideoClock

TIME_BINS = 400  # of a curve over time; about one for two pixels of a wide screen
LATENCY_BINS = 48
MOST_TRACKS = 500  # listed on the page
READ_US = 200_000  # of a recording that are read at once


def measure_event_rate(
    recording: Recording, start_us: int | None = None, end_us: int | None = None, bins: int = TIME_BINS
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Measure the event rate over ``[start_us, end_us)``.

    Returns:
        Centres of equal bins [N] in µs, and their rates [N] in events per second. A bin is at least 1 ms long.
    """
    start = recording.start_us if start_us is None else start_us
    end = recording.end_us if end_us is None else end_us
    if end <= start:
        raise FateError(f"the event rate from {start} to {end} µs was asked for; the end must come after the start")
    count = max(1, min(bins, (end - start) // 1000))
    edges = np.linspace(start, end, count + 1).round().astype(np.int64)
    totals = np.zeros(count, np.int64)
    for begin in range(start, end, READ_US):
        times = recording.read(begin, min(end, begin + READ_US)).t_us
        totals += np.diff(np.searchsorted(times, edges))
    return (edges[:-1] + edges[1:]) // 2, totals / (np.diff(edges) * 1e-6)


def latencies_of(frames: Sequence[DetectionFrame]) -> dict[str, list[float]]:
    """Return milliseconds by stage from the frames' ``ms``, and ``total`` from their ``total_ms``, if they have them.

    A stage whose times are all 0 is left out: on a GPU several stages run as one.
    """
    stages: dict[str, list[float]] = {}
    for frame in frames:
        for stage, ms in (getattr(frame, "ms", None) or {}).items():
            stages.setdefault(stage, []).append(float(ms))
        if (total := getattr(frame, "total_ms", None)) is not None:
            stages.setdefault("total", []).append(float(total))
    in_order = sorted(stages, key=lambda stage: stage == "total")  # the total last
    return {stage: stages[stage] for stage in in_order if any(stages[stage])}


def report_data(
    frames: Sequence[DetectionFrame],
    *,
    clock: VideoClock | None,
    classes: Sequence[str] | None,
    event_rate: tuple[ArrayLike, ArrayLike] | None,
    hz: float | None,
    latency_ms: Mapping[str, Sequence[float]] | None,
) -> dict[str, Any]:
    """Return all numbers of the page. The arguments are those of :func:`fate.view.report.write_report`."""
    lookup = FrameLookup(frames)
    rate = _checked_rate(event_rate)
    spans = [lookup.times] if len(lookup.times) else []
    if rate is not None:
        spans.append(rate[0])
    if clock is not None:
        spans.append(np.array([clock.first_us, clock.time_us(clock.num_frames - 1)]))
    start = int(min(span.min() for span in spans)) if spans else 0
    end = int(max(span.max() for span in spans)) if spans else 1
    counts = [len(frame.scores) for frame in frames]
    return {
        "origin_us": clock.origin_us if clock is not None else start,
        "start_us": start,
        "end_us": max(end, start + 1),
        "clock": None if clock is None else {
            "first_us": clock.first_us, "step_us": clock.step_us, "fps": clock.fps, "num_frames": clock.num_frames
        },
        "classes": _classes(frames, classes),
        "rate": None if rate is None else {"t_us": rate[0].tolist(), "per_s": [round(float(r), 1) for r in rate[1]]},
        "boxes": _boxes_over_time(frames, lookup.times, start, end),
        "frames": {"count": len(frames), "hz": round(hz or lookup.hz, 3), "boxes": int(sum(counts))},
        "latency": _latency(latencies_of(frames) if latency_ms is None else latency_ms, hz or lookup.hz or None),
        "tracks": _tracks(frames, classes),
    }  # fmt: skip


def _checked_rate(
    event_rate: tuple[ArrayLike, ArrayLike] | None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    if event_rate is None:
        return None
    times, rates = np.asarray(event_rate[0], np.int64), np.asarray(event_rate[1], np.float64)
    if times.ndim != 1 or times.shape != rates.shape or not np.isfinite(rates).all() or (np.diff(times) < 0).any():
        raise FateError(
            f"event_rate holds times of shape {times.shape} and rates of shape {rates.shape}; expected two rows of the"
            " same length, times in order and rates finite, as measure_event_rate gives them"
        )
    return (times, rates) if len(times) else None


def _classes(frames: Sequence[DetectionFrame], names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return every class that has a name or a box, with the number of its boxes."""
    ids = [np.asarray(frame.class_ids, np.int64) for frame in frames if len(frame.class_ids)]
    counts = np.bincount(np.concatenate(ids)) if ids else np.zeros(0, np.int64)
    total = max(len(counts), len(names or ()))
    return [
        {"id": each, "name": class_name(each, names), "count": int(counts[each]) if each < len(counts) else 0}
        for each in range(total)
        if each < len(names or ()) or counts[each]
    ]


def _boxes_over_time(
    frames: Sequence[DetectionFrame], times: NDArray[np.int64], start: int, end: int
) -> dict[str, Any]:
    """Return boxes per frame by class, averaged in equal bins of time; a bin without frames has ``None``."""
    if not len(frames):
        return {"t_us": [], "by_class": {}}
    bins = max(1, min(TIME_BINS, len(frames)))
    width = (end - start + 1) / bins
    bin_index = np.minimum(((times - start) / width).astype(np.int64), bins - 1)
    frames_in_bin = np.bincount(bin_index, minlength=bins)
    by_class: dict[str, list[float | None]] = {}
    owner = np.repeat(bin_index, [len(frame.class_ids) for frame in frames])
    ids = np.concatenate([np.asarray(frame.class_ids, np.int64) for frame in frames])
    for each in np.unique(ids):
        found = np.bincount(owner[ids == each], minlength=bins)
        by_class[str(each)] = [
            round(int(n) / int(of), 3) if of else None for n, of in zip(found, frames_in_bin, strict=True)
        ]
    middles = (start + (np.arange(bins) + 0.5) * width).round().astype(np.int64)
    return {"t_us": middles.tolist(), "by_class": by_class}


def _latency(by_stage: Mapping[str, Sequence[float]], hz: float | None) -> dict[str, Any] | None:
    """Return a histogram of each stage and of the total over common logarithmic bins."""
    stages = {name: np.asarray(ms, np.float64) for name, ms in by_stage.items() if len(ms)}
    if not stages:
        return None
    lengths = {len(ms) for ms in stages.values()}
    total_is = "what the detector reports for a whole window"
    if "total" not in stages and len(lengths) == 1 and len(stages) > 1:
        stages["total"] = np.sum(list(stages.values()), axis=0)
        total_is = "the sum of the stages"
    for name, ms in stages.items():
        if not np.isfinite(ms).all() or (ms < 0).any():
            raise FateError(f"latencies of stage {name!r} are not all finite and at least 0; expected milliseconds")
    every = np.concatenate(list(stages.values()))
    low = max(1e-3, float(every[every > 0].min(initial=np.inf)) if (every > 0).any() else 1e-3)
    edges = np.geomspace(low * 0.99, max(low, float(every.max())) * 1.01, LATENCY_BINS + 1)
    budget = 1000 / hz if hz else None
    whole = stages.get("total", next(iter(stages.values())) if len(stages) == 1 else np.zeros(0))
    return {
        "budget_ms": budget,
        "windows": len(whole),
        "total_is": total_is if "total" in stages else "",
        "over_budget": int((whole > budget).sum()) if budget else None,
        "edges_ms": [float(f"{edge:.5g}") for edge in edges],
        "stages": [
            {
                "name": name,
                "counts": np.histogram(np.maximum(ms, edges[0]), edges)[0].tolist(),
                "p50": round(float(np.percentile(ms, 50)), 4),
                "p99": round(float(np.percentile(ms, 99)), 4),
                "max": round(float(ms.max()), 4),
            }
            for name, ms in stages.items()
        ],
    }


def _tracks(frames: Sequence[DetectionFrame], classes: Sequence[str] | None) -> dict[str, Any] | None:
    """Return one row per track in order of its first box: first and last time, number of boxes, mean score."""
    if all(frame.track_ids is None for frame in frames):
        return None
    rows: dict[int, tuple[list[int], list[int], list[float]]] = {}
    for frame in frames:
        tracks = () if frame.track_ids is None else frame.track_ids
        for row, track in enumerate(tracks):
            if track >= 0:
                times, ids, scores = rows.setdefault(int(track), ([], [], []))
                times.append(int(frame.t_us))
                ids.append(int(frame.class_ids[row]))
                scores.append(float(frame.scores[row]))
    table: list[dict[str, Any]] = [
        {
            "id": track,
            "class_id": max(set(ids), key=ids.count),
            "name": class_name(max(set(ids), key=ids.count), classes),
            "first_us": times[0],
            "last_us": times[-1],
            "boxes": len(times),
            "score": round(float(np.mean(scores)), 4),
        }
        for track, (times, ids, scores) in rows.items()
    ]
    # if there are too many, the longest are listed
    listed = sorted(table, key=lambda row: row["last_us"] - row["first_us"], reverse=True)[:MOST_TRACKS]
    listed.sort(key=lambda row: (row["first_us"], row["id"]))
    return {"total": len(table), "rows": listed}
