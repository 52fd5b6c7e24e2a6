"""Packages that only some functions need, and the one sentence that says how to install them.

The sentences name packages of the Python package index and no extra of FATE, so that they work for every way in which
FATE was installed: from a wheel, from a folder, or in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from fate.errors import MissingDependencyError

#: What each extra of pyproject.toml installs.
PACKAGES: dict[str, tuple[str, ...]] = {
    "ros": ("rosbags",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "camera": ("neuromorphic-drivers",),
    "rerun": ("rerun-sdk",),
}


def missing_packages(what: str, packages: Sequence[str]) -> MissingDependencyError:
    """The error to raise where a package is not installed.

    Args:
        what: what needs the packages; the sentence starts with it.
        packages: their names on the package index.

    Example:
        >>> print(missing_packages("export", PACKAGES["export"]))
        export needs onnx, onnxruntime, onnxscript; run pip install onnx onnxruntime onnxscript
    """
    return MissingDependencyError(f"{what} needs {', '.join(packages)}; run pip install {' '.join(packages)}")
