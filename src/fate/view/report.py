"""The report of a detection run: one HTML file with the video, plots that follow it, tracks and numbers.

The page loads nothing else; its content policy forbids it. ``templates/report.html`` holds its tables, and
``templates/report.js`` draws the plots and drives the player. All data is in the page as JSON. The video is in the page
too, as base64, unless it is larger than a limit; then it is a file in the same folder.
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from numpy.typing import ArrayLike

from fate.boxes.detections import DetectionFrame
from fate.errors import FateError
from fate.text import significant
from fate.view.page import write_page
from fate.view.rendering import VideoClock
from fate.view.report_data import measure_event_rate, report_data
from fate.whole_files import find_target, write_whole

__all__ = ["measure_event_rate", "write_report"]

EMBED_LIMIT = 48 << 20  # bytes of video in the page; a page with more would open slowly and take much memory


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
    latency_ms: Mapping[str, Sequence[float]] | None = None,
    embed_limit: int = EMBED_LIMIT,
) -> None:
    """Write the page, whole or not at all.

    Args:
        path: an ``.html``; replaced if it exists.
        video: an MP4 as a file or its bytes, from :func:`fate.view.rendering.render_video`; ``None`` for none.
        frames: detections in order of time.
        summary: values by name, or by section and name; shown in a table.
        title: the page's title, plain text.
        lead: a sentence under the title.
        clock: which time each picture of the video shows; ``render_video`` returns it. Needed with a video.
        classes: names of the class ids.
        event_rate: times [N] in µs and events a second [N], from :func:`measure_event_rate`.
        hz: rate of the detector; 1 / hz is the budget of a window. The frames' own spacing unless given.
        latency_ms: milliseconds by stage, one for each window; the frames' ``ms`` unless given.
        embed_limit: a video with more bytes than this is not put into the page but linked; a video given as bytes is
            then written to ``<name of the page>.mp4``.
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise FateError(f"{path}: a report is a page; give a name that ends in .html")
    beside = find_target(path, text=True).kind == "file"  # a device or a pipe has no folder for a video
    if (video is None) != (clock is None):
        raise FateError("a video and its clock belong together; give write_report both, or neither")
    data = report_data(frames, clock=clock, classes=classes, event_rate=event_rate, hz=hz, latency_ms=latency_ms)
    data["title"], data["summary"] = title, _plain(summary)
    write_page(
        target, "report.html", title=title, lead=lead, data=data, cards=_cards(data), stages=_stages(data["latency"]),
        sections=_sections(data["summary"]), number=_number, rate=_rate,
        player=None if video is None else _player(target, video, embed_limit if beside else None),
    )  # fmt: skip


def _player(target: Path, video: str | os.PathLike[str] | bytes, limit: int | None) -> dict[str, str]:
    """Return the video as base64 if it is small enough, otherwise its address, with a note about it."""
    source = None if isinstance(video, bytes) else Path(video)
    try:
        size = len(video) if isinstance(video, bytes) else Path(video).stat().st_size
        embedded = limit is None or size <= limit
        content = (video if isinstance(video, bytes) else Path(video).read_bytes()) if embedded else b""
    except OSError as error:
        raise FateError(f"{source}: the video cannot be read ({error.strerror}); write it before its report") from None
    if content:
        return {"href": "", "note": "", "content": base64.b64encode(content).decode("ascii")}
    if isinstance(video, bytes):
        source = target.with_suffix(".mp4")
        write_whole(source, video)
    href = Path(os.path.relpath(source or target, target.parent)).as_posix()
    note = f"The video ({size / 1e6:.0f} MB) is not inside this page but beside it, as {href}; keep the two together."
    return {"href": quote(os.fsencode(href)), "note": note, "content": ""}


def _cards(data: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the most important numbers: name, value and a remark."""
    frames, latency, tracks = data["frames"], data["latency"], data["tracks"]
    cards = [
        ("Length", f"{(data['end_us'] - data['start_us']) / 1e6:.2f} s", ""),
        ("Detection rate", f"{frames['hz']:g} Hz", f"{_number(frames['count'])} windows"),
        ("Boxes", _number(frames["boxes"]), f"{frames['boxes'] / max(1, frames['count']):.2f} a window"),
        *((each["name"], _number(each["count"]), "boxes") for each in data["classes"][:6]),
    ]
    if data["rate"]:
        rates = data["rate"]["per_s"]
        cards.append(("Event rate", _rate(sum(rates) / len(rates)), f"at most {_rate(max(rates))}"))
    if tracks:
        cards.append(("Tracks", _number(tracks["total"]), ""))
    if latency:
        last = latency["stages"][-1]
        budget = f"; budget {latency['budget_ms']:.4g} ms" if latency["budget_ms"] else ""
        cards.append((f"Latency ({last['name']})", _time(last["p50"]), f"median; p99 {_time(last['p99'])}{budget}"))
    return cards


def _stages(latency: dict[str, Any] | None) -> list[list[str]]:
    """Return the rows of the table of latencies: stage, p50, p99, maximum, and p99 as a share of the budget."""
    if not latency:
        return []
    budget = latency["budget_ms"]
    return [
        [stage["name"], *(significant(stage[key], 3) for key in ("p50", "p99", "max"))]
        + ([_share(stage["p99"] / budget)] if budget else [])
        for stage in latency["stages"]
    ]


def _sections(summary: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the tables of the summary: one without a name for single values, and one for each section."""
    single = {name: value for name, value in summary.items() if not isinstance(value, dict)}
    sections = {"": single, **{name: value for name, value in summary.items() if isinstance(value, dict)}}
    return [(name, [(key, _value(value)) for key, value in rows.items()]) for name, rows in sections.items() if rows]


def _plain(value: Any) -> Any:
    """Return the summary as values that JSON can hold: numpy numbers become plain ones, unknown objects their text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON cannot hold these
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _value(value: Any) -> str:
    """Return a value of the summary as text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return _number(value)
    if isinstance(value, float):
        return f"{value:.5g}" if abs(value) < 1e5 else _number(round(value))
    if isinstance(value, list):
        return ", ".join(_value(each) for each in value) or "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(each)}" for key, each in value.items()) or "–"
    return str(value)


def _number(value: int) -> str:
    return f"{value:,}".replace(",", "\u202f")  # a narrow space that does not break


def _time(ms: float) -> str:
    """Return a time in ms as text with a fitting unit: 48.3 ms, 1.27 s."""
    return f"{significant(ms / 1e3, 3)} s" if ms >= 999.5 else f"{significant(ms, 3)} ms"


def _share(share: float) -> str:
    """Return a share of the budget in percent, or as a multiple from ten times the budget on."""
    return f"{significant(share)} ×" if share >= 9.95 else f"{significant(100 * share)} %"


def _rate(per_s: float) -> str:
    if per_s >= 1e6:
        return f"{per_s / 1e6:.2f} Mev/s"
    return f"{per_s / 1e3:.1f} kev/s" if per_s >= 1e3 else f"{per_s:.0f} ev/s"
