"""A training run from a configuration: build everything, then call ``Trainer.fit`` of Lightning.

    fate.train("fate-s-nano-20hz", "runs/nano", ["data.path=drives"])

``build`` makes the dataset, the batches of clips (``data.clips``), the detector (``models.zoo``) and the strategy.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fate.boxes.labels import Labels
from fate.data.class_maps import plain
from fate.data.clips import Grid, TrainingPlan
from fate.data.compact_events import CompactEvents
from fate.data.dataset import Dataset, data_faults
from fate.data.label_rules import PLAIN_RULES, LabelRules, RuledLabels, label_rules
from fate.data.labelled_recording import LabelledRecording
from fate.data.loading import ClipBatch, ClipReader, LabelsOf, load
from fate.data.opening import open_dataset
from fate.data.resident import BYTES_PER_EVENT, EventSource, ResidentEvents, complete_batches
from fate.data.transforms import Augmentation
from fate.encoding.window_length import WindowLength
from fate.errors import FateError, missing_packages
from fate.evaluation.protocols import named_protocol
from fate.inference.loading import find_weights, load_trained
from fate.inference.running import check_histograms
from fate.models.checkpoints import check_entries, read_card
from fate.models.detector import Detector
from fate.models.zoo import build_model, has_s5, rebuild
from fate.processes import KILL_SIGNAL, own_rank
from fate.progress import Progress
from fate.threads import limit_threads
from fate.training.config import ModelConfig, TrainConfig, read_config
from fate.training.loggers import Loggers, check_loggers
from fate.training.run_directory import RunDirectory
from fate.training.several_processes import check_processes
from fate.training.strategies import STRATEGIES, Strategy

if TYPE_CHECKING:
    from fate.training.callbacks import DrawCurves, DrawSamples

#: GPU memory that tensors leave to libraries. Without it, attention of cuDNN fails with an error of its own when memory
#: is full, instead of the one that says so.
LIBRARIES_GB = 3.0
#: Options of models that add parameters for the length of windows, and what the names of these parameters contain.
OF_LENGTH = {"length_affine": ".length_affine.", "image_history": ".history."}
AUGMENTATIONS = {
    "paper": (Augmentation.paper(), Augmentation.paper()),
    "rvt": (Augmentation.rvt_random(), Augmentation.rvt_stream()),
    "none": (None, None),
}


@dataclass(frozen=True)
class TrainingParts:
    """The parts of a run."""

    config: TrainConfig
    dataset: Dataset
    validation: Dataset
    detector: Detector
    strategy: Strategy
    plan: TrainingPlan
    device: str

    @property
    def resident(self) -> bool:
        """Whether all events of the training set stay on the GPU."""
        if self.device != "cuda" or self.dataset.holds == "histograms":
            return False
        gigabytes = sum(recording.num_events for recording in self.dataset.labelled) * BYTES_PER_EVENT / 1e9
        memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / 1e9
        return gigabytes <= min(self.config.data.resident_gb, memory / 4)

    @property
    def compact(self) -> bool:
        """Whether the training process reads the events of each batch from compact files."""
        has_files = all(each.compact_file for each in self.dataset.labelled)
        return self.device == "cuda" and has_files and not self.resident

    def reader(self, rank: int = 0, world: int = 1, resident: bool = False) -> ClipReader:
        """The reader of the batches of one process; with ``resident`` it does not read their events."""
        recordings = self.dataset.labelled
        random, stream = AUGMENTATIONS[self.config.data.augmentation]
        labels_of = self.strategy.labels(recordings, own_labels(self.dataset))
        return ClipReader(
            recordings,
            self.dataset.sensor,
            augmentation=random,
            stream_augmentation=stream,
            labels_of=partial(_ruled, recordings, labels_of, _rules(self.dataset)),
            warmup=self.config.strategy.warmup_windows if self.strategy.teaches else None,
            rank=rank,
            world=world,
            resident=resident,
        )

    def batches(self, first: int = 0, rank: int = 0, world: int = 1) -> Iterable[ClipBatch]:
        """An endless sequence of batches from index ``first``."""
        plans, reader = partial(self.plan.batches, first), self.reader(rank, world, self.resident or self.compact)
        loader = load(reader, plans, self.config.data.workers, pin_memory=self.device == "cuda" and not reader.resident)
        if not reader.resident:
            return loader
        return complete_batches(loader, self.events_on_device())

    def events_on_device(self) -> EventSource:
        """Adds events to batches of requests, if the events are resident or in compact files."""
        made_from = CompactEvents if self.compact else ResidentEvents
        return made_from(self.dataset.labelled, self.dataset.sensor, self.device)


@dataclass(frozen=True)
class Trained:
    """The result of a run."""

    folder: Path
    step: int
    finished: bool  #: False if it was asked to stop
    #: validation score (mean AP50:95 over ``run.validate_hz``) of the weights that the run started from; None if there
    #: were none, or if they did not know all classes
    before: float | None = None
    best: float | None = None  #: highest validation score; ``best.safetensors`` has it

    @property
    def weights(self) -> Path:
        """The best weights; the last ones if no validation gave a score."""
        best = self.folder / "best.safetensors"
        return best if best.exists() else self.folder / "last.safetensors"


def build(config: TrainConfig) -> TrainingParts:
    """Build everything except the Lightning trainer; all faults of data and settings are raised here."""
    device = _device(config)
    torch.manual_seed(config.run.seed)
    dataset = open_dataset(config.data.path, config.data.train).checked()
    validation = open_dataset(config.data.path, config.data.validate_on).checked()
    if limit := config.run.validate_recordings:
        all_of_them = validation.labelled
        count = min(limit, len(all_of_them))
        spread = tuple(all_of_them[index * len(all_of_them) // count] for index in range(count))
        validation = replace(validation, recordings=spread)
    named_protocol(validation.protocol, validation.sensor)  # refuses a sensor that it has no limits for
    dataset.refuse_without_classes()
    dataset.refuse_without_labels("training needs some")
    detector = _make_detector(config.model, dataset)
    strategy = STRATEGIES[config.strategy.name](config)
    if dataset.holds == "histograms" and dataset.labelled:  # they have one rate, and some detectors need events
        check_histograms(detector, dataset.labelled[0])
        for recordings, rates in ((dataset, config.rates), (validation, config.run.validate_hz)):
            for recording, hz in product(recordings.labelled[:1], rates):
                Grid.of(recording, hz)
    strategy.check(dataset)
    own = own_labels(dataset)
    labelled = [own(number).labelled_us for number in range(len(dataset.labelled))]
    plan = TrainingPlan(
        dataset.labelled, labelled, config.data.steps, config.data.random, config.data.streams, strategy.timing(),
        config.run.seed, config.data.rate_clips,
    )  # fmt: skip
    return TrainingParts(config, dataset, validation, detector, strategy, plan, device)


def fresh_detector(requested: ModelConfig, dataset: Dataset) -> Detector:
    """The detector of a configuration for the classes and the sensor of a dataset, with random weights.

    S5 remembers no longer than the longest recording lasts, unless ``longest_memory_s`` is among the options: what its
    state does later is not trained.
    """
    options = dict(requested.options)
    if has_s5(requested.name, options):
        longest_us = max((each.end_us - each.start_us for each in dataset.labelled), default=0)
        options.setdefault("longest_memory_s", max(round(longest_us / 1e6, 1), 0.1))
    try:
        return build_model(
            requested.name, dataset.classes, dataset.sensor, encoder=requested.encoder,
            encoder_options=requested.encoder_options, stem=requested.stem, **options,
        )  # fmt: skip
    except TypeError as error:
        if not requested.options and not requested.encoder_options:
            raise
        raise FateError(
            f"model.options = {requested.options} and model.encoder_options = {requested.encoder_options} were given;"
            f" expected values of other types ({error})"
        ) from None


def _make_detector(requested: ModelConfig, dataset: Dataset) -> Detector:
    """The detector of a configuration, with random weights or with those of another run.

    A detector with a memory may start from one without (EvRT-DETR's second stage).
    """
    detector, path = fresh_detector(requested, dataset), requested.weights
    if path is None:
        return detector
    given = load_trained(path)
    if requested.transfer:
        transfer(given, detector)
        return detector
    for name in ("classes", "sensor"):
        theirs, ours = tuple(getattr(given, name)), tuple(getattr(detector, name))
        if theirs != ours:
            raise FateError(f"{path}: made for {name} {theirs}, the dataset has {ours}; expected the same")
    weights, expected = given.state_dict(), detector.state_dict()
    if given.memory is None:
        weights |= {name: value for name, value in expected.items() if name.startswith("memory.")}
    check_entries(path, weights, expected)
    detector.load_state_dict(weights)
    return detector


def _starts_trained(config: TrainConfig, parts: TrainingParts) -> bool:
    """Whether a run starts from weights that know all classes of the dataset, so that its gain can be measured."""
    if config.model.weights is None:
        return False
    known = {plain(name) for name in read_card(find_weights(config.model.weights))["model"]["classes"]}
    return known.issuperset(plain(name) for name in parts.dataset.classes)


def own_labels(dataset: Dataset) -> RuledLabels:
    """The labels of the dataset after its rules for training."""
    return RuledLabels(dataset.labelled, _rules(dataset))


def _rules(dataset: Dataset) -> LabelRules:
    """The rules for training; RVT's histograms have them applied already."""
    return PLAIN_RULES if dataset.holds == "histograms" else label_rules(dataset.protocol)


def _ruled(
    recordings: Sequence[LabelledRecording], labels_of: LabelsOf, rules: LabelRules, number: int, hz: float
) -> Labels | None:
    """Labels of any source after the rules for training."""
    labels, recording = labels_of(number, hz), recordings[number]
    return None if labels is None else rules.apply(labels, split=recording.split, downscale=recording.downscale)


def need_lightning() -> None:
    """Raise an error with the pip line if PyTorch Lightning is missing; called before it is imported."""
    try:
        import pytorch_lightning  # noqa: F401, PLC0415  (it takes seconds to load)
    except ImportError:
        raise missing_packages("training", ("pytorch-lightning",)) from None


def train(
    config: TrainConfig | str | os.PathLike[str],
    out: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    progress: Progress | None = None,
    allow_missing: bool = False,
    begins: Callable[[int, str], None] | None = None,
    draw_samples: DrawSamples | None = None,
    draw_curves: DrawCurves | None = None,
) -> Trained:
    """Train, or continue the run in ``out``; ``fate.train`` explains the arguments that it has too.

    Args:
        begins: called once before the first step, after all checks, with the number of steps that are already done
            and the device; in the first process only.
        draw_samples: draws labels and predictions after each validation; see ``callbacks.DrawSamples``.
        draw_curves: draws the learning curves after each validation and at the end; see ``callbacks.DrawCurves``.
    """
    need_lightning()
    from fate.training.callbacks import (  # noqa: PLC0415
        Checkpoints,
        Guard,
        Metrics,
        Validation,
        training_facts,
    )
    from fate.training.module import TrainingModule  # noqa: PLC0415

    requested = config if isinstance(config, TrainConfig) else read_config(config, overrides)
    check_processes(requested.run.devices, requested.run.nodes)
    check_loggers(requested.run.loggers)
    run, first = RunDirectory(out), own_rank() == 0
    going_on = run.begin(requested) if first else run.checkpoint.exists()
    try:
        parts = build(requested)
        faults = data_faults(parts.dataset, parts.validation)
        if first:
            faults.tell(partial(print, file=sys.stderr, flush=True), run.log)
            run.describe(requested, parts.dataset.labelled, parts.device, faults.to_dict())
        faults.refuse(allow_missing)
        module = TrainingModule(parts.detector, parts.strategy, requested)
        guard = Guard(run)
        facts = training_facts(requested, parts.dataset)
        checkpoints = Checkpoints(run, requested, guard, facts)
        loggers = Loggers(requested, run)
        validation = Validation(
            run,
            requested,
            parts.validation,
            draw_samples,
            draw_curves,
            loggers,
            _starts_trained(requested, parts),
            facts,
        )
        metrics = Metrics(run, requested, guard, progress, loggers)
        engine = _engine(requested, parts.device, run.folder, [guard, validation, checkpoints, metrics])
        step = run.saved_step() if going_on else 0
        if step >= requested.steps:
            return Trained(run.folder, step, True, *run.scores())
        if first:
            run.cut_metrics(step)  # also where a run was killed before its first checkpoint
            run.log(f"goes on from step {step}" if going_on else "begins")
        resumed = run.checkpoint if going_on else None
        try:
            with limit_threads(parts.device), closing(_batches(parts, module)) as batches:
                if first and begins is not None:
                    begins(step, parts.device)
                engine.fit(module, train_dataloaders=batches, ckpt_path=resumed, weights_only=True)
        except BaseException as error:
            if (kill := getattr(engine.strategy.launcher, "kill", None)) is not None:
                kill(KILL_SIGNAL)  # the processes that this one has started would wait for it
            if isinstance(error, torch.OutOfMemoryError):
                raise FateError(
                    f"the GPU has too little memory for a batch of {requested.batch_size} clips of"
                    f" {requested.data.steps} windows; fate train --dry-run with the same settings finds settings that"
                    " fit, and data.resident_gb=0 keeps no events on the GPU"
                ) from error
            raise
        if draw_curves is not None and engine.is_global_zero:
            try:
                draw_curves(run.folder)
            except (OSError, FateError) as error:
                run.announce(f"the learning curves could not be drawn ({error})")
        if checkpoints.failed and engine.is_global_zero:
            raise FateError(
                f"{run.folder}: the last checkpoint could not be written ({checkpoints.failed}); make room, then the"
                f" same command goes on from step {max(checkpoints.saved_at, 0)}"
            )
        finished = engine.global_step >= requested.steps
        return Trained(run.folder, engine.global_step, finished, validation.before, validation.best)
    finally:
        run.close()


def _engine(config: TrainConfig, device: str, folder: Path, callbacks: Any) -> Any:
    """Lightning's trainer without the parts that FATE implements itself."""
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment  # noqa: PLC0415
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment  # noqa: PLC0415
    from lightning_fabric.utilities.exceptions import MisconfigurationException  # noqa: PLC0415
    from pytorch_lightning import Trainer  # noqa: PLC0415
    from pytorch_lightning.strategies import DDPStrategy  # noqa: PLC0415

    for name in ("pytorch_lightning", "lightning_fabric"):  # their messages and warnings are expected here
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=f"{name}.*")
    by_slurm = SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()  # torchrun may run inside a job
    try:
        return Trainer(
            accelerator="gpu" if device == "cuda" else "cpu",
            devices=config.run.devices if config.run.gpu is None else [config.run.gpu],
            num_nodes=config.run.nodes,
            strategy=DDPStrategy() if config.run.devices * config.run.nodes > 1 else "auto",
            precision="bf16-mixed" if config.halves(device) else "32-true",
            max_steps=config.steps,
            max_epochs=-1,
            accumulate_grad_batches=config.run.accumulate,
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            default_root_dir=folder,
            # saving and queueing again are ours (callbacks.py): two kinds of checkpoints would contradict each other
            plugins=[SLURMEnvironment(auto_requeue=False)] if by_slurm else None,
        )
    except (ValueError, MisconfigurationException) as error:  # more GPUs than there are, other numbers than SLURM's
        raise FateError(
            f"run.devices = {config.run.devices} and run.nodes = {config.run.nodes} were given:"
            f" {' '.join(str(error).split())}"
        ) from None


