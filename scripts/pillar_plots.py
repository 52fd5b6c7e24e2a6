"""Makes the plots of docs/explanation/pillar-encoding.md: what Pillar Encoding keeps of a signal, and what it cannot.

    python scripts/pillar_plots.py docs/images

Every number is drawn from a fixed seed, so the same versions of numpy and matplotlib give the same pictures; what the
document quotes is printed. Weights, polynomials and moments are those of ``fate.encoding``, not a second version.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.polynomial import chebyshev, polynomial
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray

from fate.boxes.drawing import draw_events
from fate.encoding.batch import EventBatch
from fate.encoding.kernels.reference import legendre, trapezoid_weights
from fate.encoding.pillars import PillarEncoder
from fate.events.events import Events
from fate.events.window import Window
from fate.simulation.camera.recorder import record
from fate.simulation.render.scene import Scene

Array = NDArray[Any]
Signal = Callable[[Array], Array]

#: Colours that stay apart for every kind of colour vision (Okabe and Ito), and the ink of texts.
BLUE, ORANGE, GREEN, SKY, YELLOW = "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#E69F00"
INK, PALE = "#333333", "#B8BDC4"
#: From dark to light for K = 1 … 5 (plasma, without its ends), which differ in dashes too.
DEGREES = ("#0D0887", "#7E03A8", "#CC4778", "#F89540", "#DDBB00")
DASHES = (":", "--", "-", "-", "-.")
MOMENTS = (1, 2, 3, 4, 5)

#: Latent features of one pillar over its window; after ReLU none is below 0.
SIGNALS: dict[str, Signal] = {
    "step": lambda t: (t > 0.15).astype(float),
    "ramp": lambda t: np.maximum(0.0, 0.25 + 0.75 * t),
    "oscillation": lambda t: 0.5 + 0.5 * np.sin(1.5 * np.pi * t),
    "burst": lambda t: np.exp(-(((t - 0.3) / 0.15) ** 2)),
}
#: Nodes and weights that integrate the product of two polynomials exactly and a step to a thousandth.
NODES, MASSES = leggauss(2000)

#: Seeds of the drives, those of scripts/simulator_pictures.py; the last has the bursts of ATIS sensors.
DRIVES = {10: "", 13: "", 7: ", with bursts"}
WINDOWS_MS = (5, 10, 25, 50)


def basis(tau: Array, moments: int) -> Array:
    """L_0 to L_{K-1} at tau, [K, ...]."""
    return legendre(torch.from_numpy(np.ascontiguousarray(tau)), moments).numpy()


def shares(tau: Array) -> Array:
    """Eq. 5 over its sum for rows of rising times, [R, n]."""
    times = torch.from_numpy(tau)
    weights = trapezoid_weights(times, torch.ones_like(times))
    return (weights / weights.sum(-1, keepdim=True)).numpy()


def norm(values: Array) -> Array:
    """The L2 norm over [-1, 1] of functions given at NODES."""
    return np.sqrt((values**2 * MASSES).sum(-1))


def coefficients(values: Array, moments: int) -> Array:
    """Eq. 4, [K]: of a function given at NODES."""
    return (2 * np.arange(moments) + 1) / 2 * (values * basis(NODES, moments) * MASSES).sum(-1)


# ---- 1. the projection is the best ------------------------------------------------------------------------------


def competitors(signal: Signal, moments: int) -> dict[str, Array]:
    """Other polynomials of the same degree that one could take instead, given at NODES."""
    equal = (2 * np.arange(moments) + 1) / moments - 1
    density = 1 / np.sqrt(1 - NODES**2)
    through = polynomial.polyfit(equal, signal(equal), moments - 1)
    leaning = chebyshev.chebfit(NODES, signal(NODES), moments - 1, w=np.sqrt(MASSES * density))
    return {
        "through K equidistant points": polynomial.polyval(NODES, through),
        "Chebyshev series": chebyshev.chebval(NODES, leaning),
    }


def projection_figure() -> Figure:
    """The error of the projection and of others in the same subspace; and that it obeys Pythagoras."""
    figure, (left, right) = panels(1, 2, 3.7)
    random = np.random.default_rng(1)

    def signal(tau: Array) -> Array:
        return np.exp(-(((tau - 0.7) / 0.3) ** 2))

    values = signal(NODES)
    for moments, colour in zip(MOMENTS, DEGREES, strict=True):
        best = coefficients(values, moments)
        lowest = norm(values - best @ basis(NODES, moments))
        others = best + random.normal(0, 0.25, (400, moments)) * random.random((400, 1))
        away, error = norm((others - best) @ basis(NODES, moments)), norm(values - others @ basis(NODES, moments))
        first = moments == 1
        left.plot(moments + random.uniform(-0.27, 0.27, 400), error, ".", color=PALE, markersize=3,
                  label="400 random ones" if first else None)  # fmt: skip
        for (name, other), marker, tint in zip(
            competitors(signal, moments).items(), ("D", "s"), (ORANGE, GREEN), strict=True
        ):
            left.plot(moments, norm(values - other), marker, color=tint, markersize=6, label=name if first else None)
        left.plot([moments - 0.36, moments + 0.36], [lowest] * 2, color=BLUE, linewidth=2.5,
                  label="projection (Eq. 4)" if first else None)  # fmt: skip
        reach = np.array([0, 0.16])
        right.plot(reach, lowest**2 + reach, color=colour, linewidth=1.2)
        right.plot(away**2, error**2, ".", color=colour, markersize=4, label=f"K = {moments}")
        print(f"projection K={moments}: error {lowest:.4f}, lowest of 400 others {error.min():.4f},"
              f" off the line by at most {np.abs(error**2 - lowest**2 - away**2).max():.1e}")  # fmt: skip
    left.set(xlabel="K", ylabel="L2 error", title="a late burst, and polynomials of degree below K", ylim=(0, 1.05))
    left.set_xticks(MOMENTS)
    left.legend(loc="upper right", fontsize=9)
    right.set(xlabel="squared distance from the projection", ylabel="squared L2 error", xlim=(0, 0.16), ylim=(0, 0.5))
    right.set_title("the error grows by exactly that distance")
    right.legend(loc="upper left", ncols=2, markerscale=2.5)
    return figure


# ---- 2. the trapezoid converges, the mean does not --------------------------------------------------------------


def density(tau: Array) -> Array:
    """Events come in a burst early in the window and thinly after it."""
    return 0.2 + 2 * np.exp(-(((tau + 0.45) / 0.2) ** 2))


def rising(tau: Array) -> Array:
    """A feature that switches on in the middle of the window."""
    return 1 / (1 + np.exp(-5 * (tau - 0.1)))


def draw_times(random: np.random.Generator, rows: int, events: int) -> Array:
    """Rising times of ``density``, [rows, events]."""
    grid = np.linspace(-1, 1, 20_001)
    cumulative = np.cumsum(density(grid))
    return np.sort(np.interp(random.random((rows, events)), cumulative / cumulative[-1], grid), axis=1)


def estimation_errors(counts: Array, noise: float, degree: int = 0, draws: int = 400) -> dict[str, Array]:
    """Root mean square errors of the moment of a degree, for pillars of so many events."""
    random = np.random.default_rng([2, degree, round(100 * noise)])
    node, mass = leggauss(100)
    truth = (rising(node) * basis(node, 5)[degree] * mass).sum() / 2
    rows: dict[str, list[float]] = {"mean": [], "trapezoid": [], "covered": []}
    for count in counts:
        tau = draw_times(random, draws, int(count))
        latent = (rising(tau) + noise * random.standard_normal(tau.shape)) * basis(tau, 5)[degree]
        first, last = tau[:, :1], tau[:, -1:]
        inside = (first + last) / 2 + (last - first) / 2 * node
        covered = (rising(inside) * basis(inside, 5)[degree] * mass).sum(-1) / 2
        estimate = (shares(tau) * latent).sum(-1)
        errors = latent.mean(-1) - truth, estimate - truth, estimate - covered
        for row, error in zip(rows.values(), errors, strict=True):
            row.append(float(np.sqrt((error**2).mean())))
    return {name: np.array(row) for name, row in rows.items()}


def slope(counts: Array, errors: Array) -> float:
    """Of the error over the number of events, both logarithmic, from 256 events on."""
    far = counts >= 256
    return float(np.polyfit(np.log(counts[far]), np.log(errors[far]), 1)[0])


def trapezoid_figure() -> Figure:
    """A signal seen through a bursty density; errors without and with noise over the number of events."""
    figure, (left, middle, right) = panels(1, 3, 3.9)
    tau = draw_times(np.random.default_rng(5), 1, 24)
    grid = np.linspace(-1, 1, 500)
    edges = np.concatenate([tau[0, :1], (tau[0, 1:] + tau[0, :-1]) / 2, tau[0, -1:]])
    left.fill_between(grid, density(grid) / 2.4, color=PALE, alpha=0.45, linewidth=0, label="density of events")
    left.bar(edges[:-1], rising(tau[0]), np.diff(edges), align="edge", color=SKY, alpha=0.45, edgecolor="white",
             linewidth=0.6, label="trapezoid: width = weight")  # fmt: skip
    left.plot(grid, rising(grid), color=INK, linewidth=1.6, label="feature h(τ)")
    left.plot(tau[0], rising(tau[0]), "o", color=BLUE, markersize=4, label="24 events")
    left.axhline(rising(tau[0]).mean(), color=ORANGE, linewidth=1.4, linestyle="--", label="their plain mean")
    estimate = (shares(tau) * rising(tau)).sum()
    left.axhline(estimate, color=BLUE, linewidth=1.4, linestyle="-.", label="z₀ by the trapezoid")
    node, mass = leggauss(100)
    left.axhline((rising(node) * mass).sum() / 2, color=INK, linewidth=1, linestyle=":", label="true mean over time")
    left.set(xlabel="τ", ylim=(0, 1.75), xlim=(-1, 1), title="what is estimated")
    left.set_yticks([0, 0.5, 1])
    left.legend(loc="upper left", fontsize=8, ncols=1)

    counts = 2.0 ** np.arange(1, 13)
    for axes, noise in ((middle, 0.0), (right, 0.3)):
        errors = estimation_errors(counts, noise)
        steep = {name: slope(counts, row) for name, row in errors.items()}
        lines = [("mean", ORANGE, "s", "plain mean"), ("trapezoid", BLUE, "o", "trapezoid")]
        lines += [("covered", GREEN, "^", "trapezoid, within its span")] if not noise else []
        for name, colour, marker, text in lines:
            axes.loglog(counts, errors[name], marker + "-", color=colour, markersize=4.5, linewidth=1.5,
                        label=f"{text}: slope {steep[name]:.1f}".replace("-0.0", "0").replace("-", "−"))  # fmt: skip
        axes.axvline(32, color=INK, linewidth=0.8, linestyle=":")
        axes.text(36, 0.95, "N = 32", color=INK, fontsize=9, transform=axes.get_xaxis_transform())
        axes.set(xlabel="events in the pillar", title="noise-free" if not noise else "noise of σ = 0.3 on each event")
        axes.legend(loc="lower left", fontsize=8.5)
        for degree in range(3):
            rows = estimation_errors(counts, noise, degree)
            text = ", ".join(f"{name} {slope(counts, row):+.2f}" for name, row in rows.items())
            at = ", ".join(f"{name} {row[4]:.3f}" for name, row in rows.items())
            print(f"trapezoid noise={noise} degree {degree}: slopes {text}; at 32 events {at}")
    middle.set(ylabel="error of z₀ (root mean square)", ylim=(1e-9, 1.5))
    right.set(ylim=(1.5e-3, 1.5))
    return figure


# ---- 3. what K = 1 … 5 keep -------------------------------------------------------------------------------------


def sampled_error(signal: Signal, moments: int, events: int, weighting: str) -> float:
    """Relative L2 error of what the moments of so many evenly spread random events give back; median of 300 draws."""
    random = np.random.default_rng([3, events])
    tau = np.sort(random.uniform(-1, 1, (300, events)), axis=1)
    each = shares(tau) if weighting == "trapezoid" else np.full(tau.shape, 1 / events)
    estimate = (2 * np.arange(moments) + 1) * (basis(tau, moments) * each * signal(tau)).sum(-1).T
    values = signal(NODES)
    return float(np.median(norm(values - estimate @ basis(NODES, moments))) / norm(values))


def reconstruction_figure() -> Figure:
    """Signals and their projections above; below, what is lost, from the whole signal and from a few events."""
    figure, axes = panels(2, 4, 5.2, sharey="row")
    grid = np.linspace(-1, 1, 801)
    for column, (name, signal) in enumerate(SIGNALS.items()):
        above, below = axes[0, column], axes[1, column]
        values = signal(NODES)
        above.plot(grid, signal(grid), color=INK, linewidth=4, alpha=0.22)
        lost = []
        for moments, colour, dashes in zip(MOMENTS, DEGREES, DASHES, strict=True):
            best = coefficients(values, moments)
            lost.append(float(norm(values - best @ basis(NODES, moments)) / norm(values)))
            above.plot(grid, best @ basis(grid, moments), dashes, color=colour,
                       linewidth=2.6 if moments == 3 else 1.6, label=f"K = {moments}")  # fmt: skip
        above.set(title=name, xlabel="τ", xlim=(-1, 1), ylim=(-0.4, 1.4))
        below.plot(MOMENTS, lost, "o-", color=BLUE, markersize=5, label="whole signal (Eq. 4)")
        for events, marker, colour in ((32, "^", GREEN), (8, "s", ORANGE)):
            error = [sampled_error(signal, moments, events, "trapezoid") for moments in MOMENTS]
            below.plot(MOMENTS, error, marker + "--", color=colour, markersize=4.5, label=f"{events} events (Eq. 6)")
            print(f"reconstruction {name}, {events} events: " + " ".join(f"{each:.2f}" for each in error))
        print(f"reconstruction {name}, whole: " + " ".join(f"{each:.2f}" for each in lost))
        below.set(xlabel="K", ylim=(0, 1.3))
        below.set_xticks(MOMENTS)
    axes[0, 0].set_ylabel("feature")
    axes[1, 0].set_ylabel("L2 error / L2 norm of signal")
    axes[0, 0].legend(loc="upper left", fontsize=8, ncols=2, handlelength=1.3, columnspacing=0.8)
    axes[1, 0].legend(loc="upper left", fontsize=8)
    return figure


# ---- 4. few events ----------------------------------------------------------------------------------------------

WINDOW_US = 50_000


def read_moments(times_us: list[int], xs: list[int], slope_of_tau: float = 0.0) -> Array:
    """z_0, z_1, z_2 of one pillar from the encoder itself, with H = 1 + x + slope · τ set by hand (x is 0 or 1)."""
    encoder = PillarEncoder((2, 2), pillar=2, channels=3, moments=3, max_events=None).double().eval()
    encoder.norm.eps = 0.0
    with torch.no_grad():
        encoder.linear.weight.zero_()
        encoder.linear.weight[:, 0], encoder.linear.weight[:, 2] = 2.0, slope_of_tau  # x comes divided by the width, 2
        encoder.linear.bias.fill_(1.0)
        encoder.alpha.copy_(torch.eye(3))
        count = len(times_us)
        events = Events(times_us, xs, [0] * count, [1] * count, sensor=(2, 2))
        image = encoder(EventBatch.from_windows([(Window(0, WINDOW_US), events)]))
    return image[0, :, 0, 0].numpy()


def few_events_figure() -> Figure:
    """One event; two and three that come together; two that change places."""
    figure, (left, middle, right) = panels(1, 3, 3.7)
    times = np.arange(0, WINDOW_US, 500)
    alone = np.array([read_moments([int(t)], [0]) for t in times])
    for degree, (colour, style) in enumerate(zip((BLUE, ORANGE, GREEN), ("-", "--", "-."), strict=True)):
        left.plot(times / 1000, alone[:, degree], style, color=colour, linewidth=2, label=f"z{'₀₁₂'[degree]}")
    left.set(xlabel="time of the event, ms", ylabel="moments, in units of H", title="one event: its time is kept")
    left.legend(loc="lower right")

    spreads = np.unique(np.round(np.geomspace(10, 10_000, 60), -1)).astype(int)
    cases = {
        "two events": ((0, 10), (0, 1), BLUE, "-"),
        "three, equal gaps": ((0, 5, 10), (1, 0, 0), GREEN, "--"),
        "three, gaps 1 : 9": ((0, 1, 10), (0, 1, 1), ORANGE, "-."),
    }
    for name, (places, xs, colour, style) in cases.items():
        values = [read_moments([5000 + spread * p // 10 for p in places], list(xs), 1.0)[0] for spread in spreads]
        tied = read_moments([5000] * len(places), list(xs), 1.0)[0]
        middle.semilogx(spreads, values, style, color=colour, linewidth=2, label=name)
        middle.plot([3, 10], [values[0]] * 2, ":", color=colour, linewidth=1.2)
        middle.plot(3, values[0], "o", markerfacecolor="white", color=colour, markersize=7)
        middle.plot(3, tied, "o", color=colour, markersize=7)
        print(f"few events, {name}: {values[0]:.4f} at {spreads[0]} µs, {tied:.4f} at 0")
    middle.set_xticks([3, 10, 100, 1000, 10_000], ["0", "10", "100", "1000", "10 000"])
    middle.minorticks_off()
    middle.set(xlabel="from first to last event, µs", ylabel="z₀", title="events that come together")
    middle.set_ylim(0.3, 1.75)
    middle.legend(loc="upper left")

    offsets = np.arange(-12_000, 12_001, 500)
    shown = []
    for offset in offsets:  # A (x = 1) passes B (x = 0) at 15 ms; a third event is at 40 ms
        pair = sorted([(15_000 + int(offset), 1), (15_000, 0)])
        shown.append(read_moments([pair[0][0], pair[1][0], 40_000], [pair[0][1], pair[1][1], 0])[0] - 1)
    values = np.array(shown)
    for side in (offsets < 0, offsets > 0):
        right.plot(offsets[side] / 1000, values[side], color=BLUE, linewidth=2, label="share of A" if side[0] else None)
    gap = {"marker": "o", "markersize": 7, "linestyle": "none", "color": BLUE}
    right.plot([0, 0], [0, 0.5], markerfacecolor="white", **gap)
    right.plot(0, values[offsets == 0], **gap)
    right.annotate("equal times:\nshared", (0, 0.25), (2.2, 0.2), fontsize=9, color=INK)
    right.set(xlabel="A after B, ms", ylabel="share of A in W", title="A passes the first event, B")
    right.set_ylim(-0.04, 0.56)
    print("few events, passing: " + ", ".join(f"{values[offsets == at][0]:.3f}" for at in (-500, 0, 500)))
    return figure


def fullness(events: Events, length_us: int) -> Array:
    """Of non-empty 2 × 2 pillars: one event; more, at one time; two; three and more. After the first 0.1 s."""
    counts = np.zeros(4)
    columns = -(-events.sensor.width // 2)
    for start in range(100_000, 1_000_000 - length_us + 1, length_us):
        part = events.between(start, start + length_us)
        cell = part.y.astype(np.int64) // 2 * columns + part.x.astype(np.int64) // 2
        pillars, number, size = np.unique(cell, return_inverse=True, return_counts=True)
        first = np.full(len(pillars), length_us)
        last = np.full(len(pillars), -1)
        np.minimum.at(first, number, part.t_us - start)
        np.maximum.at(last, number, part.t_us - start)
        tied = (size > 1) & (first == last)
        counts += [(size == 1).sum(), tied.sum(), ((size == 2) & ~tied).sum(), ((size > 2) & ~tied).sum()]
    return counts / counts.sum()


def fullness_figure(recordings: dict[int, Events]) -> Figure:
    """How full pillars are at four lengths of the window."""
    figure, row = panels(1, 3, 3.2, sharey=True)
    kinds = [("one event", BLUE), ("several, all at one time", SKY), ("two", PALE), ("three or more", YELLOW)]
    for axes, (seed, events) in zip(row, recordings.items(), strict=True):
        table = np.array([fullness(events, 1000 * length) for length in WINDOWS_MS])
        bottom = np.zeros(len(WINDOWS_MS))
        for (name, colour), values in zip(kinds, 100 * table.T, strict=True):
            bars = axes.bar(range(len(WINDOWS_MS)), values, 0.72, bottom, color=colour, label=name)
            texts = [f"{value:.0f}" if value >= 5 else "" for value in values]
            axes.bar_label(bars, texts, label_type="center", fontsize=9, color="white" if colour == BLUE else INK)
            bottom += values
        axes.set_xticks(range(len(WINDOWS_MS)), [f"{length} ms" for length in WINDOWS_MS])
        axes.set(title=f"seed {seed}: {len(events) / 1e6:.2f} Mev/s{DRIVES[seed]}", ylim=(0, 100))
        axes.grid(False, axis="x")
        for length, values in zip(WINDOWS_MS, 100 * table, strict=True):
            print(f"pillars, seed {seed}, {length} ms: " + ", ".join(
                f"{name} {value:.1f} %" for (name, _), value in zip(kinds, values, strict=True)))  # fmt: skip
    row[0].set_ylabel("non-empty pillars, %")
    handles, names = row[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    return figure


# ---- the opening picture ----------------------------------------------------------------------------------------


def moments_figure(events: Events, start_us: int = 600_000) -> Figure:
    """A window's events, and the moments of one channel whose H is 1 for ON events and 0 for OFF."""
    window = Window(start_us, start_us + WINDOW_US)
    encoder = PillarEncoder(events.sensor, channels=3, moments=3).eval()
    with torch.no_grad():
        encoder.linear.weight.zero_()
        encoder.linear.bias.zero_()
        encoder.linear.weight[:, 3] = 1.0
        encoder.alpha.copy_(torch.eye(3))
        part = events.between(window.start_us, window.end_us)
        image = encoder(EventBatch.from_windows([(window, part)]))[0].numpy()
    print(f"opening picture: {encoder.last_stats}")
    figure, row = panels(1, 4, 2.15)
    row[0].imshow(draw_events(part))
    row[0].set_title(f"{len(part):,}".replace(",", " ") + " events in 50 ms")
    for degree, (axes, values) in enumerate(zip(row[1:], image, strict=True)):
        shown = axes.imshow(values, cmap="PuOr_r", vmin=-1, vmax=1, interpolation="nearest")
        axes.set_title(("z₀: how much ON", "z₁: early or late", "z₂: ends or middle")[degree])
    for axes in row:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    figure.colorbar(shown, ax=row, shrink=0.75, aspect=18, pad=0.01, ticks=[-1, 0, 1])
    return figure


