"""The arguments of a simulated dataset: checked before any work, and split into recordings.

A recording's number decides its split, its name and its seed, and nothing else does. So a dataset can be continued, or
made larger later, and recording 17 is the same drive whether 18 or 1800 were asked for.
"""

from __future__ import annotations

import math
import numbers
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from fate.errors import FateError, MissingDependencyError
from fate.simulation.art.catalogue import SPLITS, Split

#: Events a second of a usual drive, by profile; for the estimate of disk space only.
EVENTS_PER_SECOND = {"gen1": 0.6e6, "1mpx": 15e6, "park": 0.4e6, "mixed": 1e6}
BYTES_PER_EVENT = 8  # of a DAT record
LABEL_BYTES_PER_SECOND = 50_000  # boxes at 200 Hz, compressed, and those of the label file
MARGIN = 1.3  # some streets are busier than others

PROFILES = tuple(EVENTS_PER_SECOND)
DEVICES = ("cpu", "cuda")

#: Shares of the recordings that go to train, val and test.
SHARES = (0.7, 0.15, 0.15)
MOST_RECORDINGS = 1_000_000  # names have six digits
LEAST_SECONDS = 0.01
MOST_SECONDS = 3600.0  # DAT holds 71 minutes


@dataclass(frozen=True)
class RecordingJob:
    """One recording to be made."""

    index: int  #: its number in the dataset, from 0
    split: Split
    seed: int  #: of its scene
    name: str  #: such as ``sim_gen1_000012``, without folder and ending
    at_rest: bool = False  #: whether its camera stands still


@dataclass(frozen=True)
class Request:
    """The arguments that decide what a dataset holds; impossible ones are refused here."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    profile: str = "gen1"  #: or "1mpx", "mixed"
    seed: int = 0  #: of the dataset, 0 or larger
    seconds: float = 10.0  #: length of every recording
    recordings: int = 12  #: number in all splits together
    shares: tuple[float, float, float] = SHARES  #: of train, val and test, from 0 up; scaled to a sum of 1
    at_rest: float = 0.0  #: share of the recordings whose camera stands beside the street, 0 to 1

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise FateError(f"there is no profile {self.profile!r}; give one of {', '.join(PROFILES)}")
        check_number("the seed", self.seed, 0)
        check_number("the number of recordings", self.recordings, 1, MOST_RECORDINGS)
        check_number("the share of cameras at rest", self.at_rest, 0, 1, whole=False)
        if self.profile == "mixed" and self.at_rest:
            raise FateError(
                f"the share of cameras at rest is {self.at_rest:g}; the profile mixed draws where each camera is:"
                " give 0, or another profile"
            )
        object.__setattr__(self, "seed", int(self.seed))
        object.__setattr__(self, "recordings", int(self.recordings))
        object.__setattr__(self, "seconds", check_seconds(self.seconds))
        object.__setattr__(self, "shares", _normalised(self.shares))
        object.__setattr__(self, "at_rest", float(self.at_rest))

    @property
    def duration_us(self) -> int:
        """Length of a recording in whole µs, at least 1."""
        return max(round(self.seconds * 1e6), 1)

    def jobs(self) -> list[RecordingJob]:
        """Return all recordings in the order of their numbers.

        A recording whose camera is at rest with one share is at rest with every larger share.
        """
        found = []
        for index, split in enumerate(splits_in_turn(self.recordings, self.shares)):
            at_rest = bool(np.random.default_rng([self.seed, index, 0x5711]).random() < self.at_rest)
            name = f"sim_{self.profile}_{index:06d}"
            found.append(RecordingJob(index, split, scene_seed(self.seed, split, index), name, at_rest))
        return found


def splits_in_turn(recordings: int, shares: tuple[float, float, float] = SHARES) -> list[Split]:
    """The split of each recording, by its number.

    The first recordings go to one split each, so that three or more fill all of them; after that, each goes to the
    split that lacks most of its share. A longer list starts with the shorter one.
    """
    share = dict(zip(SPLITS, shares, strict=True))
    requested = [split for split in SPLITS if share[split] > 0]
    taken = dict.fromkeys(requested, 0)
    order: list[Split] = []
    for number in range(1, recordings + 1):
        empty = [split for split in requested if not taken[split]]
        chosen = empty[0] if empty else max(requested, key=lambda split: share[split] * number - taken[split])
        taken[chosen] += 1
        order.append(chosen)
    return order


def scene_seed(seed: int, split: Split, index: int) -> int:
    """The seed of a recording's scene, below 2**53 (a JSON number). Seeds of different splits are never equal."""
    parent = SPLITS.index(split)
    drawn = int(np.random.SeedSequence(seed, spawn_key=(parent, index)).generate_state(1, np.uint64)[0]) >> 12
    return drawn - drawn % len(SPLITS) + parent


