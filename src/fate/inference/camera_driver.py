"""Opens a camera through ``neuromorphic-drivers``, with biases and a region of interest.

The package opens whatever camera is connected. Each model has its own configuration: its biases have other names and
limits, and a region is either a rectangle or a mask of rows and columns. All names are taken from the package.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fate.errors import PACKAGES, FateError, list_names, missing_packages
from fate.text import suggest_name


@dataclass(frozen=True)
class CameraSettings:
    """Which camera is opened, and how it is configured; everything else stays as the driver has it."""

    serial: str | None = None  #: None for the first camera
    biases: Mapping[str, int] = field(default_factory=dict)  #: by the names of the driver, such as ``diff_on``
    roi: tuple[int, int, int, int] | None = None  #: (x1, y1, x2, y2), the last two not included; other pixels are off


class NoCameraError(FateError):
    """No camera could be opened, or it was unplugged; it may be there later."""


def load_drivers() -> Any:
    """The package; if it is missing, the error gives the pip line."""
    try:
        return importlib.import_module("neuromorphic_drivers")
    except ImportError:
        raise missing_packages("a camera", PACKAGES["camera"]) from None


def open_camera(settings: CameraSettings, timeout_s: float) -> Any:
    """Open and configure a camera.

    Args:
        settings: the camera and its configuration.
        timeout_s: the camera's iterator returns after this time, with or without events.

    Returns:
        The device of the driver. Its iterator gives (status, packet).
    """
    drivers = load_drivers()
    try:
        device = drivers.open(serial=settings.serial, iterator_timeout=timeout_s)
    except Exception as error:  # the package raises different types for each camera
        raise NoCameraError(
            f"no camera could be opened ({error}); connect one, and on Linux run"
            " neuromorphic-drivers-install-udev-rules once"
        ) from error
    if not settings.biases and settings.roi is None:
        return device
    try:
        device.update_configuration(make_configuration(drivers, device, settings))
    except Exception as error:
        device.close()
        if isinstance(error, FateError):
            raise
        raise NoCameraError(f"the camera could not be configured ({error}); check its cable and its biases") from error
    return device


def make_configuration(drivers: Any, device: Any, settings: CameraSettings) -> Any:
    """The driver's default configuration of the camera, with the biases and the region of the settings."""
    model = device.name()
    module = getattr(drivers, model.name.lower())
    configuration = module.Configuration()
    bounds = device.biases_bounds()
    known = [each.name for each in dataclasses.fields(configuration.biases)]
    for name, value in settings.biases.items():
        if name not in known:
            raise FateError(
                f"the bias {name} was given; expected one of the {model.value}'s: {list_names(known, len(known))}"
                f"{suggest_name(name, known)}"
            )
        limits = getattr(bounds, name, None)
        low, high = (0, 1) if limits is None else (limits.minimum, limits.maximum)  # switches have no limits
        if not low <= value <= high:
            raise FateError(f"the bias {name}={value} was given; the {model.value} takes {low} to {high}")
        setattr(configuration.biases, name, value if limits is not None else bool(value))
    if settings.roi is not None:
        _set_region(configuration, module, model.value, settings.roi)
    return configuration


def _set_region(configuration: Any, module: Any, model: str, roi: tuple[int, int, int, int]) -> None:
    x1, y1, x2, y2 = roi
    size = module.Properties()
    if not (0 <= x1 < x2 <= size.width and 0 <= y1 < y2 <= size.height):
        raise FateError(
            f"the camera's region {x1},{y1},{x2},{y2} was given; expected x1 < x2 and y1 < y2 inside the"
            f" {size.width}×{size.height} pixels of the {model}"
        )
    if hasattr(configuration, "region_of_interest"):
        configuration.region_of_interest = module.RegionOfInterest(x1, y1, x2 - x1, y2 - y1)
    elif hasattr(configuration, "x_mask"):  # a pixel is off if its row or its column is masked; rows count from below
        mask = module.RowColumnMask(set=True)
        mask.clear_rectangle(x1, size.height - y2, x2 - x1, y2 - y1)
        configuration.x_mask, configuration.y_mask = mask.x_mask(), mask.y_mask()
    else:
        raise FateError(
            f"a region of the camera was given, and the driver has none for the {model}; give the filter"
            f" roi:{x1},{y1},{x2},{y2} instead, which drops the events of other pixels"
        )
