"""Metrics: what the steps of a run were like, averaged over some of them, on disk and on the screen."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from pytorch_lightning import Callback, Trainer
from torch import Tensor

from fate.data.batches import ClipBatch
from fate.progress import Progress
from fate.training.config import TrainConfig
from fate.training.guard import Guard
from fate.training.run_directory import RunDirectory
from fate.training.together import mean_of_processes, processes

#: On a slow machine, progress is shown at least so often, seconds.
SHOW_EVERY_S = 10.0


class Metrics(Callback):
    """A line of ``metrics.jsonl`` every few steps; comes last among the callbacks, so that their time is not counted.

    Terms are added up where they are computed and read once a line: reading waits for a GPU.
    """

    def __init__(self, run: RunDirectory, config: TrainConfig, guard: Guard, progress: Progress | None = None) -> None:
        self.run, self.config, self.guard, self.progress = run, config, guard, progress
        self.board = _Board(run)
        self._shown = time.perf_counter()
        self._begin()

    def _begin(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._rates: dict[float, int] = {}
        self._count, self._windows, self._data_s, self._step_s = 0, 0, 0.0, 0.0
        self._last = time.perf_counter()

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        """The clock starts."""
        self._begin()

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Until now the batch was waited for."""
        now = time.perf_counter()
        self._data_s, self._last = self._data_s + now - self._last, now
        self._lr = trainer.optimizers[0].param_groups[0]["lr"]  # after the step it is the next one's

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: ClipBatch, batch_idx: int) -> None:
        """Add up; every so often, write a line."""
        terms = {**module.last_terms, "loss": outputs["loss"].detach() * self.config.run.accumulate}
        for name, term in terms.items():
            self._sums[name] = self._sums[name] + term if name in self._sums else term.clone()
        self._count += 1
        self._windows += batch.steps * len(batch.clips)
        for clip in batch.clips:
            self._rates[clip.hz] = self._rates.get(clip.hz, 0) + 1
        self._step_s += self.guard.ended - self._last
        if trainer.global_step % self.config.run.log_every == 0 and stepped(trainer, batch_idx):
            self._write(trainer)
        elif self.progress is not None and time.perf_counter() - self._shown >= SHOW_EVERY_S and self._count:
            step_s = (self._data_s + self._step_s) / self._count * self.config.run.accumulate
            self._tell(trainer, f"{step_s:.2f} s a step")
        self._last = time.perf_counter()

    def teardown(self, trainer: Trainer, module: Any, stage: str) -> None:
        """The last lines are kept, also where training failed."""
        self.board.close()

    def _write(self, trainer: Trainer) -> None:
        now = time.perf_counter()
        shares = mean_of_processes(torch.stack([total.float() for total in self._sums.values()])) / self._count
        means = dict(zip(self._sums, shares.tolist(), strict=True))
        spent = self._data_s + self._step_s + time.perf_counter() - now  # reading waited for steps under way
        line = {
            "step": trainer.global_step,
            "epoch": (trainer.global_step - 1) // self.config.run.epoch_steps,
            "lr": self._lr,
            **{name: value for name, value in means.items() if math.isfinite(value)},
            "windows_per_s": self._windows * processes() / spent,
            "waiting_for_data": self._data_s / spent,
            "step_s": spent / self._count * self.config.run.accumulate,
            "rates": {f"{hz:g}": self._rates[hz] for hz in sorted(self._rates)},
        }
        if trainer.is_global_zero:
            self.run.add_metrics(line)
            self.board.write(trainer.global_step, line)
            if self.progress is not None:
                text = (
                    f"loss {means['loss']:.3f} · {line['step_s']:.2f} s a step, {line['waiting_for_data']:.0%} for data"
                )
                self._tell(trainer, text)
        self._begin()

    def _tell(self, trainer: Trainer, text: str) -> None:
        """Show how far training is; on a slow machine also between two lines of metrics."""
        self._shown = time.perf_counter()
        if trainer.is_global_zero and self.progress is not None:
            self.progress(trainer.global_step, self.config.steps, text)


def stepped(trainer: Trainer, batch_idx: int) -> bool:
    """Whether the batch ended with a step of the optimiser."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


class _Board:
    """Writes numbers for TensorBoard if it is installed. An error in it is reported once and never stops training."""

    def __init__(self, run: RunDirectory) -> None:
        self._folder = run.folder / "tensorboard"
        self._writer: Any = None
        self._used = True

    def write(self, step: int, line: dict[str, Any]) -> None:
        """Write all floats of a line of metrics."""
        if not self._used:
            return
        try:
            if self._writer is None:
                from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

                self._writer = SummaryWriter(str(self._folder))
            for name, value in line.items():
                if isinstance(value, float):
                    self._writer.add_scalar(name, value, step)
        except ModuleNotFoundError:  # it is optional
            self._used = False
        except Exception as error:
            self._failed(error)

    def close(self) -> None:
        """Write what is still in memory; TensorBoard's own thread would lose it when Python ends."""
        if self._writer is None or not self._used:
            return
        try:
            self._writer.close()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._used = False
        print(f"TensorBoard failed ({error}); training goes on without it", flush=True)