def check_seconds(seconds: float) -> float:
    """The length of a recording, refused if it is out of range."""
    check_number("the length of a recording in seconds", seconds, LEAST_SECONDS, MOST_SECONDS, whole=False)
    return float(seconds)


def check_machine(device: str, threads: int | None) -> None:
    """Refuse an unknown device or one that this machine does not have, and an impossible number of threads."""
    if device not in DEVICES:
        raise FateError(f"there is no device {device!r}; give one of {', '.join(DEVICES)}")
    if threads is not None:
        check_number("the number of threads", threads, 1)
    if device == "cuda":
        import torch  # noqa: PLC0415  (takes seconds to load)

        if not torch.cuda.is_available():
            raise FateError("the device cuda was asked for, but torch sees no CUDA GPU on this machine; give cpu")
        if find_spec("triton") is None:
            raise MissingDependencyError(
                "the device cuda needs triton, which comes with torch on Linux: pip install triton; or give cpu"
            )


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the path of a folder that exists or could be created, and refuse others. Nothing is created."""
    try:
        path = Path(folder)
        there = next(each for each in (path, *path.parents) if each.exists() or each.is_symlink())
    except (
        TypeError,
        OSError,
    ) as error:  # such as a name of more than 255 characters, or a folder without rights
        reason = getattr(error, "strerror", None) or error
        raise FateError(f"{folder!s}: no folder can be there ({reason}); give a new or empty folder") from None
    if not there.is_dir():
        raise FateError(f"{path}: {there} is not a folder; give the name of a new or empty folder")
    return path


def check_room(folder: Path, request: Request, recordings: int) -> None:
    """Refuse more recordings than the disk of ``folder`` has room for."""
    rate = EVENTS_PER_SECOND[request.profile] * BYTES_PER_EVENT * MARGIN + LABEL_BYTES_PER_SECOND
    needed = round(rate * request.seconds * recordings)
    parent = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    size, _, free = shutil.disk_usage(parent)
    if needed > free and size:  # 0 bytes in all is a disk that does not tell, or none, such as /proc
        raise FateError(
            f"{folder}: {recordings} recordings of {request.seconds:g} s need about {needed / 1e9:.3g} GB, and"
            f" {free / 1e9:.3g} GB are free at {parent}; make room, choose another disk, or ask for less"
        )


def check_number(what: str, value: object, lowest: float, highest: float | None = None, whole: bool = True) -> None:
    """Refuse all but numbers in a range; NaN and True are no numbers."""
    kind = numbers.Integral if whole else numbers.Real
    number = isinstance(value, kind) and not isinstance(value, bool)
    if not number or not lowest <= value or not (highest is None or value <= highest):  # type: ignore[operator]
        upper = "up" if highest is None else f"to {highest:.7g}"
        raise FateError(f"{what} is {value!r}; give a {'whole ' if whole else ''}number from {lowest:g} {upper}")


def check_switch(what: str, value: object) -> None:
    """Refuse all but True and False: a text such as "no" would count as yes."""
    if not isinstance(value, (bool, np.bool_)):
        raise FateError(f"{what} is {value!r}; give True or False")


def _normalised(shares: tuple[float, float, float]) -> tuple[float, float, float]:
    """Three shares with a sum of 1."""
    given = tuple(shares) if isinstance(shares, Iterable) else ()
    fine = all(isinstance(share, numbers.Real) and 0 <= share <= 1e300 for share in given)  # NaN is refused too
    if len(given) != 3 or not fine or not sum(given) > 0:
        raise FateError(
            f"the shares are {shares!r}; give three numbers from 0 up for train, val and test, such as {SHARES}"
        )
    train, val, test = (float(share) / math.fsum(given) for share in given)
    return train, val, test
