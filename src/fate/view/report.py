"""The report of a detection run: one HTML file with the video, plots that follow it, tracks and numbers.

The page loads nothing else; its content policy forbids it. ``templates/report.html`` holds its tables, and
``templates/report.js`` draws the plots and drives the player. All data is in the page as JSON, and its size is bounded
for recordings of any length: curves over time are averaged in bins, latencies are counted in a histogram, and the list
of tracks is limited. The video is in the page too, as base64, unless it is larger than a limit; then it is a file in
the same folder.
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fate.boxes.detections import DetectionFrame, FrameLookup, class_name
from fate.errors import FateError
from fate.formats.recording import Recording
from fate.text import significant
from fate.view.page import check_page_name, write_page
from fate.view.rendering import VideoClock
from fate.whole_files import find_target, write_whole

TIME_BINS = 400  # of a curve over time; about one for two pixels of a wide screen
LATENCY_BINS = 48
MOST_TRACKS = 500  # listed on the page
READ_US = 200_000  # of a recording that are read at once
EMBED_LIMIT = 48 << 20  # bytes of video in the page; a page with more would open slowly and take much memory


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


def write_report(
    path: str | os.PathLike[str],
    video: str | os.PathLike[str] | bytes | None,
    frames: Sequence[DetectionFrame],
    summary: Mapping[str, Any],
    *,
    title: str,
    lead: str = "",
    clock: VideoClock | None = None,
    classes: Sequence[str] | None = None,
    event_rate: tuple[ArrayLike, ArrayLike] | None = None,
    hz: float | None = None,
    embed_limit: int = EMBED_LIMIT,
) -> None:
    """Write the page, whole or not at all.

    Args:
        path: an ``.html``; replaced if it exists.
        video: an MP4 as a file or its bytes, from :func:`fate.view.rendering.render_video`; ``None`` for none.
        frames: detections in order of time; frames of ``detector.stream`` have the latency of each stage.
        summary: values by name, or by section and name; shown in a table.
        title: the page's title, plain text.
        lead: a sentence under the title.
        clock: which time each picture of the video shows; ``render_video`` returns it. Needed with a video.
        classes: names of the class ids.
        event_rate: times [N] in µs and events a second [N], from :func:`measure_event_rate`.
        hz: rate of the detector; 1 / hz is the budget of a window. The frames' own spacing unless given.
        embed_limit: a video with more bytes than this is not put into the page but linked; a video given as bytes is
            then written to ``<name of the page>.mp4``.
    """
    target = Path(path)
    check_page_name(path)
    beside = find_target(path, text=True).kind == "file"  # a device or a pipe has no folder for a video
    if (video is None) != (clock is None):
        raise FateError("a video and its clock belong together; give write_report both, or neither")
    data = _numbers(frames, clock, classes, event_rate, hz)
    stages, budget = [], (data["latency"] or {}).get("budget_ms")
    for stage in (data["latency"] or {}).get("stages", ()):
        share = (stage["p99"] / budget,) if budget else ()  # from ten times the budget on, as a multiple
        shares = [f"{significant(n)} ×" if n >= 9.95 else f"{significant(100 * n)} %" for n in share]
        stages.append([stage["name"], *(significant(stage[key], 3) for key in ("p50", "p99", "max")), *shares])
    single = {name: value for name, value in summary.items() if not isinstance(value, Mapping)}
    tables = {"": single, **{name: value for name, value in summary.items() if isinstance(value, Mapping)}}
    sections = [(name, [(key, _value(value)) for key, value in rows.items()]) for name, rows in tables.items() if rows]
    write_page(
        target, "report.html", title=title, lead=lead, data=data, stages=stages, sections=sections, number=_number,
        rate=_rate, time=_time,
        player=None if video is None else _player(target, video, embed_limit if beside else None),
    )  # fmt: skip


def _numbers(
    frames: Sequence[DetectionFrame],
    clock: VideoClock | None,
    classes: Sequence[str] | None,
    event_rate: tuple[ArrayLike, ArrayLike] | None,
    hz: float | None,
) -> dict[str, Any]:
    """Return all numbers of the page. Same arguments as :func:`write_report`."""
    lookup = FrameLookup(frames)
    times, rates = (np.asarray(column, np.float64) for column in event_rate or ((), ()))
    if times.ndim != 1 or times.shape != rates.shape or not np.isfinite(rates).all() or (np.diff(times) < 0).any():
        raise FateError(
            f"event_rate holds times of shape {times.shape} and rates of shape {rates.shape}; expected two rows of the"
            " same length, times in order and rates finite, as measure_event_rate gives them"
        )
    shown = [] if clock is None else [clock.first_us, clock.time_us(clock.num_frames - 1)]
    every = np.concatenate([lookup.times, times.astype(np.int64), np.array(shown, np.int64)])
    start, end = (int(every.min()), int(every.max())) if len(every) else (0, 1)
    return {
        "origin_us": clock.origin_us if clock is not None else start,
        "start_us": start,
        "end_us": max(end, start + 1),
        "clock": None if clock is None else {
            "first_us": clock.first_us, "step_us": clock.step_us, "fps": clock.fps, "num_frames": clock.num_frames
        },
        "classes": _classes(frames, classes),
        "rate": {"t_us": times.astype(np.int64).tolist(), "per_s": [round(rate, 1) for rate in rates.tolist()]}
        if len(times)
        else None,
        "boxes": _boxes_over_time(frames, lookup.times, start, end),
        "frames": {
            "count": len(frames), "hz": round(hz or lookup.hz, 3), "boxes": sum(len(frame.scores) for frame in frames)
        },
        "latency": _latency(frames, hz or lookup.hz),
        "tracks": _tracks(frames, classes),
    }  # fmt: skip


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


def _latency(frames: Sequence[Any], hz: float) -> dict[str, Any] | None:
    """Return a histogram of each stage and of the total over common logarithmic bins; None without times.

    Frames of ``detector.stream`` have times. A stage whose times are all 0 is left out: on a GPU several run as one.
    """
    timed = [frame for frame in frames if getattr(frame, "ms", None)]
    times = {name: np.array([frame.ms[name] for frame in timed]) for name in (timed[0].ms if timed else ())}
    times["total"] = np.array([frame.total_ms for frame in timed])
    stages = {name: ms for name, ms in times.items() if ms.any()}
    if not stages:
        return None
    every = np.concatenate(list(stages.values()))
    low = max(1e-3, float(every[every > 0].min()))
    edges = np.geomspace(low * 0.99, max(low, float(every.max())) * 1.01, LATENCY_BINS + 1)
    budget = 1000 / hz if hz else None
    return {
        "budget_ms": budget,
        "windows": len(timed),
        "over_budget": int((times["total"] > budget).sum()) if budget else None,
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
    boxes: dict[int, list[tuple[int, int, float]]] = {}
    for frame in frames:
        for row, track in enumerate(() if frame.track_ids is None else frame.track_ids):
            if track >= 0:
                box = (int(frame.t_us), int(frame.class_ids[row]), float(frame.scores[row]))
                boxes.setdefault(int(track), []).append(box)
    table: list[dict[str, Any]] = []
    for track, of_track in boxes.items():
        times, ids, scores = zip(*of_track, strict=True)
        class_id = max(set(ids), key=ids.count)
        table.append({
            "id": track, "class_id": class_id, "name": class_name(class_id, classes), "first_us": times[0],
            "last_us": times[-1], "boxes": len(times), "score": round(float(np.mean(scores)), 4),
        })  # fmt: skip
    # if there are too many, the longest are listed
    listed = sorted(table, key=lambda row: row["last_us"] - row["first_us"], reverse=True)[:MOST_TRACKS]
    listed.sort(key=lambda row: (row["first_us"], row["id"]))
    return {"total": len(table), "rows": listed}


def _player(target: Path, video: str | os.PathLike[str] | bytes, limit: int | None) -> dict[str, str]:
    """Return the video as base64 if it is small enough, otherwise its address, with a note about it."""
    try:
        size = len(video) if isinstance(video, bytes) else Path(video).stat().st_size
        if limit is None or size <= limit:
            content = video if isinstance(video, bytes) else Path(video).read_bytes()
            return {"href": "", "note": "", "content": base64.b64encode(content).decode("ascii")}
    except OSError as error:
        raise FateError(f"{video!s}: the video cannot be read ({error.strerror}); write it before its report") from None
    beside = target.with_suffix(".mp4") if isinstance(video, bytes) else Path(video)
    if isinstance(video, bytes):
        write_whole(beside, video)
    href = Path(os.path.relpath(beside, target.parent)).as_posix()
    note = f"The video ({size / 1e6:.0f} MB) is not inside this page but beside it, as {href}; keep the two together."
    return {"href": quote(os.fsencode(href)), "note": note, "content": ""}


def _value(value: Any) -> str:
    """Return a value of the summary as text."""
    value = value.tolist() if hasattr(value, "tolist") else value  # numbers of numpy
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return _number(value)
    if isinstance(value, float):
        return _number(round(value)) if 1e5 <= abs(value) < math.inf else f"{value:.5g}"
    if isinstance(value, list | tuple):
        return ", ".join(_value(each) for each in value) or "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(each)}" for key, each in value.items()) or "–"
    return str(value)


def _number(value: int) -> str:
    return f"{value:,}".replace(",", "\u202f")  # a narrow space that does not break


def _time(ms: float) -> str:
    """Return a time in ms as text with a fitting unit: 48.3 ms, 1.27 s."""
    return f"{significant(ms / 1e3, 3)} s" if ms >= 999.5 else f"{significant(ms, 3)} ms"


def _rate(per_s: float) -> str:
    if per_s >= 1e6:
        return f"{per_s / 1e6:.2f} Mev/s"
    return f"{per_s / 1e3:.1f} kev/s" if per_s >= 1e3 else f"{per_s:.0f} ev/s"
