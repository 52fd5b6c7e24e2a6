"""FATE: object detection with event cameras at any rate from 20 to 200 Hz.

The names below are the public face. They are imported on first use, so that ``import fate`` and
``fate --help`` stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fate.version import __version__ as __version__

if TYPE_CHECKING:
    from fate.bench.data_loading import bench_data
    from fate.bench.decode import bench_decode
    from fate.bench.detect import bench_detect
    from fate.bench.encode import bench_encode
    from fate.bench.simulate import bench_simulate
    from fate.bench.train import bench_train
    from fate.boxes.label_files import read_labels, write_labels
    from fate.boxes.labels import Labels, LabelSource
    from fate.data.dataset import open_dataset
    from fate.encoding.batch import EventBatch
    from fate.encoding.grids import build_grid
    from fate.encoding.pillars import PillarEncoder
    from fate.errors import FateError, FateWarning, FormatError, MissingDependencyError
    from fate.events.events import Events, Sensor
    from fate.events.window import Window
    from fate.formats.converting import convert
    from fate.formats.opening import decoder_for, open_recording
    from fate.formats.recording import Recording
    from fate.formats.saving import open_writer, write_events
    from fate.formats.summary import info
    from fate.inference.export import export
    from fate.inference.loading import load_detector
    from fate.inference.streaming_step import compile_for_streaming
    from fate.inspection.inspect import inspect
    from fate.inspection.prepare import prepare
    from fate.models.catalogue import list_models
    from fate.models.catalogue import list_models as models
    from fate.models.checkpoints import load_model, save_model
    from fate.models.checkpoints.importing import import_checkpoint
    from fate.models.zoo import build_model
    from fate.simulation.camera.event_camera import CameraModel, EventCamera, camera_preset
    from fate.simulation.render.scene import Scene
    from fate.simulation.writing.dataset import simulate
    from fate.view.rerun_view import show_recording as view
    from fate.workflows.check_labels import check_labels
    from fate.workflows.commands import densify, evaluate, train
    from fate.workflows.demo import demo
    from fate.workflows.detect import detect
    from fate.workflows.studies.study import study

#: The names of each module.
_MODULES = {
    "bench.data_loading": ("bench_data",),
    "bench.decode": ("bench_decode",),
    "bench.detect": ("bench_detect",),
    "bench.encode": ("bench_encode",),
    "bench.simulate": ("bench_simulate",),
    "bench.train": ("bench_train",),
    "boxes.label_files": ("read_labels", "write_labels"),
    "boxes.labels": ("LabelSource", "Labels"),
    "data.dataset": ("open_dataset",),
    "encoding.batch": ("EventBatch",),
    "encoding.grids": ("build_grid",),
    "encoding.pillars": ("PillarEncoder",),
    "errors": ("FateError", "FateWarning", "FormatError", "MissingDependencyError"),
    "events.events": ("Events", "Sensor"),
    "events.window": ("Window",),
    "formats.converting": ("convert",),
    "formats.opening": ("decoder_for", "open_recording"),
    "formats.recording": ("Recording",),
    "formats.saving": ("open_writer", "write_events"),
    "formats.summary": ("info",),
    "inference.export": ("export",),
    "inference.loading": ("load_detector",),
    "inference.streaming_step": ("compile_for_streaming",),
    "inspection.inspect": ("inspect",),
    "inspection.prepare": ("prepare",),
    "models.catalogue": ("list_models",),
    "models.checkpoints": ("load_model", "save_model"),
    "models.checkpoints.importing": ("import_checkpoint",),
    "models.zoo": ("build_model",),
    "simulation.camera.event_camera": ("CameraModel", "EventCamera", "camera_preset"),
    "simulation.render.scene": ("Scene",),
    "simulation.writing.dataset": ("simulate",),
    "workflows.check_labels": ("check_labels",),
    "workflows.commands": ("evaluate", "train"),
    "workflows.demo": ("demo",),
    "workflows.detect": ("detect",),
    "workflows.studies.study": ("study",),
}
#: Packages that are called like a command, and can be called.
_PACKAGES = ("densify", "models", "view")
_HOME = {name: module for module, names in _MODULES.items() for name in names}

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
    "compile_for_streaming",
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
    if name in _PACKAGES:
        return importlib.import_module(f"fate.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fate' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"fate.{_HOME[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_PACKAGES})
