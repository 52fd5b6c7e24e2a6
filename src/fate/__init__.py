"""FATE: object detection with event cameras at any rate from 20 to 200 Hz.

The names below are the public face. They are imported on first use, so that ``import fate`` and
``fate --help`` stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fate.version import __version__ as __version__

if TYPE_CHECKING:
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
    from fate.formats.opening import decoder_for, open_recording
    from fate.formats.recording import Recording
    from fate.formats.saving import open_writer, write_events
    from fate.inference.export import export
    from fate.inference.loading import load_detector
    from fate.inference.streaming_step import compile_for_streaming
    from fate.inspection.prepare import prepare
    from fate.models.catalogue import list_models
    from fate.models.checkpoints import load_model, save_model
    from fate.models.checkpoints.importing import import_checkpoint
    from fate.models.zoo import build_model
    from fate.simulation.camera.camera_model import CameraModel, camera_preset
    from fate.simulation.camera.event_camera import EventCamera
    from fate.simulation.render.scene import Scene
    from fate.simulation.writing.dataset import simulate
    from fate.workflows.commands import (
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
    from fate.workflows.demo import demo
    from fate.workflows.detect import detect

_HOME = {
    "bench_data": "fate.workflows.commands",
    "check_labels": "fate.workflows.commands",
    "convert": "fate.workflows.commands",
    "evaluate": "fate.workflows.commands",
    "info": "fate.workflows.commands",
    "inspect": "fate.workflows.commands",
    "study": "fate.workflows.commands",
    "train": "fate.workflows.commands",
    "open_dataset": "fate.data.dataset",
    "prepare": "fate.inspection.prepare",
    "densify": "fate.densify",
    "EventBatch": "fate.encoding.batch",
    "bench_encode": "fate.bench.encode",
    "build_grid": "fate.encoding.grids",
    "PillarEncoder": "fate.encoding.pillars",
    "FateError": "fate.errors",
    "FateWarning": "fate.errors",
    "FormatError": "fate.errors",
    "MissingDependencyError": "fate.errors",
    "Events": "fate.events.events",
    "Sensor": "fate.events.events",
    "read_labels": "fate.boxes.label_files",
    "write_labels": "fate.boxes.label_files",
    "LabelSource": "fate.boxes.labels",
    "Labels": "fate.boxes.labels",
    "Window": "fate.events.window",
    "bench_decode": "fate.bench.decode",
    "decoder_for": "fate.formats.opening",
    "open_recording": "fate.formats.opening",
    "Recording": "fate.formats.recording",
    "open_writer": "fate.formats.saving",
    "write_events": "fate.formats.saving",
    "models": "fate.models",
    "list_models": "fate.models.catalogue",
    "load_model": "fate.models.checkpoints",
    "save_model": "fate.models.checkpoints",
    "import_checkpoint": "fate.models.checkpoints.importing",
    "build_model": "fate.models.zoo",
    "bench_detect": "fate.bench.detect",
    "demo": "fate.workflows.demo",
    "detect": "fate.workflows.detect",
    "export": "fate.inference.export",
    "load_detector": "fate.inference.loading",
    "compile_for_streaming": "fate.inference.streaming_step",
    "bench_simulate": "fate.bench.simulate",
    "CameraModel": "fate.simulation.camera.camera_model",
    "EventCamera": "fate.simulation.camera.event_camera",
    "camera_preset": "fate.simulation.camera.camera_model",
    "simulate": "fate.simulation.writing.dataset",
    "Scene": "fate.simulation.render.scene",
    "bench_train": "fate.bench.train",
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
    if name not in _HOME:
        raise AttributeError(f"module 'fate' has no attribute {name!r}")
    home = importlib.import_module(_HOME[name])
    value = home if _HOME[name] == f"fate.{name}" else getattr(home, name)  # a package that is called like a function
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
