"""Collects the rounds of ``scripts/train_any_rate.sh`` into one JSON file: figures, settings and learning curves.

    python scripts/collect_any_rate.py docs/results/any-rate-history.json seed-0=FOLDER seed-1=FOLDER …

If the file exists, the rounds are added to it. FOLDER is the content of ``results.tgz`` of a round:
``results/NAME.json`` (windows of 1 / f), ``results/NAME-50ms.json`` and ``runs/NAME/``. A run that was not evaluated is
left out. Runs of one name must have the same settings but for the seed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

STUDY = "any rate with a history of images"
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


def comparable(tree: dict[str, Any] | None) -> dict[str, Any]:
    """The settings that runs of one name have in common."""
    kept = json.loads(json.dumps(tree or {}))
    for section, names in {"run": ("seed", "validate_recordings"), "data": ("workers",)}.items():
        for name in names:
            kept.get(section, {}).pop(name, None)
    return kept  # type: ignore[no-any-return]


def main() -> None:
    out, *rounds = sys.argv[1:]
    known = Path(out).exists()
    content = json.loads(Path(out).read_text(encoding="utf-8")) if known else {"study": STUDY, "runs": {}}
    rows: dict[str, Any] = content["runs"]
    for given in rounds:
        label, folder = given.split("=", 1)
        for run in sorted(path.parent for path in Path(folder, "runs").glob("*/metrics.jsonl")):
            files = {
                "1 / f": Path(folder, "results", f"{run.name}.json"),
                "50 ms": Path(folder, "results", f"{run.name}-50ms.json"),
            }
            results = {length: figures(file) for length, file in files.items() if file.exists()}
            if not results:
                print(f"{label}: {run.name} was not evaluated and is left out", file=sys.stderr)
                continue
            own = settings(run / "config.yaml")
            for other, there in rows.get(run.name, {}).items():
                if comparable(there["settings"]) != comparable(own):
                    sys.exit(f"{label}: {run.name} has other settings than {other}; rename one of the runs")
            entry = {"windows": results, "curve": curve(run / "metrics.jsonl"), "settings": own}
            rows.setdefault(run.name, {})[label] = entry
    Path(out).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