def _batches(parts: TrainingParts, module: Any) -> Generator[ClipBatch, None, None]:
    """Batches from the current step of the run, after the checkpoint was read; closing ends the worker processes."""
    trainer = module.trainer
    yield from parts.batches(module.batches, trainer.global_rank, trainer.world_size)


def _device(config: TrainConfig) -> str:
    """``"cpu"`` or ``"cuda"``; a GPU that was named becomes the current one."""
    requested, gpu = config.run.device, config.run.gpu
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if requested.startswith("cuda") and (gpu or 0) >= count:
        raise FateError(
            f"run.device = {requested} was given, and this machine has {count} GPUs, from cuda:0 on; give another one,"
            " cpu or auto"
        )
    if requested == "cpu" or not count:
        return "cpu"
    if gpu is not None:
        torch.cuda.set_device(gpu)
    memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(1 - LIBRARIES_GB * 1e9 / memory)
    return "cuda"


def _has(weights: Mapping[str, Tensor], part: str) -> bool:
    """Whether a weight belongs to a part, such as ``.history.``."""
    return any(part in f".{name}" for name in weights)


def transfer(given: Detector, detector: Detector) -> None:
    """Load the weights of a detector of other classes or of another sensor.

    Layers that belong to a class get the rows of classes with the same name; their other rows stay as they are.
    If the detector depends on the length of windows (``length_affine``, ``image_history``) and the given one does not,
    the parameters for that stay as they begin, and the outputs for windows of 50 ms are the same. The other way round
    is refused: outputs would change.
    """
    theirs, ours = given.state_dict(), detector.state_dict()
    lost = [option for option, part in OF_LENGTH.items() if _has(theirs, part) and not _has(ours, part)]
    if lost:
        options = {**given.description.get("options", {}), **dict.fromkeys(lost, True)}
        written = ", ".join(f"{name}: {json.dumps(value)}" for name, value in options.items())
        raise FateError(
            f"the weights were trained with {' and '.join(lost)} and the detector is without; give all options of the"
            f" weights: model.options={{{written}}}"
        )
    wider = rebuild({**given.description, "classes": [*given.classes, "one more"]}).state_dict()
    of_classes = {name for name, value in theirs.items() if wider[name].shape != value.shape}
    rows = {plain(name): row for row, name in enumerate(given.classes)}
    pairs = [(row, rows[plain(name)]) for row, name in enumerate(detector.classes) if plain(name) in rows]
    if isinstance(detector.encoder, WindowLength) and not isinstance(given.encoder, WindowLength):
        theirs = {f"encoder.{name}" if name.startswith("encoder.") else name: value for name, value in theirs.items()}
    gained = [part for part in OF_LENGTH.values() if not _has(theirs, part)]
    fresh = {name for name in ours if any(part in f".{name}" for part in gained)}
    same = {name for name, value in ours.items() if name in theirs and theirs[name].shape == value.shape}
    misfits = sorted(ours.keys() - of_classes - fresh - same)
    if misfits:
        raise FateError(
            f"{len(misfits)} layers of the detector do not fit the weights, such as {misfits[0]}; give the model,"
            " encoder and options of the weights"
        )
    for name, value in ours.items():
        if name in of_classes:
            for row, source in pairs:
                value[row] = theirs[name][source]
        elif name not in fresh:
            value.copy_(theirs[name])
