"""The options of a stream, the result of each window, and what a stream counts."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypedDict, get_args

from PIL import Image

from fate.boxes.detections import DetectionFrame
from fate.boxes.drawing import ColourBy, Palette, Picture, draw_events, draw_frame, enlargement
from fate.errors import FateError, FateWarning
from fate.events.events import Events
from fate.events.filters import check_filters
from fate.events.window import Window, window_us
from fate.formats.recording import Recording
from fate.models.nms import MAX_OVERLAP, Score, check_max_overlap

#: How far time may go back before it counts as a restart, and how long there may be no events, µs.
MAX_BACK_US, MAX_GAP_US = 1_000_000, 10_000_000
#: The longest window: one at the lowest rate.
MAX_WINDOW_US = 1_000_000
#: Share of the threshold down to which detections continue a track; they start none and are not returned.
WEAK = 0.5
#: How long a box stays without events in its area, µs; as long as a track of an object that is not seen.
STALE_US = 500_000
#: Events of this time before the end of a window are drawn, µs; as in videos.
ACC_US = 50_000
#: Widest picture that ``plot`` draws, in pixels.
PLOT_WIDTH = 1280


class Accuracy(NamedTuple):
    """One measurement in the header of weights."""

    hz: float
    window_us: int
    ap: float  #: AP50:95 in percent


class StreamKeywords(TypedDict, total=False):
    """The fields of :class:`StreamOptions` as keyword arguments, but for ``hz``."""

    window_us: int | None
    threshold: float | None
    track: bool
    threads: int | None
    score: Score
    max_overlap: float
    most: int
    stale_us: int | None
    max_back_us: int
    max_gap_us: int
    clip_windows: int
    filters: str | Sequence[str]


@dataclass(frozen=True)
class StreamOptions:
    """How a stream detects. ``stream``, ``open_stream`` and ``live`` take the fields as keyword arguments."""

    hz: float = 200  #: windows per second, 1 to 1000
    #: µs of a window if longer than 1 / hz: windows then overlap, for detectors that were trained at a lower rate
    window_us: int | None = None
    threshold: float | None = None  #: lowest score of a detection; None for the detector's own
    track: bool = False  #: give each object a number that it keeps
    threads: int | None = None  #: CPU threads of torch, for the whole process; None leaves them as they are
    score: Score = "product"  #: what is returned: "product", the confidence, or "class" alone, as in evaluations
    #: IoU, 0 to 1, above which the weaker of two boxes of a class is dropped, for all heads; 1 keeps every box
    max_overlap: float = MAX_OVERLAP
    most: int = 100  #: most detections in a window
    stale_us: int | None = STALE_US  #: a box in whose area no event has occurred for longer is dropped; None keeps it
    max_back_us: int = MAX_BACK_US  #: if time goes back by more, the stream restarts; recordings are sorted
    #: windows of a recording that a CPU detects in one call: up to 16 are faster, and boxes are equal up to rounding
    clip_windows: int = 1
    max_gap_us: int = MAX_GAP_US  #: after more time without events, windows are skipped and the state is reset
    filters: str | Sequence[str] = ()  #: events to drop first, such as ("background:5ms",); see ``events/filters.py``

    def __post_init__(self) -> None:
        if not isinstance(self.hz, int | float) or not 1 <= self.hz <= 1000:
            raise FateError(f"a rate of {self.hz!r} Hz was given; expected 1 to 1000")
        if not self.hop_us <= self.length_us <= MAX_WINDOW_US:
            raise FateError(
                f"windows of {self.length_us / 1000:g} ms, one every {self.hop_us / 1000:g} ms, were asked for;"
                f" expected them to last as long as the time between two, or longer, up to {MAX_WINDOW_US / 1000:g} ms"
            )
        given = 0.0 if self.threshold is None else self.threshold
        if not isinstance(given, int | float) or not 0 <= given <= 1:
            raise FateError(f"a threshold of {self.threshold!r} was given; expected a score from 0 to 1")
        if self.most < 1 or self.clip_windows < 1 or (self.threads is not None and self.threads < 1):
            raise FateError(
                f"most={self.most}, threads={self.threads} and clip_windows={self.clip_windows} were given; expected 1"
                " or more"
            )
        if self.stale_us is not None and self.stale_us < 0:
            raise FateError(f"stale_us={self.stale_us} was given; expected 0 or more µs, or None to keep stale boxes")
        if self.score not in get_args(Score):
            raise FateError(f"score={self.score!r} was given; expected one of {', '.join(get_args(Score))}")
        check_max_overlap(self.max_overlap)
        check_filters(self.filters)

    @property
    def hop_us(self) -> int:
        """Time from one window to the next, µs."""
        return window_us(self.hz)

    @property
    def length_us(self) -> int:
        """Length of a window, µs."""
        return self.hop_us if self.window_us is None else int(self.window_us)

    @property
    def gap_us(self) -> int:
        """``max_gap_us``, but at least a hop."""
        return max(self.max_gap_us, self.hop_us)

    def weakest(self, threshold: float) -> float:
        """Lowest score of the detections that the step returns; tracking needs weaker ones too."""
        return threshold * (WEAK if self.track else 1.0)


#: Parts of the time that a window takes.
STAGES = ("decode", "encode", "model", "post")
#: Reasons of restarts that are kept as text; all restarts are counted.
KEPT_REASONS = 20


@dataclass(frozen=True, eq=False)
class StreamFrame(DetectionFrame):
    """The M detections of one window, in order of falling confidence; ``t_us`` is its end."""

    window: Window
    num_events: int  #: in the window, after the filters
    ms: dict[str, float]  #: time of each of ``STAGES``; on a GPU, encode, model and post are one graph: all "model"
    waited_ms: float = 0.0  #: live: from the end of the window to the start of its detection
    late: bool = False  #: live: whether the boxes came after the budget
    age_ms: float | None = None  #: live: from the time of the window's end to its boxes, if the source knows that time
    classes: tuple[str, ...] = ()  #: names of the class ids
    #: where its events are read from to draw them; of a live source, the events of the window
    source: Recording | Events | None = field(default=None, repr=False)

    @property
    def total_ms(self) -> float:
        """From the events of the window to its boxes, without reading or decoding them."""
        return sum(spent for stage, spent in self.ms.items() if stage != "decode")

    def __len__(self) -> int:
        return len(self.boxes)

    def events(self, acc_us: int | None = None) -> Events:
        """Read the events of the last ``acc_us`` µs before the end of the window; those of the window unless given.

        A recording that was closed in the meantime is opened again. A frame of a live source has the events of its
        window only.
        """
        if self.source is None:
            raise FateError(f"the frame at {self.t_us} µs does not know its events; give them: frame.draw(events)")
        start = self.window.start_us if acc_us is None else self.t_us - acc_us
        if isinstance(self.source, Events):
            return self.source.between(start, self.t_us)
        if not self.source.closed:
            return self.source.read(start, self.t_us)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FateWarning)  # the same warnings as when it was opened the first time
            with copy(self.source) as opened:
                return opened.read(start, self.t_us)

    def draw(
        self,
        events: Events | None = None,
        *,
        acc_us: int = ACC_US,
        palette: str | Palette = "dark",
        factor: int = 1,
        colour_by: ColourBy = "class",
    ) -> Picture:
        """Draw the events before the end of the window, and the boxes with their classes and scores.

        Args:
            events: the events to draw; unless given, they are read from the source of the frame.
            acc_us: events of this time before the end of the window are drawn, in µs.
            palette: ``dark``, ``light``, ``gray``, ``coolwarm``, ``cvd``, ``red-blue``, or a palette.
            factor: enlargement along each side.
            colour_by: ``"class"``, or ``"track"`` to follow single objects.

        Returns:
            [H · factor, W · factor, 3] uint8, RGB.
        """
        shown = self.events(acc_us) if events is None else events
        picture = draw_events(shown, palette, factor=factor)
        return draw_frame(picture, self, factor, classes=self.classes, colour_by=colour_by)

    def plot(
        self,
        axes: Any = None,
        events: Events | None = None,
        *,
        acc_us: int = ACC_US,
        palette: str | Palette = "dark",
        colour_by: ColourBy = "class",
    ) -> Any:
        """Draw the frame with matplotlib, in pixels of the sensor, and return the ``Axes``.

        Args:
            axes: where to draw; a new figure unless given. A notebook shows it; a program calls
                ``matplotlib.pyplot.show()`` or ``axes.figure.savefig("frame.png")``.
            events, acc_us, palette, colour_by: same as for :meth:`draw`. The size of the figure decides how large it
                is drawn; ``factor`` is an argument of :meth:`draw` alone.
        """
        if axes is None:
            from matplotlib import pyplot  # noqa: PLC0415  (slow; only plots need it)

            axes = pyplot.subplots(layout="constrained")[1]
        shown = self.events(acc_us) if events is None else events
        height, width = shown.sensor
        factor = enlargement(shown.sensor, PLOT_WIDTH)  # matplotlib then makes it smaller, which keeps text sharp
        picture = self.draw(shown, palette=palette, factor=factor, colour_by=colour_by)
        axes.imshow(picture, extent=(0, width, height, 0), interpolation="antialiased")
        axes.set(xlabel="x in pixels", ylabel="y in pixels", title=f"{self.t_us / 1e6:.3f} s")
        return axes

    def _repr_png_(self) -> bytes | None:
        """Return the picture that a notebook shows; None if the frame does not know its events."""
        if self.source is None:
            return None
        buffer = io.BytesIO()
        Image.fromarray(self.draw(factor=enlargement(self.source.sensor))).save(buffer, "PNG")
        return buffer.getvalue()


@dataclass
class StreamCounts:
    """What a stream has received, detected and dropped so far.

    Every window that closed is in ``windows`` or ``windows_dropped``. Every event is in ``events``,
    ``events_in_dropped_windows``, ``events_in_unfinished_window``, ``late_events``, ``excess_events`` or
    ``filtered_events``, or in the window that is still open.
    """

    windows: int = 0  #: detected
    empty_windows: int = 0  #: of those, without events
    events: int = 0  #: in detected windows
    boxes: int = 0
    stale_boxes: int = 0  #: dropped because no event had occurred in their area for long
    late_events: int = 0  #: dropped because their window had closed
    excess_events: int = 0  #: dropped because their window was full
    restarts: int = 0  #: resets of the state after a jump in time
    restart_reasons: list[str] = field(default_factory=list)  #: of the first ``KEPT_REASONS``
    skipped_windows: int = 0  #: empty windows inside long gaps
    windows_dropped: int = 0  #: live: too old when the detector became free
    events_in_dropped_windows: int = 0
    events_in_unfinished_window: int = 0  #: live: in the window that had not ended when the stream was stopped
    windows_late: int = 0  #: live: detected, but after the budget
    stalls: int = 0  #: live: times that the source was silent for long
    filtered_events: dict[str, int] = field(default_factory=dict)  #: dropped by each filter

    def restart(self, reason: str) -> str:
        """Count a restart and return its reason."""
        self.restarts += 1
        if len(self.restart_reasons) < KEPT_REASONS:
            self.restart_reasons.append(reason)
        return reason

    def skip(self, gap_us: int, hop_us: int) -> int:
        """Count the whole windows inside a gap and return their number."""
        skipped = gap_us // hop_us
        self.skipped_windows += skipped
        return skipped

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return asdict(self)
