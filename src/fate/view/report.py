"""The report of a detection run: one HTML file with the video, plots that follow it, tracks and numbers.

The page needs nothing from the net and asks for nothing (its own content policy forbids it). Tables are plain HTML;
the plots are drawn and the player is driven by ``report.js``, the looks are in ``report.css``, both put into the page.
All data goes in as JSON in a script tag, the video as base64 up to a size and as a file beside the page above it.
"""

from __future__ import annotations

import base64
import html
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from numpy.typing import ArrayLike

from fate.boxes.detections import DetectionFrame
from fate.errors import FateError
from fate.text import encodable, significant
from fate.view.rendering import VideoClock
from fate.view.report_data import measure_event_rate, report_data
from fate.whole_files import find_target, write_whole

__all__ = ["measure_event_rate", "write_report"]

EMBED_LIMIT = 48 << 20  # bytes of video put into the page; above, opening it would take long and much memory
POLICY = (
    "default-src 'none'; img-src data:; media-src blob: 'self' file:; style-src 'unsafe-inline';"
    " script-src 'unsafe-inline'"
)
KEYS = (
    "<kbd>Space</kbd> play or pause, <kbd>←</kbd> <kbd>→</kbd> one second of video, <kbd>,</kbd> <kbd>.</kbd> one"
    " picture, <kbd>Home</kbd> <kbd>End</kbd>. Click or drag on a plot over time to go there."
)


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
        summary: numbers and words by name, or by section and name; printed as they are given.
        title: the page's title, plain text.
        lead: a sentence under it.
        clock: which time each picture of the video shows; ``render_video`` returns it. Needed with a video.
        classes: names of the class ids.
        event_rate: times [N] in µs and events a second [N], from :func:`measure_event_rate`.
        hz: rate of the detector; 1 / hz is the budget of a window. The frames' own spacing unless given.
        latency_ms: milliseconds by stage, one for each window; the frames' ``ms`` unless given.
        embed_limit: a video of more bytes than this is not put into the page but linked beside it, and the page
            says so; bytes are then written to ``<name of the page>.mp4``.
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise FateError(f"{path}: a report is a page; give a name that ends in .html")
    beside = find_target(path, text=True).kind == "file"  # next to a device or in a pipe there is no place for a video
    if (video is None) != (clock is None):
        raise FateError("a video and its clock belong together; give write_report both, or neither")
    data = report_data(frames, clock=clock, classes=classes, event_rate=event_rate, hz=hz, latency_ms=latency_ms)
    data["title"], data["summary"] = title, _plain(summary)
    player, packed = _player(target, video, embed_limit if beside else None) if video is not None else ("", "")
    body = [
        f"<header><div><h1>{_text(title)}</h1>{_paragraph(lead, 'soft')}</div>"
        '<button id="theme" type="button">Dark colours</button></header><main>',
        "<noscript><p>The player and the plots of this page need JavaScript; the tables do not.</p></noscript>",
        f'<section id="stage" class="stage{"" if player else " bare"}" aria-label="Overview">',
        f"{player}{_cards(data)}</section>",
        *_timelines(data),
        *_latency(data),
        *_tracks(data),
        *_summary(data["summary"]),
        "</main>",
    ]
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{_text(title)}</title><style>{_asset('report.css')}</style></head>\n<body>\n"
        + "\n".join(body)
        + f'\n<script type="application/json" id="data">{_json(data)}</script>{packed}'
        f"\n<script>\n{_asset('report.js')}</script>\n</body></html>\n"
    )
    write_whole(target, page.encode("utf-8", "backslashreplace"), text=True)


# ---- the video ------------------------------------------------------------------------------------------------------


def _player(target: Path, video: str | os.PathLike[str] | bytes, limit: int | None) -> tuple[str, str]:
    """The player, and a script tag with the video where it is small enough to be put into the page."""
    source = None if isinstance(video, bytes) else Path(video)
    try:
        size = len(video) if isinstance(video, bytes) else Path(video).stat().st_size
        embedded = limit is None or size <= limit
        content = (video if isinstance(video, bytes) else Path(video).read_bytes()) if embedded else b""
    except OSError as error:
        raise FateError(f"{source}: the video cannot be read ({error.strerror}); write it before its report") from None
    if content:
        packed = f'\n<script type="text/plain" id="video-data">{base64.b64encode(content).decode("ascii")}</script>'
        return _player_html("", ""), packed
    if isinstance(video, bytes):
        source = target.with_suffix(".mp4")
        write_whole(source, video)
    href = Path(os.path.relpath(source or target, target.parent)).as_posix()
    note = f"The video ({size / 1e6:.0f} MB) is not inside this page but beside it, as {href}; keep the two together."
    return _player_html(quote(os.fsencode(href)), note), ""


