"""A detector: from the events of windows and a recurrent state to predictions and the next state.

    encoder    events of a window → pseudo-image                       (encoding/)
    history    pseudo-image       → pseudo-image                       (only with ``image_history``)
    backbone   pseudo-image       → features at strides 8, 16, 32      (recurrent in RVT, S5-ViT and GET)
    neck       features           → fused features
    memory     fused features     → recurrent features                 (only in EvRT-DETR)
    head       features           → boxes, class logits

Time is used in two ways: the encoder uses the duration of a window, and recurrent layers that depend on time (S5) use
``step_scale``, the time between two windows divided by 50 ms.

Any encoder works with any backbone (``Frame``). Backbones halve an image five times, so frames are padded at the right
and at the bottom to multiples of 32 pixels. If an encoder's image is coarser than the sensor, the stride of the stem is
divided by the encoder's stride. Features then still have strides 8, 16 and 32, and the number of parameters does not
change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.encoding.batch import EventBatch
from fate.encoding.spec import check_choice
from fate.errors import FateError
from fate.events.events import Sensor
from fate.models import nms
from fate.models import state as states
from fate.models.nms import Detections
from fate.models.outputs import Outputs, Targets, check_class_ids, to_device
from fate.models.state import State
from fate.rates import CANONICAL_US

#: "native" divides the stem's stride by the encoder's; "upsample" repeats each cell over its pixels instead.
Stem = Literal["native", "upsample"]
COARSEST = 32
#: Most tokens of an attention window: enough for RVT's (8, 10) on 256×320, not for all of 384×640 at stride 32.
MOST_TOKENS = 100


class Frame(NamedTuple):
    """The geometry of a detector's input."""

    sensor: Sensor
    padded: Sensor  #: size of the padded frame in pixels
    partition: tuple[int, int]  #: rows and columns of an attention window, in every stage
    encoder_stride: int  #: pixels along a side of one cell of the encoder's image
    repeat: int  #: repetitions of a cell of the encoder's image in each direction
    stem_stride: int  #: stride of the backbone's first convolution
    empty_value: float = 0.0  #: value of the encoder's cells without events, used for padding

    def padded_image(self, image: Tensor) -> Tensor:
        """Pad the encoder's image [N, C, H', W'] and repeat its cells, for the backbone."""
        rows, columns = (size // self.encoder_stride for size in self.padded)
        right, bottom = columns - image.shape[-1], rows - image.shape[-2]
        if right or bottom:
            image = functional.pad(image, (0, right, 0, bottom), value=self.empty_value)
        if self.repeat > 1:
            image = functional.interpolate(image, scale_factor=float(self.repeat), mode="nearest")
        return image


def frame_of(
    sensor: Sequence[int], encoder_stride: int, full_stride: int, stem: Stem = "native", empty_value: float = 0.0
) -> Frame:
    """The frame for a sensor (height, width); other arguments as in ``Frame``.

    ``full_stride`` is the stride of the backbone's first convolution for an image of the sensor's resolution.
    """
    check_choice("stem", stem, get_args(Stem))
    if encoder_stride not in (1, 2, 4, 8, 16, 32):
        raise FateError(
            f"an encoder with cells of {encoder_stride} pixels was given; a detector takes 1, 2, 4, 8, 16 or 32"
        )
    size = Sensor.of(sensor)
    for split in itertools.count(1):
        step = COARSEST * split
        rows, columns = (-(-side // step) for side in size)
        if rows * columns <= MOST_TOKENS:
            break
    padded = Sensor(rows * step, columns * step)
    if stem == "upsample":
        repeat, stride = encoder_stride, full_stride
    else:
        repeat, stride = max(encoder_stride // full_stride, 1), max(full_stride // encoder_stride, 1)
    return Frame(size, padded, (rows, columns), encoder_stride, repeat, stride, empty_value)


class Detector(nn.Module):
    """``outputs, state = detector(batch, state)``.

    Attributes:
        classes: class names, in the order of class ids.
        frame: sensor, padding and stride of the stem.
        description: name and arguments of the model, from which ``zoo.rebuild`` builds it again.
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
        history: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.backbone, self.neck, self.head, self.memory = encoder, backbone, neck, head, memory
        self.history = history
        self.frame, self.classes = frame, tuple(classes)
        self.image_channels = int(encoder.channels)  # type: ignore[arg-type]
        self.description = dict(description or {})

    @property
    def sensor(self) -> Sensor:
        """(height, width) of the events and of the boxes, pixels."""
        return self.frame.sensor

    @property
    def follows_time(self) -> bool:
        """Whether a layer uses the time between windows (``step_scale``): S5, or a memory with recurrence "time"."""
        return any(getattr(module, "follows_time", False) for module in itertools.islice(self.modules(), 1, None))

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    def forward(
        self,
        batch: EventBatch | Tensor,
        state: State = None,
        steps: int = 1,
        targets: Sequence[Targets | None] | None = None,
        step_scale: float | Tensor | None = None,
        reuse_state: bool = False,
    ) -> tuple[Outputs, State]:
        """Predict boxes for each window, and return the state after the last window.

        Args:
            batch: N = steps · B windows of B streams, time-major (the first windows of all streams come first); or
                images of the encoder [N, C, H', W'].
            state: the state of the B streams before the first window; None for the initial state.
            steps: T, the number of windows of each stream. A clip in one call gives the same predictions as its
                windows in T calls, except for rounding and the order of tied queries of a DETR head.
            targets: for training, the targets of each of the N windows on the CPU; None for a window without labels.
                The head then runs on labelled windows only.
            step_scale: time between windows divided by 50 ms, above 0: a number or [N]. None for the durations of the
                windows (1 for images).
            reuse_state: the caller needs the given state no more, so parts of it may be changed or returned again.
        """
        windows = len(batch)
        if steps < 1 or windows % steps:
            raise FateError(f"{windows} windows were given in clips of {steps}; expected a multiple")
        if targets is not None and len(targets) != windows:
            raise FateError(f"targets of {len(targets)} windows were given for {windows} windows; expected as many")
        class_ids = [target.class_ids for target in targets or () if target is not None]
        if class_ids:
            check_class_ids(torch.cat(class_ids), len(self.classes), self.classes)
        if state is not None:
            self._check_state(state, windows // steps)
        _check_step_scale(step_scale, windows)
        if isinstance(batch, EventBatch):
            images = self.encoder(batch)
            step_scale = step_scale_of(batch) if step_scale is None else step_scale
        else:
            images = batch
            self._check_images(images)
        features, state = self.features(images, state, steps, 1.0 if step_scale is None else step_scale, reuse_state)
        return self.predictions(features, targets), state

    def features(
        self,
        images: Tensor,
        state: State = None,
        steps: int = 1,
        step_scale: float | Tensor = 1.0,
        reuse_state: bool = False,
    ) -> tuple[list[Tensor], State]:
        """Compute the head's input [N, C_i, H_i, W_i] at strides 8, 16 and 32, and the next state; see ``forward``."""
        backbone_state, memory_state, *rest = (None, None, None) if state is None else state
        if self.history is not None:
            images, history_state = self.history(images, rest[0], steps, step_scale, reuse_state)
            rest = [history_state]
        features, backbone_state = self.backbone(self.frame.padded_image(images), backbone_state, steps, step_scale)
        features = self.neck(features)
        if self.memory is not None:
            features, memory_state = self.memory(features, memory_state, steps, step_scale)
        return features, (backbone_state, memory_state, *(rest if self.history is not None else ()))

    def behind_history(self) -> Detector:
        """The detector of completed images, with the same parts; itself if it has no history."""
        if self.history is None:
            return self
        encoder: Any = self.encoder if self.history.keep_length else self.encoder.encoder
        parts = (encoder, self.backbone, self.neck, self.head, self.frame, self.classes, self.memory, self.description)
        return Detector(*parts).train(self.training)

    def predictions(self, features: Sequence[Tensor], targets: Sequence[Targets | None] | None = None) -> Outputs:
        """Run the head on the features of N windows; if targets are given, on the labelled windows only."""
        if targets is None:
            return cast(Outputs, self.head(features))
        labelled = [index for index, target in enumerate(targets) if target is not None]
        if len(labelled) < len(targets):
            rows = to_device(torch.tensor(labelled, dtype=torch.int64), features[0].device)
            features = [level.index_select(0, rows) for level in features]
        return cast(Outputs, self.head(features, [targets[index] for index in labelled]))

    def loss(self, outputs: Outputs, targets: Sequence[Targets | None]) -> dict[str, Tensor]:
        """Compute the terms of the loss by name, for the targets that ``forward`` was given."""
        labelled = [target for target in targets if target is not None]
        if outputs.training is None or len(labelled) != len(outputs.boxes):
            raise FateError(
                f"outputs of {len(outputs.boxes)} windows and targets of {len(labelled)} were given to the loss;"
                " expected the targets that the detector was called with, or outputs of a detector in training mode"
            )
        return cast(dict[str, Tensor], self.head.loss(outputs, labelled))  # type: ignore[operator]

    def detections(self, outputs: Outputs, **options: Any) -> list[Detections]:
        """Detections of each window, boxes in pixels of the sensor; same options as ``nms.detections``."""
        return nms.detections(outputs, self.sensor, **options)

    def reset(self, state: State, mask: Tensor) -> State:
        """Reset the state of streams for which ``mask`` [B] is true."""
        return states.reset(state, mask)

    def detach(self, state: State) -> State:
        """Detach the state from the graph, for training on consecutive clips."""
        return states.detach(state)

    def _check_images(self, images: Tensor) -> None:
        """Refuse images that have neither the size of the encoder's images nor the padded size."""
        stride, channels = self.frame.encoder_stride, self.image_channels
        plain = tuple(-(-side // stride) for side in self.sensor)
        padded = tuple(side // stride for side in self.frame.padded)
        if images.ndim != 4 or images.shape[1] != channels or tuple(images.shape[2:]) not in (plain, padded):
            raise FateError(
                f"images of shape {tuple(images.shape)} were given; expected [N, {channels}, {plain[0]}, {plain[1]}],"
                " as the encoder makes them"
            )

    def _check_state(self, state: State, streams: int) -> None:
        """Refuse a state of another model, another number of streams or another size of frame."""
        recurrent = [bool(getattr(self.backbone, "remembers", False)), self.memory is not None]
        recurrent += [True] * (self.history is not None)
        fits = isinstance(state, tuple | list) and len(state) == len(recurrent)
        if not fits or any((part is not None) != expected for part, expected in zip(state, recurrent, strict=True)):
            raise FateError("a state of another model was given; expected what this one returned, or None to begin")
        # The history has the size of the images, which may be padded.
        for part in states.tensors(state[2:]):
            sizes = [tuple(-(-side // self.frame.encoder_stride) for side in size) for size in self.frame[:2]]
            if len(part) != streams or tuple(part.shape[2:]) not in sizes:
                raise FateError(
                    f"a history of {len(part)} streams and {tuple(part.shape[2:])} cells was given; expected"
                    f" {streams} streams and {sizes[0]} cells, as the detector returned them, or None to begin"
                )
        # The backbone's state has strides 4 to 32, channels last; the memory's has strides 8 to 32, channels first.
        for part, finest, rows_axis in zip(state[:2], (4, 8), (1, 2), strict=True):
            for stage, stage_state in enumerate(part or ()):
                for tensor in states.tensors(stage_state):
                    height, width = (side * (finest << stage) for side in tensor.shape[rows_axis : rows_axis + 2])
                    if len(tensor) != streams or (height, width) != self.frame.padded:
                        raise FateError(
                            f"a state of {len(tensor)} streams and a frame of {width}×{height} pixels was given; this"
                            f" detector is for a sensor of {self.sensor}, padded to {self.frame.padded}, and was given"
                            f" {streams} windows a step: expected the state it returned for them, or None to begin"
                        )


def step_scale_of(batch: EventBatch) -> float | Tensor:
    """Durations divided by 50 ms: one number if all windows are known to have the same duration, else [N]."""
    known = batch.durations
    if known is not None and len(set(known)) == 1:
        return known[0] / CANONICAL_US
    return batch.duration_us / CANONICAL_US


def _check_step_scale(step_scale: float | Tensor | None, windows: int) -> None:
    """Refuse step scales that are not positive and finite; values on a GPU are not checked, to avoid a wait."""
    if step_scale is None or torch.compiler.is_compiling():
        return
    if isinstance(step_scale, float) and 0 < step_scale < math.inf:
        return  # without the tensors below, which take longer than many a layer
    scale = torch.as_tensor(step_scale)
    wrong = scale.shape not in ((), (1,), (windows,))
    if wrong or (scale.device.type == "cpu" and not bool(((scale > 0) & scale.isfinite()).all())):
        raise FateError(
            f"step_scale={step_scale} was given; expected the time between windows over 50 ms, a finite number above 0,"
            f" or one for each of the {windows} windows"
        )
