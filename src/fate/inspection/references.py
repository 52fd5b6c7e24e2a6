"""Figures of the two public driving datasets, with which any other dataset is compared.

Each row says what it measures, what was found in real Gen1 (304 × 240, ATIS) and real 1Mpx (1280 × 720) recordings,
and, for data that is to look like Gen1, the range in which it is accepted. Where a real figure was taken in one busy
second of driving or at half resolution, the row says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from fate.data.class_maps import PUBLIC
from fate.data.opening import public_kind
from fate.events.events import Sensor

RATE_RANGE_MEV_S = (0.2, 2.0)  # in which every single Gen1-like recording lies

UNKNOWN = "–"
MOST_DIGITS = 17  # after the point; a float holds no more that differ

Range = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One line of figures of a dataset beside the real ones.

    Args:
        keys: names of the figures, shown in this order with a slash between.
        title: what they are, short.
        meaning: what they are, in a sentence.
        gen1, mpx: the real figures as text.
        accept: a range for each key, in the figure's own unit (a share is 0 to 1), for Gen1-like data.
        digits: after the point.
        percent: the figures are shares and are shown in percent.
    """

    keys: tuple[str, ...]
    title: str
    meaning: str
    gen1: str = UNKNOWN
    mpx: str = UNKNOWN
    accept: tuple[Range, ...] | None = None
    digits: int = 2
    percent: bool = False

    @property
    def scale(self) -> int:
        """The factor by which a figure is multiplied before it is shown."""
        return 100 if self.percent else 1

    def show(self, figures: dict[str, float], *, judged: bool = False) -> str:
        """The figures as text; a dash for those that are not known.

        Args:
            figures: by key.
            judged: whether a figure outside its range gets as many digits as are needed to see that.
        """
        texts = []
        for index, key in enumerate(self.keys):
            digits = self.digits
            if judged and key in self.judge(figures) and self.accept:
                digits = self._digits_outside(figures[key], self.accept[index])
            texts.append(UNKNOWN if key not in figures else f"{self.scale * figures[key]:.{digits}f}")
        if set(texts) == {UNKNOWN}:
            return UNKNOWN
        return " / ".join(texts) + (" %" if self.percent else "")

    def _digits_outside(self, value: float, accepted: Range) -> int:
        """Digits after the point that are needed to see that a figure lies outside its range."""
        low, high = (float(f"{self.scale * bound:g}") for bound in accepted)
        enough = (d for d in range(self.digits, MOST_DIGITS) if not low <= float(f"{self.scale * value:.{d}f}") <= high)
        return next(enough, MOST_DIGITS)

    def accepted_text(self) -> str:
        """The ranges as text; empty without any."""
        if self.accept is None:
            return ""
        ends = [tuple(f"{self.scale * bound:g}" for bound in accepted) for accepted in self.accept]
        return " / ".join(low if low == high else f"{low}–{high}" for low, high in ends) + (
            " %" if self.percent else ""
        )

    def judge(self, figures: dict[str, float]) -> list[str]:
        """The keys whose figure lies outside its range."""
        ranges = zip(self.keys, self.accept or (), strict=False)
        return [key for key, (low, high) in ranges if key in figures and not low <= figures[key] <= high]


def _at_all(name: str) -> tuple[str, ...]:
    """Figures for windows of 5, 10 and 50 ms."""
    return tuple(f"{name}_{ms}ms" for ms in (5, 10, 50))


def _quantiles(name: str) -> tuple[str, ...]:
    return tuple(f"{quantile}_{name}" for quantile in ("p50", "p90", "p99"))


_MERGED = "with every burst of a pixel counted as one event"

# fmt: off
RATE = Row(("rate_mev_s",), "event rate, Mev/s",
           "events a second, mean over recordings; accepted is 0.6 give or take a third",
           gen1="0.66", mpx="5–25", accept=((0.4, 0.8),), digits=3)
MERGED_RATE = Row(("merged_rate_mev_s",), "  bursts merged", f"the event rate {_MERGED}", digits=3)
BUSIEST = Row(("busiest_mev_s",), "  busiest second",
              "most events in a second, mean over recordings", gen1="1.33", digits=3)
RATE_INSIDE = Row(("rate_inside_share",), "recordings at 0.2–2 Mev/s",
                  "share of the recordings whose own rate lies there",
                  accept=((1.0, 1.0),), digits=0, percent=True)
ON = Row(("on_share",), "ON share", "events of rising light",
         gen1="0.36–0.46", mpx="0.53", accept=((0.36, 0.46),), digits=3)
SILENT = Row(("silent_share",), "silent pixels in 1 s", "pixels without an event in a second",
             gen1="about 50 %", accept=((0.30, 0.60),), digits=1, percent=True)
REPEATS = Row(("duplicate_share",), "exact repeats",
              "events with the t, x, y and p of an earlier one; the real figure is of one busy second",
              gen1="29 %", digits=1, percent=True)
BURSTS = Row(("burst_share",), "events in bursts",
             "events closer than 1 ms to another of their pixel and polarity; the real figure is of one busy second",
             gen1="77 %", digits=1, percent=True)
BURST_LENGTH = Row(("burst_length",), "events in a burst", "mean number", gen1="3", digits=1)
INTERVAL = Row(("interval_p1_ms",), "shortest pixel interval, ms",
               f"1st percentile of the time between two events of a pixel, {_MERGED}", gen1="1.5–1.7", mpx="0.3–0.8")
