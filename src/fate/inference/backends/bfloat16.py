"""Where the backend "openvino-bf16" is offered: on which processors, and for which detectors."""

from __future__ import annotations

from fate.errors import FateError
from fate.models.detector import Detector
from fate.models.heads.yolox import YOLOXHead
from fate.models.layers.s5 import S5


def has_bf16() -> bool:
    """Whether this processor has instructions for bfloat16 that OpenVINO, which must be installed, can use."""
    import openvino  # noqa: PLC0415  (an optional package)

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def refuse_processor() -> None:
    """Refuse a processor without instructions for bfloat16."""
    if not has_bf16():
        raise FateError(
            "backend=openvino-bf16 was given, and this processor has no instructions for bfloat16 (AMX or AVX-512"
            " BF16); give backend=openvino"
        )


def refuse_detector(detector: Detector, name: str = "") -> None:
    """Refuse a detector whose boxes get worse in bfloat16.

    AP of fate-s-nano and fate-s-tiny on 60 drives at 20 Hz changes by 0.1 points. That of fate-e-tiny falls by 0.4 to
    0.5 points at 200 Hz. Other detectors with S5 are accepted; their AP in bfloat16 was not measured.
    """
    if not isinstance(detector.head, YOLOXHead) or not any(isinstance(module, S5) for module in detector.modules()):
        given = name or str(detector.description.get("name", "a detector without S5"))
        raise FateError(
            f"backend=openvino-bf16 was given for {given}; it is for detectors with S5, such as fate-s-tiny: the"
            " accuracy of fate-e-tiny falls in bfloat16; give backend=openvino"
        )
