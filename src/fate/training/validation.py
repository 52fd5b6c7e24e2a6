"""Every few epochs: how good the teacher is at several rates, what it sees, and whether it is the best so far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pytorch_lightning import Callback, Trainer
from torch import distributed

from fate.data.clip_images import ImageSource
from fate.data.dataset import Dataset
from fate.data.teacher_windows import CANONICAL_US
from fate.errors import FateError
from fate.evaluation.evaluate import AtRate, Evaluation, evaluate
from fate.evaluation.running import at_once
from fate.events.events import Events
from fate.events.labels import Labels
from fate.models.checkpoints import save_model
from fate.training.config import TrainConfig
from fate.training.module import TrainingModule
from fate.training.run_directory import RunDirectory
from fate.training.together import patient_group
from fate.view.drawing import draw_boxes, draw_events, enlargement, side_by_side

METRIC = "AP50:95"
#: Recordings shown in a picture, and the score from which a prediction is drawn.
SHOWN, DRAWN_FROM = 3, 0.3
#: Of the events drawn before a label, µs.
DRAWN_US = 20_000
#: From when on windows are shown, where there are such, µs.
SETTLED_US = 500_000


class Validation(Callback):
    """Runs on the first process; the others wait. It draws no number from the generators that training draws from."""

    def __init__(self, run: RunDirectory, config: TrainConfig, dataset: Dataset) -> None:
        self.run, self.config, self.dataset = run, config, dataset
        self.best: float | None = None
        self._everyone: distributed.ProcessGroup | None = None

    def setup(self, trainer: Trainer, module: Any, stage: str) -> None:
        """Processes agree on where to wait for the first."""
        self._everyone = patient_group()

    def state_dict(self) -> dict[str, Any]:
        """Kept in checkpoints."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Taken from them."""
        self.best = state_dict["best"]

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Validate when it is time, and at the end."""
        step, run = trainer.global_step, self.config.run
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if step % (run.validate_every * run.epoch_steps) == 0 or step == self.config.steps:
            if trainer.is_global_zero:
                self.validate(module, step)
            if self._everyone is not None:
                distributed.barrier(self._everyone)

    def validate(self, module: TrainingModule, step: int) -> Evaluation:
        """Evaluate the teacher, write the figures and a picture, keep the best weights."""
        run, device = self.config.run, module.device
        cuda = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            many = device.type == "cuda"
            lanes, steps = at_once(self.dataset, self.config.lanes * self.config.data.steps) if many else (8, 1)
            found = evaluate(
                module.teacher, self.dataset, run.validate_hz, device=device, lanes=lanes, steps=steps,
                workers=self.config.data.workers if many else 0,
            )  # fmt: skip
        figures = {f"{at.hz:g}": {name: at.scores[name] for name in (METRIC, "AP50", "AP75")} for at in found.rates}
        known = [value for at in found.rates if (value := at.scores[METRIC]) is not None]
        score = float(np.mean(known)) if known else None
        is_best = score is not None and (self.best is None or score > self.best)
        self.run.add_metrics({"step": step, "validation": figures, "score": score, "is_best": is_best})
        self.run.log(
            f"step {step}: " + ", ".join(f"{hz} Hz {METRIC} {_shown(of[METRIC])}" for hz, of in figures.items())
        )
        try:
            if is_best:
                facts = {"training": {"step": step, "strategy": self.config.strategy.name,
                                      "data": self.config.data.path, "seed": self.config.run.seed},
                         "validation": figures, "protocol": found.protocol.to_dict()}  # fmt: skip
                save_model(module.teacher, self.run.folder / "best.safetensors", facts=facts)
                self.best = score  # only now: what could not be kept is not the best
            for at in found.rates:
                draw_samples(at, self.dataset, self.run.pictures / f"step-{step:07d}-{at.hz:g}hz.png")
        except (OSError, FateError) as error:
            text = f"step {step}: not all of the validation could be kept ({' '.join(str(error).split())})"
            print(f"{text}; training goes on", flush=True)
            self.run.log(text)
        return found


def draw_samples(at: AtRate, dataset: Dataset, path: Path) -> None:
    """Labels beside predictions in the window with most boxes of a few recordings, as a picture."""
    rows = []
    for recording in dataset.labelled[:SHOWN]:
        labels, said = recording.labels, at.run.predictions.get(recording.name) if at.run else None
        if said is None or not len(labels):
            continue
        times, counts = np.unique(labels.t_us, return_counts=True)
        late = times >= recording.start_us + SETTLED_US  # by then a memory knows something
        chosen = np.where(late, counts, 0) if late.any() else counts
        time = int(times[np.argmax(chosen)])
        near = said.labelled_us[np.argmin(np.abs(said.labelled_us - time))] if len(said.labelled_us) else None
        factor = enlargement(recording.sensor)
        picture = draw_events(_events_before(recording, time), factor=factor)
        truth = _boxed(picture, labels.at(time), dataset, factor, with_scores=False)
        found = picture if near is None else _boxed(picture, said.at(int(near)), dataset, factor, with_scores=True)
        captions = [f"{recording.name} at {time / 1e6:.2f} s: labels", f"found at {at.hz:g} Hz"]
        rows.append(side_by_side([truth, found], captions))
    if rows:
        Image.fromarray(np.concatenate(rows)).save(path)


def _events_before(recording: Any, time_us: int) -> Events:
    """What led to a time; of an image, an event where it counts any, of the polarity that it counts more of."""
    if not isinstance(recording, ImageSource):
        with recording.open() as reader:
            events: Events = reader.read(time_us - DRAWN_US, time_us)
            return events
    images, _ = recording.read_images(time_us - CANONICAL_US, time_us)
    sensor = images.shape[2:]
    if not len(images):
        return Events.empty(sensor)
    off, on = images[-1].reshape(2, -1, *sensor).sum(axis=1, dtype=np.int64)
    y, x = np.nonzero(off + on)
    return Events(np.full(len(x), time_us - 1), x, y, (on > off)[y, x], sensor)


def _boxed(picture: Any, boxes: Labels, dataset: Dataset, factor: int, with_scores: bool) -> Any:
    chosen = np.flatnonzero(boxes.score >= DRAWN_FROM)
    names = [dataset.classes[number] for number in boxes.class_id[chosen]]
    texts = [f"{name} {score:.2f}" for name, score in zip(names, boxes.score[chosen], strict=True)]
    return draw_boxes(picture, boxes.boxes[chosen], labels=texts if with_scores else names,
                      class_ids=boxes.class_id[chosen].tolist(), scale=factor)  # fmt: skip


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
