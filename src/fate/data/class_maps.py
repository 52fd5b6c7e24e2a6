"""Map the class ids of label files to the classes of a dataset: a name → the ids that mean it.

    open_dataset("gen1")                                                 # {"car": 0, "pedestrian": 1}
    open_dataset("1mpx", classes=("car", "truck"))                       # two of the seven
    open_dataset("1mpx", classes={"person": 0, "vehicle": (2, 3, 4)})    # other names, ids merged

The index of a name is the class id that models see. Label files with class names are mapped by name; the public box
files have none and are mapped by id.

A class named ``neutral`` is no class of the dataset (see :mod:`fate.boxes.labels`): its boxes get the id behind the
last class. ``{"car": 2, "neutral": (3, 4)}`` makes boxes of the ids 3 and 4 neutral.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import NEUTRAL, Labels
from fate.errors import FateError
from fate.events.events import GEN1_SENSOR, MPX_SENSOR, Sensor
from fate.json_files import whole_number
from fate.text import nearest_name


class PublicDataset(NamedTuple):
    """The facts of a public dataset."""

    sensor: Sensor
    downscale: int  #: the downscaling that RVT and all who compare with it use
    ids: Mapping[str, int]  #: class ids of its label files by name
    used: tuple[str, ...]  #: the classes that RVT and all who compare with it use, in their order


_MPX_NAMES = ("pedestrian", "two wheeler", "car", "truck", "bus", "traffic sign", "traffic light")
PUBLIC: Mapping[str, PublicDataset] = {
    "gen1": PublicDataset(GEN1_SENSOR, 1, {"car": 0, "pedestrian": 1}, ("car", "pedestrian")),
    "1mpx": PublicDataset(MPX_SENSOR, 2, {name: index for index, name in enumerate(_MPX_NAMES)}, _MPX_NAMES[:3]),
}

#: Recordings in each split as published. The Gen1 paper counts 1460 for training; the files that are given out are
#: 1459 (prophesee-automotive-dataset-toolbox, issue 42).
EXPECTED_RECORDINGS: dict[str, dict[str, int]] = {"gen1": {"train": 1459, "val": 429, "test": 470}}


def public_kind(sensor: Sensor | None) -> str | None:
    """The public dataset with that sensor; None if there is none."""
    return next((name for name, public in PUBLIC.items() if public.sensor == sensor), None)


MAX_CLASS_ID = 2**31 - 1
#: Names, or names with the ids in label files that mean them.
Classes = Sequence[str] | Mapping[str, int | Sequence[int]]


@dataclass(frozen=True)
class ClassMap:
    """The classes of a dataset, and their ids in its label files. Made by :func:`class_map`."""

    names: tuple[str, ...]  #: by class id of the dataset
    ids: tuple[tuple[int, ...], ...]  #: for each name the ids in label files
    unused: Mapping[int, str] = field(default_factory=dict)  #: known ids that are left out on purpose
    by_id: bool = False  #: ids were given: they count, and names in a label file may differ; other ids are left out
    neutral: tuple[int, ...] = ()  #: ids in label files of neutral boxes

    def label_classes(self, labels: Labels) -> tuple[str, ...]:
        """Names of the ids that :meth:`ids_of` gives: the dataset's, and ``neutral`` if there may be such boxes."""
        in_file = not self.by_id and any(plain(name) == NEUTRAL for name in labels.classes or ())
        return (*self.names, NEUTRAL) if self.neutral or in_file else self.names

    def ids_of(self, labels: Labels) -> tuple[NDArray[np.int32], dict[str, int]]:
        """The class of each of N boxes in the dataset, [N], and the number of boxes of each unknown class.

        Neutral boxes get the id behind the last class. Boxes of other classes, which are dropped, get -1.
        """
        names = {} if labels.classes is None or self.by_id else dict(enumerate(labels.classes))
        if names:
            ours = {plain(name): index for index, name in enumerate((*self.names, NEUTRAL))}
            left_out = {plain(name) for name in self.unused.values()}
            table = {number: ours[plain(name)] for number, name in names.items() if plain(name) in ours}
            unused = {number for number, name in names.items() if plain(name) in left_out}
        else:
            table = {number: index for index, numbers in enumerate((*self.ids, self.neutral)) for number in numbers}
            unused = set(self.unused)
        present, counts = np.unique(labels.class_id, return_counts=True)
        unknown = {
            names.get(number, f"id {number}"): count
            for number, count in zip(present.tolist(), counts.tolist(), strict=True)
            if number not in table and number not in unused and not self.by_id
        }
        class_ids = np.array([table.get(number, -1) for number in present.tolist()], np.int32)
        return class_ids[np.searchsorted(present, labels.class_id)], unknown

    def renamed(self, labels: Labels) -> dict[str, str]:
        """Names of a label file with boxes, and the class that their ids give ("no class" for ids without one).

        Only names that differ from the class, or that the dataset has with another id. Empty if classes are found by
        their names; if none of the names occurs in the dataset, which then has names of its own; and for a class with
        several ids, which are meant to have several names.
        """
        if labels.classes is None or not self.by_id:
            return {}
        ours = {plain(name) for name in self.names}
        present = set(np.unique(labels.class_id).tolist())
        names = {number: name for number, name in enumerate(labels.classes) if number in present}
        if not {plain(name) for name in names.values()} & ours:
            return {}
        found = {}
        for number, name in names.items():
            owner = next((index for index, numbers in enumerate(self.ids) if number in numbers), None)
            if owner is None:
                if plain(name) in ours:
                    found[name] = "no class"
            elif plain(name) != plain(self.names[owner]) and (len(self.ids[owner]) == 1 or plain(name) in ours):
                found[name] = self.names[owner]
        return found

    def select(self, requested: Sequence[str], where: str, whose: str = "the dataset") -> ClassMap:
        """Keep some classes, found by their names; the order of ``requested`` gives the new class ids.

        Args:
            requested: names among those of this map; case, hyphens and underscores do not matter. Neutral boxes
                stay neutral, whether that name is among them or not.
            where: the file or folder of the dataset, to begin an error with.
            whose: what an error calls the owner of the names, such as ``"gen1"``.
        """
        indices = {plain(name): index for index, name in enumerate(self.names)}
        requested = [name for name in checked_names(requested) if plain(name) != NEUTRAL]
        for name in requested:
            if plain(name) not in indices:
                near = nearest_name(plain(name), indices)
                hint = f"did you mean {self.names[indices[near]]!r}?" if near else "give names of this list"
                raise FateError(
                    f"{where}: class {name!r} was given; {whose} has {', '.join(self.names) or 'no classes'}; {hint}"
                    " (a mapping from names to ids in the label files gives them names of your own)"
                )
        kept = {self.names[index]: self.ids[index] for index in (indices[plain(name)] for name in requested)}
        left_out = {
            number: name
            for name, numbers in zip(self.names, self.ids, strict=True)
            if name not in kept
            for number in numbers
        }
        if self.neutral:
            kept[NEUTRAL] = self.neutral
        return _checked(kept, {**self.unused, **left_out}, self.by_id)


