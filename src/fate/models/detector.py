"""A detector: from the events of some windows and a recurrent state to predictions and the next state.

    encoder    events of a window → pseudo-image                       (encoding/)
    backbone   pseudo-image       → features at strides 8, 16, 32      (recurrent in RVT, S5-ViT and GET)
    neck       features           → fused features
    memory     fused features     → recurrent features                 (EvRT-DETR)
    head       features           → boxes, classes

Any encoder goes with any backbone (``frame.py``). Time enters in two places: the encoder uses the duration of a window,
and recurrent layers that depend on time (S5) use ``step_scale``, the length of a step over the canonical 50 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Sensor
from fate.models import nms, state
from fate.models.frame import Frame
from fate.models.heads.targets import check_class_ids, to_device
from fate.models.nms import Detections
from fate.models.outputs import Outputs, Targets
from fate.models.state import State

#: The window of 20 Hz, at which detectors are trained and S5's step is 1.
CANONICAL_US = 50_000


class Detector(nn.Module):
    """``outputs, state = detector(batch, state)``.

    Attributes:
        classes: their names, in the order of class ids.
        frame: sensor, padding, stem.
        description: how to build it again: the model's name and arguments (``zoo.py``).
    """

    def __init__(
        self,
        encoder: nn.Module,
        backbone: nn.Module,
        neck: nn.Module,
        head: nn.Module,
        frame: Frame,
        classes: Sequence[str],
        memory: nn.Module | None = None,
        description: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.backbone, self.neck, self.head, self.memory = encoder, backbone, neck, head, memory
        self.frame, self.classes = frame, tuple(classes)
        self.image_channels = int(encoder.channels)  # type: ignore[arg-type]
        self.description = dict(description or {})

    @property
    def sensor(self) -> Sensor:
        """(height, width) of the events and of the boxes, pixels."""
        return self.frame.sensor

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def forward(
        self,
        batch: EventBatch | Tensor,
        state: State = None,
        steps: int = 1,
        targets: Sequence[Targets | None] | None = None,
        step_scale: float | Tensor | None = None,
    ) -> tuple[Outputs, State]:
        """Predictions for each window, and the state after the last one.

        Args:
            batch: N = steps · B windows of B streams, time-major (first the first window of every stream); or images of
                the encoder [N, C, H', W'].
            state: of the B streams before the first window; None for the initial state.
            steps: T, windows of each stream. A clip in one call gives what its windows give one by one, but for
                rounding: queries of DETR heads that tie may come in another order.
            targets: for training, the targets of each of the N windows; None for windows without labels. The head then
                runs on labelled windows only, in their order. On the CPU, where they are checked and then copied
                together.
            step_scale: time between windows over 50 ms, more than 0, a number or [N]; None: their own durations.
        """
        self._check(len(batch), state, steps, targets)
        _check_step_scale(step_scale, len(batch))
        if isinstance(batch, EventBatch):
            images = self.encoder(batch)
            step_scale = step_scale_of(batch) if step_scale is None else step_scale
        else:
            images = batch
            self._check_images(images)
        features, state = self.features(images, state, steps, 1.0 if step_scale is None else step_scale)
        return self.predictions(features, targets), state

    def predictions(self, features: Sequence[Tensor], targets: Sequence[Targets | None] | None = None) -> Outputs:
        """Outputs of the head for the features of N windows; with targets (None: no labels), for the labelled only."""
        labelled = None
        if targets is not None:
            labelled = [target for target in targets if target is not None]
            if len(labelled) < len(targets):
                numbers = [number for number, target in enumerate(targets) if target is not None]
                rows = to_device(torch.tensor(numbers, dtype=torch.int64), features[0].device)
                features = [level.index_select(0, rows) for level in features]
        outputs: Outputs = self.head(features, labelled)
        return outputs

    def _check(self, windows: int, memory: State, steps: int, targets: Sequence[Targets | None] | None) -> None:
        if steps < 1 or windows % steps:
            raise FateError(f"{windows} windows were given in clips of {steps}; expected a multiple")
        if targets is not None and len(targets) != windows:
            raise FateError(f"targets of {len(targets)} windows were given for {windows} windows; expected as many")
        ids = [given.class_ids for given in targets or () if given is not None]
        if ids:
            check_class_ids(torch.cat(ids), len(self.classes), self.classes)
        if memory is not None:
            self._check_state(memory, windows // steps)

    def _check_images(self, images: Tensor) -> None:
        """Check that images have the size of the encoder's images or of padded ones."""
        stride, channels = self.frame.encoder_stride, self.image_channels
        plain = tuple(-(-side // stride) for side in self.sensor)
        padded = tuple(side // stride for side in self.frame.padded)
        if images.ndim != 4 or images.shape[1] != channels or tuple(images.shape[2:]) not in (plain, padded):
            raise FateError(
                f"images of shape {tuple(images.shape)} were given; expected [N, {channels}, {plain[0]}, {plain[1]}],"
                " as the encoder makes them"
            )

    def _check_state(self, memory: State, streams: int) -> None:
        kept = (bool(getattr(self.backbone, "remembers", False)), self.memory is not None)
        fits = isinstance(memory, tuple | list) and len(memory) == 2
        if not fits or any((part is not None) != requested for part, requested in zip(memory, kept, strict=True)):
            raise FateError("a state of another model was given; expected what this one returned, or None to begin")
        # The backbone's state has strides 4 to 32, channels last; that of ``memory`` strides from 8, channels first.
        for part, finest, first in zip(memory, (4, 8), (1, 2), strict=True):
            for stage, of_stage in enumerate(part or ()):
                stride = finest << stage
                for each in state.tensors(of_stage):
                    self._check_part(each.shape[0], tuple(each.shape[first : first + 2]), streams, stride)

    def _check_part(self, given: int, cells: tuple[int, ...], streams: int, stride: int) -> None:
        """Check the streams, and the rows and columns of a state's tensor at a stride."""
        if given != streams:
            raise FateError(
                f"a state of {given} streams was given with {streams} windows a step; expected one of each stream"
            )
        if cells != tuple(side // stride for side in self.frame.padded):
            size = "×".join(str(side * stride) for side in reversed(cells))
            raise FateError(
                f"a state of a frame of {size} pixels was given; this detector is for a sensor of {self.sensor},"
                f" padded to {self.frame.padded}: expected what it returned, or None to begin"
            )

    def features(
        self, images: Tensor, state: State = None, steps: int = 1, step_scale: float | Tensor = 1.0
    ) -> tuple[list[Tensor], State]:
        """Features [N, C_i, H_i, W_i] at strides 8, 16 and 32 for the head, and the next state; see ``forward``."""
        of_backbone, of_memory = (None, None) if state is None else state
        features, of_backbone = self.backbone(self.frame.padded_image(images), of_backbone, steps, step_scale)
        features = self.neck(features)
        if self.memory is not None:
            features, of_memory = self.memory(features, of_memory, steps, step_scale)
        return features, (of_backbone, of_memory)

    def loss(self, outputs: Outputs, targets: Sequence[Targets | None]) -> dict[str, Tensor]:
        """The terms of the loss by name, for the targets given to ``forward``."""
        terms: dict[str, Tensor] = self.head.loss(outputs, [given for given in targets if given is not None])  # type: ignore[operator]
        return terms

    def detections(self, outputs: Outputs, **options: Any) -> list[Detections]:
        """The objects of each window, boxes in pixels of the sensor; options as in ``nms.detections``."""
        return nms.detections(outputs, self.sensor, **options)

    def reset(self, memory: State, mask: Tensor) -> State:
        """Reset the state of streams where ``mask`` [B] is true."""
        return state.reset(memory, mask)

    def detach(self, memory: State) -> State:
        """Detach the state from the graph: for training on consecutive clips."""
        return state.detach(memory)


def step_scale_of(batch: EventBatch) -> float | Tensor:
    """Durations over 50 ms: one number if all windows are known to have equal durations, else [N]."""
    known = batch.durations
    if known is not None and len(set(known)) == 1:
        return known[0] / CANONICAL_US
    return batch.duration_us / CANONICAL_US


def _check_step_scale(step_scale: float | Tensor | None, windows: int) -> None:
    """Refuse step scales that are not positive and finite; values on a GPU are not checked, to avoid a wait."""
    if step_scale is None or torch.compiler.is_compiling():
        return
    scale = torch.as_tensor(step_scale)
    wrong = scale.shape not in ((), (1,), (windows,))
    if wrong or (scale.device.type == "cpu" and not bool(((scale > 0) & scale.isfinite()).all())):
        raise FateError(
            f"step_scale={step_scale} was given; expected the time between windows over 50 ms, a finite number above 0,"
            f" or one for each of the {windows} windows"
        )
