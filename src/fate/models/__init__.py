"""The detectors: encoder, backbone with memory, neck and head, and how they join."""

from fate.callable_package import make_callable

make_callable(__name__, "fate:list_models")
