"""FATE: object detection with event cameras at any rate from 20 to 200 Hz.

The names below are the public face. They are imported on first use, so that ``import fate`` and
``fate --help`` stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fate.version import __version__ as __version__

if TYPE_CHECKING:  # "as" makes a name public for type checkers
    from fate.bench.data_loading import bench_data as bench_data
    from fate.bench.decode import bench_decode as bench_decode
    from fate.bench.detect import bench_detect as bench_detect
    from fate.bench.encode import bench_encode as bench_encode
    from fate.bench.train import bench_train as bench_train
    from fate.boxes.importing import read_export as read_export
    from fate.boxes.label_files import read_labels as read_labels
    from fate.boxes.label_files import write_labels as write_labels
    from fate.boxes.labels import Labels as Labels
    from fate.boxes.labels import LabelSource as LabelSource
    from fate.data.event_dataset import EventDataset as EventDataset
    from fate.data.opening import open_dataset as open_dataset
    from fate.encoding.batch import EventBatch as EventBatch
    from fate.encoding.grids import build_grid as build_grid
    from fate.encoding.pillars import PillarEncoder as PillarEncoder
    from fate.errors import FateError as FateError
    from fate.errors import FateWarning as FateWarning
    from fate.errors import FormatError as FormatError
    from fate.errors import MissingDependencyError as MissingDependencyError
    from fate.events.events import Events as Events
    from fate.events.events import Sensor as Sensor
    from fate.events.window import Window as Window
    from fate.formats.converting import convert as convert
    from fate.formats.opening import decoder_for as decoder_for
    from fate.formats.opening import open_recording as open_recording
    from fate.formats.recording import Recording as Recording
    from fate.formats.saving import open_writer as open_writer
    from fate.formats.saving import write_events as write_events
    from fate.formats.summary import info as info
    from fate.inference.export import export as export
    from fate.inference.loading import load_detector as load_detector
    from fate.inference.results import DetectionResult as DetectionResult
    from fate.inference.stream import StreamingDetector as StreamingDetector
    from fate.inference.stream_types import StreamFrame as StreamFrame
    from fate.inference.streaming_step import compile_for_streaming as compile_for_streaming
    from fate.inspection.inspect import inspect as inspect
    from fate.inspection.prepare import prepare as prepare
    from fate.models.checkpoints import load_model as load_model
    from fate.models.checkpoints import save_model as save_model
    from fate.models.checkpoints.importing import import_checkpoint as import_checkpoint
    from fate.models.zoo import build_model as build_model
    from fate.models.zoo import list_models as list_models
    from fate.progress import print_progress as print_progress
    from fate.simulation.camera.camera_model import CameraModel as CameraModel
    from fate.simulation.camera.camera_model import camera_preset as camera_preset
    from fate.simulation.camera.event_camera import EventCamera as EventCamera
    from fate.simulation.render.scene import Scene as Scene
    from fate.view.rerun_view import show_recording
    from fate.workflows.bench_simulate import bench_simulate as bench_simulate
    from fate.workflows.check_labels import check_labels as check_labels
    from fate.workflows.commands import densify as densify
    from fate.workflows.commands import evaluate as evaluate
    from fate.workflows.commands import fine_tune as fine_tune
    from fate.workflows.commands import train as train
    from fate.workflows.compare import compare as compare
    from fate.workflows.demo import demo as demo
    from fate.workflows.detect import detect as detect
    from fate.workflows.label_kit import label_kit as label_kit
    from fate.workflows.live_page.running import live as live
    from fate.workflows.record import record as record
    from fate.workflows.rehearsal import RehearsalRequest as RehearsalRequest
    from fate.workflows.rehearsal import rehearse as rehearse
    from fate.workflows.simulate import simulate as simulate
    from fate.workflows.studies.study import study as study

    models, view = list_models, show_recording

#: The names of each module.
_MODULES = {
    "bench.data_loading": ("bench_data",),
    "bench.decode": ("bench_decode",),
    "bench.detect": ("bench_detect",),
    "bench.encode": ("bench_encode",),
    "bench.train": ("bench_train",),
    "boxes.importing": ("read_export",),
    "boxes.label_files": ("read_labels", "write_labels"),
    "boxes.labels": ("LabelSource", "Labels"),
    "data.event_dataset": ("EventDataset",),
    "data.opening": ("open_dataset",),
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
    "inference.results": ("DetectionResult",),
    "inference.stream": ("StreamingDetector",),
    "inference.stream_types": ("StreamFrame",),
    "inference.streaming_step": ("compile_for_streaming",),
    "inspection.inspect": ("inspect",),
    "inspection.prepare": ("prepare",),
    "models.checkpoints": ("load_model", "save_model"),
    "models.checkpoints.importing": ("import_checkpoint",),
    "models.zoo": ("build_model", "list_models"),
    "progress": ("print_progress",),
    "simulation.camera.camera_model": ("CameraModel", "camera_preset"),
    "simulation.camera.event_camera": ("EventCamera",),
    "simulation.render.scene": ("Scene",),
    "workflows.bench_simulate": ("bench_simulate",),
    "workflows.check_labels": ("check_labels",),
    "workflows.commands": ("evaluate", "fine_tune", "train"),
    "workflows.demo": ("demo",),
    "workflows.detect": ("detect",),
    "workflows.compare": ("compare",),
    "workflows.label_kit": ("label_kit",),
    "workflows.live_page.running": ("live",),
    "workflows.record": ("record",),
    "workflows.rehearsal": ("RehearsalRequest", "rehearse"),
    "workflows.simulate": ("simulate",),
    "workflows.studies.study": ("study",),
}
#: Packages that are called like a command, and can be called.
_PACKAGES = ("densify", "models", "view")
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted({*_HOME, *_PACKAGES})  # noqa: PLE0605  (a list of texts)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"fate.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fate' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"fate.{_HOME[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_PACKAGES})
