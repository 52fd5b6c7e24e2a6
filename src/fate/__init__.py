"""FATE: object detection with event cameras at any rate from 20 to 200 Hz.

The names below are the public face. They are imported on first use, so that ``import fate`` and
``fate --help`` stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fate.commands import (
        bench_data,
        check_labels,
        convert,
        densify,
        evaluate,
        info,
        inspect,
        models,
        study,
        train,
        view,
    )
    from fate.data.dataset import open_dataset
    from fate.data.prepare import prepare
    from fate.encoding.batch import EventBatch
    from fate.encoding.bench import bench_encode
    from fate.encoding.grids import build_grid
    from fate.encoding.pillars import PillarEncoder
    from fate.errors import FateError, FateWarning, FormatError, MissingDependencyError
    from fate.events.events import Events, Sensor
    from fate.events.label_files import read_labels, write_labels
    from fate.events.labels import Labels, LabelSource
    from fate.events.window import Window
    from fate.formats.bench import bench_decode
    from fate.formats.decoders import decoder_for
    from fate.formats.opening import open_recording
    from fate.formats.recording import Recording
    from fate.formats.saving import open_writer, write_events
    from fate.models.catalogue import list_models
    from fate.models.checkpoints import load_model, save_model
    from fate.models.official import import_checkpoint
    from fate.models.zoo import build_model
    from fate.runtime.bench import bench_detect
    from fate.runtime.demo import demo
    from fate.runtime.detecting import detect
    from fate.runtime.export import export
    from fate.runtime.loading import load_detector
    from fate.simulation.bench import bench_simulate
    from fate.simulation.camera import CameraModel, EventCamera, camera_preset
    from fate.simulation.dataset import simulate
    from fate.simulation.scene import Scene
    from fate.training.bench import bench_train

_HOME = {
    "bench_data": "fate.commands",
    "check_labels": "fate.commands",
    "convert": "fate.commands",
    "evaluate": "fate.commands",
    "info": "fate.commands",
    "inspect": "fate.commands",
    "study": "fate.commands",
    "train": "fate.commands",
    "open_dataset": "fate.data.dataset",
    "prepare": "fate.data.prepare",
    "densify": "fate.densify",
    "EventBatch": "fate.encoding.batch",
    "bench_encode": "fate.encoding.bench",
    "build_grid": "fate.encoding.grids",
    "PillarEncoder": "fate.encoding.pillars",
    "FateError": "fate.errors",
    "FateWarning": "fate.errors",
    "FormatError": "fate.errors",
    "MissingDependencyError": "fate.errors",
    "Events": "fate.events.events",
    "Sensor": "fate.events.events",
    "read_labels": "fate.events.label_files",
    "write_labels": "fate.events.label_files",
    "LabelSource": "fate.events.labels",
    "Labels": "fate.events.labels",
    "Window": "fate.events.window",
    "bench_decode": "fate.formats.bench",
    "decoder_for": "fate.formats.decoders",
    "open_recording": "fate.formats.opening",
    "Recording": "fate.formats.recording",
    "open_writer": "fate.formats.saving",
    "write_events": "fate.formats.saving",
    "models": "fate.models",
    "list_models": "fate.models.catalogue",
    "load_model": "fate.models.checkpoints",
    "save_model": "fate.models.checkpoints",
    "import_checkpoint": "fate.models.official",
    "build_model": "fate.models.zoo",
    "bench_detect": "fate.runtime.bench",
    "demo": "fate.runtime.demo",
    "detect": "fate.runtime.detecting",
    "export": "fate.runtime.export",
    "load_detector": "fate.runtime.loading",
    "bench_simulate": "fate.simulation.bench",
    "CameraModel": "fate.simulation.camera",
    "EventCamera": "fate.simulation.camera",
    "camera_preset": "fate.simulation.camera",
    "simulate": "fate.simulation.dataset",
    "Scene": "fate.simulation.scene",
    "bench_train": "fate.training.bench",
    "view": "fate.view",
}

__all__ = [
    "CameraModel",
    "EventBatch",
    "EventCamera",
    "Events",
    "FateError",
    "FateWarning",
    "FormatError",
    "LabelSource",
    "Labels",
    "MissingDependencyError",
    "PillarEncoder",
    "Recording",
    "Scene",
    "Sensor",
    "Window",
    "bench_data",
    "bench_decode",
    "bench_detect",
    "bench_encode",
    "bench_simulate",
    "bench_train",
    "build_grid",
    "build_model",
    "camera_preset",
    "check_labels",
    "convert",
    "decoder_for",
    "demo",
    "densify",
    "detect",
    "evaluate",
    "export",
    "import_checkpoint",
    "info",
    "inspect",
    "list_models",
    "load_detector",
    "load_model",
    "models",
    "open_dataset",
    "open_recording",
    "open_writer",
    "prepare",
    "read_labels",
    "save_model",
    "simulate",
    "study",
    "train",
    "view",
    "write_events",
    "write_labels",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fate' has no attribute {name!r}")
    home = importlib.import_module(_HOME[name])
    value = home if _HOME[name] == f"fate.{name}" else getattr(home, name)  # a package that is called like a function
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
