"""Collects the rounds of ``scripts/train_any_rate.sh`` into one JSON file: figures, settings and learning curves.

    python scripts/collect_any_rate.py docs/results/any-rate-history.json seed-0=FOLDER seed-1=FOLDER …

FOLDER is the content of ``results.tgz`` of a round: ``results/NAME.json`` (windows of 1 / f),
``results/NAME-50ms.json`` and ``runs/NAME/``. A run that was not evaluated is left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

METRICS = ("AP50:95", "AP50", "AP75")
#: Figures of the time to detection, and their names in the collection.
DELAYS = {"median_ms": "delay_p50_ms", "found_within_100_ms": "delay_within_100", "missed_share": "delay_missed"}


def figures(path: Path) -> dict[str, dict[str, float | None]]:
    """AP, delays and missed objects of an evaluation, by rate."""
    found = {}
    for rate in json.loads(path.read_text(encoding="utf-8"))["rates"]:
        delays = rate["time_to_detection"] or {}
        row = {name: rate["scores"]["metrics"][name] for name in METRICS}
        row |= {ours: delays.get(name) for name, ours in DELAYS.items()}
        found[f"{rate['hz']:g}"] = {name: value and round(value, 5) for name, value in row.items()}
    return found


def curve(path: Path) -> list[list[float]]:
    """[step, loss] about every 200 steps."""
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    shown = [entry for entry in entries if "loss" in entry and entry["step"] % 200 == 0]
    return [[entry["step"], round(entry["loss"], 3)] for entry in shown]


def settings(path: Path) -> dict[str, Any]:
    """The settings of a run, with file names in place of paths."""
    tree: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for section, name in (("model", "weights"), ("data", "path")):
        tree[section][name] = Path(tree[section][name]).name
    return tree


def main() -> None:
    out, *rounds = sys.argv[1:]
    rows: dict[str, Any] = {}
    for given in rounds:
        label, folder = given.split("=", 1)
        for run in sorted(path.parent for path in Path(folder, "runs").glob("*/metrics.jsonl")):
            results = {
                length: figures(file)
                for length, file in (("1 / f", Path(folder, "results", f"{run.name}.json")),
                                     ("50 ms", Path(folder, "results", f"{run.name}-50ms.json")))
                if file.exists()
            }  # fmt: skip
            if results:
                curves = curve(run / "metrics.jsonl")
                own = settings(run / "config.yaml") if (run / "config.yaml").exists() else None
                rows.setdefault(run.name, {})[label] = {"windows": results, "curve": curves, "settings": own}
    text = json.dumps({"study": "any rate with a history of images", "runs": rows}, indent=1)
    Path(out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