def _player_html(href: str, note: str) -> str:
    speeds = "".join(
        f'<option value="{speed}"{" selected" if speed == 1 else ""}>{speed:g}×</option>'
        for speed in (0.1, 0.25, 0.5, 1, 2, 4)
    )
    return (
        '<div class="player">'
        f'<video id="video" data-href="{_text(href)}" playsinline muted preload="auto"'
        ' aria-label="Events and detections"></video>'
        '<input id="scrubber" class="scrubber" type="range" min="0" value="0" aria-label="Time in the recording">'
        '<div class="controls"><button id="play" class="main" type="button" aria-label="Play">▶ Play</button>'
        '<button id="back" type="button" aria-label="One picture back">◂ ,</button>'
        '<button id="forward" type="button" aria-label="One picture on">. ▸</button>'
        f'<label>Speed <select id="speed">{speeds}</select></label>'
        '<output id="time" aria-live="off"></output></div>'
        f'<p id="trouble" class="bad" role="alert"></p>{_paragraph(note, "soft")}<p class="keys">{KEYS}</p></div>'
    )


# ---- parts of the page ----------------------------------------------------------------------------------------------


def _cards(data: dict[str, Any]) -> str:
    """The numbers that one looks for first."""
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
    inside = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}{f'<small>{_text(small)}</small>' if small else ''}</dd></div>"
        for name, value, small in cards
    )
    return f'<dl class="cards">{inside}</dl>'


def _timelines(data: dict[str, Any]) -> list[str]:
    parts = ["<h2>Over time</h2>"]
    if data["rate"]:
        label = f"Event rate over time, at most {_rate(max(data['rate']['per_s']))}"
        parts.append(_plot("rate", label, '<b>Event rate</b><span>now <span id="rate-now" class="now"></span></span>'))
    if data["boxes"]["t_us"]:
        shown = [each for each in data["classes"] if str(each["id"]) in data["boxes"]["by_class"]]
        keys = "".join(
            f'<span class="key"><i style="background:var(--c{each["id"] % 8})"></i>{_text(each["name"])}'
            f' <span id="boxes-now-{each["id"]}" class="now"></span></span>'
            for each in shown
        )
        parts.append(_plot("boxes", "Boxes a window by class over time", f"<b>Boxes a window</b>{keys}"))
    if data["tracks"] and data["tracks"]["rows"]:
        label = "When each track was seen; the table of tracks holds the same in numbers"
        parts.append(_plot("lanes", label, "<b>Tracks</b><span>a bar for each, coloured by class</span>"))
    return parts if len(parts) > 1 else []


def _plot(name: str, label: str, caption: str) -> str:
    seeks = "" if name == "latency" else " seeks"
    above = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure id="{name}" class="plot{seeks}" data-label="{_text(label)}">{above}</figure>'


def _latency(data: dict[str, Any]) -> list[str]:
    latency = data["latency"]
    if not latency:
        return []
    budget = latency["budget_ms"]
    words = "Times of single windows, on a logarithmic scale; each row has its own height."
    if latency["total_is"]:
        words += f" The total is {latency['total_is']}."
    verdict = ""
    if budget:
        over, windows = latency["over_budget"], latency["windows"]
        share = f"{_number(over)} of {_number(windows)} windows took longer than the budget of {budget:.4g} ms (1/f)."
        verdict = f'<p class="{"bad" if over else "good"}">{share}</p>' if windows else ""
    head = ["stage", "p50 ms", "p99 ms", "max ms", *(["p99 of budget"] if budget else [])]
    rows = [
        [stage["name"], *(significant(stage[key], 3) for key in ("p50", "p99", "max"))]
        + ([_share(stage["p99"] / budget)] if budget else [])
        for stage in latency["stages"]
    ]
    label = "Histogram of latency by stage: " + "; ".join(f"{row[0]} median {row[1]} ms" for row in rows)
    return [
        "<h2>Latency against the budget</h2>",
        f'<p class="soft">{_text(words)}</p>{verdict}',
        f'<div class="split">{_plot("latency", label, "")}{_table(head, rows, "latency-table")}</div>',
    ]


