"""Every few epochs: how good the teacher is at several rates, what it sees, and whether it is the best so far."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, Trainer
from torch import distributed

from fate.data.dataset import Dataset
from fate.errors import FateError
from fate.evaluation.evaluate import AtRate, Evaluation, evaluate
from fate.inference.running import at_once
from fate.models.checkpoints import save_model
from fate.training.config import TrainConfig
from fate.training.module import TrainingModule
from fate.training.run_directory import RunDirectory
from fate.training.together import patient_group

METRIC = "AP50:95"
#: Draws labels and predictions at one rate into a picture file.
DrawSamples = Callable[[AtRate, Dataset, Path], None]


class Validation(Callback):
    """Runs on the first process; the others wait. It draws no number from the generators that training draws from."""

    def __init__(
        self, run: RunDirectory, config: TrainConfig, dataset: Dataset, draw_samples: DrawSamples | None = None
    ) -> None:
        self.run, self.config, self.dataset, self.draw_samples = run, config, dataset, draw_samples
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
            streams, steps = at_once(self.dataset, self.config.batch_size * self.config.data.steps) if many else (8, 1)
            found = evaluate(
                module.teacher, self.dataset, run.validate_hz, device=device, streams=streams, steps=steps,
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
            if self.draw_samples is not None:
                for at in found.rates:
                    self.draw_samples(at, self.dataset, self.run.pictures / f"step-{step:07d}-{at.hz:g}hz.png")
        except (OSError, FateError) as error:
            text = f"step {step}: not all of the validation could be kept ({' '.join(str(error).split())})"
            print(f"{text}; training goes on", flush=True)
            self.run.log(text)
        return found


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
