"""The group of each recording of a dataset, so that an evaluation can show which sensors or scenes are hard."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fate.data.dataset import Dataset
from fate.errors import FateError
from fate.events.events import Sensor
from fate.simulation.writing.manifest import load_manifest
from fate.yaml_files import load_yaml


def read_groups(groups: str | os.PathLike[str] | Mapping[str, str], dataset: Dataset) -> dict[str, str]:
    """Return the group of each labelled recording by its name.

    Args:
        groups: ``"sensor"`` or ``"scene"`` of a dataset that ``fate simulate`` has made, a YAML or JSON file with a
            line ``recording: group`` for each recording, or such a mapping.
        dataset: its labelled recordings need a group.
    """
    if isinstance(groups, Mapping):
        return dict(groups)
    if groups in ("sensor", "scene"):
        manifest = load_manifest(dataset.root)
        if manifest is None:
            raise FateError(
                f"{dataset.root}: has no manifest of fate simulate, which says what each recording shows; give a YAML"
                " file with a line 'recording: group' for each recording instead"
            )
        names = {f"{entry.split}/{entry.name}": entry for entry in manifest.recordings}
        if groups == "scene":
            return {name: entry.shows or "unknown" for name, entry in names.items()}
        sizes = {name: entry.camera.get("sensor") or manifest.sensor for name, entry in names.items()}
        return {name: str(Sensor.of(size)) for name, size in sizes.items()}
    read = load_yaml(groups, "a YAML file with the group of each recording")
    if not isinstance(read, dict) or not all(isinstance(name, str | int | float) for name in read.values()):
        raise FateError(f"{os.fspath(groups)}: expected a line 'recording: group' for each recording")
    return {str(name): str(group) for name, group in read.items()}