def _tracks(data: dict[str, Any]) -> list[str]:
    tracks = data["tracks"]
    if not tracks or not tracks["rows"]:
        return []
    origin = data["origin_us"]
    head = "".join(
        f'<th scope="col"{" class=word" if name == "class" else ""}><button type="button">{name}</button></th>'
        for name in ("track", "class", "first", "last", "duration", "boxes", "mean score")
    )
    lines = []
    for row in tracks["rows"]:
        first, last = row["first_us"], row["last_us"]
        times = "".join(
            f'<td data-v="{us}">{us / 1e6:.3f} s</td>' for us in (first - origin, last - origin, last - first)
        )
        lines.append(
            f'<tr data-t="{first}" data-end="{last}"><td data-v="{row["id"]}"><button class="seek" type="button"'
            f' aria-label="Go to track {row["id"]}">#{row["id"]}</button></td>'
            f'<td class="word">{_text(row["name"])}</td>'
            f'{times}<td data-v="{row["boxes"]}">{_number(row["boxes"])}</td><td>{row["score"]:.3f}</td></tr>'
        )
    left_out = tracks["total"] - len(tracks["rows"])
    caption = "A click on a row goes to the track's first box; a click on a column's name sorts by it."
    if left_out:
        caption += f" The {len(tracks['rows'])} longest are listed; {_number(left_out)} shorter ones are not."
    return [
        f'<h2>Tracks</h2><p class="soft">{caption}</p>',
        '<div class="scroll tall" tabindex="0" role="group" aria-label="Table of tracks"><table id="tracks">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>",
    ]


def _summary(summary: dict[str, Any]) -> list[str]:
    """Single values in one table, every section in its own."""
    single = {name: value for name, value in summary.items() if not isinstance(value, dict)}
    sections = [("", single)] if single else []
    sections += [(name, value) for name, value in summary.items() if isinstance(value, dict) and value]
    if not sections:
        return []
    tables = [
        f"<div>{f'<h3>{_text(name)}</h3>' if name else ''}"
        + _table((), [[str(key), _value(value)] for key, value in rows.items()], "")
        + "</div>"
        for name, rows in sections
    ]
    return ["<h2>Summary</h2>", f'<div class="tables">{"".join(tables)}</div>']


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], name: str) -> str:
    top = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    mark = f' id="{name}"' if name else ""
    return (
        f'<div class="scroll"><table{mark}>{f"<thead><tr>{top}</tr></thead>" if head else ""}'
        f"<tbody>{body}</tbody></table></div>"
    )


# ---- words and numbers ----------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """The summary as JSON can hold it: numpy numbers become plain ones, anything unknown its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no words for these
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _value(value: Any) -> str:
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
    """A time given in ms with the unit that fits it: 48.3 ms, 1.27 s."""
    return f"{significant(ms / 1e3, 3)} s" if ms >= 999.5 else f"{significant(ms, 3)} ms"


def _share(share: float) -> str:
    """A part of the budget in percent; ten times the budget and more as a multiple of it."""
    return f"{significant(share)} ×" if share >= 9.95 else f"{significant(100 * share)} %"


def _rate(per_s: float) -> str:
    if per_s >= 1e6:
        return f"{per_s / 1e6:.2f} Mev/s"
    return f"{per_s / 1e3:.1f} kev/s" if per_s >= 1e3 else f"{per_s:.0f} ev/s"


def _paragraph(text: str, kind: str) -> str:
    return f'<p class="{kind}">{_text(text)}</p>' if text else ""


def _text(text: str) -> str:
    return html.escape(encodable(text))


def _json(data: dict[str, Any]) -> str:
    """JSON that no content can break out of: the tag's end is written as an escape."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("fate.view").joinpath(name).read_text(encoding="utf-8")