ACTIVE = Row(_at_all("active"), "active pillars, 5 / 10 / 50 ms",
             "pillars of 2 × 2 pixels with events, mean over windows of the whole recording",
             accept=((0.04, 0.15), (0.07, 0.22), (0.15, 0.45)), digits=1, percent=True)
ACTIVE_BUSY = Row(_at_all("active_busy"), "  in the busiest second",
                  "the same in the busiest second; the real 1Mpx figure is at half resolution and 5 ms",
                  gen1="7.5 / 11.5 / 25.7 %", mpx="56 % (5 ms, ½ res.)", digits=1, percent=True)
MERGED_P99 = Row(_at_all("merged_p99"), "events a pillar p99, bursts merged",
                 f"events in an active pillar in windows of 5 / 10 / 50 ms, {_MERGED}",
                 gen1="6 / – / 26", accept=((4.0, 7.0), (7.0, 12.0), (20.0, 32.0)), digits=1)
RAW_5 = Row(_quantiles("5ms"), "  raw p50 / p90 / p99, 5 ms", "events in an active pillar",
            gen1="1 / 9 / 75", mpx="p99 21", digits=1)
RAW_10 = Row(_quantiles("10ms"), "  raw p50 / p90 / p99, 10 ms", "events in an active pillar", digits=1)
RAW_50 = Row(_quantiles("50ms"), "  raw p50 / p90 / p99, 50 ms",
             "events in an active pillar", gen1="3 / 32 / 182", digits=1)
ABOVE = Row(_at_all("above"), "pillars above N = 32, 5 / 10 / 50 ms", "active pillars with more than 32 events",
            gen1="2.8 / 3.9 / 10 %", mpx="0.2 % (5 ms)", percent=True)
LOST = Row(_at_all("lost"), "  events lost to it", "events beyond the 32nd of their pillar",
           gen1="24 / 28 / 43 %", percent=True)
MERGED_ABOVE = Row(_at_all("merged_above"), "  bursts merged", f"active pillars with more than 32 events, {_MERGED}",
                   gen1="0 / 0 / 0.4 %", percent=True)
WINDOWS_ABOVE = Row(_at_all("windows_above"), "windows above P = 16 000",
                    "windows with more than 16 000 active pillars",
                    gen1="0 / 0 / 0 %", mpx="from 2 ms on", digits=1, percent=True)
PILLARS_LOST = Row(_at_all("pillars_lost"), "  pillars lost to it",
                   "active pillars beyond the 16 000th of their window",
                   gen1="0 / 0 / 0 %", digits=1, percent=True)
LABEL_RATE = Row(("label_rate_hz",), "label rate, Hz", "labelled times a second, median over recordings",
                 gen1="1, 2 or 4", mpx="30 or 60", digits=1)
PER_FRAME = Row(("boxes_p5", "boxes_p50", "boxes_p95"), "boxes a frame p5 / p50 / p95", "boxes at a labelled time",
                mpx="1 / 3 / 7", digits=0)
LIFE = Row(("life_p50_s",), "track life p50, s", "from the first to the last label of a track", mpx="0.65")
# fmt: on

ROWS = (
    RATE, MERGED_RATE, BUSIEST, RATE_INSIDE, ON, SILENT, REPEATS, BURSTS, BURST_LENGTH, INTERVAL, ACTIVE, ACTIVE_BUSY,
    MERGED_P99, RAW_5, RAW_10, RAW_50, ABOVE, LOST, MERGED_ABOVE, WINDOWS_ABOVE, PILLARS_LOST, LABEL_RATE, PER_FRAME,
    LIFE,
)  # fmt: skip

#: Heads of the table of boxes by class.
BOX_COLUMNS = ("boxes by class", "number", "w p5 / p50 / p95", "h p5 / p50 / p95", "w / h", "px/s p50 / p95", "life s")
#: Boxes of the real datasets in these columns; px of 304 × 240 for Gen1, of 640 × 360 (half resolution) for 1Mpx.
REAL_BOXES: tuple[tuple[str, ...], ...] = (
    ("real Gen1 car", "228 123", "– / 43 / –", "– / 35 / –", UNKNOWN, UNKNOWN, UNKNOWN),
    ("real Gen1 pedestrian", "27 658", "– / 13 / –", "– / 39 / –", UNKNOWN, UNKNOWN, UNKNOWN),
    ("real 1Mpx all, ½ res.", "25 M", "24 / 77 / 203", "35 / 79 / 191", UNKNOWN, UNKNOWN, "0.65"),
    ("real 1Mpx car, ½ res.", UNKNOWN, UNKNOWN, UNKNOWN, "1.50", "16 / 201", UNKNOWN),
    ("real 1Mpx pedestrian, ½ res.", UNKNOWN, UNKNOWN, UNKNOWN, "0.34", "45 / 215", UNKNOWN),
    ("real 1Mpx two wheeler, ½ res.", UNKNOWN, UNKNOWN, UNKNOWN, "0.54", UNKNOWN, UNKNOWN),
)


def class_names(sensor: tuple[int, int], highest_id: int) -> tuple[str, ...] | None:
    """Names for label files without names: those of the public dataset with this sensor, if the ids fit."""
    kind = public_kind(Sensor.of(sensor))
    names = None if kind is None else tuple(PUBLIC[kind])
    return names if names is not None and highest_id < len(names) else None
