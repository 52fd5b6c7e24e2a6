"""Averages the weights of one detector from several trainings, each with its share, into one file.

    python scripts/average_weights.py OUT.safetensors FIRST.safetensors 0.5 SECOND.safetensors 0.5

If one training has begun with the weights of the other, the average is often better than both (Wortsman et al., 2022).
Which shares are best is measured on validation data. The header of OUT says what was averaged; its facts about training
are those of the last file, and calibration and accuracy have to be measured again. OUT has 16 bits, as bundled weights.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

from fate.errors import FateError
from fate.inference.loading import load_trained
from fate.models.checkpoints import read_card, save_model
from fate.models.detector import Detector


def average(parts: list[tuple[Path, float]]) -> Detector:
    """The detector of the last file with averaged parameters and statistics; the shares have a sum of 1."""
    if not math.isclose(sum(share for _, share in parts), 1):
        raise FateError(f"shares of {', '.join(str(share) for _, share in parts)} were given; expected a sum of 1")
    detectors = [load_trained(path) for path, _ in parts]
    averaged = detectors[-1]
    states = [detector.state_dict() for detector in detectors]
    for (path, _), state in zip(parts, states, strict=True):
        shapes = {name: value.shape for name, value in state.items()}
        if shapes != {name: value.shape for name, value in averaged.state_dict().items()}:
            raise FateError(f"{path}: its parameters differ from those of {parts[-1][0]}; expected one detector")
    for name, value in averaged.state_dict().items():
        if value.is_floating_point():
            shared = (share * state[name].double() for (_, share), state in zip(parts, states, strict=True))
            value.copy_(torch.stack(list(shared)).sum(0))
    return averaged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="+", help="a file and its share, in turns")
    given = parser.parse_args()
    if len(given.parts) % 2 or given.out.exists():
        parser.error("expected a new file, and files and shares in turns")
    parts = [(Path(path), float(share)) for path, share in zip(given.parts[::2], given.parts[1::2], strict=True)]
    facts = dict(read_card(parts[-1][0]).get("training") or {})
    facts["averaged"] = [[path.name, share] for path, share in parts]
    save_model(average(parts), given.out, facts={"training": facts}, dtype=torch.float16)


if __name__ == "__main__":
    main()
