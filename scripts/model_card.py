"""Writes the card of bundled weights, ``NAME.md`` beside ``NAME.safetensors``: what they are, what made them, how good.

    python scripts/model_card.py src/fate/weights/fate-s-nano.safetensors studies/seed-0/fat/evaluation.json \\
        --drives studies/sim-drives --command "fate study training --dataset sim --seeds 1" \\
        --latency cpu.json --latency h200.json

Model, training, protocol and commit come from the file's own header; accuracy from an ``evaluation.json`` of ``fate
study``; the drives from their manifest; latency from ``fate bench detect NAME --json FILE``, one file for each
machine. What nobody wrote down is called "not recorded". The card holds the SHA-256 of the weights, so that a test can
tell when the two no longer belong together.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fate.data.manifests import MANIFEST
from fate.errors import FateError
from fate.inference.score_calibration import ScoreCalibration
from fate.models.checkpoints import load_model, read_card
from fate.models.table import MODELS
from fate.models.zoo import flops_per_window
from fate.simulation.writing.manifest import Manifest, load_manifest
from fate.whole_files import write_whole

UNKNOWN = "not recorded"
ACCURACY = ("AP50:95", "AP50", "AP75")
DELAYS = {"delay_p50_ms": "delay p50, ms", "delay_p90_ms": "delay p90, ms"}
DOCS = "../../../docs"  # from src/fate/weights
TEST_SPLIT = "the test split of these drives"
MIXED_WORDS = (
    "Simulated recordings only, each with a sensor, a lens and a scene of its own: cameras on cars, on masts, in the"
    " hand and in rooms, by day, at dusk and at night, with people from ten pixels high to as large as the"
    f" picture. A quarter shows no road user. [docs/guides/simulator.md]({DOCS}/guides/simulator.md) says how they are"
    " made."
)


def model_card(
    weights: Path,
    evaluation: Path,
    drives: Path | None = None,
    commands: Sequence[str] = (),
    latency: Sequence[Path] = (),
    on: str = TEST_SPLIT,
    limits: Sequence[str] = (),
) -> str:
    """The card as Markdown.

    Args:
        weights: of ``fate.save_model``.
        evaluation: figures by rate, as ``fate study`` keeps them.
        drives: folder of the simulated dataset that they were trained on; its manifest is enough.
        commands: that made them, in order; those in the header (``command``) unless given.
        latency: measurements of ``fate bench detect``, one file for each machine.
        on: what the evaluation was made on.
        limits: sentences on what was seen of these weights, besides those that hold for all.
    """
    header = read_card(weights)
    made = None if drives is None else _manifest(drives)
    return "\n\n".join([
        f"# {weights.stem}",
        *_what(weights, header),
        *_data(header, made),
        *_training(header, commands),
        *_accuracy(header, json.loads(evaluation.read_text()), on),
        *_scores(header),
        *_latency(weights.stem, [json.loads(file.read_text()) for file in latency]),
        *_limits(header, limits, made is not None and made.request.at_rest > 0),
    ]) + "\n"  # fmt: skip


def _what(weights: Path, header: Mapping[str, Any]) -> list[str]:
    model, detector = header["model"], load_model(weights)
    height, width = model["sensor"]
    options = ", ".join(f"{name} {value}" for name, value in model["encoder_options"].items() if value is not None)
    facts = {
        "detector": f"`{model['name']}`, {MODELS[model['name']].about}",
        "encoder": model["encoder"] + (f" ({options})" if options else ""),
        "classes": ", ".join(model["classes"]),
        "sensor": f"{width} × {height} pixels",
        "parameters": _spaced(sum(parameter.numel() for parameter in detector.parameters())),
        "GFLOPs a window": f"{flops_per_window(detector) / 1e9:.2f}, without the encoder",
        "file": f"{weights.stat().st_size / 1e6:.1f} MB, SHA-256 `{hashlib.sha256(weights.read_bytes()).hexdigest()}`",
        "made with": f"FATE {header['version']}, commit {header['git_hash'] or UNKNOWN}",
        "licence": "Apache-2.0, as the code",
    }
    use = f'```python\ndetector = fate.load_detector("{weights.stem}")\n```'
    return [
        f"Boxes of {_plural(model['classes'])} from events, at any rate from 20 to 200 Hz.",
        use,
        _pairs(facts),
    ]


def _manifest(folder: Path) -> Manifest:
    found = load_manifest(folder)
    if found is None:
        raise FateError(f"{folder}: has no {MANIFEST}; expected the folder of a dataset that fate simulate made")
    return found


def _data(header: Mapping[str, Any], drives: Manifest | None) -> list[str]:
    share = 0.0 if drives is None else drives.request.at_rest
    where = "on a moving car" + (f", in {share:.0%} of the recordings at rest beside a street" if share else "")
    words = (
        f"Simulated recordings only: streets drawn from a seed, an event camera modelled pixel by pixel {where}, and"
        f" exact boxes. [docs/guides/simulator.md]({DOCS}/guides/simulator.md) says how they are made and how they"
        " differ from real recordings."
    )
    told = header["training"] or {}
    frame = list(header["model"]["sensor"])
    if sensors := told.get("sensors"):
        return ["## Data", MIXED_WORDS, _pairs({
            "profile": "mixed",
            "seeds": ", ".join(str(seed) for seed in told["seeds_of_data"]),
            "sensors": ", ".join(f"{width}×{height}" for height, width in sensors if [height, width] != frame),
            "frame": f"{frame[1]}×{frame[0]}; pixels of larger sensors are merged, or the edge is cut off",
        })]  # fmt: skip
    if drives is None:
        given = told.get("data")
        return ["## Data", words, _pairs({"dataset": Path(given).name if given else UNKNOWN})]
    asked, entries = drives.request, drives.recordings
    splits = {name: sum(entry.split == name for entry in entries) for name in ("train", "val", "test")}
    devices = sorted({entry.device for entry in entries})
    command = f"fate simulate drives --recordings {asked.recordings} --seconds {asked.seconds:g} --seed {asked.seed}"
    command += f" --at-rest {asked.at_rest:g}" if asked.at_rest else ""
    command += "" if asked.profile == "gen1" else f" --profile {asked.profile}"
    facts = {
        "drives": f"{len(entries)} of {asked.seconds:g} s: " + ", ".join(f"{n} {name}" for name, n in splits.items()),
        "profile": asked.profile,
        "seed": str(asked.seed),
        "events": f"{sum(entry.events for entry in entries) / 1e6:.0f} million",
        "made by": f"`{command}`, on {' and '.join(devices)}",
    }
    held_out = "Some cars, people and facades of val and test are of makes that no training drive shows."
    return ["## Data", words, _pairs(facts), held_out]


def _training(header: Mapping[str, Any], commands: Sequence[str]) -> list[str]:
    told = header["training"] or {}
    facts = {
        "strategy": str(told.get("strategy", UNKNOWN)),
        "steps": _spaced(told["step"]) if "step" in told else UNKNOWN,
        "seed": str(told.get("seed", UNKNOWN)),
    }
    stored = header.get("command", ())
    lines = list(commands) or ([stored] if isinstance(stored, str) else list(stored))
    made = "```\n" + "\n".join(lines) + "\n```" if lines else f"Command: {UNKNOWN}."
    return ["## Training", _pairs(facts), made]


def _accuracy(header: Mapping[str, Any], by_rate: Mapping[str, Mapping[str, float | None]], on: str) -> list[str]:
    rates = sorted(by_rate, key=float)
    if not rates or any(ACCURACY[0] not in by_rate[hz] for hz in rates):
        raise FateError(
            f"the evaluation has no {ACCURACY[0]} for every rate; expected an evaluation.json as fate study writes it"
        )
    timed = [name for name in DELAYS if any(by_rate[hz].get(name) is not None for hz in rates)]
    rows = [["Hz", *(f"{metric}, %" for metric in ACCURACY), "of 20 Hz", *(DELAYS[name] for name in timed)]]
    first = by_rate.get("20", {}).get(ACCURACY[0])
    for hz in rates:
        figures = by_rate[hz]
        value = figures[ACCURACY[0]]
        share = f"{value / first:.0%}" if first and value is not None else "–"
        rows.append([
            hz, *(_percent(figures.get(metric)) for metric in ACCURACY), share,
            *(_rounded(figures.get(name)) for name in timed),
        ])  # fmt: skip
    words = f"On {on}, window and hop 1 / Hz."
    if protocol := header["protocol"]:
        words += (
            f" Protocol `{protocol['name']}`: boxes of {protocol['min_diagonal']:g} px diagonal and"
            f" {protocol['min_side']:g} px sides and more, after the first {protocol['skip_us'] / 1e6:g} s."
        )
    if timed:
        words += (
            " Delay: the time from the appearance of an object to its first correct box, over the objects that were"
            " found."
        )
    return [
        "## Accuracy",
        f"{words} What each figure means: [docs/explanation/evaluation.md]({DOCS}/explanation/evaluation.md).",
        _table(rows),
    ]


def _scores(header: Mapping[str, Any]) -> list[str]:
    if "calibration" not in header:
        return []
    calibration = ScoreCalibration.of(header)
    rows = [["network's confidence", "score"]]
    rows += [[f"{each:.1f}", f"{calibration(np.array([each]))[0]:.2f}"] for each in np.arange(1, 10) / 10]
    return [
        "## Scores",
        "A score is the chance that the box is right (IoU of 0.5 or more with an object of its class), measured on"
        " simulated recordings that were not used for training. The default threshold is"
        f" {calibration.threshold:.2f}: 90 % of the boxes above it are right there.",
        _table(rows),
    ]


def _latency(name: str, machines: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [["device", "threads", "Hz", "run", "precision", "p50, ms", "p99, ms"]]
    for machine in machines:
        found = [each for each in machine["measurements"] if each["model"] == name]
        if not found:
            raise FateError(f"the latency measured on {machine['device']} has no {name}; run fate bench detect {name}")
        rows += [
            [machine["device"], str(machine["threads"]), f"{each['hz']:g}", each["way"], each["precision"],
             f"{each['p50_ms']:.2f}", f"{each['p99_ms']:.2f}"]
            for each in found
        ]  # fmt: skip
    words = (
        "One stream, from the events of a window to its boxes, by `fate bench detect`; more in"
        f" [docs/results/performance.md]({DOCS}/results/performance.md)."
    )
    return ["## Latency", words, _table(rows)] if machines else ["## Latency", f"{UNKNOWN.capitalize()}."]


def _limits(header: Mapping[str, Any], seen: Sequence[str], at_rest: bool) -> list[str]:
    height, width = header["model"]["sensor"]
    known = _plural(header["model"]["classes"])
    cameras = "a camera in a moving car" + (" or beside a street" if at_rest else "")
    many = "sensors" in (header["training"] or {})
    cameras = "cameras on cars, beside streets, in the hand and in rooms" if many else cameras
    limits = (
        *seen,
        "Nothing real was seen in training, nor in the figures above. How good it is on your recordings is not known"
        " until you look: `fate detect`, and `fate evaluate` where you have labels.",
        f"It knows {known} as {cameras} see{'' if many else 's'} them, by day and by night, and no other class.",
        f"It was trained for {width} × {height} pixels. On a larger sensor, each block of k × k"
        " pixels becomes one pixel; k brings the size of the sensor nearest to that. A smaller sensor is used as it is."
        + (" The training data were made in the same way" if many else " A warning says what was done")
        + f" ([docs/guides/streaming.md]({DOCS}/guides/streaming.md)).",
        "Not for anything where a box that is missing or wrong can harm somebody.",
    )
    return ["## Limits", "\n".join(f"- {limit}" for limit in limits)]


# ---- words and tables -----------------------------------------------------------------------------------------------


def _pairs(facts: Mapping[str, str]) -> str:
    return _table([["", ""], *([name, value] for name, value in facts.items())])


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _plural(names: Sequence[str]) -> str:
    first, last = [f"{name}s" for name in names[:-1]], f"{names[-1]}s"
    return f"{', '.join(first)} and {last}" if first else last


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def _rounded(ms: float | None) -> str:
    return "–" if ms is None else f"{ms:.0f}"


def _spaced(count: int) -> str:
    return f"{count:,}".replace(",", " ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path, help="NAME.safetensors")
    parser.add_argument("evaluation", type=Path, help="evaluation.json of fate study")
    parser.add_argument("--on", default=TEST_SPLIT, help="what the evaluation was made on")
    parser.add_argument("--drives", type=Path, help="folder of the simulated drives")
    parser.add_argument("--command", action="append", default=[], help="that made the weights; may be given again")
    parser.add_argument(
        "--latency", type=Path, action="append", default=[], help="of fate bench detect --json; likewise"
    )
    parser.add_argument("--limit", action="append", default=[], help="a sentence on what was seen; likewise")
    given = parser.parse_args()
    card = given.weights.with_suffix(".md")
    text = model_card(
        given.weights, given.evaluation, given.drives, given.command, given.latency, given.on, given.limit
    )
    write_whole(card, text.encode())
    print(f"{card}: {len(card.read_text().splitlines())} lines")