def class_map(classes: Classes | None, kind: str | None = None, where: str = "classes") -> ClassMap:
    """Make the class map of a dataset from its class names.

    Args:
        classes: names in the order of their class ids, or names with their ids in the label files; None for the
            usual classes of ``kind``.
        kind: ``"gen1"`` or ``"1mpx"``, whose ids are known. For any other dataset the list itself says which id has
            which name: the first name is id 0.
        where: the file or folder of the dataset, to begin an error with.
    """
    if isinstance(classes, Mapping):
        ids = {str(name): _ids(name, given) for name, given in classes.items()}
        return _checked(ids, unused={}, by_id=True)
    if kind is not None and kind in PUBLIC:
        public = PUBLIC[kind]
        whole = _checked({name: (number,) for name, number in public.ids.items()}, unused={})
        return whole.select(public.used if classes is None else classes, where, kind)
    return _checked({name: (index,) for index, name in enumerate(checked_names(classes or ()))}, unused={})


def describe_unknown(unknown: Mapping[str, int], names: Sequence[str]) -> str:
    """Names of classes that a dataset does not have, with their numbers of boxes, and likely spelling mistakes.

    Example:
        >>> describe_unknown({"dog": 51, "id 9": 2}, ["van", "dgo"])
        "dog (51), id 9 (2); did you mean 'dog' where classes names 'dgo'?"
    """
    listed = ", ".join(f"{name} ({number})" for name, number in unknown.items())
    for name in unknown:
        near = nearest_name(name, names) if not name.startswith("id ") else None
        if near is not None and nearest_name(near, [*unknown, *(other for other in names if other != near)]) == name:
            return f"{listed}; did you mean {name!r} where classes names {near!r}?"
    return listed


def plain(name: str) -> str:
    """A name without differences in case, hyphens and underscores: ``"Two-Wheeler"`` gives ``"two wheeler"``."""
    return " ".join(name.replace("-", " ").replace("_", " ").casefold().split())


def _checked(ids: dict[str, tuple[int, ...]], unused: Mapping[int, str], by_id: bool = False) -> ClassMap:
    names = Labels.empty(classes=tuple(ids)).classes or ()  # refuses names that label files cannot hold
    owner: dict[int, str] = {}
    for name, numbers in ids.items():
        for number in numbers:
            if number in owner:
                raise FateError(f"class id {number} was given to {owner[number]!r} and to {name!r}; give it to one")
            owner[number] = name
    if len({plain(name) for name in names}) < len(names):
        raise FateError(f"classes {', '.join(names)} were given; two of them differ only in spelling; rename one")
    neutral = tuple(number for name, numbers in ids.items() if plain(name) == NEUTRAL for number in numbers)
    ids = {name: numbers for name, numbers in ids.items() if plain(name) != NEUTRAL}
    return ClassMap(tuple(ids), tuple(ids.values()), dict(unused), by_id, neutral)


def checked_names(classes: object) -> tuple[str, ...]:
    """A list of names as a tuple; anything else is refused."""
    if isinstance(classes, str) or not isinstance(classes, Sequence) or not all(isinstance(n, str) for n in classes):
        raise FateError(
            f"classes {classes!r} was given; expected a list of names, such as ['car', 'pedestrian'], or a mapping"
            " from names to ids"
        )
    if len(set(classes)) < len(classes):
        raise FateError(f"classes {list(classes)} was given; each name may occur once")
    return tuple(classes)


def _ids(name: object, given: object) -> tuple[int, ...]:
    numbers = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    if not isinstance(name, str) or not numbers:
        raise FateError(
            f"class {name!r} was given with the ids {given!r}; expected a name with whole numbers from 0 up,"
            " such as car: 2 or vehicle: [2, 3]"
        )
    return tuple(whole_number(number, f"the id of class {name!r}", 0, MAX_CLASS_ID) for number in numbers)