# ---- all together -----------------------------------------------------------------------------------------------


def panels(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure of the documents' width and its axes."""
    figure = Figure(figsize=(10, height), dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(rows, columns, **options)
    for axes in np.ravel(all_axes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(INK)
        axes.tick_params(which="both", colors=INK, labelsize=9)
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set_color(INK)
            label.set_fontsize(10)
        axes.grid(True, color=PALE, alpha=0.5, linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, all_axes


def save(figure: Figure, path: Path) -> None:
    """Without the version of matplotlib in the file, so that a new one does not change every picture."""
    for axes in figure.axes:
        if legend := axes.get_legend():
            legend.set_frame_on(True)
            legend.get_frame().set(linewidth=0, alpha=0.8, facecolor="white")
    figure.savefig(path, metadata={"Software": None})
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    drives = {seed: Events.concatenate([piece.events for piece in record(Scene(seed, seconds=1))]) for seed in DRIVES}
    save(moments_figure(drives[13]), folder / "pillar_moments.png")
    save(projection_figure(), folder / "pillar_projection.png")
    save(trapezoid_figure(), folder / "pillar_trapezoid.png")
    save(reconstruction_figure(), folder / "pillar_reconstruction.png")
    save(few_events_figure(), folder / "pillar_few_events.png")
    save(fullness_figure(drives), folder / "pillar_fullness.png")
