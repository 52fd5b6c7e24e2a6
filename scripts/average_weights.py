"""Averages the weights of one detector from several trainings, each with its share, into one file.

    python scripts/average_weights.py OUT.safetensors FIRST.safetensors 0.5 SECOND.safetensors 0.5

If one training has begun with the weights of the other, the average may be better than both (Wortsman et al., 2022,
"Model soups"). Files without ``length_affine`` or ``image_history`` count as detectors that have just gained them.
Which shares are best is measured on validation data. The header of OUT says what was averaged; its
facts about training are those of the last file, and calibration and accuracy have to be measured again. OUT has 16
bits, as bundled weights have.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NoReturn

import torch

from fate.errors import FateError
from fate.inference.loading import load_trained
from fate.models.checkpoints import read_card, save_model
from fate.models.detector import Detector
from fate.models.zoo import rebuild
from fate.training.loop import OF_LENGTH, transfer

#: Entries of a detector's description that have to be the same.
SAME = ("name", "classes", "sensor", "encoder", "encoder_options")


def average(parts: list[tuple[Path, float]]) -> Detector:
    """The detector of the last file with averaged parameters and statistics; the shares have a sum of 1."""
    shares = [share for _, share in parts]
    if min(shares) < 0 or not math.isclose(sum(shares), 1):
        raise FateError(f"shares of {', '.join(map(str, shares))} were given; expected 0 to 1 with a sum of 1")
    detectors = [load_trained(path) for path, _ in parts]
    averaged = detectors[-1]
    for (path, _), detector in zip(parts, detectors, strict=True):
        differing = [key for key in SAME if detector.description[key] != averaged.description[key]]
        if differing:
            refuse(path, parts[-1][0], differing)
    detectors = [*(with_options_of(averaged, detector) for detector in detectors[:-1]), averaged]
    states = [{name: value.clone() for name, value in detector.state_dict().items()} for detector in detectors]
    shapes = [{name: value.shape for name, value in state.items()} for state in states]
    for (path, _), own in zip(parts, shapes, strict=True):
        differing = sorted(name for name in own.keys() | shapes[-1].keys() if own.get(name) != shapes[-1].get(name))
        if differing:
            refuse(path, parts[-1][0], differing)
    for name, value in averaged.state_dict().items():
        if value.is_floating_point():
            shared = (share * state[name].double() for (_, share), state in zip(parts, states, strict=True))
            value.copy_(torch.stack(list(shared)).sum(0))
    return averaged


def refuse(path: Path, last: Path, differing: list[str]) -> NoReturn:
    """Refuse weights of another detector than that of the last file."""
    raise FateError(f"{path}: differs from {last} in {', '.join(differing[:3])}; expected weights of one detector")


def with_options_of(last: Detector, detector: Detector) -> Detector:
    """The detector with new parameters for the length of windows, if the last one has them."""
    ours, theirs = (each.description["options"] for each in (last, detector))
    if all(bool(ours.get(option)) == bool(theirs.get(option)) for option in OF_LENGTH):
        return detector
    try:
        upgraded = rebuild(last.description)
        transfer(detector, upgraded)
    except FateError:
        return detector  # another detector; the caller says in what it differs
    return upgraded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="+", help="a file and its share, in turns")
    given = parser.parse_args()
    if given.out.exists():
        parser.error(f"{given.out} exists; expected a new file")
    if len(given.parts) % 2:
        parser.error(f"{' '.join(given.parts)} were given; expected files and shares in turns")
    try:
        parts = [(Path(path), float(share)) for path, share in zip(given.parts[::2], given.parts[1::2], strict=True)]
        averaged = average(parts)
        facts = dict(read_card(parts[-1][0]).get("training") or {})
        facts["averaged"] = [[path.name, share] for path, share in parts]
        save_model(averaged, given.out, facts={"training": facts}, dtype=torch.float16)
    except (FateError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
