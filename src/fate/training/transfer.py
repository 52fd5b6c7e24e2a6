"""Loads weights into a detector of other classes or of another sensor."""

from __future__ import annotations

from fate.data.class_maps import plain
from fate.errors import FateError
from fate.models.detector import Detector
from fate.models.zoo import rebuild


def transfer(given: Detector, detector: Detector) -> None:
    """Load the weights of a detector of other classes or of another sensor.

    Layers that belong to a class get the rows of classes with the same name; their other rows stay as they are.
    """
    theirs, ours = given.state_dict(), detector.state_dict()
    wider = rebuild({**given.description, "classes": [*given.classes, "one more"]}).state_dict()
    of_classes = {name for name, value in theirs.items() if wider[name].shape != value.shape}
    rows = {plain(name): row for row, name in enumerate(given.classes)}
    pairs = [(row, rows[plain(name)]) for row, name in enumerate(detector.classes) if plain(name) in rows]
    same = {name for name, value in ours.items() if name in theirs and theirs[name].shape == value.shape}
    misfits = sorted(ours.keys() - of_classes - same)
    if misfits:
        raise FateError(
            f"{len(misfits)} layers of the detector do not fit the weights, such as {misfits[0]}; give the model,"
            " encoder and options of the weights"
        )
    for name, value in ours.items():
        if name not in of_classes:
            value.copy_(theirs[name])
        else:
            for row, source in pairs:
                value[row] = theirs[name][source]
