"""One step of training: a batch of clips through the student, its losses, and the mean teacher.

PyTorch Lightning handles devices, processes, precision and accumulation. This module keeps the rest: the state of each
stream from clip to clip (back-propagation ends where a clip begins), the mean teacher, and, to continue after a stop,
the number of batches and the state of every random generator, for each process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, distributed, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from fate.data.clips import Clip
from fate.data.loading import ClipBatch
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.window import window_us
from fate.models import state as states
from fate.models.detector import Detector
from fate.models.outputs import Outputs, to_device
from fate.rates import CANONICAL_US
from fate.training.activation_checkpointing import checkpoint_activations
from fate.training.config import OptimiserConfig, TrainConfig
from fate.training.graphs import RecordedFeatures, leave_default_stream, return_to_default_stream
from fate.training.several_processes import processes, synchronise_norms
from fate.training.strategies import Strategy, make_targets
from fate.training.teacher import EmaUpdate, decay_at, make_teacher

#: What a checkpoint calls our part of it.
OURS = "fate"


class TrainingModule(LightningModule):
    """The student, which is trained, and the teacher, its moving average, which is validated and saved."""

    def __init__(self, detector: Detector, strategy: Strategy, config: TrainConfig) -> None:
        super().__init__()
        self.student, self.teacher = detector, make_teacher(detector)
        self.strategy, self.config = strategy, config
        self.batches = 0  #: number of batches of this process, accumulated ones included
        self.memory: states.State = None  #: the state of the streams after the last clip
        self.last_terms: dict[str, Tensor] = {}  #: the loss terms of the last batch by name, on its device
        self._generators: dict[str, Any] | None = None
        self._ema: EmaUpdate | None = None
        self._features: Callable[..., Any] = detector.features
        self._taught: Callable[..., Any] = self.teacher.features
        if config.optimiser.only == "head":
            for part in _before_neck(detector):
                part.requires_grad_(False)
        if config.optimiser.only == "memory":  # the second stage of EvRT-DETR as published
            if detector.memory is None:
                raise FateError(
                    'optimiser.only = "memory" was given for a detector without a memory of its own; expected an'
                    " EvRT-DETR"
                )
            detector.requires_grad_(False)
            detector.memory.requires_grad_(True)

    def setup(self, stage: str) -> None:
        """Share batch normalisation between processes, and move weights to the device."""
        device = self.trainer.strategy.root_device
        if processes() > 1 or self.trainer.world_size > 1:
            synchronise_norms(self.student, device.type)
        self.prepare(device)

    def prepare(self, device: torch.device | str) -> None:
        """Prepare training on a device."""
        self.to(device).train()
        self._ema = None  # the tensors may have been replaced
        run, on_gpu = self.config.run, torch.device(device).type == "cuda"
        if on_gpu:
            self.student.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.teacher.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        checkpoint_activations(self.student, run.activation_checkpointing)
        self._features, self._taught = self.student.features, self.teacher.features
        if run.compile:
            self._features = torch.compile(self.student.features)
        elif on_gpu and run.graphs and processes() == run.devices * run.nodes == 1:
            leave_default_stream()
            self._features = RecordedFeatures(self.student, copy_gradients=run.accumulate > 1)
            self._taught = RecordedFeatures(self.teacher)

    @property
    def records(self) -> bool:
        """Whether backbone and neck run as graphs."""
        return isinstance(self._features, RecordedFeatures)

    def teardown(self, stage: str) -> None:
        """Free the memory of the graphs."""
        if self.records:
            self._features, self._taught = self.student.features, self.teacher.features
            return_to_default_stream()

    def configure_optimizers(self) -> Any:
        """AdamW with OneCycle, stepped with every optimiser step."""
        requested = self.config.optimiser
        trained = [weight for weight in self.student.parameters() if weight.requires_grad]
        on_gpu = trained[0].device.type == "cuda"
        groups: list[dict[str, Any]] = [{"params": trained}]
        if requested.backbone_lr != 1:
            slow = {id(weight) for part in _before_neck(self.student) for weight in part.parameters()}
            parts = [[weight for weight in trained if (id(weight) in slow) == is_slow] for is_slow in (True, False)]
            groups = [
                {"params": part, "lr": requested.lr * factor}
                for part, factor in zip(parts, (requested.backbone_lr, 1.0), strict=True)
                if part
            ]
        optimiser = AdamW(groups, lr=requested.lr, weight_decay=requested.weight_decay, fused=on_gpu)
        schedule = LambdaLR(optimiser, partial(one_cycle, steps=self.config.steps, settings=requested))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train(self, mode: bool = True) -> TrainingModule:
        """Set the mode; the teacher, and parts that ``optimiser.only`` does not train, stay in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        if mode and self.config.optimiser.only != "all":
            for part in _before_neck(self.student):
                part.eval()
            if self.config.optimiser.only == "memory":
                self.student.neck.eval()
        return self

    def transfer_batch_to_device(self, batch: ClipBatch, device: torch.device, dataloader_idx: int) -> ClipBatch:
        """Do nothing: ``training_step`` moves the events in one copy."""
        return batch

    def training_step(self, batch: ClipBatch, number: int) -> Tensor:
        """The loss of a batch of clips; its terms are kept in ``last_terms``."""
        student = self.student
        images = _images(student, batch.inputs(self.device))
        scale = step_scale_of_clips(batch.clips, batch.steps, self.device)
        targets = [make_targets(labels) for labels in batch.labels]
        if self.memory is None and self.config.run.compile:  # compiled for tensors at once, not for None first
            with torch.no_grad():
                _, begun = student.features(images[: len(batch.clips)])
            self.memory = states.mapped(torch.zeros_like, begun)
        memory = None if self.memory is None else states.reset(self.memory, to_device(batch.begins, images.device))
        features, memory = self._features(images, memory, batch.steps, scale)
        self.memory = states.detach(memory)
        outputs = student.predictions(features, targets)
        terms = student.loss(outputs, targets)
        if self.strategy.teaches:
            terms |= self.strategy.consistency(student, *self._shared_outputs(batch, features))
        self.batches += 1
        self.last_terms = {name: term.detach() for name, term in terms.items()}
        return torch.stack(list(terms.values())).sum()

    def optimizer_step(self, *given: Any, **options: Any) -> None:
        """A step of the optimiser, then of the teacher."""
        super().optimizer_step(*given, **options)
        requested = self.config.strategy
        self.follow(decay_at(self.trainer.global_step, requested.decay, requested.decay_warmup))

    def follow(self, decay: float) -> None:
        """One step of the teacher."""
        if self._ema is None:
            self._ema = EmaUpdate(self.teacher, self.student)
        self._ema.step(decay)

    def step_alone(self, batch: ClipBatch, optimiser: torch.optim.Optimizer) -> None:
        """A whole step without Lightning, of which time and memory are measured."""
        device = self.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.config.halves(device)):
            loss = self.training_step(batch, 0)
        loss.backward()  # type: ignore[no-untyped-call]
        self.configure_gradient_clipping(optimiser)
        optimiser.step()
        optimiser.zero_grad()
        self.follow(self.config.strategy.decay)

    def configure_gradient_clipping(self, optimizer: Any, *given: Any, **options: Any) -> None:
        """Limit the gradient; Lightning refuses to do this for fused optimisers, although nothing is scaled here."""
        limits = self.config.optimiser
        if limits.clip_value is None:
            nn.utils.clip_grad_norm_(self.student.parameters(), limits.clip_norm)
        else:
            nn.utils.clip_grad_value_(self.student.parameters(), limits.clip_value)

    def _shared_outputs(self, batch: ClipBatch, features: Sequence[Tensor]) -> tuple[Outputs, Outputs]:
        """Outputs of student and teacher for the windows they share; the teacher starts at its own first window."""
        part = batch.teacher
        shared = torch.zeros(0, 2, dtype=torch.int64) if part is None else torch.as_tensor(part.shared)
        ours, theirs = to_device(shared, self.device).unbind(1)
        said = self.student.head([level.index_select(0, ours) for level in features])
        if part is None:
            return said, said
        with torch.no_grad():
            images = _images(self.teacher, part.inputs(self.device))
            levels, _ = self._taught(images, None, part.steps, 1.0)
            return said, self.teacher.head([level.index_select(0, theirs) for level in levels])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save batches, state and generators of every process; all processes call this."""
        own = {
            "batches": self.batches,
            "memory": states.mapped(lambda part: part.detach().cpu().clone(), self.memory),
            "generators": {name: device.get_rng_state() for name, device in _devices().items()},
        }
        everyone: list[Any] = [own]
        if processes() > 1:
            everyone = [None] * processes()
            distributed.all_gather_object(everyone, own)
        checkpoint[OURS] = everyone

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the part of this process; the generators are restored before the first batch."""
        own = checkpoint[OURS][self.trainer.global_rank]
        self.batches, self._generators = own["batches"], own["generators"]
        self.memory = states.mapped(lambda part: part.to(self.trainer.strategy.root_device), own["memory"])

    def on_train_start(self) -> None:
        """Check that all processes begin at the same batch, and give each its own random numbers."""
        if processes() > 1:
            found: list[Any] = [None] * processes()
            distributed.all_gather_object(found, self.batches)
            if len(set(found)) > 1:  # some processes have found the checkpoint of the run, others have not
                raise FateError(
                    f"processes are at batches {' and '.join(map(str, sorted(set(found))))}; expected a run's folder on"
                    " a disk that all machines share"
                )
        if self.trainer.global_rank:
            torch.manual_seed(self.config.run.seed + 1_000_003 * self.trainer.global_rank)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Restore the generators only now, because loaders draw numbers when they are made."""
        saved, self._generators = self._generators or {}, None
        for name in _devices().keys() & saved.keys():
            _devices()[name].set_rng_state(saved[name])


def _before_neck(detector: Detector) -> tuple[torch.nn.Module, ...]:
    """The parts that see events first: what they know serves any class."""
    history = () if detector.history is None else (detector.history,)
    return detector.encoder, *history, detector.backbone


def _images(detector: Detector, inputs: EventBatch | Tensor) -> Tensor:
    """The input of the backbone, [N, C, H, W]: encoded events, or the histograms of the dataset."""
    return detector.encoder(inputs) if isinstance(inputs, EventBatch) else inputs


def step_scale_of_clips(clips: Sequence[Clip], steps: int, device: torch.device) -> float | Tensor:
    """The step scale: the time from one window to the next, divided by 50 ms.

    It follows from the hop of the B clips, not from the length of their windows, which is greater if windows overlap.
    One number if all clips have the same rate, else [T · B] float32 for T = ``steps``.
    """
    scales = [window_us(clip.hz) / CANONICAL_US for clip in clips]
    if len(set(scales)) == 1:
        return scales[0]
    return to_device(torch.tensor(scales).repeat(steps), device)


def one_cycle(step: int, steps: int, settings: OptimiserConfig) -> float:
    """The learning rate of a step over its peak: linear up, linear down (torch's OneCycleLR; runs may be short too)."""
    top, last = max(settings.warmup * steps - 1, 0.0), max(steps - 1, 1)
    first, end = 1 / settings.start_divisor, 1 / settings.end_divisor
    if step <= top:
        return first + (1 - first) * (step / top if top else 1.0)
    return 1 + (end - 1) * min((step - top) / (last - top), 1.0)


def _devices() -> dict[str, Any]:
    """Modules of torch with the generators that training draws from; everything else has its own seeds."""
    return {"cpu": torch.random, **({"cuda": torch.cuda} if torch.cuda.is_available() else {})}
